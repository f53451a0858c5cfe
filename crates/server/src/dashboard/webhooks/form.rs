//! The form that makes and changes webhooks, and the check of what is written in it so far.

use askama::Template;
use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{WebhookId, webhook::Webhook};
use redrive_store::PageRequest;
use serde::Deserialize;

use super::{fields::Fields, show::name_of};
use crate::{
    api::{
        AppState, Json, MAX_WEBHOOK_BODY_BYTES, ManagesEndpoints, May, Problem, Query, REDACTED,
        WebhookInput, check_written,
    },
    app::{AppError, Capability, Scope, TenantView, event_types::MOST},
    dashboard::{
        Shown, format,
        page::{Failed, Frame, Html, allowed},
        viewer::Looking,
    },
};

#[derive(Template)]
#[template(path = "webhook_form.html")]
struct FormPage {
    frame: Frame,
    /// The webhook that is changed; none for a new one.
    known: Option<Webhook>,
    /// What it is called.
    name: String,
    fields: Fields,
    /// Event types and patterns to choose from.
    suggested: Vec<String>,
}

/// The form for a new webhook.
pub(in crate::dashboard) async fn new(State(app): State<AppState>, looking: Looking) -> Shown {
    page(&app, &looking, None).await
}

/// The form for a known webhook.
pub(in crate::dashboard) async fn edit(State(app): State<AppState>, looking: Looking) -> Shown {
    must_manage(&looking)?;
    let webhook = app.webhook(looking.tenant.clone(), looking.id("webhook")?).await?;
    page(&app, &looking, Some(webhook)).await
}

/// Refuses a viewer who may not change webhooks.
fn must_manage(looking: &Looking) -> Result<(), Failed> {
    allowed(looking.viewer.by.must_have(Scope::Manage))?;
    allowed(looking.viewer.by.must_be_capable(Capability::ManageEndpoints))
}

async fn page(app: &AppState, looking: &Looking, known: Option<Webhook>) -> Shown {
    must_manage(looking)?;
    let spec = known.as_ref().map(|webhook| webhook.spec.clone()).unwrap_or_default();
    Html::of(&FormPage {
        frame: looking.frame("webhooks"),
        name: known.as_ref().map(name_of).unwrap_or_default(),
        fields: Fields::of(&spec),
        known,
        suggested: suggestions(app, looking.tenant.clone()).await?,
    })
}

/// The tenant's event types, and what stands before the dots of several of them.
async fn suggestions(app: &AppState, tenant: TenantView) -> Result<Vec<String>, AppError> {
    let page = PageRequest { after: None, offset: 0, limit: MOST as u32 };
    let known = app.list_event_types(tenant.id, Some(false), page).await?;
    let names: Vec<String> = known.into_iter().map(|known| known.name).collect();
    Ok(with_patterns(names))
}

fn with_patterns(names: Vec<String>) -> Vec<String> {
    let prefix = |name: &String| name.rsplit_once('.').map(|(prefix, _)| format!("{prefix}.*"));
    let mut patterns: Vec<String> = names.iter().filter_map(prefix).collect();
    patterns.sort_unstable();
    patterns.dedup();
    [vec!["*".to_owned()], patterns, names].concat()
}

/// Which webhook is changed; a new one if none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    id: Option<WebhookId>,
}

/// Says what is wrong with what is written so far, as the API would: 204 if nothing is, or else the problem. That it
/// was found is no failure of the request, so it comes with 200. Nothing is stored.
pub(in crate::dashboard) async fn check(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Path(tenant): Path<String>,
    Query(which): Query<Which>,
    input: Result<Json<WebhookInput, MAX_WEBHOOK_BODY_BYTES>, Problem>,
) -> Result<Response, Problem> {
    let tenant = caller.acts_for(Some(&tenant)).map_err(|_| AppError::NotFound("tenant"))?;
    let tenant = app.acts_for(&caller, Some(tenant.as_str())).await?;
    let checked = match input {
        Ok(Json(input)) => check_written(&app, &caller, tenant, which.id, &input).await,
        Err(problem) => Err(problem),
    };
    match checked {
        Ok(()) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(problem) if is_about_input(&problem) => Ok((StatusCode::OK, problem).into_response()),
        Err(problem) => Err(problem),
    }
}

/// Whether a problem is one of what was written, rather than of the request.
fn is_about_input(problem: &Problem) -> bool {
    [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY].iter().any(|status| problem.status == *status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_suggested_before_names() {
        let names = ["order.created", "order.paid", "order.item.added", "ping"].map(str::to_owned).to_vec();
        let expected =
            ["*", "order.*", "order.item.*", "order.created", "order.paid", "order.item.added", "ping"];
        assert_eq!(with_patterns(names), expected);
    }
}

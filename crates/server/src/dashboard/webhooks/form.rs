//! Form to create and change webhooks, and the validation of its current input.

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
        AppState, Authorized, Json, MAX_WEBHOOK_BODY_BYTES, ManagesEndpoints, Query, REDACTED, WebhookInput,
        validate_draft,
    },
    app::{AppError, Capability, Scope, TenantView, event_types::MAX_EVENT_TYPES},
    dashboard::{
        PageResult, format,
        page::{Html, PageContext, PageError, allowed},
        viewer::TenantViewer,
    },
    problem::Problem,
};

#[derive(Template)]
#[template(path = "webhook_form.html")]
struct FormPage {
    layout: PageContext,
    /// The webhook to change. `None` for a new one.
    known: Option<Webhook>,
    /// Displayed name of the webhook.
    name: String,
    fields: Fields,
    /// Event types and patterns offered.
    suggested: Vec<String>,
}

/// Renders the form for a new webhook.
pub(in crate::dashboard) async fn new(State(app): State<AppState>, viewer: TenantViewer) -> PageResult {
    page(&app, &viewer, None).await
}

/// Renders the form to change a webhook.
pub(in crate::dashboard) async fn edit(State(app): State<AppState>, viewer: TenantViewer) -> PageResult {
    require_manage(&viewer)?;
    let webhook = app.webhook(viewer.tenant.clone(), viewer.id("webhook")?).await?;
    page(&app, &viewer, Some(webhook)).await
}

/// Rejects viewers that may not change webhooks.
fn require_manage(viewer: &TenantViewer) -> Result<(), PageError> {
    allowed(viewer.viewer.by.require_scope(Scope::Manage))?;
    allowed(viewer.viewer.by.require_capability(Capability::ManageEndpoints))
}

async fn page(app: &AppState, viewer: &TenantViewer, known: Option<Webhook>) -> PageResult {
    require_manage(viewer)?;
    let spec = known.as_ref().map(|webhook| webhook.spec.clone()).unwrap_or_default();
    Html::render(&FormPage {
        layout: viewer.layout("webhooks"),
        name: known.as_ref().map(name_of).unwrap_or_default(),
        fields: Fields::from_spec(&spec),
        known,
        suggested: suggestions(app, viewer.tenant.clone()).await?,
    })
}

/// Returns the tenant's event types, and patterns of their prefixes.
async fn suggestions(app: &AppState, tenant: TenantView) -> Result<Vec<String>, AppError> {
    let page = PageRequest { after: None, offset: 0, limit: MAX_EVENT_TYPES as u32 };
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

/// Query of the check: the webhook to change. `None` for a new one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckQuery {
    id: Option<WebhookId>,
}

/// Validates the current input as the API would, without storing anything. Returns 204 if it is valid. Invalid
/// input is not a failure of this request, so the problem is returned with 200.
pub(in crate::dashboard) async fn check(
    State(app): State<AppState>,
    Authorized(caller, _): Authorized<ManagesEndpoints>,
    Path(tenant): Path<String>,
    Query(query): Query<CheckQuery>,
    input: Result<Json<WebhookInput, MAX_WEBHOOK_BODY_BYTES>, Problem>,
) -> Result<Response, Problem> {
    let tenant = app.resolve_tenant_in_path(&caller, &tenant).await?;
    let checked = match input {
        Ok(Json(input)) => validate_draft(&app, &caller, tenant, query.id, &input).await,
        Err(problem) => Err(problem),
    };
    match checked {
        Ok(()) => Ok(StatusCode::NO_CONTENT.into_response()),
        Err(problem) if is_about_input(&problem) => Ok((StatusCode::OK, problem).into_response()),
        Err(problem) => Err(problem),
    }
}

/// Returns whether a problem is about the input rather than the request.
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

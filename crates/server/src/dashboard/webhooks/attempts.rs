//! Page with the attempts to a webhook and their filters.

use askama::Template;
use axum::extract::State;
use redrive_core::{FailureCategory, WebhookId, delivery::outcome::AttemptStatus};
use redrive_store::{Attempt, AttemptFilter, ListedAttempt};

use super::show::name_of;
use crate::{
    api::{AppState, AttemptQuery},
    dashboard::{
        PageResult, format,
        page::{FormQuery, Html, PageContext},
        viewer::TenantViewer,
    },
};

/// Rows on one page.
const PAGE_SIZE: u32 = 25;

#[derive(Template)]
#[template(path = "attempts.html")]
struct AttemptsPage {
    layout: PageContext,
    query: FormQuery<AttemptQuery>,
    id: WebhookId,
    name: String,
    rows: Vec<ListedAttempt>,
    next: Option<String>,
}

impl AttemptsPage {
    fn tone(&self, attempt: &Attempt) -> &'static str {
        match attempt.status {
            AttemptStatus::Success => "good",
            AttemptStatus::Failed | AttemptStatus::FinalFailure => "bad",
        }
    }

    fn duration(&self, attempt: &Attempt) -> String {
        format::millis(f64::from(attempt.timings.total) / 1000.0)
    }

    /// Describes the response, or the failure without one.
    fn response(&self, attempt: &Attempt) -> String {
        match (attempt.http_status_code, attempt.failure_category) {
            (Some(code), _) => code.to_string(),
            (None, Some(category)) => format::category(category),
            (None, None) => attempt.status.name().to_owned(),
        }
    }
}

/// Renders the page.
pub(in crate::dashboard) async fn attempts(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<AttemptQuery>,
) -> PageResult {
    let webhook = app.webhook(viewer.tenant.clone(), viewer.id("webhook")?).await?;
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    let filter =
        AttemptFilter { webhook_id: Some(webhook.id), ..query.query.filter(&app, &viewer.tenant).await? };
    let listed = app.list_attempts(viewer.tenant.clone(), filter, paging.request()?).await?;
    let page = paging.page_of(listed, |one| one.cursor, |one| one);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    let layout = viewer.layout("webhooks");
    Html::render(&AttemptsPage {
        layout,
        query,
        id: webhook.id,
        name: name_of(&webhook),
        rows: page.data,
        next,
    })
}

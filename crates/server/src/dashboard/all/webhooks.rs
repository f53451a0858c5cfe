//! Webhooks of all tenants, with the search and the summaries of a tenant's list.

use askama::Template;
use axum::extract::State;
use redrive_core::{
    protection::breaker::CircuitState,
    webhook::{Webhook, status::WebhookStatus},
};

use super::selected_tenants;
use crate::{
    api::AppState,
    app::webhook_summary::{WebhookSummary, with_summaries},
    dashboard::{
        PageResult, format, overview,
        page::{FormQuery, Html, PageContext},
        viewer::AllTenantsViewer,
        webhooks::{ListQuery, find_webhooks, name_of, status_badge},
    },
};

#[derive(Template)]
#[template(path = "all_webhooks.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<ListQuery>,
    rows: Vec<(Webhook, WebhookSummary)>,
    next: Option<String>,
    stopped: bool,
}

/// Renders the list.
pub(in crate::dashboard) async fn list(
    State(app): State<AppState>,
    viewer: AllTenantsViewer,
    query: FormQuery<ListQuery>,
) -> PageResult {
    let tenants = selected_tenants(&app, &viewer, query.value("tenant_id")).await?;
    let found = find_webhooks(&app, &tenants, &query.query).await?;
    let next = found.next.map(|id| query.with("cursor", &id.to_string()));
    let summaries = app.summaries(tenants, &found.rows).await?;
    let rows = with_summaries(found.rows, summaries);
    Html::render(&ListPage { layout: viewer.layout("all"), rows, next, stopped: found.stopped, query })
}

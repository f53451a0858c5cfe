//! Webhooks of all tenants, with the search and the summaries of a tenant's list.

use std::collections::{BTreeMap, HashMap};

use askama::Template;
use axum::extract::State;
use redrive_core::{
    TenantId,
    protection::breaker::CircuitState,
    webhook::{Webhook, status::WebhookStatus},
};

use super::selected_tenants;
use crate::{
    api::AppState,
    app::{AppError, across_tenants::read_each, webhook_summary::WebhookSummary},
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
    let rows = summarize(&app, found.rows).await?;
    Html::render(&ListPage { layout: viewer.layout("all"), rows, next, stopped: found.stopped, query })
}

/// Adds the summary of each webhook, with few reads per tenant.
async fn summarize(
    app: &AppState,
    webhooks: Vec<Webhook>,
) -> Result<Vec<(Webhook, WebhookSummary)>, AppError> {
    let order: Vec<_> = webhooks.iter().map(|webhook| webhook.id).collect();
    let mut by_tenant: BTreeMap<TenantId, Vec<Webhook>> = BTreeMap::new();
    for webhook in webhooks {
        by_tenant.entry(webhook.tenant_id.clone()).or_default().push(webhook);
    }
    let summaries = by_tenant.into_iter().map(|(tenant_id, webhooks)| async move {
        let summaries = app.summaries(&tenant_id, &webhooks).await?;
        Ok::<_, AppError>(webhooks.into_iter().zip(summaries).collect::<Vec<_>>())
    });
    let summaries = read_each(summaries).await?.into_iter().flatten();
    let mut rows: HashMap<_, _> = summaries.map(|row| (row.0.id, row)).collect();
    Ok(order.into_iter().filter_map(|id| rows.remove(&id)).collect())
}

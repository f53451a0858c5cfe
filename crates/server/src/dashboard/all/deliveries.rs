//! Deliveries and dead letters of all tenants.

use askama::Template;
use axum::extract::State;
use redrive_core::{DeadReason, DeliveryStatus, FailureCategory};
use redrive_store::DeliveryFilter;

use super::{PAGE_SIZE, selected_tenants};
use crate::{
    api::{AppState, DeliveryQuery, cursor_of},
    app::{
        dead_letters::DeadStats,
        deliveries::{DeliveryDetails, DeliverySelection},
    },
    dashboard::{
        PageResult, format, outcome_text,
        page::{FormQuery, Html, PageContext, PageError},
        viewer::AllTenantsViewer,
        webhook_names::Names,
    },
};

#[derive(Template)]
#[template(path = "all_deliveries.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<DeliveryQuery>,
    names: Names,
    rows: Vec<DeliveryDetails>,
    next: Option<String>,
    /// Statistics, on the page of dead letters.
    stats: Option<DeadStats>,
}

impl ListPage {
    /// Returns whether the page lists dead letters.
    fn is_dead(&self) -> bool {
        self.stats.is_some()
    }

    /// Returns the name of the page among those over all tenants.
    fn tab(&self) -> &'static str {
        if self.is_dead() { "Dead letters" } else { "Deliveries" }
    }

    fn title(&self) -> &'static str {
        if self.is_dead() { "Dead letters of all tenants" } else { "Deliveries of all tenants" }
    }

    fn path(&self) -> &'static str {
        if self.is_dead() { "/dashboard/all/dead" } else { "/dashboard/all/deliveries" }
    }

    /// Returns the API call that resends selected rows of one tenant.
    fn retry(&self) -> &'static str {
        if self.is_dead() { "POST /v1/dlq/retry-batch" } else { "POST /v1/deliveries/retry-batch" }
    }

    /// Returns the API call that cancels selected rows of one tenant; empty if none can be pending.
    fn cancel(&self) -> &'static str {
        if self.is_dead() { "" } else { "POST /v1/deliveries/cancel-batch" }
    }
}

/// Renders the list of deliveries.
pub(in crate::dashboard) async fn list(
    State(app): State<AppState>,
    viewer: AllTenantsViewer,
    query: FormQuery<DeliveryQuery>,
) -> PageResult {
    let tenants = selected_tenants(&app, &viewer, query.value("tenant_id")).await?;
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    let selection: DeliverySelection = query.query.selection()?;
    let found = app.list_deliveries(tenants, selection, paging.request()?).await?;
    let page = paging.page_of(found, cursor_of, |details| details);
    render(&app, &viewer, query, page.data, page.next_cursor, None).await
}

/// Renders the list of dead letters.
pub(in crate::dashboard) async fn dead(
    State(app): State<AppState>,
    viewer: AllTenantsViewer,
    query: FormQuery<DeliveryQuery>,
) -> PageResult {
    let tenants = selected_tenants(&app, &viewer, query.value("tenant_id")).await?;
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    // A status filter is ignored: every dead letter has the same status.
    let filter = DeliveryFilter { status: None, ..query.query.filter()? };
    let counted = DeliveryFilter { event_id: None, status_code: None, ..filter.clone() };
    let stats = app.dead_stats(tenants.clone(), counted).await?;
    let found = app.list_dead(tenants, filter, paging.request()?).await?;
    let page = paging.page_of(found, cursor_of, |details| details);
    render(&app, &viewer, query, page.data, page.next_cursor, Some(stats)).await
}

async fn render(
    app: &AppState,
    viewer: &AllTenantsViewer,
    query: FormQuery<DeliveryQuery>,
    rows: Vec<DeliveryDetails>,
    next: Option<String>,
    stats: Option<DeadStats>,
) -> Result<Html, PageError> {
    let all = viewer.actor().require_all_tenants()?;
    let names = Names::load(app, all, rows.iter().map(|row| row.delivery.webhook_id)).await?;
    let next = next.map(|cursor| query.with("cursor", &cursor));
    Html::render(&ListPage { layout: viewer.layout("all"), query, names, rows, next, stats })
}

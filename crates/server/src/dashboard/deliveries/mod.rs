//! Delivery pages: the list with its filters, and a delivery with its history.

mod compare;
mod curl;
mod detail;
mod timeline;

use askama::Template;
use axum::{extract::State, response::Response};
use redrive_core::{DeadReason, DeliveryStatus, FailureCategory};
use redrive_store::DeliveryFilter;

pub(super) use self::detail::{as_curl, detail};
use super::{
    PageResult,
    bulk::Bulk,
    format, outcome_text,
    page::{FormQuery, Html, PageContext, PageError},
    viewer::TenantViewer,
    webhook_names::{Choices, Names},
};
use crate::{
    api::{AppState, DeliveryQuery, ExportQuery, cursor_of, exported_deliveries},
    app::deliveries::DeliveryDetails,
};

/// Rows on one page.
const PAGE_SIZE: u32 = 25;

#[derive(Template)]
#[template(path = "deliveries.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<DeliveryQuery>,
    choices: Choices,
    names: Names,
    rows: Vec<DeliveryDetails>,
    next: Option<String>,
    bulk: Bulk,
}

impl ListPage {
    /// Returns whether one of the additional filters is set.
    fn has_more_filters(&self) -> bool {
        let more_filters = [
            "event_id",
            "idempotency_key",
            "subject",
            "failure_category",
            "status_code",
            "dead_reason",
            "recoverable",
            "from",
            "to",
            "failed_from",
            "failed_to",
        ];
        more_filters.iter().any(|name| !self.query.is(name, ""))
    }
}

/// Renders the list.
pub(super) async fn list(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<DeliveryQuery>,
) -> PageResult {
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    let selection = query.query.selection(&app, &viewer.tenant).await?;
    let bulk = Bulk::for_selection(&selection);
    let details = app.list_deliveries(viewer.tenant.clone(), selection, paging.request()?).await?;
    let page = paging.page_of(details, cursor_of, |details| details);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    let names =
        Names::load(&app, &viewer.tenant, page.data.iter().map(|details| details.delivery.webhook_id))
            .await?;
    let choices = Choices::load(&app, &viewer.tenant, query.value("webhook_id")).await?;
    let layout = viewer.layout("deliveries");
    Html::render(&ListPage { layout, query, choices, names, rows: page.data, next, bulk })
}

/// Exports all deliveries that the filter of the list selects.
pub(super) async fn export(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<ExportQuery>,
) -> Result<Response, PageError> {
    Ok(exported_deliveries(&app, viewer.tenant, &query.query, false).await?)
}

/// Exports all dead letters that the filter of their list selects.
pub(super) async fn export_dead(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<ExportQuery>,
) -> Result<Response, PageError> {
    Ok(exported_deliveries(&app, viewer.tenant, &query.query, true).await?)
}

/// Returns a filter for the deliveries of one event.
pub(super) fn filter_for_event(event_id: redrive_core::EventId) -> DeliveryFilter {
    DeliveryFilter { event_id: Some(event_id), ..DeliveryFilter::default() }
}

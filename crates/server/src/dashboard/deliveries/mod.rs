//! Deliveries: the listing with its filters, and one of them with everything that happened to it.

mod curl;
mod detail;
mod timeline;

use askama::Template;
use axum::{extract::State, response::Response};
use redrive_core::{DeadReason, DeliveryStatus, FailureCategory};
use redrive_store::DeliveryFilter;

pub(super) use self::detail::{as_curl, detail};
use super::{
    Shown,
    bulk::Bulk,
    format, outcome_text,
    page::{Asked, Failed, Frame, Html},
    viewer::Looking,
    webhook_names::{Choices, Names},
};
use crate::{
    api::{AppState, DeliveryQuery, ExportQuery, cursor_of, exported_deliveries},
    app::deliveries::Seen,
};

/// Rows on one page.
const ROWS: u32 = 25;

#[derive(Template)]
#[template(path = "deliveries.html")]
struct ListPage {
    frame: Frame,
    asked: Asked<DeliveryQuery>,
    choices: Choices,
    names: Names,
    rows: Vec<Seen>,
    next: Option<String>,
    bulk: Bulk,
}

impl ListPage {
    /// Whether something is asked that stands among the further filters.
    fn is_asked_further(&self) -> bool {
        let further = [
            "event_id",
            "idempotency_key",
            "subject",
            "failure_category",
            "status_code",
            "dead_reason",
            "recoverable",
            "from",
            "to",
        ];
        further.iter().any(|name| !self.asked.is(name, ""))
    }
}

/// The listing.
pub(super) async fn list(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<DeliveryQuery>,
) -> Shown {
    let paging = asked.query.paging().or_limit(ROWS);
    let filter = asked.query.filter()?;
    let bulk = Bulk::of(&filter);
    let seen = app.list_deliveries(looking.tenant.clone(), filter, paging.request()?).await?;
    let page = paging.page_of(seen, cursor_of, |seen| seen);
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    let names = Names::of(&app, &looking.tenant, page.data.iter().map(|seen| seen.delivery.webhook)).await?;
    let choices = Choices::of(&app, &looking.tenant, asked.value("webhook_id")).await?;
    let frame = looking.frame("deliveries");
    Html::of(&ListPage { frame, asked, choices, names, rows: page.data, next, bulk })
}

/// Everything that the filter of the listing wants, as a file.
pub(super) async fn export(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<ExportQuery>,
) -> Result<Response, Failed> {
    Ok(exported_deliveries(&app, looking.tenant, &asked.query, false)?)
}

/// All dead letters that the filter of their listing wants, as a file.
pub(super) async fn export_dead(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<ExportQuery>,
) -> Result<Response, Failed> {
    Ok(exported_deliveries(&app, looking.tenant, &asked.query, true)?)
}

/// Only of one event.
pub(super) fn of_event(event: redrive_core::EventId) -> DeliveryFilter {
    DeliveryFilter { event: Some(event), ..DeliveryFilter::default() }
}

//! Events: the listing with its filters, and one of them with its payload and where it went.

mod detail;

use askama::Template;
use axum::{extract::State, response::Response};
use redrive_store::StoredEvent;

pub(super) use self::detail::{detail, payload};
use super::{
    Shown, format,
    page::{Asked, Failed, Frame, Html},
    untrusted,
    viewer::Looking,
};
use crate::api::{AppState, EventExportQuery, EventQuery, exported_events};

/// Rows on one page.
const ROWS: u32 = 25;

#[derive(Template)]
#[template(path = "events.html")]
struct ListPage {
    frame: Frame,
    asked: Asked<EventQuery>,
    rows: Vec<StoredEvent>,
    next: Option<String>,
}

/// The listing.
pub(super) async fn list(State(app): State<AppState>, looking: Looking, asked: Asked<EventQuery>) -> Shown {
    let paging = asked.query.paging().or_limit(ROWS);
    let found = app.list_events(looking.tenant.clone(), asked.query.filter(), paging.request()?).await?;
    let page = paging.page_of(found, |stored| stored.event.id, |stored| stored);
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    Html::of(&ListPage { frame: looking.frame("events"), asked, rows: page.data, next })
}

/// Everything that the filter of the listing wants, as a file.
pub(super) async fn export(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<EventExportQuery>,
) -> Result<Response, Failed> {
    Ok(exported_events(&app, looking.tenant, &asked.query)?)
}

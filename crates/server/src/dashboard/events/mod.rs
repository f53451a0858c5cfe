//! Event pages: the list with its filters, and an event with its payload and deliveries.

mod compare;
mod detail;

use askama::Template;
use axum::{extract::State, response::Response};
use redrive_store::StoredEvent;

pub(super) use self::detail::{detail, payload};
use super::{
    PageResult, format,
    page::{FormQuery, Html, PageContext, PageError},
    untrusted,
    viewer::TenantViewer,
};
use crate::api::{AppState, EventExportQuery, EventQuery, exported_events};

/// Rows on one page.
const PAGE_SIZE: u32 = 25;

#[derive(Template)]
#[template(path = "events.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<EventQuery>,
    rows: Vec<StoredEvent>,
    next: Option<String>,
}

/// Renders the list.
pub(super) async fn list(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<EventQuery>,
) -> PageResult {
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    let found = app.list_events(viewer.tenant.clone(), query.query.filter(), paging.request()?).await?;
    let page = paging.page_of(found, |stored| stored.event.id, |stored| stored);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    Html::render(&ListPage { layout: viewer.layout("events"), query, rows: page.data, next })
}

/// Exports all events that the filter of the list selects.
pub(super) async fn export(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<EventExportQuery>,
) -> Result<Response, PageError> {
    Ok(exported_events(&app, viewer.tenant, &query.query)?)
}

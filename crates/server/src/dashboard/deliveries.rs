//! Deliveries: the listing with its filters.

use askama::Template;
use axum::extract::State;
use redrive_core::DeliveryStatus;

use super::{
    Shown,
    page::{Asked, Frame, Html},
    viewer::Looking,
    words,
};
use crate::{
    api::{AppState, DeliveryQuery, cursor_of},
    app::deliveries::Seen,
};

/// Rows on one page.
const ROWS: u32 = 25;

#[derive(Template)]
#[template(path = "deliveries.html")]
struct ListPage {
    frame: Frame,
    asked: Asked<DeliveryQuery>,
    rows: Vec<Seen>,
    next: Option<String>,
}

/// The listing.
pub(super) async fn list(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<DeliveryQuery>,
) -> Shown {
    let paging = asked.query.paging().or_limit(ROWS);
    let seen = app.list_deliveries(looking.tenant.clone(), asked.query.filter()?, paging.request()?).await?;
    let page = paging.page_of(seen, cursor_of, |seen| seen);
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    Html::of(&ListPage { frame: looking.frame("deliveries"), asked, rows: page.data, next })
}

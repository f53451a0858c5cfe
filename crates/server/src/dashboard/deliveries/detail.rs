//! One delivery: where it stands and why, what was tried, what was sent and what came back.

use askama::Template;
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use redrive_core::{DeliveryId, DeliveryStatus, dispatch::gate::WaitingOn};
use redrive_store::StoredAttempt;
use serde::Deserialize;

use super::{
    curl,
    timeline::{Line, timeline},
};
use crate::{
    api::{AppState, request_headers},
    app::{
        AppError,
        attempts::{Entry, History},
        deliveries::Seen,
    },
    dashboard::{
        Shown, format, outcome_text,
        page::{Asked, Failed, Frame, Html},
        untrusted::{self, Sample, pretty},
        viewer::Looking,
        webhook_names::Names,
    },
};

/// How much of a body is shown; the event's page has the payload.
const MOST_BODY: usize = 6 * 1024;

/// Which attempt to open.
#[derive(Default, Deserialize)]
pub(in crate::dashboard) struct DetailQuery {
    attempt: Option<u32>,
}

#[derive(Template)]
#[template(path = "delivery.html")]
struct DetailPage {
    frame: Frame,
    seen: Seen,
    names: Names,
    lines: Vec<Line>,
    left_out: usize,
    is_erased: bool,
    body: String,
    body_size: usize,
    is_cut: bool,
}

impl DetailPage {
    /// Whether somebody may have it sent again, or sooner.
    fn is_retryable(&self) -> bool {
        let delivery = &self.seen.delivery;
        let is_waiting = delivery.status == DeliveryStatus::Pending;
        let can_begin_anew = delivery.status.is_final() && delivery.redriven_as.is_none();
        !self.is_erased && (is_waiting || can_begin_anew)
    }

    /// Whether the reason for its waiting is only that its time has not come.
    fn waits_for_its_time(&self) -> bool {
        self.seen.waiting.as_ref().is_some_and(|waiting| waiting.on == WaitingOn::Schedule)
    }
}

/// The page.
pub(in crate::dashboard) async fn detail(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<DetailQuery>,
) -> Shown {
    let id: DeliveryId = looking.id("delivery")?;
    let tenant = looking.tenant.clone();
    let seen = app.delivery(tenant.clone(), id).await?;
    let history = app.history(tenant.clone(), id).await?;
    let event = app.event(tenant.clone(), seen.delivery.event).await?.event;
    let names = Names::of(&app, &tenant, [seen.delivery.webhook]).await?;
    let (lines, left_out) = timeline(history, &event, asked.query.attempt);
    let sent = if event.is_erased() { Default::default() } else { seen.delivery.format.render(&event) };
    let (body, is_cut) = pretty(&sent, MOST_BODY);
    Html::of(&DetailPage {
        frame: looking.frame("deliveries"),
        names,
        lines,
        left_out,
        is_erased: event.is_erased(),
        body,
        body_size: sent.len(),
        is_cut,
        seen,
    })
}

/// Which attempt is meant: the one asked for, or else the last.
fn attempt_of(history: History, number: Option<u32>) -> Option<StoredAttempt> {
    let attempts = history.entries.into_iter().filter_map(|entry| match entry {
        Entry::Attempt(stored) => Some(stored),
        Entry::Blocked(_) => None,
    });
    attempts.filter(|stored| number.is_none_or(|number| stored.attempt.number == number)).last()
}

/// The request of an attempt as a command for a shell, as plain text.
pub(in crate::dashboard) async fn as_curl(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<DetailQuery>,
) -> Result<Response, Failed> {
    let id: DeliveryId = looking.id("delivery")?;
    let tenant = looking.tenant.clone();
    let history = app.history(tenant.clone(), id).await?;
    let delivery = history.delivery.clone();
    let event = app.event(tenant.clone(), delivery.event).await?.event;
    if event.is_erased() {
        return Err(AppError::NotFound("payload").into());
    }
    let stored = attempt_of(history, asked.query.attempt).ok_or(AppError::NotFound("attempt"))?;
    let names = Names::of(&app, &tenant, [delivery.webhook]).await?;
    let url = names.long(&delivery.webhook);
    let command = curl::command(&url, &request_headers(&stored, &event), &delivery.format.render(&event));
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((kind, command).into_response())
}

//! Delivery page: status and reason, attempts, and the requests and responses.

use askama::Template;
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use redrive_core::{DeliveryId, DeliveryStatus, dispatch::gate::WaitingOn, event::Event};
use redrive_store::StoredAttempt;
use serde::Deserialize;

use super::{
    compare::Comparison,
    curl,
    timeline::{Line, timeline},
};
use crate::{
    api::{AppState, request_headers},
    app::{
        AppError,
        attempts::{DeliveryHistory, HistoryEntry},
        deliveries::DeliveryDetails,
    },
    dashboard::{
        PageResult,
        code::CodeHtml,
        format, outcome_text,
        page::{FormQuery, Html, PageContext, PageError, PageQuery},
        text_diff::DiffLine,
        untrusted::{self, BodySample, pretty},
        viewer::TenantViewer,
        webhook_names::Names,
    },
};

/// Maximum number of body bytes shown; the event's page shows the payload.
const MAX_BODY_BYTES: usize = 6 * 1024;

/// Maximum number of attempts that can be chosen for a comparison, the newest.
const MAX_CHOICES: usize = 60;

/// Query of the page: the attempt to expand, and two attempts to compare.
#[derive(Default, Deserialize)]
pub(in crate::dashboard) struct DetailQuery {
    attempt: Option<u32>,
    first: Option<u32>,
    second: Option<u32>,
}

impl PageQuery for DetailQuery {}

#[derive(Template)]
#[template(path = "delivery.html")]
struct DetailPage {
    layout: PageContext,
    details: DeliveryDetails,
    names: Names,
    lines: Vec<Line>,
    omitted: usize,
    /// Numbers of the attempts that can be compared, oldest first.
    attempts: Vec<u32>,
    comparison: Option<Comparison>,
    is_erased: bool,
    body: CodeHtml,
    body_size: usize,
    is_cut: bool,
}

impl DetailPage {
    /// Returns whether the delivery can be resent, or sent earlier than scheduled.
    fn is_retryable(&self) -> bool {
        let delivery = &self.details.delivery;
        let is_waiting = delivery.status == DeliveryStatus::Pending;
        let can_be_resent = delivery.status.is_final() && delivery.redriven_as.is_none();
        !self.is_erased && (is_waiting || can_be_resent)
    }

    /// Returns whether an attempt is chosen for the comparison: the first of the two fields, or the second. The
    /// last two attempts are suggested.
    fn is_chosen(&self, is_first: bool, number: &u32) -> bool {
        let chosen = self.comparison.as_ref().map(|found| if is_first { found.first } else { found.second });
        let suggested = self.attempts.iter().rev().nth(usize::from(is_first)).copied();
        chosen.or(suggested) == Some(*number)
    }

    /// Returns whether the delivery waits only for its scheduled time.
    fn is_only_scheduled(&self) -> bool {
        self.details.waiting.as_ref().is_some_and(|waiting| waiting.on == WaitingOn::Schedule)
    }
}

/// Renders the page.
pub(in crate::dashboard) async fn detail(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<DetailQuery>,
) -> PageResult {
    let id: DeliveryId = viewer.id("delivery")?;
    let tenant = viewer.tenant.clone();
    let details = app.delivery(tenant.clone(), id).await?;
    let history = app.history(tenant.clone(), id).await?;
    let event = app.event(tenant.clone(), details.delivery.event_id).await?.event;
    let names = Names::load(&app, &tenant, [details.delivery.webhook_id]).await?;
    let (attempts, comparison) = compare_attempts(&history, &event, &query.query);
    let (lines, omitted) = timeline(history, &event, query.query.attempt);
    let sent = if event.is_erased() { Default::default() } else { details.delivery.format.render(&event) };
    let (body, is_cut) = pretty(&sent, MAX_BODY_BYTES);
    Html::render(&DetailPage {
        layout: viewer.layout("deliveries"),
        names,
        lines,
        omitted,
        attempts,
        comparison,
        is_erased: event.is_erased(),
        body: CodeHtml::from_text(&body),
        body_size: sent.len(),
        is_cut,
        details,
    })
}

/// Returns the numbers of the attempts that can be compared, and the requested comparison.
fn compare_attempts(
    history: &DeliveryHistory,
    event: &Event,
    query: &DetailQuery,
) -> (Vec<u32>, Option<Comparison>) {
    let mut attempts: Vec<&StoredAttempt> = Vec::new();
    for entry in &history.entries {
        if let HistoryEntry::Attempt(stored) = entry {
            attempts.push(stored);
        }
    }
    let find = |number: Option<u32>| attempts.iter().find(|one| Some(one.attempt.number) == number);
    let comparison = find(query.first)
        .zip(find(query.second))
        .map(|(first, second)| Comparison::new(first, second, event));
    let newest = attempts.len().saturating_sub(MAX_CHOICES);
    (attempts[newest..].iter().map(|one| one.attempt.number).collect(), comparison)
}

/// Returns the attempt with this number, or the last one if there is no number.
fn find_attempt(history: DeliveryHistory, number: Option<u32>) -> Option<StoredAttempt> {
    let attempts = history.entries.into_iter().filter_map(|entry| match entry {
        HistoryEntry::Attempt(stored) => Some(stored),
        HistoryEntry::Blocked(_) => None,
    });
    attempts.filter(|stored| number.is_none_or(|number| stored.attempt.number == number)).last()
}

/// Returns the request of an attempt as a `curl` command, as plain text.
pub(in crate::dashboard) async fn as_curl(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<DetailQuery>,
) -> Result<Response, PageError> {
    let id: DeliveryId = viewer.id("delivery")?;
    let tenant = viewer.tenant.clone();
    let history = app.history(tenant.clone(), id).await?;
    let delivery = history.delivery.clone();
    let event = app.event(tenant.clone(), delivery.event_id).await?.event;
    if event.is_erased() {
        return Err(AppError::NotFound("payload").into());
    }
    let stored = find_attempt(history, query.query.attempt).ok_or(AppError::NotFound("attempt"))?;
    let names = Names::load(&app, &tenant, [delivery.webhook_id]).await?;
    let url = names.long(&delivery.webhook_id);
    let command = curl::command(&url, &request_headers(&stored, &event), &delivery.format.render(&event));
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((kind, command).into_response())
}

//! `/v1/deliveries` and the deliveries of one webhook: history, attempts, retry, cancel.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{
    AttemptId, DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, Invalid, TenantId, Time,
    WebhookId, event::Event,
};
use redrive_store::{DeliveryCursor, DeliveryFilter, StatusFilter, StoredAttempt};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    events::TenantQuery,
    extract::{Id, Ids, Manages, May, OptionalJson, Query, Reads},
    page::{Page, Paging},
    problem::Problem,
};
use crate::app::{
    App, AppError,
    deliveries::{Seen, WaitingOn},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(attempts))
        .routes(routes!(retry))
        .routes(routes!(cancel))
        .routes(routes!(list_of_webhook))
        .routes(routes!(retry_of_webhook))
}

/// A delivery: one event owed to one webhook, in one round.
#[derive(Serialize, ToSchema)]
pub(super) struct DeliveryView {
    /// Its id.
    #[schema(value_type = String)]
    id: DeliveryId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// The event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// The event's type.
    event_type: String,
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// 1 for the first, counted up by retries and replays of ended ones.
    round: u32,
    /// Where it stands.
    status: DeliveryStatus,
    /// What it waits for, while it is pending.
    waiting_on: Option<WaitingOn>,
    /// When it is due, where that is known.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Time>,
    /// Attempts made.
    attempt_count: u32,
    /// Attempts that its webhook allows.
    max_attempts: Option<u32>,
    /// The status code of the last answer.
    last_status_code: Option<u16>,
    /// What kind of failure the last one was.
    failure_category: Option<FailureCategory>,
    /// What went wrong last, in words.
    last_error: Option<String>,
    /// Why it was given up.
    dead_reason: Option<DeadReason>,
    /// Whether redriving a dead one, with nothing else changed, may well succeed.
    likely_recoverable: Option<bool>,
    /// Why it was cancelled.
    cancel_reason: Option<String>,
    /// The delivery that this one repeats.
    #[schema(value_type = Option<String>)]
    replay_of: Option<DeliveryId>,
    /// The delivery that repeats this one.
    #[schema(value_type = Option<String>)]
    redriven_as: Option<DeliveryId>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When it was delivered.
    #[schema(value_type = Option<String>, format = DateTime)]
    delivered_at: Option<Time>,
    /// When it was given up.
    #[schema(value_type = Option<String>, format = DateTime)]
    dead_at: Option<Time>,
    /// When it was cancelled.
    #[schema(value_type = Option<String>, format = DateTime)]
    cancelled_at: Option<Time>,
}

impl From<Seen> for DeliveryView {
    fn from(seen: Seen) -> Self {
        let delivery = seen.delivery;
        let ended = |status| delivery.ended_at.filter(|_| delivery.status == status);
        Self {
            delivered_at: ended(DeliveryStatus::Delivered),
            dead_at: ended(DeliveryStatus::Dead),
            cancelled_at: ended(DeliveryStatus::Cancelled),
            id: delivery.id,
            tenant_id: delivery.tenant,
            event_id: delivery.event,
            event_type: delivery.event_type,
            webhook_id: delivery.webhook,
            round: delivery.round,
            status: delivery.status,
            waiting_on: seen.waiting_on,
            next_attempt_at: seen.next_attempt_at,
            attempt_count: delivery.attempt_count,
            max_attempts: seen.max_attempts,
            last_status_code: delivery.last_status_code,
            failure_category: delivery.failure_category,
            last_error: delivery.last_error,
            likely_recoverable: delivery.dead_reason.map(DeadReason::likely_recoverable),
            dead_reason: delivery.dead_reason,
            cancel_reason: delivery.cancel_reason,
            replay_of: delivery.replay_of,
            redriven_as: delivery.redriven_as,
            created_at: delivery.created_at,
        }
    }
}

/// A header.
#[derive(Serialize, ToSchema)]
pub(super) struct HeaderView {
    /// Its name.
    name: String,
    /// Its value; `[redacted]` where it is a secret.
    value: String,
}

/// One try of one delivery.
#[derive(Serialize, ToSchema)]
pub(super) struct AttemptView {
    /// Its id.
    #[schema(value_type = String)]
    id: AttemptId,
    /// 1 for the first.
    number: u32,
    /// The delivery.
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
    /// The event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// `success`, `failed`, or `exhausted` where it ended its delivery dead.
    #[schema(example = "success")]
    status: &'static str,
    /// What kind of failure it was.
    failure_category: Option<FailureCategory>,
    /// The answer's status code.
    http_status_code: Option<u16>,
    /// What went wrong, in words.
    error_message: Option<String>,
    /// The headers that were sent, secrets redacted.
    request_headers: Vec<HeaderView>,
    /// The headers that came back.
    response_headers: Vec<HeaderView>,
    /// The first KiB of the answer's body; bytes that are no text are replaced.
    response_body_sample: Option<String>,
    /// Milliseconds for looking the name up; null where that was not needed.
    dns_ms: Option<f64>,
    /// Milliseconds for connecting; null on a reused connection.
    connect_ms: Option<f64>,
    /// Milliseconds for the TLS handshake.
    tls_ms: Option<f64>,
    /// Milliseconds to the first byte of the answer.
    ttfb_ms: Option<f64>,
    /// Milliseconds in all.
    duration_ms: f64,
    /// When it was due.
    #[schema(value_type = String, format = DateTime)]
    scheduled_at: Time,
    /// When it was sent.
    #[schema(value_type = String, format = DateTime)]
    executed_at: Time,
    /// When the next one is due.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Time>,
    /// Why there is a next one.
    retry_reason: Option<FailureCategory>,
    /// The node that sent it.
    worker: String,
}

impl AttemptView {
    /// An attempt of a delivery of this event.
    pub(super) fn new(stored: StoredAttempt, event: &Event) -> Self {
        let request_headers = request_headers(&stored, event);
        let attempt = stored.attempt;
        let millis = |micros: u32| f64::from(micros) / 1000.0;
        let timings = attempt.timings;
        Self {
            id: attempt.id,
            number: attempt.number,
            delivery_id: stored.delivery,
            event_id: stored.event,
            webhook_id: stored.webhook,
            status: attempt.status.name(),
            failure_category: attempt.failure_category,
            http_status_code: attempt.http_status_code,
            error_message: attempt.error_message,
            request_headers,
            response_headers: header_views(attempt.response_headers.as_deref()),
            response_body_sample: attempt
                .response_body_sample
                .map(|sample| String::from_utf8_lossy(&sample).into_owned()),
            dns_ms: timings.dns.map(millis),
            connect_ms: timings.connect.map(millis),
            tls_ms: timings.tls.map(millis),
            ttfb_ms: timings.ttfb.map(millis),
            duration_ms: millis(timings.total),
            scheduled_at: attempt.scheduled_at,
            executed_at: attempt.executed_at,
            retry_reason: attempt.failure_category.filter(|_| attempt.next_retry_at.is_some()),
            next_retry_at: attempt.next_retry_at,
            worker: attempt.worker.as_ref().into(),
        }
    }
}

/// What was sent follows from the attempt and its event; only the webhook's own headers were written down.
fn request_headers(stored: &StoredAttempt, event: &Event) -> Vec<HeaderView> {
    let attempt = &stored.attempt;
    let own = [
        ("content-type", "application/json".into()),
        ("webhook-id", stored.event.to_string()),
        ("webhook-timestamp", attempt.executed_at.secs().to_string()),
        ("webhook-signature", "[redacted]".into()),
        ("x-webhook-id", stored.webhook.to_string()),
        ("x-webhook-event", event.event_type.to_string()),
        ("x-webhook-delivery", stored.delivery.to_string()),
        ("x-webhook-attempt", attempt.number.to_string()),
        ("x-webhook-timestamp", attempt.executed_at.to_string()),
        ("x-webhook-signature", "[redacted]".into()),
        ("x-idempotency-key", event.key()),
    ];
    let mut headers: Vec<_> =
        own.into_iter().map(|(name, value)| HeaderView { name: name.into(), value }).collect();
    headers.extend(header_views(attempt.custom_headers.as_deref()));
    headers
}

fn header_views(lines: Option<&[u8]>) -> Vec<HeaderView> {
    let text = String::from_utf8_lossy(lines.unwrap_or_default());
    let split = text.lines().filter_map(|line| line.split_once(": "));
    split.map(|(name, value)| HeaderView { name: name.into(), value: value.into() }).collect()
}

/// Which deliveries to list.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DeliveryQuery {
    /// `pending`, `in_flight`, `delivered`, `dead`, `cancelled`, or `failed`: at least one failed attempt and
    /// not delivered.
    status: Option<String>,
    /// Only to this webhook.
    pub(super) webhook_id: Option<String>,
    /// Only of this event type.
    event_type: Option<String>,
    /// Only with this kind of last failure.
    #[param(value_type = Option<String>)]
    failure_category: Option<FailureCategory>,
    /// Only of events from this time on (RFC 3339).
    #[param(value_type = Option<String>)]
    from: Option<Time>,
    /// Only of events before this time (RFC 3339).
    #[param(value_type = Option<String>)]
    to: Option<Time>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// How many to give: 1 to 500, 50 if left out.
    limit: Option<u32>,
    /// How many to leave out first, up to 10,000; a cursor is better.
    offset: Option<u32>,
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

fn status_filter(text: &str) -> Result<StatusFilter, Problem> {
    if text == "failed" {
        return Ok(StatusFilter::Failed);
    }
    let known = DeliveryStatus::ALL.into_iter().find(|status| status.name() == text);
    known.map(StatusFilter::Is).ok_or_else(|| {
        Invalid::new("status", "must be pending, in_flight, delivered, dead, cancelled or failed").into()
    })
}

impl DeliveryQuery {
    pub(super) fn filter(&self) -> Result<DeliveryFilter, Problem> {
        let bad_webhook = |error: redrive_core::id::BadId| Invalid::new("webhook_id", error.to_string());
        Ok(DeliveryFilter {
            webhook: self.webhook_id.as_deref().map(str::parse).transpose().map_err(bad_webhook)?,
            event: None,
            status: self.status.as_deref().map(status_filter).transpose()?,
            event_type: self.event_type.clone(),
            failure_category: self.failure_category,
            from: self.from,
            to: self.to,
        })
    }

    pub(super) fn paging(&self) -> Paging {
        Paging { cursor: self.cursor.clone(), limit: self.limit, offset: self.offset, tenant_id: None }
    }
}

async fn page_of(
    app: &App,
    tenant: TenantId,
    filter: DeliveryFilter,
    paging: &Paging,
) -> Result<Page<DeliveryView>, Problem> {
    let seen = app.list_deliveries(tenant, filter, paging.request()?).await?;
    let cursor = |seen: &Seen| DeliveryCursor { event: seen.delivery.event, delivery: seen.delivery.id };
    Ok(paging.page(seen, cursor, DeliveryView::from))
}

pub(super) async fn list_of_event(
    app: &App,
    tenant: TenantId,
    event: EventId,
    paging: &Paging,
) -> Result<Page<DeliveryView>, Problem> {
    let filter = DeliveryFilter { event: Some(event), ..DeliveryFilter::default() };
    page_of(app, tenant, filter, paging).await
}

/// List deliveries
#[utoipa::path(
    get, path = "/v1/deliveries", tag = "deliveries", params(DeliveryQuery),
    responses(
        (status = 200, description = "Newest event first", body = Page<DeliveryView>),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 503, body = Problem),
    ),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<DeliveryQuery>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    page_of(&app, tenant, query.filter()?, &query.paging()).await.map(axum::Json)
}

/// List a webhook's deliveries
#[utoipa::path(
    get, path = "/v1/webhooks/{id}/deliveries", tag = "deliveries", params(("id" = String, Path), DeliveryQuery),
    responses(
        (status = 200, description = "Newest event first", body = Page<DeliveryView>),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn list_of_webhook(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<WebhookId>,
    Query(query): Query<DeliveryQuery>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    app.webhook(tenant.clone(), id).await?;
    let filter = DeliveryFilter { webhook: Some(id), ..query.filter()? };
    page_of(&app, tenant, filter, &query.paging()).await.map(axum::Json)
}

/// Get a delivery
#[utoipa::path(
    get, path = "/v1/deliveries/{id}", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    responses(
        (status = 200, body = DeliveryView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn get(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<DeliveryId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<DeliveryView>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    Ok(axum::Json(app.delivery(tenant, id).await?.into()))
}

/// List a delivery's attempts
#[utoipa::path(
    get, path = "/v1/deliveries/{id}/attempts", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    responses(
        (status = 200, description = "First to last", body = Page<AttemptView>),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn attempts(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<DeliveryId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<Page<AttemptView>>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    let delivery = app.delivery(tenant.clone(), id).await?.delivery;
    let event = app.event(tenant.clone(), delivery.event).await?.event;
    let attempts = app.attempts(tenant, id).await?;
    let data = attempts.into_iter().map(|attempt| AttemptView::new(attempt, &event)).collect();
    Ok(axum::Json(Page { data, next_cursor: None }))
}

/// The body of a change that needs nothing but its path.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantInput {
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    pub(super) tenant_id: Option<String>,
}

/// What a retry came to.
#[derive(Serialize, ToSchema)]
pub(super) struct RetryView {
    /// The delivery to watch: the same one if it was pending, the new round if it was over.
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
}

/// Retry a delivery
///
/// A pending one is due now. One that is over is delivered in a new round.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/retry", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    request_body = TenantInput,
    responses(
        (status = 202, body = RetryView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn retry(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<DeliveryId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<Response, Problem> {
    let tenant = caller.acts_for(input.tenant_id.or(query.tenant_id).as_deref())?;
    let delivery_id = app.retry(tenant, id).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(RetryView { delivery_id })).into_response())
}

/// Retry a webhook's delivery
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/deliveries/{delivery_id}/retry", tag = "deliveries",
    params(("id" = String, Path), ("delivery_id" = String, Path), TenantQuery), request_body = TenantInput,
    responses(
        (status = 202, body = RetryView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn retry_of_webhook(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Ids(webhook, id): Ids<WebhookId, DeliveryId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<Response, Problem> {
    let tenant = caller.acts_for(input.tenant_id.or(query.tenant_id).as_deref())?;
    if app.delivery(tenant.clone(), id).await?.delivery.webhook != webhook {
        return Err(AppError::NotFound("delivery of this webhook").into());
    }
    let delivery_id = app.retry(tenant, id).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(RetryView { delivery_id })).into_response())
}

/// Cancel a pending delivery
///
/// A request that is under way is let finish: if it succeeds, the delivery is delivered.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/cancel", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    request_body = TenantInput,
    responses(
        (status = 202, body = DeliveryView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn cancel(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<DeliveryId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<Response, Problem> {
    let tenant = caller.acts_for(input.tenant_id.or(query.tenant_id).as_deref())?;
    app.cancel(tenant.clone(), id).await?;
    let view = DeliveryView::from(app.delivery(tenant, id).await?);
    Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
}

//! `/v1/events`: publishing, looking up, replaying.

use std::borrow::Cow;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use redrive_core::{EventId, Invalid, TenantId, Time, WebhookId};
use redrive_engine::{Draft, Receipt, ReplayTo};
use redrive_store::{EventFilter, StoredEvent};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    deliveries::{AttemptView, DeliveryView, list_of_event},
    extract::{Batch, Id, Manages, May, OptionalJson, Publishes, Query, Raw, Reads, Single, json},
    page::{Page, Paging},
    problem::Problem,
};
use crate::app::App;

/// The most events of one batch.
const MAX_BATCH: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(publish, list))
        .routes(routes!(publish_batch))
        .routes(routes!(get))
        .routes(routes!(deliveries))
        .routes(routes!(attempts))
        .routes(routes!(replay))
}

/// An event to publish.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EventInput<'a> {
    /// Its type: segments separated by dots.
    #[serde(borrow)]
    #[schema(value_type = String, example = "order.created")]
    event_type: Cow<'a, str>,
    /// The payload: any JSON. It is delivered byte for byte.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    data: &'a RawValue,
    /// A repeat with the same key gives the first event back. Also as the header `Idempotency-Key`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    idempotency_key: Option<Cow<'a, str>>,
    /// Where it came from.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    source: Option<Cow<'a, str>>,
    /// What it is about, such as one order.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    subject: Option<Cow<'a, str>>,
    /// Your own notes; never sent to endpoints.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<&'a RawValue>,
    /// The tenant to act for; admin keys only.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    tenant_id: Option<Cow<'a, str>>,
}

/// What became of a publish.
#[derive(Serialize, ToSchema)]
pub(super) struct PublishedView {
    /// The event's id.
    #[schema(value_type = String, example = "evt_018f3b1c7a5e7c40b0a8f3d2c1e0a9b8")]
    id: EventId,
    /// When it was published.
    #[schema(value_type = String, format = DateTime)]
    timestamp: Time,
    /// Its place in the tenant's sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_number: Option<i64>,
    /// How many webhooks it goes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    deliveries: Option<usize>,
    /// Whether this repeats an event that was published before.
    duplicate: bool,
}

impl From<Receipt> for PublishedView {
    fn from(receipt: Receipt) -> Self {
        Self {
            id: receipt.event,
            timestamp: receipt.timestamp,
            sequence_number: receipt.sequence_number,
            deliveries: receipt.deliveries,
            duplicate: receipt.duplicate,
        }
    }
}

/// Events to publish.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchInput<'a> {
    /// 1 to 1,000 events; each is judged alone.
    #[serde(borrow)]
    #[schema(value_type = Vec<EventInput>)]
    events: Vec<&'a RawValue>,
    /// The tenant to act for; admin keys only.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    tenant_id: Option<Cow<'a, str>>,
}

/// What became of one event of a batch.
#[derive(Serialize, ToSchema)]
pub(super) struct BatchItem {
    /// The status it would have had alone: 202, 200 for a repeat, or an error's.
    status: u16,
    /// The event, if it was taken.
    #[serde(flatten)]
    published: Option<PublishedView>,
    /// Why it was not taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Problem>,
}

/// What became of a batch, in the order it was sent.
#[derive(Serialize, ToSchema)]
pub(super) struct BatchView {
    /// One entry per event.
    data: Vec<BatchItem>,
}

fn draft(input: EventInput<'_>, body: &Bytes, tenant: TenantId) -> Result<Draft, Problem> {
    let owned = |text: Option<Cow<'_, str>>| text.map(|text| text.into_owned().into_boxed_str());
    let metadata = match input.metadata {
        Some(raw) if raw.get() != "null" && !raw.get().starts_with('{') => {
            return Err(Invalid::new("metadata", "must be a JSON object").into());
        }
        Some(raw) if raw.get() != "null" => Some(Bytes::copy_from_slice(raw.get().as_bytes())),
        _ => None,
    };
    Ok(Draft {
        tenant,
        event_type: input.event_type.into_owned().into(),
        // A slice of the request's own buffer: the payload is not copied.
        data: body.slice_ref(input.data.get().as_bytes()),
        idempotency_key: owned(input.idempotency_key),
        source: owned(input.source),
        subject: owned(input.subject),
        metadata,
        only: None,
    })
}

fn header_key(raw: &Raw) -> Result<Option<&str>, Problem> {
    let Some(value) = raw.headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().map_err(|_| Invalid::new("Idempotency-Key", "must be visible ASCII"))?;
    Ok(Some(text))
}

/// Publish an event
///
/// Answers once the event and all its deliveries are stored durably.
#[utoipa::path(
    post, path = "/v1/events", tag = "events",
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeat gives the first event back")),
    request_body = EventInput,
    responses(
        (status = 202, description = "Taken", body = PublishedView),
        (status = 200, description = "A repeat of an event that was taken before", body = PublishedView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, description = "No such tenant", body = Problem),
        (status = 409, description = "The key was used for another event", body = Problem),
        (status = 413, body = Problem), (status = 415, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn publish(
    State(app): State<AppState>,
    May(caller, _): May<Publishes>,
    Single(raw): Single,
) -> Result<Response, Problem> {
    let mut input: EventInput<'_> = json(&raw.body)?;
    if let Some(key) = header_key(&raw)? {
        if input.idempotency_key.as_deref().is_some_and(|in_body| in_body != key) {
            return Err(Invalid::new("idempotency_key", "differs from the header Idempotency-Key").into());
        }
        input.idempotency_key = Some(Cow::Borrowed(key));
    }
    let tenant = caller.acts_for(input.tenant_id.as_deref())?;
    let receipt = app.publish(draft(input, &raw.body, tenant)?).await?;
    let status = if receipt.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(PublishedView::from(receipt))).into_response())
}

/// Publish up to 1,000 events
///
/// Each is judged alone; `data` answers in the order they were sent.
#[utoipa::path(
    post, path = "/v1/events/batch", tag = "events", request_body = BatchInput,
    responses(
        (status = 202, description = "Judged one by one", body = BatchView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 413, body = Problem), (status = 415, body = Problem),
        (status = 503, description = "Not one could be stored", body = Problem),
    ),
)]
async fn publish_batch(
    State(app): State<AppState>,
    May(caller, _): May<Publishes>,
    Batch(raw): Batch,
) -> Result<Response, Problem> {
    let input: BatchInput<'_> = json(&raw.body)?;
    let tenant = caller.acts_for(input.tenant_id.as_deref())?;
    if input.events.is_empty() || input.events.len() > MAX_BATCH {
        return Err(Invalid::new("events", format!("must hold 1 to {MAX_BATCH} events")).into());
    }
    let mut under_way = Vec::with_capacity(input.events.len());
    for event in &input.events {
        let draft = json::<EventInput<'_>>(event.get().as_bytes()).and_then(|event| {
            if event.tenant_id.is_some() {
                return Err(Invalid::new("tenant_id", "belongs beside events, not inside them").into());
            }
            draft(event, &raw.body, tenant.clone())
        });
        // All of them wait for the store together, so that they share commits.
        under_way.push(match draft {
            Ok(draft) => Ok(tokio::spawn(publish_one(app.clone(), draft))),
            Err(problem) => Err(problem),
        });
    }
    let mut data = Vec::with_capacity(under_way.len());
    for item in under_way {
        let result = match item {
            Ok(task) => task.await.unwrap_or_else(|_| Err(stopped())),
            Err(problem) => Err(problem),
        };
        data.push(batch_item(result));
    }
    if let Some(first) = data.first()
        && data.iter().all(|item| item.status == StatusCode::SERVICE_UNAVAILABLE.as_u16())
        && let Some(problem) = &first.error
    {
        return Err(problem.clone());
    }
    Ok((StatusCode::ACCEPTED, axum::Json(BatchView { data })).into_response())
}

async fn publish_one(app: AppState, draft: Draft) -> Result<Receipt, Problem> {
    Ok(app.publish(draft).await?)
}

fn stopped() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", "the server is stopping; send it again")
}

fn batch_item(result: Result<Receipt, Problem>) -> BatchItem {
    match result {
        Ok(receipt) => BatchItem {
            status: if receipt.duplicate { 200 } else { 202 },
            published: Some(receipt.into()),
            error: None,
        },
        Err(problem) => BatchItem { status: problem.status, published: None, error: Some(problem) },
    }
}

/// An event.
#[derive(Serialize, ToSchema)]
pub(super) struct EventView {
    /// Its id.
    #[schema(value_type = String)]
    id: EventId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Its type.
    event_type: String,
    /// The payload.
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    /// When it was published.
    #[schema(value_type = String, format = DateTime)]
    timestamp: Time,
    /// The key that a repeat would have.
    idempotency_key: String,
    /// Where it came from.
    source: Option<String>,
    /// What it is about.
    subject: Option<String>,
    /// The publisher's notes.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// Its place in the tenant's sequence.
    sequence_number: i64,
}

fn raw_json(bytes: &[u8]) -> Box<RawValue> {
    // It was checked when it was published.
    let text = String::from_utf8_lossy(bytes).into_owned();
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl From<StoredEvent> for EventView {
    fn from(stored: StoredEvent) -> Self {
        let event = stored.event;
        Self {
            idempotency_key: event.key(),
            id: event.id,
            tenant_id: event.tenant,
            event_type: event.event_type.into(),
            data: raw_json(&event.data),
            timestamp: event.timestamp,
            source: event.source.map(Into::into),
            subject: event.subject.map(Into::into),
            metadata: event.metadata.as_deref().map(raw_json),
            sequence_number: stored.sequence_number,
        }
    }
}

/// Which events to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct EventQuery {
    /// Only of this type.
    event_type: Option<String>,
    /// Only about this subject.
    subject: Option<String>,
    /// Only from this time on (RFC 3339).
    #[param(value_type = Option<String>)]
    from: Option<Time>,
    /// Only before this time (RFC 3339).
    #[param(value_type = Option<String>)]
    to: Option<Time>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// How many to give: 1 to 500, 50 if left out.
    limit: Option<u32>,
    /// How many to leave out first, up to 10,000; a cursor is better.
    offset: Option<u32>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// List events
#[utoipa::path(
    get, path = "/v1/events", tag = "events", params(EventQuery),
    responses(
        (status = 200, description = "Newest first", body = Page<EventView>),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 503, body = Problem),
    ),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<EventQuery>,
) -> Result<axum::Json<Page<EventView>>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    let paging = Paging { cursor: query.cursor, limit: query.limit, offset: query.offset, tenant_id: None };
    let filter =
        EventFilter { event_type: query.event_type, subject: query.subject, from: query.from, to: query.to };
    let events = app.list_events(tenant, filter, paging.request()?).await?;
    Ok(axum::Json(paging.page(events, |stored| stored.event.id, EventView::from)))
}

/// The tenant to act for.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantQuery {
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

/// Get an event
#[utoipa::path(
    get, path = "/v1/events/{id}", tag = "events", params(("id" = String, Path), TenantQuery),
    responses(
        (status = 200, body = EventView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn get(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<EventId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<EventView>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    Ok(axum::Json(app.event(tenant, id).await?.into()))
}

/// List an event's deliveries
#[utoipa::path(
    get, path = "/v1/events/{id}/deliveries", tag = "events", params(("id" = String, Path), Paging),
    responses(
        (status = 200, body = Page<DeliveryView>),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn deliveries(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<EventId>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let tenant = caller.acts_for(paging.tenant_id.as_deref())?;
    app.event(tenant.clone(), id).await?;
    list_of_event(&app, tenant, id, &paging).await.map(axum::Json)
}

/// List the attempts of all of an event's deliveries
#[utoipa::path(
    get, path = "/v1/events/{id}/attempts", tag = "events", params(("id" = String, Path), TenantQuery),
    responses(
        (status = 200, body = Page<AttemptView>),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn attempts(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<EventId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<Page<AttemptView>>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    let event = app.event(tenant.clone(), id).await?.event;
    let attempts = app.attempts_of_event(tenant, id).await?;
    let data = attempts.into_iter().map(|attempt| AttemptView::new(attempt, &event)).collect();
    Ok(axum::Json(Page { data, next_cursor: None }))
}

/// Where to replay an event to.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayInput {
    /// To these webhooks; to all that the event went to if left out.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    webhook_ids: Option<Vec<WebhookId>>,
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

/// What a replay made.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplayView {
    /// The event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// The new deliveries, one for each webhook.
    #[schema(value_type = Vec<String>)]
    delivery_ids: Vec<redrive_core::DeliveryId>,
}

/// Deliver an event again
///
/// Makes a new round for each webhook. A delivery of the event that is still pending is a conflict.
#[utoipa::path(
    post, path = "/v1/events/{id}/replay", tag = "events", params(("id" = String, Path), TenantQuery),
    request_body = ReplayInput,
    responses(
        (status = 202, body = ReplayView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn replay(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<EventId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<ReplayInput>,
) -> Result<Response, Problem> {
    let tenant = caller.acts_for(input.tenant_id.or(query.tenant_id).as_deref())?;
    let to = match input.webhook_ids {
        None => ReplayTo::All,
        Some(ids) if ids.is_empty() || ids.len() > MAX_BATCH => {
            return Err(
                Invalid::new("webhook_ids", "must name 1 to 1000 webhooks; leave it out for all").into()
            );
        }
        Some(ids) => ReplayTo::Webhooks(ids),
    };
    let delivery_ids = App::replay(&app, tenant, id, to).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(ReplayView { event_id: id, delivery_ids })).into_response())
}

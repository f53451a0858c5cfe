//! `POST /v1/events` and `/v1/events/batch`: parse and publish events.

use std::{borrow::Cow, collections::BTreeMap};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use redrive_core::{EventId, FieldError, TenantId, Time, event::hops};
use redrive_engine::{EventDraft, MAX_BATCH_COST_UNITS, MAX_INLINE_COST_UNITS, PublishReceipt};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    cloudevents::{self, CloudEvent, Mode},
    trace,
};
use crate::{
    api::{
        AppState,
        extract::{Batch, Query, RawRequest, SinglePayload},
        invalid_fields::in_object,
        scope::{Authorized, CanPublish},
    },
    app::{
        Actor, AppError,
        parse::{
            PARSE_WORK_PER_BYTE, SKIP_WORK_PER_BYTE,
            cloudevents::{parse_structured, split_batch},
            document::{BatchInput, EventInput, to_draft},
            json::parse_object,
        },
    },
    problem::{ChangeProblems, Problem},
};

/// Maximum number of events in one batch.
pub(super) const MAX_BATCH: usize = 1_000;
/// Name of the schema of one event in the API document.
const EVENT_SCHEMA: &str = "EventCreate";

/// Acknowledgement of a published event.
#[derive(Serialize, ToSchema)]
pub(crate) struct PublishedView {
    /// Unique id of the event.
    #[schema(value_type = String, example = "evt_018f3b1c7a5e7c40b0a8f3d2c1e0a9b8")]
    id: EventId,
    /// Time at which the event was published.
    #[schema(value_type = String, format = DateTime)]
    timestamp: Time,
    /// Sequence number within the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sequence_number: Option<i64>,
    /// Number of webhooks that the event is delivered to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    deliveries: Option<usize>,
    /// Whether the event was already published with the same idempotency key.
    duplicate: bool,
}

impl From<PublishReceipt> for PublishedView {
    fn from(receipt: PublishReceipt) -> Self {
        Self {
            id: receipt.event_id,
            timestamp: receipt.timestamp,
            sequence_number: receipt.sequence_number,
            deliveries: receipt.deliveries,
            duplicate: receipt.duplicate,
        }
    }
}

/// Result for one event of a batch.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchItem {
    /// The event was accepted.
    Accepted(AcceptedEvent),
    /// The event was rejected.
    Rejected(RejectedEvent),
}

/// An accepted event of a batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct AcceptedEvent {
    /// Status code that a single publish would have returned: 202, or 200 for a duplicate.
    status: u16,
    /// The published event.
    #[serde(flatten)]
    published: PublishedView,
}

/// A rejected event of a batch.
#[derive(Serialize, ToSchema)]
pub(crate) struct RejectedEvent {
    /// Status code that a single publish would have returned.
    status: u16,
    /// Reason for the rejection.
    error: Problem,
}

/// Results of a batch, in the order of the request.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchView {
    /// One entry per event.
    data: Vec<BatchItem>,
}

/// Returns the number of Redrive deliveries that the request's events have passed through.
fn hops_of(headers: &HeaderMap) -> Result<u8, FieldError> {
    // A header value that is not text is passed on as empty, which is not a valid count.
    hops::largest(headers.get_all(hops::HEADER).iter().map(|value| value.to_str().unwrap_or_default()))
}

fn header_key(raw: &RawRequest) -> Result<Option<&str>, AppError> {
    let Some(value) = raw.headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().map_err(|_| FieldError::new("Idempotency-Key", "must be visible ASCII"))?;
    Ok(Some(text))
}

/// Returns the units of work for parsing an event in this format.
fn parse_work(text: &[u8], mode: Mode) -> u64 {
    let per_byte = match mode {
        Mode::Plain | Mode::Binary => SKIP_WORK_PER_BYTE,
        // The fields next to the payload are parsed into values.
        Mode::Structured | Mode::Batch => PARSE_WORK_PER_BYTE,
    };
    per_byte * text.len() as u64
}

/// Query of a request to publish.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishQuery {
    /// Tenant to act for; admin keys only.
    tenant_id: Option<String>,
    /// Whether the tenant is created if it does not exist; `false` by default, or as `server.create_tenants` says.
    create_tenant: Option<bool>,
}

/// Tenant that a document names.
#[derive(Default)]
struct NamedTenant {
    id: Option<String>,
    /// Whether it is created if it does not exist.
    create: bool,
}

/// Parses the event of a request for the caller's own tenant, and returns the tenant named in its document.
fn single(raw: &RawRequest, mode: Mode, tenant_id: TenantId) -> Result<(EventDraft, NamedTenant), AppError> {
    let mut draft = match mode {
        Mode::Plain => {
            let mut input: EventInput<'_> = parse_object(&raw.body)?;
            if let Some(key) = header_key(raw)? {
                if input.idempotency_key.as_deref().is_some_and(|in_body| in_body != key) {
                    return Err(FieldError::new(
                        "idempotency_key",
                        "differs from the header Idempotency-Key",
                    )
                    .into());
                }
                input.idempotency_key = Some(Cow::Borrowed(key));
            }
            let named = named_tenant(&mut input);
            return Ok((to_draft(input, &raw.body, tenant_id)?, named));
        }
        Mode::Binary => cloudevents::binary(raw, tenant_id)?,
        Mode::Structured | Mode::Batch => parse_structured(&raw.body, &raw.body, tenant_id)?,
    };
    if let Some(key) = header_key(raw)? {
        draft.idempotency_key = Some(key.into());
    }
    Ok((draft, NamedTenant::default()))
}

fn named_tenant(input: &mut EventInput<'_>) -> NamedTenant {
    NamedTenant { id: input.tenant_id.take().map(Cow::into_owned), create: input.create_tenant }
}

/// Publish an event
///
/// Responds after the event and all its deliveries are stored durably. A CloudEvent can also be sent with its
/// attributes in `ce-` headers and its data as the body.
#[utoipa::path(
    post, path = "/v1/events", operation_id = "publishEvent", tag = "events",
    params(PublishQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key returns the first event")),
    request_body(content((EventInput<'_> = "application/json"), (CloudEvent = "application/cloudevents+json"))),
    responses((status = 202, description = "Event accepted", body = PublishedView), (status = 200, description = "Duplicate: the event was already published with this idempotency key", body = PublishedView), ChangeProblems),
)]
pub(super) async fn publish(
    State(app): State<AppState>,
    Authorized(caller, _): Authorized<CanPublish>,
    Query(query): Query<PublishQuery>,
    SinglePayload(raw): SinglePayload,
) -> Result<Response, Problem> {
    let mode = Mode::from_request(&raw.headers);
    if mode == Mode::Batch {
        return Err(cloudevents::wrong_endpoint(mode));
    }
    let (owner, work) = (caller.resolve_tenant(None)?, parse_work(&raw.body, mode));
    let tenant_id = owner.clone();
    let parse = move || (single(&raw, mode, tenant_id), raw);
    let (parsed, raw) = app.engine().run_work(&owner, work, parse).await?;
    let (mut draft, named) = parsed?;
    let create = named.create || query.create_tenant.unwrap_or_default();
    let named = named.id.as_deref().or(query.tenant_id.as_deref());
    draft.tenant_id = app.resolve_or_create_tenant(&caller, named, create).await?.id;
    draft.trace = trace::from_headers(&raw.headers).or(draft.trace);
    draft.hops = hops_of(&raw.headers)?;
    let receipt = app.publish(draft).await?;
    let status = if receipt.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(PublishedView::from(receipt))).into_response())
}

/// Publish up to 1,000 events
///
/// Each event is accepted or rejected individually; `data` has the results in the order of the request. With an admin
/// key events may name different tenants; order is kept within a tenant. If an event cannot be stored now or is over a
/// quota, the events of its tenant after it are rejected too: send them again in their order.
#[utoipa::path(
    post, path = "/v1/events/batch", operation_id = "publishEvents", tag = "events", params(PublishQuery),
    request_body(content(
        (BatchInput<'_> = "application/json"), (Vec<CloudEvent> = "application/cloudevents-batch+json"),
    )),
    responses((status = 202, description = "Result of each event", body = BatchView), ChangeProblems),
)]
pub(super) async fn publish_batch(
    State(app): State<AppState>,
    Authorized(caller, _): Authorized<CanPublish>,
    Query(query): Query<PublishQuery>,
    Batch(raw): Batch,
) -> Result<Response, Problem> {
    let mode = Mode::from_request(&raw.headers);
    if let Mode::Structured | Mode::Binary = mode {
        return Err(cloudevents::wrong_endpoint(mode));
    }
    let (owner, body) = (caller.resolve_tenant(None)?, raw.body.clone());
    let work = SKIP_WORK_PER_BYTE * body.len() as u64;
    let (events, named) = app.engine().run_work(&owner, work, move || split(&body, mode)).await??;
    let create = named.create || query.create_tenant.unwrap_or_default();
    let named = named.id.as_deref().or(query.tenant_id.as_deref());
    let tenant = app.resolve_or_create_tenant(&caller, named, create).await?;
    if events.is_empty() || events.len() > MAX_BATCH {
        return Err(FieldError::new("events", format!("must hold 1 to {MAX_BATCH} events")).into());
    }
    let (trace, hops) = (trace::from_headers(&raw.headers), hops_of(&raw.headers)?);
    let mut tenants = BTreeMap::new();
    let (mut results, mut drafts, mut inline_work) = (Vec::with_capacity(events.len()), Vec::new(), 0);
    for event in &events {
        let work = parse_work(event, mode);
        let parsed = parse_item(&app, event, &raw.body, mode, &tenant, work).await?;
        let parsed = match parsed {
            Ok((draft, named)) => {
                let named = NamedTenant { create: create || named.create, ..named };
                resolve_item(&app, &caller, &mut tenants, draft, named).await.map_err(Problem::from)
            }
            Err(problem) => Err(problem),
        };
        match parsed {
            Ok(draft) => {
                drafts.push(EventDraft { trace: trace.clone().or(draft.trace), hops, ..draft });
                results.push(None);
            }
            Err(problem) => results.push(Some(rejected(problem))),
        }
        inline_work += if work <= MAX_INLINE_COST_UNITS { work } else { 0 };
        if inline_work > MAX_INLINE_COST_UNITS / 2 {
            inline_work = 0;
            tokio::task::yield_now().await;
        }
    }
    let mut published = app.publish_batch(drafts, MAX_BATCH_COST_UNITS).await.into_iter().map(batch_item);
    let data: Vec<_> = results.into_iter().filter_map(|result| result.or_else(|| published.next())).collect();
    let unavailable = StatusCode::SERVICE_UNAVAILABLE.as_u16();
    let lost = |item: &BatchItem| matches!(item, BatchItem::Rejected(item) if item.status == unavailable);
    if let Some(BatchItem::Rejected(item)) = data.first()
        && data.iter().all(lost)
    {
        return Err(item.error.clone());
    }
    Ok((StatusCode::ACCEPTED, axum::Json(BatchView { data })).into_response())
}

/// Splits a batch into unparsed slices of its body, one per event, and returns the tenant named in it, if any.
fn split(body: &Bytes, mode: Mode) -> Result<(Vec<Bytes>, NamedTenant), AppError> {
    let (events, named) = match mode {
        Mode::Batch => (split_batch(body)?, NamedTenant::default()),
        _ => {
            let input: BatchInput<'_> = parse_object(body)?;
            let named = NamedTenant { id: input.tenant_id.map(Cow::into_owned), create: input.create_tenant };
            (input.events, named)
        }
    };
    Ok((events.into_iter().map(|event| body.slice_ref(event.get().as_bytes())).collect(), named))
}

/// Parses one event of a batch, on a check thread if it is large. The outer error means that no thread was free.
async fn parse_item(
    app: &AppState,
    text: &Bytes,
    body: &Bytes,
    mode: Mode,
    tenant_id: &TenantId,
    work: u64,
) -> Result<Result<ParsedItem, Problem>, AppError> {
    if work <= MAX_INLINE_COST_UNITS {
        app.engine().record_inline_work(work);
        return Ok(item(text, body, mode, tenant_id));
    }
    let (text, body, owner) = (text.clone(), body.clone(), tenant_id.clone());
    Ok(app.engine().run_check(tenant_id, move || item(&text, &body, mode, &owner)).await?)
}

/// An event of a batch, and the tenant that it names.
type ParsedItem = (EventDraft, NamedTenant);

/// Parses one event of a batch. The problem lists all of its invalid fields.
fn item(text: &[u8], body: &Bytes, mode: Mode, tenant_id: &TenantId) -> Result<ParsedItem, Problem> {
    if mode == Mode::Batch {
        return Ok((parse_structured(text, body, tenant_id.clone())?, NamedTenant::default()));
    }
    let parse = || -> Result<ParsedItem, AppError> {
        let mut event: EventInput<'_> = parse_object(text)?;
        let named = named_tenant(&mut event);
        Ok((to_draft(event, body, tenant_id.clone())?, named))
    };
    parse().map_err(|error| Problem::from(error).with_invalid_fields(in_object(EVENT_SCHEMA, text)))
}

/// Sets the tenant that an event of a batch names; only an admin may name others. `known` are the tenants that events
/// before it have named.
async fn resolve_item(
    app: &AppState,
    caller: &Actor,
    known: &mut BTreeMap<(String, bool), Result<TenantId, AppError>>,
    draft: EventDraft,
    named: NamedTenant,
) -> Result<EventDraft, AppError> {
    let Some(id) = named.id.filter(|named| *named != draft.tenant_id.as_str()) else { return Ok(draft) };
    let key = (id, named.create);
    let resolved = match known.get(&key) {
        Some(resolved) => resolved.clone(),
        None => {
            let resolved = app.resolve_or_create_tenant(caller, Some(&key.0), key.1).await;
            let resolved = resolved.map(|tenant| tenant.id);
            known.insert(key, resolved.clone());
            resolved
        }
    };
    Ok(EventDraft { tenant_id: resolved?, ..draft })
}

fn batch_item(result: Result<PublishReceipt, AppError>) -> BatchItem {
    match result {
        Ok(receipt) => BatchItem::Accepted(AcceptedEvent {
            status: if receipt.duplicate { 200 } else { 202 },
            published: receipt.into(),
        }),
        Err(error) => rejected(error.into()),
    }
}

fn rejected(error: Problem) -> BatchItem {
    BatchItem::Rejected(RejectedEvent { status: error.status, error })
}

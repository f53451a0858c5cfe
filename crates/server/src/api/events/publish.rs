//! `POST /v1/events` and `/v1/events/batch`: taking events in.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

use std::borrow::Cow;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use redrive_core::{
    EventId, Invalid, TenantId, Time,
    delivery::lane::Priority,
    event::hops,
    event::json_nesting::{MAX_PAYLOAD_NESTING, is_nested_deeper},
};
use redrive_engine::{BatchProgress, Draft, MAX_INLINE_WORK, Receipt};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    TenantQuery,
    cloudevents::{self, CloudEvent, Mode},
    trace,
};
use crate::api::{
    AppState,
    extract::{
        Batch, May, PARSE_WORK_PER_BYTE, Publishes, Query, Raw, SKIP_WORK_PER_BYTE, Single, check_nesting,
        json,
    },
    problem::{ChangeProblems, Problem},
};

/// The most events of one batch.
pub(super) const MAX_BATCH: usize = 1_000;
/// Units of work for publishing one event of a batch, beside parsing and checking it.
const WORK_PER_EVENT: u64 = 4_096;

/// An event to publish.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventInput<'a> {
    /// Its type: segments separated by dots.
    #[serde(borrow)]
    #[schema(
        value_type = String, example = "order.created", max_length = 256,
        pattern = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
    )]
    event_type: Cow<'a, str>,
    /// The payload: any JSON. It is delivered byte for byte.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    data: &'a RawValue,
    /// A repeat with the same key gives the first event back. Also as the header `Idempotency-Key`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    idempotency_key: Option<Cow<'a, str>>,
    /// Where it came from.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, max_length = 512)]
    source: Option<Cow<'a, str>>,
    /// What it is about, such as one order.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, max_length = 512)]
    subject: Option<Cow<'a, str>>,
    /// Your own notes; never sent to endpoints.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<&'a RawValue>,
    /// How urgent it is; `normal` if left out.
    #[serde(default)]
    priority: Option<Priority>,
    /// The tenant to act for; admin keys only.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    tenant_id: Option<Cow<'a, str>>,
}

/// What became of a publish.
#[derive(Serialize, ToSchema)]
pub(crate) struct PublishedView {
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
pub(crate) struct BatchInput<'a> {
    /// 1 to 1,000 events; each is judged alone.
    #[serde(borrow)]
    #[schema(value_type = Vec<EventInput>, min_items = 1, max_items = 1000)]
    events: Vec<&'a RawValue>,
    /// The tenant to act for; admin keys only.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    tenant_id: Option<Cow<'a, str>>,
}

/// What became of one event of a batch.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchItem {
    /// It was taken.
    Taken {
        /// The status it would have had alone: 202, or 200 for a repeat.
        status: u16,
        /// The event.
        #[serde(flatten)]
        published: PublishedView,
    },
    /// It was not.
    Refused {
        /// The status it would have had alone.
        status: u16,
        /// Why it was not taken.
        error: Problem,
    },
}

/// What became of a batch, in the order it was sent.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchView {
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
        data: payload(input.data, body)?,
        idempotency_key: owned(input.idempotency_key),
        source: owned(input.source),
        subject: owned(input.subject),
        metadata,
        priority: input.priority.unwrap_or_default(),
        only: None,
        trace: None,
        hops: 0,
    })
}

/// What is said of an event beside its document. The document's own words win.
#[derive(Default)]
pub(crate) struct Beside<'a> {
    /// The key under which a repeat is known.
    pub(crate) idempotency_key: Option<&'a str>,
    /// Where it came from.
    pub(crate) source: Option<&'a str>,
    /// What it is about.
    pub(crate) subject: Option<&'a str>,
    /// How urgent it is.
    pub(crate) priority: Option<Priority>,
}

/// The event of a document such as this API takes, which came on another way for this tenant.
pub(crate) fn document(body: &Bytes, tenant: &TenantId, beside: &Beside<'_>) -> Result<Draft, Problem> {
    let mut input: EventInput<'_> = json(body)?;
    if input.tenant_id.as_deref().is_some_and(|named| named != tenant.as_str()) {
        let message =
            format!("must be {tenant} or left out: events that come on this way are of that tenant");
        return Err(Invalid::new("tenant_id", message).into());
    }
    input.idempotency_key = input.idempotency_key.or(beside.idempotency_key.map(Cow::Borrowed));
    input.source = input.source.or(beside.source.map(Cow::Borrowed));
    input.subject = input.subject.or(beside.subject.map(Cow::Borrowed));
    input.priority = input.priority.or(beside.priority);
    draft(input, body, tenant.clone())
}

/// A body that is the payload itself.
pub(crate) fn bare(body: &Bytes) -> Result<Bytes, Problem> {
    check_nesting(body)?;
    let data: &RawValue = serde_json::from_slice(body.trim_ascii()).map_err(|error| {
        let detail = format!("the body is not valid JSON: {error}");
        Problem::new(StatusCode::BAD_REQUEST, "invalid_json", detail)
    })?;
    payload(data, body)
}

/// The payload as a slice of the request's own buffer where it is most of it. A small part of a large body is
/// copied: it would keep all of the body in memory for as long as it waits.
pub(super) fn payload(data: &RawValue, body: &Bytes) -> Result<Bytes, Problem> {
    const SPARE: usize = 1024;
    let data = data.get().as_bytes();
    if is_nested_deeper(data, MAX_PAYLOAD_NESTING) {
        let message = format!("is nested too deeply; at most {MAX_PAYLOAD_NESTING} levels are allowed");
        return Err(Invalid::new("data", message).into());
    }
    let is_most = body.len() <= data.len() + SPARE;
    Ok(if is_most { body.slice_ref(data) } else { Bytes::copy_from_slice(data) })
}

/// How many deliveries of Redrive the request's events came through.
fn hops_of(headers: &HeaderMap) -> Result<u8, Invalid> {
    // What is no text is no count either.
    hops::largest(headers.get_all(hops::HEADER).iter().map(|value| value.to_str().unwrap_or_default()))
}

fn header_key(raw: &Raw) -> Result<Option<&str>, Problem> {
    let Some(value) = raw.headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().map_err(|_| Invalid::new("Idempotency-Key", "must be visible ASCII"))?;
    Ok(Some(text))
}

/// Work of parsing an event in this form.
fn parse_work(text: &[u8], mode: Mode) -> u64 {
    let per_byte = match mode {
        Mode::Plain | Mode::Binary => SKIP_WORK_PER_BYTE,
        // The members beside the payload are parsed into values.
        Mode::Structured | Mode::Batch => PARSE_WORK_PER_BYTE,
    };
    per_byte * text.len() as u64
}

/// The event of a request, for the caller's own tenant, and the tenant that its document names.
fn single(raw: &Raw, mode: Mode, tenant: TenantId) -> Result<(Draft, Option<String>), Problem> {
    let mut draft = match mode {
        Mode::Plain => {
            let mut input: EventInput<'_> = json(&raw.body)?;
            if let Some(key) = header_key(raw)? {
                if input.idempotency_key.as_deref().is_some_and(|in_body| in_body != key) {
                    return Err(
                        Invalid::new("idempotency_key", "differs from the header Idempotency-Key").into()
                    );
                }
                input.idempotency_key = Some(Cow::Borrowed(key));
            }
            let named = input.tenant_id.take().map(Cow::into_owned);
            return Ok((draft(input, &raw.body, tenant)?, named));
        }
        Mode::Binary => cloudevents::binary(raw, tenant)?,
        Mode::Structured | Mode::Batch => cloudevents::structured(&raw.body, &raw.body, tenant)?,
    };
    if let Some(key) = header_key(raw)? {
        draft.idempotency_key = Some(key.into());
    }
    Ok((draft, None))
}

/// Publish an event
///
/// Answers once the event and all its deliveries are stored durably. A CloudEvent may also come with its attributes in
/// `ce-` headers and its data as the body.
#[utoipa::path(
    post, path = "/v1/events", tag = "events",
    params(TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeat gives the first event back")),
    request_body(content((EventInput<'_> = "application/json"), (CloudEvent = "application/cloudevents+json"))),
    responses((status = 202, description = "Taken", body = PublishedView), (status = 200, description = "A repeat of an event that was taken before", body = PublishedView), ChangeProblems),
)]
pub(super) async fn publish(
    State(app): State<AppState>,
    May(caller, _): May<Publishes>,
    Query(query): Query<TenantQuery>,
    Single(raw): Single,
) -> Result<Response, Problem> {
    let mode = Mode::of(&raw.headers);
    if mode == Mode::Batch {
        return Err(cloudevents::wrong_place(mode));
    }
    let (owner, work) = (caller.acts_for(None)?, parse_work(&raw.body, mode));
    let tenant = owner.clone();
    let parse = move || (single(&raw, mode, tenant), raw);
    let (parsed, raw) = app.engine().run_counted(&owner, work, parse).await?;
    let (mut draft, named) = parsed?;
    let named = named.as_deref().or(query.tenant_id.as_deref());
    draft.tenant = app.acts_for(&caller, named).await?.id;
    draft.trace = trace::of(&raw.headers).or(draft.trace);
    draft.hops = hops_of(&raw.headers)?;
    let receipt = app.publish(draft).await?;
    let status = if receipt.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(PublishedView::from(receipt))).into_response())
}

/// Publish up to 1,000 events
///
/// Each is judged alone; `data` answers in the order they were sent.
#[utoipa::path(
    post, path = "/v1/events/batch", tag = "events", params(TenantQuery),
    request_body(content(
        (BatchInput<'_> = "application/json"), (Vec<CloudEvent> = "application/cloudevents-batch+json"),
    )),
    responses((status = 202, description = "Judged one by one", body = BatchView), ChangeProblems),
)]
pub(super) async fn publish_batch(
    State(app): State<AppState>,
    May(caller, _): May<Publishes>,
    Query(query): Query<TenantQuery>,
    Batch(raw): Batch,
) -> Result<Response, Problem> {
    let mode = Mode::of(&raw.headers);
    if let Mode::Structured | Mode::Binary = mode {
        return Err(cloudevents::wrong_place(mode));
    }
    let (owner, body) = (caller.acts_for(None)?, raw.body.clone());
    let work = SKIP_WORK_PER_BYTE * body.len() as u64;
    let (events, named) = app.engine().run_counted(&owner, work, move || split(&body, mode)).await??;
    let tenant = app.acts_for(&caller, named.as_deref().or(query.tenant_id.as_deref())).await?;
    if events.is_empty() || events.len() > MAX_BATCH {
        return Err(Invalid::new("events", format!("must hold 1 to {MAX_BATCH} events")).into());
    }
    let (trace, hops) = (trace::of(&raw.headers), hops_of(&raw.headers)?);
    let batch = Arc::new(BatchProgress::default());
    let mut under_way = Vec::with_capacity(events.len());
    for event in &events {
        let work = parse_work(event, mode);
        under_way.push(match parse_item(&app, event, &raw.body, mode, &tenant, work).await? {
            Ok(draft) => {
                let draft = Draft { trace: trace.clone().or(draft.trace), hops, ..draft };
                UnderWay::Publishing(Box::pin(publish_one(app.clone(), draft, batch.clone())))
            }
            Err(problem) => UnderWay::Over(Err(problem)),
        });
        if work <= MAX_INLINE_WORK {
            batch.add_inline_work(work);
        }
        if batch.must_yield() {
            tokio::task::yield_now().await;
        }
    }
    app.learn(&tenant).await?;
    let mut data = Vec::with_capacity(under_way.len());
    for item in in_order(under_way, &batch).await {
        data.push(batch_item(item));
    }
    let unavailable = StatusCode::SERVICE_UNAVAILABLE.as_u16();
    let lost = |item: &BatchItem| matches!(item, BatchItem::Refused { status, .. } if *status == unavailable);
    if let Some(BatchItem::Refused { error, .. }) = data.first()
        && data.iter().all(lost)
    {
        return Err(error.clone());
    }
    Ok((StatusCode::ACCEPTED, axum::Json(BatchView { data })).into_response())
}

/// The events of a batch as parts of its body, not read yet, and the tenant that it names.
fn split(body: &Bytes, mode: Mode) -> Result<(Vec<Bytes>, Option<String>), Problem> {
    let (events, named) = match mode {
        Mode::Batch => (cloudevents::items(body)?, None),
        _ => {
            let input: BatchInput<'_> = json(body)?;
            (input.events, input.tenant_id.map(Cow::into_owned))
        }
    };
    Ok((events.into_iter().map(|event| body.slice_ref(event.get().as_bytes())).collect(), named))
}

/// Parses one event of a batch, on a thread for checks if it is large. An outer error means that no thread was free.
async fn parse_item(
    app: &AppState,
    text: &Bytes,
    body: &Bytes,
    mode: Mode,
    tenant: &TenantId,
    work: u64,
) -> Result<Result<Draft, Problem>, Problem> {
    if work <= MAX_INLINE_WORK {
        app.engine().note_inline_work(work);
        return Ok(item(text, body, mode, tenant));
    }
    let (text, body, owner) = (text.clone(), body.clone(), tenant.clone());
    Ok(app.engine().run_check(tenant, move || item(&text, &body, mode, &owner)).await?)
}

/// One event of a batch, as it was sent.
fn item(text: &[u8], body: &Bytes, mode: Mode, tenant: &TenantId) -> Result<Draft, Problem> {
    if mode == Mode::Batch {
        return cloudevents::structured(text, body, tenant.clone());
    }
    let event: EventInput<'_> = json(text)?;
    if event.tenant_id.is_some() {
        return Err(Invalid::new("tenant_id", "belongs beside events, not inside them").into());
    }
    draft(event, body, tenant.clone())
}

/// One event of a batch.
enum UnderWay {
    Publishing(Pin<Box<dyn Future<Output = Result<Receipt, Problem>> + Send>>),
    Over(Result<Receipt, Problem>),
}

/// Hands all of them to the store in their order, where they wait together and share commits. One whose check takes
/// longer is waited for, and other tasks have their turn after every millisecond of work.
async fn in_order(mut under_way: Vec<UnderWay>, batch: &BatchProgress) -> Vec<Result<Receipt, Problem>> {
    let mut next = 0;
    poll_fn(|context| {
        while let Some(item) = under_way.get_mut(next) {
            if let UnderWay::Publishing(publishing) = item {
                match publishing.as_mut().poll(context) {
                    Poll::Ready(result) => {
                        // What it handed over must not let the next event pass one that is still being checked.
                        batch.take_handed_over();
                        *item = UnderWay::Over(result);
                    }
                    Poll::Pending if batch.take_handed_over() => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
            next += 1;
            if batch.must_yield() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    })
    .await;
    let mut results = Vec::with_capacity(under_way.len());
    for item in under_way {
        results.push(match item {
            UnderWay::Publishing(publishing) => publishing.await,
            UnderWay::Over(result) => result,
        });
    }
    results
}

async fn publish_one(app: AppState, draft: Draft, batch: Arc<BatchProgress>) -> Result<Receipt, Problem> {
    batch.add_inline_work(WORK_PER_EVENT);
    Ok(app.publish_in_batch(draft, &batch).await?)
}

fn batch_item(result: Result<Receipt, Problem>) -> BatchItem {
    match result {
        Ok(receipt) => {
            BatchItem::Taken { status: if receipt.duplicate { 200 } else { 202 }, published: receipt.into() }
        }
        Err(error) => BatchItem::Refused { status: error.status, error },
    }
}

//! Event documents: the JSON format in which events are published, one or many in a batch.

use std::borrow::Cow;

use bytes::Bytes;
use redrive_core::{
    FieldError, TenantId,
    delivery::lane::Priority,
    event::json_nesting::{MAX_PAYLOAD_NESTING, is_nested_deeper},
};
use redrive_engine::EventDraft;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::json::{check_nesting, parse_object};
use crate::app::{AppError, ErrorCode};

/// An event to publish.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventInput<'a> {
    /// Event type: segments separated by dots.
    #[serde(borrow)]
    #[schema(
        value_type = String, example = "order.created", max_length = 256,
        pattern = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$",
    )]
    event_type: Cow<'a, str>,
    /// Payload: any JSON value. It is delivered byte for byte.
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    data: &'a RawValue,
    /// A repeated request with the same key returns the first event. Can also be sent as the header `Idempotency-Key`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 256)]
    pub(crate) idempotency_key: Option<Cow<'a, str>>,
    /// Source of the event.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, max_length = 512)]
    source: Option<Cow<'a, str>>,
    /// Subject of the event, such as the id of an order.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>, max_length = 512)]
    subject: Option<Cow<'a, str>>,
    /// Your own metadata; never sent to endpoints.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Object>)]
    metadata: Option<&'a RawValue>,
    /// Delivery priority; `normal` by default.
    #[serde(default)]
    priority: Option<Priority>,
    /// Tenant to act for; admin keys only.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub(crate) tenant_id: Option<Cow<'a, str>>,
    /// Whether the tenant is created if it does not exist; `false` by default, or as `server.create_tenants` says.
    #[serde(default)]
    pub(crate) create_tenant: bool,
}

/// Batch of events to publish.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchInput<'a> {
    /// 1 to 1,000 events; each is accepted or rejected individually.
    #[serde(borrow)]
    #[schema(value_type = Vec<EventInput>, min_items = 1, max_items = 1000)]
    pub(crate) events: Vec<&'a RawValue>,
    /// Tenant to act for; admin keys only.
    #[serde(borrow, default)]
    #[schema(value_type = Option<String>)]
    pub(crate) tenant_id: Option<Cow<'a, str>>,
    /// Whether tenants that do not exist are created, for all events of the batch.
    #[serde(default)]
    pub(crate) create_tenant: bool,
}

/// Converts a parsed document, which is a part of `body`, into an event to publish.
pub(crate) fn to_draft(
    input: EventInput<'_>,
    body: &Bytes,
    tenant_id: TenantId,
) -> Result<EventDraft, AppError> {
    let owned = |text: Option<Cow<'_, str>>| text.map(|text| text.into_owned().into_boxed_str());
    let metadata = match input.metadata {
        Some(raw) if raw.get() != "null" && !raw.get().starts_with('{') => {
            return Err(FieldError::new("metadata", "must be a JSON object").into());
        }
        Some(raw) if raw.get() != "null" => Some(Bytes::copy_from_slice(raw.get().as_bytes())),
        _ => None,
    };
    Ok(EventDraft {
        tenant_id,
        event_type: input.event_type.into_owned().into(),
        data: payload(input.data, body)?,
        idempotency_key: owned(input.idempotency_key),
        source: owned(input.source),
        subject: owned(input.subject),
        metadata,
        priority: input.priority.unwrap_or_default(),
        only_webhook: None,
        edited: None,
        trace: None,
        hops: 0,
    })
}

/// Attributes of an event that come from outside its document. Values in the document take precedence.
#[derive(Default)]
pub(crate) struct EventOverrides<'a> {
    /// Idempotency key.
    pub(crate) idempotency_key: Option<&'a str>,
    /// Source of the event.
    pub(crate) source: Option<&'a str>,
    /// Subject of the event.
    pub(crate) subject: Option<&'a str>,
    /// Delivery priority.
    pub(crate) priority: Option<Priority>,
}

/// Parses an event document that did not arrive through the API, for the given tenant.
pub(crate) fn parse_document(
    body: &Bytes,
    tenant_id: &TenantId,
    beside: &EventOverrides<'_>,
) -> Result<EventDraft, AppError> {
    let mut input: EventInput<'_> = parse_object(body)?;
    if input.tenant_id.as_deref().is_some_and(|named| named != tenant_id.as_str()) {
        let message =
            format!("must be {tenant_id} or omitted, because events of this source belong to that tenant");
        return Err(FieldError::new("tenant_id", message).into());
    }
    input.idempotency_key = input.idempotency_key.or(beside.idempotency_key.map(Cow::Borrowed));
    input.source = input.source.or(beside.source.map(Cow::Borrowed));
    input.subject = input.subject.or(beside.subject.map(Cow::Borrowed));
    input.priority = input.priority.or(beside.priority);
    to_draft(input, body, tenant_id.clone())
}

/// Parses a body that is the payload itself, without an event document around it.
pub(crate) fn parse_raw_payload(body: &Bytes) -> Result<Bytes, AppError> {
    check_nesting(body)?;
    let data: &RawValue = serde_json::from_slice(body.trim_ascii()).map_err(|error| {
        let detail = format!("the body is not valid JSON: {error}");
        AppError::malformed(ErrorCode::InvalidJson, detail)
    })?;
    payload(data, body)
}

/// Returns the payload as a slice of the request body if it makes up most of it. A small payload in a large body
/// is copied instead, because a slice would keep the whole body in memory while the event waits.
pub(super) fn payload(data: &RawValue, body: &Bytes) -> Result<Bytes, AppError> {
    const SPARE: usize = 1024;
    let data = data.get().as_bytes();
    if is_nested_deeper(data, MAX_PAYLOAD_NESTING) {
        let message = format!("is nested too deeply; at most {MAX_PAYLOAD_NESTING} levels are allowed");
        return Err(FieldError::new("data", message).into());
    }
    let is_most = body.len() <= data.len() + SPARE;
    Ok(if is_most { body.slice_ref(data) } else { Bytes::copy_from_slice(data) })
}

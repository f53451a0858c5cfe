//! CloudEvents: one in JSON format, a list of them, or attributes beside the data.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use redrive_core::{
    FieldError, TenantId,
    delivery::lane::Priority,
    event::cloudevents::{self, ParsedCloudEvent},
};
use redrive_engine::EventDraft;
use serde_json::{Value, value::RawValue};

use super::{
    document::{parse_raw_payload, payload},
    json::check_nesting,
};
use crate::app::{AppError, ErrorCode};

/// Parses one CloudEvent in JSON format, which is a part of `body`, into an event to publish.
pub(crate) fn parse_structured(
    text: &[u8],
    body: &Bytes,
    tenant_id: TenantId,
) -> Result<EventDraft, AppError> {
    check_nesting(text)?;
    let mut members: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(text).map_err(|error| {
        let detail = format!("a CloudEvent is a JSON object: {error}");
        AppError::malformed(ErrorCode::InvalidJson, detail)
    })?;
    if members.contains_key("data_base64") {
        let message =
            "is not supported, because payloads are JSON; send data, or a reference to the binary content";
        return Err(FieldError::new("data_base64", message).into());
    }
    let data = members.remove("data").map_or(Ok(Bytes::from_static(b"null")), |data| payload(data, body))?;
    let read = |(name, raw): (Cow<'_, str>, &RawValue)| match serde_json::from_str::<Value>(raw.get()) {
        Ok(value) => Ok((name.into_owned(), value)),
        Err(_) => Err(FieldError::new(name.escape_debug().take(64).collect::<String>(), "is not valid JSON")),
    };
    let attributes = members.into_iter().map(read).collect::<Result<_, _>>()?;
    Ok(draft(cloudevents::parse(attributes)?, data, tenant_id))
}

/// Parses CloudEvent attributes, and a body that is the data, into an event to publish.
pub(crate) fn parse_attributes(
    attributes: BTreeMap<String, Value>,
    body: &Bytes,
    tenant_id: TenantId,
) -> Result<EventDraft, AppError> {
    let data = match body.trim_ascii() {
        b"" => Bytes::from_static(b"null"),
        _ => parse_raw_payload(body)?,
    };
    Ok(draft(cloudevents::parse(attributes)?, data, tenant_id))
}

/// Splits a batch into CloudEvents without parsing them.
pub(crate) fn split_batch(body: &[u8]) -> Result<Vec<&RawValue>, AppError> {
    check_nesting(body)?;
    serde_json::from_slice(body).map_err(|error| {
        let detail = format!("the body must be a JSON list of CloudEvents: {error}");
        AppError::malformed(ErrorCode::InvalidJson, detail)
    })
}

fn draft(incoming: ParsedCloudEvent, data: Bytes, tenant_id: TenantId) -> EventDraft {
    EventDraft {
        tenant_id,
        event_type: incoming.event_type,
        data,
        idempotency_key: Some(incoming.idempotency_key),
        source: Some(incoming.source),
        subject: incoming.subject,
        metadata: Some(incoming.metadata),
        priority: Priority::default(),
        only_webhook: None,
        edited: None,
        trace: incoming.trace.map(Box::new),
        hops: 0,
    }
}

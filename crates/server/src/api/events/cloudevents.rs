//! CloudEvents that are published: structured, several at once, or with their attributes in headers.

use std::{borrow::Cow, collections::BTreeMap};

use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use redrive_core::{
    Invalid, TenantId,
    delivery::lane::Priority,
    event::cloudevents::{self, BATCH, HEADER_PREFIX, Incoming, STRUCTURED},
};
use redrive_engine::Draft;
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use super::publish::{bare, payload};
use crate::api::{
    extract::{Raw, check_nesting},
    problem::Problem,
};

/// A CloudEvent 1.0 in its JSON form. Extensions may stand beside these.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) struct CloudEvent {
    /// The version of the specification.
    #[schema(example = "1.0", pattern = "^1\\.0$")]
    specversion: String,
    /// What tells it from all others of its source; a repeat gives the first event back.
    #[schema(min_length = 1, max_length = 1024)]
    id: String,
    /// Where it came from, a reference to a URI.
    #[schema(example = "/shop", min_length = 1, max_length = 512, pattern = "^[!-~]+$")]
    source: String,
    /// Its type: segments separated by dots.
    #[serde(rename = "type")]
    #[schema(example = "order.created", max_length = 256, pattern = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
    event_type: String,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 512)]
    subject: Option<String>,
    /// When it happened. It is kept in `metadata`; `timestamp` is when it was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    time: Option<String>,
    /// `application/json`, or nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "application/json")]
    datacontenttype: Option<String>,
    /// What the payload looks like; only kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    dataschema: Option<String>,
    /// The payload: any JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

/// How a request says what it publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// In our own form.
    Plain,
    /// As one CloudEvent.
    Structured,
    /// As a list of them.
    Batch,
    /// As a CloudEvent whose attributes are in the headers.
    Binary,
}

impl Mode {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let given =
            headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            STRUCTURED => Self::Structured,
            BATCH => Self::Batch,
            _ if headers.contains_key("ce-specversion") => Self::Binary,
            _ => Self::Plain,
        }
    }
}

/// What somebody gets who sent one thing to the place for another.
pub(super) fn wrong_place(mode: Mode) -> Problem {
    let detail = match mode {
        Mode::Batch => format!("{BATCH} belongs to POST /v1/events/batch"),
        Mode::Structured | Mode::Binary => {
            format!("one CloudEvent belongs to POST /v1/events; several are sent here as {BATCH}")
        }
        Mode::Plain => "send the header `Content-Type: application/json`".to_owned(),
    };
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail)
}

/// An event to publish from one CloudEvent in its JSON form, which is a part of a body.
pub(crate) fn structured(text: &[u8], body: &Bytes, tenant: TenantId) -> Result<Draft, Problem> {
    check_nesting(text)?;
    let mut members: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(text).map_err(|error| {
        let detail = format!("a CloudEvent is a JSON object: {error}");
        Problem::new(StatusCode::BAD_REQUEST, "invalid_json", detail)
    })?;
    if members.contains_key("data_base64") {
        let message = "is not taken: payloads are JSON; send data, or a reference to what is not JSON";
        return Err(Invalid::new("data_base64", message).into());
    }
    let data = members.remove("data").map_or(Ok(Bytes::from_static(b"null")), |data| payload(data, body))?;
    let read = |(name, raw): (Cow<'_, str>, &RawValue)| match serde_json::from_str::<Value>(raw.get()) {
        Ok(value) => Ok((name.into_owned(), value)),
        Err(_) => Err(Invalid::new(name.escape_debug().take(64).collect::<String>(), "cannot be read")),
    };
    let attributes = members.into_iter().map(read).collect::<Result<_, _>>()?;
    Ok(draft(cloudevents::read(attributes)?, data, tenant))
}

/// An event to publish from a CloudEvent whose attributes are in the headers.
pub(super) fn binary(raw: &Raw, tenant: TenantId) -> Result<Draft, Problem> {
    let mut attributes = BTreeMap::new();
    for (name, value) in &raw.headers {
        let Some(name) = name.as_str().strip_prefix(HEADER_PREFIX) else { continue };
        let Some(text) = cloudevents::from_header(value.as_bytes()) else {
            return Err(
                Invalid::new(format!("{HEADER_PREFIX}{name}"), "must be percent-encoded UTF-8").into()
            );
        };
        attributes.insert(name.to_owned(), Value::String(text));
    }
    binary_of(attributes, &raw.body, tenant)
}

/// An event to publish from a CloudEvent whose attributes came beside its data.
pub(crate) fn binary_of(
    attributes: BTreeMap<String, Value>,
    body: &Bytes,
    tenant: TenantId,
) -> Result<Draft, Problem> {
    let data = match body.trim_ascii() {
        b"" => Bytes::from_static(b"null"),
        _ => bare(body)?,
    };
    Ok(draft(cloudevents::read(attributes)?, data, tenant))
}

/// The CloudEvents of a batch, not read yet.
pub(super) fn items(body: &[u8]) -> Result<Vec<&RawValue>, Problem> {
    check_nesting(body)?;
    serde_json::from_slice(body).map_err(|error| {
        let detail = format!("the body must be a JSON list of CloudEvents: {error}");
        Problem::new(StatusCode::BAD_REQUEST, "invalid_json", detail)
    })
}

fn draft(incoming: Incoming, data: Bytes, tenant: TenantId) -> Draft {
    Draft {
        tenant,
        event_type: incoming.event_type,
        data,
        idempotency_key: Some(incoming.idempotency_key),
        source: Some(incoming.source),
        subject: incoming.subject,
        metadata: Some(incoming.metadata),
        priority: Priority::default(),
        only: None,
        trace: incoming.trace.map(Box::new),
        hops: 0,
    }
}

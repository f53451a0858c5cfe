//! CloudEvents over HTTP: the format of a request, and attributes in headers.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, StatusCode, header};
use redrive_core::{
    FieldError, TenantId,
    event::cloudevents::{self, BATCH, HEADER_PREFIX, STRUCTURED},
};
use redrive_engine::EventDraft;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    api::extract::RawRequest,
    app::{AppError, ErrorCode, parse::cloudevents::parse_attributes},
    problem::Problem,
};

/// A CloudEvent 1.0 in JSON format. Extension attributes are allowed.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) struct CloudEvent {
    /// Version of the specification.
    #[schema(example = "1.0", pattern = "^1\\.0$")]
    specversion: String,
    /// Id, unique within its source; a repeated id returns the original event.
    #[schema(min_length = 1, max_length = 1024)]
    id: String,
    /// Origin, a URI reference.
    #[schema(example = "/shop", min_length = 1, max_length = 512, pattern = "^[!-~]+$")]
    source: String,
    /// Event type: segments separated by dots.
    #[serde(rename = "type")]
    #[schema(example = "order.created", max_length = 256, pattern = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
    event_type: String,
    /// Subject of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 512)]
    subject: Option<String>,
    /// Time of the occurrence. It is kept in `metadata`; `timestamp` is the time of publication.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    time: Option<String>,
    /// `application/json`, or absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "application/json")]
    datacontenttype: Option<String>,
    /// Schema of the payload; stored but not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1)]
    dataschema: Option<String>,
    /// Payload: any JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

/// Format of a publish request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Redrive's own JSON format.
    Plain,
    /// One CloudEvent.
    Structured,
    /// A list of CloudEvents.
    Batch,
    /// A CloudEvent with its attributes in the headers.
    Binary,
}

impl Mode {
    pub(super) fn from_request(headers: &HeaderMap) -> Self {
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

/// Returns the error for a format that this endpoint does not accept.
pub(super) fn wrong_endpoint(mode: Mode) -> Problem {
    let detail = match mode {
        Mode::Batch => format!("{BATCH} belongs to POST /v1/events/batch"),
        Mode::Structured | Mode::Binary => {
            format!("one CloudEvent belongs to POST /v1/events; several are sent here as {BATCH}")
        }
        Mode::Plain => "send the header `Content-Type: application/json`".to_owned(),
    };
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorCode::UnsupportedMediaType, detail)
}

/// Parses a CloudEvent with its attributes in the headers into an event to publish.
pub(super) fn binary(raw: &RawRequest, tenant_id: TenantId) -> Result<EventDraft, AppError> {
    let mut attributes = BTreeMap::new();
    for (name, value) in &raw.headers {
        let Some(name) = name.as_str().strip_prefix(HEADER_PREFIX) else { continue };
        let Some(text) = cloudevents::from_header(value.as_bytes()) else {
            return Err(
                FieldError::new(format!("{HEADER_PREFIX}{name}"), "must be percent-encoded UTF-8").into()
            );
        };
        attributes.insert(name.to_owned(), Value::String(text));
    }
    parse_attributes(attributes, &raw.body, tenant_id)
}

//! Error responses: RFC 9457 problem details with a stable `code` and instructions for the client. The HTTP server, the
//! API and the dashboard respond with them; this module must not depend on any of the three.

use std::{collections::BTreeMap, num::NonZeroU32};

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use redrive_core::FieldError;
use redrive_store::StoreError;
use serde::Serialize;
use utoipa::{
    IntoResponses, ToSchema,
    openapi::{Content, Ref, RefOr, Response as Documented, ResponseBuilder},
};

use crate::{
    app::{AppError, store_error_code},
    request::body::BodyError,
};

pub(crate) use crate::app::ErrorCode;

/// Error response, sent as `application/problem+json`.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// URI that identifies the kind of problem.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "urn:redrive:problem:invalid_field")]
    kind: Box<str>,
    /// Text of the HTTP status.
    #[schema(example = "Bad Request")]
    title: &'static str,
    /// HTTP status code.
    #[schema(example = 400)]
    pub(crate) status: u16,
    /// Short, stable error code for programs; the last part of `type`.
    #[schema(example = "invalid_field")]
    pub(crate) code: &'static str,
    /// Description of the error and how to fix it.
    #[schema(example = "url: must begin with https://")]
    pub(crate) detail: String,
    /// Path of the first invalid field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    field: Option<Box<str>>,
    /// All invalid fields, up to 50, the one of `field` first; omitted if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<InvalidField>>, nullable = false)]
    errors: Option<Box<InvalidFields>>,
    /// Request id, as in the header `X-Request-Id`. Include it in support requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "req_5b0c3f9a7e12000000000001", nullable = false)]
    request_id: Option<Box<str>>,
    /// Seconds until a retry makes sense, if known.
    #[serde(skip)]
    retry_after: Option<NonZeroU32>,
}

/// An invalid field of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct InvalidField {
    /// Path of the field in the body, or name of the query parameter.
    #[schema(example = "retry_config.schedule[0]")]
    pub(crate) field: String,
    /// Kind of the error.
    pub(crate) code: InvalidFieldCode,
    /// Description of the error, without the field's name, and how to fix it.
    #[schema(example = "must be a string, got the number 5")]
    pub(crate) message: String,
}

/// Kind of an invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InvalidFieldCode {
    /// A required field is missing.
    Missing,
    /// There is no such field or parameter.
    UnknownField,
    /// The value has another JSON type.
    WrongType,
    /// The number, the length or the number of items is outside of its limits.
    OutOfRange,
    /// Any other rule is violated.
    InvalidValue,
}

/// Invalid fields of one request. A separate type, because a boxed list keeps [`Problem`] small.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
struct InvalidFields(Vec<InvalidField>);

/// Maximum number of invalid fields that a response lists.
const MAX_INVALID_FIELDS: usize = 50;

impl Problem {
    pub(crate) fn new(status: StatusCode, code: ErrorCode, detail: impl Into<String>) -> Self {
        debug_assert!(code.statuses().contains(&status.as_u16()), "{status} is not documented for {code:?}");
        let code = code.name();
        Self {
            kind: format!("urn:redrive:problem:{code}").into(),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            code,
            detail: detail.into(),
            field: None,
            errors: None,
            retry_after: None,
            request_id: None,
        }
    }

    /// Returns the problem for an unexpected internal error, whose details are only in the log.
    pub(crate) fn internal() -> Self {
        let detail = "internal error; the request may have taken effect: check the result before you send it again, and \
                      report the request_id to the operator";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::InternalError, detail)
    }

    /// Returns the path of the invalid field.
    pub(crate) fn field_name(&self) -> Option<&str> {
        self.field.as_deref()
    }

    pub(crate) fn field(mut self, field: impl Into<Box<str>>) -> Self {
        let field = field.into();
        let detail = self.detail.strip_prefix(&*field).and_then(|rest| rest.strip_prefix(": "));
        let message = detail.unwrap_or(&self.detail).to_owned();
        let code = match message.starts_with("is missing") {
            true => InvalidFieldCode::Missing,
            false => InvalidFieldCode::InvalidValue,
        };
        let only = InvalidField { field: field.to_string(), code, message };
        self.errors = Some(Box::new(InvalidFields(vec![only])));
        self.field = Some(field);
        self
    }

    /// Returns whether the problem is about a field.
    pub(crate) fn names_field(&self) -> bool {
        self.field.is_some()
    }

    /// Adds the other invalid fields of the request. The first one keeps its message, which is that of the code that
    /// rejected the request, unless that was the parser of query strings; `found` has the kind of its error.
    pub(crate) fn with_invalid_fields(mut self, found: Vec<InvalidField>) -> Self {
        let is_query = self.code == ErrorCode::InvalidQuery.name();
        let Some(InvalidFields(errors)) = self.errors.as_deref_mut() else { return self };
        for field in found {
            let known = errors.iter_mut().find(|known| known.field == field.field);
            match known {
                Some(known) if is_query && Some(&*known.field) == self.field.as_deref() => {
                    self.detail = format!("{}: {}", field.field, field.message);
                    *known = field;
                }
                Some(known) => known.code = field.code,
                None => errors.push(field),
            }
        }
        errors.truncate(MAX_INVALID_FIELDS);
        self
    }

    fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = u32::try_from(seconds).ok().and_then(NonZeroU32::new);
        self
    }
}

/// Adds the request id to a response that is a problem.
pub(crate) fn name_request(response: &mut Response, id: &str) {
    let Some(mut problem) = response.extensions_mut().remove::<Problem>() else { return };
    problem.request_id = Some(id.into());
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    // The old length does not include the request id.
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = body.into();
}

impl From<FieldError> for Problem {
    fn from(invalid: FieldError) -> Self {
        let field = invalid.field.clone().into_owned();
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidField, invalid.to_string()).field(field)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let code = store_error_code(&error);
        let unavailable = |detail: String| Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail);
        match error {
            StoreError::TooSlow => {
                unavailable("the query timed out; narrow it by webhook_id, event_type or from/to".into())
            }
            StoreError::OffsetTooFar => {
                FieldError::new("offset", "is too far for this filter; omit it and page with cursor").into()
            }
            StoreError::Overloaded => {
                unavailable("the server is overloaded; nothing was stored, retry later".into())
            }
            StoreError::Busy(detail) => unavailable(detail).retry_after(2),
            StoreError::Unavailable(_)
            | StoreError::WriterEnded(_)
            | StoreError::Fenced
            | StoreError::PrecedingEventFailed
            | StoreError::InvalidItem(_) => {
                // The engine logs a store outage once; here it is only a debug record per request.
                tracing::debug!(%error, "request failed: store unavailable");
                unavailable("the store is unavailable; nothing was acknowledged, retry later".into())
            }
        }
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        let (status, code) = match error {
            BodyError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::BodyTooLarge),
            BodyError::TooSlow => (StatusCode::REQUEST_TIMEOUT, ErrorCode::BodyTimeout),
            BodyError::Incomplete => (StatusCode::BAD_REQUEST, ErrorCode::IncompleteBody),
        };
        Self::new(status, code, error.to_string())
    }
}

impl From<AppError> for Problem {
    fn from(error: AppError) -> Self {
        let (code, detail) = (error.code(), error.to_string());
        let problem = |status: StatusCode| Self::new(status, code, detail);
        match error {
            AppError::Unauthorized => problem(StatusCode::UNAUTHORIZED),
            AppError::Forbidden(_) => problem(StatusCode::FORBIDDEN),
            AppError::Invalid(invalid) => invalid.into(),
            AppError::Malformed { .. } => problem(StatusCode::BAD_REQUEST),
            AppError::SchemaViolation { field, .. } => problem(StatusCode::BAD_REQUEST).field(field),
            AppError::Unprocessable { field: Some(field), .. } => {
                problem(StatusCode::UNPROCESSABLE_ENTITY).field(field)
            }
            AppError::Unprocessable { field: None, .. } => problem(StatusCode::UNPROCESSABLE_ENTITY),
            AppError::NotFound(_) => problem(StatusCode::NOT_FOUND),
            AppError::Conflict { .. } => problem(StatusCode::CONFLICT),
            AppError::TooLarge(_) => problem(StatusCode::PAYLOAD_TOO_LARGE).field("data"),
            AppError::BatchTooCostly(_) => problem(StatusCode::PAYLOAD_TOO_LARGE),
            AppError::OverQuota { retry_after, .. } => {
                problem(StatusCode::TOO_MANY_REQUESTS).retry_after(retry_after)
            }
            AppError::TooManyExports { here: true, .. } => {
                problem(StatusCode::SERVICE_UNAVAILABLE).retry_after(5)
            }
            AppError::TooManyExports { here: false, .. } | AppError::TooManySearches { .. } => {
                problem(StatusCode::TOO_MANY_REQUESTS).retry_after(5)
            }
            AppError::Store(error) => error.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(
                    header::RETRY_AFTER,
                    HeaderValue::from(self.retry_after.map_or(1, NonZeroU32::get)),
                );
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // Close the connection: the unread rest of the body must not be parsed as the next request.
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        // `name_request` uses this to add the request id.
        response.extensions_mut().insert(self);
        response
    }
}

/// Error responses of requests that only read.
pub(crate) struct ReadProblems;
/// Error responses of requests that change something.
pub(crate) struct ChangeProblems;

impl IntoResponses for ReadProblems {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[400, 401, 403, 404, 429, 500, 503])
    }
}

impl IntoResponses for ChangeProblems {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503])
    }
}

fn documented(statuses: &[u16]) -> BTreeMap<String, RefOr<Documented>> {
    let describe = |status: &u16| {
        let reason = StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        let response = ResponseBuilder::new()
            .description(reason.unwrap_or("Error"))
            .content("application/problem+json", content)
            .build();
        (status.to_string(), response.into())
    };
    statuses.iter().map(describe).collect()
}

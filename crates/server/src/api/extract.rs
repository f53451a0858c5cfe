//! Extractors for handlers: ids, query strings and JSON bodies, with descriptive errors.

use std::{str::FromStr, sync::Arc};

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::{Extensions, HeaderMap, StatusCode, Uri, header, request::Parts},
};
use bytes::Bytes;
use redrive_core::TenantId;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IntoDeserializer},
};

use super::{AppState, invalid_fields::keep_body};
use crate::{
    app::{
        App, AppError, Caller, ErrorCode,
        parse::{PARSE_WORK_PER_BYTE, json::parse_object, words::rephrase},
    },
    problem::Problem,
    request::body::read_body,
};

/// Id in the path. A malformed id gives the same `not_found` error as an unknown one.
pub(super) struct Id<T>(pub T);

impl<T: FromStr + Send> FromRequestParts<AppState> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        let missing = |_| AppError::NotFound("object; check the id");
        let path = axum::extract::Path::<String>::from_request_parts(parts, app).await;
        let axum::extract::Path(text) = path.map_err(|_| AppError::NotFound("object; check the id"))?;
        Ok(Self(text.parse().map_err(|_| ()).map_err(missing)?))
    }
}

/// Two ids in the path.
pub(super) struct Ids<A, B>(pub A, pub B);

impl<A: FromStr + Send, B: FromStr + Send> FromRequestParts<AppState> for Ids<A, B> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        let missing = || AppError::NotFound("object; check the id");
        let path = axum::extract::Path::<(String, String)>::from_request_parts(parts, app).await;
        let axum::extract::Path((first, second)) = path.map_err(|_| missing())?;
        Ok(Self(first.parse().map_err(|_| missing())?, second.parse().map_err(|_| missing())?))
    }
}

/// Comma-separated values of one parameter.
#[derive(Clone, Debug)]
pub(super) struct List<T>(Vec<T>);

/// Maximum number of values of a parameter.
const MAX_VALUES: usize = 50;
/// Parameters that accept several values, separated by commas or by repeating the parameter.
const LISTS: [&str; 5] = ["webhook_id", "event_type", "failure_category", "dead_reason", "status"];

impl<T: Clone> List<T> {
    /// Returns the values; empty if the parameter is missing.
    pub(super) fn values(list: &Option<Self>) -> Vec<T> {
        list.as_ref().map(|list| list.0.clone()).unwrap_or_default()
    }
}

impl<T: Clone + Into<String>> List<T> {
    /// Returns the values as strings; none if the parameter is missing.
    pub(super) fn strings(list: &Option<Self>) -> Vec<String> {
        Self::values(list).into_iter().map(Into::into).collect()
    }
}

impl<'de, T: Deserialize<'de> + PartialEq> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let text = String::deserialize(value)?;
        if text.split(',').count() > MAX_VALUES {
            return Err(D::Error::custom(format_args!("must have at most {MAX_VALUES} values")));
        }
        if text.split(',').any(str::is_empty) {
            return Err(D::Error::custom("must be values separated by single commas; omit it for all"));
        }
        let part =
            |text: &str| T::deserialize(IntoDeserializer::<D::Error>::into_deserializer(text.to_owned()));
        text.split(',').map(part).collect::<Result<_, _>>().map(without_repetitions).map(Self)
    }
}

/// Removes repeated values. The store reads the rows of some values one after the other, so a value given twice would
/// list its rows twice.
pub(super) fn without_repetitions<T: PartialEq>(list: Vec<T>) -> Vec<T> {
    let mut values = Vec::with_capacity(list.len());
    for value in list {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// Joins repeated list parameters of a query string with commas. Returns `None` if no list parameter is repeated.
fn merge_repeated(query: &str) -> Option<String> {
    let mut pairs: Vec<(&str, String)> = Vec::new();
    let mut is_repeated = false;
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match pairs.iter_mut().find(|(known, _)| *known == name && LISTS.contains(&name)) {
            Some((_, values)) => {
                is_repeated = true;
                values.push(',');
                values.push_str(value);
            }
            None => pairs.push((name, value.to_owned())),
        }
    }
    let pairs = pairs.into_iter().map(|(name, value)| format!("{name}={value}"));
    is_repeated.then(|| pairs.collect::<Vec<_>>().join("&"))
}

/// Parsed query string. The parameter types themselves reject unknown parameters.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, Problem> {
        Self::read(&parts.uri)
    }
}

impl<T: DeserializeOwned> Query<T> {
    /// Parses the query string of a URI.
    pub(crate) fn read(uri: &Uri) -> Result<Self, Problem> {
        let merged = uri.query().and_then(merge_repeated).and_then(|query| format!("/?{query}").parse().ok());
        match axum::extract::Query::<T>::try_from_uri(merged.as_ref().unwrap_or(uri)) {
            Ok(query) => Ok(Self(query.0)),
            Err(rejection) => Err(invalid_query(&rejection.body_text())),
        }
    }
}

/// Returns the problem for a query string that cannot be parsed. The comparison with the API document replaces the words
/// for a value of the wrong type.
fn invalid_query(text: &str) -> Problem {
    let message = text.rsplit("string: ").next().unwrap_or(text);
    let duplicate = message.strip_prefix("duplicate field `").and_then(|rest| rest.split('`').next());
    let (field, message) = match (duplicate, message.split_once(": ")) {
        (Some(name), _) => (Some(name), message),
        (None, Some((field, message))) => (Some(field), message),
        (None, None) => (None, message),
    };
    let problem = |detail: String| Problem::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidQuery, detail);
    match field {
        Some(field) => problem(format!("{field}: {}", rephrase(message))).field(field),
        None => problem(rephrase(message)),
    }
}

/// Headers and unparsed body of a request.
pub(super) struct RawRequest {
    /// Request headers.
    pub(super) headers: HeaderMap,
    /// Request body.
    pub(super) body: Bytes,
}

/// Request whose body holds at most one payload.
pub(super) struct SinglePayload(pub RawRequest);
/// Request whose body holds up to 1,000 events.
pub(super) struct Batch(pub RawRequest);

/// Maximum body size of a batch; larger if one payload may be larger.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// Bytes that a body may have in addition to its payload.
const PAYLOAD_OVERHEAD_BYTES: usize = 64 * 1024;
/// Maximum size of a JSON body without a payload, unless a limit below applies.
pub(crate) const MAX_OBJECT_BYTES: usize = 64 * 1024;
/// Maximum size of a webhook body: headers, patterns, subjects and filter, each at its limit, take 200 KiB.
pub(crate) const MAX_WEBHOOK_BODY_BYTES: usize = 256 * 1024;
/// Maximum size of an event type body: schema and example, each at its limit, doubled to allow for escapes.
pub(super) const MAX_EVENT_TYPE_BODY_BYTES: usize = 2 * (redrive_core::event::schema::MAX_BYTES + 64 * 1024);
/// Maximum size of a body that selects deliveries or events: each list may have 1,000 values.
pub(super) const MAX_SELECTION_BYTES: usize = 512 * 1024;

fn max_payload_body(app: &App) -> usize {
    app.rules().max_payload_bytes + PAYLOAD_OVERHEAD_BYTES
}

impl FromRequest<AppState> for SinglePayload {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        read_raw(request, max_payload_body(app)).await.map(Self)
    }
}

impl FromRequest<AppState> for Batch {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        read_raw(request, MAX_BATCH_BYTES.max(max_payload_body(app))).await.map(Self)
    }
}

/// JSON body of at most `MAX_BYTES`.
pub(crate) struct Json<T, const MAX_BYTES: usize = MAX_OBJECT_BYTES>(pub T);

impl<T: DeserializeOwned + Send + 'static, const MAX_BYTES: usize> FromRequest<AppState>
    for Json<T, MAX_BYTES>
{
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        read_json(request, app, MAX_BYTES).await.map(Self)
    }
}

/// JSON body that contains a payload.
pub(super) struct PayloadJson<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for PayloadJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        read_json(request, app, max_payload_body(app)).await.map(Self)
    }
}

/// Optional JSON body of at most `MAX_BYTES`; may be missing or null.
pub(super) struct OptionalJson<T, const MAX_BYTES: usize = MAX_OBJECT_BYTES>(pub T);

impl<T: DeserializeOwned + Default + Send + 'static, const MAX_BYTES: usize> FromRequest<AppState>
    for OptionalJson<T, MAX_BYTES>
{
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        optional_json(request, app, MAX_BYTES).await.map(Self)
    }
}

/// Optional JSON body that contains a payload; may be missing or null.
pub(super) struct OptionalPayloadJson<T>(pub T);

impl<T: DeserializeOwned + Default + Send + 'static> FromRequest<AppState> for OptionalPayloadJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        optional_json(request, app, max_payload_body(app)).await.map(Self)
    }
}

async fn optional_json<T: DeserializeOwned + Default + Send + 'static>(
    request: Request,
    app: &App,
    max_bytes: usize,
) -> Result<T, Problem> {
    if !has_body(request.headers()) {
        return Ok(T::default());
    }
    let tenant_id = tenant_of(request.extensions());
    let body = read_raw(request, max_bytes).await?.body;
    match body.trim_ascii() {
        b"null" => Ok(T::default()),
        trimmed => parse(app, &tenant_id, body.slice_ref(trimmed)).await,
    }
}

async fn read_json<T: DeserializeOwned + Send + 'static>(
    request: Request,
    app: &App,
    max_bytes: usize,
) -> Result<T, Problem> {
    let tenant_id = tenant_of(request.extensions());
    parse(app, &tenant_id, read_raw(request, max_bytes).await?.body).await
}

/// Returns the tenant whose share of the check threads is used for the body of this request.
fn tenant_of(extensions: &Extensions) -> TenantId {
    let caller = extensions.get::<Arc<Caller>>();
    caller.and_then(|caller| caller.resolve_tenant(None).ok()).unwrap_or_default()
}

/// Parses the JSON body of a request, on a check thread if it is large.
async fn parse<T: DeserializeOwned + Send + 'static>(
    app: &App,
    tenant_id: &TenantId,
    body: Bytes,
) -> Result<T, Problem> {
    let work = PARSE_WORK_PER_BYTE * body.len() as u64;
    Ok(app.engine().run_work(tenant_id, work, move || parse_object(&body)).await??)
}

/// Returns whether the headers announce a body.
fn has_body(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0")
        || headers.contains_key(header::TRANSFER_ENCODING)
}

/// Requires an empty body. A body is rejected rather than ignored, because the client expects it to have an
/// effect.
pub(super) struct NoBody;

impl FromRequest<AppState> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &AppState) -> Result<Self, Problem> {
        match has_body(request.headers()) {
            false => Ok(Self),
            true => Err(Problem::new(
                StatusCode::BAD_REQUEST,
                ErrorCode::InvalidBody,
                "this route accepts no body; use query parameters, such as ?webhook_id=…",
            )),
        }
    }
}

async fn read_raw(request: Request, max_bytes: usize) -> Result<RawRequest, Problem> {
    let (Parts { headers, extensions, .. }, body) = request.into_parts();
    check_content_type(&headers)?;
    let body = read_body(&headers, body, max_bytes).await?;
    keep_body(&extensions, tenant_of(&extensions), &body);
    Ok(RawRequest { headers, body })
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    // A CloudEvent with its attributes in headers may omit the content type of its data.
    let may_be_omitted = given.is_empty() && headers.contains_key("ce-specversion");
    if essence == "application/json" || essence.ends_with("+json") || may_be_omitted {
        return Ok(());
    }
    let given = if given.is_empty() { "none".to_owned() } else { format!("\"{}\"", given.escape_debug()) };
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorCode::UnsupportedMediaType,
        format!("send the header `Content-Type: application/json`; it was {given}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_list_parameters_are_merged() {
        assert_eq!(
            merge_repeated("webhook_id=a&limit=1&webhook_id=b%2Cc"),
            Some("webhook_id=a,b%2Cc&limit=1".into())
        );
        assert_eq!(merge_repeated("webhook_id=a&limit=1"), None);
        assert_eq!(merge_repeated("limit=1&limit=2"), None, "a repeated single value is an error");
        assert_eq!(merge_repeated(""), None);
    }

    #[test]
    fn list_parameter_rejects_gaps_and_too_many_values() {
        let read = |text: &str| serde_json::from_value::<List<String>>(text.into()).map(|list| list.0);
        assert_eq!(read("a,b").unwrap(), ["a", "b"]);
        for (bad, why) in
            [("", "omit it"), ("a,,b", "single commas"), (&vec!["a"; 51].join(","), "at most 50")]
        {
            assert!(read(bad).unwrap_err().to_string().contains(why), "{bad}");
        }
    }
}

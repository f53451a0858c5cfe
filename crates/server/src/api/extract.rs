//! Extractors for handlers: the authenticated caller, ids, query strings and JSON bodies, with descriptive errors.

use std::{fmt, marker::PhantomData, net::IpAddr, str::FromStr, sync::Arc};

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::{Extensions, HeaderMap, StatusCode, Uri, header, request::Parts},
};
use bytes::Bytes;
use redrive_core::{
    FieldError, TenantId,
    event::json_nesting::{MAX_PAYLOAD_NESTING, is_nested_deeper},
};
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, Error as _, IgnoredAny, IntoDeserializer, MapAccess, Visitor,
        value::MapAccessDeserializer,
    },
};

use super::{AppState, problem::Problem};
use crate::{
    app::{Actor, App, AppError, Caller, Capability, Scope, session::is_token_of},
    http::{
        ClientAddr,
        body::{BodyError, read_body},
        cookie,
    },
};

/// Permission that a handler requires. Each handler names one in its signature, so a caller without it is rejected
/// before the body is read.
pub(crate) trait RequiredScope: Send {
    /// Returns an error if the caller lacks the permission.
    fn check(caller: &Caller) -> Result<(), AppError>;
}

/// Permission to publish events.
pub(super) struct CanPublish;
/// Permission to read a tenant's data.
pub(super) struct CanRead;
/// Permission to create and change webhooks and their settings.
pub(crate) struct ManagesEndpoints;
/// Permission to resend and cancel deliveries.
pub(super) struct Resends;
/// Permission to rotate signing secrets.
pub(super) struct RotatesSecrets;
/// Permission to manage everything of a tenant, including what publishers depend on. Not granted to portal
/// sessions.
pub(super) struct CanOperate;
/// Permission for everything, in any tenant.
pub(super) struct CanAdminister;

impl RequiredScope for CanPublish {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Publish)
    }
}

impl RequiredScope for CanRead {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Read)
    }
}

impl RequiredScope for ManagesEndpoints {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Manage)?;
        caller.require_capability(Capability::ManageEndpoints)
    }
}

impl RequiredScope for Resends {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Manage)?;
        caller.require_capability(Capability::Resend)
    }
}

impl RequiredScope for RotatesSecrets {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Manage)?;
        caller.require_capability(Capability::Secrets)
    }
}

impl RequiredScope for CanOperate {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_scope(Scope::Manage)?;
        caller.reject_portal_session()
    }
}

impl RequiredScope for CanAdminister {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.require_admin()
    }
}

/// Authenticated caller that has the required permission.
pub(crate) struct Authorized<N>(pub(crate) Actor, pub(crate) PhantomData<N>);

impl<N: RequiredScope> FromRequestParts<AppState> for Authorized<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        // The rate limit middleware, if enabled, has already authenticated the caller.
        let known = parts.extensions.get::<Arc<Caller>>().cloned();
        let address = client_address(&parts.extensions);
        let caller = match known {
            Some(caller) => caller,
            None => {
                let caller = authenticate(&parts.headers, &parts.extensions, app)
                    .await?
                    .ok_or(AppError::Unauthorized)?;
                parts.extensions.insert(caller.clone());
                caller
            }
        };
        N::check(&caller)?;
        Ok(Self(Actor { caller, address }, PhantomData))
    }
}

/// Returns the client's address.
pub(crate) fn client_address(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ClientAddr>().map(|client| client.0)
}

/// Header with the CSRF token that dashboard pages send with every call.
pub(crate) const CSRF_HEADER: &str = "x-redrive-token";

/// Authenticates the API key in the headers or the session in the cookie, including its allowed networks. An error
/// means that the store could not be queried for the session.
pub(super) async fn authenticate(
    headers: &HeaderMap,
    extensions: &Extensions,
    app: &App,
) -> Result<Option<Arc<Caller>>, AppError> {
    let from = client_address(extensions);
    let Some(authorization) = headers.get(header::AUTHORIZATION) else {
        let Some(cookie) = session_cookie(headers, extensions) else { return Ok(None) };
        return Ok(app.session(cookie, from).await?.map(|session| session.caller));
    };
    let bearer = authorization.to_str().ok().and_then(|text| text.split_once(' '));
    let key = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    Ok(key.and_then(|key| app.keys().caller(key, app.engine().clock().now(), from)))
}

/// Returns the session cookie if the request comes from a dashboard page. Browsers send the cookie with requests
/// from any site, but only dashboard pages know the CSRF token that belongs to it, and they never have the origin
/// `null`.
fn session_cookie<'a>(headers: &'a HeaderMap, extensions: &Extensions) -> Option<&'a str> {
    let (cookie, token) =
        (cookie::session(headers, cookie::is_secure(extensions))?, headers.get(CSRF_HEADER)?.to_str().ok()?);
    let is_hidden = headers.get(header::ORIGIN).is_some_and(|origin| origin == "null");
    (is_token_of(token, cookie) && !is_hidden).then_some(cookie)
}

/// Deserializes a field so that null (clear it) differs from a missing field (leave it unchanged).
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Deserializes like `nullable`, but accepts only a JSON object as the value.
pub(super) fn nullable_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    object(value).map(Some)
}

/// Deserializes an object or null. Serde would otherwise also accept an array with the values in field order.
pub(super) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<T>, D::Error> {
    let object = Option::<Object<T>>::deserialize(value)?;
    Ok(object.map(|Object(value)| value))
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

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
const LISTS: [&str; 4] = ["webhook_id", "event_type", "failure_category", "dead_reason"];

impl<T: Clone> List<T> {
    /// Returns the values; empty if the parameter is missing.
    pub(super) fn values(list: &Option<Self>) -> Vec<T> {
        list.as_ref().map(|list| list.0.clone()).unwrap_or_default()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
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
        text.split(',').map(part).collect::<Result<_, _>>().map(Self)
    }
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
            Err(rejection) => {
                let detail = rejection.body_text();
                let detail = detail.rsplit("string: ").next().unwrap_or(&detail).to_owned();
                let field = detail.split_once(": ").map(|(field, _)| field.to_owned());
                let problem = Problem::new(StatusCode::BAD_REQUEST, "invalid_query", detail);
                Err(match field {
                    Some(field) => problem.field(field),
                    None => problem,
                })
            }
        }
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
    app.engine().run_counted(tenant_id, work, move || json(&body)).await?
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
                "invalid_body",
                "this route accepts no body; use query parameters, such as ?webhook_id=…",
            )),
        }
    }
}

/// Units of work per byte of a body: for a payload that is only skipped, and for one that is parsed into values.
/// They include the second parse of an invalid body, which locates the error.
pub(super) const SKIP_WORK_PER_BYTE: u64 = 2;
pub(crate) const PARSE_WORK_PER_BYTE: u64 = 8;

/// Maximum nesting of a body: that of a payload, plus an event in a list in an object.
const MAX_BODY_NESTING: usize = MAX_PAYLOAD_NESTING + 3;

/// Rejects a body that is nested too deeply before it is parsed. Otherwise the nesting could be as deep as the
/// body is long, and the parser keeps a stack of that size.
pub(super) fn check_nesting(body: &[u8]) -> Result<(), Problem> {
    if !is_nested_deeper(body, MAX_BODY_NESTING) {
        return Ok(());
    }
    let detail = format!(
        "the body is nested too deeply: lists and objects may be nested {MAX_PAYLOAD_NESTING} levels deep in a payload"
    );
    Err(Problem::new(StatusCode::BAD_REQUEST, "invalid_body", detail))
}

/// Parses a JSON object; an error names the field and the reason.
pub(super) fn json<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    check_nesting(body)?;
    // Serde would also accept an array with the values in field order.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    if !is_object && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        let what = "the body must be a JSON object; the API documentation shows its fields";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "invalid_body", what));
    }
    // Tracking the path of a field costs time, so the body is parsed again with tracking only after an error.
    let value = serde_json::from_slice(body).map_err(|error| {
        let (error, path) = fault::<T>(body).unwrap_or((error, ".".into()));
        // serde_json reports a number in place of an enum name as a syntax error, although the JSON is valid.
        match error.is_syntax() && path != "." && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
            true => {
                FieldError::new(path, "must be one of the strings listed in the API documentation").into()
            }
            false => bad_json(&error, &path),
        }
    })?;
    Ok(value)
}

fn fault<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Option<(serde_json::Error, String)> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let error = serde_path_to_error::deserialize::<_, T>(&mut reader).err()?;
    let path = error.path().to_string();
    Some((error.into_inner(), path))
}

fn bad_json(error: &serde_json::Error, path: &str) -> Problem {
    let detail = error.to_string();
    if error.is_syntax() || error.is_eof() {
        let detail = format!("the body is not valid JSON: {detail}");
        return Problem::new(StatusCode::BAD_REQUEST, "invalid_json", detail);
    }
    let index = detail.rfind(" at line ").unwrap_or(detail.len());
    let message = &detail[..index];
    // The message names a missing or unknown field; for other errors the field is where the parser stopped.
    let named = ["missing field `", "unknown field `"].iter().find_map(|what| message.strip_prefix(what));
    let named = named.and_then(|rest| rest.split('`').next());
    let field = match (path, named) {
        (".", None) => return Problem::new(StatusCode::BAD_REQUEST, "invalid_body", message),
        (".", Some(named)) => named.to_owned(),
        (path, Some(named)) if message.starts_with("missing") => format!("{path}.{named}"),
        (path, _) => path.to_owned(),
    };
    // Redrive's own types begin the message with the field name, which must not appear twice.
    let message = match message.split_once(": ") {
        _ if message.starts_with("missing field") => "is missing",
        Some((text, rest)) if field.starts_with(text) => rest,
        _ => message,
    };
    FieldError::new(field, rephrase_json_error(message)).into()
}

/// Rephrases an error of serde_json for API users.
fn rephrase_json_error(message: &str) -> String {
    let Some((text, wanted)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let wanted = match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list, such as [\"…\"]",
        "a map" => "an object",
        wanted if wanted.starts_with("struct ") => "an object",
        wanted => wanted,
    };
    format!("{text}, expected {wanted}")
}

async fn read_raw(request: Request, max_bytes: usize) -> Result<RawRequest, Problem> {
    let (Parts { headers, .. }, body) = request.into_parts();
    check_content_type(&headers)?;
    let body = read_body(&headers, body, max_bytes).await?;
    Ok(RawRequest { headers, body })
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        let (status, code) = match error {
            BodyError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            BodyError::TooSlow => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            BodyError::Incomplete => (StatusCode::BAD_REQUEST, "incomplete_body"),
        };
        Self::new(status, code, error.to_string())
    }
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
        "unsupported_media_type",
        format!("send the header `Content-Type: application/json`; it was {given}"),
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redrive_core::{protection::limiter::RateLimit, time::HumanDuration};

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Input {
        #[serde(deserialize_with = "nullable")]
        name: Option<Option<String>>,
        #[serde(deserialize_with = "nullable_object")]
        rate_limit: Option<Option<RateLimit>>,
        spans: Option<Vec<HumanDuration>>,
    }

    /// Generates nearly valid JSON, possibly truncated.
    fn any_body() -> impl Strategy<Value = Vec<u8>> {
        let value = "null|-?[0-9]{1,22}(\\.[0-9]{1,3})?(e[0-9]{1,3})?|\"\\PC{0,6}\"|\\[[0-9, ]{0,8}\\]|\\{\\}|\
                     \\{\"(requests_per_minute|burst)\": ?[0-9]{1,12}\\}";
        let field = (proptest::sample::select(&["name", "rate_limit", "spans", "é`: x"]), value)
            .prop_map(|(name, value)| format!("\"{name}\": {value}"));
        let body = (proptest::collection::vec(field, 0..3), 0..80usize).prop_map(|(fields, max)| {
            let mut body = format!("{{{}}}", fields.join(",")).into_bytes();
            body.truncate(max);
            body
        });
        prop_oneof![3 => body, 1 => any::<Vec<u8>>(), 1 => any::<String>().prop_map(String::into_bytes)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn arbitrary_body_is_parsed_or_rejected_with_details(body in any_body()) {
            match json::<Input>(&body) {
                Ok(_) => {
                    let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
                    prop_assert!(value.is_object());
                    let limit = value.get("rate_limit");
                    prop_assert!(limit.is_none_or(|limit| limit.is_object() || limit.is_null()), "{}", value);
                }
                Err(problem) => {
                    prop_assert_eq!(problem.status, 400);
                    prop_assert!(!problem.detail.is_empty() && !problem.code.is_empty());
                }
            }
        }
    }

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

    #[test]
    fn null_differs_from_missing_field() {
        let read = |body: &str| json::<Input>(body.as_bytes()).unwrap();
        assert_eq!((read("{}").name, read("{}").rate_limit), (None, None));
        let cleared = read(r#"{"name": null, "rate_limit": null}"#);
        assert_eq!((cleared.name, cleared.rate_limit), (Some(None), Some(None)));
        let set = read(r#"{"rate_limit": {"requests_per_minute": 5}, "spans": ["1s"]}"#);
        assert_eq!(set.rate_limit, Some(Some(RateLimit::per_minute(5))));
        assert_eq!(set.spans, Some(vec![HumanDuration::secs(1)]));
    }
}

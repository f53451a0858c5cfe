//! What handlers take in: the caller, ids, queries and JSON bodies, each with errors that help.

use std::{fmt, marker::PhantomData, net::IpAddr, str::FromStr, sync::Arc};

use axum::{
    extract::{FromRequest, FromRequestParts, Request},
    http::{Extensions, HeaderMap, StatusCode, Uri, header, request::Parts},
};
use bytes::Bytes;
use redrive_core::{
    Invalid, TenantId,
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

/// What a handler needs its caller to be allowed. Each handler names one in its signature, so that nobody
/// without it gets as far as having a body read.
pub(crate) trait Needs: Send {
    /// Whether this caller is allowed it.
    fn check(caller: &Caller) -> Result<(), AppError>;
}

/// Publishing events.
pub(super) struct Publishes;
/// Looking at a tenant's things.
pub(super) struct Reads;
/// Creating and changing webhooks, and what belongs to them.
pub(crate) struct ManagesEndpoints;
/// Sending again, or no more.
pub(super) struct Resends;
/// Rotating signing secrets.
pub(super) struct RotatesSecrets;
/// Changing what those who publish rely on: everything of a tenant, but not by a customer's session.
pub(super) struct Operates;
/// Everything, for any tenant.
pub(super) struct Administers;

impl Needs for Publishes {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.must_have(Scope::Publish)
    }
}

impl Needs for Reads {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.must_have(Scope::Read)
    }
}

impl Needs for ManagesEndpoints {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.must_have(Scope::Manage)?;
        caller.must_be_capable(Capability::ManageEndpoints)
    }
}

impl Needs for Resends {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.must_have(Scope::Manage)?;
        caller.must_be_capable(Capability::Resend)
    }
}

impl Needs for RotatesSecrets {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.must_have(Scope::Manage)?;
        caller.must_be_capable(Capability::Secrets)
    }
}

impl Needs for Operates {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.must_have(Scope::Manage)?;
        caller.must_not_be_session()
    }
}

impl Needs for Administers {
    fn check(caller: &Caller) -> Result<(), AppError> {
        caller.must_be_admin()
    }
}

/// Whoever holds the key that came with the request, if it allows what is needed.
pub(crate) struct May<N>(pub(crate) Actor, pub(crate) PhantomData<N>);

impl<N: Needs> FromRequestParts<AppState> for May<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        // Where calls are counted, the caller is known by now.
        let known = parts.extensions.get::<Arc<Caller>>().cloned();
        let address = client_address(&parts.extensions);
        let caller = match known {
            Some(caller) => caller,
            None => {
                let caller =
                    caller(&parts.headers, &parts.extensions, app).await?.ok_or(AppError::Unauthorized)?;
                parts.extensions.insert(caller.clone());
                caller
            }
        };
        N::check(&caller)?;
        Ok(Self(Actor { caller, address }, PhantomData))
    }
}

/// Where a request came from.
pub(crate) fn client_address(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ClientAddr>().map(|client| client.0)
}

/// What a page of the dashboard sends with every call.
pub(crate) const TOKEN: &str = "x-redrive-token";

/// The holder of the key in these headers, or of the session in their cookie, if it may be used from there. An error
/// means that the store did not say whether there is such a session.
pub(super) async fn caller(
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

/// The cookie of a page of ours. Browsers send a cookie whatever site has them call, but only pages of ours know the
/// token that belongs to it, and no page of ours is without an origin.
fn session_cookie<'a>(headers: &'a HeaderMap, extensions: &Extensions) -> Option<&'a str> {
    let (cookie, token) =
        (cookie::session(headers, cookie::is_secure(extensions))?, headers.get(TOKEN)?.to_str().ok()?);
    let is_hidden = headers.get(header::ORIGIN).is_some_and(|origin| origin == "null");
    (is_token_of(token, cookie) && !is_hidden).then_some(cookie)
}

/// Tells a field that is null (clear it) from one that is not there (leave it).
pub(super) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// The same for an object, which must be written as one.
pub(super) fn nullable_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    object(value).map(Some)
}

/// An object or null. A list of its values in the right order would pass for it otherwise.
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

/// An id in the path. One that cannot be an id is an id of nothing.
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

/// Several values of one parameter, separated by commas.
#[derive(Clone, Debug)]
pub(super) struct List<T>(Vec<T>);

/// How many values a parameter may have.
const MAX_VALUES: usize = 50;
/// The parameters that may have several values, and may be repeated instead.
const LISTS: [&str; 4] = ["webhook_id", "event_type", "failure_category", "dead_reason"];

impl<T: Clone> List<T> {
    /// The values; none if the parameter was left out.
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
            return Err(D::Error::custom("must be values separated by single commas; leave it out for all"));
        }
        let part =
            |text: &str| T::deserialize(IntoDeserializer::<D::Error>::into_deserializer(text.to_owned()));
        text.split(',').map(part).collect::<Result<_, _>>().map(Self)
    }
}

/// A query string with the values of parameters that may be repeated put together; none if nothing is repeated.
fn merged(query: &str) -> Option<String> {
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

/// The query string; unknown parameters are refused by the types themselves.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, Problem> {
        Self::read(&parts.uri)
    }
}

impl<T: DeserializeOwned> Query<T> {
    /// Reads the query string of a URI.
    pub(crate) fn read(uri: &Uri) -> Result<Self, Problem> {
        let merged = uri.query().and_then(merged).and_then(|query| format!("/?{query}").parse().ok());
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

/// A request's body and headers, not read as anything yet.
pub(super) struct Raw {
    /// The headers.
    pub(super) headers: HeaderMap,
    /// The body.
    pub(super) body: Bytes,
}

/// A body of at most one payload.
pub(super) struct Single(pub Raw);
/// A body of up to a thousand events.
pub(super) struct Batch(pub Raw);

/// The largest body of a batch.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// What a body may have beside a payload.
const PAYLOAD_OVERHEAD_BYTES: usize = 64 * 1024;
/// The largest JSON body that has neither a payload nor anything else with a limit of its own.
pub(crate) const MAX_OBJECT_BYTES: usize = 64 * 1024;
/// The largest JSON body about a webhook: its headers, patterns, subjects and filter, each at its limit, are 200 KiB.
pub(crate) const MAX_WEBHOOK_BODY_BYTES: usize = 256 * 1024;
/// The largest JSON body about an event type: its schema and its example, each at its limit, and as much for escapes.
pub(super) const MAX_EVENT_TYPE_BODY_BYTES: usize = 2 * (redrive_core::event::schema::MAX_BYTES + 64 * 1024);
/// The largest JSON body that selects deliveries or events: each list may name a thousand.
pub(super) const MAX_SELECTION_BYTES: usize = 512 * 1024;

fn max_payload_body(app: &App) -> usize {
    app.rules().max_payload_bytes + PAYLOAD_OVERHEAD_BYTES
}

impl FromRequest<AppState> for Single {
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

/// A JSON body of at most so many bytes.
pub(crate) struct Json<T, const MAX_BYTES: usize = MAX_OBJECT_BYTES>(pub T);

impl<T: DeserializeOwned + Send + 'static, const MAX_BYTES: usize> FromRequest<AppState>
    for Json<T, MAX_BYTES>
{
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        read_json(request, app, MAX_BYTES).await.map(Self)
    }
}

/// A JSON body with a payload in it.
pub(super) struct PayloadJson<T>(pub T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<AppState> for PayloadJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        read_json(request, app, max_payload_body(app)).await.map(Self)
    }
}

/// A JSON body of at most so many bytes that may be left out, or null.
pub(super) struct OptionalJson<T, const MAX_BYTES: usize = MAX_OBJECT_BYTES>(pub T);

impl<T: DeserializeOwned + Default + Send + 'static, const MAX_BYTES: usize> FromRequest<AppState>
    for OptionalJson<T, MAX_BYTES>
{
    type Rejection = Problem;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Problem> {
        optional_json(request, app, MAX_BYTES).await.map(Self)
    }
}

/// A JSON body with a payload in it that may be left out, or null.
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
    let tenant = tenant_of(request.extensions());
    let body = read_raw(request, max_bytes).await?.body;
    match body.trim_ascii() {
        b"null" => Ok(T::default()),
        trimmed => parse(app, &tenant, body.slice_ref(trimmed)).await,
    }
}

async fn read_json<T: DeserializeOwned + Send + 'static>(
    request: Request,
    app: &App,
    max_bytes: usize,
) -> Result<T, Problem> {
    let tenant = tenant_of(request.extensions());
    parse(app, &tenant, read_raw(request, max_bytes).await?.body).await
}

/// The tenant whose share of the threads for checks a body of this request takes.
fn tenant_of(extensions: &Extensions) -> TenantId {
    let caller = extensions.get::<Arc<Caller>>();
    caller.and_then(|caller| caller.acts_for(None).ok()).unwrap_or_default()
}

/// Parses the JSON body of a request, on a thread for checks if it is large.
async fn parse<T: DeserializeOwned + Send + 'static>(
    app: &App,
    tenant: &TenantId,
    body: Bytes,
) -> Result<T, Problem> {
    let work = PARSE_WORK_PER_BYTE * body.len() as u64;
    app.engine().run_counted(tenant, work, move || json(&body)).await?
}

/// Whether a body comes with these headers.
fn has_body(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0")
        || headers.contains_key(header::TRANSFER_ENCODING)
}

/// No body. Whoever sends one means something by it, which must not be passed over.
pub(super) struct NoBody;

impl FromRequest<AppState> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &AppState) -> Result<Self, Problem> {
        match has_body(request.headers()) {
            false => Ok(Self),
            true => Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "invalid_body",
                "a body is not taken here; write what it is about into the query, such as ?webhook_id=…",
            )),
        }
    }
}

/// Units of work for parsing one byte of a body: one whose payload is only skipped, and one that is parsed into values.
/// They allow for a body that cannot be used, which is parsed again for the error.
pub(super) const SKIP_WORK_PER_BYTE: u64 = 2;
pub(super) const PARSE_WORK_PER_BYTE: u64 = 8;

/// How deeply a body may be nested: as a payload may be, in an event in a list in an object.
const MAX_BODY_NESTING: usize = MAX_PAYLOAD_NESTING + 3;

/// Refuses a body that is nested too deeply, before it is parsed. A body is nested as deeply as it is long otherwise,
/// and the parser keeps a stack of that size.
pub(super) fn check_nesting(body: &[u8]) -> Result<(), Problem> {
    if !is_nested_deeper(body, MAX_BODY_NESTING) {
        return Ok(());
    }
    let detail = format!(
        "the body is nested too deeply: lists and objects may be nested {MAX_PAYLOAD_NESTING} levels deep in a payload"
    );
    Err(Problem::new(StatusCode::BAD_REQUEST, "invalid_body", detail))
}

/// Reads a JSON object, and says where and why if it cannot be used.
pub(super) fn json<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    check_nesting(body)?;
    // A list of values in the right order would pass for an object.
    let is_object = body.trim_ascii_start().starts_with(b"{");
    if !is_object && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
        let what = "the body must be a JSON object; the API documentation shows its fields";
        return Err(Problem::new(StatusCode::BAD_REQUEST, "invalid_body", what));
    }
    // Where the fault is costs time to keep track of, so it is only done when there is one.
    let value = serde_json::from_slice(body).map_err(|error| {
        let (error, path) = fault::<T>(body).unwrap_or((error, ".".into()));
        // A number where one of some names belongs is called a fault of syntax, which it is not.
        match error.is_syntax() && path != "." && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
            true => {
                Invalid::new(path, "must be a text, one of those that the API documentation lists").into()
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
    let place = detail.rfind(" at line ").unwrap_or(detail.len());
    let message = &detail[..place];
    // What is missing or unknown is named in the message; everything else is where the reader stopped.
    let named = ["missing field `", "unknown field `"].iter().find_map(|what| message.strip_prefix(what));
    let named = named.and_then(|rest| rest.split('`').next());
    let field = match (path, named) {
        (".", None) => return Problem::new(StatusCode::BAD_REQUEST, "invalid_body", message),
        (".", Some(named)) => named.to_owned(),
        (path, Some(named)) if message.starts_with("missing") => format!("{path}.{named}"),
        (path, _) => path.to_owned(),
    };
    // Our own types say which field they mean; it is not said twice.
    let message = match message.split_once(": ") {
        _ if message.starts_with("missing field") => "is missing",
        Some((said, rest)) if field.starts_with(said) => rest,
        _ => message,
    };
    Invalid::new(field, plainly(message)).into()
}

/// What the reader of JSON says, in words for those who write it.
fn plainly(message: &str) -> String {
    let Some((said, wanted)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let wanted = match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list, such as [\"…\"]",
        "a map" => "an object",
        wanted if wanted.starts_with("struct ") => "an object",
        wanted => wanted,
    };
    format!("{said}, expected {wanted}")
}

async fn read_raw(request: Request, max_bytes: usize) -> Result<Raw, Problem> {
    let (Parts { headers, .. }, body) = request.into_parts();
    check_content_type(&headers)?;
    let body = read_body(&headers, body, max_bytes).await?;
    Ok(Raw { headers, body })
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
    // A CloudEvent with its attributes in headers need not say what its data is.
    let may_be_left_out = given.is_empty() && headers.contains_key("ce-specversion");
    if essence == "application/json" || essence.ends_with("+json") || may_be_left_out {
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
    use redrive_core::{protection::limiter::RateLimit, time::Span};

    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Input {
        #[serde(deserialize_with = "nullable")]
        name: Option<Option<String>>,
        #[serde(deserialize_with = "nullable_object")]
        rate_limit: Option<Option<RateLimit>>,
        spans: Option<Vec<Span>>,
    }

    /// JSON that is nearly what is wanted, cut off somewhere or not.
    fn any_body() -> impl Strategy<Value = Vec<u8>> {
        let value = "null|-?[0-9]{1,22}(\\.[0-9]{1,3})?(e[0-9]{1,3})?|\"\\PC{0,6}\"|\\[[0-9, ]{0,8}\\]|\\{\\}|\
                     \\{\"(requests_per_minute|burst)\": ?[0-9]{1,12}\\}";
        let field = (proptest::sample::select(&["name", "rate_limit", "spans", "é`: x"]), value)
            .prop_map(|(name, value)| format!("\"{name}\": {value}"));
        let body = (proptest::collection::vec(field, 0..3), 0..80usize).prop_map(|(fields, most)| {
            let mut body = format!("{{{}}}", fields.join(",")).into_bytes();
            body.truncate(most);
            body
        });
        prop_oneof![3 => body, 1 => any::<Vec<u8>>(), 1 => any::<String>().prop_map(String::into_bytes)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn whatever_the_body_is_it_is_read_or_refused_in_words(body in any_body()) {
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
    fn what_is_repeated_is_put_together_where_it_may_be() {
        assert_eq!(
            merged("webhook_id=a&limit=1&webhook_id=b%2Cc"),
            Some("webhook_id=a,b%2Cc&limit=1".into())
        );
        assert_eq!(merged("webhook_id=a&limit=1"), None);
        assert_eq!(merged("limit=1&limit=2"), None, "that is a mistake, and told as one");
        assert_eq!(merged(""), None);
    }

    #[test]
    fn a_list_has_so_many_values_and_no_gaps() {
        let read = |text: &str| serde_json::from_value::<List<String>>(text.into()).map(|list| list.0);
        assert_eq!(read("a,b").unwrap(), ["a", "b"]);
        for (bad, why) in
            [("", "leave it out"), ("a,,b", "single commas"), (&vec!["a"; 51].join(","), "at most 50")]
        {
            assert!(read(bad).unwrap_err().to_string().contains(why), "{bad}");
        }
    }

    #[test]
    fn null_is_told_from_what_is_left_out() {
        let read = |body: &str| json::<Input>(body.as_bytes()).unwrap();
        assert_eq!((read("{}").name, read("{}").rate_limit), (None, None));
        let cleared = read(r#"{"name": null, "rate_limit": null}"#);
        assert_eq!((cleared.name, cleared.rate_limit), (Some(None), Some(None)));
        let set = read(r#"{"rate_limit": {"requests_per_minute": 5}, "spans": ["1s"]}"#);
        assert_eq!(set.rate_limit, Some(Some(RateLimit::per_minute(5))));
        assert_eq!(set.spans, Some(vec![Span::secs(1)]));
    }
}

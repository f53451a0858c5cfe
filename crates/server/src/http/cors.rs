//! Which pages of others may call this API from a browser: those of the origins that the operator names, with
//! a key that they send themselves. Credentials that a browser would add by itself are never asked for.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts},
};

use super::headers::{EXPOSED, SENT};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
const TEN_MINUTES: HeaderValue = HeaderValue::from_static("600");
const ORIGIN: HeaderValue = HeaderValue::from_static("origin");

/// The origins that may.
pub(super) struct Cors(Vec<HeaderValue>);

impl Cors {
    /// The settings were checked before: each is a plain text.
    pub(super) fn new(origins: &[String]) -> Self {
        Self(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect())
    }

    /// The origin that a request comes from, if its pages may call.
    pub(super) fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        let origin = headers.get(header::ORIGIN)?;
        self.0.iter().find(|allowed| *allowed == origin).cloned()
    }

    /// The answer to a browser that asks before it calls.
    pub(super) fn preflight(request: &Parts) -> Option<Response<Body>> {
        let asks = request.method == Method::OPTIONS
            && request.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        asks.then(|| {
            let mut answer = Response::new(Body::empty());
            *answer.status_mut() = StatusCode::NO_CONTENT;
            let headers = answer.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, SENT);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, TEN_MINUTES);
            answer
        })
    }

    /// Says who may read an answer, if anybody but its own pages may at all.
    pub(super) fn finish(&self, headers: &mut HeaderMap, allowed: Option<HeaderValue>) {
        if self.0.is_empty() {
            return;
        }
        headers.append(header::VARY, ORIGIN);
        if let Some(origin) = allowed {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}

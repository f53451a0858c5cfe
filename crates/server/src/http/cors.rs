//! CORS: pages of the configured origins may call the API from a browser, with a key that they send themselves.
//! Browser credentials such as cookies are never allowed.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts},
};

use super::headers::{EXPOSED, SENT};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
const TEN_MINUTES: HeaderValue = HeaderValue::from_static("600");
const ORIGIN: HeaderValue = HeaderValue::from_static("origin");

/// Allowed origins.
pub(super) struct Cors(Vec<HeaderValue>);

impl Cors {
    /// Creates the list. The origins have been validated with the settings.
    pub(super) fn new(origins: &[String]) -> Self {
        Self(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect())
    }

    /// Returns the origin of a request if it is allowed.
    pub(super) fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        let origin = headers.get(header::ORIGIN)?;
        self.0.iter().find(|allowed| *allowed == origin).cloned()
    }

    /// Returns the response to a preflight request, or `None` if the request is not one.
    pub(super) fn preflight(request: &Parts) -> Option<Response<Body>> {
        let is_preflight = request.method == Method::OPTIONS
            && request.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        is_preflight.then(|| {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            let headers = response.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, SENT);
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, TEN_MINUTES);
            response
        })
    }

    /// Adds the CORS headers to a response, if any origins are configured.
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

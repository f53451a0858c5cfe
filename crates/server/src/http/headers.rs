//! Security headers of every response: CSP, no caching, no referrer.

use axum::http::{HeaderMap, HeaderValue, header};

use super::request_id::{RequestId, X_REQUEST_ID};

const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_REFERRER: HeaderValue = HeaderValue::from_static("no-referrer");
/// With `no-referrer`, browsers send `Origin: null` with forms, as they do for pages that hide their origin. Forms
/// of the dashboard must send their origin, so they need this policy.
const SAME_ORIGIN_REFERRER: HeaderValue = HeaderValue::from_static("same-origin");
const DENY: HeaderValue = HeaderValue::from_static("DENY");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const CSP_NONE: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
const HSTS_ONE_YEAR: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// CSP of the page at `/docs`: its own scripts, the API, and images that are part of its style. It sets inline
/// styles, but inline scripts are not allowed.
const DOCS: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
/// Caching of the files of `/docs`, which change only with the version of Redrive.
const DOCS_CACHING: HeaderValue = HeaderValue::from_static("max-age=600");

/// CSP of the dashboard: its own scripts and styles, nothing inline, and the API. Forms may only target this
/// server.
const DASHBOARD: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'self'; frame-ancestors 'none'",
);

/// Kind of a response, which determines its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseKind {
    /// A response for API clients.
    Nothing,
    /// The API documentation page.
    Docs,
    /// A dashboard page.
    Dashboard,
    /// The target of a link in an email, whose URL is a secret.
    EmailLink,
}

impl ResponseKind {
    /// Returns the kind of the response for a path.
    pub(super) fn for_path(path: &str) -> Self {
        let below =
            |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match () {
            () if below("/docs") => Self::Docs,
            () if path == "/" || below("/dashboard") || below("/portal") => Self::Dashboard,
            () if below("/unsubscribe") || below("/confirm") => Self::EmailLink,
            () => Self::Nothing,
        }
    }
}

/// Adds the headers that all responses have.
pub(super) fn finish(headers: &mut HeaderMap, id: &RequestId, shown: ResponseKind, tls: bool) {
    headers.reserve(8);
    headers.insert(X_REQUEST_ID, id.header());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers.insert(header::X_FRAME_OPTIONS, DENY);
    let (policy, caching, referrer) = match shown {
        ResponseKind::Nothing => (CSP_NONE, NO_STORE, NO_REFERRER),
        ResponseKind::Docs => (DOCS, DOCS_CACHING, NO_REFERRER),
        ResponseKind::Dashboard => (DASHBOARD, NO_STORE, SAME_ORIGIN_REFERRER),
        ResponseKind::EmailLink => (DASHBOARD, NO_STORE, NO_REFERRER),
    };
    headers.insert(header::REFERRER_POLICY, referrer);
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    headers.entry(header::CACHE_CONTROL).or_insert(caching);
    if tls {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, HSTS_ONE_YEAR);
    }
}

/// Response headers that a page of another origin may read.
pub(super) const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, idempotency-replayed, retry-after, ratelimit-limit, ratelimit-remaining, ratelimit-reset",
);
/// Request headers that a page of another origin may send.
pub(super) const SENT: HeaderValue =
    HeaderValue::from_static("authorization, content-type, idempotency-key, x-request-id");

//! What every answer says to browsers: show nothing, keep nothing, tell nobody.

use axum::http::{HeaderMap, HeaderValue, header};

use super::request_id::{RequestId, X_REQUEST_ID};

const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_REFERRER: HeaderValue = HeaderValue::from_static("no-referrer");
/// Browsers send `Origin: null` with the forms of a page that has no referrer at all, as they do for pages that hide where
/// they are from. Forms of the dashboard name their origin.
const SAME_ORIGIN_REFERRER: HeaderValue = HeaderValue::from_static("same-origin");
const DENY: HeaderValue = HeaderValue::from_static("DENY");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const NOTHING_AT_ALL: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
const A_YEAR_OF_TLS: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// The page at `/docs`: its own scripts, the API, and pictures that are part of its style. It sets styles on
/// elements, which scripts may never do with code.
const DOCS: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);
/// Its files are the same until the next version of Redrive.
const DOCS_CACHING: HeaderValue = HeaderValue::from_static("max-age=600");

/// The dashboard: its own scripts and styles, none of them in the page, and the API. Forms stay here.
const DASHBOARD: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
     form-action 'self'; frame-ancestors 'none'",
);

/// What an answer is for, as far as browsers have to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// For programs.
    Nothing,
    /// The page that shows the API's description.
    Docs,
    /// A page of the dashboard.
    Dashboard,
    /// A page that a link in an e-mail leads to: its address is a secret.
    EmailLink,
}

impl Shown {
    /// What is shown at a path.
    pub(super) fn at(path: &str) -> Self {
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

/// Puts on an answer what all of them carry.
pub(super) fn finish(headers: &mut HeaderMap, id: &RequestId, shown: Shown, tls: bool) {
    headers.reserve(8);
    headers.insert(X_REQUEST_ID, id.header());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers.insert(header::X_FRAME_OPTIONS, DENY);
    let (policy, caching, referrer) = match shown {
        Shown::Nothing => (NOTHING_AT_ALL, NO_STORE, NO_REFERRER),
        Shown::Docs => (DOCS, DOCS_CACHING, NO_REFERRER),
        Shown::Dashboard => (DASHBOARD, NO_STORE, SAME_ORIGIN_REFERRER),
        Shown::EmailLink => (DASHBOARD, NO_STORE, NO_REFERRER),
    };
    headers.insert(header::REFERRER_POLICY, referrer);
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    headers.entry(header::CACHE_CONTROL).or_insert(caching);
    if tls {
        headers.insert(header::STRICT_TRANSPORT_SECURITY, A_YEAR_OF_TLS);
    }
}

/// Headers of ours that a page in a browser may read.
pub(super) const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, retry-after, ratelimit-limit, ratelimit-remaining, ratelimit-reset",
);
/// Headers that a page in a browser may send.
pub(super) const SENT: HeaderValue =
    HeaderValue::from_static("authorization, content-type, idempotency-key, x-request-id");

//! What every answer says to browsers: show nothing, keep nothing, tell nobody.

use axum::http::{HeaderMap, HeaderValue, header};

use super::request_id::{RequestId, X_REQUEST_ID};

const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_REFERRER: HeaderValue = HeaderValue::from_static("no-referrer");
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

/// Puts on an answer what all of them carry.
pub(super) fn finish(headers: &mut HeaderMap, id: &RequestId, docs: bool, tls: bool) {
    headers.reserve(8);
    headers.insert(X_REQUEST_ID, id.header());
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    headers.insert(header::REFERRER_POLICY, NO_REFERRER);
    headers.insert(header::X_FRAME_OPTIONS, DENY);
    let (policy, caching) = if docs { (DOCS, DOCS_CACHING) } else { (NOTHING_AT_ALL, NO_STORE) };
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

/// Whether a path belongs to the page that shows the API's description.
pub(super) fn is_docs(path: &str) -> bool {
    path.strip_prefix("/docs").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

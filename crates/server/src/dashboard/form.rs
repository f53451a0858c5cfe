//! Form extractor: limits the body size and rejects forms that were sent by other sites.

use axum::{
    body::Body,
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use serde::de::DeserializeOwned;
use url::Url;

use super::page::PageError;
use crate::{api::AppState, app::ErrorCode, problem::Problem, request::body::read_body};

/// Maximum size of a form.
const MAX_FORM_BYTES: usize = 8 * 1024;

/// A form sent by a page of this server, or by a client that is not a browser. The origin is checked before the
/// body is read.
pub(super) struct Form<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<AppState> for Form<T> {
    type Rejection = PageError;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, PageError> {
        let (parts, body) = request.into_parts();
        if is_from_elsewhere(&parts.headers, app.rules().public_url.as_deref()) {
            let why = "the form was sent by another site; open this page yourself";
            return Err(Problem::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, why).into());
        }
        let bytes = read_body(&parts.headers, body, MAX_FORM_BYTES).await.map_err(Problem::from)?;
        let Parts { method, uri, headers, .. } = parts;
        let mut request = Request::new(Body::from(bytes));
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
        match axum::Form::<T>::from_request(request, &()).await {
            Ok(axum::Form(form)) => Ok(Self(form)),
            Err(rejection) => {
                Err(Problem::new(rejection.status(), ErrorCode::InvalidForm, rejection.body_text()).into())
            }
        }
    }
}

/// Returns whether a browser reports that another site sent the request, or hides the origin: sandboxed frames and
/// pages that hide their origin send `Origin: null`. Clients that are not browsers send neither header.
fn is_from_elsewhere(headers: &HeaderMap, public_url: Option<&str>) -> bool {
    let only = |name: &header::HeaderName| {
        let mut values = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("null"));
        (values.next(), values.next().is_some())
    };
    let site = headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or_default());
    if site.is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return true;
    }
    match (only(&header::ORIGIN), only(&header::HOST)) {
        ((None, _), _) => false,
        ((Some(origin), false), (host, false)) => {
            let Ok(origin) = Url::parse(origin) else { return true };
            let is_host = |host: &str| is_at(&origin, host);
            let is_public = |url: &str| Url::parse(url).is_ok_and(|url| url.origin() == origin.origin());
            !(host.is_some_and(is_host) || public_url.is_some_and(is_public))
        }
        _ => true,
    }
}

/// Returns whether an origin is the request's host. The scheme may differ, since a proxy may terminate TLS.
fn is_at(origin: &Url, host: &str) -> bool {
    let named = Url::parse(&format!("{}://{host}/", origin.scheme()));
    named.is_ok_and(|named| named.origin().is_tuple() && named.origin() == origin.origin())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn elsewhere(headers: &[(&'static str, &'static str)]) -> bool {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        is_from_elsewhere(&headers, Some("https://b\u{fc}cher.example:443/hooks"))
    }

    #[test]
    fn form_from_foreign_or_null_origin_is_detected() {
        for own in [
            &[("host", "h:8080")][..],
            &[("host", "h:8080"), ("origin", "http://h:8080")],
            &[("host", "h:443"), ("origin", "https://h")],
            &[("host", "h"), ("origin", "https://h"), ("sec-fetch-site", "same-origin")],
            &[("host", "10.0.0.1:8080"), ("origin", "https://xn--bcher-kva.example")],
        ] {
            assert!(!elsewhere(own), "{own:?}");
        }
        for other in [
            &[("host", "h"), ("origin", "null")][..],
            &[("host", "h"), ("origin", "https://evil.example")],
            &[("host", "h"), ("origin", "https://h:8443")],
            &[("host", "h"), ("origin", "")],
            &[("origin", "https://h")],
            &[("host", "h"), ("sec-fetch-site", "cross-site")],
            &[("host", "h"), ("sec-fetch-site", "same-site"), ("origin", "https://h")],
            &[("host", "h"), ("origin", "http://xn--bcher-kva.example")],
        ] {
            assert!(elsewhere(other), "{other:?}");
        }
    }
}

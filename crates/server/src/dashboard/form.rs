//! What forms of pages send: small, read like every other body, and only from pages of this server.

use axum::{
    body::Body,
    extract::{FromRequest, Request},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use serde::de::DeserializeOwned;
use url::Url;

use super::page::Failed;
use crate::{
    api::{AppState, Problem},
    http::body::read_body,
};

/// The largest form.
const MAX_FORM_BYTES: usize = 8 * 1024;

/// A form that a page of this server sent, or a program that is no browser. Its body is read only then.
pub(super) struct Form<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<AppState> for Form<T> {
    type Rejection = Failed;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Failed> {
        let (parts, body) = request.into_parts();
        if is_from_elsewhere(&parts.headers, app.rules().public_url.as_deref()) {
            let why = "the form was sent by another site; open this page yourself";
            return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", why).into());
        }
        let bytes = read_body(&parts.headers, body, MAX_FORM_BYTES).await.map_err(Problem::from)?;
        let Parts { method, uri, headers, .. } = parts;
        let mut request = Request::new(Body::from(bytes));
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (method, uri, headers);
        match axum::Form::<T>::from_request(request, &()).await {
            Ok(axum::Form(form)) => Ok(Self(form)),
            Err(rejection) => {
                Err(Problem::new(rejection.status(), "invalid_form", rejection.body_text()).into())
            }
        }
    }
}

/// Whether a browser says that another site made it send this, or does not say which did: pages in a frame without an
/// origin and pages that hide theirs send `Origin: null`. Programs that are no browser say nothing.
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

/// Whether an origin is the host that a request names. The scheme may differ: TLS may end at a proxy.
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
    fn form_of_another_site_or_of_none_is_from_elsewhere() {
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

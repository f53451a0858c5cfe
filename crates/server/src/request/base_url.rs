//! Determines the URL that a request was sent to, for links back to this server.
//!
//! The host is chosen by the client, so it is used only if it is valid, and only for links in the response to that
//! client.

use std::convert::Infallible;

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use url::Url;

/// Scheme of a request as its client sees it. Every request has one as an extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Without TLS.
    #[default]
    Http,
    /// With TLS, terminated by this server or a proxy.
    Https,
}

impl Scheme {
    /// Returns the scheme as it is written in URLs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Scheme, host and port that a request was sent to, such as `https://hooks.example.com`. `None` if the request
/// has no valid host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrl(pub(crate) Option<String>);

impl<S: Sync> FromRequestParts<S> for BaseUrl {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let scheme = parts.extensions.get::<Scheme>().copied().unwrap_or_default();
        let host = match parts.uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => only_host(&parts.headers),
        };
        Ok(Self(host.and_then(|host| base(scheme, host))))
    }
}

/// Returns the origin of an `https` public URL as browsers write it: without the default port, and with the host
/// in its ASCII form. Returns `None` for any other URL.
pub(crate) fn https_origin(public_url: &str) -> Option<String> {
    let url = Url::parse(public_url).ok().filter(|url| url.scheme() == "https")?;
    Some(url.origin().ascii_serialization())
}

/// Returns the `Host` header, or `None` if there is none or more than one.
pub(crate) fn only_host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

/// Maximum length of a host name with a port.
const MAX_HOST_BYTES: usize = 253 + 6;

/// Returns the base URL of a host. Returns `None` if the host is not valid.
pub(crate) fn base(scheme: Scheme, host: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if host.is_empty() || host.len() > MAX_HOST_BYTES || !host.bytes().all(plain) {
        return None;
    }
    let url = Url::parse(&format!("{}://{host}/", scheme.name())).ok()?;
    // Port 0 is valid syntax but cannot be reached.
    (url.port() != Some(0)).then(|| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn base_url_requires_valid_host() {
        for (host, url) in [
            ("hooks.example.com", "https://hooks.example.com"),
            ("Hooks.Example.com:8443", "https://hooks.example.com:8443"),
            ("hooks.example.com:443", "https://hooks.example.com"),
            ("127.0.0.1:8080", "https://127.0.0.1:8080"),
            ("[::1]:8080", "https://[::1]:8080"),
            ("my_host", "https://my_host"),
        ] {
            assert_eq!(base(Scheme::Https, host).as_deref(), Some(url));
        }
        assert_eq!(base(Scheme::Http, "localhost:80").as_deref(), Some("http://localhost"));
        let long = "x".repeat(MAX_HOST_BYTES + 1);
        for host in [
            "",
            ":8080",
            "a:0",
            "a:99999",
            "a:b",
            "[::1",
            "::1",
            "a b",
            "a/b",
            "a?b",
            "a#b",
            "me@a",
            "a\\b",
            "a%2fb",
            "\u{fc}.example",
            "<script>",
            "a,b",
            &long,
        ] {
            assert_eq!(base(Scheme::Http, host), None, "{host}");
        }
    }

    async fn requested_url(uri: &str, hosts: &[&str]) -> Option<String> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let Ok(BaseUrl(base)) = BaseUrl::from_request_parts(&mut parts, &()).await;
        base
    }

    #[tokio::test]
    async fn request_with_two_hosts_has_no_base_url() {
        assert_eq!(requested_url("/", &["a.example"]).await.as_deref(), Some("http://a.example"));
        assert_eq!(
            requested_url("http://b.example/x", &["a.example"]).await.as_deref(),
            Some("http://b.example")
        );
        assert_eq!(requested_url("/", &["a.example", "b.example"]).await, None);
        assert_eq!(requested_url("/", &[]).await, None);
    }

    proptest! {
        #[test]
        fn base_url_of_any_host_has_only_scheme_and_host(host in prop_oneof![any::<String>(), "[a-z0-9.:@/#?\\[\\]-]{0,20}"]) {
            if let Some(base) = base(Scheme::Https, &host) {
                let url = Url::parse(&format!("{base}/portal#token")).unwrap();
                prop_assert_eq!((url.scheme(), url.path(), url.fragment()), ("https", "/portal", Some("token")));
                prop_assert!(url.username().is_empty() && url.query().is_none());
            }
        }
    }
}

//! Under which address a request came in, for links that lead back here.
//!
//! A host is what the client wrote, so it is taken only if it looks like one, and is good for links in the
//! answer to that client alone.

use std::{convert::Infallible, net::IpAddr};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};
use url::Url;

use super::Surface;

/// How a request came, as its client sees it: in the clear, or over TLS. Every request has one as its extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// In the clear.
    #[default]
    Http,
    /// Over TLS, with us or with a proxy that is trusted.
    Https,
}

impl Scheme {
    /// How URLs begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl Surface {
    /// A trusted proxy is believed about its client; whatever else stands in the header was there before. Where no
    /// proxy says so, a request for the host of an `https` public URL came over TLS as well: to a proxy that is not
    /// listed as trusted.
    pub(super) fn scheme(&self, peer: IpAddr, headers: &HeaderMap) -> Scheme {
        let is_public = || {
            let asked = only_host(headers).and_then(|host| base(Scheme::Https, host));
            asked.is_some() && asked == self.public_https
        };
        let own = match self.tls.is_some() || self.public_https.is_some() && is_public() {
            true => Scheme::Https,
            false => Scheme::Http,
        };
        let line = headers.get_all("x-forwarded-proto").iter().next_back();
        let Some(line) = line.filter(|_| self.trusts(peer)) else { return own };
        match line.as_bytes().rsplit(|byte| *byte == b',').next().map(<[u8]>::trim_ascii) {
            Some(name) if name.eq_ignore_ascii_case(b"https") => Scheme::Https,
            Some(name) if name.eq_ignore_ascii_case(b"http") => Scheme::Http,
            _ => own,
        }
    }
}

/// The scheme, host and port that a request was sent to, such as `https://hooks.example.com`; none if it does
/// not say so in a way that could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl(pub Option<String>);

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

/// Scheme, host and port of a public URL that begins with `https`, as browsers write them: without the usual port, and
/// a name in other letters than ASCII's in its ASCII form. Returns `None` for any other URL.
pub(super) fn https_origin(public_url: &str) -> Option<String> {
    let url = Url::parse(public_url).ok().filter(|url| url.scheme() == "https")?;
    Some(url.origin().ascii_serialization())
}

/// The host that a request names; none if it names two.
fn only_host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

/// The longest name, and a port.
const LONGEST: usize = 253 + 6;

fn base(scheme: Scheme, host: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if host.is_empty() || host.len() > LONGEST || !host.bytes().all(plain) {
        return None;
    }
    let url = Url::parse(&format!("{}://{host}/", scheme.name())).ok()?;
    // Port 0 can be written, and never be reached.
    (url.port() != Some(0)).then(|| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue, Request};
    use prometheus_client::metrics::counter::Counter;
    use proptest::prelude::*;

    use super::*;
    use crate::config::Server;

    fn surface(trusted: &str) -> std::sync::Arc<Surface> {
        let trusted_proxies = vec![trusted.parse().unwrap()];
        Surface::new(
            axum::Router::new(),
            &Server { trusted_proxies, ..Server::default() },
            None,
            Counter::default(),
        )
    }

    fn scheme(peer: &str, lines: &[&str]) -> Scheme {
        let name = HeaderName::from_static("x-forwarded-proto");
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(&name, HeaderValue::from_str(line).unwrap());
        }
        surface("10.0.0.0/8").scheme(peer.parse().unwrap(), &headers)
    }

    #[test]
    fn only_a_trusted_proxy_is_believed_about_the_scheme() {
        for lines in [&["https"][..], &["HTTPS"], &["http, https"], &["http", " https "]] {
            assert_eq!(scheme("10.0.0.1", lines), Scheme::Https, "{lines:?}");
            assert_eq!(scheme("192.0.2.1", lines), Scheme::Http, "{lines:?}");
        }
        for lines in [&[][..], &["http"], &["https, http"], &["gopher"], &[""], &["https://x"]] {
            assert_eq!(scheme("10.0.0.1", lines), Scheme::Http, "{lines:?}");
        }
    }

    #[test]
    fn request_for_an_https_public_url_came_over_tls() {
        let scheme = |public_url: &str, host: &str| {
            let settings = Server { public_url: Some(public_url.into()), ..Server::default() };
            let surface = Surface::new(axum::Router::new(), &settings, None, Counter::default());
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            surface.scheme("192.0.2.1".parse().unwrap(), &headers)
        };
        for (public_url, host) in [
            ("https://hooks.example.com", "hooks.example.com"),
            ("https://hooks.example.com:443/", "hooks.example.com"),
            ("https://hooks.example.com", "Hooks.Example.com:443"),
            ("https://b\u{fc}cher.example/hooks", "xn--bcher-kva.example"),
            ("https://hooks.example.com:8443", "hooks.example.com:8443"),
        ] {
            assert_eq!(scheme(public_url, host), Scheme::Https, "{public_url} {host}");
        }
        for (public_url, host) in [
            ("http://hooks.example.com", "hooks.example.com"),
            ("https://hooks.example.com", "127.0.0.1:8080"),
            ("https://hooks.example.com", "hooks.example.com:8443"),
        ] {
            assert_eq!(scheme(public_url, host), Scheme::Http, "{public_url} {host}");
        }
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
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
        let long = "x".repeat(LONGEST + 1);
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

    async fn asked(uri: &str, hosts: &[&str]) -> Option<String> {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let Ok(BaseUrl(base)) = BaseUrl::from_request_parts(&mut parts, &()).await;
        base
    }

    #[tokio::test]
    async fn a_request_names_one_host() {
        assert_eq!(asked("/", &["a.example"]).await.as_deref(), Some("http://a.example"));
        assert_eq!(asked("http://b.example/x", &["a.example"]).await.as_deref(), Some("http://b.example"));
        assert_eq!(asked("/", &["a.example", "b.example"]).await, None);
        assert_eq!(asked("/", &[]).await, None);
    }

    proptest! {
        #[test]
        fn whatever_a_host_is_its_url_is_one_of_that_host(host in prop_oneof![any::<String>(), "[a-z0-9.:@/#?\\[\\]-]{0,20}"]) {
            if let Some(base) = base(Scheme::Https, &host) {
                let url = Url::parse(&format!("{base}/portal#token")).unwrap();
                prop_assert_eq!((url.scheme(), url.path(), url.fragment()), ("https", "/portal", Some("token")));
                prop_assert!(url.username().is_empty() && url.query().is_none());
            }
        }
    }
}

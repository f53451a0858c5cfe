//! Scheme of a request: the connection's, or the one that a trusted proxy forwards.

use std::net::IpAddr;

use axum::http::HeaderMap;

use super::HttpServer;
use crate::request::{
    Scheme,
    base_url::{base, only_host},
};

impl HttpServer {
    /// Returns the scheme of a request. Of `X-Forwarded-Proto` only the last value is used, and only from a trusted
    /// proxy; earlier values were sent by clients. Without it, a request for the host of an `https` public URL counts
    /// as TLS too: it came through a proxy that is not listed as trusted.
    pub(super) fn scheme(&self, peer: IpAddr, headers: &HeaderMap) -> Scheme {
        let is_public = || {
            let request = only_host(headers).and_then(|host| base(Scheme::Https, host));
            request.is_some() && request == self.public_https
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

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue, header};
    use prometheus_client::metrics::counter::Counter;

    use super::*;
    use crate::config::Server;

    fn surface(trusted: &str) -> std::sync::Arc<HttpServer> {
        let trusted_proxies = vec![trusted.parse().unwrap()];
        HttpServer::new(
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
    fn forwarded_scheme_is_used_only_from_trusted_proxy() {
        for lines in [&["https"][..], &["HTTPS"], &["http, https"], &["http", " https "]] {
            assert_eq!(scheme("10.0.0.1", lines), Scheme::Https, "{lines:?}");
            assert_eq!(scheme("192.0.2.1", lines), Scheme::Http, "{lines:?}");
        }
        for lines in [&[][..], &["http"], &["https, http"], &["gopher"], &[""], &["https://x"]] {
            assert_eq!(scheme("10.0.0.1", lines), Scheme::Http, "{lines:?}");
        }
    }

    #[test]
    fn request_for_https_public_url_counts_as_tls() {
        let scheme = |public_url: &str, host: &str| {
            let settings = Server { public_url: Some(public_url.into()), ..Server::default() };
            let surface = HttpServer::new(axum::Router::new(), &settings, None, Counter::default());
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
}

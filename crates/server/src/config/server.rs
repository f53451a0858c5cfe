//! Settings of the HTTP server: listen address, timeouts, TLS, trusted proxies and CORS.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use redrive_core::time::HumanDuration;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{ConfigError, HostPort, settings::section};

section! {
    /// Settings of the HTTP server.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Server {
        /// IP address or host name, and port, of the listener; port 0 picks a free one. Loopback by default: across a
        /// network, use [TLS](#tls) or a proxy that terminates it.
        pub listen: HostPort,
        /// Time for requests in flight to finish at shutdown; equal to the default timeout of a request to an endpoint.
        pub drain_timeout: HumanDuration,
        /// Concurrent API connections; more wait to be accepted. 1 to 1000000.
        pub max_connections: usize,
        /// Concurrent API connections from one IPv4 address, or from one IPv6 network of 64 bits, so that no client
        /// takes all of them; more are closed. Behind a trusted proxy concurrent requests are counted by the forwarded
        /// address; more get a 503. 1 to 1000000.
        pub max_connections_per_address: usize,
        /// Timeout of a TLS handshake, and of the header of a request once it has begun. `100ms` to `1h`.
        pub header_timeout: HumanDuration,
        /// Timeout of a request body, which after the first 10 s must also arrive at 16 KiB a second at least;
        /// otherwise the client gets a 408. `100ms` to `1h`.
        pub body_timeout: HumanDuration,
        /// Time for which a client may read nothing of its response, and total time if it reads less than 16 KB a
        /// second. `100ms` to `1h`.
        pub write_timeout: HumanDuration,
        /// Time for which a connection may be idle between two requests; longer than the idle timeout of most proxies,
        /// so that the proxy closes first. `100ms` to `1h`.
        pub idle_timeout: HumanDuration,
        /// PEM file with the certificate chain; with it the API serves [TLS](#tls) itself.
        pub tls_cert: Option<PathBuf>,
        /// PEM file with the certificate's private key, not encrypted.
        pub tls_key: Option<PathBuf>,
        /// Base URL of links for people, such as `https://hooks.example.com`; may have a path, but no query or
        /// fragment. Unless set, a link begins [as the request](#behind-a-proxy) that created it.
        pub public_url: Option<String>,
        /// Whether publishing and opening a portal session create the named tenant if it does not exist, as `create_tenant:
        /// true` does in a request. Only for callers that may create tenants.
        pub create_tenants: bool,
        /// Networks of [proxies](#behind-a-proxy) whose forwarding headers are trusted, such as `["10.1.0.0/16"]`. None
        /// by default, since any client can send `X-Forwarded-For` and `X-Forwarded-Proto`. `0.0.0.0/0` and `::/0` are
        /// rejected.
        pub trusted_proxies: Vec<IpNet>,
        /// [Origins](#cors) whose pages may call the API from a browser, such as `["https://app.example.com"]`. None by
        /// default, since keys do not belong in pages.
        pub cors_origins: Vec<String>,
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)).into(),
            drain_timeout: HumanDuration::secs(30),
            max_connections: 10_000,
            max_connections_per_address: 1_000,
            header_timeout: HumanDuration::secs(10),
            body_timeout: HumanDuration::secs(30),
            write_timeout: HumanDuration::secs(30),
            idle_timeout: HumanDuration::secs(75),
            tls_cert: None,
            tls_key: None,
            public_url: None,
            create_tenants: false,
            trusted_proxies: Vec::new(),
            cors_origins: Vec::new(),
        }
    }
}

impl Server {
    /// Returns the paths of the certificate and its key, or `None` if this server does not terminate TLS itself.
    pub fn tls(&self) -> Option<(&Path, &Path)> {
        self.tls_cert.as_deref().zip(self.tls_key.as_deref())
    }

    /// Returns the scheme of this server's URLs.
    pub fn scheme(&self) -> &'static str {
        if self.tls().is_some() { "https" } else { "http" }
    }

    /// Returns `public_url` without a trailing slash.
    pub fn public_base(&self) -> Option<&str> {
        self.public_url.as_deref().map(|url| url.trim_end_matches('/'))
    }

    /// Checks constraints that the types do not express.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        for (setting, count) in [
            ("max_connections", self.max_connections),
            ("max_connections_per_address", self.max_connections_per_address),
        ] {
            if !(1..=1_000_000).contains(&count) {
                return refuse(setting, "must be from 1 to 1000000");
            }
        }
        for (setting, span) in [
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("write_timeout", self.write_timeout),
            ("idle_timeout", self.idle_timeout),
        ] {
            if !(HumanDuration::millis(100)..=HumanDuration::secs(3600)).contains(&span) {
                return refuse(setting, "must be from 100ms to 1h");
            }
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => {
                return refuse("tls_cert", "requires server.tls_key; set both");
            }
            (None, Some(_)) => {
                return refuse("tls_key", "requires server.tls_cert; set both");
            }
            _ => {}
        }
        if self.trusted_proxies.iter().any(|network| network.prefix_len() == 0) {
            return refuse(
                "trusted_proxies",
                "must not name the whole internet, because any client could forge its address; list your proxies",
            );
        }
        self.public_url.as_deref().map_or(Ok(()), check_public_url)?;
        self.cors_origins.iter().try_for_each(|origin| check_origin(origin))
    }
}

/// Checks that links can be built by appending a path to the URL.
fn check_public_url(text: &str) -> Result<(), ConfigError> {
    let refuse = |reason: &str| {
        let example = "set the URL at which users reach this server, such as https://hooks.example.com";
        refuse("public_url", &format!("{reason}; {example}"))
    };
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || "\\\"<>".contains(c)) {
        return refuse("must not contain spaces, quotes, brackets or backslashes");
    }
    match Url::parse(text) {
        Err(_) => refuse("is not a URL"),
        Ok(url) if !["http", "https"].contains(&url.scheme()) => {
            refuse("must begin with https:// or http://")
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            refuse("must not contain a user name or password")
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => {
            refuse("must not contain a query (?...) or a fragment (#...)")
        }
        Ok(_) => Ok(()),
    }
}

/// Checks that an origin is written exactly as browsers send it, since origins are compared as strings.
fn check_origin(text: &str) -> Result<(), ConfigError> {
    let example =
        "write scheme and host as browsers do, such as https://app.example.com or http://localhost:3000";
    if text == "*" {
        return refuse("cors_origins", "must not contain \"*\"; name each origin");
    }
    let url = Url::parse(text).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
    match url.map(|url| url.origin().ascii_serialization()) {
        Some(origin) if origin == text => Ok(()),
        Some(origin) => {
            refuse("cors_origins", &format!("has {text:?}, which is not an origin; did you mean {origin:?}?"))
        }
        None => refuse("cors_origins", &format!("has {text:?}, which is not an origin; {example}")),
    }
}

fn refuse(setting: &str, reason: &str) -> Result<(), ConfigError> {
    Err(ConfigError::Invalid { setting: format!("server.{setting}"), reason: reason.into() })
}

#[cfg(test)]
mod tests {
    use crate::config::{Profile, load::parse};

    fn error_text(file: &str) -> String {
        let config = parse(Profile::Serve, &format!("[server]\n{file}"), []);
        let checked = config.and_then(|config| config.validate(Profile::Serve));
        checked.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn invalid_server_settings_are_rejected() {
        for (file, expected) in [
            ("max_connections = 0", "server.max_connections: must be from 1"),
            ("max_connections_per_address = 0", "server.max_connections_per_address: must be from 1"),
            ("header_timeout = 0", "server.header_timeout: must be from 100ms"),
            ("body_timeout = \"2h\"", "server.body_timeout: must be from 100ms"),
            ("write_timeout = 0", "server.write_timeout: must be from 100ms"),
            ("idle_timeout = 0", "server.idle_timeout: must be from 100ms"),
            ("tls_cert = \"a.pem\"", "server.tls_cert: requires server.tls_key"),
            ("tls_key = \"a.pem\"", "server.tls_key: requires server.tls_cert"),
            ("trusted_proxies = [\"0.0.0.0/0\"]", "server.trusted_proxies: must not name the whole internet"),
            ("trusted_proxies = [\"10.0.0.1\"]", "; write a list of networks"),
            ("public_url = \"hooks.example.com\"", "server.public_url: is not a URL; set the URL"),
            ("public_url = \"hooks.example.com:8080\"", "must begin with https:// or http://"),
            ("public_url = \"https://a:b@c.example\"", "user name or password"),
            ("public_url = \"https://a.example/?x\"", "a query"),
            ("public_url = \"https://a.example/#x\"", "a fragment"),
            ("public_url = \"https://a.example/<b>\"", "brackets"),
            ("cors_origins = [\"*\"]", "name each origin"),
            ("cors_origins = [\"https://a.example/\"]", "did you mean \"https://a.example\"?"),
            ("cors_origins = [\"https://A.example:443\"]", "did you mean \"https://a.example\"?"),
            ("cors_origins = [\"a.example\"]", "such as https://app.example.com"),
            ("cors_origins = [\"null\"]", "such as https://app.example.com"),
        ] {
            assert!(error_text(file).contains(expected), "{file}: {}", error_text(file));
        }
    }

    #[test]
    fn tls_proxies_and_cors_may_be_combined() {
        let file = "tls_cert = \"c.pem\"\ntls_key = \"k.pem\"\ntrusted_proxies = [\"10.0.0.0/8\", \"::1/128\"]\n\
                    cors_origins = [\"https://app.example.com\", \"http://localhost:3000\"]";
        assert_eq!(error_text(file), "");
    }

    #[test]
    fn public_url_is_used_without_trailing_slash() {
        for (written, base) in [
            ("https://hooks.example.com", "https://hooks.example.com"),
            ("https://hooks.example.com/", "https://hooks.example.com"),
            ("http://localhost:8080/redrive/", "http://localhost:8080/redrive"),
        ] {
            let file = format!("server.public_url = {written:?}");
            let config = parse(Profile::Serve, &file, []).unwrap();
            config.validate(Profile::Serve).unwrap();
            assert_eq!(config.server.public_base(), Some(base));
        }
    }
}

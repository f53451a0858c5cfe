//! The cookies that this server sets: that of the session, and that of a login in progress. Over TLS their names begin with
//! `__Host-`, so that browsers accept them only from this host and only over TLS.

use std::time::Duration;

use axum::http::{Extensions, HeaderMap, HeaderValue, header};

use super::Scheme;

/// Cookie of a session.
pub(crate) const SESSION: Cookie = Cookie { name: "redrive_session", secure_name: "__Host-redrive_session" };
/// Cookie of a login in progress with the identity provider.
pub(crate) const LOGIN: Cookie = Cookie { name: "redrive_login", secure_name: "__Host-redrive_login" };

/// Returns whether the browser connected over TLS, to this server or to a proxy in front of it.
pub(crate) fn is_secure(extensions: &Extensions) -> bool {
    extensions.get::<Scheme>() == Some(&Scheme::Https)
}

/// Returns the session cookie of a request.
pub(crate) fn session(headers: &HeaderMap, secure: bool) -> Option<&str> {
    SESSION.find(headers, secure)
}

/// A cookie, by its names.
pub(crate) struct Cookie {
    name: &'static str,
    /// Name over TLS.
    secure_name: &'static str,
}

impl Cookie {
    /// Returns the cookie of a request. Over TLS only the `__Host-` cookie counts, which no other host can set.
    pub(crate) fn find<'a>(&self, headers: &'a HeaderMap, secure: bool) -> Option<&'a str> {
        let named = |wanted: &str| {
            let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
            let mut cookies =
                lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
            cookies.find(|(name, _)| *name == wanted).map(|(_, value)| value)
        };
        named(self.secure_name).or_else(|| named(self.name).filter(|_| !secure))
    }

    /// Returns the header that sets the cookie. Scripts cannot read it, and other sites cannot send it with a change.
    pub(crate) fn begin(&self, value: &str, lifetime: Duration, secure: bool) -> Option<HeaderValue> {
        self.written(value, lifetime.as_secs(), secure)
    }

    /// Returns the header that deletes the cookie.
    pub(crate) fn end(&self, secure: bool) -> Option<HeaderValue> {
        self.written("", 0, secure)
    }

    fn written(&self, value: &str, seconds: u64, secure: bool) -> Option<HeaderValue> {
        let (name, secure) = if secure { (self.secure_name, "; Secure") } else { (self.name, "") };
        HeaderValue::from_str(&format!(
            "{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
        ))
        .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        assert_eq!(session(&headers, false), None);
        headers.append(header::COOKIE, HeaderValue::from_static("theme=dark; redrive_sessions=no"));
        assert_eq!(session(&headers, false), None);
        headers.append(header::COOKIE, HeaderValue::from_static("a=b; redrive_session=abc-_; c=d"));
        assert_eq!(session(&headers, false), Some("abc-_"));
    }

    #[test]
    fn cookie_without_host_prefix_is_ignored_over_tls() {
        let mut headers = HeaderMap::new();
        headers.append(header::COOKIE, HeaderValue::from_static("redrive_session=planted"));
        assert_eq!(session(&headers, true), None);
        headers.append(header::COOKIE, HeaderValue::from_static("__Host-redrive_session=own"));
        assert_eq!((session(&headers, true), session(&headers, false)), (Some("own"), Some("own")));
    }

    #[test]
    fn cookie_is_http_only_and_same_site() {
        let cookie = SESSION.begin("abc", Duration::from_secs(43_200), true).unwrap();
        assert_eq!(
            cookie,
            "__Host-redrive_session=abc; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"
        );
        let plain = SESSION.end(false).unwrap();
        assert_eq!(plain, "redrive_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax");
    }
}

//! The session cookie, the only cookie there is. Over TLS its name begins with `__Host-`, so that browsers accept
//! it only from this host and only over TLS.

use std::time::Duration;

use axum::http::{Extensions, HeaderMap, HeaderValue, header};

use super::Scheme;

const NAME: &str = "redrive_session";
const SECURE_NAME: &str = "__Host-redrive_session";

/// Returns whether the browser connected over TLS, to this server or to a proxy in front of it.
pub(crate) fn is_secure(extensions: &Extensions) -> bool {
    extensions.get::<Scheme>() == Some(&Scheme::Https)
}

/// Returns the session cookie of a request. Over TLS only the `__Host-` cookie counts, which no other host can
/// set.
pub(crate) fn session(headers: &HeaderMap, secure: bool) -> Option<&str> {
    let named = |wanted: &str| {
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut cookies =
            lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        cookies.find(|(name, _)| *name == wanted).map(|(_, value)| value)
    };
    named(SECURE_NAME).or_else(|| named(NAME).filter(|_| !secure))
}

/// Returns the header that sets the cookie. Scripts cannot read it, and other sites cannot send it with a change.
pub(crate) fn begin(value: &str, lifetime: Duration, secure: bool) -> Option<HeaderValue> {
    written(value, lifetime.as_secs(), secure)
}

/// Returns the header that deletes the cookie.
pub(crate) fn end(secure: bool) -> Option<HeaderValue> {
    written("", 0, secure)
}

fn written(value: &str, seconds: u64, secure: bool) -> Option<HeaderValue> {
    let (name, secure) = if secure { (SECURE_NAME, "; Secure") } else { (NAME, "") };
    HeaderValue::from_str(&format!(
        "{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
    ))
    .ok()
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
        let cookie = begin("abc", Duration::from_secs(43_200), true).unwrap();
        assert_eq!(
            cookie,
            "__Host-redrive_session=abc; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"
        );
        let plain = end(false).unwrap();
        assert_eq!(plain, "redrive_session=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax");
    }
}

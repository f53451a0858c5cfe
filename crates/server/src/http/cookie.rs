//! The one cookie there is: that of a session in a browser.

use axum::http::{HeaderMap, HeaderValue, header};

use crate::app::session::LASTS;

const NAME: &str = "redrive_session";

/// The session's cookie among a request's headers.
pub(crate) fn session(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    cookies.find(|(name, _)| *name == NAME).map(|(_, value)| value)
}

/// The header that gives a browser its cookie. No script can read it, no other site can have it sent with a change.
pub(crate) fn begin(value: &str, secure: bool) -> Option<HeaderValue> {
    written(value, LASTS.as_secs(), secure)
}

/// The header that takes it away.
pub(crate) fn end(secure: bool) -> Option<HeaderValue> {
    written("", 0, secure)
}

fn written(value: &str, seconds: u64, secure: bool) -> Option<HeaderValue> {
    let secure = if secure { "; Secure" } else { "" };
    HeaderValue::from_str(&format!(
        "{NAME}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
    ))
    .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let mut headers = HeaderMap::new();
        assert_eq!(session(&headers), None);
        headers.append(header::COOKIE, HeaderValue::from_static("theme=dark; redrive_sessions=no"));
        assert_eq!(session(&headers), None);
        headers.append(header::COOKIE, HeaderValue::from_static("a=b; redrive_session=abc-_; c=d"));
        assert_eq!(session(&headers), Some("abc-_"));
    }

    #[test]
    fn the_cookie_is_hidden_from_scripts_and_other_sites() {
        let cookie = begin("abc", true).unwrap();
        assert_eq!(cookie, "redrive_session=abc; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure");
        assert!(end(false).unwrap().to_str().unwrap().contains("Max-Age=0;"));
    }
}

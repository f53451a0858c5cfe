//! Sessions of people in a browser: the key that somebody came with, sealed into a cookie for half a day.
//!
//! Nothing is stored. Each request opens the cookie and looks the key up as if it had been sent, so a key that is
//! revoked, or used from where it may not be, ends its sessions too.

use std::{net::IpAddr, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use redrive_core::{Time, vault::Vault};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{App, Caller};

/// How long a session lasts.
pub const LASTS: Duration = Duration::from_secs(12 * 3600);
/// What the sealed key is good for.
const PURPOSE: &str = "redrive dashboard session";
/// Longer ones are not looked at.
const MOST_BYTES: usize = 1024;

/// Begins sessions, and knows whose they are.
pub struct Sessions(Vault);

impl Sessions {
    /// Sessions that are sealed with the master key, so that every node with the same key knows them.
    pub fn new(vault: Vault) -> Self {
        Self(vault)
    }

    /// What seals them, and other things that people carry around for us.
    pub(super) fn vault(&self) -> &Vault {
        &self.0
    }

    /// A cookie for somebody with this key.
    fn begin(&self, key: &str, now: Time) -> String {
        let ends = (now + LASTS).millis().to_be_bytes();
        let contents = Zeroizing::new([&ends[..], key.as_bytes()].concat());
        URL_SAFE_NO_PAD.encode(self.0.seal_for(PURPOSE, &contents))
    }

    /// The key in a cookie, and when the session ends; none if it is no cookie of ours, or over.
    fn key(&self, cookie: &str, now: Time) -> Option<(Zeroizing<String>, Time)> {
        let sealed = URL_SAFE_NO_PAD.decode(cookie.get(..cookie.len().min(MOST_BYTES))?).ok()?;
        let contents = self.0.open_for(PURPOSE, &sealed).ok()?;
        let (ends, key) = contents.split_first_chunk::<8>()?;
        let ends = Time::from_millis(i64::from_be_bytes(*ends));
        if now >= ends {
            return None;
        }
        std::str::from_utf8(key).ok().map(|key| (Zeroizing::new(key.to_owned()), ends))
    }
}

/// What a page of a session sends with every change, to show that it is such a page. Follows from the cookie, which
/// no script can read and no other site knows.
pub fn token(cookie: &str) -> String {
    let digest = Sha256::new().chain_update(b"redrive change token\0").chain_update(cookie).finalize();
    URL_SAFE_NO_PAD.encode(&digest[..])
}

/// Whether a token belongs to a cookie.
pub fn is_token_of(token_given: &str, cookie: &str) -> bool {
    token(cookie).as_bytes().ct_eq(token_given.as_bytes()).into()
}

impl App {
    /// Begins a session for whoever has this key, if it may be used now and from there.
    pub fn log_in(&self, key: &str, from: Option<IpAddr>) -> Option<(Arc<Caller>, String)> {
        let now = self.engine.clock().now();
        let caller = self.keys.caller(key, now, from)?;
        Some((caller, self.sessions.begin(key, now)))
    }

    /// Whose session this is and when it ends, if its key may still be used, and from there.
    pub fn in_session(&self, cookie: &str, from: Option<IpAddr>) -> Option<(Arc<Caller>, Time)> {
        let now = self.engine.clock().now();
        let (key, ends) = self.sessions.key(cookie, now)?;
        Some((self.keys.caller(&key, now, from)?, ends))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_known_until_it_is_over_and_nobody_can_make_one_up() {
        let sessions = Sessions::new(redrive_testkit::vault());
        let now = Time::from_secs(1_000);
        let cookie = sessions.begin("rdk_secret", now);
        let known = |cookie: &str, at| sessions.key(cookie, at).map(|(key, _)| key.to_string());
        assert_eq!(known(&cookie, now).as_deref(), Some("rdk_secret"));
        assert_eq!(known(&cookie, now + LASTS), None);
        assert!(!cookie.contains("secret"));
        for at in 0..cookie.len() {
            let mut forged = cookie.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(known(&String::from_utf8(forged).unwrap(), now), None);
        }
        assert_eq!(known("", now), None);
        assert_eq!(known(&"é".repeat(4_000), now), None);
    }

    #[test]
    fn a_token_belongs_to_one_session() {
        assert!(is_token_of(&token("a"), "a"));
        assert!(!is_token_of(&token("a"), "b") && !is_token_of("", "a"));
        assert_ne!(token("a"), "a");
    }
}

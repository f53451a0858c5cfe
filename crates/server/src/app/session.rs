//! Browser sessions. A cookie carries a sealed random id; the store has its hash, and the user or the hash of the key
//! that was used to log in. Logging out deletes the row, and revoking the key ends the session.
//!
//! A node caches a session for at most one second. If the store does not respond, the request fails with 503 and
//! the session is kept.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use redrive_core::{Time, security::vault::Vault};
use redrive_engine::clock;
use redrive_store::{BrowserSession, StoreError};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{
    Actor, App, AppError, Caller,
    audit::{AuditChange, AuditedAction},
    keys::hash_key,
};

/// Lifetime of a session.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions per key; a new one evicts the oldest.
pub const MAX_SESSIONS_PER_KEY: usize = 100;
/// Time for which a node caches a session.
const LOOKUP_TTL: Duration = Duration::from_secs(1);
/// Timeout for reading a session from the store.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of cached sessions per node.
const MAX_CACHED_SESSIONS: usize = 10_000;
/// Lifetime of a login offer: a key that waits for the user to confirm that it may replace the current session.
const OFFER_LIFETIME: Duration = Duration::from_secs(300);
/// Purpose under which cookies are sealed.
const COOKIE_PURPOSE: &str = "redrive browser session";
/// Purpose under which login offers are sealed.
const OFFER_PURPOSE: &str = "redrive login offer";
/// Maximum length of a cookie or offer; longer ones are rejected without decoding.
const MAX_SEALED_CHARACTERS: usize = 2048;

/// Live session and its caller.
#[derive(Clone, Debug)]
pub struct Session {
    /// The user, or the caller of the key that was used to log in.
    pub caller: Arc<Caller>,
    /// Stored session.
    pub stored: BrowserSession,
}

/// Seals cookies and caches live sessions.
pub struct Sessions {
    vault: Vault,
    /// Sessions by id, each with the monotonic time at which its read began.
    cached: Mutex<HashMap<[u8; 32], (BrowserSession, Duration)>>,
}

impl Sessions {
    /// Creates the cache. Cookies are sealed with the master key, so every node with the same key can open them.
    pub fn new(vault: Vault) -> Self {
        Self { vault, cached: Mutex::default() }
    }

    /// Returns the vault that seals cookies and the tokens of email links.
    pub(super) fn vault(&self) -> &Vault {
        &self.vault
    }

    /// Seals contents for a purpose, so that only this installation can open them, until `end`.
    pub(super) fn seal(&self, purpose: &'static str, contents: &[u8], end: Time) -> String {
        let contents = Zeroizing::new([&end.millis().to_be_bytes()[..], contents].concat());
        URL_SAFE_NO_PAD.encode(self.vault.seal_for(purpose, &contents))
    }

    /// Opens a sealed text. Returns `None` if it was not sealed here for this purpose or has expired.
    pub(super) fn open(&self, purpose: &'static str, text: &str, now: Time) -> Option<Zeroizing<Vec<u8>>> {
        let text = Some(text).filter(|text| text.len() <= MAX_SEALED_CHARACTERS)?;
        let contents = self.vault.open_for(purpose, &URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let (end, contents) = contents.split_first_chunk::<8>()?;
        (now < Time::from_millis(i64::from_be_bytes(*end))).then(|| Zeroizing::new(contents.to_vec()))
    }

    /// Returns the cookie of a session.
    pub(super) fn seal_cookie(&self, secret: &[u8; 32], end: Time) -> String {
        self.seal(COOKIE_PURPOSE, secret, end)
    }

    /// Returns the stored id of a cookie's session. A forged cookie has none, so it causes no read of the store.
    fn id(&self, cookie: &str, now: Time) -> Option<[u8; 32]> {
        self.open(COOKIE_PURPOSE, cookie, now).map(|secret| Sha256::digest(&*secret).into())
    }

    fn remembered(&self, id: &[u8; 32], now: Duration) -> Option<BrowserSession> {
        let cached = self.cached.lock();
        let (session, read_at) = cached.get(id)?;
        (now.saturating_sub(*read_at) < LOOKUP_TTL).then(|| session.clone())
    }

    fn remember(&self, session: &BrowserSession, read_at: Duration) {
        let mut cached = self.cached.lock();
        if cached.len() >= MAX_CACHED_SESSIONS {
            cached.retain(|_, (_, then)| read_at.saturating_sub(*then) < LOOKUP_TTL);
        }
        if cached.len() < MAX_CACHED_SESSIONS {
            cached.insert(session.id, (session.clone(), read_at));
        }
    }

    /// Returns for how long a session was not used on this node. `None` if the node does not remember a use.
    pub(super) fn unused_for(&self, id: &[u8; 32], now: Duration) -> Option<Duration> {
        self.cached.lock().get(id).map(|(_, read_at)| now.saturating_sub(*read_at))
    }

    pub(super) fn evict(&self, is_over: impl Fn(&BrowserSession) -> bool) {
        self.cached.lock().retain(|_, (session, _)| !is_over(session));
    }
}

/// Returns the CSRF token that dashboard pages send with every change. It is derived from the cookie, which
/// scripts cannot read and other sites do not know.
pub fn token(cookie: &str) -> String {
    let digest = Sha256::new().chain_update(b"redrive change token\0").chain_update(cookie).finalize();
    URL_SAFE_NO_PAD.encode(&digest[..])
}

/// Returns whether a CSRF token belongs to a cookie.
pub fn is_token_of(token_given: &str, cookie: &str) -> bool {
    token(cookie).as_bytes().ct_eq(token_given.as_bytes()).into()
}

/// Returns whether a login may replace a session without confirmation, because both give access to the same
/// tenant. Otherwise an attacker's link could log a user in to the attacker's account unnoticed.
pub fn may_replace_unasked(current: &Caller, next: &Caller) -> bool {
    let is_same_user = current.user.is_some() && current.user == next.user;
    current == next || is_same_user || current.session && next.session && current.role == next.role
}

impl App {
    /// Returns the caller of a key and the key's hash. Returns `None` if it may not be used now and from this address.
    pub fn holder(&self, key: &str, from: Option<IpAddr>) -> Option<(Arc<Caller>, [u8; 32])> {
        let hash = hash_key(key);
        Some((self.keys.caller_by_hash(&hash, self.engine.clock().now(), from)?, hash))
    }

    /// Starts a session for a key and returns its cookie.
    pub async fn begin_session(&self, key_hash: [u8; 32]) -> Result<String, AppError> {
        let (session, cookie) = self.new_session(key_hash, None);
        with_timeout(self.store().create_browser_session(session, MAX_SESSIONS_PER_KEY)).await?;
        Ok(cookie)
    }

    /// Returns the live session of a cookie, if its key may be used from this address. An error means that the store
    /// did not respond and the session may still be live.
    pub async fn session(&self, cookie: &str, from: Option<IpAddr>) -> Result<Option<Session>, AppError> {
        match self.sessions.id(cookie, self.engine.clock().now()) {
            Some(id) => self.session_by_id(id, from).await,
            None => Ok(None),
        }
    }

    /// Returns whether a session is still live and its key may be used from this address.
    pub async fn is_live(&self, session: &Session, from: Option<IpAddr>) -> Result<bool, AppError> {
        Ok(self.session_by_id(session.stored.id, from).await?.is_some())
    }

    async fn session_by_id(&self, id: [u8; 32], from: Option<IpAddr>) -> Result<Option<Session>, AppError> {
        let asked_at = clock::monotonic_now();
        let stored = match self.sessions.remembered(&id, asked_at) {
            Some(stored) => stored,
            None => {
                let Some(stored) = with_timeout(self.store().browser_session(id)).await? else {
                    return Ok(None);
                };
                self.sessions.remember(&stored, asked_at);
                stored
            }
        };
        let now = self.engine.clock().now();
        if now >= stored.expires_at {
            return Ok(None);
        }
        let caller = match &stored.user {
            Some(user) => self.user_caller(&stored, user),
            None => self.keys.caller_by_hash(&stored.key_hash, now, from),
        };
        Ok(caller.map(|caller| Session { caller, stored }))
    }

    /// Ends a session.
    pub async fn end_session(&self, session: &Session) -> Result<(), AppError> {
        let id = session.stored.id;
        with_timeout(self.store().delete_browser_session(id)).await?;
        self.sessions.evict(|cached| cached.id == id);
        Ok(())
    }

    /// Returns the live sessions of the same key or user as this one, newest first.
    pub async fn sessions_of_key(&self, session: &Session) -> Result<Vec<BrowserSession>, AppError> {
        let now = self.engine.clock().now();
        with_timeout(self.store().browser_sessions_of_key(session.stored.key_hash, now)).await
    }

    /// Ends all sessions of the same key or user as this one.
    pub async fn end_sessions_of_key(
        &self,
        session: &Session,
        from: Option<IpAddr>,
    ) -> Result<usize, AppError> {
        let actor = Actor { caller: session.caller.clone(), address: from };
        if let Some(user) = &session.stored.user {
            return self.end_sessions_of_user(&actor, &user.subject).await;
        }
        let tenant_id = session.caller.role.tenant_id();
        let object = session.caller.key.map(|key| key.to_string());
        let audited = AuditedAction { action: "api_key.end_sessions", tenant: tenant_id, object };
        let key_hash = session.stored.key_hash;
        let ended = self.with_audit(&actor, audited, async {
            let ended = with_timeout(self.store().delete_browser_sessions_of_key(key_hash)).await?;
            Ok((ended, AuditChange::default()))
        });
        let ended = ended.await?;
        self.sessions.evict(|cached| cached.key_hash == key_hash);
        Ok(ended)
    }

    /// Seals a key as a login offer, for the page that asks whether it may replace the current session. It expires
    /// after `OFFER_LIFETIME`.
    pub fn offer(&self, key: &str) -> String {
        self.sessions.seal(OFFER_PURPOSE, key.as_bytes(), self.engine.clock().now() + OFFER_LIFETIME)
    }

    /// Returns the key of a login offer. Returns `None` if it was not issued here or has expired.
    pub fn offered_key(&self, offer: &str) -> Option<Zeroizing<String>> {
        let key = self.sessions.open(OFFER_PURPOSE, offer, self.engine.clock().now())?;
        std::str::from_utf8(&key).ok().map(|key| Zeroizing::new(key.to_owned()))
    }
}

/// Waits for the store, with a timeout.
pub(super) async fn with_timeout<T>(
    response: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, AppError> {
    match tokio::time::timeout(LOOKUP_TIMEOUT, response).await {
        Ok(response) => Ok(response?),
        Err(_) => Err(StoreError::Unavailable("no response in time".into()).into()),
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::{KeyId, TenantId};

    use super::{super::auth::Role, *};

    #[test]
    fn sealed_text_opens_only_for_its_purpose_until_expiry_unforged() {
        let sessions = Sessions::new(redrive_testkit::vault());
        let now = Time::from_secs(1_000);
        let end = now + SESSION_LIFETIME;
        let cookie = sessions.seal(COOKIE_PURPOSE, b"secret", end);
        assert!(sessions.id(&cookie, now).is_some() && sessions.id(&cookie, end).is_none());
        assert!(sessions.open(OFFER_PURPOSE, &cookie, now).is_none());
        assert!(!cookie.contains("secret"));
        for at in 0..cookie.len() {
            let mut forged = cookie.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(sessions.id(&String::from_utf8(forged).unwrap(), now), None);
        }
        assert_eq!(sessions.id("", now), None);
        assert_eq!(sessions.id(&"é".repeat(4_000), now), None);
    }

    #[test]
    fn cached_session_expires_after_a_second() {
        let sessions = Sessions::new(redrive_testkit::vault());
        let session = BrowserSession {
            id: [1; 32],
            key_hash: [2; 32],
            user: None,
            created_at: Time::default(),
            expires_at: Time::from_secs(9),
        };
        let read_at = Duration::from_secs(50);
        sessions.remember(&session, read_at);
        assert!(sessions.remembered(&[1; 32], read_at + Duration::from_millis(999)).is_some());
        assert!(sessions.remembered(&[1; 32], read_at + LOOKUP_TTL).is_none());
        let later = read_at + Duration::from_secs(70);
        assert_eq!(sessions.unused_for(&[1; 32], later), Some(Duration::from_secs(70)));
        assert_eq!(sessions.unused_for(&[2; 32], later), None);
        sessions.evict(|cached| cached.key_hash == [2; 32]);
        assert!(sessions.remembered(&[1; 32], read_at).is_none());
    }

    #[test]
    fn csrf_token_belongs_to_one_session() {
        assert!(is_token_of(&token("a"), "a"));
        assert!(!is_token_of(&token("a"), "b") && !is_token_of("", "a"));
        assert_ne!(token("a"), "a");
    }

    #[test]
    fn login_replaces_session_unasked_only_for_same_access() {
        let caller = |number: u8, tenant: &str, session| Caller {
            key: Some(KeyId::from_bytes([number; 16])),
            role: Role::Tenant { tenant_id: TenantId::parse(tenant).unwrap(), scopes: 6 },
            session,
            ..Caller::unlimited("n")
        };
        let (own, other) = (caller(1, "acme", true), caller(2, "acme", true));
        assert!(may_replace_unasked(&own, &own) && may_replace_unasked(&own, &other));
        assert!(!may_replace_unasked(&own, &caller(3, "globex", true)));
        assert!(!may_replace_unasked(&own, &caller(4, "acme", false)));
        assert!(!may_replace_unasked(&caller(5, "acme", false), &caller(6, "acme", false)));
        assert!(!may_replace_unasked(&Caller::configured_admin(), &own));
    }
}

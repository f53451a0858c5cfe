//! Browser sessions.

use redrive_core::{Time, tenancy::user_role::UserRole};

/// A browser session, started with a key or by a user of the identity provider. Only hashes of the cookie and the key
/// are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowserSession {
    /// SHA-256 of the cookie's value.
    pub id: [u8; 32],
    /// Hash of the holder: SHA-256 of the key (an API key, or the configured admin key), or of the user's issuer and
    /// subject.
    pub key_hash: [u8; 32],
    /// The user; `None` for the session of a key.
    pub user: Option<SessionUser>,
    /// Start time.
    pub created_at: Time,
    /// Time from which it is invalid.
    pub expires_at: Time,
}

/// Position of a session in the listing, which begins with the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionCursor {
    /// Start time of the session.
    pub created_at: Time,
    /// Id of the session.
    pub id: [u8; 32],
}

impl BrowserSession {
    /// Returns the position of the session in the listing.
    pub fn cursor(&self) -> SessionCursor {
        SessionCursor { created_at: self.created_at, id: self.id }
    }
}

/// The user of a session, as the identity provider described it at the login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionUser {
    /// URL of the identity provider.
    pub issuer: String,
    /// Identifier of the user at the provider, which never changes.
    pub subject: String,
    /// Name of the user.
    pub name: String,
    /// Role of the user.
    pub role: UserRole,
    /// SHA-256 of the login's state. A login starts at most one session.
    pub login_hash: [u8; 32],
}

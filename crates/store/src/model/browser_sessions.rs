//! Sessions of browsers.

use redrive_core::Time;

/// A session that a person began in a browser with a key. Neither the cookie nor the key is stored, only their hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowserSession {
    /// The SHA-256 of what the cookie carries.
    pub id: [u8; 32],
    /// The SHA-256 of the key: of an API key, or of the admin key that was configured.
    pub key_hash: [u8; 32],
    /// When it began.
    pub created_at: Time,
    /// From when on it is of no use.
    pub expires_at: Time,
}

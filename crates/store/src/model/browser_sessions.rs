//! Browser sessions.

use redrive_core::Time;

/// A browser session started with a key. Only the hashes of the cookie and the key are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowserSession {
    /// SHA-256 of the cookie's value.
    pub id: [u8; 32],
    /// SHA-256 of the key: an API key, or the configured admin key.
    pub key_hash: [u8; 32],
    /// Start time.
    pub created_at: Time,
    /// Time from which it is invalid.
    pub expires_at: Time,
}

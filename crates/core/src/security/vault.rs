//! Encryption of secrets at rest. Sealed data can be opened only with the master key.
//!
//! Each item is encrypted with its own data key, and that key with the master key (envelope encryption), so a new
//! master key requires rewrapping only the small data keys. Sealed data is bound to its tenant and webhook
//! (associated data): moved to another webhook or tenant, it cannot be opened.

use std::{collections::BTreeMap, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD_PAD_INDIFFERENT};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{field_error::FieldError, id::WebhookId, tenancy::TenantId};

/// First byte of sealed data in this format.
const VERSION: u8 = 1;
const NONCE: usize = 24;
const TAG: usize = 16;
const KEY: usize = 32;
const WRAPPED: usize = KEY + TAG;
/// Offsets within sealed data: version, master key id, data key nonce, wrapped data key, nonce, contents.
const AT_KEY_NONCE: usize = 1 + 8;
const AT_WRAPPED: usize = AT_KEY_NONCE + NONCE;
const AT_NONCE: usize = AT_WRAPPED + WRAPPED;
const AT_CONTENTS: usize = AT_NONCE + NONCE;

/// A master key: 32 random bytes. Wiped from memory when dropped.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; KEY]>);

impl MasterKey {
    /// Parses a key: 32 bytes in base64, or 64 hexadecimal digits. Surrounding whitespace is ignored.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        let text = text.trim();
        let bytes = match text.len() {
            64 => from_hex(text),
            _ => STANDARD_PAD_INDIFFERENT.decode(text).ok(),
        };
        let bytes = bytes.map(Zeroizing::new);
        let key = bytes.and_then(|bytes| <[u8; KEY]>::try_from(&bytes[..]).ok());
        // The message omits the text: it may be a real key with a typo.
        key.map(|key| Self(Zeroizing::new(key))).ok_or_else(|| {
            FieldError::new(
                "master key",
                "must be 32 random bytes in base64; create one with `redrive secrets new-key`",
            )
        })
    }

    /// Creates a key from raw bytes.
    pub fn from_bytes(bytes: [u8; KEY]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the key in plaintext, to be written down once.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(*self.0))
    }

    /// Returns the id of the key, which reveals nothing about the key.
    pub fn id(&self) -> MasterKeyId {
        let digest = Sha256::new().chain_update(b"redrive master key\0").chain_update(*self.0).finalize();
        let mut id = [0; 8];
        id.copy_from_slice(&digest[..8]);
        MasterKeyId(id)
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.0).into())
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.id())
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).map(|digit| digit as u8);
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

/// Id of a master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterKeyId([u8; 8]);

impl fmt::Display for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reason why sealed data cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsealError {
    /// It was sealed with a master key that is not configured.
    #[error(
        "sealed with master key {0}, which is not configured; \
         add its file to secrets.additional_master_key_files"
    )]
    UnknownKey(MasterKeyId),
    /// It was modified or truncated, or belongs to another tenant, webhook or purpose.
    #[error("sealed data was modified, or belongs to another webhook")]
    Broken,
}

/// Seals and opens data. Cheap to clone.
#[derive(Clone)]
pub struct Vault(Arc<Inner>);

struct Inner {
    current: MasterKeyId,
    keys: BTreeMap<MasterKeyId, MasterKey>,
    random: fn() -> [u8; 32],
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vault({})", self.0.current)
    }
}

impl Vault {
    /// Creates a vault that seals with `current` and opens what any of the given keys sealed. `random` must be
    /// cryptographically secure.
    pub fn new(current: &MasterKey, old: &[MasterKey], random: fn() -> [u8; 32]) -> Self {
        let keys = old.iter().chain([current]).map(|key| (key.id(), key.clone())).collect();
        Self(Arc::new(Inner { current: current.id(), keys, random }))
    }

    /// Returns the id of the key that new data is sealed with.
    pub fn current(&self) -> MasterKeyId {
        self.0.current
    }

    /// Returns whether data sealed with this key can be opened.
    pub fn can_unseal(&self, key: MasterKeyId) -> bool {
        self.0.keys.contains_key(&key)
    }

    /// Seals data of a webhook.
    pub fn seal(&self, tenant_id: &TenantId, webhook_id: WebhookId, contents: &[u8]) -> Vec<u8> {
        self.seal_at(&associated_data(tenant_id, webhook_id), contents)
    }

    /// Seals data for one purpose; it cannot be opened for any other.
    pub fn seal_for(&self, purpose: &'static str, contents: &[u8]) -> Vec<u8> {
        self.seal_at(purpose.as_bytes(), contents)
    }

    fn seal_at(&self, associated_data: &[u8], contents: &[u8]) -> Vec<u8> {
        let own = MasterKey(Zeroizing::new((self.0.random)()));
        let mut sealed = Vec::with_capacity(AT_CONTENTS + contents.len() + TAG);
        sealed.push(VERSION);
        self.wrap(&own, associated_data, &mut sealed);
        let nonce = self.nonce();
        sealed.extend_from_slice(&nonce);
        sealed.extend(encrypt(&own, &nonce, contents, associated_data));
        sealed
    }

    /// Opens data that was sealed for this webhook.
    pub fn open(
        &self,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, UnsealError> {
        self.open_at(&associated_data(tenant_id, webhook_id), sealed)
    }

    /// Opens data that was sealed for this purpose.
    pub fn open_for(&self, purpose: &'static str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, UnsealError> {
        self.open_at(purpose.as_bytes(), sealed)
    }

    fn open_at(&self, associated_data: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, UnsealError> {
        let own = self.unwrap(sealed, associated_data)?;
        decrypt(&own, &sealed[AT_NONCE..AT_CONTENTS], &sealed[AT_CONTENTS..], associated_data)
    }

    /// Rewraps the data key of sealed data with the current master key. Returns `None` if that key already wraps it.
    pub fn rewrap(
        &self,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        sealed: &[u8],
    ) -> Result<Option<Vec<u8>>, UnsealError> {
        if sealing_key_id(sealed) == Some(self.0.current) {
            return Ok(None);
        }
        let position = associated_data(tenant_id, webhook_id);
        let own = self.unwrap(sealed, &position)?;
        let mut rewrapped = Vec::with_capacity(sealed.len());
        rewrapped.push(VERSION);
        self.wrap(&own, &position, &mut rewrapped);
        rewrapped.extend_from_slice(&sealed[AT_NONCE..]);
        Ok(Some(rewrapped))
    }

    fn wrap(&self, own: &MasterKey, associated_data: &[u8], into: &mut Vec<u8>) {
        let master = &self.0.keys[&self.0.current];
        let nonce = self.nonce();
        into.extend_from_slice(&self.0.current.0);
        into.extend_from_slice(&nonce);
        into.extend(encrypt(master, &nonce, &*own.0, associated_data));
    }

    fn unwrap(&self, sealed: &[u8], associated_data: &[u8]) -> Result<MasterKey, UnsealError> {
        let id = sealing_key_id(sealed).ok_or(UnsealError::Broken)?;
        let master = self.0.keys.get(&id).ok_or(UnsealError::UnknownKey(id))?;
        let own = decrypt(
            master,
            &sealed[AT_KEY_NONCE..AT_WRAPPED],
            &sealed[AT_WRAPPED..AT_NONCE],
            associated_data,
        )?;
        let own = <[u8; KEY]>::try_from(&own[..]).map_err(|_| UnsealError::Broken)?;
        Ok(MasterKey(Zeroizing::new(own)))
    }

    fn nonce(&self) -> [u8; NONCE] {
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&(self.0.random)()[..NONCE]);
        nonce
    }
}

/// Returns the id of the master key that data was sealed with, or `None` if it is not sealed data.
pub fn sealing_key_id(sealed: &[u8]) -> Option<MasterKeyId> {
    if sealed.len() < AT_CONTENTS + TAG {
        return None;
    }
    sealing_key_id_from_prefix(&sealed[..KEY_ID_PREFIX_BYTES])
}

/// Number of leading bytes that identify the master key of sealed data.
pub const KEY_ID_PREFIX_BYTES: usize = AT_KEY_NONCE;

/// Returns the id of the master key, given only the first bytes of sealed data.
pub fn sealing_key_id_from_prefix(head: &[u8]) -> Option<MasterKeyId> {
    match head.split_first() {
        Some((&VERSION, id)) => id.try_into().ok().map(MasterKeyId),
        _ => None,
    }
}

/// Returns the associated data that sealed data is bound to. Names contain no NUL.
fn associated_data(tenant_id: &TenantId, webhook_id: WebhookId) -> Vec<u8> {
    [b"redrive webhook\0", tenant_id.as_str().as_bytes(), b"\0", webhook_id.as_bytes()].concat()
}

fn encrypt(key: &MasterKey, nonce: &[u8; NONCE], contents: &[u8], associated_data: &[u8]) -> Vec<u8> {
    let sealed = key.cipher().encrypt(&XNonce::from(*nonce), Payload { msg: contents, aad: associated_data });
    sealed.expect("data in memory is within the size limit of the cipher")
}

fn decrypt(
    key: &MasterKey,
    nonce: &[u8],
    sealed: &[u8],
    associated_data: &[u8],
) -> Result<Zeroizing<Vec<u8>>, UnsealError> {
    let nonce = <[u8; NONCE]>::try_from(nonce).map_err(|_| UnsealError::Broken)?;
    let opened = key.cipher().decrypt(&XNonce::from(nonce), Payload { msg: sealed, aad: associated_data });
    opened.map(Zeroizing::new).map_err(|_| UnsealError::Broken)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use proptest::prelude::*;

    use super::*;
    use crate::time::Time;

    fn random() -> [u8; 32] {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Sha256::digest(NEXT.fetch_add(1, Relaxed).to_be_bytes()).into()
    }

    fn key(n: u8) -> MasterKey {
        MasterKey::from_bytes([n; 32])
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn webhook(n: u8) -> WebhookId {
        WebhookId::new(Time::default(), &[n; 10])
    }

    #[test]
    fn keys_parse_from_base64_and_hex_and_are_redacted() {
        let key = key(0xab);
        assert_eq!(MasterKey::parse(&format!(" {}\n", *key.reveal())).unwrap().id(), key.id());
        assert_eq!(MasterKey::parse(&"ab".repeat(32)).unwrap().id(), key.id());
        for bad in ["", "short", &"zz".repeat(32), &"ab".repeat(31)] {
            let error = MasterKey::parse(bad).unwrap_err().to_string();
            assert!(error.contains("redrive secrets new-key") && (bad.is_empty() || !error.contains(bad)));
        }
        assert_eq!(format!("{key:?}"), format!("MasterKey({})", key.id()));
    }

    #[test]
    fn old_master_key_is_needed_until_rewrap() {
        let (acme, webhook) = (tenant("acme"), webhook(1));
        let sealed = Vault::new(&key(1), &[], random).seal(&acme, webhook, b"secret");
        let new_alone = Vault::new(&key(2), &[], random);
        assert_eq!(
            new_alone.open(&acme, webhook, &sealed).unwrap_err(),
            UnsealError::UnknownKey(key(1).id())
        );
        let both = Vault::new(&key(2), &[key(1)], random);
        assert_eq!(&both.open(&acme, webhook, &sealed).unwrap()[..], b"secret");
        let rewrapped = both.rewrap(&acme, webhook, &sealed).unwrap().unwrap();
        assert_eq!(sealing_key_id(&rewrapped), Some(key(2).id()));
        assert_eq!(&new_alone.open(&acme, webhook, &rewrapped).unwrap()[..], b"secret");
        assert_eq!(both.rewrap(&acme, webhook, &rewrapped).unwrap(), None);
        assert_eq!(new_alone.rewrap(&acme, webhook, &sealed), Err(UnsealError::UnknownKey(key(1).id())));
    }

    #[test]
    fn sealing_twice_yields_different_bytes() {
        let vault = Vault::new(&key(1), &[], random);
        let seal = || vault.seal(&tenant("acme"), webhook(1), b"secret");
        assert_ne!(seal(), seal());
    }

    proptest! {
        #[test]
        fn sealed_data_opens_only_for_its_webhook_and_tenant(contents: Vec<u8>, a in 0u8..4, b in 0u8..4) {
            let vault = Vault::new(&key(1), &[], random);
            let sealed = vault.seal(&tenant("acme"), webhook(a), &contents);
            let opened = vault.open(&tenant("acme"), webhook(b), &sealed);
            prop_assert_eq!(opened.is_ok_and(|opened| *opened == contents), a == b);
            prop_assert_eq!(vault.open(&tenant("other"), webhook(a), &sealed), Err(UnsealError::Broken));
            if contents.len() > 4 {
                prop_assert!(!sealed.windows(contents.len()).any(|part| part == contents));
            }
        }

        #[test]
        fn modified_sealed_data_does_not_open(at: prop::sample::Index, flip in 1u8..) {
            let vault = Vault::new(&key(1), &[], random);
            let mut sealed = vault.seal(&tenant("acme"), webhook(1), b"secret");
            let at = at.index(sealed.len());
            sealed[at] ^= flip;
            prop_assert!(vault.open(&tenant("acme"), webhook(1), &sealed).is_err());
            prop_assert!(vault.open(&tenant("acme"), webhook(1), &sealed[..at]).is_err());
        }

        #[test]
        fn arbitrary_bytes_do_not_open(sealed: Vec<u8>) {
            let vault = Vault::new(&key(1), &[], random);
            prop_assert!(vault.open(&tenant("acme"), webhook(1), &sealed).is_err());
            prop_assert!(vault.rewrap(&tenant("acme"), webhook(1), &sealed).is_err());
        }
    }
}

//! Secrets at rest: what is stored of them is sealed, and only whoever has the master key can open it.
//!
//! Each thing is sealed with a key of its own, and that key with the master key (an envelope). So a new master
//! key means sealing small keys anew and nothing else. What is sealed is bound to its place: moved to another
//! webhook or tenant, it does not open.

use std::{collections::BTreeMap, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD_PAD_INDIFFERENT};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{field_error::Invalid, id::WebhookId, tenancy::TenantId};

/// The first byte of whatever is sealed in this way.
const VERSION: u8 = 1;
const NONCE: usize = 24;
const TAG: usize = 16;
const KEY: usize = 32;
const WRAPPED: usize = KEY + TAG;
/// Where the parts of something sealed begin: version, master key's id, the key's nonce, the key, nonce, contents.
const AT_KEY_NONCE: usize = 1 + 8;
const AT_WRAPPED: usize = AT_KEY_NONCE + NONCE;
const AT_NONCE: usize = AT_WRAPPED + WRAPPED;
const AT_CONTENTS: usize = AT_NONCE + NONCE;

/// A master key: 32 bytes that nobody can guess. Wiped from memory when dropped.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; KEY]>);

impl MasterKey {
    /// Reads a key: 32 bytes in base64, or 64 hexadecimal digits. Space around it does not matter.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let text = text.trim();
        let bytes = match text.len() {
            64 => from_hex(text),
            _ => STANDARD_PAD_INDIFFERENT.decode(text).ok(),
        };
        let bytes = bytes.map(Zeroizing::new);
        let key = bytes.and_then(|bytes| <[u8; KEY]>::try_from(&bytes[..]).ok());
        // The text itself stays out of the message: it may be a real key with a slip in it.
        key.map(|key| Self(Zeroizing::new(key))).ok_or_else(|| {
            Invalid::new(
                "master key",
                "must be 32 random bytes in base64; make one with `redrive secrets new-key`",
            )
        })
    }

    /// The key that consists of these bytes.
    pub fn from_bytes(bytes: [u8; KEY]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The key in clear, for the one time that it is written down.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(*self.0))
    }

    /// What it is called by: tells nothing about it.
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

/// What a master key is called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterKeyId([u8; 8]);

impl fmt::Display for MasterKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Why something sealed does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The master key is another one.
    #[error(
        "it is sealed with the master key {0}, which is not configured; \
         name that key in secrets.other_master_key_files"
    )]
    UnknownKey(MasterKeyId),
    /// It was changed, is not whole, or belongs to something else.
    #[error("what is sealed was changed, or belongs to another webhook")]
    Broken,
}

/// Seals and opens. Cheap to clone.
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
    /// A vault that seals with `current` and opens what any of these has sealed. `random` must be fit for keys.
    pub fn new(current: &MasterKey, old: &[MasterKey], random: fn() -> [u8; 32]) -> Self {
        let keys = old.iter().chain([current]).map(|key| (key.id(), key.clone())).collect();
        Self(Arc::new(Inner { current: current.id(), keys, random }))
    }

    /// The key that new things are sealed with.
    pub fn current(&self) -> MasterKeyId {
        self.0.current
    }

    /// Whether it can open what this key has sealed.
    pub fn knows(&self, key: MasterKeyId) -> bool {
        self.0.keys.contains_key(&key)
    }

    /// Seals something of a webhook.
    pub fn seal(&self, tenant: &TenantId, webhook: WebhookId, contents: &[u8]) -> Vec<u8> {
        self.seal_at(&place(tenant, webhook), contents)
    }

    /// Seals something that serves this purpose alone, and opens for no other.
    pub fn seal_for(&self, purpose: &'static str, contents: &[u8]) -> Vec<u8> {
        self.seal_at(purpose.as_bytes(), contents)
    }

    fn seal_at(&self, place: &[u8], contents: &[u8]) -> Vec<u8> {
        let own = MasterKey(Zeroizing::new((self.0.random)()));
        let mut sealed = Vec::with_capacity(AT_CONTENTS + contents.len() + TAG);
        sealed.push(VERSION);
        self.wrap(&own, place, &mut sealed);
        let nonce = self.nonce();
        sealed.extend_from_slice(&nonce);
        sealed.extend(encrypt(&own, &nonce, contents, place));
        sealed
    }

    /// Opens what was sealed for this webhook.
    pub fn open(
        &self,
        tenant: &TenantId,
        webhook: WebhookId,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Closed> {
        self.open_at(&place(tenant, webhook), sealed)
    }

    /// Opens what was sealed for this purpose.
    pub fn open_for(&self, purpose: &'static str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Closed> {
        self.open_at(purpose.as_bytes(), sealed)
    }

    fn open_at(&self, place: &[u8], sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Closed> {
        let own = self.unwrap(sealed, place)?;
        decrypt(&own, &sealed[AT_NONCE..AT_CONTENTS], &sealed[AT_CONTENTS..], place)
    }

    /// Seals the key of something sealed with the current master key. None: it is already.
    pub fn rewrap(
        &self,
        tenant: &TenantId,
        webhook: WebhookId,
        sealed: &[u8],
    ) -> Result<Option<Vec<u8>>, Closed> {
        if key_of(sealed) == Some(self.0.current) {
            return Ok(None);
        }
        let place = place(tenant, webhook);
        let own = self.unwrap(sealed, &place)?;
        let mut anew = Vec::with_capacity(sealed.len());
        anew.push(VERSION);
        self.wrap(&own, &place, &mut anew);
        anew.extend_from_slice(&sealed[AT_NONCE..]);
        Ok(Some(anew))
    }

    fn wrap(&self, own: &MasterKey, place: &[u8], into: &mut Vec<u8>) {
        let master = &self.0.keys[&self.0.current];
        let nonce = self.nonce();
        into.extend_from_slice(&self.0.current.0);
        into.extend_from_slice(&nonce);
        into.extend(encrypt(master, &nonce, &*own.0, place));
    }

    fn unwrap(&self, sealed: &[u8], place: &[u8]) -> Result<MasterKey, Closed> {
        let id = key_of(sealed).ok_or(Closed::Broken)?;
        let master = self.0.keys.get(&id).ok_or(Closed::UnknownKey(id))?;
        let own = decrypt(master, &sealed[AT_KEY_NONCE..AT_WRAPPED], &sealed[AT_WRAPPED..AT_NONCE], place)?;
        let own = <[u8; KEY]>::try_from(&own[..]).map_err(|_| Closed::Broken)?;
        Ok(MasterKey(Zeroizing::new(own)))
    }

    fn nonce(&self) -> [u8; NONCE] {
        let mut nonce = [0; NONCE];
        nonce.copy_from_slice(&(self.0.random)()[..NONCE]);
        nonce
    }
}

/// The master key that something was sealed with; none if it is no such thing.
pub fn key_of(sealed: &[u8]) -> Option<MasterKeyId> {
    if sealed.len() < AT_CONTENTS + TAG {
        return None;
    }
    key_of_head(&sealed[..HEAD])
}

/// How many bytes tell which master key something was sealed with.
pub const HEAD: usize = AT_KEY_NONCE;

/// The same by the first bytes alone.
pub fn key_of_head(head: &[u8]) -> Option<MasterKeyId> {
    match head.split_first() {
        Some((&VERSION, id)) => id.try_into().ok().map(MasterKeyId),
        _ => None,
    }
}

/// What sealed things are bound to. Names have no NUL.
fn place(tenant: &TenantId, webhook: WebhookId) -> Vec<u8> {
    [b"redrive webhook\0", tenant.as_str().as_bytes(), b"\0", webhook.as_bytes()].concat()
}

fn encrypt(key: &MasterKey, nonce: &[u8; NONCE], contents: &[u8], place: &[u8]) -> Vec<u8> {
    let sealed = key.cipher().encrypt(&XNonce::from(*nonce), Payload { msg: contents, aad: place });
    sealed.expect("what fits in memory can be sealed")
}

fn decrypt(key: &MasterKey, nonce: &[u8], sealed: &[u8], place: &[u8]) -> Result<Zeroizing<Vec<u8>>, Closed> {
    let nonce = <[u8; NONCE]>::try_from(nonce).map_err(|_| Closed::Broken)?;
    let opened = key.cipher().decrypt(&XNonce::from(nonce), Payload { msg: sealed, aad: place });
    opened.map(Zeroizing::new).map_err(|_| Closed::Broken)
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
    fn keys_are_read_in_both_ways_and_never_shown() {
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
    fn a_new_master_key_needs_the_old_one_until_all_is_sealed_anew() {
        let (acme, hook) = (tenant("acme"), webhook(1));
        let sealed = Vault::new(&key(1), &[], random).seal(&acme, hook, b"secret");
        let new_alone = Vault::new(&key(2), &[], random);
        assert_eq!(new_alone.open(&acme, hook, &sealed).unwrap_err(), Closed::UnknownKey(key(1).id()));
        let both = Vault::new(&key(2), &[key(1)], random);
        assert_eq!(&both.open(&acme, hook, &sealed).unwrap()[..], b"secret");
        let anew = both.rewrap(&acme, hook, &sealed).unwrap().unwrap();
        assert_eq!(key_of(&anew), Some(key(2).id()));
        assert_eq!(&new_alone.open(&acme, hook, &anew).unwrap()[..], b"secret");
        assert_eq!(both.rewrap(&acme, hook, &anew).unwrap(), None);
        assert_eq!(new_alone.rewrap(&acme, hook, &sealed), Err(Closed::UnknownKey(key(1).id())));
    }

    #[test]
    fn the_same_secret_never_looks_the_same() {
        let vault = Vault::new(&key(1), &[], random);
        let seal = || vault.seal(&tenant("acme"), webhook(1), b"secret");
        assert_ne!(seal(), seal());
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_in_its_place_alone(contents: Vec<u8>, a in 0u8..4, b in 0u8..4) {
            let vault = Vault::new(&key(1), &[], random);
            let sealed = vault.seal(&tenant("acme"), webhook(a), &contents);
            let opened = vault.open(&tenant("acme"), webhook(b), &sealed);
            prop_assert_eq!(opened.is_ok_and(|opened| *opened == contents), a == b);
            prop_assert_eq!(vault.open(&tenant("other"), webhook(a), &sealed), Err(Closed::Broken));
            if contents.len() > 4 {
                prop_assert!(!sealed.windows(contents.len()).any(|part| part == contents));
            }
        }

        #[test]
        fn nothing_that_was_changed_opens(at: prop::sample::Index, flip in 1u8..) {
            let vault = Vault::new(&key(1), &[], random);
            let mut sealed = vault.seal(&tenant("acme"), webhook(1), b"secret");
            let at = at.index(sealed.len());
            sealed[at] ^= flip;
            prop_assert!(vault.open(&tenant("acme"), webhook(1), &sealed).is_err());
            prop_assert!(vault.open(&tenant("acme"), webhook(1), &sealed[..at]).is_err());
        }

        #[test]
        fn garbage_does_not_open(sealed: Vec<u8>) {
            let vault = Vault::new(&key(1), &[], random);
            prop_assert!(vault.open(&tenant("acme"), webhook(1), &sealed).is_err());
            prop_assert!(vault.rewrap(&tenant("acme"), webhook(1), &sealed).is_err());
        }
    }
}

//! Cache of valid API keys, by hash. A revoked key stops working on this node before its revocation is
//! acknowledged, and on other nodes within about a second.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use ipnet::IpNet;
use parking_lot::RwLock;
use redrive_core::{KeyId, TenantId, Time, tenancy::api_key::is_usable};
use redrive_engine::{Service, ServiceKind, clock};
use redrive_store::{ApiKey, CreationKey, CreationResult, NewObject, Store, StoreError};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    App,
    auth::{Caller, Capability, Role, Scope},
};

/// Interval at which the keys of a shared store are reloaded, in case a change notification was lost.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum milliseconds between two recorded uses of a key.
const USE_RESOLUTION_MS: i64 = 1_000;
/// Interval at which key uses are saved to the store.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum difference to the stored last use before a newer use is saved.
const MIN_USE_ADVANCE: Duration = Duration::from_secs(60);
/// Time for which ended sessions are kept, and the number of rows pruned per step.
const SESSION_RETENTION: Duration = Duration::from_secs(24 * 3600);
const PRUNE_BATCH_SIZE: usize = 500;
/// Delay before keys are reloaded after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Returns the SHA-256 of a key. The key itself is never stored.
pub fn hash_key(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Generates an API key with 256 random bits.
pub fn new_key() -> String {
    format!("rdk_{}", clock::secret_hex())
}

/// Generates a session key with 256 random bits and its own prefix, so that it can be recognized as a session.
fn new_session() -> String {
    format!("rdp_{}", clock::secret_hex())
}

/// Key that is not revoked; it may have expired.
struct ActiveKey {
    caller: Arc<Caller>,
    session: bool,
    networks: Vec<IpNet>,
    expires_at: Option<Time>,
    /// Time of the last use in milliseconds, and the last use that is saved in the store.
    used: AtomicI64,
    saved_use: AtomicI64,
}

impl ActiveKey {
    fn new(key: &ApiKey) -> Self {
        let used = key.last_used_at.map_or(0, Time::millis);
        Self {
            caller: Arc::new(Caller::from_key(key)),
            session: key.session,
            networks: key.networks.clone(),
            expires_at: key.expires_at,
            used: AtomicI64::new(used),
            saved_use: AtomicI64::new(used),
        }
    }

    /// Returns whether the key may be used now and from this address.
    fn is_usable(&self, now: Time, from: Option<IpAddr>) -> bool {
        is_usable(self.expires_at, &self.networks, now, from)
    }
}

/// Properties of a key to create.
#[derive(Clone, Debug, Default)]
pub struct NewKey {
    /// Tenant that the key belongs to; `None` for an admin key.
    pub tenant_id: Option<TenantId>,
    /// Purpose of the key.
    pub name: String,
    /// Scopes of the key.
    pub scopes: Vec<Scope>,
    /// Capabilities, if the key is a session.
    pub capabilities: Vec<Capability>,
    /// Whether the key is a portal session: short-lived, and not listed among the keys.
    pub session: bool,
    /// Networks from which the key may be used; any if empty.
    pub networks: Vec<IpNet>,
    /// Expiration time.
    pub expires_at: Option<Time>,
}

/// Result of creating a key.
pub enum KeyCreation {
    /// The key, and its secret.
    Created(Box<ApiKey>, String),
    /// The tenant does not exist.
    NoTenant,
    /// The idempotency key was used before.
    KeyUsed,
}

/// Cache of the valid keys.
pub struct KeyCache {
    // Keyed by hashes of 256 random bits, so the time of a lookup reveals nothing about any key.
    live: RwLock<HashMap<[u8; 32], ActiveKey>>,
    admin: Option<([u8; 32], Arc<Caller>)>,
    /// Held while keys are read from or changed in the store, so that a reload never overwrites a newer change.
    changing: tokio::sync::Mutex<()>,
}

impl KeyCache {
    /// Loads the live keys from the store; `admin` is the admin key from the configuration.
    pub async fn load(store: &dyn Store, admin: Option<&str>) -> Result<Self, StoreError> {
        let keys = Self {
            live: RwLock::default(),
            admin: admin.map(|key| (hash_key(key), Arc::new(Caller::configured_admin()))),
            changing: tokio::sync::Mutex::default(),
        };
        keys.reload(store).await?;
        Ok(keys)
    }

    /// Reloads the live keys from the store.
    pub async fn reload(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _changing = self.changing.lock().await;
        let keys = store.live_keys().await?;
        let fresh: HashMap<_, _> = keys.iter().map(|key| (key.hash, ActiveKey::new(key))).collect();
        let mut live = self.live.write();
        for (hash, old) in live.iter() {
            if let Some(new) = fresh.get(hash) {
                new.used.fetch_max(old.used.load(Relaxed), Relaxed);
            }
        }
        *live = fresh;
        Ok(())
    }

    /// Returns whether an admin key exists.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some() || self.live.read().values().any(|live| live.caller.role == Role::Admin)
    }

    /// Returns the caller of a key that may be used now and from this address. Returns `None` otherwise, without a
    /// reason, so that clients cannot tell an unknown key from a restricted one.
    pub fn caller(&self, key: &str, now: Time, from: Option<IpAddr>) -> Option<Arc<Caller>> {
        self.caller_by_hash(&hash_key(key), now, from)
    }

    /// Returns the caller like `caller`, for a key of which only the hash is known.
    pub fn caller_by_hash(&self, hash: &[u8; 32], now: Time, from: Option<IpAddr>) -> Option<Arc<Caller>> {
        if let Some((admin, caller)) = &self.admin
            && bool::from(admin.ct_eq(hash))
        {
            return Some(caller.clone());
        }
        let live = self.live.read();
        let live = live.get(hash).filter(|live| live.is_usable(now, from))?;
        // Not on every call: concurrent calls would contend for the same cache line.
        if now.millis() - live.used.load(Relaxed) >= USE_RESOLUTION_MS {
            live.used.fetch_max(now.millis(), Relaxed);
        }
        Some(live.caller.clone())
    }

    /// Returns whether this key has neither expired nor been revoked.
    pub fn is_live(&self, id: KeyId, now: Time) -> bool {
        let live = self.live.read();
        live.values().any(|live| live.caller.key == Some(id) && live.expires_at.is_none_or(|end| now < end))
    }

    /// Returns whether this key is a session that is in the cache.
    pub fn is_session(&self, id: KeyId) -> bool {
        self.live.read().values().any(|live| live.session && live.caller.key == Some(id))
    }

    /// Evicts expired keys.
    fn prune(&self, now: Time) {
        self.live.write().retain(|_, live| live.expires_at.is_none_or(|end| now < end));
    }

    /// Returns the last uses that are not saved in the store yet, with a resolution of about a minute.
    fn unsaved_uses(&self) -> Vec<(KeyId, Time)> {
        let unsaved_use = |live: &ActiveKey| {
            let used = live.used.load(Relaxed);
            let is_unsaved = used - live.saved_use.load(Relaxed) >= MIN_USE_ADVANCE.as_millis() as i64;
            is_unsaved.then(|| {
                live.saved_use.store(used, Relaxed);
                Some((live.caller.key?, Time::from_millis(used)))
            })?
        };
        self.live.read().values().filter_map(unsaved_use).collect()
    }

    /// Creates and stores a key. Returns it with its secret, which is not available later. With an idempotency key, it is
    /// created only if that key was not used before.
    pub async fn create(
        &self,
        store: &dyn Store,
        new: NewKey,
        now: Time,
        idempotency_key: Option<CreationKey>,
    ) -> Result<KeyCreation, StoreError> {
        let secret = if new.session { new_session() } else { new_key() };
        let key = ApiKey {
            id: KeyId::new(now, &clock::random_id_bytes()),
            tenant_id: new.tenant_id,
            installation: false,
            name: new.name,
            hash: hash_key(&secret),
            scopes: Scope::to_bits(&new.scopes)
                | if new.session { Capability::to_bits(&new.capabilities) } else { 0 },
            session: new.session,
            networks: new.networks,
            created_at: now,
            expires_at: new.expires_at,
            revoked_at: None,
            last_used_at: None,
        };
        let _changing = self.changing.lock().await;
        let created = match idempotency_key {
            None => store.create_key(key.clone()).await?,
            Some(used) => match store.create(NewObject::Key(key.clone()), used).await? {
                CreationResult::KeyUsed(_) => return Ok(KeyCreation::KeyUsed),
                created => matches!(created, CreationResult::Created { .. }),
            },
        };
        if !created {
            return Ok(KeyCreation::NoTenant);
        }
        self.live.write().insert(key.hash, ActiveKey::new(&key));
        Ok(KeyCreation::Created(Box::new(key), secret))
    }

    /// Revokes a key. Returns `false` if the tenant has no such live key.
    pub async fn revoke(
        &self,
        store: &dyn Store,
        tenant_id: Option<TenantId>,
        id: KeyId,
        now: Time,
    ) -> Result<bool, StoreError> {
        let _changing = self.changing.lock().await;
        // Evict first: the caller may disconnect, and so cancel this future, before the store has replied.
        self.live.write().retain(|_, live| {
            live.caller.key != Some(id) || live.caller.role.tenant_id() != tenant_id.as_ref()
        });
        store.revoke_key(tenant_id, id, now).await
    }
}

impl App {
    /// Starts reloading keys that are created and revoked on other nodes, if the store is shared.
    pub fn start_key_reload(self: &Arc<Self>) {
        if !self.store().is_shared() {
            return;
        }
        let changed = Arc::new(Notify::new());
        let reported = changed.clone();
        self.engine.on_keys_changed(Box::new(move || reported.notify_one()));
        // Reload once: keys may have changed before the callback was registered.
        changed.notify_one();
        let (app, stop) = (Arc::downgrade(self), self.engine.stop_token());
        self.engine.run_service(Service::new("key_reload", ServiceKind::Auxiliary, move || {
            run_key_reload(app.clone(), changed.clone(), stop.clone())
        }));
    }
}

impl App {
    /// Starts the task that saves key uses to the store periodically, and prunes ended sessions and old entries of the
    /// audit log.
    pub fn start_key_maintenance(self: &Arc<Self>) {
        let (app, stop) = (Arc::downgrade(self), self.engine.stop_token());
        self.engine.run_service(Service::new("key_maintenance", ServiceKind::Auxiliary, move || {
            run_key_use_flush(app.clone(), stop.clone())
        }));
    }

    async fn save_key_uses(&self) -> Result<(), StoreError> {
        let uses = self.keys.unsaved_uses();
        if !uses.is_empty() {
            self.store().record_key_use(uses).await?;
        }
        let now = self.engine.clock().confirmed_now();
        self.keys.prune(now);
        self.store().prune_sessions(now.saturating_sub(SESSION_RETENTION), PRUNE_BATCH_SIZE).await?;
        self.store().prune_browser_sessions(now, PRUNE_BATCH_SIZE).await?;
        self.store()
            .prune_audit(now.saturating_sub(self.rules.audit_retention), PRUNE_BATCH_SIZE)
            .await
            .map(drop)
    }
}

async fn run_key_use_flush(app: Weak<App>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(FLUSH_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let Some(app) = app.upgrade() else { return };
        if let Err(error) = app.save_key_uses().await {
            tracing::debug!(%error, "saving key uses failed; will retry");
        }
    }
}

async fn run_key_reload(app: Weak<App>, changed: Arc<Notify>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(RELOAD_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let Some(app) = app.upgrade() else { return };
        if let Err(error) = app.keys.reload(app.store()).await {
            tracing::debug!(%error, "reloading API keys failed; will retry");
            tokio::time::sleep(RETRY_DELAY).await;
            changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(created: Result<KeyCreation, StoreError>) -> (ApiKey, String) {
        match created {
            Ok(KeyCreation::Created(key, secret)) => (*key, secret),
            _ => panic!("the key was not created"),
        }
    }

    #[tokio::test]
    async fn reload_applies_keys_created_or_revoked_elsewhere() {
        use redrive_store::sqlite::{Options, Sqlite};
        let folder = tempfile::tempdir().unwrap();
        let store =
            Sqlite::open(&Options::at(folder.path().join("redrive.db")).with_vault(redrive_testkit::vault()))
                .unwrap();
        let (here, there) =
            (KeyCache::load(&store, None).await.unwrap(), KeyCache::load(&store, None).await.unwrap());
        let now = Time::default();
        let known = |keys: &KeyCache, secret: &str| keys.caller(secret, now, None);
        let new = NewKey { name: "far".into(), scopes: Scope::ALL.to_vec(), ..NewKey::default() };
        let (key, secret) = created(there.create(&store, new, now, None).await);
        assert!(known(&there, &secret).is_some() && known(&here, &secret).is_none());
        here.reload(&store).await.unwrap();
        assert_eq!(known(&here, &secret).unwrap().key, Some(key.id));
        assert!(there.revoke(&store, None, key.id, now).await.unwrap());
        assert!(known(&there, &secret).is_none() && known(&here, &secret).is_some());
        here.reload(&store).await.unwrap();
        assert!(known(&here, &secret).is_none());
    }

    #[tokio::test]
    async fn key_is_usable_until_expiry_from_allowed_networks() {
        use redrive_store::sqlite::{Options, Sqlite};
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&Options::at(folder.path().join("redrive.db"))).unwrap();
        let keys = KeyCache::load(&store, None).await.unwrap();
        let now = Time::from_secs(1_000);
        let end = now + Duration::from_secs(60);
        let networks = vec!["10.1.0.0/16".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let new = NewKey { networks, expires_at: Some(end), ..NewKey::default() };
        let (key, secret) = created(keys.create(&store, new, now, None).await);
        let good = |at, from: &str| keys.caller(&secret, at, Some(from.parse().unwrap())).is_some();
        assert!(good(now, "10.1.2.3") && good(now, "::ffff:10.1.2.3") && good(now, "2001:db8::1"));
        assert!(!good(now, "10.2.0.1") && !good(now, "2001:db9::1") && !good(end, "10.1.2.3"));
        assert!(keys.caller(&secret, now, None).is_none(), "an unknown address is not in an allowed network");
        // A use is saved once, and again only if the next one is at least a minute later.
        assert_eq!(keys.unsaved_uses(), [(key.id, now)]);
        assert_eq!(keys.unsaved_uses(), []);
        assert!(good(now + Duration::from_secs(59), "10.1.2.3"));
        assert_eq!(keys.unsaved_uses(), []);
    }
}

//! The keys that are valid now, known by their hashes and looked up in memory, so that a revoked one stops working
//! with the answer to its revocation. On other nodes it does within about a second.

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
use redrive_core::{KeyId, TenantId, Time, tenancy::api_key::may_be_used};
use redrive_engine::clock;
use redrive_store::{ApiKey, Store, StoreError};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Notify;

use super::{
    App,
    auth::{Caller, Capability, Role, Scope},
};

/// How often the keys of a store that nodes share are read, should no word of a change come through.
const READ_AGAIN: Duration = Duration::from_secs(30);
/// How many milliseconds lie between two uses of a key that are noted.
const NOTED_EVERY: i64 = 1_000;
/// How often the store is told which keys were used.
const TELL: Duration = Duration::from_secs(30);
/// How much later than it knows a use has to be for the store to be told.
const WORTH_TELLING: Duration = Duration::from_secs(60);
/// Sessions that are over are forgotten after so long, so many at a time.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
const FORGOTTEN: usize = 500;
/// When to read them again after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// The SHA-256 of a key: all that is kept of it.
pub fn hash_key(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// A new key: 256 random bits.
pub fn new_key() -> String {
    format!("rdk_{}", clock::secret_hex())
}

/// A new session's key: the same under another name, so that it is known for what it is.
fn new_session() -> String {
    format!("rdp_{}", clock::secret_hex())
}

/// A key that may be in use.
struct Live {
    caller: Arc<Caller>,
    session: bool,
    networks: Vec<IpNet>,
    expires_at: Option<Time>,
    /// When it was last used, in milliseconds, and which of that the store knows.
    used: AtomicI64,
    told: AtomicI64,
}

impl Live {
    fn of(key: &ApiKey) -> Self {
        let used = key.last_used_at.map_or(0, Time::millis);
        Self {
            caller: Arc::new(Caller::of(key)),
            session: key.session,
            networks: key.networks.clone(),
            expires_at: key.expires_at,
            used: AtomicI64::new(used),
            told: AtomicI64::new(used),
        }
    }

    /// Whether it may be used now, from there.
    fn admits(&self, now: Time, from: Option<IpAddr>) -> bool {
        may_be_used(self.expires_at, &self.networks, now, from)
    }
}

/// What a new key is to be.
#[derive(Clone, Debug, Default)]
pub struct NewKey {
    /// Whose; none for an admin key.
    pub tenant: Option<TenantId>,
    /// What it is for.
    pub name: String,
    /// What it may be used for.
    pub scopes: Vec<Scope>,
    /// What it may do, if it is a session.
    pub capabilities: Vec<Capability>,
    /// Whether it is a session: short-lived, and not listed among the keys.
    pub session: bool,
    /// Where it may be used from; anywhere if empty.
    pub networks: Vec<IpNet>,
    /// From when on it is of no use.
    pub expires_at: Option<Time>,
}

/// The keys that are valid now.
pub struct Keys {
    // Hashes of 256 random bits: how long a look-up takes tells nothing about any key.
    live: RwLock<HashMap<[u8; 32], Live>>,
    admin: Option<([u8; 32], Arc<Caller>)>,
    /// Held while keys are read or changed in the store, so that what is read is never older than a change.
    changing: tokio::sync::Mutex<()>,
}

impl Keys {
    /// Reads the live keys from the store; `admin` is the admin key that was configured.
    pub async fn load(store: &dyn Store, admin: Option<&str>) -> Result<Self, StoreError> {
        let keys = Self {
            live: RwLock::default(),
            admin: admin.map(|key| (hash_key(key), Arc::new(Caller::configured_admin()))),
            changing: tokio::sync::Mutex::default(),
        };
        keys.reload(store).await?;
        Ok(keys)
    }

    /// Reads the live keys from the store anew.
    pub async fn reload(&self, store: &dyn Store) -> Result<(), StoreError> {
        let _changing = self.changing.lock().await;
        let keys = store.live_keys().await?;
        let fresh: HashMap<_, _> = keys.iter().map(|key| (key.hash, Live::of(key))).collect();
        let mut live = self.live.write();
        for (hash, old) in live.iter() {
            if let Some(new) = fresh.get(hash) {
                new.used.fetch_max(old.used.load(Relaxed), Relaxed);
            }
        }
        *live = fresh;
        Ok(())
    }

    /// Whether anybody could act as an admin.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some() || self.live.read().values().any(|live| live.caller.role == Role::Admin)
    }

    /// Whose key this is, if it may be used now and from there. Nobody is told which of that was in the way.
    pub fn caller(&self, key: &str, now: Time, from: Option<IpAddr>) -> Option<Arc<Caller>> {
        self.caller_by_hash(&hash_key(key), now, from)
    }

    /// The same for a key of which only the hash is known.
    pub fn caller_by_hash(&self, hash: &[u8; 32], now: Time, from: Option<IpAddr>) -> Option<Arc<Caller>> {
        if let Some((admin, caller)) = &self.admin
            && bool::from(admin.ct_eq(hash))
        {
            return Some(caller.clone());
        }
        let live = self.live.read();
        let live = live.get(hash).filter(|live| live.admits(now, from))?;
        // Not for every call: all of them would write to the same place in memory.
        if now.millis() - live.used.load(Relaxed) >= NOTED_EVERY {
            live.used.fetch_max(now.millis(), Relaxed);
        }
        Some(live.caller.clone())
    }

    /// Whether this key may still be used from somewhere.
    pub fn is_live(&self, id: KeyId, now: Time) -> bool {
        let live = self.live.read();
        live.values().any(|live| live.caller.key == Some(id) && live.expires_at.is_none_or(|end| now < end))
    }

    /// Whether this is a session that is known here.
    pub fn is_session(&self, id: KeyId) -> bool {
        self.live.read().values().any(|live| live.session && live.caller.key == Some(id))
    }

    /// Forgets what has expired.
    fn prune(&self, now: Time) {
        self.live.write().retain(|_, live| live.expires_at.is_none_or(|end| now < end));
    }

    /// When keys were last used that the store does not know of, to about a minute.
    fn untold(&self) -> Vec<(KeyId, Time)> {
        let untold = |live: &Live| {
            let used = live.used.load(Relaxed);
            let is_news = used - live.told.load(Relaxed) >= WORTH_TELLING.as_millis() as i64;
            is_news.then(|| {
                live.told.store(used, Relaxed);
                Some((live.caller.key?, Time::from_millis(used)))
            })?
        };
        self.live.read().values().filter_map(untold).collect()
    }

    /// Makes a key and stores it. Gives the key itself, this once. None: no such tenant.
    pub async fn create(
        &self,
        store: &dyn Store,
        new: NewKey,
        now: Time,
    ) -> Result<Option<(ApiKey, String)>, StoreError> {
        let secret = if new.session { new_session() } else { new_key() };
        let key = ApiKey {
            id: KeyId::new(now, &clock::randomness()),
            tenant: new.tenant,
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
        if !store.create_key(key.clone()).await? {
            return Ok(None);
        }
        self.live.write().insert(key.hash, Live::of(&key));
        Ok(Some((key, secret)))
    }

    /// Takes a key out of use. False: no such live key of that tenant.
    pub async fn revoke(
        &self,
        store: &dyn Store,
        tenant: Option<TenantId>,
        id: KeyId,
        now: Time,
    ) -> Result<bool, StoreError> {
        let _changing = self.changing.lock().await;
        let owner = |live: &Live| match &live.caller.role {
            Role::Admin => None,
            Role::Tenant { tenant, .. } => Some(tenant.clone()),
        };
        // First of all here: whoever asks may hang up before the store has answered.
        self.live.write().retain(|_, live| live.caller.key != Some(id) || owner(live) != tenant);
        store.revoke_key(tenant, id, now).await
    }
}

impl App {
    /// Keeps up with keys that are made and revoked on other nodes, where there may be others.
    pub fn follow_keys(self: &Arc<Self>) {
        if !self.store().is_shared() {
            return;
        }
        let changed = Arc::new(Notify::new());
        let told = changed.clone();
        self.engine.on_keys_changed(Box::new(move || told.notify_one()));
        // Something may have changed before anybody was told.
        changed.notify_one();
        tokio::spawn(keep_following(Arc::downgrade(self), changed));
    }
}

impl App {
    /// Tells the store now and then which keys were used, and has it forget sessions that are long over and old
    /// entries of the audit log.
    pub fn keep_up_keys(self: &Arc<Self>) {
        tokio::spawn(keep_telling(Arc::downgrade(self)));
    }

    async fn tell_uses(&self) -> Result<(), StoreError> {
        let uses = self.keys.untold();
        if !uses.is_empty() {
            self.store().note_key_use(uses).await?;
        }
        let now = self.engine.clock().confirmed_now();
        self.keys.prune(now);
        self.store().forget_sessions(now.back(REMEMBERED), FORGOTTEN).await?;
        self.store().prune_browser_sessions(now, FORGOTTEN).await?;
        self.store().forget_audit(now.back(self.rules.audit_retention), FORGOTTEN).await.map(drop)
    }
}

async fn keep_telling(app: Weak<App>) {
    loop {
        tokio::time::sleep(TELL).await;
        let Some(app) = app.upgrade() else { return };
        if let Err(error) = app.tell_uses().await {
            tracing::debug!(%error, "when keys were used cannot be noted yet");
        }
    }
}

async fn keep_following(app: Weak<App>, changed: Arc<Notify>) {
    loop {
        tokio::select! {
            () = changed.notified() => {}
            () = tokio::time::sleep(READ_AGAIN) => {}
        }
        let Some(app) = app.upgrade() else { return };
        if let Err(error) = app.keys.reload(app.store()).await {
            tracing::debug!(%error, "the keys that others made or revoked cannot be read yet");
            tokio::time::sleep(AFTER_FAILURE).await;
            changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_that_others_made_or_revoked_are_known_after_a_reload() {
        use redrive_store::sqlite::{Options, Sqlite};
        let folder = tempfile::tempdir().unwrap();
        let store =
            Sqlite::open(&Options::at(folder.path().join("redrive.db")).sealed_by(redrive_testkit::vault()))
                .unwrap();
        let (here, there) =
            (Keys::load(&store, None).await.unwrap(), Keys::load(&store, None).await.unwrap());
        let now = Time::default();
        let known = |keys: &Keys, secret: &str| keys.caller(secret, now, None);
        let new = NewKey { name: "far".into(), scopes: Scope::ALL.to_vec(), ..NewKey::default() };
        let (key, secret) = there.create(&store, new, now).await.unwrap().unwrap();
        assert!(known(&there, &secret).is_some() && known(&here, &secret).is_none());
        here.reload(&store).await.unwrap();
        assert_eq!(known(&here, &secret).unwrap().key, Some(key.id));
        assert!(there.revoke(&store, None, key.id, now).await.unwrap());
        assert!(known(&there, &secret).is_none() && known(&here, &secret).is_some());
        here.reload(&store).await.unwrap();
        assert!(known(&here, &secret).is_none());
    }

    #[tokio::test]
    async fn a_key_is_good_until_it_expires_and_from_where_it_may_be_used() {
        use redrive_store::sqlite::{Options, Sqlite};
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&Options::at(folder.path().join("redrive.db"))).unwrap();
        let keys = Keys::load(&store, None).await.unwrap();
        let now = Time::from_secs(1_000);
        let end = now + Duration::from_secs(60);
        let networks = vec!["10.1.0.0/16".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let new = NewKey { networks, expires_at: Some(end), ..NewKey::default() };
        let (key, secret) = keys.create(&store, new, now).await.unwrap().unwrap();
        let good = |at, from: &str| keys.caller(&secret, at, Some(from.parse().unwrap())).is_some();
        assert!(good(now, "10.1.2.3") && good(now, "::ffff:10.1.2.3") && good(now, "2001:db8::1"));
        assert!(!good(now, "10.2.0.1") && !good(now, "2001:db9::1") && !good(end, "10.1.2.3"));
        assert!(keys.caller(&secret, now, None).is_none(), "from nowhere in particular is not from there");
        // What was used is told once, and again only when it is a minute later.
        assert_eq!(keys.untold(), [(key.id, now)]);
        assert_eq!(keys.untold(), []);
        assert!(good(now + Duration::from_secs(59), "10.1.2.3"));
        assert_eq!(keys.untold(), []);
    }
}

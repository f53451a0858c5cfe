//! Who is calling, and what they may do. Keys are known by their hash and looked up in memory, so that a
//! revoked one stops working with the answer to its revocation. On other nodes it does within about a second.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::RwLock;
use redrive_core::{KeyId, TenantId, Time};
use redrive_engine::clock;
use redrive_store::{ApiKey, Store, StoreError};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Notify;

use super::{App, AppError};

/// How often the keys of a store that nodes share are read, should no word of a change come through.
const READ_AGAIN: Duration = Duration::from_secs(30);
/// When to read them again after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// What a key may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Publish events.
    Publish,
    /// Look at everything of the tenant.
    Read,
    /// Change everything of the tenant; takes in `read`.
    Manage,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::Publish, Self::Read, Self::Manage];

    fn bit(self) -> u32 {
        match self {
            Self::Publish => 1,
            Self::Read => 2,
            Self::Manage => 4,
        }
    }

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Read => "read",
            Self::Manage => "manage",
        }
    }

    /// Scopes as they are stored.
    pub fn to_bits(scopes: &[Self]) -> u32 {
        scopes.iter().fold(0, |bits, scope| bits | scope.bit())
    }

    /// Scopes as they were stored.
    pub fn from_bits(bits: u32) -> Vec<Self> {
        Self::ALL.into_iter().filter(|scope| bits & scope.bit() != 0).collect()
    }
}

/// Somebody with a valid key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The key; none for the admin key that was configured.
    pub key: Option<KeyId>,
    /// The key's name, for telling people who did something.
    pub name: String,
    /// What the key allows.
    pub role: Role,
}

/// What a key allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// May do everything, for any tenant.
    Admin,
    /// Acts for one tenant.
    Tenant {
        /// The tenant.
        tenant: TenantId,
        /// What the key may be used for, as bits.
        scopes: u32,
    },
}

impl Caller {
    /// Whoever has the admin key that was configured.
    fn configured_admin() -> Self {
        Self { key: None, name: "admin".into(), role: Role::Admin }
    }

    /// Whoever has this key.
    fn of(key: &ApiKey) -> Self {
        let role = match &key.tenant {
            None => Role::Admin,
            Some(tenant) => Role::Tenant { tenant: tenant.clone(), scopes: key.scopes },
        };
        let name = match key.name.as_str() {
            "" => key.id.to_string(),
            name => name.to_owned(),
        };
        Self { key: Some(key.id), name, role }
    }

    /// The tenant to act for. Only an admin may name another than its own.
    pub fn acts_for(&self, named: Option<&str>) -> Result<TenantId, AppError> {
        match &self.role {
            Role::Admin => Ok(named.map(TenantId::parse).transpose()?.unwrap_or_default()),
            Role::Tenant { tenant, .. } if named.is_none_or(|named| named == tenant.as_str()) => {
                Ok(tenant.clone())
            }
            Role::Tenant { .. } => {
                Err(AppError::Forbidden("tenant_id names another tenant; leave it out".into()))
            }
        }
    }

    /// Refuses a key without this scope.
    pub fn must_have(&self, scope: Scope) -> Result<(), AppError> {
        let Role::Tenant { scopes, .. } = &self.role else { return Ok(()) };
        let enough = scopes & scope.bit() != 0 || scope == Scope::Read && scopes & Scope::Manage.bit() != 0;
        if enough {
            return Ok(());
        }
        Err(AppError::Forbidden(format!("this key lacks the scope \"{}\"", scope.name())))
    }

    /// Refuses everybody but an admin.
    pub fn must_be_admin(&self) -> Result<(), AppError> {
        match self.role {
            Role::Admin => Ok(()),
            Role::Tenant { .. } => Err(AppError::Forbidden("this needs an admin key".into())),
        }
    }
}

/// The SHA-256 of a key: all that is kept of it.
pub fn hash_key(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// A new key: 256 random bits.
pub fn new_key() -> String {
    let hex: String = clock::secret_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("rdk_{hex}")
}

/// The keys that are valid now.
pub struct Keys {
    // Hashes of 256 random bits: how long a look-up takes tells nothing about any key.
    live: RwLock<HashMap<[u8; 32], Arc<Caller>>>,
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
        *self.live.write() = keys.iter().map(|key| (key.hash, Arc::new(Caller::of(key)))).collect();
        Ok(())
    }

    /// Whether anybody could act as an admin.
    pub fn has_admin(&self) -> bool {
        self.admin.is_some() || self.live.read().values().any(|caller| caller.role == Role::Admin)
    }

    /// Whose key this is.
    pub fn caller(&self, key: &str) -> Option<Arc<Caller>> {
        let hash = hash_key(key);
        if let Some((admin, caller)) = &self.admin
            && bool::from(admin.ct_eq(&hash))
        {
            return Some(caller.clone());
        }
        self.live.read().get(&hash).cloned()
    }

    /// Makes a key and stores it. Gives the key itself, this once. None: no such tenant.
    pub async fn create(
        &self,
        store: &dyn Store,
        tenant: Option<TenantId>,
        name: String,
        scopes: &[Scope],
        now: Time,
    ) -> Result<Option<(ApiKey, String)>, StoreError> {
        let secret = new_key();
        let key = ApiKey {
            id: KeyId::new(now, &clock::randomness()),
            tenant,
            name,
            hash: hash_key(&secret),
            scopes: Scope::to_bits(scopes),
            created_at: now,
            revoked_at: None,
        };
        let _changing = self.changing.lock().await;
        if !store.create_key(key.clone()).await? {
            return Ok(None);
        }
        self.live.write().insert(key.hash, Arc::new(Caller::of(&key)));
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
        if !store.revoke_key(tenant, id, now).await? {
            return Ok(false);
        }
        self.live.write().retain(|_, caller| caller.key != Some(id));
        Ok(true)
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

    fn key(scopes: &[Scope]) -> Caller {
        let role = Role::Tenant { tenant: TenantId::parse("acme").unwrap(), scopes: Scope::to_bits(scopes) };
        Caller { key: None, name: "test".into(), role }
    }

    #[test]
    fn scopes_are_kept_apart() {
        let may = |scopes: &[Scope], scope| key(scopes).must_have(scope).is_ok();
        assert!(may(&[Scope::Publish], Scope::Publish));
        assert!(!may(&[Scope::Publish], Scope::Read));
        assert!(!may(&[Scope::Read], Scope::Manage));
        assert!(may(&[Scope::Manage], Scope::Read), "whoever changes things sees them");
        assert!(!may(&[Scope::Manage], Scope::Publish));
        assert_eq!(Scope::from_bits(Scope::to_bits(&Scope::ALL)), Scope::ALL);
    }

    #[test]
    fn only_an_admin_names_tenants() {
        let admin = Caller::configured_admin();
        assert_eq!(admin.acts_for(None).unwrap().as_str(), "default");
        assert_eq!(admin.acts_for(Some("acme")).unwrap().as_str(), "acme");
        assert!(key(&Scope::ALL).acts_for(Some("acme")).is_ok());
        assert!(key(&Scope::ALL).acts_for(Some("other")).is_err());
        assert!(key(&Scope::ALL).must_be_admin().is_err());
    }

    #[tokio::test]
    async fn keys_that_others_made_or_revoked_are_known_after_a_reload() {
        use redrive_store::sqlite::{Options, Sqlite};
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&Options::at(folder.path().join("redrive.db"))).unwrap();
        let (here, there) =
            (Keys::load(&store, None).await.unwrap(), Keys::load(&store, None).await.unwrap());
        let now = Time::default();
        let made = there.create(&store, None, "far".into(), &Scope::ALL, now).await.unwrap();
        let (key, secret) = made.unwrap();
        assert!(there.caller(&secret).is_some() && here.caller(&secret).is_none());
        here.reload(&store).await.unwrap();
        assert_eq!(here.caller(&secret).unwrap().key, Some(key.id));
        assert!(there.revoke(&store, None, key.id, now).await.unwrap());
        assert!(there.caller(&secret).is_none() && here.caller(&secret).is_some());
        here.reload(&store).await.unwrap();
        assert!(here.caller(&secret).is_none());
    }
}

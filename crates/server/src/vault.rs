//! The vault of a command: the configured master keys, or for `redrive dev` a key that is created once.

use std::path::PathBuf;

use redrive_core::security::vault::{MasterKey, MasterKeyId, Vault};
use redrive_engine::clock;
use redrive_store::{Store, StoreError};

use crate::{
    config::{Backend, Config, ConfigError, Profile, warn_if_exposed},
    files::write_key_file,
};

/// Name of the file that holds the master key created by `redrive dev`.
const DEV_KEY: &str = "master.key";

/// Reason why the vault cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VaultError {
    /// No master key is configured.
    #[error(
        "no master key is configured, so secrets cannot be encrypted: create one with \
         `(umask 077; redrive secrets new-key > master.key)`, keep a copy in a safe place, and set \
         REDRIVE_SECRETS_MASTER_KEY_FILE=master.key"
    )]
    NotConfigured,
    /// The configured key is unusable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The key file of `redrive dev` is unusable.
    #[error("{}: {reason}; delete it together with all webhooks to create a new one", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// Stored secrets are encrypted with a key that is not configured.
    #[error(
        "some webhooks are encrypted with the master key {key}, which is not configured; name the file that holds it in \
         secrets.additional_master_key_files, or set it as the master key again"
    )]
    Unknown {
        /// Id of the key.
        key: String,
    },
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Opens the vault of a command.
pub(crate) fn open(config: &Config, profile: Profile, backend: &Backend) -> Result<Vault, VaultError> {
    let current = match config.secrets.current()? {
        Some(key) => key,
        None if profile == Profile::Dev => dev_key(backend)?,
        None => return Err(VaultError::NotConfigured),
    };
    Ok(Vault::new(&current, &config.secrets.others()?, clock::secret_bytes))
}

/// Opens the vault like [`open`], but creates no key: returns `None` where `redrive dev` would create one.
pub(crate) fn open_existing(
    config: &Config,
    profile: Profile,
    backend: &Backend,
) -> Result<Option<Vault>, VaultError> {
    let is_created = config.secrets.current()?.is_none()
        && profile == Profile::Dev
        && !backend.sibling_path(DEV_KEY).exists();
    if is_created {
        config.secrets.others()?;
        return Ok(None);
    }
    open(config, profile, backend).map(Some)
}

/// Rejects a store that contains secrets which this vault cannot decrypt.
pub(crate) async fn check(vault: &Vault, store: &dyn Store) -> Result<(), VaultError> {
    check_keys(vault, &store.encryption_keys().await?)
}

/// Rejects secrets that are encrypted with a master key which this vault does not have.
pub(crate) fn check_keys(vault: &Vault, encryption_keys: &[MasterKeyId]) -> Result<(), VaultError> {
    match encryption_keys.iter().find(|key| !vault.can_unseal(**key)) {
        None => Ok(()),
        Some(key) => Err(VaultError::Unknown { key: key.to_string() }),
    }
}

/// Creates a new master key.
pub(crate) fn new_key() -> MasterKey {
    MasterKey::from_bytes(clock::secret_bytes())
}

/// Returns the key of `redrive dev`, creating it next to the data if there is none.
fn dev_key(backend: &Backend) -> Result<MasterKey, VaultError> {
    let path = backend.sibling_path(DEV_KEY);
    match write_key_file(&path, &new_key().reveal()) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(VaultError::File { path, reason: error.to_string() }),
    }
    warn_if_exposed(&path);
    let read = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let key = read.and_then(|text| MasterKey::parse(&text).map_err(|error| error.message));
    key.map_err(|reason| VaultError::File { path, reason })
}

//! The vault that a command works with: the configured master keys, or for `redrive dev` one that is made once.

use std::path::PathBuf;

use redrive_core::security::vault::{MasterKey, Vault};
use redrive_engine::clock;
use redrive_store::{Store, StoreError};

use crate::{
    config::{Backend, Config, ConfigError, Profile, warn_if_exposed},
    files::write_private,
};

/// Why there is no vault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoVault {
    /// No master key is configured.
    #[error(
        "there is no master key, and without one no webhook's secret can be kept: make one with \
         `(umask 077; redrive secrets new-key > master.key)`, keep a copy in a safe place, and set \
         REDRIVE_SECRETS_MASTER_KEY_FILE=master.key"
    )]
    NotConfigured,
    /// One is configured, and cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file of `redrive dev` cannot be used.
    #[error("{}: {reason}; delete it to have a new one made, and all webhooks with it", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Something is sealed with a key that is not configured.
    #[error(
        "some webhooks are sealed with the master key {key}, which is not configured; name the file that holds it in \
         secrets.other_master_key_files, or set it as the master key again"
    )]
    Unknown {
        /// The key's id.
        key: String,
    },
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The vault of a command.
pub(crate) fn open(config: &Config, profile: Profile, backend: &Backend) -> Result<Vault, NoVault> {
    let current = match config.secrets.current()? {
        Some(key) => key,
        None if profile == Profile::Dev => dev_key(backend)?,
        None => return Err(NoVault::NotConfigured),
    };
    Ok(Vault::new(&current, &config.secrets.others()?, clock::secret_bytes))
}

/// Refuses a store with something that this vault cannot open.
pub(crate) async fn check(vault: &Vault, store: &dyn Store) -> Result<(), NoVault> {
    match store.sealed_with().await?.into_iter().find(|key| !vault.knows(*key)) {
        None => Ok(()),
        Some(key) => Err(NoVault::Unknown { key: key.to_string() }),
    }
}

/// A new master key.
pub(crate) fn new_key() -> MasterKey {
    MasterKey::from_bytes(clock::secret_bytes())
}

/// The key that `redrive dev` made, kept beside the data.
fn dev_key(backend: &Backend) -> Result<MasterKey, NoVault> {
    let path = backend.beside("master.key");
    match write_private(&path, &new_key().reveal()) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(NoVault::File { path, reason: error.to_string() }),
    }
    warn_if_exposed(&path);
    let read = std::fs::read_to_string(&path).map_err(|error| error.to_string());
    let key = read.and_then(|text| MasterKey::parse(&text).map_err(|error| error.message));
    key.map_err(|reason| NoVault::File { path, reason })
}

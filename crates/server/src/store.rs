//! Opens the configured store, in one place for all commands.

use std::{pin::pin, sync::Arc, time::Duration};

use redrive_core::{Time, security::vault::Vault};
use redrive_engine::clock::Clock;
use redrive_store::{
    Epoch, OpenError, Store, StoreError,
    postgres::{Migrated, Options, Postgres},
    sqlite::{self, Sqlite},
};

use crate::config::Backend;

/// Time after which, and interval at which, a slow migration is logged.
const SLOW_MIGRATION_AFTER: Duration = Duration::from_secs(10);

/// Opens the store. Without a vault, webhooks cannot be read or written.
pub(crate) async fn open(backend: &Backend, vault: Option<&Vault>) -> Result<Arc<dyn Store>, OpenError> {
    let vault = vault.cloned();
    let options = match backend {
        Backend::Sqlite(path) => {
            let options = sqlite::Options { vault, ..sqlite::Options::at(path) };
            return Ok(Arc::new(Sqlite::open(&options)?));
        }
        Backend::Postgres(options) => &Options { vault, ..(**options).clone() },
    };
    let store = match open_without_migration(options).await {
        Err(OpenError::OlderSchema { .. }) if options.migrate => log_if_slow(Postgres::open(options)).await?,
        opened => opened?,
    };
    Ok(Arc::new(store))
}

/// Migrates the schema. Returns `None` for SQLite, which does not report its previous version.
pub(crate) async fn migrate(backend: &Backend) -> Result<Option<Migrated>, OpenError> {
    let Backend::Postgres(options) = backend else { return open(backend, None).await.map(|_| None) };
    match open_without_migration(options).await {
        Ok(_) | Err(OpenError::OlderSchema { .. }) => log_if_slow(Postgres::migrate(options)).await.map(Some),
        Err(error) => Err(error),
    }
}

/// Opens a PostgreSQL database without migrating its schema. This is fast, so a server that does not respond
/// within a timeout is reported as unreachable.
async fn open_without_migration(options: &Options) -> Result<Postgres, OpenError> {
    let timeout = 2 * options.connect_timeout + options.statement_timeout;
    let without_migration = Options { migrate: false, ..options.clone() };
    match tokio::time::timeout(timeout, Postgres::open(&without_migration)).await {
        Ok(opened) => opened,
        Err(_) => Err(OpenError::Unreachable {
            // This URL never contains the password.
            database: options.url.split('?').next().unwrap_or_default().into(),
            reason: format!("no response within {timeout:?}"),
        }),
    }
}

/// Returns the store's time: of its own clock if nodes share it, or else of the system.
pub(crate) async fn now(store: &dyn Store) -> Result<Time, StoreError> {
    let clock = Clock::system();
    if store.is_shared()
        && let Some(time) = store.heartbeat(Epoch::NONE).await?.time
    {
        clock.set(time);
    }
    Ok(clock.now())
}

/// Waits for a migration, logging that it is still running.
async fn log_if_slow<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(SLOW_MIGRATION_AFTER, work.as_mut()).await {
            Ok(done) => return done,
            Err(_) => tracing::warn!("schema migration is still running"),
        }
    }
}

//! Opening the store that the settings name, in one place for every command.

use std::{pin::pin, sync::Arc, time::Duration};

use redrive_core::{Time, security::vault::Vault};
use redrive_engine::clock::Clock;
use redrive_store::{
    Epoch, OpenError, Store, StoreError,
    postgres::{Migrated, Options, Postgres},
    sqlite::{self, Sqlite},
};

use crate::config::Backend;

/// After so long a line says what is being waited for.
const WORTH_A_WORD: Duration = Duration::from_secs(10);

/// Opens the store; without a vault, webhooks cannot be read or written.
pub(crate) async fn open(backend: &Backend, vault: Option<&Vault>) -> Result<Arc<dyn Store>, OpenError> {
    let vault = vault.cloned();
    let options = match backend {
        Backend::Sqlite(path) => {
            let options = sqlite::Options { vault, ..sqlite::Options::at(path) };
            return Ok(Arc::new(Sqlite::open(&options)?));
        }
        Backend::Postgres(options) => &Options { vault, ..(**options).clone() },
    };
    let store = match open_as_it_is(options).await {
        Err(OpenError::OlderSchema { .. }) if options.migrate => patiently(Postgres::open(options)).await?,
        opened => opened?,
    };
    Ok(Arc::new(store))
}

/// Brings the schema up to date. A file does not tell which version it had.
pub(crate) async fn migrate(backend: &Backend) -> Result<Option<Migrated>, OpenError> {
    let Backend::Postgres(options) = backend else { return open(backend, None).await.map(|_| None) };
    match open_as_it_is(options).await {
        Ok(_) | Err(OpenError::OlderSchema { .. }) => patiently(Postgres::migrate(options)).await.map(Some),
        Err(error) => Err(error),
    }
}

/// Opens a database and leaves its schema alone, so that it need not take long: one that hangs is given up.
async fn open_as_it_is(options: &Options) -> Result<Postgres, OpenError> {
    let patience = 2 * options.connect_timeout + options.statement_timeout;
    let as_it_is = Options { migrate: false, ..options.clone() };
    match tokio::time::timeout(patience, Postgres::open(&as_it_is)).await {
        Ok(opened) => opened,
        Err(_) => Err(OpenError::Unreachable {
            // Without the password, which is never in this URL.
            place: options.url.split('?').next().unwrap_or_default().into(),
            reason: format!("no answer within {patience:?}"),
        }),
    }
}

/// What time it is for a store: by its own clock, if it has one that nodes share.
pub(crate) async fn now(store: &dyn Store) -> Result<Time, StoreError> {
    let clock = Clock::system();
    if store.is_shared()
        && let Some(time) = store.beat(Epoch::NONE).await?.time
    {
        clock.set(time);
    }
    Ok(clock.now())
}

/// A schema that takes its time is waited for, and said so.
async fn patiently<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(WORTH_A_WORD, work.as_mut()).await {
            Ok(done) => return done,
            Err(_) => tracing::warn!("the database's schema is still being brought up to date"),
        }
    }
}

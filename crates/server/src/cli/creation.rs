//! Databases that do not exist yet: a command that creates one says so first, and a command that only reads refuses.

use std::{path::Path, sync::Arc};

use redrive_store::{OpenError, Store};

use super::CliError;
use crate::{config::Backend, store};

/// Returns a path as shown to the user: in full, since a database in the wrong folder is the likeliest mistake.
pub(super) fn shown_path(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Refuses a database that does not exist. The store is then opened without migrating its schema.
pub(super) fn require_existing(backend: Backend) -> Result<Backend, CliError> {
    match backend {
        Backend::Sqlite(path) if !path.exists() => Err(CliError::message(format!(
            "there is no database at {}; name the one to use with --config FILE or --database-url sqlite:PATH",
            shown_path(&path)
        ))),
        Backend::Sqlite(path) => Ok(Backend::Sqlite(path)),
        Backend::Postgres(mut options) => {
            options.migrate = false;
            Ok(Backend::Postgres(options))
        }
    }
}

/// Prints on standard error that a database file is created, if there is none.
pub(super) fn announce_creation(backend: &Backend) {
    if let Backend::Sqlite(path) = backend
        && !path.exists()
    {
        eprintln!("There is no database at {}: creating it.", shown_path(path));
    }
}

/// Opens the store, creating or migrating it if needed, and prints on standard error that it does.
pub(super) async fn open(backend: &Backend) -> Result<Arc<dyn Store>, OpenError> {
    announce_creation(backend);
    if let Backend::Postgres(options) = backend
        && options.migrate
    {
        let mut without_migration = options.clone();
        without_migration.migrate = false;
        match store::open(&Backend::Postgres(without_migration), None).await {
            Err(OpenError::OlderSchema { database, found: 0, .. }) => {
                eprintln!("The database at {database} has no tables of Redrive: creating them.");
            }
            Err(OpenError::OlderSchema { database, found, known }) => {
                eprintln!("The database at {database} has schema version {found}: migrating it to {known}.");
            }
            opened => return opened,
        }
    }
    store::open(backend, None).await
}

//! The embedded store: one SQLite file, one writer thread, a few readers.
//!
//! WAL with `synchronous=FULL`, and `fullfsync` for macOS: acknowledged events survive a power failure. One
//! process has the file open at a time, so at start every lease is left over from an earlier process.

mod across_tenants;
mod archive_outbox;
mod attempts;
mod audit;
mod backlog;
mod backup;
mod browser_sessions;
mod changes;
mod claim;
mod clock;
mod convert;
mod creations;
mod dead;
mod email_addresses;
mod erase;
mod event_types;
pub(crate) mod export;
mod failures;
mod file;
mod history;
mod inspect;
mod lanes;
mod listing;
mod log;
mod maintenance;
mod nodes;
mod notifications;
mod operations;
mod prune;
mod publish;
mod rankings;
mod readers;
mod record;
mod redrive;
mod result_slot;
mod runtime_state;
mod scan;
mod schema;
mod statistics;
mod successes;
mod tenancy;
mod tickets;
mod transaction;
mod unsubscriptions;
mod webhooks;
mod writer;

/// Returns the statements of listings, each with a name; tests check their query plans.
#[cfg(feature = "conformance")]
pub fn planned_statements() -> Vec<(String, String)> {
    listing::planned()
}

use std::{
    fs::{File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

use redrive_core::{TenantId, security::vault::Vault};
use rusqlite::Connection;

pub use self::{
    backup::{BackupError, BackupReport, back_up},
    inspect::{Inspection, inspect},
};
use self::{
    file::DatabaseFiles,
    readers::Readers,
    transaction::{Database, WriteTransaction},
    writer::Writer,
};
use crate::{StoreFuture, error::OpenError, sealed::WebhookSealer};

/// Returns the statements that find due deliveries; tests check their query plans.
#[cfg(feature = "conformance")]
pub fn hot_statements() -> &'static [&'static str] {
    &claim::HOT_STATEMENTS
}

/// Returns the statements whose cost must be proportional to the rows they return or change, for the same tests.
#[cfg(feature = "conformance")]
pub fn bounded_statements() -> Vec<&'static str> {
    [
        &tickets::BOUNDED_STATEMENTS[..],
        &runtime_state::BOUNDED_STATEMENTS,
        &backlog::BOUNDED_STATEMENTS,
        &statistics::BOUNDED_STATEMENTS,
        &failures::BOUNDED_STATEMENTS,
        &successes::BOUNDED_STATEMENTS,
        &dead::BOUNDED_STATEMENTS,
        &rankings::BOUNDED_STATEMENTS,
        &prune::BOUNDED_STATEMENTS,
        &erase::BOUNDED_STATEMENTS,
        &notifications::BOUNDED_STATEMENTS,
        &email_addresses::BOUNDED_STATEMENTS,
        &across_tenants::BOUNDED_STATEMENTS,
    ]
    .concat()
}

/// Time for which the writer waits for a lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of the store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Database file; created if it does not exist.
    pub path: PathBuf,
    /// Number of connections for reads.
    pub readers: usize,
    /// Maximum number of queued publishes; further ones are refused as overload.
    pub max_queued_publishes: usize,
    /// Maximum bytes of queued publishes.
    pub max_queued_bytes: usize,
    /// Whether several engines of this process use the store concurrently, as in tests.
    pub shared: bool,
    /// Vault that seals and unseals webhooks; `None` if no webhook is read or written.
    pub vault: Option<Vault>,
}

impl Options {
    /// Returns the default options for a database at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers: 4,
            max_queued_publishes: 20_000,
            max_queued_bytes: 64 << 20,
            shared: false,
            vault: None,
        }
    }

    /// Sets the vault that seals and unseals webhooks.
    pub fn with_vault(self, vault: Vault) -> Self {
        Self { vault: Some(vault), ..self }
    }
}

/// The embedded store. Dropping it finishes queued writes and closes the file.
pub struct Sqlite {
    writer: Writer,
    readers: Readers,
    shared: bool,
    seals: WebhookSealer,
    // Held while the store is open: only one process may have the file open.
    _lock: File,
}

impl Sqlite {
    /// Opens the database, creating or upgrading it first.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let lock = lock(&options.path)?;
        let mut connection = connect(&options.path)?;
        schema::prepare(&mut connection, &options.path)?;
        if !options.shared {
            changes::delete_all(&connection).map_err(|error| unusable(&options.path, &error))?;
        }
        let files = DatabaseFiles::new(&options.path);
        let readers = Readers::open(options, files.clone())?;
        let database = Database { connection, files, writes_change_feed: options.shared };
        let writer = Writer::start(database, options, readers.gate());
        let seals = WebhookSealer(options.vault.clone());
        Ok(Self { writer, readers, shared: options.shared, seals, _lock: lock })
    }

    /// Ends the writer while the store is open, as a bug might: for tests.
    #[cfg(feature = "conformance")]
    pub fn end_writer(&self) {
        self.writer.end();
    }

    /// Runs a write in its own transaction.
    fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (job, result) = result_slot::for_write(change);
        Box::pin(async move {
            self.writer.run(job).await?;
            result.take()
        })
    }

    /// Runs a read for the engine, without delaying the writer.
    fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (job, result) = result_slot::for_read(question);
        Box::pin(async move {
            self.readers.run(job).await?;
            result.take()
        })
    }

    /// Runs a read for a user.
    fn read_for_user<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (job, result) = result_slot::for_read(question);
        Box::pin(async move {
            self.readers.run_for_user(job).await?;
            result.take()
        })
    }

    /// Runs a read for a user that may take long; the number of concurrent ones per tenant is limited.
    fn list_for<T: Send + 'static>(
        &self,
        tenant_id: TenantId,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (job, result) = result_slot::for_read(question);
        Box::pin(async move {
            self.readers.run_listing(&tenant_id, job).await?;
            result.take()
        })
    }

    /// Runs a read over all tenants for an admin; the number of concurrent ones is limited.
    fn list_for_all_tenants<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let (job, result) = result_slot::for_read(question);
        Box::pin(async move {
            self.readers.run_for_all_tenants(job).await?;
            result.take()
        })
    }

    /// Runs a listing of the given tenant, or of all tenants if there is none, for a user.
    fn list_for_selection<T: Send + 'static>(
        &self,
        tenant_id: Option<TenantId>,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        match tenant_id {
            Some(tenant_id) => self.list_for(tenant_id, question),
            None => self.list_for_all_tenants(question),
        }
    }

    /// Runs a read for the given tenant, or for the engine if there is none.
    fn read_for<T: Send + 'static>(
        &self,
        tenant_id: Option<TenantId>,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        match tenant_id {
            Some(tenant_id) => self.list_for(tenant_id, question),
            None => self.read(question),
        }
    }
}

/// Returns the path of the write-ahead log of a database.
fn log_path(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

fn unusable(path: &Path, reason: &impl ToString) -> OpenError {
    OpenError::Unusable { path: path.display().to_string(), reason: reason.to_string() }
}

fn lock(path: &Path) -> Result<File, OpenError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        make_private_folder(folder).map_err(|error| unusable(path, &error))?;
    }
    let lock_path = path.with_added_extension("lock");
    let file = private_options().open(&lock_path).map_err(|error| unusable(path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.display().to_string() }),
        Err(TryLockError::Error(error)) => Err(unusable(path, &error)),
    }
}

/// Creates the folder with access for its owner only, since the files contain secrets and payloads.
fn make_private_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Opens the connection for writes.
fn connect(path: &Path) -> Result<Connection, OpenError> {
    // SQLite would create the file with read access for all users.
    private_options().open(path).map_err(|error| unusable(path, &error))?;
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open(path)?;
        // On macOS fsync returns before the drive has written its cache; only F_FULLFSYNC waits for it. SQLite ignores
        // both settings on other systems.
        connection.execute_batch(
            "PRAGMA fullfsync = 1;
             PRAGMA checkpoint_fullfsync = 1;
             PRAGMA page_size = 4096;
             PRAGMA auto_vacuum = INCREMENTAL;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 4000;
             PRAGMA journal_size_limit = 67108864;
             PRAGMA cache_size = -4096;
             PRAGMA temp_store = MEMORY;",
        )?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(connection)
    };
    open().map_err(|error| unusable(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_connection_syncs_every_commit_to_the_drive() {
        let folder = tempfile::tempdir().unwrap();
        let connection = connect(&folder.path().join("redrive.db")).unwrap();
        let setting = |name: &str| {
            connection.query_row(&format!("PRAGMA {name}"), (), |row| row.get::<_, i64>(0)).unwrap()
        };
        // 2 is FULL.
        assert_eq!(setting("synchronous"), 2);
        assert_eq!((setting("fullfsync"), setting("checkpoint_fullfsync")), (1, 1));
    }
}

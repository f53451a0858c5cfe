//! The embedded store: one SQLite file, one writer thread, a few readers.
//!
//! WAL with `synchronous=FULL`, and `fullfsync` for macOS: what was acknowledged survives a power cut. One process has
//! the file at a time, so at start every lease is an orphan of the process before.

mod archive_outbox;
mod audit;
mod backlog;
mod browser_sessions;
mod changes;
mod claim;
mod clock;
mod convert;
mod dead;
mod erase;
mod event_types;
pub(crate) mod export;
mod file;
mod history;
mod lanes;
mod listing;
mod log;
mod mail_addresses;
mod maintenance;
mod nodes;
mod notifications;
mod operations;
mod prune;
mod publish;
mod readers;
mod record;
mod redrive;
mod result_slot;
mod runtime_state;
mod scan;
mod schema;
mod statistics;
mod tenancy;
mod tickets;
mod transaction;
mod unsubscriptions;
mod webhooks;
mod writer;

/// The statements of listings, each with what it is called: for tests that look at their plans.
#[cfg(feature = "conformance")]
pub fn planned_statements() -> Vec<(String, String)> {
    listing::planned()
}

use std::{
    fs::{File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
};

use redrive_core::{TenantId, security::vault::Vault};
use rusqlite::Connection;

use self::{
    file::DatabaseFiles,
    readers::Readers,
    transaction::{Database, WriteTransaction},
    writer::Writer,
};
use crate::{Answer, error::OpenError, sealed::Seals};

/// The statements by which waiting work is found, for tests that look at their plans.
#[cfg(feature = "conformance")]
pub fn hot_statements() -> &'static [&'static str] {
    &claim::HOT
}

/// The statements whose cost must follow what they answer or change, for the same tests.
#[cfg(feature = "conformance")]
pub fn bounded_statements() -> Vec<&'static str> {
    [
        &tickets::BOUNDED[..],
        &runtime_state::BOUNDED,
        &backlog::BOUNDED,
        &statistics::BOUNDED,
        &dead::BOUNDED,
        &prune::BOUNDED,
        &erase::BOUNDED,
        &notifications::BOUNDED,
        &mail_addresses::BOUNDED,
    ]
    .concat()
}

/// How the store is to be opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database file; made if it is not there.
    pub path: PathBuf,
    /// Connections that read.
    pub readers: usize,
    /// Publishes that may wait for the writer; more are refused as overload.
    pub max_waiting: usize,
    /// Bytes that those may hold.
    pub max_waiting_bytes: usize,
    /// Whether several engines of this process use it at once, as tests do.
    pub shared: bool,
    /// What opens and seals webhooks; none where no webhook is read or written.
    pub vault: Option<Vault>,
}

impl Options {
    /// The usual options for a database at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            readers: 4,
            max_waiting: 20_000,
            max_waiting_bytes: 64 << 20,
            shared: false,
            vault: None,
        }
    }

    /// The same for webhooks that this vault opens and seals.
    pub fn sealed_by(self, vault: Vault) -> Self {
        Self { vault: Some(vault), ..self }
    }
}

/// The embedded store. Dropping it finishes what waits and closes the file.
pub struct Sqlite {
    writer: Writer,
    readers: Readers,
    shared: bool,
    seals: Seals,
    // Held for as long as the store is open: one process has the file.
    _lock: File,
}

impl Sqlite {
    /// Opens the database, making or upgrading it first.
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
        let seals = Seals(options.vault.clone());
        Ok(Self { writer, readers, shared: options.shared, seals, _lock: lock })
    }

    /// Ends the writer while the store is open, as a fault in the program might: for tests.
    #[cfg(feature = "conformance")]
    pub fn end_writer(&self) {
        self.writer.end();
    }

    /// Runs a change of its own in one transaction.
    fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<'_, T> {
        let (job, result) = result_slot::for_write(change);
        Box::pin(async move {
            self.writer.run(job).await?;
            result.take()
        })
    }

    /// Answers a question without holding up the writer.
    fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<'_, T> {
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
    ) -> Answer<'_, T> {
        let (job, result) = result_slot::for_read(question);
        Box::pin(async move {
            self.readers.run_for_user(job).await?;
            result.take()
        })
    }

    /// Runs a read for a user that may take long; few of each tenant run at the same time.
    fn list_for<T: Send + 'static>(
        &self,
        tenant: TenantId,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<'_, T> {
        let (job, result) = result_slot::for_read(question);
        Box::pin(async move {
            self.readers.run_listing(&tenant, job).await?;
            result.take()
        })
    }

    /// Runs a read for the tenant that asked, or for the engine.
    fn read_for<T: Send + 'static>(
        &self,
        tenant: Option<TenantId>,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<'_, T> {
        match tenant {
            Some(tenant) => self.list_for(tenant, question),
            None => self.read(question),
        }
    }
}

/// The write-ahead log of a database.
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

/// Secrets and payloads are in here: for the owner's eyes only.
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

/// A connection that writes.
fn connect(path: &Path) -> Result<Connection, OpenError> {
    // SQLite would make the file readable by everybody.
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
             PRAGMA temp_store = MEMORY;
             PRAGMA busy_timeout = 5000;",
        )?;
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

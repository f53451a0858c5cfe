//! Online backup: copies a database that a server may have open, from another process.
//!
//! The copy is read in one transaction, so it is the state of one moment. The server continues to commit; its
//! write-ahead log grows until the copy is complete, because a reader keeps it from being reset.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{
    Connection, ErrorCode, OpenFlags,
    backup::{Backup, StepResult},
};

use super::schema;

/// Pages of 4 KiB copied between two progress reports: about a hundredth of a second of an SSD's time.
const PAGES_PER_STEP: i32 = 2_048;
/// Delay after a step that found the database locked by another program.
const LOCKED_STEP_DELAY: Duration = Duration::from_millis(50);
/// Maximum number of consecutive steps that find the database locked: half a minute of delays.
const MAX_LOCKED_STEPS: u32 = 600;
/// Tables whose rows are counted.
const COUNTED_TABLES: [&str; 2] = ["events", "deliveries"];

/// Result of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// Size of the copy, in bytes.
    pub bytes: u64,
    /// Number of stored events.
    pub events: u64,
    /// Number of stored deliveries.
    pub deliveries: u64,
}

/// Reason why there is no backup. The target file does not exist then.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// There is no database to copy.
    #[error("{} is not a database of Redrive: {reason}", path.display())]
    NoSource {
        /// Path of the database.
        path: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// The target exists, or cannot be written.
    #[error("{} cannot be written: {reason}", path.display())]
    Target {
        /// Path of the target.
        path: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// The database could not be read to its end.
    #[error("copying {} failed: {reason}", path.display())]
    Copy {
        /// Path of the database.
        path: PathBuf,
        /// Cause of the failure.
        reason: String,
    },
    /// The copy did not pass the check: usually the database itself is damaged.
    #[error(
        "the database {path} or its copy is damaged, and the copy was deleted: {reason}; check the database with: \
         sqlite3 -readonly '{path}' 'PRAGMA integrity_check', and the disk",
        path = path.display()
    )]
    Damaged {
        /// Path of the database.
        path: PathBuf,
        /// First finding of the check.
        reason: String,
    },
}

/// Copies the database at `source` to the new file `target`, checks the copy and syncs it to the disk. `progress` gets
/// the copied and the total number of pages.
pub fn back_up(
    source: &Path,
    target: &Path,
    mut progress: impl FnMut(u64, u64),
) -> Result<BackupReport, BackupError> {
    let unreadable =
        |error: rusqlite::Error| BackupError::NoSource { path: source.to_owned(), reason: error.to_string() };
    let connection = open_source(source).map_err(unreadable)?;
    if !schema::is_ours(&connection).map_err(unreadable)? {
        let reason = "another program created it; check database.url".into();
        return Err(BackupError::NoSource { path: source.to_owned(), reason });
    }
    if let Some(table) = missing_table(&connection).map_err(unreadable)? {
        let reason =
            format!("it has no table {table}; create it by starting a server, or check database.url");
        return Err(BackupError::NoSource { path: source.to_owned(), reason });
    }
    let partial = PartialFile::create(target)?;
    let failed = |reason: String| BackupError::Copy { path: source.to_owned(), reason };
    let damaged = |reason: String| BackupError::Damaged { path: source.to_owned(), reason };
    copy(&connection, &partial.path, &mut progress).map_err(|error| failed(error.to_string()))?;
    let counts = check(&partial.path).map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => damaged(error.to_string()),
        _ => failed(error.to_string()),
    })?;
    let Counts { events, deliveries } = counts.map_err(damaged)?;
    let bytes = std::fs::metadata(&partial.path).map_err(|error| failed(error.to_string()))?.len();
    partial.finish(target)?;
    Ok(BackupReport { bytes, events, deliveries })
}

/// Returns the first of the counted tables that the database does not have.
fn missing_table(connection: &Connection) -> rusqlite::Result<Option<&'static str>> {
    for table in COUNTED_TABLES {
        if !connection.table_exists(None, table)? {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Opens the database for reads. The file must exist.
fn open_source(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch("PRAGMA busy_timeout = 5000; PRAGMA cache_size = -8192;")?;
    Ok(connection)
}

fn copy(source: &Connection, target: &Path, progress: &mut impl FnMut(u64, u64)) -> rusqlite::Result<()> {
    // The transaction keeps the state of its first read. Without it SQLite would begin again at every commit of the
    // server, and never finish under load.
    let snapshot = source.unchecked_transaction()?;
    snapshot.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get::<_, i64>(0))?;
    let mut copy = Connection::open(target)?;
    // The file is synced once when it is complete.
    copy.execute_batch("PRAGMA synchronous = OFF;")?;
    let backup = Backup::new(source, &mut copy)?;
    let mut locked_steps = 0;
    loop {
        let result = backup.step(PAGES_PER_STEP)?;
        let counts = backup.progress();
        let (total, remaining) = (counts.pagecount.unsigned_abs(), counts.remaining.unsigned_abs());
        progress(u64::from(total.saturating_sub(remaining)), u64::from(total));
        match result {
            StepResult::Done => break,
            StepResult::More => locked_steps = 0,
            _ if locked_steps < MAX_LOCKED_STEPS => {
                locked_steps += 1;
                std::thread::sleep(LOCKED_STEP_DELAY);
            }
            _ => {
                let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
                let reason = "another program keeps the database locked; end it, and run the backup again";
                return Err(rusqlite::Error::SqliteFailure(busy, Some(reason.into())));
            }
        }
    }
    drop(backup);
    // The copy is one file without a log, whatever the journal mode of the source is.
    copy.execute_batch("PRAGMA journal_mode = DELETE;")?;
    copy.close().map_err(|(_, error)| error)
}

/// Numbers of rows in a copy.
#[derive(Debug)]
struct Counts {
    events: u64,
    deliveries: u64,
}

/// Checks the copy: every page, every index, and the numbers of rows. Returns the first finding if it is damaged.
fn check(path: &Path) -> rusqlite::Result<Result<Counts, String>> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let finding: String = connection.query_row("PRAGMA integrity_check(1)", (), |row| row.get(0))?;
    if finding != "ok" {
        return Ok(Err(finding));
    }
    let count = |table: &str| {
        let count = format!("SELECT count(*) FROM {table}");
        connection.query_row(&count, (), |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
    };
    let [events, deliveries] = COUNTED_TABLES;
    Ok(Ok(Counts { events: count(events)?, deliveries: count(deliveries)? }))
}

const TARGET_EXISTS: &str = "the file exists; name a new file, or delete it first";

/// File that is written, which is deleted unless it is finished.
struct PartialFile {
    path: PathBuf,
}

impl PartialFile {
    /// Creates `TARGET.partial` with access for its owner only. Fails if the target exists.
    fn create(target: &Path) -> Result<Self, BackupError> {
        let failed = |path: &Path, reason: String| BackupError::Target { path: path.to_owned(), reason };
        if target.is_dir() {
            return Err(failed(target, "it is a folder; name a file in it".into()));
        }
        if target.exists() {
            return Err(failed(target, TARGET_EXISTS.into()));
        }
        let path = target.with_added_extension("partial");
        let mut options = OpenOptions::new();
        options.create_new(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&path) {
            Ok(_) => Ok(Self { path }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let reason = "it exists, so another backup is running or was interrupted; delete it first";
                Err(failed(&path, reason.into()))
            }
            Err(error) => Err(failed(&path, error.to_string())),
        }
    }

    /// Syncs the file and gives it its name, unless a file of that name was created in the meantime.
    fn finish(self, target: &Path) -> Result<(), BackupError> {
        let failed = |reason: String| BackupError::Target { path: target.to_owned(), reason };
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(|error| failed(error.to_string()))?;
        name_new(&self.path, target).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => failed(TARGET_EXISTS.into()),
            _ => failed(error.to_string()),
        })?;
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        synced.map_err(|error| {
            // The name could be lost in a power failure, so this is not a backup.
            let _ = std::fs::remove_file(target);
            failed(error.to_string())
        })
    }
}

/// Renames a file. Unlike `std::fs::rename`, fails if the target exists.
fn name_new(path: &Path, target: &Path) -> io::Result<()> {
    match std::fs::hard_link(path, target) {
        Ok(()) => std::fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) => reserve_and_rename(path, target),
    }
}

/// Renames a file on a file system without hard links: an empty file reserves the name, and is replaced.
fn reserve_and_rename(path: &Path, target: &Path) -> io::Result<()> {
    File::create_new(target)?;
    std::fs::rename(path, target).inspect_err(|_| {
        let _ = std::fs::remove_file(target);
    })
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After `finish` there is no such file.
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(self.path.with_added_extension("journal"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{Options, Sqlite, connect};

    fn database(folder: &Path) -> PathBuf {
        let path = folder.join("redrive.db");
        Sqlite::open(&Options::at(&path)).unwrap();
        path
    }

    #[test]
    fn copy_made_during_commits_is_the_state_of_one_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path());
        let writer = connect(&path).unwrap();
        writer.execute_batch("CREATE TABLE pairs (a INTEGER, b INTEGER, filler BLOB);").unwrap();
        let insert = |n: i64| {
            writer.execute("INSERT INTO pairs VALUES (?1, ?1, zeroblob(4000))", [n]).unwrap();
            writer.execute("UPDATE pairs SET b = b + 1, a = a + 1", ()).unwrap();
        };
        (0..3_000).for_each(|n| {
            writer.execute("INSERT INTO pairs VALUES (?1, ?1, zeroblob(4000))", [n]).unwrap();
        });
        let target = folder.path().join("copy.db");
        let mut steps = Vec::new();
        // A commit between any two steps: it changes every row, and must not be in the copy.
        let report = back_up(&path, &target, |done, total| {
            insert(9_000);
            steps.push((done, total));
        })
        .unwrap();
        assert!(steps.len() > 1 && steps.last().unwrap().0 == steps.last().unwrap().1, "{steps:?}");
        let copy = Connection::open(&target).unwrap();
        let (rows, changed): (i64, i64) = copy
            .query_row("SELECT count(*), sum(a = 9001) FROM pairs", (), |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        assert_eq!((rows, changed), (3_000, 0));
        assert_eq!(report.bytes, std::fs::metadata(&target).unwrap().len());
        assert!(!folder.path().join("copy.db.partial").exists());
    }

    #[test]
    fn copy_opens_as_a_store_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path());
        let open = Sqlite::open(&Options::at(&path)).unwrap();
        let target = folder.path().join("copy.db");
        back_up(&path, &target, |_, _| {}).unwrap();
        drop(open);
        Sqlite::open(&Options::at(&target)).unwrap();
        assert_eq!(std::fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn existing_target_missing_source_and_foreign_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path());
        let (target, missing) = (folder.path().join("copy.db"), folder.path().join("none.db"));
        let message =
            |source: &Path, target: &Path| back_up(source, target, |_, _| {}).unwrap_err().to_string();
        assert!(message(&missing, &target).contains("none.db"));
        assert!(!missing.exists() && !target.exists());
        let foreign = folder.path().join("foreign.db");
        Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE a (b)").unwrap();
        assert!(message(&foreign, &target).contains("another program created it"));
        std::fs::write(&target, "mine").unwrap();
        assert!(message(&path, &target).contains("name a new file"));
        assert!(message(&path, folder.path()).contains("name a file in it"));
        assert_eq!(std::fs::read(&target).unwrap(), b"mine");
        std::fs::remove_file(&target).unwrap();
        std::fs::write(folder.path().join("copy.db.partial"), "").unwrap();
        assert!(message(&path, &target).contains("another backup"));
    }

    #[test]
    fn damaged_copy_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.db");
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE events (a); CREATE TABLE deliveries (a); CREATE INDEX one ON events (a);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
                 INSERT INTO events SELECT i FROM n;",
            )
            .unwrap();
        drop(connection);
        assert_eq!(check(&path).unwrap().unwrap().events, 5_000);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 8_192].fill(0x5a);
        std::fs::write(&path, bytes).unwrap();
        assert!(check(&path).is_err() || check(&path).unwrap().is_err());
    }

    #[test]
    fn damaged_database_is_named_with_the_command_to_check_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path());
        let connection = connect(&path).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE filler (a); CREATE INDEX by_a ON filler (a);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
                 INSERT INTO filler SELECT i FROM n;
                 PRAGMA wal_checkpoint(TRUNCATE);",
            )
            .unwrap();
        drop(connection);
        let mut bytes = std::fs::read(&path).unwrap();
        let near_the_end = bytes.len() - 20_480;
        bytes[near_the_end..near_the_end + 8_192].fill(0x5a);
        std::fs::write(&path, bytes).unwrap();
        let target = folder.path().join("copy.db");
        let error = back_up(&path, &target, |_, _| {}).unwrap_err();
        assert!(matches!(error, BackupError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("'PRAGMA integrity_check'"), "{error}");
        assert_eq!((target.exists(), target.with_added_extension("partial").exists()), (false, false));
    }

    #[test]
    fn database_without_its_tables_is_not_called_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let path = database(folder.path());
        connect(&path)
            .unwrap()
            .execute_batch("PRAGMA foreign_keys = OFF; ALTER TABLE deliveries RENAME TO gone")
            .unwrap();
        let error = back_up(&path, &folder.path().join("copy.db"), |_, _| {}).unwrap_err();
        assert!(matches!(error, BackupError::NoSource { .. }), "{error}");
        assert!(error.to_string().contains("it has no table deliveries"), "{error}");
    }

    #[test]
    fn file_created_during_the_copy_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (database(folder.path()), folder.path().join("copy.db"));
        let error = back_up(&path, &target, |_, _| std::fs::write(&target, "mine").unwrap()).unwrap_err();
        assert!(error.to_string().contains("name a new file"), "{error}");
        assert_eq!(std::fs::read(&target).unwrap(), b"mine");
        assert!(!target.with_added_extension("partial").exists());
        // Without hard links, the same holds.
        let copy = folder.path().join("copy");
        std::fs::write(&copy, "copy").unwrap();
        let error = reserve_and_rename(&copy, &target).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&target).unwrap(), b"mine");
        std::fs::remove_file(&target).unwrap();
        reserve_and_rename(&copy, &target).unwrap();
        assert_eq!((std::fs::read(&target).unwrap(), copy.exists()), (b"copy".to_vec(), false));
    }
}

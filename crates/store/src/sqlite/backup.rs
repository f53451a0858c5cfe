//! Online backup: copies a database that a server may have open, from another process.
//!
//! The copy is read in one transaction, so it is the state of one moment. The server continues to commit; its
//! write-ahead log grows until the copy is complete, because a reader keeps it from being reset.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use rusqlite::{
    Connection, OpenFlags,
    backup::{Backup, StepResult},
};

use super::schema;

/// Pages of 4 KiB copied between two progress reports: about a hundredth of a second of an SSD's time.
const PAGES_PER_STEP: i32 = 2_048;

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
    /// The copy is damaged.
    #[error("the copy of {} is damaged and was deleted: {reason}; check the disk, and run the backup again", path.display())]
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
    let partial = PartialFile::create(target)?;
    copy(&connection, &partial.path, &mut progress)
        .map_err(|error| BackupError::Copy { path: source.to_owned(), reason: error.to_string() })?;
    let report =
        check(&partial.path).map_err(|reason| BackupError::Damaged { path: source.to_owned(), reason })?;
    partial.finish(target)?;
    Ok(report)
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
    loop {
        let result = backup.step(PAGES_PER_STEP)?;
        let counts = backup.progress();
        let (total, remaining) = (counts.pagecount.unsigned_abs(), counts.remaining.unsigned_abs());
        progress(u64::from(total.saturating_sub(remaining)), u64::from(total));
        match result {
            StepResult::Done => break,
            StepResult::More => {}
            // Another program holds a lock for a moment.
            _ => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
    drop(backup);
    // The copy is one file without a log, whatever the journal mode of the source is.
    copy.execute_batch("PRAGMA journal_mode = DELETE;")?;
    copy.close().map_err(|(_, error)| error)
}

/// Checks the copy: every page, every index, and the numbers of rows.
fn check(path: &Path) -> Result<BackupReport, String> {
    let read = || -> rusqlite::Result<(String, u64, u64)> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let findings = connection.query_row("PRAGMA integrity_check(1)", (), |row| row.get(0))?;
        let count = |table: &str| {
            connection.query_row(&format!("SELECT count(*) FROM {table}"), (), |row| row.get::<_, i64>(0))
        };
        Ok((findings, count("events")?.unsigned_abs(), count("deliveries")?.unsigned_abs()))
    };
    let (findings, events, deliveries) = read().map_err(|error| error.to_string())?;
    if findings != "ok" {
        return Err(findings);
    }
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    Ok(BackupReport { bytes, events, deliveries })
}

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
            return Err(failed(target, "the file exists; name a new file, or delete it first".into()));
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

    /// Syncs the file and gives it its name.
    fn finish(self, target: &Path) -> Result<(), BackupError> {
        let finish = || {
            File::open(&self.path)?.sync_all()?;
            std::fs::rename(&self.path, target)?;
            let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        finish().map_err(|error: io::Error| BackupError::Target {
            path: target.to_owned(),
            reason: error.to_string(),
        })
    }
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
        assert_eq!(check(&path).unwrap().events, 5_000);
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..middle + 8_192].fill(0x5a);
        std::fs::write(&path, bytes).unwrap();
        assert!(check(&path).is_err());
    }
}

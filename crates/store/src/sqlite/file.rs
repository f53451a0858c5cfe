//! Detects that the database file, or its write-ahead log, was removed or replaced while it is open.
//!
//! SQLite keeps writing into the open file, which no longer has a name: a commit succeeds, and a restart does not
//! find it. An open file keeps its inode, so no other file can have the same number: the path still names the open
//! file if and only if device and inode are the same.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use crate::error::StoreError;

/// Advice for saving a deleted file that is still open. macOS gives no access to the open files of another
/// process.
const COPY_OPEN_FILE: &str = if cfg!(target_os = "linux") {
    "The process still has the former file open: copy it from /proc/PID/fd before the restart if there is no other copy. "
} else {
    ""
};

/// Device and inode of a file.
type FileId = (u64, u64);

/// Files of an open database. Clones share the result: once a file is missing, the store stays unavailable until
/// it is opened again.
#[derive(Clone)]
pub(super) struct DatabaseFiles(Arc<Shared>);

struct Shared {
    database: PathBuf,
    database_id: Option<FileId>,
    log: PathBuf,
    /// SQLite creates the log with the first transaction and keeps it until the last connection is closed.
    log_id: OnceLock<FileId>,
    failure: OnceLock<String>,
}

impl DatabaseFiles {
    /// Records the identity of the files of a database that was just opened.
    pub(super) fn new(database: &Path) -> Self {
        Self(Arc::new(Shared {
            database: database.to_owned(),
            database_id: read_id(database).ok(),
            log: super::log_path(database),
            log_id: OnceLock::new(),
            failure: OnceLock::new(),
        }))
    }

    /// Returns the failure that an earlier check has found, without checking the files again.
    pub(super) fn failure(&self) -> Result<(), StoreError> {
        match self.0.failure.get() {
            Some(reason) => Err(StoreError::Unavailable(reason.clone())),
            None => Ok(()),
        }
    }

    /// Checks that both paths still name the open files. Must be called after each commit and before its result is
    /// reported: two `stat` calls, about a microsecond each.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.failure()?;
        let files = &*self.0;
        if let Some(expected) = files.database_id {
            self.compare(&files.database, expected)?;
        }
        match files.log_id.get() {
            Some(expected) => self.compare(&files.log, *expected),
            None => {
                // The first transaction has created it.
                if let Ok(id) = read_id(&files.log) {
                    files.log_id.get_or_init(|| id);
                }
                Ok(())
            }
        }
    }

    fn compare(&self, path: &Path, expected: FileId) -> Result<(), StoreError> {
        let what_happened = match read_id(path) {
            Ok(found) if found == expected => return Ok(()),
            Ok(_) => "was replaced by another file",
            Err(error) if error.kind() == ErrorKind::NotFound => "was removed or moved",
            // The path cannot be read at the moment. This does not prove that the file is gone.
            Err(error) => {
                return Err(StoreError::Unavailable(format!(
                    "{} cannot be checked: {error}",
                    path.display()
                )));
            }
        };
        let reason = format!(
            "{} {what_happened} while in use; nothing is stored any more. Restore the file, then restart redrive",
            path.display()
        );
        if self.0.failure.set(reason.clone()).is_ok() {
            tracing::error!(
                path = %path.display(),
                "the database file {what_happened} while in use; publishing and sending are stopped. {COPY_OPEN_FILE}Put \
                 the file back, then restart redrive"
            );
        }
        Err(StoreError::Unavailable(reason))
    }
}

#[cfg(unix)]
fn read_id(path: &Path) -> std::io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Only the existence is checked on systems without inodes, where an open file cannot be removed anyway.
#[cfg(not(unix))]
fn read_id(path: &Path) -> std::io::Result<FileId> {
    std::fs::metadata(path).map(|_| (0, 0))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn opened() -> (tempfile::TempDir, PathBuf, DatabaseFiles) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redrive.db");
        fs::write(&path, "database").unwrap();
        fs::write(super::super::log_path(&path), "log").unwrap();
        let files = DatabaseFiles::new(&path);
        files.check().unwrap();
        (folder, path, files)
    }

    #[track_caller]
    fn assert_failed(files: &DatabaseFiles, expected: &str) {
        let error = files.check().unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("restart redrive"), "{error}");
    }

    #[test]
    fn unchanged_files_pass() {
        let (_folder, path, files) = opened();
        fs::write(&path, "other content").unwrap();
        fs::hard_link(&path, path.with_extension("backup")).unwrap();
        assert_eq!(files.check(), Ok(()));
    }

    #[test]
    fn removed_file_stays_failed_after_it_is_restored() {
        let (folder, path, files) = opened();
        let clone = files.clone();
        let aside = folder.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        assert_failed(&files, "redrive.db was removed or moved");
        fs::rename(&aside, &path).unwrap();
        assert_failed(&files, "redrive.db was removed or moved");
        assert!(clone.failure().is_err(), "clones share the result");
    }

    #[test]
    fn replaced_database_and_log_are_detected() {
        for name in ["redrive.db", "redrive.db-wal"] {
            let (folder, _, files) = opened();
            let other = folder.path().join("other");
            fs::write(&other, "another").unwrap();
            fs::rename(&other, folder.path().join(name)).unwrap();
            assert_failed(&files, &format!("{name} was replaced"));
        }
    }

    #[test]
    fn removed_log_is_detected() {
        let (_folder, path, files) = opened();
        fs::remove_file(super::super::log_path(&path)).unwrap();
        assert_failed(&files, "redrive.db-wal was removed");
    }
}

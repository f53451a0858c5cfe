//! Limits the size of the write-ahead log.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::{log_path, readers::ReadPermits};

/// Write-ahead log. SQLite's automatic checkpoints copy it into the database, but it is reset only at a moment
/// without readers, which may never come under load. So readers are made to wait for the reset.
pub(super) struct WalFile {
    path: PathBuf,
    readers: ReadPermits,
    /// Size at which the log is reset.
    limit: u64,
}

impl WalFile {
    const MAX_WAL_BYTES: u64 = 32 << 20;

    pub(super) fn new(database: &Path, readers: ReadPermits) -> Self {
        Self { path: log_path(database), readers, limit: Self::MAX_WAL_BYTES }
    }

    /// Resets a large log as soon as the current reads have ended or were interrupted.
    pub(super) fn checkpoint_if_large(&mut self, connection: &Connection) {
        let size = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        if size < self.limit {
            return;
        }
        let _alone = self.readers.blocking_write();
        let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get::<_, bool>(0));
        self.limit = match busy {
            Ok(false) => Self::MAX_WAL_BYTES,
            // Another program reads the file. Each try delays the writer, so it is not repeated at every commit.
            _ => size + Self::MAX_WAL_BYTES,
        };
        if self.limit > Self::MAX_WAL_BYTES {
            tracing::warn!(bytes = size, "the write-ahead log grows: another program reads the database");
        }
    }
}

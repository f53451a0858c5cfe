//! The size of the write-ahead log.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::{log_path, readers::Gate};

/// The write-ahead log. SQLite's own checkpoints copy it into the database on the way, but it starts over
/// only at a moment without readers, which may never come under load. So readers are made to wait for it.
pub(super) struct Log {
    path: PathBuf,
    readers: Gate,
    /// The size at which it is made to start over.
    limit: u64,
}

impl Log {
    const LIMIT: u64 = 32 << 20;

    pub(super) fn of(database: &Path, readers: Gate) -> Self {
        Self { path: log_path(database), readers, limit: Self::LIMIT }
    }

    /// Has a large log start over, as soon as those who read now are done or stopped.
    pub(super) fn rein_in(&mut self, connection: &Connection) {
        let size = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        if size < self.limit {
            return;
        }
        let _alone = self.readers.blocking_write();
        let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get::<_, bool>(0));
        self.limit = match busy {
            Ok(false) => Self::LIMIT,
            // Another program reads the file. Each try holds up the writer, so not at every commit.
            _ => size + Self::LIMIT,
        };
        if self.limit > Self::LIMIT {
            tracing::warn!(bytes = size, "the write-ahead log grows: another program reads the database");
        }
    }
}

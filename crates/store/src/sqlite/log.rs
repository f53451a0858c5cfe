//! Limits the size of the write-ahead log.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::Connection;

use super::{BUSY_TIMEOUT, log_path, readers::ReadPermits};

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
        // Waiting for a reader of another process, such as a backup, would stop all writes for the busy timeout.
        let busy = connection.busy_timeout(Duration::ZERO).and_then(|()| {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get::<_, bool>(0))
        });
        if let Err(error) = connection.busy_timeout(BUSY_TIMEOUT) {
            tracing::warn!(%error, "setting the busy timeout failed");
        }
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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Instant};

    use tokio::sync::RwLock;

    use super::*;
    use crate::sqlite::connect;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test measures a wait")]
    fn reader_of_another_process_does_not_delay_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("redrive.db");
        let writer = connect(&path).unwrap();
        writer.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1);").unwrap();
        // Like a backup: a connection that is not among this process's readers, with an open read transaction.
        let other = Connection::open(&path).unwrap();
        let snapshot = other.unchecked_transaction().unwrap();
        snapshot.query_row("SELECT count(*) FROM t", (), |row| row.get::<_, i64>(0)).unwrap();
        writer.execute_batch("INSERT INTO t VALUES (zeroblob(100000));").unwrap();
        let mut log = WalFile { path: log_path(&path), readers: Arc::new(RwLock::new(())), limit: 1 };
        let began = Instant::now();
        log.checkpoint_if_large(&writer);
        assert!(began.elapsed() < BUSY_TIMEOUT / 2, "{:?}", began.elapsed());
        assert!(log.limit > WalFile::MAX_WAL_BYTES, "the next try is later");
        drop(snapshot);
        log.limit = 1;
        log.checkpoint_if_large(&writer);
        assert_eq!(
            std::fs::metadata(log_path(&path)).unwrap().len(),
            0,
            "the log is reset without the reader"
        );
        let timeout: i64 = writer.query_row("PRAGMA busy_timeout", (), |row| row.get(0)).unwrap();
        assert_eq!(timeout, 5_000);
    }
}

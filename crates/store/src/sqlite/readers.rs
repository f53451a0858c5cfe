//! Connections that only read, lent out one question at a time. A question that takes longer than two
//! seconds is stopped: long readers would keep the write-ahead log from shrinking.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use super::{Options, unusable, writer::store_error};
use crate::error::{OpenError, StoreError};

const PATIENCE: Duration = Duration::from_secs(2);

pub(super) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    free: Arc<Semaphore>,
    path: PathBuf,
}

impl Readers {
    pub(super) fn open(options: &Options) -> Result<Self, OpenError> {
        let path = options.path.clone();
        let first = connect(&path).map_err(|error| unusable(&path, &error))?;
        let free = Arc::new(Semaphore::new(options.readers));
        Ok(Self { idle: Arc::new(Mutex::new(vec![first])), free, path })
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let closed = |_| StoreError::Unavailable("the store is closed".into());
        let turn = self.free.clone().acquire_owned().await.map_err(closed)?;
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path).map_err(|error| store_error(&error))?,
        };
        let home = self.idle.clone();
        // A task of its own: if whoever asked goes away, the turn still lasts as long as the query does.
        let task = tokio::spawn(async move {
            let (answer, connection) = ask(connection, question).await?;
            home.lock().push(connection);
            drop(turn);
            answer.map_err(|error| store_error(&error))
        });
        task.await.unwrap_or_else(|failed| Err(StoreError::Unavailable(failed.to_string())))
    }
}

/// Asks, and stops a query that takes too long.
async fn ask<T: Send + 'static>(
    connection: Connection,
    question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> Result<(rusqlite::Result<T>, Connection), StoreError> {
    let stop = connection.get_interrupt_handle();
    let mut answer = tokio::task::spawn_blocking(move || (question(&connection), connection));
    let answered = match tokio::time::timeout(PATIENCE, &mut answer).await {
        Ok(answered) => answered,
        Err(_) => {
            stop.interrupt();
            answer.await
        }
    };
    answered.map_err(|panic| StoreError::Unavailable(panic.to_string()))
}

fn connect(path: &PathBuf) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.execute_batch(
        "PRAGMA cache_size = -4096; PRAGMA temp_store = MEMORY; PRAGMA busy_timeout = 2000;",
    )?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_query_that_takes_too_long_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { readers: 1, ..Options::at(folder.path().join("redrive.db")) };
        Connection::open(&options.path).unwrap();
        let readers = Readers::open(&options).unwrap();
        let endless =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
        let count = |sql: &'static str| {
            readers.run(move |connection| connection.query_row(sql, (), |row| row.get::<_, i64>(0)))
        };
        assert_eq!(count(endless).await, Err(StoreError::TooSlow));
        assert_eq!(count("SELECT 7").await, Ok(7), "and the reader is fit for the next");
    }
}

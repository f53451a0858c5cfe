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
    free: Semaphore,
    path: PathBuf,
}

impl Readers {
    pub(super) fn open(options: &Options) -> Result<Self, OpenError> {
        let path = options.path.clone();
        let first = connect(&path).map_err(|error| unusable(&path, error))?;
        Ok(Self { idle: Arc::new(Mutex::new(vec![first])), free: Semaphore::new(options.readers), path })
    }

    pub(super) async fn run<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let closed = |_| StoreError::Unavailable("the store is closed".into());
        let _turn = self.free.acquire().await.map_err(closed)?;
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connect(&self.path).map_err(|error| store_error(&error))?,
        };
        let stop = connection.get_interrupt_handle();
        let home = self.idle.clone();
        let mut answer = tokio::task::spawn_blocking(move || {
            let answer = question(&connection);
            home.lock().push(connection);
            answer
        });
        let answered = match tokio::time::timeout(PATIENCE, &mut answer).await {
            Ok(answered) => answered,
            Err(_) => {
                stop.interrupt();
                answer.await
            }
        };
        match answered {
            Ok(result) => result.map_err(|error| store_error(&error)),
            Err(panic) => Err(StoreError::Unavailable(panic.to_string())),
        }
    }
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

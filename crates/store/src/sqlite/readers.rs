//! Read-only connections, each used by one read at a time. One of them is never used for reads of users, so that
//! the engine's reads do not wait for listings. A read that takes longer than two seconds is interrupted: long
//! reads would keep the write-ahead log from shrinking.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rusqlite::{Connection, InterruptHandle, OpenFlags};
use tokio::{
    sync::{RwLock, Semaphore},
    task::{JoinError, JoinHandle},
};

use redrive_core::TenantId;

use super::{Options, file::DatabaseFiles, transaction::store_error, unusable};
use crate::{
    error::{OpenError, StoreError},
    tenant_reads::TenantReads,
};

const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Permits of reads: a limited number run concurrently, and none while the writer has exclusive access.
pub(super) type ReadPermits = Arc<RwLock<()>>;

/// Read whose result goes into a [`ResultSlot`](super::result_slot::ResultSlot). Its type is erased so that the
/// code that runs it is compiled once, not for each of some hundred statements.
pub(super) type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

pub(super) struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    gate: ReadPermits,
    /// Limits the concurrent reads of users.
    user_permits: Arc<Semaphore>,
    tenant_reads: TenantReads,
    path: PathBuf,
    files: DatabaseFiles,
    /// Number of reads so far.
    count: AtomicU64,
}

impl Readers {
    pub(super) fn open(options: &Options, files: DatabaseFiles) -> Result<Self, OpenError> {
        let path = options.path.clone();
        let first = connect(&path).map_err(|error| unusable(&path, &error))?;
        let gate = Arc::new(RwLock::with_max_readers((), options.readers as u32));
        let for_users = (options.readers - 1).max(1);
        let user_permits = Arc::new(Semaphore::new(for_users));
        let tenant_reads = TenantReads::new(for_users.div_ceil(2));
        let idle = Arc::new(Mutex::new(vec![first]));
        Ok(Self { idle, gate, user_permits, tenant_reads, path, files, count: AtomicU64::new(0) })
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn gate(&self) -> ReadPermits {
        self.gate.clone()
    }

    /// Runs a read for a user.
    pub(super) async fn run_for_user(&self, job: ReadJob) -> Result<(), StoreError> {
        let closed = |_| StoreError::Unavailable("the store is closed".into());
        let permit = self.user_permits.clone().acquire_owned().await.map_err(closed)?;
        // The permit is held until the query ends, even if the caller has stopped waiting.
        self.run(Box::new(move |connection| {
            let _permit = permit;
            job(connection);
        }))
        .await
    }

    /// Runs a read for a user that may take long; the number of concurrent ones per tenant is limited.
    pub(super) async fn run_listing(&self, tenant_id: &TenantId, job: ReadJob) -> Result<(), StoreError> {
        let permit = self.tenant_reads.acquire(tenant_id).await?;
        self.run_for_user(Box::new(move |connection| {
            let _permit = permit;
            job(connection);
        }))
        .await
    }

    /// Runs a read over all tenants for an admin; the number of concurrent ones is limited.
    pub(super) async fn run_for_all_tenants(&self, job: ReadJob) -> Result<(), StoreError> {
        let permit = self.tenant_reads.acquire_for_all_tenants().await?;
        self.run_for_user(Box::new(move |connection| {
            let _permit = permit;
            job(connection);
        }))
        .await
    }

    /// Runs a read. If this returns `Ok`, the read has run to its end.
    pub(super) async fn run(&self, job: ReadJob) -> Result<(), StoreError> {
        self.count.fetch_add(1, Ordering::Relaxed);
        let pass = self.gate.clone().read_owned().await;
        let idle = self.idle.lock().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let connection = connect(&self.path).map_err(|error| store_error(&error))?;
                // The path may name another file by now, which does not contain what this store has written.
                self.files.check()?;
                connection
            }
        };
        let stop = Arc::new(Mutex::new(Some(connection.get_interrupt_handle())));
        let (home, running) = (self.idle.clone(), stop.clone());
        // The permit is held until the query ends, even if the caller has stopped waiting.
        let read = tokio::task::spawn_blocking(move || {
            job(&connection);
            // From here on the connection may run the next read, which must not be interrupted by this one's timeout.
            running.lock().take();
            home.lock().push(connection);
            drop(pass);
        });
        match tokio::spawn(with_timeout(read, stop)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(failed)) | Err(failed) => Err(StoreError::Unavailable(failed.to_string())),
        }
    }
}

/// Waits for a read to end, and interrupts the query after the timeout.
async fn with_timeout(
    mut read: JoinHandle<()>,
    stop: Arc<Mutex<Option<InterruptHandle>>>,
) -> Result<(), JoinError> {
    if let Ok(ended) = tokio::time::timeout(QUERY_TIMEOUT, &mut read).await {
        return ended;
    }
    if let Some(handle) = &*stop.lock() {
        handle.interrupt();
    }
    read.await
}

fn connect(path: &PathBuf) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection
        .execute_batch("PRAGMA cache_size = -512; PRAGMA temp_store = MEMORY; PRAGMA busy_timeout = 2000;")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::{super::result_slot::for_read, *};

    #[tokio::test(flavor = "multi_thread")]
    async fn slow_query_is_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { readers: 1, ..Options::at(folder.path().join("redrive.db")) };
        Connection::open(&options.path).unwrap();
        let readers = Readers::open(&options, DatabaseFiles::new(&options.path)).unwrap();
        let endless =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
        let count = async |sql: &'static str| {
            let (job, result) =
                for_read(move |connection| connection.query_row(sql, (), |row| row.get::<_, i64>(0)));
            readers.run(job).await?;
            result.take()
        };
        assert_eq!(count(endless).await, Err(StoreError::TooSlow));
        assert_eq!(count("SELECT 7").await, Ok(7), "the reader is usable again");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn listings_leave_a_reader_for_the_engine() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { readers: 3, ..Options::at(folder.path().join("redrive.db")) };
        Connection::open(&options.path).unwrap();
        let readers = Arc::new(Readers::open(&options, DatabaseFiles::new(&options.path)).unwrap());
        let (started, mut starting) = tokio::sync::mpsc::unbounded_channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        // More listings than there are connections, of enough tenants that the limit per tenant does not matter.
        let listings: Vec<_> = (0..6)
            .map(|n| {
                let (readers, started, released) = (readers.clone(), started.clone(), released.clone());
                let tenant_id = TenantId::parse(&format!("tenant-{n}")).unwrap();
                tokio::spawn(async move {
                    let job = move |_: &Connection| {
                        let _ = started.send(());
                        let _ = released.lock().recv();
                    };
                    readers.run_listing(&tenant_id, Box::new(job)).await
                })
            })
            .collect();
        starting.recv().await.unwrap();
        starting.recv().await.unwrap();
        let (job, due) =
            for_read(|connection| connection.query_row("SELECT 7", (), |row| row.get::<_, i64>(0)));
        readers.run(job).await.unwrap();
        assert_eq!(due.take(), Ok(7), "the engine's read does not wait for the listings");
        drop(release);
        for listing in listings {
            listing.await.unwrap().unwrap();
        }
    }
}

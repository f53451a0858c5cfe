//! The one writer: a thread that commits publishes and outcomes together, and other changes one by one.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use redrive_core::{DeliveryId, Time};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::{Options, claim, notices, publish, readers::Gate, record};
use crate::{
    Done, Epoch, LaneClaim, LaneRoom, NewEvent, Outcome, Published, Recorded,
    batch::{self, CommitError, Queue, Weighed},
    error::StoreError,
};

/// After so long without work the writer gives its page cache back.
const AT_REST: Duration = Duration::from_millis(500);

/// Something for the writer to do.
enum Job {
    Batched(Write),
    Alone(Box<dyn FnOnce(&mut Connection) + Send>),
}

/// A write that shares its transaction with whatever else waits.
enum Write {
    Publish(NewEvent, Done<Published>),
    Record(Arc<Outcome>, Done<Recorded>),
    /// Notes that a delivery is about to be sent; after a crash there may be thousands at once.
    Mark(Epoch, DeliveryId, Done<bool>),
    /// Leases what is due; in a storm of retries there are hundreds a second.
    Claim(Claiming, Done<Option<Vec<LaneClaim>>>),
}

/// What is to be claimed, and by whom.
pub(super) struct Claiming {
    pub(super) epoch: Epoch,
    pub(super) now: Time,
    pub(super) lanes: Vec<LaneRoom>,
    pub(super) max_bytes: usize,
}

impl Weighed for Write {
    fn weight(&self) -> (usize, usize) {
        match self {
            Self::Publish(new, _) => (1 + 2 * new.deliveries.len(), new.event.weight()),
            Self::Record(..) => (3, 512),
            Self::Mark(..) => (1, 64),
            // What it gives is bounded by whoever asks.
            Self::Claim(claiming, _) => {
                let rooms = claiming.lanes.iter().map(|lane| lane.room);
                (rooms.fold(0, |sum: usize, room| sum.saturating_add(room.saturating_mul(2))), 64)
            }
        }
    }
}

/// What a batched write came to.
enum Written {
    Published(Published),
    Recorded(Recorded),
    Marked(bool),
    Claimed(Option<Vec<LaneClaim>>),
}

/// The handle on the writer thread.
pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    commits: Arc<AtomicU64>,
    queue: Arc<Queue>,
}

impl Writer {
    pub(super) fn start(connection: Connection, options: &Options, readers: Gate) -> Self {
        let (jobs, waiting) = mpsc::channel();
        let commits = Arc::new(AtomicU64::new(0));
        let queue = Arc::new(Queue::new(options.max_waiting, options.max_waiting_bytes));
        let log = Log::of(&options.path, readers);
        let runtime = tokio::runtime::Handle::try_current().ok();
        let desk = Desk { connection, log, commits: commits.clone(), queue: queue.clone(), runtime };
        let thread =
            std::thread::Builder::new().name("store-writer".into()).spawn(move || desk.work(&waiting));
        // Without its writer there is no store, and there is nobody to tell yet.
        let thread = thread.expect("the operating system starts a thread");
        Self { jobs: Some(jobs), thread: Some(thread), commits, queue }
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Relaxed)
    }

    pub(super) fn publish(&self, event: NewEvent, done: Done<Published>) {
        if !self.queue.enter(event.event.weight()) {
            return done(Err(StoreError::Overloaded));
        }
        self.submit(Write::Publish(event, done));
    }

    pub(super) fn record(&self, outcome: Arc<Outcome>, done: Done<Recorded>) {
        self.submit(Write::Record(outcome, done));
    }

    pub(super) fn mark(&self, epoch: Epoch, delivery: DeliveryId, done: Done<bool>) {
        self.submit(Write::Mark(epoch, delivery, done));
    }

    pub(super) fn claim(&self, claiming: Claiming, done: Done<Option<Vec<LaneClaim>>>) {
        self.submit(Write::Claim(claiming, done));
    }

    fn submit(&self, write: Write) {
        let unsent = match &self.jobs {
            Some(jobs) => jobs.send(Job::Batched(write)).err().map(|unsent| unsent.0),
            None => Some(Job::Batched(write)),
        };
        if let Some(Job::Batched(write)) = unsent {
            finish(write, Err(closed()));
        }
    }

    /// Runs one change in a transaction of its own.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let commits = self.commits.clone();
        let job = Job::Alone(Box::new(move |connection| {
            let result = in_transaction(connection, change);
            if result.is_ok() {
                commits.fetch_add(1, Relaxed);
            }
            // Nobody listens any more: the change stands all the same.
            let _ = answer.send(result.map_err(|error| store_error(&error)));
        }));
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            return Err(closed());
        }
        answered.await.unwrap_or_else(|_| Err(closed()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread finishes what waits, then sees that nobody is left. It may itself be the last to let
        // go of the store, from a callback: then there is nothing to wait for.
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

fn in_transaction<T>(
    connection: &mut Connection,
    change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let result = change(&transaction)?;
    transaction.commit()?;
    Ok(result)
}

/// The write-ahead log. SQLite's own checkpoints copy it into the database on the way, but it starts over
/// only at a moment without readers, which may never come under load. So readers are made to wait for it.
struct Log {
    path: PathBuf,
    readers: Gate,
    /// The size at which it is made to start over.
    limit: u64,
}

impl Log {
    const LIMIT: u64 = 32 << 20;

    fn of(database: &Path, readers: Gate) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Self { path: path.into(), readers, limit: Self::LIMIT }
    }

    /// Has a large log start over, as soon as those who read now are done or stopped.
    fn rein_in(&mut self, connection: &Connection) {
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

/// What the writer thread works at.
struct Desk {
    connection: Connection,
    log: Log,
    commits: Arc<AtomicU64>,
    queue: Arc<Queue>,
    runtime: Option<tokio::runtime::Handle>,
}

impl Desk {
    fn work(mut self, waiting: &mpsc::Receiver<Job>) {
        let mut batch = Vec::new();
        while let Some(job) = self.next(waiting) {
            let mut alone = None;
            match job {
                Job::Batched(write) => batch.push(write),
                Job::Alone(change) => alone = Some(change),
            }
            if alone.is_none() {
                batch::gather(&mut batch, batch::LIMITS, || match waiting.try_recv().ok()? {
                    Job::Batched(write) => Some(write),
                    // What stands alone keeps its place behind what was gathered before it.
                    Job::Alone(change) => {
                        alone = Some(change);
                        None
                    }
                });
                self.commit(&mut batch);
            }
            if let Some(change) = alone {
                change(&mut self.connection);
            }
            self.log.rein_in(&self.connection);
        }
        if let Err(error) = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::warn!(%error, "the last checkpoint failed; the next start catches up");
        }
    }

    /// The next job, whenever it comes. Who waits for long gives its memory back first.
    fn next(&mut self, waiting: &mpsc::Receiver<Job>) -> Option<Job> {
        match waiting.recv_timeout(AT_REST) {
            Ok(job) => return Some(job),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if let Err(error) = self.connection.execute_batch("PRAGMA shrink_memory") {
            tracing::debug!(%error, "the page cache stays as it is");
        }
        waiting.recv().ok()
    }

    fn commit(&mut self, batch: &mut Vec<Write>) {
        let connection = &mut self.connection;
        let commits = &self.commits;
        let results = batch::commit(batch, &mut |slice| {
            let written = commit_slice(connection, slice)?;
            commits.fetch_add(1, Relaxed);
            Ok(written)
        });
        for write in &*batch {
            if let Write::Publish(new, _) = write {
                self.queue.leave(new.event.weight());
            }
        }
        let finished: Vec<_> = batch.drain(..).zip(results).collect();
        let tell = move || finished.into_iter().for_each(|(write, result)| finish(write, result));
        // On the runtime, where whoever is told wakes up anyway: the next batch need not wait for it.
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(async { tell() })),
            None => tell(),
        }
    }
}

fn commit_slice(connection: &mut Connection, slice: &[Write]) -> Result<Vec<Written>, CommitError> {
    let apply = |transaction: &Transaction<'_>| {
        let mut published = publish::Publishing::new(transaction);
        let mut written = Vec::with_capacity(slice.len());
        let mut told = Vec::new();
        for write in slice {
            written.push(match write {
                Write::Publish(new, _) => Written::Published(published.apply(new)?),
                Write::Record(outcome, _) => {
                    Written::Recorded(record::apply(transaction, outcome, &mut told)?)
                }
                Write::Mark(epoch, delivery, _) => {
                    Written::Marked(claim::mark(transaction, *epoch, *delivery)?)
                }
                Write::Claim(claiming, _) => Written::Claimed(claim::take(transaction, claiming)?),
            });
        }
        published.finish()?;
        notices::note(transaction, told)?;
        Ok(written)
    };
    in_transaction(connection, apply).map_err(|error| match error.sqlite_error_code() {
        // The item broke a rule of the schema, does not fit into a row, or needs a row that makes no sense.
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) | None => {
            CommitError::Item(error.to_string())
        }
        _ => CommitError::Store(store_error(&error)),
    })
}

fn finish(write: Write, result: Result<Written, StoreError>) {
    match (write, result) {
        (Write::Publish(_, done), Ok(Written::Published(published))) => done(Ok(published)),
        (Write::Record(_, done), Ok(Written::Recorded(recorded))) => done(Ok(recorded)),
        (Write::Mark(_, _, done), Ok(Written::Marked(marked))) => done(Ok(marked)),
        (Write::Claim(_, done), Ok(Written::Claimed(claimed))) => done(Ok(claimed)),
        (Write::Publish(_, done), Err(error)) => done(Err(error)),
        (Write::Record(_, done), Err(error)) => done(Err(error)),
        (Write::Mark(_, _, done), Err(error)) => done(Err(error)),
        (Write::Claim(_, done), Err(error)) => done(Err(error)),
        (Write::Publish(..) | Write::Record(..) | Write::Mark(..) | Write::Claim(..), Ok(_)) => {
            unreachable!("a write's result is of its own kind")
        }
    }
}

pub(super) fn store_error(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => StoreError::TooSlow,
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig) => StoreError::Refused(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}

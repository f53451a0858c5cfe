//! The single writer: a thread that commits publishes and outcomes in batches, and other writes one by one.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use redrive_core::{DeliveryId, Time};
use rusqlite::ErrorCode;
use tokio::sync::oneshot;

use super::{
    Options, claim,
    log::WalFile,
    notifications, publish,
    readers::ReadPermits,
    record,
    transaction::{Database, WriteError, WriteTransaction, in_transaction, store_error},
};
use crate::{
    Completion, Epoch, LaneCapacity, LaneClaim, NewEvent, OutcomeRecord, PublishResult, RecordResult,
    SequencePosition,
    batch::{self, BatchItem, CommitError, WaitingLimit, complete},
    error::StoreError,
};

/// Idle time after which the writer frees its page cache.
const CACHE_RELEASE_DELAY: Duration = Duration::from_millis(500);

/// Write that runs in its own transaction. Its type is erased so that the code that runs it is compiled once.
pub(super) type WriteJob = Box<dyn FnOnce(&WriteTransaction<'_>) -> rusqlite::Result<()> + Send>;

/// Job of the writer.
enum Job {
    Batched(Write),
    Alone(Box<dyn FnOnce(&mut Database) + Send>),
    /// Ends the writer, as a bug might: for tests.
    #[cfg(feature = "conformance")]
    End,
}

/// Write that shares its transaction with other queued writes.
enum Write {
    Publish(NewEvent, Completion<PublishResult>),
    Record(Arc<OutcomeRecord>, Completion<RecordResult>),
    /// Marks a delivery as about to be sent; after a crash there may be thousands of these concurrently.
    MarkSending(Epoch, DeliveryId, Completion<bool>),
    /// Claims due deliveries; with many retries there are hundreds of claims per second.
    Claim(Claiming, Completion<Option<Vec<LaneClaim>>>),
}

/// One claim request and the epoch that makes it.
pub(super) struct Claiming {
    pub(super) epoch: Epoch,
    pub(super) now: Time,
    pub(super) lanes: Vec<LaneCapacity>,
    pub(super) max_bytes: usize,
}

impl BatchItem for Write {
    fn weight(&self) -> (usize, usize) {
        match self {
            Self::Publish(new, _) => (1 + 2 * new.deliveries.len(), new.event.memory_bytes()),
            Self::Record(..) => (3, 512),
            Self::MarkSending(..) => (1, 64),
            // The caller limits the number of claimed deliveries.
            Self::Claim(claiming, _) => {
                let capacities = claiming.lanes.iter().map(|lane| lane.max_deliveries);
                (
                    capacities.fold(0, |sum: usize, capacity| sum.saturating_add(capacity.saturating_mul(2))),
                    64,
                )
            }
        }
    }
}

/// Result of a batched write.
enum WriteResult {
    Published(PublishResult),
    Recorded(RecordResult),
    Marked(bool),
    Claimed(Option<Vec<LaneClaim>>),
}

/// Handle of the writer thread.
pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    commits: Arc<AtomicU64>,
    queue: Arc<WaitingLimit>,
}

impl Writer {
    pub(super) fn start(database: Database, options: &Options, readers: ReadPermits) -> Self {
        let (jobs, waiting) = mpsc::channel();
        let commits = Arc::new(AtomicU64::new(0));
        let queue = Arc::new(WaitingLimit::new(options.max_queued_publishes, options.max_queued_bytes));
        let log = WalFile::new(&options.path, readers);
        let runtime = tokio::runtime::Handle::try_current().ok();
        let writer = WriterLoop { database, log, commits: commits.clone(), queue: queue.clone(), runtime };
        let thread =
            std::thread::Builder::new().name("store-writer".into()).spawn(move || writer.work(&waiting));
        // The store cannot work without its writer, and this function returns no error.
        let thread = thread.expect("the operating system starts a thread");
        Self { jobs: Some(jobs), thread: Some(thread), commits, queue }
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Relaxed)
    }

    pub(super) fn publish(&self, event: NewEvent, done: Completion<PublishResult>) {
        if !self.queue.try_acquire(event.event.memory_bytes()) {
            event.position.iter().for_each(SequencePosition::break_off);
            return done(Err(StoreError::Overloaded));
        }
        self.submit(Write::Publish(event, done));
    }

    pub(super) fn record(&self, outcome: Arc<OutcomeRecord>, done: Completion<RecordResult>) {
        self.submit(Write::Record(outcome, done));
    }

    pub(super) fn mark_sending(&self, epoch: Epoch, delivery_id: DeliveryId, done: Completion<bool>) {
        self.submit(Write::MarkSending(epoch, delivery_id, done));
    }

    pub(super) fn claim(&self, claiming: Claiming, done: Completion<Option<Vec<LaneClaim>>>) {
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

    /// Runs one write in its own transaction. It is committed if this returns `Ok`.
    pub(super) async fn run(&self, change: WriteJob) -> Result<(), StoreError> {
        let (sender, reply) = oneshot::channel();
        let commits = self.commits.clone();
        let job = Job::Alone(Box::new(move |database| {
            let result = in_transaction(database, change);
            if result.is_ok() {
                commits.fetch_add(1, Relaxed);
            }
            // If the caller has stopped waiting, the write is committed all the same.
            let _ = sender.send(result.map_err(StoreError::from));
        }));
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            return Err(closed());
        }
        let failed = || StoreError::Unavailable("the write panicked".into());
        reply.await.unwrap_or_else(|_| Err(failed()))
    }

    /// Ends the writer, as a bug might.
    #[cfg(feature = "conformance")]
    pub(super) fn end(&self) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Job::End);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The thread finishes queued jobs, then sees that the channel is closed. The thread itself may drop the last
        // reference to the store, in a callback: then it must not join itself.
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
    StoreError::WriterEnded("the store's writer has ended".into())
}

/// State of the writer thread.
struct WriterLoop {
    database: Database,
    log: WalFile,
    commits: Arc<AtomicU64>,
    queue: Arc<WaitingLimit>,
    runtime: Option<tokio::runtime::Handle>,
}

impl WriterLoop {
    fn work(mut self, waiting: &mpsc::Receiver<Job>) {
        let mut batch = Vec::new();
        while let Some(job) = self.next(waiting) {
            let mut alone = None;
            match job {
                Job::Batched(write) => batch.push(write),
                Job::Alone(change) => alone = Some(change),
                #[cfg(feature = "conformance")]
                Job::End => return,
            }
            if alone.is_none() {
                batch::gather(&mut batch, batch::LIMITS, || match waiting.try_recv().ok()? {
                    Job::Batched(write) => Some(write),
                    // A write with its own transaction runs after the writes that were queued before it.
                    Job::Alone(change) => {
                        alone = Some(change);
                        None
                    }
                    #[cfg(feature = "conformance")]
                    Job::End => None,
                });
                self.commit(&mut batch);
            }
            if let Some(change) = alone {
                self.run_alone(change);
            }
            self.log.checkpoint_if_large(&self.database.connection);
        }
        if let Err(error) = self.database.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::warn!(%error, "the last checkpoint failed; the next start repeats it");
        }
    }

    /// Runs one write. A panic fails only this write; its transaction is rolled back.
    fn run_alone(&mut self, change: Box<dyn FnOnce(&mut Database) + Send>) {
        let database = &mut self.database;
        if catch_unwind(AssertUnwindSafe(|| change(database))).is_err() {
            tracing::error!("a write panicked and was rolled back; the writer continues");
        }
    }

    /// Waits for the next job. After the idle time it frees the page cache and continues to wait.
    fn next(&mut self, waiting: &mpsc::Receiver<Job>) -> Option<Job> {
        match waiting.recv_timeout(CACHE_RELEASE_DELAY) {
            Ok(job) => return Some(job),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if let Err(error) = self.database.connection.execute_batch("PRAGMA shrink_memory") {
            tracing::debug!(%error, "releasing the page cache failed");
        }
        waiting.recv().ok()
    }

    fn commit(&mut self, batch: &mut Vec<Write>) {
        let refused = take_refused(batch);
        let database = &mut self.database;
        let commits = &self.commits;
        let results = batch::commit(batch, &mut |slice| {
            // A panic is treated like an item that cannot be stored: the batch is split until only that item fails.
            let written = catch_unwind(AssertUnwindSafe(|| commit_slice(database, slice)))
                .unwrap_or_else(|_| Err(CommitError::Item("the write panicked".into())))?;
            commits.fetch_add(1, Relaxed);
            Ok(written)
        });
        let refused = refused.into_iter().map(|write| (write, Err(StoreError::PrecedingEventFailed)));
        let finished: Vec<_> = batch.drain(..).zip(results).chain(refused).collect();
        for (write, _) in &finished {
            if let Write::Publish(new, _) = write {
                self.queue.release(new.event.memory_bytes());
            }
        }
        for (write, result) in &finished {
            if let Write::Publish(NewEvent { position: Some(position), .. }, _) = write {
                record_result(position, result);
            }
        }
        let report = move || finished.into_iter().for_each(|(write, result)| finish(write, result));
        // Callbacks run on the runtime, where their tasks wake up anyway, so that the next batch does not wait for
        // them.
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(async { report() })),
            None => report(),
        }
    }
}

/// Removes publishes from a batch that would break their order, and returns them.
fn take_refused(batch: &mut Vec<Write>) -> Vec<Write> {
    let publishes = batch.iter().filter_map(|write| match write {
        Write::Publish(new, _) => Some(new),
        _ => None,
    });
    let mut refusals = batch::find_refused(publishes).into_iter();
    let is_refused =
        |write: &mut Write| matches!(write, Write::Publish(..)) && refusals.next().unwrap_or(false);
    batch.extract_if(.., is_refused).collect()
}

fn record_result(ordered: &SequencePosition, result: &Result<WriteResult, StoreError>) {
    match result {
        Ok(WriteResult::Published(published)) => ordered.record(&Ok(published.clone())),
        Ok(_) => {}
        Err(error) => ordered.record(&Err(error.clone())),
    }
}

fn commit_slice(database: &mut Database, slice: &[Write]) -> Result<Vec<WriteResult>, CommitError> {
    let apply = |transaction: &WriteTransaction<'_>| {
        let mut published = publish::PublishBatch::new(transaction);
        let mut written = Vec::with_capacity(slice.len());
        let mut reported = Vec::new();
        for write in slice {
            written.push(match write {
                Write::Publish(new, _) => WriteResult::Published(published.apply(new)?),
                Write::Record(outcome, _) => {
                    WriteResult::Recorded(record::record_outcome(transaction, outcome, &mut reported)?)
                }
                Write::MarkSending(epoch, delivery_id, _) => {
                    WriteResult::Marked(claim::mark_sending(transaction, *epoch, *delivery_id)?)
                }
                Write::Claim(claiming, _) => WriteResult::Claimed(claim::claim_lanes(transaction, claiming)?),
            });
        }
        published.finish()?;
        notifications::record_occurrences(transaction, reported.iter().map(AsRef::as_ref))?;
        Ok(written)
    };
    in_transaction(database, apply).map_err(|error| match error {
        WriteError::Store(error) => CommitError::Store(error),
        WriteError::Sqlite(error) => match error.sqlite_error_code() {
            // The item violates a constraint, does not fit into a row, or needs a row that is invalid.
            Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) | None => {
                CommitError::Item(error.to_string())
            }
            _ => CommitError::Store(store_error(&error)),
        },
    })
}

/// Reports the result of one write. A panic in its callback does not affect the writes after it.
fn finish(write: Write, result: Result<WriteResult, StoreError>) {
    match (write, result) {
        (Write::Publish(_, done), Ok(WriteResult::Published(published))) => complete(done, Ok(published)),
        (Write::Record(_, done), Ok(WriteResult::Recorded(recorded))) => complete(done, Ok(recorded)),
        (Write::MarkSending(_, _, done), Ok(WriteResult::Marked(marked))) => complete(done, Ok(marked)),
        (Write::Claim(_, done), Ok(WriteResult::Claimed(claimed))) => complete(done, Ok(claimed)),
        (Write::Publish(_, done), Err(error)) => complete(done, Err(error)),
        (Write::Record(_, done), Err(error)) => complete(done, Err(error)),
        (Write::MarkSending(_, _, done), Err(error)) => complete(done, Err(error)),
        (Write::Claim(_, done), Err(error)) => complete(done, Err(error)),
        (Write::Publish(..) | Write::Record(..) | Write::MarkSending(..) | Write::Claim(..), Ok(_)) => {
            unreachable!("a write returns a result of its own type")
        }
    }
}

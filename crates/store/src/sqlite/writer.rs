//! The one writer: a thread that commits publishes and outcomes together, and other changes one by one.

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
    log::Log,
    notifications, publish,
    readers::Gate,
    record,
    transaction::{Database, WriteError, WriteTransaction, in_transaction, store_error},
};
use crate::{
    Done, Epoch, LaneClaim, LaneRoom, NewEvent, OrderedPosition, Outcome, Published, Recorded,
    batch::{self, CommitError, Queue, Weighed, complete},
    error::StoreError,
};

/// After so long without work the writer gives its page cache back.
const AT_REST: Duration = Duration::from_millis(500);

/// A change that runs in a transaction of its own. Its type is erased so that what runs it is compiled once.
pub(super) type WriteJob = Box<dyn FnOnce(&WriteTransaction<'_>) -> rusqlite::Result<()> + Send>;

/// Something for the writer to do.
enum Job {
    Batched(Write),
    Alone(Box<dyn FnOnce(&mut Database) + Send>),
    /// Ends the writer, as a fault in the program might: for tests.
    #[cfg(feature = "conformance")]
    End,
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
    pub(super) fn start(database: Database, options: &Options, readers: Gate) -> Self {
        let (jobs, waiting) = mpsc::channel();
        let commits = Arc::new(AtomicU64::new(0));
        let queue = Arc::new(Queue::new(options.max_waiting, options.max_waiting_bytes));
        let log = Log::of(&options.path, readers);
        let runtime = tokio::runtime::Handle::try_current().ok();
        let desk = Desk { database, log, commits: commits.clone(), queue: queue.clone(), runtime };
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
            event.order.iter().for_each(OrderedPosition::break_off);
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

    /// Runs one change in a transaction of its own. It is committed if this returns `Ok`.
    pub(super) async fn run(&self, change: WriteJob) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        let commits = self.commits.clone();
        let job = Job::Alone(Box::new(move |database| {
            let result = in_transaction(database, change);
            if result.is_ok() {
                commits.fetch_add(1, Relaxed);
            }
            // Nobody listens any more: the change stands all the same.
            let _ = answer.send(result.map_err(StoreError::from));
        }));
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !sent {
            return Err(closed());
        }
        let failed = || StoreError::Unavailable("a fault in the program ended the change".into());
        answered.await.unwrap_or_else(|_| Err(failed()))
    }

    /// Ends the writer, as a fault in the program might.
    #[cfg(feature = "conformance")]
    pub(super) fn end(&self) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Job::End);
        }
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
    StoreError::Unavailable("the store's writer has ended; restart redrive".into())
}

/// What the writer thread works at.
struct Desk {
    database: Database,
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
                #[cfg(feature = "conformance")]
                Job::End => return,
            }
            if alone.is_none() {
                batch::gather(&mut batch, batch::LIMITS, || match waiting.try_recv().ok()? {
                    Job::Batched(write) => Some(write),
                    // What stands alone keeps its place behind what was gathered before it.
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
            self.log.rein_in(&self.database.connection);
        }
        if let Err(error) = self.database.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            tracing::warn!(%error, "the last checkpoint failed; the next start catches up");
        }
    }

    /// Runs one change. A panic in it fails this change alone; its transaction is rolled back.
    fn run_alone(&mut self, change: Box<dyn FnOnce(&mut Database) + Send>) {
        let database = &mut self.database;
        if catch_unwind(AssertUnwindSafe(|| change(database))).is_err() {
            tracing::error!("a change of the store panicked; it was not made, and the writer continues");
        }
    }

    /// The next job, whenever it comes. Who waits for long gives its memory back first.
    fn next(&mut self, waiting: &mpsc::Receiver<Job>) -> Option<Job> {
        match waiting.recv_timeout(AT_REST) {
            Ok(job) => return Some(job),
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if let Err(error) = self.database.connection.execute_batch("PRAGMA shrink_memory") {
            tracing::debug!(%error, "the page cache stays as it is");
        }
        waiting.recv().ok()
    }

    fn commit(&mut self, batch: &mut Vec<Write>) {
        let refused = take_out_of_order(batch);
        let database = &mut self.database;
        let commits = &self.commits;
        let results = batch::commit(batch, &mut |slice| {
            // A panic is treated like an item that cannot be stored: the batch is split until only that item fails.
            let written = catch_unwind(AssertUnwindSafe(|| commit_slice(database, slice)))
                .unwrap_or_else(|_| Err(CommitError::Item("a fault in the program".into())))?;
            commits.fetch_add(1, Relaxed);
            Ok(written)
        });
        let refused = refused.into_iter().map(|write| (write, Err(StoreError::OutOfOrder)));
        let finished: Vec<_> = batch.drain(..).zip(results).chain(refused).collect();
        for (write, _) in &finished {
            if let Write::Publish(new, _) = write {
                self.queue.leave(new.event.weight());
            }
        }
        for (write, result) in &finished {
            if let Write::Publish(NewEvent { order: Some(ordered), .. }, _) = write {
                note_result(ordered, result);
            }
        }
        let tell = move || finished.into_iter().for_each(|(write, result)| finish(write, result));
        // On the runtime, where whoever is told wakes up anyway: the next batch need not wait for it.
        match &self.runtime {
            Some(runtime) => drop(runtime.spawn(async { tell() })),
            None => tell(),
        }
    }
}

/// Takes publishes out of a batch that would break their order.
fn take_out_of_order(batch: &mut Vec<Write>) -> Vec<Write> {
    let publishes = batch.iter().filter_map(|write| match write {
        Write::Publish(new, _) => Some(new),
        _ => None,
    });
    let mut out_of_order = batch::find_out_of_order(publishes).into_iter();
    let is_refused =
        |write: &mut Write| matches!(write, Write::Publish(..)) && out_of_order.next().unwrap_or(false);
    batch.extract_if(.., is_refused).collect()
}

fn note_result(ordered: &OrderedPosition, result: &Result<Written, StoreError>) {
    match result {
        Ok(Written::Published(published)) => ordered.note(&Ok(published.clone())),
        Ok(_) => {}
        Err(error) => ordered.note(&Err(error.clone())),
    }
}

fn commit_slice(database: &mut Database, slice: &[Write]) -> Result<Vec<Written>, CommitError> {
    let apply = |transaction: &WriteTransaction<'_>| {
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
        notifications::note(transaction, told)?;
        Ok(written)
    };
    in_transaction(database, apply).map_err(|error| match error {
        WriteError::Store(error) => CommitError::Store(error),
        WriteError::Sqlite(error) => match error.sqlite_error_code() {
            // The item broke a rule of the schema, does not fit into a row, or needs a row that makes no sense.
            Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig | ErrorCode::TypeMismatch) | None => {
                CommitError::Item(error.to_string())
            }
            _ => CommitError::Store(store_error(&error)),
        },
    })
}

/// Reports the result of one write. A panic in its callback does not reach the writes after it.
fn finish(write: Write, result: Result<Written, StoreError>) {
    match (write, result) {
        (Write::Publish(_, done), Ok(Written::Published(published))) => complete(done, Ok(published)),
        (Write::Record(_, done), Ok(Written::Recorded(recorded))) => complete(done, Ok(recorded)),
        (Write::Mark(_, _, done), Ok(Written::Marked(marked))) => complete(done, Ok(marked)),
        (Write::Claim(_, done), Ok(Written::Claimed(claimed))) => complete(done, Ok(claimed)),
        (Write::Publish(_, done), Err(error)) => complete(done, Err(error)),
        (Write::Record(_, done), Err(error)) => complete(done, Err(error)),
        (Write::Mark(_, _, done), Err(error)) => complete(done, Err(error)),
        (Write::Claim(_, done), Err(error)) => complete(done, Err(error)),
        (Write::Publish(..) | Write::Record(..) | Write::Mark(..) | Write::Claim(..), Ok(_)) => {
            unreachable!("a write's result is of its own kind")
        }
    }
}

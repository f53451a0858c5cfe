//! Group commit: the owner of the database writes everything that waits in one transaction.
//!
//! It never delays a commit to collect more: a single publish is committed immediately, and writes that arrive
//! during a commit form the next one. No publish is acknowledged before it is on disk.

mod postgres;
mod sqlite;

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
};

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc::UnboundedSender, oneshot};
use uuid::Uuid;

/// Maximum number of rows of one transaction, so that a burst cannot make one commit arbitrarily slow.
const BATCH: usize = 5_000;

/// An accepted event that is to be committed.
pub(crate) struct Publish {
    pub(crate) event: Uuid,
    pub(crate) event_type: String,
    pub(crate) created_at: i64,
    pub(crate) delivery: Uuid,
    pub(crate) payload: Bytes,
    /// Completes the publisher's request.
    pub(crate) ack: oneshot::Sender<()>,
}

/// The receiver's response to a delivery; status 0 if there was none.
pub(crate) struct Outcome {
    pub(crate) delivery: Uuid,
    pub(crate) attempt: Uuid,
    pub(crate) http_status: u16,
    pub(crate) duration_us: i64,
}

impl Outcome {
    /// Returns the final status of the delivery: 2 if it was delivered, 3 if it was not.
    fn status(&self) -> i16 {
        if (200..300).contains(&self.http_status) { 2 } else { 3 }
    }
}

enum Write {
    Publish(Publish),
    Outcome(Outcome),
}

/// The rows of one transaction.
#[derive(Default)]
struct Batch {
    publishes: Vec<Publish>,
    outcomes: Vec<Outcome>,
}

impl Batch {
    fn sort(writes: impl Iterator<Item = Write>) -> Self {
        let mut batch = Self::default();
        for write in writes {
            match write {
                Write::Publish(publish) => batch.publishes.push(publish),
                Write::Outcome(outcome) => batch.outcomes.push(outcome),
            }
        }
        batch
    }
}

#[derive(Default)]
struct Counts {
    commits: AtomicU64,
    statements: AtomicU64,
}

/// Reports committed batches: counts them, releases the permits of ended deliveries and passes the publishes on.
struct Announcer {
    committed: UnboundedSender<Vec<Publish>>,
    capacity: Arc<Semaphore>,
    counts: Arc<Counts>,
}

impl Announcer {
    /// Sends a commit's publishes as one message: one wake-up of the HTTP side per transaction instead of one per
    /// event.
    fn committed(&self, batch: Batch, statements: usize) -> Result<(), Box<dyn Error>> {
        self.counts.commits.fetch_add(1, Relaxed);
        self.counts.statements.fetch_add(statements as u64, Relaxed);
        self.capacity.add_permits(batch.outcomes.len());
        if !batch.publishes.is_empty() {
            self.committed.send(batch.publishes)?;
        }
        Ok(())
    }
}

/// Queue to a store, which runs on its own thread or as a task beside the HTTP tasks.
#[derive(Clone)]
enum Queue {
    Thread(mpsc::Sender<Write>),
    Task(UnboundedSender<Write>),
}

/// Passes rows to the store.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: Queue,
    counts: Arc<Counts>,
}

impl Writer {
    pub(crate) fn publish(&self, publish: Publish) {
        self.put(Write::Publish(publish));
    }

    pub(crate) fn record(&self, outcome: Outcome) {
        self.put(Write::Outcome(outcome));
    }

    /// Returns the number of transactions committed since the start.
    pub(crate) fn commits(&self) -> u64 {
        self.counts.commits.load(Relaxed)
    }

    /// Returns the number of statements of these transactions.
    pub(crate) fn statements(&self) -> u64 {
        self.counts.statements.load(Relaxed)
    }

    /// Queues a write. A send error is ignored: the store ends only by a failed write, which ends the process.
    fn put(&self, write: Write) {
        match &self.queue {
            Queue::Thread(queue) => drop(queue.send(write)),
            Queue::Task(queue) => drop(queue.send(write)),
        }
    }
}

/// Opens the database, creates its tables and starts the writer.
pub(crate) async fn spawn(
    database: &str,
    committed: UnboundedSender<Vec<Publish>>,
    capacity: Arc<Semaphore>,
) -> Result<Writer, Box<dyn Error>> {
    let counts = Arc::<Counts>::default();
    let announcer = Announcer { committed, capacity, counts: Arc::clone(&counts) };
    let queue = if database.starts_with("postgres://") {
        Queue::Task(postgres::spawn(database, announcer).await?)
    } else {
        Queue::Thread(sqlite::spawn(database, announcer)?)
    };
    Ok(Writer { queue, counts })
}

/// Ends the process if the store failed: without it nothing can be made durable.
fn stop_if_failed(ended: Result<(), Box<dyn Error>>) {
    if let Err(error) = ended {
        eprintln!("the store failed, the relay stops: {error}");
        std::process::exit(1);
    }
}

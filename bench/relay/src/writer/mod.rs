//! The one group commit: whoever owns the database writes all that waits in one transaction.
//!
//! It never waits for company: a lone publish is committed at once, and what arrives during a commit makes
//! up the next one. Nothing is announced before the disk has it.

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

/// The most rows of one transaction, so that a burst cannot make one commit arbitrarily slow.
const BATCH: usize = 5_000;

/// An accepted event on its way to the disk.
pub(crate) struct Publish {
    pub(crate) event: Uuid,
    pub(crate) event_type: String,
    pub(crate) created_at: i64,
    pub(crate) delivery: Uuid,
    pub(crate) payload: Bytes,
    /// Answers the publisher.
    pub(crate) ack: oneshot::Sender<()>,
}

/// What the receiver answered to a delivery; status 0 where no answer came.
pub(crate) struct Outcome {
    pub(crate) delivery: Uuid,
    pub(crate) attempt: Uuid,
    pub(crate) http_status: u16,
    pub(crate) duration_us: i64,
}

impl Outcome {
    /// How the delivery ends: 2 if it was delivered, 3 if it was not.
    fn status(&self) -> i16 {
        if (200..300).contains(&self.http_status) { 2 } else { 3 }
    }
}

enum Write {
    Publish(Publish),
    Outcome(Outcome),
}

/// What one transaction writes.
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

/// What a store does with a batch that is on disk.
struct Announcer {
    committed: UnboundedSender<Vec<Publish>>,
    room: Arc<Semaphore>,
    counts: Arc<Counts>,
}

impl Announcer {
    /// A commit's publishes leave as one message: one wake-up of the HTTP side per transaction instead of one
    /// per event.
    fn committed(&self, batch: Batch, statements: usize) -> Result<(), Box<dyn Error>> {
        self.counts.commits.fetch_add(1, Relaxed);
        self.counts.statements.fetch_add(statements as u64, Relaxed);
        self.room.add_permits(batch.outcomes.len());
        if !batch.publishes.is_empty() {
            self.committed.send(batch.publishes)?;
        }
        Ok(())
    }
}

/// The way to a store: a thread of its own, or a task beside those of HTTP.
#[derive(Clone)]
enum Queue {
    Thread(mpsc::Sender<Write>),
    Task(UnboundedSender<Write>),
}

/// Hands rows to the store.
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

    /// Transactions committed since the start.
    pub(crate) fn commits(&self) -> u64 {
        self.counts.commits.load(Relaxed)
    }

    /// Statements that these took.
    pub(crate) fn statements(&self) -> u64 {
        self.counts.statements.load(Relaxed)
    }

    /// The store ends only by a failed write, which ends the process: nobody is left to tell.
    fn put(&self, write: Write) {
        match &self.queue {
            Queue::Thread(queue) => drop(queue.send(write)),
            Queue::Task(queue) => drop(queue.send(write)),
        }
    }
}

/// Opens the database, makes its tables and starts to write what is handed to the writer.
pub(crate) async fn spawn(
    database: &str,
    committed: UnboundedSender<Vec<Publish>>,
    room: Arc<Semaphore>,
) -> Result<Writer, Box<dyn Error>> {
    let counts = Arc::<Counts>::default();
    let announcer = Announcer { committed, room, counts: Arc::clone(&counts) };
    let queue = if database.starts_with("postgres://") {
        Queue::Task(postgres::spawn(database, announcer).await?)
    } else {
        Queue::Thread(sqlite::spawn(database, announcer)?)
    };
    Ok(Writer { queue, counts })
}

/// Without its store the relay can promise nothing.
fn stop_if_failed(ended: Result<(), Box<dyn Error>>) {
    if let Err(error) = ended {
        eprintln!("the store failed, the relay stops: {error}");
        std::process::exit(1);
    }
}

//! The one group commit: a thread that owns the database and writes all that waits in one transaction.
//!
//! It never waits for company: a lone publish is committed at once, and what arrives during a commit makes
//! up the next one. Nothing is announced before the disk has it.

use std::{
    error::Error,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use bytes::Bytes;
use rusqlite::{Connection, Statement};
use tokio::sync::{Semaphore, mpsc::UnboundedSender, oneshot};
use uuid::Uuid;

/// The most rows of one transaction, so that a burst cannot make one commit arbitrarily slow.
const BATCH: usize = 5_000;

/// The tables of a sender, with the indexes it cannot do without: one event per idempotency key, the history
/// of a webhook in order, what is due, and one attempt per number.
const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA wal_autocheckpoint = 4000;
    PRAGMA cache_size = -32768;
    CREATE TABLE IF NOT EXISTS event (
        id BLOB PRIMARY KEY, tenant INTEGER NOT NULL, event_type TEXT NOT NULL, created_at INTEGER NOT NULL,
        idempotency_key BLOB NOT NULL, payload BLOB NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX IF NOT EXISTS event_idempotency ON event (tenant, idempotency_key);
    CREATE TABLE IF NOT EXISTS delivery (
        id BLOB PRIMARY KEY, event BLOB NOT NULL, webhook INTEGER NOT NULL, status INTEGER NOT NULL,
        due_at INTEGER NOT NULL, attempts INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS delivery_history ON delivery (webhook, id);
    CREATE INDEX IF NOT EXISTS delivery_due ON delivery (due_at) WHERE status = 0;
    CREATE TABLE IF NOT EXISTS attempt (
        id BLOB PRIMARY KEY, delivery BLOB NOT NULL, number INTEGER NOT NULL, http_status INTEGER NOT NULL,
        duration_us INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX IF NOT EXISTS attempt_number ON attempt (delivery, number);
";

/// Born in flight (status 1): the relay sends it itself, so it is never claimed.
const INSERT_EVENT: &str = "INSERT INTO event VALUES (?1, 1, ?2, ?3, ?1, ?4)";
const INSERT_DELIVERY: &str = "INSERT INTO delivery VALUES (?1, ?2, 1, 1, ?3, 0)";
const INSERT_ATTEMPT: &str = "INSERT INTO attempt VALUES (?1, ?2, 1, ?3, ?4)";
const END_DELIVERY: &str = "UPDATE delivery SET status = ?2, attempts = 1 WHERE id = ?1 AND status = 1";

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

enum Write {
    Publish(Publish),
    Outcome(Outcome),
}

/// Hands rows to the writer's thread.
#[derive(Clone)]
pub(crate) struct Writer {
    queue: Sender<Write>,
    commits: Arc<AtomicU64>,
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
        self.commits.load(Relaxed)
    }

    /// The thread ends only by a failed write, which ends the process: nobody is left to tell.
    fn put(&self, write: Write) {
        let _ = self.queue.send(write);
    }
}

/// Opens the database and makes its tables.
pub(crate) fn open(path: &Path) -> Result<Connection, rusqlite::Error> {
    let store = Connection::open(path)?;
    store.execute_batch(SCHEMA)?;
    Ok(store)
}

/// Starts the writer. Each commit's publishes leave as one message to `committed`: one wake-up of the HTTP
/// side per transaction instead of one per event.
pub(crate) fn spawn(
    store: Connection,
    committed: UnboundedSender<Vec<Publish>>,
    room: Arc<Semaphore>,
) -> Writer {
    let (queue, waiting) = channel();
    let commits = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&commits);
    thread::spawn(move || {
        if let Err(error) = write_all(&store, &waiting, &committed, &room, &counter) {
            eprintln!("the store failed, the relay stops: {error}");
            std::process::exit(1);
        }
    });
    Writer { queue, commits }
}

fn write_all(
    store: &Connection,
    waiting: &Receiver<Write>,
    committed: &UnboundedSender<Vec<Publish>>,
    room: &Semaphore,
    commits: &AtomicU64,
) -> Result<(), Box<dyn Error>> {
    let mut begin = store.prepare("BEGIN IMMEDIATE")?;
    let mut commit = store.prepare("COMMIT")?;
    let mut rows = Rows::prepare(store)?;
    let mut outcomes = Vec::new();
    while let Ok(first) = waiting.recv() {
        let mut publishes = Vec::with_capacity(128);
        for write in std::iter::once(first).chain(waiting.try_iter()).take(BATCH) {
            match write {
                Write::Publish(publish) => publishes.push(publish),
                Write::Outcome(outcome) => outcomes.push(outcome),
            }
        }
        begin.execute([])?;
        rows.insert(&publishes)?;
        rows.finish(&outcomes)?;
        commit.execute([])?;
        commits.fetch_add(1, Relaxed);
        room.add_permits(outcomes.len());
        outcomes.clear();
        if !publishes.is_empty() {
            committed.send(publishes)?;
        }
    }
    Ok(())
}

/// The four statements, compiled once.
struct Rows<'store> {
    event: Statement<'store>,
    delivery: Statement<'store>,
    attempt: Statement<'store>,
    end: Statement<'store>,
}

impl<'store> Rows<'store> {
    fn prepare(store: &'store Connection) -> Result<Self, rusqlite::Error> {
        Ok(Self {
            event: store.prepare(INSERT_EVENT)?,
            delivery: store.prepare(INSERT_DELIVERY)?,
            attempt: store.prepare(INSERT_ATTEMPT)?,
            end: store.prepare(END_DELIVERY)?,
        })
    }

    /// Table after table: each statement then works on pages that are still warm.
    fn insert(&mut self, publishes: &[Publish]) -> Result<(), rusqlite::Error> {
        for new in publishes {
            self.event.execute((new.event.as_bytes(), &new.event_type, new.created_at, &new.payload[..]))?;
        }
        for new in publishes {
            self.delivery.execute((new.delivery.as_bytes(), new.event.as_bytes(), new.created_at))?;
        }
        Ok(())
    }

    fn finish(&mut self, outcomes: &[Outcome]) -> Result<(), rusqlite::Error> {
        for end in outcomes {
            self.attempt.execute((
                end.attempt.as_bytes(),
                end.delivery.as_bytes(),
                end.http_status,
                end.duration_us,
            ))?;
        }
        for end in outcomes {
            let status = if (200..300).contains(&end.http_status) { 2 } else { 3 };
            self.end.execute((end.delivery.as_bytes(), status))?;
        }
        Ok(())
    }
}

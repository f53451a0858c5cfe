//! The store on SQLite: a thread that owns the database.

use std::{
    error::Error,
    iter,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use rusqlite::{Connection, Statement};

use super::{Announcer, BATCH, Batch, Outcome, Publish, Write, stop_if_failed};

/// The tables of a sender, with the indexes it needs: one event per idempotency key, the history of a webhook in
/// order, due deliveries, and one attempt per number.
const SCHEMA: &str = "
    PRAGMA fullfsync = 1;
    PRAGMA checkpoint_fullfsync = 1;
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

/// Inserted as in flight (status 1): the relay sends the delivery itself, so it is never claimed.
const INSERT_EVENT: &str = "INSERT INTO event VALUES (?1, 1, ?2, ?3, ?1, ?4)";
const INSERT_DELIVERY: &str = "INSERT INTO delivery VALUES (?1, ?2, 1, 1, ?3, 0)";
const INSERT_ATTEMPT: &str = "INSERT INTO attempt VALUES (?1, ?2, 1, ?3, ?4)";
const END_DELIVERY: &str = "UPDATE delivery SET status = ?2, attempts = 1 WHERE id = ?1 AND status = 1";

pub(super) fn spawn(path: &str, announcer: Announcer) -> Result<Sender<Write>, rusqlite::Error> {
    let (queue, waiting) = channel();
    let store = Connection::open(path)?;
    store.execute_batch(SCHEMA)?;
    thread::spawn(move || stop_if_failed(write_all(&store, &waiting, &announcer)));
    Ok(queue)
}

fn write_all(
    store: &Connection,
    waiting: &Receiver<Write>,
    announcer: &Announcer,
) -> Result<(), Box<dyn Error>> {
    let mut begin = store.prepare("BEGIN IMMEDIATE")?;
    let mut commit = store.prepare("COMMIT")?;
    let mut rows = Rows::prepare(store)?;
    while let Ok(first) = waiting.recv() {
        let batch = Batch::sort(iter::once(first).chain(waiting.try_iter()).take(BATCH));
        let statements = 2 + 2 * (batch.publishes.len() + batch.outcomes.len());
        begin.execute([])?;
        rows.insert(&batch.publishes)?;
        rows.finish(&batch.outcomes)?;
        commit.execute([])?;
        announcer.committed(batch, statements)?;
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

    /// Inserts table by table, so that each statement works on cached pages.
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
            self.end.execute((end.delivery.as_bytes(), end.status()))?;
        }
        Ok(())
    }
}

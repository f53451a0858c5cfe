//! The store on PostgreSQL: one connection, and one statement for all waiting writes.
//!
//! A statement is a transaction of its own, so a batch costs one round trip and one WAL flush, without BEGIN and
//! COMMIT. It runs on the HTTP runtime: the work is done by the database server, and a separate thread would only
//! forward it.

use std::{array, error::Error};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::{Client, NoTls, Statement, types::ToSql};
use uuid::Uuid;

use super::{Announcer, BATCH, Batch, Outcome, Publish, Write, stop_if_failed};

/// The tables of the SQLite store, in PostgreSQL's types.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS event (
        id uuid PRIMARY KEY, tenant bigint NOT NULL, event_type text NOT NULL, created_at bigint NOT NULL,
        idempotency_key uuid NOT NULL, payload bytea NOT NULL
    );
    CREATE UNIQUE INDEX IF NOT EXISTS event_idempotency ON event (tenant, idempotency_key);
    CREATE TABLE IF NOT EXISTS delivery (
        id uuid PRIMARY KEY, event uuid NOT NULL, webhook bigint NOT NULL, status smallint NOT NULL,
        due_at bigint NOT NULL, attempts integer NOT NULL
    );
    CREATE INDEX IF NOT EXISTS delivery_history ON delivery (webhook, id);
    CREATE INDEX IF NOT EXISTS delivery_due ON delivery (due_at) WHERE status = 0;
    CREATE TABLE IF NOT EXISTS attempt (
        id uuid PRIMARY KEY, delivery uuid NOT NULL, number integer NOT NULL, http_status integer NOT NULL,
        duration_us bigint NOT NULL
    );
    CREATE UNIQUE INDEX IF NOT EXISTS attempt_number ON attempt (delivery, number);
";

/// Session settings. Plans are made once, on tables that are still empty; without these settings, the server would
/// keep scanning a whole table to find the deliveries that ended.
const SESSION: &str = "
    SET synchronous_commit = on;
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
";

const EVENTS: &str = "
    INSERT INTO event SELECT id, 1, event_type, created_at, id, payload
    FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bytea[])
        AS new (id, event_type, created_at, payload)";

/// Inserted as in flight (status 1): the relay sends the delivery itself, so it is never claimed.
const DELIVERIES: &str = "
    INSERT INTO delivery SELECT id, event, 1, 1, created_at, 0
    FROM unnest($5::uuid[], $1, $3) AS new (id, event, created_at)";

/// Number of parameters of the two statements above, which come first in the combined statement.
const PUBLISHING: usize = 5;

/// Returns the SQL that inserts attempts and ends deliveries, with parameters numbered from `first`.
fn ends(first: usize) -> [String; 2] {
    let [attempt, delivery, http_status, duration_us, status] =
        array::from_fn(|at| format!("${}", first + at));
    let attempts = format!(
        "INSERT INTO attempt SELECT id, delivery, 1, http_status, duration_us
         FROM unnest({attempt}::uuid[], {delivery}::uuid[], {http_status}::integer[], {duration_us}::bigint[])
            AS ended (id, delivery, http_status, duration_us)"
    );
    let deliveries = format!(
        "UPDATE delivery SET status = ended.status, attempts = 1
         FROM unnest({delivery}, {status}::smallint[]) AS ended (id, status)
         WHERE delivery.id = ended.id AND delivery.status = 1"
    );
    [attempts, deliveries]
}

pub(super) async fn spawn(url: &str, announcer: Announcer) -> Result<UnboundedSender<Write>, Box<dyn Error>> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async { stop_if_failed(connection.await.map_err(Into::into)) });
    client.batch_execute(SCHEMA).await?;
    client.batch_execute(SESSION).await?;
    let rows = Rows::prepare(client).await?;
    let (queue, waiting) = unbounded_channel();
    tokio::spawn(async move { stop_if_failed(write_all(&rows, waiting, &announcer).await) });
    Ok(queue)
}

async fn write_all(
    rows: &Rows,
    mut waiting: UnboundedReceiver<Write>,
    announcer: &Announcer,
) -> Result<(), Box<dyn Error>> {
    let mut writes = Vec::new();
    while waiting.recv_many(&mut writes, BATCH).await > 0 {
        let batch = Batch::sort(writes.drain(..));
        rows.write(&batch).await?;
        announcer.committed(batch, 1)?;
    }
    Ok(())
}

/// Three prepared statements: publishes only, outcomes only, both. An empty part of a statement also costs time.
struct Rows {
    client: Client,
    publish: Statement,
    end: Statement,
    both: Statement,
}

impl Rows {
    async fn prepare(client: Client) -> Result<Self, tokio_postgres::Error> {
        let publish = format!("WITH events AS ({EVENTS}) {DELIVERIES}");
        let [attempts, deliveries] = ends(1);
        let end = format!("WITH attempts AS ({attempts}) {deliveries}");
        let [attempts, deliveries] = ends(1 + PUBLISHING);
        let both = format!(
            "WITH events AS ({EVENTS}), deliveries AS ({DELIVERIES}), attempts AS ({attempts}) {deliveries}"
        );
        Ok(Self {
            publish: client.prepare(&publish).await?,
            end: client.prepare(&end).await?,
            both: client.prepare(&both).await?,
            client,
        })
    }

    async fn write(&self, batch: &Batch) -> Result<(), tokio_postgres::Error> {
        let (new, ended) = (New::from_publishes(&batch.publishes), Ended::from_outcomes(&batch.outcomes));
        let (statement, columns) = match (batch.publishes.is_empty(), batch.outcomes.is_empty()) {
            (_, true) => (&self.publish, new.columns().to_vec()),
            (true, false) => (&self.end, ended.columns().to_vec()),
            (false, false) => (&self.both, [new.columns(), ended.columns()].concat()),
        };
        self.client.execute(statement, &columns).await?;
        Ok(())
    }
}

type Columns<'a, const N: usize> = [&'a (dyn ToSql + Sync); N];

/// Publishes, column by column.
struct New<'a> {
    event: Vec<Uuid>,
    event_type: Vec<&'a str>,
    created_at: Vec<i64>,
    payload: Vec<&'a [u8]>,
    delivery: Vec<Uuid>,
}

impl<'a> New<'a> {
    fn from_publishes(publishes: &'a [Publish]) -> Self {
        Self {
            event: publishes.iter().map(|new| new.event).collect(),
            event_type: publishes.iter().map(|new| new.event_type.as_str()).collect(),
            created_at: publishes.iter().map(|new| new.created_at).collect(),
            payload: publishes.iter().map(|new| &new.payload[..]).collect(),
            delivery: publishes.iter().map(|new| new.delivery).collect(),
        }
    }

    fn columns(&self) -> Columns<'_, PUBLISHING> {
        [&self.event, &self.event_type, &self.created_at, &self.payload, &self.delivery]
    }
}

/// Outcomes, column by column.
struct Ended {
    attempt: Vec<Uuid>,
    delivery: Vec<Uuid>,
    http_status: Vec<i32>,
    duration_us: Vec<i64>,
    status: Vec<i16>,
}

impl Ended {
    fn from_outcomes(outcomes: &[Outcome]) -> Self {
        Self {
            attempt: outcomes.iter().map(|end| end.attempt).collect(),
            delivery: outcomes.iter().map(|end| end.delivery).collect(),
            http_status: outcomes.iter().map(|end| end.http_status.into()).collect(),
            duration_us: outcomes.iter().map(|end| end.duration_us).collect(),
            status: outcomes.iter().map(Outcome::status).collect(),
        }
    }

    fn columns(&self) -> Columns<'_, 5> {
        [&self.attempt, &self.delivery, &self.http_status, &self.duration_us, &self.status]
    }
}

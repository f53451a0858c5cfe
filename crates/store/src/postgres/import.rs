//! Taking in a copy of an embedded store, and refusing to open while that is not finished.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use redrive_core::{
    DeliveryStatus, Time,
    tenancy::{DEFAULT_POOL, TenantId},
};
use tokio_postgres::{Client, Transaction, error::SqlState};

use super::{
    Options, Postgres,
    connect::{SessionLimits, Way},
    convert::Col,
    partitions::Partitions,
    session::{Counts, Failure, Sessions},
    undelivered, unreachable,
};
use crate::{
    copy::{Chunk, Copied, CopyError, Facts, Identity, NAMED, Place, Report, Start, tables, tables::STEPS},
    error::OpenError,
};

/// One copy at a time. A moment's patience is for one that was just killed.
const LOCK: &str = "SET lock_timeout = '10s';
     SELECT pg_advisory_lock(hashtext('redrive copy'), hashtext(current_schema()));
     SET lock_timeout = 0; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;
     SET jit = off";
/// A chunk that a crash of the database takes back is copied again: its note goes with it.
const HURRY: &str = "SET synchronous_commit = off";
/// What is committed from here on is on disk, and with it all that was before.
const SETTLE: &str = "RESET synchronous_commit";
const NOTED: &str = "SELECT made, state, path, at, step, last, rows FROM copying";
const NOTE: &str = "INSERT INTO copying (made, state, path, at, step, rows)
     VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $4, 0) RETURNING at";
const GET_ON: &str = "UPDATE copying SET step = $1, last = $2, rows = $3, altered = altered + $4,
         altered_values = (altered_values || $5::text[])[1:$6]
     WHERE step = $7 AND rows = $8";
/// One for each queue that something waits in, as if each had been looked at again.
const LANES: &str = "INSERT INTO lanes (webhook, lane, wake_at, pool)
     SELECT h.webhook, h.lane,
            greatest(h.due, CASE WHEN r.paused THEN $1::bigint ELSE greatest(r.hold_until, r.circuit_until) END),
            coalesce(t.pool, $2)
     FROM (SELECT DISTINCT ON (webhook, lane) webhook, lane, due FROM waiting
           ORDER BY webhook, lane, place, seq) h
     LEFT JOIN runtime r ON r.webhook = h.webhook
     LEFT JOIN webhooks w ON w.id = h.webhook
     LEFT JOIN tenants t ON t.id = w.tenant";
/// What a database has that is, or was, in use.
const USED: [(&str, &str); 5] = [
    ("a server at work, or one that was killed", "SELECT 1 FROM nodes LIMIT 1"),
    ("events", "SELECT 1 FROM events LIMIT 1"),
    ("webhooks", "SELECT 1 FROM webhooks LIMIT 1"),
    ("API keys", "SELECT 1 FROM api_keys LIMIT 1"),
    ("tenants", "SELECT 1 FROM tenants WHERE id <> $1 OR next_seq > 1 OR config_version > 1 LIMIT 1"),
];

/// Refuses a database that holds an unfinished copy.
pub(super) async fn refuse_unfinished(sessions: &Sessions, way: &Way) -> Result<(), OpenError> {
    let unfinished =
        sessions.read(|session| async move { session.exists("SELECT 1 FROM copying", &[]).await });
    match unfinished.await {
        Ok(false) => Ok(()),
        Ok(true) => Err(OpenError::UnfinishedCopy { place: way.place.clone() }),
        Err(failure) => Err(unreachable(way, &failure)),
    }
}

/// Where a copy goes.
pub(crate) struct Target {
    client: Client,
    /// For making months.
    sessions: Sessions,
    partitions: Partitions,
    place: String,
}

impl Target {
    /// Makes or upgrades the schema, and keeps other copies away.
    pub(crate) async fn open(options: &Options) -> Result<Self, CopyError> {
        Postgres::migrate(options).await?;
        let way = Way::parse(options)?;
        let place = way.place.clone();
        let failed = |error: tokio_postgres::Error| unwritable(&place, &error);
        let (client, connection) = way.connect().await.map_err(failed)?;
        // It ends with the client.
        tokio::spawn(connection.for_each(|_| async {}));
        match client.batch_execute(LOCK).await {
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                return Err(CopyError::UnderWay { place });
            }
            locked => locked.map_err(failed)?,
        }
        let row = client.query_one("SELECT current_schema()::text", &[]).await.map_err(failed)?;
        let partitions = Partitions::new(&row.try_get::<_, String>(0).map_err(failed)?);
        let pool = way.pool(1, options, SessionLimits::new(options.statement_timeout));
        let sessions = Sessions::new(pool, Arc::new(Counts::default()), options.statement_timeout * 2);
        Ok(Self { client, sessions, partitions, place })
    }

    /// Finds out where to begin: how, with which time for "now", and at which place.
    pub(crate) async fn begin(&mut self, source: &Identity) -> Result<(Start, i64, Place), CopyError> {
        let name = self.place.clone();
        let failed = |error: tokio_postgres::Error| unwritable(&name, &error);
        let tx = self.client.transaction().await.map_err(failed)?;
        let noted = read_note(&tx).await.map_err(failed)?;
        let start = match noted {
            None => {
                if let Some(what) = used(&tx).await.map_err(failed)? {
                    return Err(CopyError::NotEmpty { place: name, what: what.to_owned() });
                }
                Start::New
            }
            Some(note) if note.made != source.made => {
                return Err(CopyError::AnotherSource { place: name, path: note.path });
            }
            Some(Note { state, now, place: Some(place), .. }) if state == source.state => {
                tx.commit().await.map_err(failed)?;
                self.client.batch_execute(HURRY).await.map_err(failed)?;
                return Ok((Start::Resumed, now, place));
            }
            Some(_) => {
                let tables: Vec<_> = STEPS.iter().map(|step| step.name).collect();
                let tables = tables.join(", ");
                tx.batch_execute(&format!("TRUNCATE copying, lanes, undelivered, {tables}"))
                    .await
                    .map_err(failed)?;
                Start::Anew
            }
        };
        // The one tenant that every database has comes from the source.
        tx.execute("DELETE FROM tenants", &[]).await.map_err(failed)?;
        let first = tx.query_one(NOTE, &[&source.made, &source.state, &source.path, &STEPS[0].name]).await;
        let now = first.and_then(|row| row.try_get(0)).map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        self.client.batch_execute(HURRY).await.map_err(failed)?;
        Ok((start, now, Place::default()))
    }

    /// Writes a chunk and notes how far that is. `at` is where the copy was before.
    pub(crate) async fn put(&mut self, chunk: Chunk, at: &Place) -> Result<Place, CopyError> {
        let name = self.place.clone();
        let months = self.partitions.missing(chunk.days.iter().map(|day| Time::from_millis(*day)));
        if !months.is_empty() {
            let made = self.partitions.make(&self.sessions, months).await;
            made.map_err(|failure: Failure| CopyError::Unwritable {
                place: name.clone(),
                reason: failure.to_string(),
            })?;
        }
        let mut place = match chunk.step == at.step {
            true => at.clone(),
            false => Place { step: chunk.step, ..Place::default() },
        };
        place.rows += chunk.rows;
        place.last = chunk.last.clone().or(place.last);
        let put = async {
            let tx = self.client.transaction().await?;
            copy_in(&tx, &chunk).await?;
            let noted = note(&tx, &chunk, at, &place).await?;
            if noted {
                tx.commit().await?;
            }
            Ok(noted)
        };
        match put.await {
            Ok(true) => Ok(place),
            Ok(false) => Err(CopyError::UnderWay { place: name }),
            Err(error) => Err(unwritable(&name, &error)),
        }
    }

    /// Makes the lanes, compares both sides, and opens the database to servers.
    pub(crate) async fn finish(&mut self, facts: &Facts, start: Start) -> Result<Report, CopyError> {
        let name = self.place.clone();
        let failed = |error: tokio_postgres::Error| unwritable(&name, &error);
        self.client.batch_execute(SETTLE).await.map_err(failed)?;
        let tx = self.client.transaction().await.map_err(failed)?;
        tx.execute(LANES, &[&Col(Time::FOREVER), &DEFAULT_POOL]).await.map_err(failed)?;
        let (delivered, pending) = (Col(DeliveryStatus::Delivered), Col(DeliveryStatus::Pending));
        tx.execute(undelivered::NOTE_ALL, &[&delivered, &pending]).await.map_err(failed)?;
        let found = count(&tx).await.map_err(failed)?;
        let differences = differences(facts, &found);
        if !differences.is_empty() {
            return Err(CopyError::Differs { place: name, what: differences.join("; ") });
        }
        let altered = "DELETE FROM copying RETURNING altered, altered_values";
        let altered = tx.query_one(altered, &[]).await.map_err(failed)?;
        let report = Report {
            start,
            tables: tables(facts, &found),
            rescued: facts.table("leased") - facts.cancelled,
            cancelled: facts.cancelled,
            altered: altered.try_get::<_, i64>(0).map_err(failed)?.unsigned_abs(),
            altered_values: altered.try_get(1).map_err(failed)?,
        };
        tx.commit().await.map_err(failed)?;
        Ok(report)
    }
}

/// What an unfinished copy has noted.
struct Note {
    made: String,
    state: String,
    path: String,
    now: i64,
    /// None if it is at a step that there is not.
    place: Option<Place>,
}

async fn read_note(tx: &Transaction<'_>) -> Result<Option<Note>, tokio_postgres::Error> {
    let Some(row) = tx.query_opt(NOTED, &[]).await? else { return Ok(None) };
    let step: String = row.try_get(4)?;
    let (last, rows) = (row.try_get(5)?, row.try_get::<_, i64>(6)?.unsigned_abs());
    Ok(Some(Note {
        made: row.try_get(0)?,
        state: row.try_get(1)?,
        path: row.try_get(2)?,
        now: row.try_get(3)?,
        place: tables::position(&step).map(|step| Place { step, last, rows }),
    }))
}

/// What shows that a database is, or was, in use.
async fn used(tx: &Transaction<'_>) -> Result<Option<&'static str>, tokio_postgres::Error> {
    for (what, sql) in USED {
        let found = match sql.contains("$1") {
            true => tx.query_opt(sql, &[&TenantId::DEFAULT]).await?,
            false => tx.query_opt(sql, &[]).await?,
        };
        if found.is_some() {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

async fn copy_in(tx: &Transaction<'_>, chunk: &Chunk) -> Result<(), tokio_postgres::Error> {
    if chunk.rows == 0 {
        return Ok(());
    }
    let sink = tx.copy_in::<_, Bytes>(&*STEPS[chunk.step].copy_in()).await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(chunk.data.clone()).await?;
    sink.finish().await?;
    Ok(())
}

/// Notes how far the copy has got. False if it was elsewhere than at `before`.
async fn note(
    tx: &Transaction<'_>,
    chunk: &Chunk,
    before: &Place,
    after: &Place,
) -> Result<bool, tokio_postgres::Error> {
    let noted = tx
        .execute(
            GET_ON,
            &[
                &STEPS[after.step].name,
                &after.last,
                &(after.rows as i64),
                &(chunk.altered as i64),
                &chunk.altered_values,
                &(NAMED as i32),
                &STEPS[before.step].name,
                &(before.rows as i64),
            ],
        )
        .await?;
    Ok(noted == 1)
}

/// What is in the target when all is copied.
struct Found {
    /// Rows of the table of each step.
    rows: Vec<u64>,
    lanes: u64,
    pending: u64,
    nodes: u64,
}

async fn count(tx: &Transaction<'_>) -> Result<Found, tokio_postgres::Error> {
    let count = async |sql: &str| -> Result<u64, tokio_postgres::Error> {
        Ok(tx.query_one(sql, &[]).await?.try_get::<_, i64>(0)?.unsigned_abs())
    };
    let mut rows = Vec::new();
    for step in STEPS {
        rows.push(count(&format!("SELECT count(*) FROM {}", step.name)).await?);
    }
    let pending = "SELECT count(*) FROM deliveries WHERE status = $1";
    let pending = tx.query_one(pending, &[&Col(DeliveryStatus::Pending)]).await?;
    Ok(Found {
        rows,
        lanes: count("SELECT count(*) FROM lanes").await?,
        pending: pending.try_get::<_, i64>(0)?.unsigned_abs(),
        nodes: count("SELECT count(*) FROM nodes").await?,
    })
}

fn differences(facts: &Facts, found: &Found) -> Vec<String> {
    let tables = STEPS.iter().zip(&found.rows).map(|(step, found)| {
        let expected = match step.name {
            "waiting" => facts.table("waiting") + facts.table("leased") - facts.cancelled,
            "leased" => 0,
            name => facts.table(name),
        };
        (format!("rows of {}", step.name), expected, *found)
    });
    let more = [
        ("lanes".to_owned(), facts.lanes, found.lanes),
        (
            "deliveries that are not over".to_owned(),
            facts.pending - facts.cancelled.min(facts.pending),
            found.pending,
        ),
        ("servers that were started meanwhile".to_owned(), 0, found.nodes),
    ];
    tables
        .chain(more)
        .filter(|(_, expected, found)| expected != found)
        .map(|(what, expected, found)| format!("{what}: {found} instead of {expected}"))
        .collect()
}

fn tables(facts: &Facts, found: &Found) -> Vec<Copied> {
    let copied = STEPS.iter().zip(facts.rows.iter().zip(&found.rows));
    copied
        .map(|(step, (source, target))| Copied { table: step.name, source: *source, target: *target })
        .collect()
}

fn unwritable(place: &str, error: &tokio_postgres::Error) -> CopyError {
    let reason = match error.as_db_error() {
        Some(said) => [Some(said.message()), said.detail(), said.where_()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", "),
        None => super::session::said(error),
    };
    CopyError::Unwritable { place: place.to_owned(), reason }
}

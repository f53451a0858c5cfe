//! Imports a copy of an embedded store, and refuses to open a database whose copy is unfinished.

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
    connect::{ServerConfig, SessionLimits},
    convert::Col,
    partitions::Partitions,
    session::{Counts, Failure, Sessions},
    undelivered, unreachable,
};
use crate::{
    copy::{
        Chunk, CopyCursor, CopyError, Identity, MAX_REPORTED_VALUES, Report, SourceCounts, Start,
        TableCounts, tables, tables::TABLE_COPIES,
    },
    error::OpenError,
};

/// Allows one copy at a time. The lock timeout gives the server time to end the session of a copy that was just
/// killed.
const LOCK_COPY: &str = "SET lock_timeout = '10s';
     SELECT pg_advisory_lock(hashtext('redrive copy'), hashtext(current_schema()));
     SET lock_timeout = 0; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;
     SET jit = off";
/// Asynchronous commits are safe here: a chunk that a database crash undoes is copied again, since its progress is
/// undone with it.
const ASYNC_COMMIT: &str = "SET synchronous_commit = off";
/// The next commit is synchronous, and makes all earlier ones durable too.
const SYNC_COMMIT: &str = "RESET synchronous_commit";
const SELECT_COPY_PROGRESS: &str = "SELECT source_created_at, state, path, started_at, step, last, rows
    FROM copy_progress";
const INSERT_COPY_PROGRESS: &str =
    "INSERT INTO copy_progress (source_created_at, state, path, started_at, step, rows)
     VALUES ($1, $2, $3, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, $4, 0) RETURNING started_at";
const SAVE_PROGRESS: &str =
    "UPDATE copy_progress SET step = $1, last = $2, rows = $3, altered = altered + $4,
         altered_values = (altered_values || $5::text[])[1:$6]
     WHERE step = $7 AND rows = $8";
/// Creates one lane for each queue with waiting deliveries, with its wake time computed.
const INSERT_LANES: &str = "INSERT INTO lanes (webhook_id, lane, wake_at, pool)
     SELECT h.webhook_id, h.lane,
            greatest(h.due, CASE WHEN r.paused THEN $1::bigint ELSE greatest(r.paused_until, r.circuit_until) END),
            coalesce(t.pool, $2)
     FROM (SELECT DISTINCT ON (webhook_id, lane) webhook_id, lane, due FROM waiting
           ORDER BY webhook_id, lane, sort_key, seq) h
     LEFT JOIN webhook_runtime r ON r.webhook_id = h.webhook_id
     LEFT JOIN webhooks w ON w.id = h.webhook_id
     LEFT JOIN tenants t ON t.id = w.tenant_id";
/// Queries that find a row in a database that is or was in use.
const IN_USE_CHECKS: [(&str, &str); 5] = [
    ("a running server, or one that was killed", "SELECT 1 FROM nodes LIMIT 1"),
    ("events", "SELECT 1 FROM events LIMIT 1"),
    ("webhooks", "SELECT 1 FROM webhooks LIMIT 1"),
    ("API keys", "SELECT 1 FROM api_keys LIMIT 1"),
    ("tenants", "SELECT 1 FROM tenants WHERE id <> $1 OR next_seq > 1 OR config_version > 1 LIMIT 1"),
];

/// Refuses a database that holds an unfinished copy.
pub(super) async fn refuse_unfinished(sessions: &Sessions, server: &ServerConfig) -> Result<(), OpenError> {
    let unfinished =
        sessions.read(|session| async move { session.exists("SELECT 1 FROM copy_progress", &[]).await });
    match unfinished.await {
        Ok(false) => Ok(()),
        Ok(true) => Err(OpenError::UnfinishedCopy { database: server.displayed_address.clone() }),
        Err(failure) => Err(unreachable(server, &failure)),
    }
}

/// Target of a copy.
pub(crate) struct Target {
    client: Client,
    /// For creating partitions.
    sessions: Sessions,
    partitions: Partitions,
    displayed_address: String,
}

impl Target {
    /// Creates or upgrades the schema, and locks out other copies.
    pub(crate) async fn open(options: &Options) -> Result<Self, CopyError> {
        Postgres::migrate(options).await?;
        let server = ServerConfig::parse(options)?;
        let database = server.displayed_address.clone();
        let failed = |error: tokio_postgres::Error| unwritable(&database, &error);
        let (client, connection) = server.connect().await.map_err(failed)?;
        // The task ends with the client.
        tokio::spawn(connection.for_each(|_| async {}));
        match client.batch_execute(LOCK_COPY).await {
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                return Err(CopyError::InProgress { database });
            }
            locked => locked.map_err(failed)?,
        }
        let row = client.query_one("SELECT current_schema()::text", &[]).await.map_err(failed)?;
        let partitions = Partitions::new(&row.try_get::<_, String>(0).map_err(failed)?);
        let pool = server.pool(1, options, SessionLimits::new(options.statement_timeout));
        let sessions = Sessions::new(pool, Arc::new(Counts::default()), options.statement_timeout * 2);
        Ok(Self { client, sessions, partitions, displayed_address: database })
    }

    /// Returns how the copy starts, the time that it uses as "now", and its position.
    pub(crate) async fn begin(&mut self, source: &Identity) -> Result<(Start, i64, CopyCursor), CopyError> {
        let name = self.displayed_address.clone();
        let failed = |error: tokio_postgres::Error| unwritable(&name, &error);
        let tx = self.client.transaction().await.map_err(failed)?;
        let noted = read_note(&tx).await.map_err(failed)?;
        let start = match noted {
            None => {
                if let Some(what) = used(&tx).await.map_err(failed)? {
                    return Err(CopyError::NotEmpty { database: name, what: what.to_owned() });
                }
                Start::New
            }
            Some(note) if note.created_at != source.created_at => {
                return Err(CopyError::AnotherSource { database: name, path: note.path });
            }
            Some(CopyProgress { state, now, cursor: Some(position), .. }) if state == source.state => {
                tx.commit().await.map_err(failed)?;
                self.client.batch_execute(ASYNC_COMMIT).await.map_err(failed)?;
                return Ok((Start::Resumed, now, position));
            }
            Some(_) => {
                let tables: Vec<_> = TABLE_COPIES.iter().map(|step| step.name).collect();
                let tables = tables.join(", ");
                tx.batch_execute(&format!("TRUNCATE copy_progress, lanes, undelivered, {tables}"))
                    .await
                    .map_err(failed)?;
                Start::Restarted
            }
        };
        // The default tenant that every database has is copied from the source.
        tx.execute("DELETE FROM tenants", &[]).await.map_err(failed)?;
        let first = tx
            .query_one(
                INSERT_COPY_PROGRESS,
                &[&source.created_at, &source.state, &source.path, &TABLE_COPIES[0].name],
            )
            .await;
        let now = first.and_then(|row| row.try_get(0)).map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        self.client.batch_execute(ASYNC_COMMIT).await.map_err(failed)?;
        Ok((start, now, CopyCursor::default()))
    }

    /// Writes a chunk and saves the progress. `at` is the position before it.
    pub(crate) async fn write_chunk(
        &mut self,
        chunk: Chunk,
        at: &CopyCursor,
    ) -> Result<CopyCursor, CopyError> {
        let name = self.displayed_address.clone();
        let months = self.partitions.missing(chunk.days.iter().map(|day| Time::from_millis(*day)));
        if !months.is_empty() {
            let created = self.partitions.create(&self.sessions, months).await;
            created.map_err(|failure: Failure| CopyError::Unwritable {
                database: name.clone(),
                reason: failure.to_string(),
            })?;
        }
        let mut position = match chunk.step == at.step {
            true => at.clone(),
            false => CopyCursor { step: chunk.step, ..CopyCursor::default() },
        };
        position.rows += chunk.rows;
        position.last = chunk.last.clone().or(position.last);
        let put = async {
            let tx = self.client.transaction().await?;
            copy_in(&tx, &chunk).await?;
            let noted = read_progress(&tx, &chunk, at, &position).await?;
            if noted {
                tx.commit().await?;
            }
            Ok(noted)
        };
        match put.await {
            Ok(true) => Ok(position),
            Ok(false) => Err(CopyError::InProgress { database: name }),
            Err(error) => Err(unwritable(&name, &error)),
        }
    }

    /// Creates the lanes, compares source and target, and opens the database to servers.
    pub(crate) async fn finish(
        &mut self,
        expected: &SourceCounts,
        start: Start,
    ) -> Result<Report, CopyError> {
        let name = self.displayed_address.clone();
        let failed = |error: tokio_postgres::Error| unwritable(&name, &error);
        self.client.batch_execute(SYNC_COMMIT).await.map_err(failed)?;
        let tx = self.client.transaction().await.map_err(failed)?;
        tx.execute(INSERT_LANES, &[&Col(Time::FAR_FUTURE), &DEFAULT_POOL]).await.map_err(failed)?;
        let (delivered, pending) = (Col(DeliveryStatus::Delivered), Col(DeliveryStatus::Pending));
        tx.execute(undelivered::INSERT_ALL_UNDELIVERED, &[&delivered, &pending]).await.map_err(failed)?;
        let found = count(&tx).await.map_err(failed)?;
        let differences = differences(expected, &found);
        if !differences.is_empty() {
            return Err(CopyError::Differs { database: name, what: differences.join("; ") });
        }
        let altered = "DELETE FROM copy_progress RETURNING altered, altered_values";
        let altered = tx.query_one(altered, &[]).await.map_err(failed)?;
        let report = Report {
            start,
            tables: tables(expected, &found),
            rescued: expected.table("leased") - expected.cancelled,
            cancelled: expected.cancelled,
            altered: altered.try_get::<_, i64>(0).map_err(failed)?.unsigned_abs(),
            altered_values: altered.try_get(1).map_err(failed)?,
        };
        tx.commit().await.map_err(failed)?;
        Ok(report)
    }
}

/// Saved progress of an unfinished copy.
struct CopyProgress {
    created_at: String,
    state: String,
    path: String,
    now: i64,
    /// `None` if the saved table name is unknown.
    cursor: Option<CopyCursor>,
}

async fn read_note(tx: &Transaction<'_>) -> Result<Option<CopyProgress>, tokio_postgres::Error> {
    let Some(row) = tx.query_opt(SELECT_COPY_PROGRESS, &[]).await? else { return Ok(None) };
    let step: String = row.try_get(4)?;
    let (last, rows) = (row.try_get(5)?, row.try_get::<_, i64>(6)?.unsigned_abs());
    Ok(Some(CopyProgress {
        created_at: row.try_get(0)?,
        state: row.try_get(1)?,
        path: row.try_get(2)?,
        now: row.try_get(3)?,
        cursor: tables::position(&step).map(|step| CopyCursor { step, last, rows }),
    }))
}

/// Returns what shows that a database is or was in use, if anything does.
async fn used(tx: &Transaction<'_>) -> Result<Option<&'static str>, tokio_postgres::Error> {
    for (what, sql) in IN_USE_CHECKS {
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
    let sink = tx.copy_in::<_, Bytes>(&*TABLE_COPIES[chunk.step].copy_in()).await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(chunk.data.clone()).await?;
    sink.finish().await?;
    Ok(())
}

/// Saves the progress of the copy. Returns `false` if the saved position was not `before`.
async fn read_progress(
    tx: &Transaction<'_>,
    chunk: &Chunk,
    before: &CopyCursor,
    after: &CopyCursor,
) -> Result<bool, tokio_postgres::Error> {
    let noted = tx
        .execute(
            SAVE_PROGRESS,
            &[
                &TABLE_COPIES[after.step].name,
                &after.last,
                &(after.rows as i64),
                &(chunk.altered as i64),
                &chunk.altered_values,
                &(MAX_REPORTED_VALUES as i32),
                &TABLE_COPIES[before.step].name,
                &(before.rows as i64),
            ],
        )
        .await?;
    Ok(noted == 1)
}

/// Row counts of the target after everything is copied.
struct TargetCounts {
    /// Rows of each copied table.
    rows: Vec<u64>,
    lanes: u64,
    pending: u64,
    nodes: u64,
}

async fn count(tx: &Transaction<'_>) -> Result<TargetCounts, tokio_postgres::Error> {
    let count = async |sql: &str| -> Result<u64, tokio_postgres::Error> {
        Ok(tx.query_one(sql, &[]).await?.try_get::<_, i64>(0)?.unsigned_abs())
    };
    let mut rows = Vec::new();
    for step in TABLE_COPIES {
        rows.push(count(&format!("SELECT count(*) FROM {}", step.name)).await?);
    }
    let pending = "SELECT count(*) FROM deliveries WHERE status = $1";
    let pending = tx.query_one(pending, &[&Col(DeliveryStatus::Pending)]).await?;
    Ok(TargetCounts {
        rows,
        lanes: count("SELECT count(*) FROM lanes").await?,
        pending: pending.try_get::<_, i64>(0)?.unsigned_abs(),
        nodes: count("SELECT count(*) FROM nodes").await?,
    })
}

fn differences(expected: &SourceCounts, found: &TargetCounts) -> Vec<String> {
    let tables = TABLE_COPIES.iter().zip(&found.rows).map(|(step, found)| {
        let expected = match step.name {
            "waiting" => expected.table("waiting") + expected.table("leased") - expected.cancelled,
            "leased" => 0,
            name => expected.table(name),
        };
        (format!("rows of {}", step.name), expected, *found)
    });
    let more = [
        ("lanes".to_owned(), expected.lanes, found.lanes),
        (
            "pending deliveries".to_owned(),
            expected.pending - expected.cancelled.min(expected.pending),
            found.pending,
        ),
        ("servers started during the copy".to_owned(), 0, found.nodes),
    ];
    tables
        .chain(more)
        .filter(|(_, expected, found)| expected != found)
        .map(|(what, expected, found)| format!("{what}: {found} instead of {expected}"))
        .collect()
}

fn tables(expected: &SourceCounts, found: &TargetCounts) -> Vec<TableCounts> {
    let copied = TABLE_COPIES.iter().zip(expected.rows.iter().zip(&found.rows));
    copied
        .map(|(step, (source, target))| TableCounts { table: step.name, source: *source, target: *target })
        .collect()
}

fn unwritable(database: &str, error: &tokio_postgres::Error) -> CopyError {
    let reason = match error.as_db_error() {
        Some(db_error) => [Some(db_error.message()), db_error.detail(), db_error.where_()]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", "),
        None => super::session::describe_error(error),
    };
    CopyError::Unwritable { database: database.to_owned(), reason }
}

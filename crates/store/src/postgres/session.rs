//! Connections, transactions and their failures.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use deadpool_postgres::{Object, Pool, PoolError, TimeoutType};
use tokio_postgres::{Row, error::SqlState, types::ToSql};

use crate::{batch::CommitError, error::StoreError};

/// Maximum number of tries of a transaction that conflicts with others.
pub(super) const MAX_TRIES: usize = 5;

/// Maximum number of logged lines per part of an error.
const MAX_DETAIL_LINES: usize = 2;
/// Half of the delay before the first retry; it doubles with each retry.
const RETRY_DELAY: Duration = Duration::from_millis(2);

/// Parameters of a statement.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Failure of a database operation.
#[derive(Debug)]
pub(super) enum Failure {
    /// The database reported an error, or the connection was lost.
    Database(tokio_postgres::Error),
    /// No connection could be opened.
    NoConnection(String),
    /// Every connection of the pool was in use until the pool timeout.
    PoolExhausted,
    /// The connection closed before the commit was sent, so the transaction was rolled back.
    Interrupted(tokio_postgres::Error),
    /// The server did not respond within the timeout.
    TimedOut,
    /// Conflict with concurrent transactions; a retry may succeed.
    Contention,
    /// Stored data, or data to be stored, is invalid.
    InvalidData(String),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::InvalidData(error.to_string())
    }
}

impl Failure {
    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) | Self::Interrupted(error) => error.code(),
            _ => None,
        }
    }

    /// Converts a failure of a transaction whose commit was not sent: a closed connection means that it was rolled
    /// back. This also happens to a node that was paused for too long inside a transaction: the server ends such
    /// sessions.
    fn before_commit(self) -> Self {
        match self {
            Self::Database(error) if is_disconnection(&error) => Self::Interrupted(error),
            failure => failure,
        }
    }

    /// Returns whether a retry may succeed: concurrent transactions conflicted, or the connection closed before the
    /// commit.
    pub(super) fn is_contention(&self) -> bool {
        matches!(self, Self::Contention | Self::Interrupted(_))
            || matches!(self.state(), Some(state) if *state == SqlState::T_R_DEADLOCK_DETECTED
                || *state == SqlState::T_R_SERIALIZATION_FAILURE)
    }

    /// Returns whether a unique constraint was violated.
    pub(super) fn is_duplicate(&self) -> bool {
        self.state() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    /// Returns whether the server does not support the statement, or does not permit it to this role.
    pub(super) fn is_refusal(&self) -> bool {
        self.state().is_some_and(|state| is_of(state, &["0A", "42", "55"]))
    }

    /// Returns whether the server no longer accepts writes: it was demoted to a standby.
    fn is_read_only(&self) -> bool {
        self.state() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// Returns whether a lock was not available within the lock timeout.
    pub(super) fn is_lock_timeout(&self) -> bool {
        self.state() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// Returns whether a publish was rolled back because a key or a tenant changed after it was read: see
    /// `publish_statement`.
    pub(super) fn is_stale_read(&self) -> bool {
        self.state() == Some(&SqlState::DIVISION_BY_ZERO)
    }

    /// Returns whether it is unknown if a commit succeeded: the connection was lost, or the server was stopped.
    pub(super) fn is_commit_uncertain(&self) -> bool {
        match self {
            Self::TimedOut => true,
            Self::Database(error) => {
                error.code().is_none_or(|state| !is_of(state, &["22", "23", "54", "40", "55"]))
            }
            Self::NoConnection(_)
            | Self::PoolExhausted
            | Self::Interrupted(_)
            | Self::InvalidData(_)
            | Self::Contention => false,
        }
    }

    /// Returns whether the item is at fault: it violates a constraint, does not fit into a row, or is invalid.
    fn is_item_error(&self) -> bool {
        match self {
            Self::InvalidData(_) => true,
            // Without a code, either the driver could not convert a value or the connection was lost.
            Self::Database(error) => match error.code() {
                Some(state) => is_of(state, &["22", "23", "54"]),
                None => !is_disconnection(error) && std::error::Error::source(error).is_some(),
            },
            _ => false,
        }
    }
}

/// Returns whether the connection was closed, by the network or because its transaction was idle for too long.
fn is_disconnection(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(state) => *state == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        None => {
            error.is_closed()
                || std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>())
        }
    }
}

fn is_of(state: &SqlState, classes: &[&str]) -> bool {
    classes.iter().any(|class| state.code().starts_with(class))
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Database(error) | Self::Interrupted(error) => match error.code() {
                Some(state) => {
                    write!(f, "PostgreSQL error: {} ({}){}", describe_error(error), state.code(), more(error))
                }
                None => f.write_str(&describe_error(error)),
            },
            Self::NoConnection(reason) => f.write_str(reason),
            Self::PoolExhausted => f.write_str("all connections to PostgreSQL are in use"),
            Self::TimedOut => f.write_str("PostgreSQL does not respond"),
            Self::Contention => f.write_str("conflicts with other transactions"),
            Self::InvalidData(reason) => f.write_str(reason),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        if failure.state() == Some(&SqlState::QUERY_CANCELED) {
            return Self::TooSlow;
        }
        if failure.is_lock_timeout() {
            let reason = "another transaction has locked the rows; send the request again later";
            return Self::Busy(reason.into());
        }
        match failure.is_item_error() {
            true => Self::InvalidItem(failure.to_string()),
            false => Self::Unavailable(failure.to_string()),
        }
    }
}

impl From<Failure> for CommitError {
    fn from(failure: Failure) -> Self {
        match failure.is_item_error() {
            true => Self::Item(failure.to_string()),
            // A write that was cancelled by a timeout says nothing about the item.
            false => Self::Store(StoreError::Unavailable(failure.to_string())),
        }
    }
}

/// Connection for one operation. It goes back to the pool only outside a transaction.
pub(super) struct Session {
    client: Option<Object>,
    /// A transaction may be open; the connection must not go back to the pool in this state.
    dirty: AtomicBool,
    counts: Arc<Counts>,
    statement_timeout: Duration,
}

/// Open transaction. Cheap to clone.
pub(super) type Tx = Arc<Session>;

/// Counters since the start of the process.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) commits: AtomicU64,
    pub(super) statements: AtomicU64,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.dirty.load(Relaxed)
            && let Some(client) = self.client.take()
        {
            // Closing the connection rolls the transaction back.
            drop(Object::take(client));
        }
    }
}

impl Session {
    fn client(&self) -> Result<&Object, Failure> {
        self.client.as_ref().ok_or_else(|| Failure::NoConnection("the connection is closed".into()))
    }

    /// Runs a prepared statement and returns its rows.
    pub(super) async fn query(&self, statement: &str, values: Values<'_>) -> Result<Vec<Row>, Failure> {
        let client = self.client()?;
        self.counts.statements.fetch_add(1, Relaxed);
        let prepared = client.prepare_cached(statement);
        let rows = async { client.query(&prepared.await?, values).await };
        tokio::time::timeout(self.statement_timeout, rows)
            .await
            .map_err(|_| Failure::TimedOut)?
            .map_err(Failure::from)
    }

    /// Runs a prepared statement and returns its first row, if there is one.
    pub(super) async fn query_opt(
        &self,
        statement: &str,
        values: Values<'_>,
    ) -> Result<Option<Row>, Failure> {
        Ok(self.query(statement, values).await?.into_iter().next())
    }

    /// Runs a prepared statement and returns its first row. Fails if there is none.
    pub(super) async fn query_one(&self, statement: &str, values: Values<'_>) -> Result<Row, Failure> {
        self.query_opt(statement, values)
            .await?
            .ok_or_else(|| Failure::InvalidData("a row is missing".into()))
    }

    /// Returns whether a prepared statement yields any row.
    pub(super) async fn exists(&self, statement: &str, values: Values<'_>) -> Result<bool, Failure> {
        Ok(self.query_opt(statement, values).await?.is_some())
    }

    /// Runs a prepared statement and returns the number of rows it changed.
    pub(super) async fn execute(&self, statement: &str, values: Values<'_>) -> Result<u64, Failure> {
        let client = self.client()?;
        self.counts.statements.fetch_add(1, Relaxed);
        let prepared = client.prepare_cached(statement);
        let changed = async { client.execute(&prepared.await?, values).await };
        tokio::time::timeout(self.statement_timeout, changed)
            .await
            .map_err(|_| Failure::TimedOut)?
            .map_err(Failure::from)
    }

    /// Runs statements without parameters.
    pub(super) async fn run(&self, statements: &str) -> Result<(), Failure> {
        let client = self.client()?;
        self.counts.statements.fetch_add(1, Relaxed);
        tokio::time::timeout(self.statement_timeout, client.batch_execute(statements))
            .await
            .map_err(|_| Failure::TimedOut)?
            .map_err(Failure::from)
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self) -> Result<(), Failure> {
        self.dirty.store(true, Relaxed);
        self.run("BEGIN").await
    }

    /// Prepares statements, so that they can be pipelined without waiting for replies.
    pub(super) async fn prepare(&self, statements: &[&str]) -> Result<(), Failure> {
        let client = self.client()?;
        let prepared = async {
            for statement in statements {
                client.prepare_cached(statement).await?;
            }
            Ok(())
        };
        tokio::time::timeout(self.statement_timeout, prepared).await.map_err(|_| Failure::TimedOut)?
    }

    /// Sends COMMIT pipelined with the statements before it. The caller checks their results and then calls
    /// [`Session::committed`].
    pub(super) async fn commit_pipelined(&self) -> Result<(), Failure> {
        self.run("COMMIT").await
    }

    /// Commits the transaction and marks the connection as reusable.
    pub(super) async fn commit(&self) -> Result<(), Failure> {
        self.run("COMMIT").await?;
        self.committed();
        Ok(())
    }

    /// Marks the connection as reusable after a commit, and counts the commit.
    pub(super) fn committed(&self) {
        self.dirty.store(false, Relaxed);
        self.counts.commits.fetch_add(1, Relaxed);
    }

    /// Rolls a transaction back. If that fails, the connection is closed when it is dropped.
    pub(super) async fn roll_back(&self) {
        if self.run("ROLLBACK").await.is_ok() {
            self.dirty.store(false, Relaxed);
        }
    }

    /// Sets whether the connection must be closed instead of going back to the pool when it is dropped.
    pub(super) fn set_dirty(&self, busy: bool) {
        self.dirty.store(busy, Relaxed);
    }
}

/// Pool of connections, each used by one operation at a time.
pub(super) struct Sessions {
    pool: Pool,
    counts: Arc<Counts>,
    statement_timeout: Duration,
}

impl Sessions {
    pub(super) fn new(pool: Pool, counts: Arc<Counts>, timeout: Duration) -> Self {
        Self { pool, counts, statement_timeout: timeout }
    }

    pub(super) async fn get(&self) -> Result<Tx, Failure> {
        let client = self.pool.get().await.map_err(|error| no_connection(&error))?;
        Ok(Arc::new(Session {
            client: Some(client),
            dirty: AtomicBool::new(false),
            counts: self.counts.clone(),
            statement_timeout: self.statement_timeout,
        }))
    }

    /// Runs a write in one transaction. Retries if it conflicts with others or the connection closes before the
    /// commit.
    pub(super) async fn write<T, F, C>(&self, change: F) -> Result<T, Failure>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        let change = &change;
        self.transact(|tx| async move {
            tx.begin().await.map_err(Failure::before_commit)?;
            let result = change(tx.clone()).await.map_err(Failure::before_commit)?;
            tx.commit().await?;
            Ok(result)
        })
        .await
    }

    /// Runs a write that sends BEGIN and COMMIT itself, pipelined with its statements. Retries as `write` does.
    pub(super) async fn transact<T, F, C>(&self, change: F) -> Result<T, Failure>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            let tx = self.get().await?;
            match change(tx.clone()).await {
                Ok(result) => return Ok(result),
                // A connection that does not respond is closed, which rolls the transaction back.
                Err(Failure::TimedOut) => return Err(Failure::TimedOut),
                Err(failure) => {
                    tx.roll_back().await;
                    if failure.is_read_only() {
                        // Close this connection, so that the next one is opened to a server that accepts writes.
                        tx.set_dirty(true);
                    }
                    if !failure.is_contention() || tries >= MAX_TRIES {
                        return Err(failure);
                    }
                    drop(tx);
                    match failure {
                        // Expected under contention; see `docs/adr/0044-one-lock-order.md`.
                        Failure::Contention => tracing::debug!(tries, "transaction conflict; will retry"),
                        _ => {
                            tracing::warn!(error = %failure, tries, "transaction was rolled back; will retry")
                        }
                    }
                    // The conflicting transaction needs time to commit.
                    tokio::time::sleep(RETRY_DELAY * (1 << tries)).await;
                }
            }
        }
    }

    /// Runs a read.
    pub(super) async fn read<T, F, C>(&self, question: F) -> Result<T, Failure>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        let session = self.get().await?;
        // If the caller stops waiting, the read may still be running: the connection must not be reused then.
        session.set_dirty(true);
        let response = question(session.clone()).await;
        if !matches!(response, Err(Failure::TimedOut)) {
            session.set_dirty(false);
        }
        response
    }
}

fn no_connection(error: &PoolError) -> Failure {
    Failure::NoConnection(match error {
        PoolError::Timeout(TimeoutType::Wait) => return Failure::PoolExhausted,
        PoolError::Timeout(_) => "PostgreSQL does not respond".into(),
        PoolError::Backend(error) => format!("no connection to PostgreSQL: {}", describe_error(error)),
        other => format!("no connection to PostgreSQL: {other}"),
    })
}

/// Returns further parts of a server error for the log: detail, hint and context. The details of most errors quote
/// values of rows; only those of classes that never do are kept.
fn more(error: &tokio_postgres::Error) -> String {
    let Some(db_error) = error.as_db_error() else { return String::new() };
    // Classes: transaction rollback (deadlocks), resources, operator intervention, system and internal errors.
    let quotes_no_rows = is_of(db_error.code(), &["40", "53", "57", "58", "XX"]);
    let parts = [
        db_error.detail().filter(|_| quotes_no_rows),
        db_error.hint(),
        db_error.where_().filter(|_| quotes_no_rows),
        db_error.constraint(),
    ];
    // The detail of a deadlock ends with whole statements; the first lines name the locks.
    let lines = parts.into_iter().flatten().flat_map(|part| part.lines().take(MAX_DETAIL_LINES));
    lines.map(|line| format!("; {}", line.trim())).collect()
}

/// Returns the message of an error, with its cause.
pub(super) fn describe_error(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(db_error), _) => db_error.message().to_owned(),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

//! Connections, transactions and what can go wrong with them.

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

/// How often a change is tried that others keep getting in the way of.
pub(super) const TRIES: usize = 5;

/// Lines of one part of an error that are logged.
const MAX_DETAIL_LINES: usize = 2;
/// Half of the delay before the first retry; it doubles with each.
const RETRY_DELAY: Duration = Duration::from_millis(2);

/// Values for a statement.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Why something did not work.
#[derive(Debug)]
pub(super) enum Failure {
    /// The database said so, or is gone.
    Database(tokio_postgres::Error),
    /// There is no connection.
    NoConnection(String),
    /// Every connection of the pool was in use for as long as the caller may wait for one.
    PoolExhausted,
    /// The connection closed before the commit was sent, so the transaction was rolled back.
    Interrupted(tokio_postgres::Error),
    /// No answer in time.
    TimedOut,
    /// Others were in the way.
    Passing,
    /// What is stored, or is to be stored, makes no sense.
    Bad(String),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Bad(error.to_string())
    }
}

impl Failure {
    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) | Self::Interrupted(error) => error.code(),
            _ => None,
        }
    }

    /// A failure of a transaction whose commit was not sent. A connection that closed has rolled it back. This also
    /// happens to a node that stood still for too long inside the transaction: the server ends such sessions.
    fn before_commit(self) -> Self {
        match self {
            Self::Database(error) if is_disconnection(&error) => Self::Interrupted(error),
            failure => failure,
        }
    }

    /// Others were in the way, or the connection closed before the commit: the same change may work now.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Passing | Self::Interrupted(_))
            || matches!(self.state(), Some(state) if *state == SqlState::T_R_DEADLOCK_DETECTED
                || *state == SqlState::T_R_SERIALIZATION_FAILURE)
    }

    /// Something is there already.
    pub(super) fn is_duplicate(&self) -> bool {
        self.state() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    /// The server does not offer what was asked for, or not to this role.
    pub(super) fn is_refusal(&self) -> bool {
        self.state().is_some_and(|state| is_of(state, &["0A", "42", "55"]))
    }

    /// The server takes no writes any more: it was demoted to a standby.
    fn is_read_only(&self) -> bool {
        self.state() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// A lock was not to be had in the time that was set for it.
    pub(super) fn is_lock_timeout(&self) -> bool {
        self.state() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// A publish found a key or a tenant changed since it had read them, and was rolled back: see `publish_statement`.
    pub(super) fn is_stale_read(&self) -> bool {
        self.state() == Some(&SqlState::DIVISION_BY_ZERO)
    }

    /// Whether it is unknown what became of a commit: the connection is gone, or the server was stopped.
    pub(super) fn leaves_doubt(&self) -> bool {
        match self {
            Self::TimedOut => true,
            Self::Database(error) => {
                error.code().is_none_or(|state| !is_of(state, &["22", "23", "54", "40", "55"]))
            }
            Self::NoConnection(_)
            | Self::PoolExhausted
            | Self::Interrupted(_)
            | Self::Bad(_)
            | Self::Passing => false,
        }
    }

    /// The item broke a rule of the schema, does not fit into a row, or makes no sense.
    fn is_the_items(&self) -> bool {
        match self {
            Self::Bad(_) => true,
            // Without a code it is the driver that could not convert a value, or the connection that is gone.
            Self::Database(error) => match error.code() {
                Some(state) => is_of(state, &["22", "23", "54"]),
                None => !is_disconnection(error) && std::error::Error::source(error).is_some(),
            },
            _ => false,
        }
    }
}

/// Whether the connection is closed, by the network or because its transaction was idle for too long.
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
                    write!(f, "PostgreSQL said: {} ({}){}", said(error), state.code(), more(error))
                }
                None => f.write_str(&said(error)),
            },
            Self::NoConnection(reason) => f.write_str(reason),
            Self::PoolExhausted => f.write_str("all connections to PostgreSQL are in use"),
            Self::TimedOut => f.write_str("PostgreSQL does not answer"),
            Self::Passing => f.write_str("others keep getting in the way"),
            Self::Bad(reason) => f.write_str(reason),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        if failure.state() == Some(&SqlState::QUERY_CANCELED) {
            return Self::TooSlow;
        }
        if failure.is_lock_timeout() {
            let reason = "another transaction has locked what is to be changed; send the request again later";
            return Self::Busy(reason.into());
        }
        match failure.is_the_items() {
            true => Self::Refused(failure.to_string()),
            false => Self::Unavailable(failure.to_string()),
        }
    }
}

impl From<Failure> for CommitError {
    fn from(failure: Failure) -> Self {
        match failure.is_the_items() {
            true => Self::Item(failure.to_string()),
            // A write that was stopped for taking too long says nothing about the item.
            false => Self::Store(StoreError::Unavailable(failure.to_string())),
        }
    }
}

/// One connection for one purpose. Given back only when it is between transactions.
pub(super) struct Session {
    client: Option<Object>,
    /// In the midst of something: whoever comes next must not find it so.
    busy: AtomicBool,
    counts: Arc<Counts>,
    patience: Duration,
}

/// A transaction under way. Cheap to clone.
pub(super) type Tx = Arc<Session>;

/// What was done since the start.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) commits: AtomicU64,
    pub(super) statements: AtomicU64,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.busy.load(Relaxed)
            && let Some(client) = self.client.take()
        {
            // Closing it rolls back.
            drop(Object::take(client));
        }
    }
}

impl Session {
    fn client(&self) -> Result<&Object, Failure> {
        self.client.as_ref().ok_or_else(|| Failure::NoConnection("the connection is closed".into()))
    }

    /// Rows of a prepared statement.
    pub(super) async fn query(&self, statement: &str, values: Values<'_>) -> Result<Vec<Row>, Failure> {
        let client = self.client()?;
        self.counts.statements.fetch_add(1, Relaxed);
        let prepared = client.prepare_cached(statement);
        let rows = async { client.query(&prepared.await?, values).await };
        tokio::time::timeout(self.patience, rows).await.map_err(|_| Failure::TimedOut)?.map_err(Failure::from)
    }

    /// The first row of a prepared statement, if there is one.
    pub(super) async fn query_opt(
        &self,
        statement: &str,
        values: Values<'_>,
    ) -> Result<Option<Row>, Failure> {
        Ok(self.query(statement, values).await?.into_iter().next())
    }

    /// The one row of a prepared statement.
    pub(super) async fn query_one(&self, statement: &str, values: Values<'_>) -> Result<Row, Failure> {
        self.query_opt(statement, values).await?.ok_or_else(|| Failure::Bad("a row is missing".into()))
    }

    /// Whether a prepared statement has any row.
    pub(super) async fn exists(&self, statement: &str, values: Values<'_>) -> Result<bool, Failure> {
        Ok(self.query_opt(statement, values).await?.is_some())
    }

    /// How many rows a prepared statement changed.
    pub(super) async fn execute(&self, statement: &str, values: Values<'_>) -> Result<u64, Failure> {
        let client = self.client()?;
        self.counts.statements.fetch_add(1, Relaxed);
        let prepared = client.prepare_cached(statement);
        let changed = async { client.execute(&prepared.await?, values).await };
        tokio::time::timeout(self.patience, changed)
            .await
            .map_err(|_| Failure::TimedOut)?
            .map_err(Failure::from)
    }

    /// Statements without values.
    pub(super) async fn run(&self, statements: &str) -> Result<(), Failure> {
        let client = self.client()?;
        self.counts.statements.fetch_add(1, Relaxed);
        tokio::time::timeout(self.patience, client.batch_execute(statements))
            .await
            .map_err(|_| Failure::TimedOut)?
            .map_err(Failure::from)
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self) -> Result<(), Failure> {
        self.busy.store(true, Relaxed);
        self.run("BEGIN").await
    }

    /// Sees to it that these are prepared, so that they can be sent one after the other without waiting.
    pub(super) async fn prepare(&self, statements: &[&str]) -> Result<(), Failure> {
        let client = self.client()?;
        let prepared = async {
            for statement in statements {
                client.prepare_cached(statement).await?;
            }
            Ok(())
        };
        tokio::time::timeout(self.patience, prepared).await.map_err(|_| Failure::TimedOut)?
    }

    /// Sends the end of a transaction along with what comes before it: see [`Session::committed`].
    pub(super) async fn commit_unseen(&self) -> Result<(), Failure> {
        self.run("COMMIT").await
    }

    /// Ends a transaction, and with it all doubt.
    pub(super) async fn commit(&self) -> Result<(), Failure> {
        self.run("COMMIT").await?;
        self.committed();
        Ok(())
    }

    /// Notes a commit that was made in some other way.
    pub(super) fn committed(&self) {
        self.busy.store(false, Relaxed);
        self.counts.commits.fetch_add(1, Relaxed);
    }

    /// Takes a transaction back. A connection that cannot even do that is closed.
    pub(super) async fn roll_back(&self) {
        if self.run("ROLLBACK").await.is_ok() {
            self.busy.store(false, Relaxed);
        }
    }

    /// Notes that something begins or ends that must not be left half done.
    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Relaxed);
    }
}

/// A few connections, lent out one purpose at a time.
pub(super) struct Sessions {
    pool: Pool,
    counts: Arc<Counts>,
    patience: Duration,
}

impl Sessions {
    pub(super) fn new(pool: Pool, counts: Arc<Counts>, patience: Duration) -> Self {
        Self { pool, counts, patience }
    }

    pub(super) async fn get(&self) -> Result<Tx, Failure> {
        let client = self.pool.get().await.map_err(|error| no_connection(&error))?;
        Ok(Arc::new(Session {
            client: Some(client),
            busy: AtomicBool::new(false),
            counts: self.counts.clone(),
            patience: self.patience,
        }))
    }

    /// Makes a change in one transaction, again if others got in the way or the connection closed before the commit.
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

    /// The same for a change that begins and commits by itself, along with its first and last statements.
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
                // A connection that does not answer is closed, which takes everything back.
                Err(Failure::TimedOut) => return Err(Failure::TimedOut),
                Err(failure) => {
                    tx.roll_back().await;
                    if failure.is_read_only() {
                        // The next connection is made to a server that takes writes.
                        tx.set_busy(true);
                    }
                    if !failure.is_passing() || tries >= TRIES {
                        return Err(failure);
                    }
                    drop(tx);
                    match failure {
                        // Expected where transactions meet; see `docs/adr/0044-one-lock-order.md`.
                        Failure::Passing => tracing::debug!(tries, "a transaction is repeated"),
                        _ => {
                            tracing::warn!(error = %failure, tries, "a transaction was rolled back and is repeated")
                        }
                    }
                    // The transaction that was in the way needs time to commit.
                    tokio::time::sleep(RETRY_DELAY * (1 << tries)).await;
                }
            }
        }
    }

    /// Answers a question.
    pub(super) async fn read<T, F, C>(&self, question: F) -> Result<T, Failure>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        let session = self.get().await?;
        // A question that nobody waits for any more may still be under way.
        session.set_busy(true);
        let answer = question(session.clone()).await;
        if !matches!(answer, Err(Failure::TimedOut)) {
            session.set_busy(false);
        }
        answer
    }
}

fn no_connection(error: &PoolError) -> Failure {
    Failure::NoConnection(match error {
        PoolError::Timeout(TimeoutType::Wait) => return Failure::PoolExhausted,
        PoolError::Timeout(_) => "PostgreSQL does not answer".into(),
        PoolError::Backend(error) => format!("no connection to PostgreSQL: {}", said(error)),
        other => format!("no connection to PostgreSQL: {other}"),
    })
}

/// What else the server said about an error, for the log: detail, hint and context. Details of most errors quote values of
/// rows; only those of classes that never do are kept.
fn more(error: &tokio_postgres::Error) -> String {
    let Some(said) = error.as_db_error() else { return String::new() };
    // Rolled back (deadlocks), resources, operator, system and internal errors.
    let quotes_no_rows = is_of(said.code(), &["40", "53", "57", "58", "XX"]);
    let parts = [
        said.detail().filter(|_| quotes_no_rows),
        said.hint(),
        said.where_().filter(|_| quotes_no_rows),
        said.constraint(),
    ];
    // The detail of a deadlock ends with whole statements; one line says which locks were waited for.
    let lines = parts.into_iter().flatten().flat_map(|part| part.lines().take(MAX_DETAIL_LINES));
    lines.map(|line| format!("; {}", line.trim())).collect()
}

/// What an error says, with its cause.
pub(super) fn said(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(said), _) => said.message().to_owned(),
        (None, Some(cause)) => format!("{error}: {cause}"),
        (None, None) => error.to_string(),
    }
}

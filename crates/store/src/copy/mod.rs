//! Copy of an embedded SQLite store to PostgreSQL, while no server uses either.
//!
//! Every table is read in the order of its key and written in chunks. Each chunk is one transaction that also
//! records the progress in `copy_progress`: a copy that was killed at any moment resumes from there. While that
//! row exists, no server starts on the target.
//!
//! A copy is resumed only if the source has not changed. The source is identified by the time its schema was
//! created, wherever its file is. Its contents are identified by a hash over values that change with every use:
//! the tenants with their counters, the keys, and the numbers that every start of a server uses up. If the hash
//! differs, the unfinished copy is discarded and restarted; an unfinished copy of another source is left alone.

pub(crate) mod binary_rows;
pub(crate) mod tables;

use std::collections::BTreeSet;

use bytes::Bytes;

use self::tables::TABLE_COPIES;
use crate::{
    error::OpenError,
    postgres::{self, import::Target},
    sqlite::{self, export::Source},
};

/// Maximum number of rows, and approximate number of bytes, written by one transaction.
const CHUNK_ROWS: usize = 10_000;
const CHUNK_BYTES: usize = 4 << 20;
/// Maximum number of altered values named in a report.
pub(crate) const MAX_REPORTED_VALUES: usize = 100;

/// How a copy started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// In an empty target.
    New,
    /// From the progress of an interrupted copy.
    Resumed,
    /// From the beginning, because the source was used after the interrupted copy.
    Restarted,
}

/// Progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has started.
    Begun(Start),
    /// It counts the rows to copy.
    Counting,
    /// It has copied some rows of a table.
    Rows {
        /// The table.
        table: &'static str,
        /// Rows copied so far.
        done: u64,
        /// Total number of rows.
        total: u64,
    },
    /// It creates the lanes and compares both sides.
    Checking,
}

/// Result of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it started.
    pub start: Start,
    /// Every table.
    pub tables: Vec<TableCounts>,
    /// Number of deliveries leased when the source stopped, without the cancelled ones: they wait and are due
    /// immediately.
    pub rescued: u64,
    /// Number of leased deliveries with a requested cancellation: they are cancelled.
    pub cancelled: u64,
    /// Number of values that PostgreSQL cannot store unchanged.
    pub altered: u64,
    /// The first of them, by table, row and column.
    pub altered_values: Vec<String>,
}

/// Row counts of a copied table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableCounts {
    /// The table.
    pub table: &'static str,
    /// Its rows in the source.
    pub source: u64,
    /// Its rows in the target.
    pub target: u64,
}

/// Reason why a copy did not start or finish.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The source or the target cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no source that could be copied.
    #[error("{path} cannot be copied: {reason}")]
    NoSource {
        /// The source's path.
        path: String,
        /// Reason.
        reason: String,
    },
    /// The source could not be read completely.
    #[error("{path} cannot be read: {reason}; once it can, run the same command again to continue")]
    Unreadable {
        /// The source's path.
        path: String,
        /// Error of the database.
        reason: String,
    },
    /// A row cannot be stored in the target.
    #[error("{row} in the source cannot be copied: {reason}")]
    BadRow {
        /// Its table and its key.
        row: String,
        /// Reason.
        reason: String,
    },
    /// The target is or was used by a server.
    #[error(
        "the database at {database} is not empty: it has {what}; copy into an empty one, or into a schema of \
         its own: …?options=-csearch_path%3DNAME, after CREATE SCHEMA name"
    )]
    NotEmpty {
        /// Address of the database, without the password.
        database: String,
        /// What the target contains.
        what: String,
    },
    /// The target holds an unfinished copy of another source.
    #[error(
        "the database at {database} holds an unfinished copy of another source, {path}; finish that one, or copy \
         into an empty database"
    )]
    AnotherSource {
        /// Address of the database, without the password.
        database: String,
        /// The source of that copy.
        path: String,
    },
    /// Another copy into the target is running.
    #[error("another copy into the database at {database} is running; wait for it, or stop it first")]
    InProgress {
        /// Address of the database, without the password.
        database: String,
    },
    /// The target could not be written.
    #[error(
        "the database at {database} cannot be written: {reason}; once it can, run the same command again to continue"
    )]
    Unwritable {
        /// Address of the database, without the password.
        database: String,
        /// Error of the database.
        reason: String,
    },
    /// The copy differs from the source.
    #[error(
        "the copy in the database at {database} is not what the source is: {what}; do not use it: empty the \
         database (drop its schema), copy again, and report this as a bug"
    )]
    Differs {
        /// Address of the database, without the password.
        database: String,
        /// The difference.
        what: String,
    },
}

/// Rows of one table, ready to be written.
pub(crate) struct Chunk {
    /// Index of the table in `TABLE_COPIES`.
    pub(crate) step: usize,
    /// The rows, in the binary format of `COPY`.
    pub(crate) data: Bytes,
    /// Number of rows.
    pub(crate) rows: u64,
    /// The key of the last row; `None` if there are no rows.
    pub(crate) last: Option<Vec<String>>,
    /// The days of rows in monthly partitions, in milliseconds.
    pub(crate) days: BTreeSet<i64>,
    /// Number of altered values, and the first of them.
    pub(crate) altered: u64,
    pub(crate) altered_values: Vec<String>,
}

/// Position of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyCursor {
    /// Index of the table in `TABLE_COPIES`.
    pub(crate) step: usize,
    /// The key of the last copied row; `None` at the start of a table.
    pub(crate) last: Option<Vec<String>>,
    /// Number of copied rows of this table.
    pub(crate) rows: u64,
}

/// Size limits of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
}

/// Identity of a source.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Time at which its schema was created.
    pub(crate) created_at: String,
    /// A hash over values that change with every use.
    pub(crate) state: String,
    /// Its path, for messages.
    pub(crate) path: String,
}

/// Counts of a source.
#[derive(Clone, Debug)]
pub(crate) struct SourceCounts {
    /// Rows of each table.
    pub(crate) rows: Vec<u64>,
    /// Deliveries that have not ended.
    pub(crate) pending: u64,
    /// Leased deliveries with a requested cancellation.
    pub(crate) cancelled: u64,
    /// Lanes of the deliveries that will wait in the target.
    pub(crate) lanes: u64,
}

impl SourceCounts {
    /// Returns the number of rows that the copy of a table writes.
    pub(crate) fn rows_to_copy(&self, step: usize) -> u64 {
        match TABLE_COPIES[step].name {
            "leased" => self.rows[step] - self.cancelled,
            _ => self.rows[step],
        }
    }

    /// Returns the number of rows of a source table.
    pub(crate) fn table(&self, name: &str) -> u64 {
        tables::position(name).map_or(0, |step| self.rows[step])
    }
}

/// Copies an embedded store, which no process may have open, into an empty database, or resumes such a copy. The
/// source is only read.
pub async fn copy(
    from: &sqlite::Options,
    to: &postgres::Options,
    progress: impl Fn(Progress),
) -> Result<Report, CopyError> {
    run(from, to, Limits { rows: CHUNK_ROWS, bytes: CHUNK_BYTES }, progress).await
}

/// Like `copy`, in chunks of `rows` rows, for tests that stop it in the middle of a table.
#[cfg(feature = "conformance")]
pub async fn copy_in_chunks(
    from: &sqlite::Options,
    to: &postgres::Options,
    rows: usize,
    progress: impl Fn(Progress),
) -> Result<Report, CopyError> {
    run(from, to, Limits { rows, bytes: CHUNK_BYTES }, progress).await
}

async fn run(
    from: &sqlite::Options,
    to: &postgres::Options,
    limits: Limits,
    progress: impl Fn(Progress),
) -> Result<Report, CopyError> {
    let mut source = Source::open(&from.path)?;
    let mut target = Target::open(to).await?;
    let (start, now, mut position) = target.begin(&source.identity).await?;
    progress(Progress::Begun(start));
    progress(Progress::Counting);
    let counts = source.counts().await?;
    for (table, of) in (0..position.step).map(|step| (TABLE_COPIES[step].name, counts.rows_to_copy(step))) {
        progress(Progress::Rows { table, done: of, total: of });
    }
    let mut chunks = source.read(position.clone(), now, limits)?;
    while let Some(chunk) = chunks.recv().await {
        position = target.write_chunk(chunk?, &position).await?;
        let (table, of) = (TABLE_COPIES[position.step].name, counts.rows_to_copy(position.step));
        progress(Progress::Rows { table, done: position.rows, total: of });
    }
    progress(Progress::Checking);
    target.finish(&counts, start).await
}

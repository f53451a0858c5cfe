//! Moving an embedded installation to PostgreSQL, while neither is at work.
//!
//! Every table is read from one end to the other in the order of its key and written in chunks. Each chunk is
//! one transaction that also notes, in `copying`, how far the copy has got: killed at any moment, it goes on
//! from there when it is started again. While that note is there no server starts on the target.
//!
//! A copy is only ever gone on with if nothing has changed. The source is known by the moment its schema was
//! made, wherever its file lies; what was in it is known by a hash over what cannot stay the same while
//! somebody uses it: the tenants with their counters, the keys, and the numbers that every start of a server
//! uses up. If that is another one by now, the unfinished copy is thrown away and begun anew; an unfinished
//! copy of some other source is left alone.

pub(crate) mod binary_rows;
pub(crate) mod tables;

use std::collections::BTreeSet;

use bytes::Bytes;

use self::tables::STEPS;
use crate::{
    error::OpenError,
    postgres::{self, import::Target},
    sqlite::{self, export::Source},
};

/// How many rows one transaction writes at most, and about how many bytes.
const ROWS: usize = 10_000;
const BYTES: usize = 4 << 20;
/// How many altered values are named in a report.
pub(crate) const NAMED: usize = 100;

/// How a copy began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With an empty target.
    New,
    /// Where one that was stopped had got to.
    Resumed,
    /// Anew: the source has been used since the one that was stopped.
    Anew,
}

/// What a copy is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has begun.
    Begun(Start),
    /// It counts what there is to copy.
    Counting,
    /// It has copied so many rows of a table.
    Rows {
        /// The table.
        table: &'static str,
        /// Rows that are in the target by now.
        done: u64,
        /// Rows in all.
        of: u64,
    },
    /// It makes the lanes and compares both sides.
    Checking,
}

/// What a copy came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it began.
    pub start: Start,
    /// Every table.
    pub tables: Vec<Copied>,
    /// Deliveries that a node had when the source stopped: they wait, due at once.
    pub rescued: u64,
    /// Those of them that were to be called off: they are.
    pub cancelled: u64,
    /// Values that PostgreSQL cannot hold as they were: how many.
    pub altered: u64,
    /// The first of them, by table, row and column.
    pub altered_values: Vec<String>,
}

/// A table that was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The table.
    pub table: &'static str,
    /// Its rows in the source.
    pub source: u64,
    /// Its rows in the target.
    pub target: u64,
}

/// Why a copy was not made, or not finished.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// One of the two cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nothing that could be copied.
    #[error("{path} cannot be copied: {reason}")]
    NoSource {
        /// The source's path.
        path: String,
        /// Why not.
        reason: String,
    },
    /// The source could not be read to its end.
    #[error("{path} cannot be read: {reason}; once it can, run the same command again to go on")]
    Unreadable {
        /// The source's path.
        path: String,
        /// What the database said.
        reason: String,
    },
    /// A row that has no place in the target.
    #[error("{row} in the source cannot be copied: {reason}")]
    BadRow {
        /// Its table and its key.
        row: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Somebody uses the target, or has.
    #[error(
        "the database at {place} is not empty: it has {what}; copy into an empty one, or into a schema of \
         its own: …?options=-csearch_path%3DNAME, after CREATE SCHEMA name"
    )]
    NotEmpty {
        /// Where it is, without the password.
        place: String,
        /// What was found there.
        what: String,
    },
    /// There is an unfinished copy of something else in the target.
    #[error(
        "the database at {place} holds an unfinished copy of another source, {path}; finish that one, or copy \
         into an empty database"
    )]
    AnotherSource {
        /// Where it is, without the password.
        place: String,
        /// The source of that copy.
        path: String,
    },
    /// Another copy into the target is under way.
    #[error("another copy into the database at {place} is under way; wait for it, or stop it first")]
    UnderWay {
        /// Where it is, without the password.
        place: String,
    },
    /// The target could not be written.
    #[error(
        "the database at {place} cannot be written: {reason}; once it can, run the same command again to go on"
    )]
    Unwritable {
        /// Where it is, without the password.
        place: String,
        /// What it said.
        reason: String,
    },
    /// Not the same on both sides.
    #[error(
        "the copy in the database at {place} is not what the source is: {what}; do not use it: empty the \
         database (drop its schema), copy again, and report this as a bug"
    )]
    Differs {
        /// Where it is, without the password.
        place: String,
        /// What differs.
        what: String,
    },
}

/// Rows of one table, ready to be written.
pub(crate) struct Chunk {
    /// Which of the steps.
    pub(crate) step: usize,
    /// The rows, as `COPY` takes them.
    pub(crate) data: Bytes,
    /// How many.
    pub(crate) rows: u64,
    /// The key of the last; none without rows.
    pub(crate) last: Option<Vec<String>>,
    /// The days of what is kept by month, as milliseconds.
    pub(crate) days: BTreeSet<i64>,
    /// How many values were altered, and the first of them.
    pub(crate) altered: u64,
    pub(crate) altered_values: Vec<String>,
}

/// How far a copy has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which of the steps.
    pub(crate) step: usize,
    /// The key of the last row that is in the target; none at the beginning of a step.
    pub(crate) last: Option<Vec<String>>,
    /// How many rows of this step are.
    pub(crate) rows: u64,
}

/// How large a chunk may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
}

/// Which source it is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// When its schema was made.
    pub(crate) made: String,
    /// A hash over what changes with every use.
    pub(crate) state: String,
    /// Where it is, for people.
    pub(crate) path: String,
}

/// How much is in a source.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Rows of the table of each step.
    pub(crate) rows: Vec<u64>,
    /// Deliveries that are not over.
    pub(crate) pending: u64,
    /// Leased ones that are to be called off.
    pub(crate) cancelled: u64,
    /// Lanes of what will wait.
    pub(crate) lanes: u64,
}

impl Facts {
    /// Rows that a step will have written when it is over.
    pub(crate) fn of(&self, step: usize) -> u64 {
        match STEPS[step].name {
            "leased" => self.rows[step] - self.cancelled,
            _ => self.rows[step],
        }
    }

    /// Rows of a table of the source.
    pub(crate) fn table(&self, name: &str) -> u64 {
        tables::position(name).map_or(0, |step| self.rows[step])
    }
}

/// Copies everything from an embedded store, which nobody may have open, into an empty database, or goes on
/// with such a copy. The source is only read.
pub async fn copy(
    from: &sqlite::Options,
    to: &postgres::Options,
    progress: impl Fn(Progress),
) -> Result<Report, CopyError> {
    run(from, to, Limits { rows: ROWS, bytes: BYTES }, progress).await
}

/// The same in chunks of so many rows, for tests that stop it in the midst of a table.
#[cfg(feature = "conformance")]
pub async fn copy_in_chunks(
    from: &sqlite::Options,
    to: &postgres::Options,
    rows: usize,
    progress: impl Fn(Progress),
) -> Result<Report, CopyError> {
    run(from, to, Limits { rows, bytes: BYTES }, progress).await
}

async fn run(
    from: &sqlite::Options,
    to: &postgres::Options,
    limits: Limits,
    progress: impl Fn(Progress),
) -> Result<Report, CopyError> {
    let mut source = Source::open(&from.path)?;
    let mut target = Target::open(to).await?;
    let (start, now, mut place) = target.begin(&source.identity).await?;
    progress(Progress::Begun(start));
    progress(Progress::Counting);
    let facts = source.facts().await?;
    for (table, of) in (0..place.step).map(|step| (STEPS[step].name, facts.of(step))) {
        progress(Progress::Rows { table, done: of, of });
    }
    let mut chunks = source.read(place.clone(), now, limits)?;
    while let Some(chunk) = chunks.recv().await {
        place = target.put(chunk?, &place).await?;
        let (table, of) = (STEPS[place.step].name, facts.of(place.step));
        progress(Progress::Rows { table, done: place.rows, of });
    }
    progress(Progress::Checking);
    target.finish(&facts, start).await
}

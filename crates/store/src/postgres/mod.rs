//! The shared store: a PostgreSQL server that any number of nodes use at once.
//!
//! Publishes and outcomes are committed in batches, each by one task of its own; everything else has a
//! connection to itself for as long as it takes. No transaction waits for anything but the database.

mod archiving;
mod audit;
mod backlog;
mod changes;
mod claim;
mod connect;
mod convert;
mod dead;
mod erase;
mod event_types;
mod figures;
mod gates;
mod hints;
mod history;
pub(crate) mod import;
mod lanes;
mod leases;
mod listing;
mod nodes;
mod notices;
mod operations;
mod partitions;
mod plain;
mod prune;
mod publish;
mod record;
mod redrive;
mod schema;
mod session;
mod tenancy;
mod tickets;
mod undelivered;
mod unsubscribed;
mod upkeep;
mod walk;
mod webhooks;
mod writer;

use std::{future::Future, sync::Arc, time::Duration};

use redrive_core::vault::Vault;

use self::{
    connect::Way,
    hints::Hints,
    partitions::Partitions,
    session::{Counts, Failure, Sessions, Tx},
    writer::{Doubts, Writer},
};
use crate::{
    error::{OpenError, StoreError},
    sealed::Seals,
};

pub use schema::Migrated;

/// The statements by which work is done and history is read, each with what it is called: for tests that look
/// at their plans.
#[cfg(feature = "conformance")]
pub fn planned_statements() -> Vec<(String, String)> {
    [
        &claim::PLANNED[..],
        &tickets::PLANNED,
        &lanes::PLANNED,
        &leases::PLANNED,
        &record::PLANNED,
        &gates::PLANNED,
        &backlog::PLANNED,
        &figures::PLANNED,
        &publish::PLANNED,
        &upkeep::PLANNED,
        &plain::PLANNED,
        &undelivered::PLANNED,
        &redrive::PLANNED,
        &operations::PLANNED,
        &walk::PLANNED,
        &prune::PLANNED,
        &erase::PLANNED,
        &history::PLANNED,
        &dead::PLANNED,
        &notices::PLANNED,
    ]
    .concat()
    .into_iter()
    .map(|(name, statement)| (name.to_owned(), statement.to_owned()))
    .chain(listing::planned())
    .collect()
}

/// A URL whose connections plan as those of the store do: for the same tests.
#[cfg(feature = "conformance")]
pub fn planning_url(options: &Options) -> String {
    Way::planning_url(options)
}

/// How the store is to be reached.
#[derive(Clone)]
pub struct Options {
    /// `postgres://user@host:port/database?sslmode=…&sslrootcert=…&options=…`
    pub url: String,
    /// The password, where the URL does not have it.
    pub password: Option<String>,
    /// Connections that write.
    pub writers: usize,
    /// Connections that only read.
    pub readers: usize,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a statement that writes may take, and how long anything may wait for its connection.
    pub statement_timeout: Duration,
    /// How long a question may take.
    pub query_timeout: Duration,
    /// Whether to bring the schema up to date when it is older.
    pub migrate: bool,
    /// Publishes that may wait to be written; more are refused as overload.
    pub max_waiting: usize,
    /// Bytes that those may hold.
    pub max_waiting_bytes: usize,
    /// What opens and seals webhooks; none where no webhook is read or written.
    pub vault: Option<Vault>,
}

impl Options {
    /// The usual options for a database at `url`.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            password: None,
            writers: 8,
            readers: 4,
            connect_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(10),
            query_timeout: Duration::from_secs(2),
            migrate: true,
            max_waiting: 20_000,
            max_waiting_bytes: 64 << 20,
            vault: None,
        }
    }

    /// The same for webhooks that this vault opens and seals.
    pub fn sealed_by(self, vault: Vault) -> Self {
        Self { vault: Some(vault), ..self }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Options")
            .field("writers", &self.writers)
            .field("readers", &self.readers)
            .finish_non_exhaustive()
    }
}

/// The shared store.
pub struct Postgres {
    shared: Arc<Shared>,
    writer: Writer,
}

/// What all parts of the store use.
struct Shared {
    writers: Sessions,
    readers: Sessions,
    counts: Arc<Counts>,
    partitions: Partitions,
    hints: Hints,
    doubts: Doubts,
    seals: Seals,
}

impl Postgres {
    /// Connects, and makes or upgrades the schema first if that was asked for.
    pub async fn open(options: &Options) -> Result<Self, OpenError> {
        let way = Way::parse(options)?;
        schema::prepare(&way, options.migrate).await?;
        let counts = Arc::new(Counts::default());
        // The database stops a statement first; this is for one that does not answer at all.
        let grace = Duration::from_secs(2);
        let writers = Sessions::new(
            way.pool(options.writers, options, options.statement_timeout),
            counts.clone(),
            options.statement_timeout + grace,
        );
        let readers = Sessions::new(
            way.pool(options.readers, options, options.query_timeout),
            counts.clone(),
            options.query_timeout + grace,
        );
        import::refuse_unfinished(&writers, &way).await?;
        let schema = schema::name(&writers).await.map_err(|failure| unreachable(&way, &failure))?;
        let hints = Hints::start(&way, &schema, options);
        let partitions = Partitions::new(&schema);
        let (doubts, seals) = (Doubts::default(), Seals(options.vault.clone()));
        let shared = Arc::new(Shared { writers, readers, counts, partitions, hints, doubts, seals });
        let writer = Writer::start(&shared, options);
        Ok(Self { shared, writer })
    }

    /// Makes or upgrades the schema, and nothing else.
    pub async fn migrate(options: &Options) -> Result<Migrated, OpenError> {
        schema::prepare(&Way::parse(options)?, true).await
    }

    /// Makes a change in one transaction.
    async fn write<T, F, C>(&self, change: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        match self.shared.writers.write(change).await.map_err(StoreError::from) {
            // A write that took too long may do better later.
            Err(StoreError::TooSlow) => Err(StoreError::Unavailable("PostgreSQL took too long".into())),
            result => result,
        }
    }

    /// Answers a question.
    async fn read<T, F, C>(&self, question: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        self.shared.readers.read(question).await.map_err(StoreError::from)
    }
}

fn unreachable(way: &Way, reason: &impl ToString) -> OpenError {
    OpenError::Unreachable { place: way.place.clone(), reason: reason.to_string() }
}

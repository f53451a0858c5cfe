//! The shared store: a PostgreSQL server that any number of nodes use at once.
//!
//! Publishes and outcomes are committed in batches, each by one task of its own; everything else has a
//! connection to itself for as long as it takes. No transaction waits for anything but the database.

mod archive_outbox;
mod audit;
mod backlog;
mod blocked;
mod browser_sessions;
mod changes;
mod claim;
mod clock;
mod connect;
mod convert;
mod dead;
mod durability;
mod erase;
mod event_types;
mod hints;
mod history;
pub(crate) mod import;
mod lanes;
mod leases;
mod listing;
mod mail_addresses;
mod maintenance;
mod nodes;
mod notifications;
mod operations;
mod partitions;
mod prune;
mod publish;
mod publish_statement;
mod publish_writer;
mod record;
mod redrive;
mod runtime_state;
mod scan;
mod schema;
mod session;
mod statistics;
mod tenancy;
mod tickets;
mod undelivered;
mod unsubscriptions;
mod webhooks;
mod writer;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redrive_core::{TenantId, security::vault::Vault};

use self::{
    connect::{SessionLimits, Way},
    hints::Hints,
    partitions::Partitions,
    publish_writer::{PUBLISH_LOCK_TIMEOUT, PublishWatch},
    session::{Counts, Failure, Sessions, Tx},
    writer::{Doubts, Writer},
};
use crate::{
    error::{OpenError, StoreError},
    sealed::Seals,
    tenant_reads::TenantReads,
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
        &runtime_state::PLANNED,
        &backlog::PLANNED,
        &statistics::PLANNED,
        &publish::PLANNED,
        &maintenance::PLANNED,
        &changes::PLANNED,
        &clock::PLANNED,
        &publish_statement::PLANNED,
        &undelivered::PLANNED,
        &redrive::PLANNED,
        &operations::PLANNED,
        &scan::PLANNED,
        &prune::PLANNED,
        &erase::PLANNED,
        &history::PLANNED,
        &dead::PLANNED,
        &notifications::PLANNED,
        &mail_addresses::PLANNED,
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
    /// Connections for scheduling and maintenance, and for administrative writes: half of them each. Heartbeats,
    /// rescues, publishes and outcomes have connections of their own beside these.
    pub writers: usize,
    /// Connections for listings and other questions of users. The engine's own reads have connections beside these.
    pub readers: usize,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// How long a statement that writes may take, and how long anything may wait for its connection.
    pub statement_timeout: Duration,
    /// How long a question may take.
    pub query_timeout: Duration,
    /// After how long without a heartbeat a node is declared dead. The server ends sessions of a client that does not
    /// respond accordingly.
    pub lease: Duration,
    /// Whether to use a server that can lose acknowledged events when it crashes: for tests.
    pub allow_unsafe_durability: bool,
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
            writers: 6,
            readers: 3,
            connect_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(10),
            query_timeout: Duration::from_secs(2),
            lease: Duration::from_secs(5),
            allow_unsafe_durability: false,
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

/// How long an administrative write waits for a row that another transaction has locked, and for a connection.
const ADMIN_LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a transaction that locks tenants or lanes may be idle before the server ends its session.
const LOCKING_IDLE_TIMEOUT: Duration = Duration::from_millis(600);
/// Connections for the engine's own reads.
const ENGINE_READERS: usize = 2;

/// The shared store.
pub struct Postgres {
    shared: Arc<Shared>,
    writer: Writer,
}

/// What all parts of the store use. Work that must not wait for other work has connections of its own.
struct Shared {
    /// Raise a node's heartbeat, and let it join.
    heartbeats: Sessions,
    /// End dead epochs, and return leases to their lanes.
    rescues: Sessions,
    /// Publish for all tenants that are not locked by another transaction.
    publishing: Sessions,
    /// Publish for tenants that are.
    blocked_publishing: Sessions,
    publish_watch: PublishWatch,
    /// Record outcomes, and mark deliveries as being sent.
    recording: Sessions,
    /// Claim, schedule, and maintain.
    writers: Sessions,
    /// Write what users change.
    administration: Sessions,
    /// Read for the engine.
    readers: Sessions,
    /// Read for users.
    user_readers: Sessions,
    tenant_reads: TenantReads,
    /// Reads run so far.
    read_count: AtomicU64,
    counts: Arc<Counts>,
    partitions: Partitions,
    hints: Hints,
    doubts: Doubts,
    seals: Seals,
    /// See [`Options::allow_unsafe_durability`].
    allow_unsafe_durability: bool,
    /// The server refuses to say which one it is.
    hides_identity: AtomicBool,
}

impl Postgres {
    /// Connects, and makes or upgrades the schema first if that was asked for.
    pub async fn open(options: &Options) -> Result<Self, OpenError> {
        let way = Way::parse(options)?;
        schema::prepare(&way, options.migrate).await?;
        durability::refuse_unsafe(&way, options).await?;
        let counts = Arc::new(Counts::default());
        // The database stops a statement first; the grace is for one that does not answer at all.
        let grace = Duration::from_secs(2);
        let open = |size: usize, limits: SessionLimits| {
            let pool = way.pool(size, options, limits);
            Sessions::new(pool, counts.clone(), limits.statement_timeout + grace)
        };
        let write = SessionLimits::new(options.statement_timeout);
        let read = SessionLimits::new(options.query_timeout);
        let publish = SessionLimits { lock_timeout: Some(PUBLISH_LOCK_TIMEOUT), ..write };
        let timeout = Some(ADMIN_LOCK_TIMEOUT);
        // Their transactions lock tenants or lanes over several round trips, and publishes wait for these.
        let short_idle = SessionLimits { idle_timeout: Some(LOCKING_IDLE_TIMEOUT), ..write };
        let administer = SessionLimits { lock_timeout: timeout, pool_timeout: timeout, ..short_idle };
        let blocked = SessionLimits { pool_timeout: Some(PUBLISH_LOCK_TIMEOUT), ..publish };
        let writers = open(options.writers.div_ceil(2), short_idle);
        import::refuse_unfinished(&writers, &way).await?;
        let schema = schema::name(&writers).await.map_err(|failure| unreachable(&way, &failure))?;
        let shared = Arc::new(Shared {
            heartbeats: open(1, write),
            rescues: open(2, short_idle),
            publishing: open(1, publish),
            blocked_publishing: open(2, blocked),
            publish_watch: PublishWatch::default(),
            recording: open(1, short_idle),
            writers,
            administration: open((options.writers / 2).max(1), administer),
            readers: open(ENGINE_READERS, read),
            user_readers: open(options.readers, read),
            tenant_reads: TenantReads::new((options.readers / 2).max(1)),
            read_count: AtomicU64::new(0),
            hints: Hints::start(&way, &schema, options),
            partitions: Partitions::new(&schema),
            counts: counts.clone(),
            doubts: Doubts::default(),
            seals: Seals(options.vault.clone()),
            allow_unsafe_durability: options.allow_unsafe_durability,
            hides_identity: AtomicBool::default(),
        });
        let writer = Writer::start(&shared, options);
        Ok(Self { shared, writer })
    }

    /// Makes or upgrades the schema, and nothing else.
    pub async fn migrate(options: &Options) -> Result<Migrated, OpenError> {
        schema::prepare(&Way::parse(options)?, true).await
    }

    /// Ends the tasks that write while the store is open, as a fault in the program might: for tests.
    #[cfg(feature = "conformance")]
    pub fn end_writers(&self) {
        self.writer.end();
    }

    /// Makes a change of the engine's in one transaction.
    async fn write<T, F, C>(&self, change: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        write_on(&self.shared.writers, change).await
    }

    /// Makes a change that a user asked for in one transaction.
    async fn administer<T, F, C>(&self, change: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        let busy =
            || StoreError::Busy("too many changes wait for locks; send the request again later".into());
        match self.shared.administration.write(change).await {
            Err(Failure::PoolExhausted) => Err(busy()),
            result => written(result),
        }
    }

    /// Runs a read for a user.
    async fn read_for_user<T, F, C>(&self, question: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        self.shared.read_count.fetch_add(1, Ordering::Relaxed);
        self.shared.user_readers.read(question).await.map_err(StoreError::from)
    }

    /// Runs a read for a user that may take long; few of each tenant run at the same time.
    async fn list_for<T, F, C>(&self, tenant: &TenantId, question: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        let _permit = self.shared.tenant_reads.acquire(tenant).await?;
        self.read_for_user(question).await
    }

    /// Runs a read for the tenant that asked, or for the engine.
    async fn read_for<T, F, C>(&self, tenant: Option<&TenantId>, question: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        match tenant {
            Some(tenant) => self.list_for(tenant, question).await,
            None => self.read(question).await,
        }
    }

    /// Runs a read for the engine.
    async fn read<T, F, C>(&self, question: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        self.shared.read_count.fetch_add(1, Ordering::Relaxed);
        self.shared.readers.read(question).await.map_err(StoreError::from)
    }
}

/// Makes a change in one transaction on a connection of `sessions`.
async fn write_on<T, F, C>(sessions: &Sessions, change: F) -> Result<T, StoreError>
where
    F: Fn(Tx) -> C,
    C: Future<Output = Result<T, Failure>>,
{
    written(sessions.write(change).await)
}

fn written<T>(result: Result<T, Failure>) -> Result<T, StoreError> {
    result.map_err(|failure| {
        let cause = failure.to_string();
        match StoreError::from(failure) {
            // A write that took too long may succeed later. The cause says what stopped it.
            StoreError::TooSlow => StoreError::Unavailable(cause),
            error => error,
        }
    })
}

fn unreachable(way: &Way, reason: &impl ToString) -> OpenError {
    OpenError::Unreachable { place: way.place.clone(), reason: reason.to_string() }
}

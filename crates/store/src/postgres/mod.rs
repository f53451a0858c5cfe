//! The shared store: a PostgreSQL server that any number of nodes use concurrently.
//!
//! Publishes and outcomes are committed in batches, each by its own task; every other operation has a connection
//! to itself while it runs. No transaction waits for anything but the database.

mod across_tenants;
mod archive_outbox;
mod attempts;
mod audit;
mod backlog;
mod blocked;
mod browser_sessions;
mod changes;
mod claim;
mod clock;
mod connect;
mod convert;
mod creations;
mod dead;
mod durability;
mod email_addresses;
mod erase;
mod event_types;
mod failures;
mod hints;
mod history;
pub(crate) mod import;
mod lanes;
mod leases;
mod listing;
mod maintenance;
mod nodes;
mod notifications;
mod operations;
mod partitions;
mod prune;
mod publish;
mod publish_statement;
mod publish_writer;
mod rankings;
mod record;
mod redrive;
mod runtime_state;
mod scan;
mod schema;
mod session;
mod statistics;
mod successes;
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
    connect::{ServerConfig, SessionLimits},
    hints::Hints,
    partitions::Partitions,
    publish_writer::{PUBLISH_LOCK_TIMEOUT, PublishWatch},
    session::{Counts, Failure, Sessions, Tx},
    writer::{UncertainCommits, Writer},
};
use crate::{
    error::{OpenError, StoreError},
    sealed::WebhookSealer,
    tenant_reads::TenantReads,
};

pub use schema::Migrated;

/// Returns the statements for processing deliveries and reading history, each with a name; tests check their query
/// plans.
#[cfg(feature = "conformance")]
pub fn planned_statements() -> Vec<(String, String)> {
    [
        &claim::PLANNED_STATEMENTS[..],
        &tickets::PLANNED_STATEMENTS,
        &lanes::PLANNED_STATEMENTS,
        &leases::PLANNED_STATEMENTS,
        &record::PLANNED_STATEMENTS,
        &runtime_state::PLANNED_STATEMENTS,
        &backlog::PLANNED_STATEMENTS,
        &statistics::PLANNED_STATEMENTS,
        &failures::PLANNED_STATEMENTS,
        &successes::PLANNED_STATEMENTS,
        &publish::PLANNED_STATEMENTS,
        &maintenance::PLANNED_STATEMENTS,
        &changes::PLANNED_STATEMENTS,
        &clock::PLANNED_STATEMENTS,
        &publish_statement::PLANNED_STATEMENTS,
        &undelivered::PLANNED_STATEMENTS,
        &redrive::PLANNED_STATEMENTS,
        &operations::PLANNED_STATEMENTS,
        &scan::PLANNED_STATEMENTS,
        &prune::PLANNED_STATEMENTS,
        &erase::PLANNED_STATEMENTS,
        &history::PLANNED_STATEMENTS,
        &dead::PLANNED_STATEMENTS,
        &rankings::PLANNED_STATEMENTS,
        &notifications::PLANNED_STATEMENTS,
        &email_addresses::PLANNED_STATEMENTS,
        &across_tenants::PLANNED_STATEMENTS,
    ]
    .concat()
    .into_iter()
    .map(|(name, statement)| (name.to_owned(), statement.to_owned()))
    .chain(listing::planned())
    .chain(attempts::planned())
    .chain(dead::planned())
    .collect()
}

/// Returns a URL whose connections have the planner settings of the store, for the same tests.
#[cfg(feature = "conformance")]
pub fn planning_url(options: &Options) -> String {
    ServerConfig::planning_url(options)
}

/// Options of the store.
#[derive(Clone)]
pub struct Options {
    /// `postgres://user@host:port/database?sslmode=…&sslrootcert=…&options=…`
    pub url: String,
    /// Password, if the URL does not contain it.
    pub password: Option<String>,
    /// Connections for scheduling and maintenance, and for administrative writes: half of them each. Heartbeats,
    /// rescues, publishes and outcomes have additional connections.
    pub writers: usize,
    /// Connections for listings and other reads of users. Reads of the engine have additional connections.
    pub readers: usize,
    /// Timeout for opening a connection.
    pub connect_timeout: Duration,
    /// Timeout of a statement that writes, and of waiting for a connection of a pool.
    pub statement_timeout: Duration,
    /// Timeout of a statement that reads.
    pub query_timeout: Duration,
    /// Time without a heartbeat after which a node is declared dead. The server's timeouts for sessions of a client
    /// that does not respond are derived from it.
    pub lease: Duration,
    /// Whether to accept a server that can lose acknowledged events when it crashes: for tests.
    pub allow_unsafe_durability: bool,
    /// Whether to upgrade an older schema.
    pub migrate: bool,
    /// Maximum number of queued publishes; further ones are refused as overload.
    pub max_queued_publishes: usize,
    /// Maximum bytes of queued publishes.
    pub max_queued_bytes: usize,
    /// Vault that seals and unseals webhooks; `None` if no webhook is read or written.
    pub vault: Option<Vault>,
}

impl Options {
    /// Checks the URL and reads the certificates that it names, without connecting.
    pub fn check(&self) -> Result<(), OpenError> {
        ServerConfig::parse(self).map(drop)
    }

    /// Connects, and refuses a server that can lose acknowledged events, unless the options allow it. The schema may be
    /// missing.
    pub async fn check_durability(&self) -> Result<(), OpenError> {
        durability::refuse_unsafe(&ServerConfig::parse(self)?, self).await
    }

    /// Returns the default options for a database at `url`.
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
            max_queued_publishes: 20_000,
            max_queued_bytes: 64 << 20,
            vault: None,
        }
    }

    /// Sets the vault that seals and unseals webhooks.
    pub fn with_vault(self, vault: Vault) -> Self {
        Self { vault: Some(vault), ..self }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may contain a password.
        f.debug_struct("Options")
            .field("writers", &self.writers)
            .field("readers", &self.readers)
            .finish_non_exhaustive()
    }
}

/// Timeout of an administrative write for a row that another transaction has locked, and for a connection.
const ADMIN_LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Idle time after which the server ends the session of a transaction that locks tenants or lanes.
const LOCKING_IDLE_TIMEOUT: Duration = Duration::from_millis(600);
/// Connections for reads of the engine.
const ENGINE_READERS: usize = 2;

/// The shared store.
pub struct Postgres {
    shared: Arc<Shared>,
    writer: Writer,
}

/// State shared by all parts of the store. Work that must not wait for other work has its own connections.
struct Shared {
    /// For heartbeats and joins of nodes.
    heartbeats: Sessions,
    /// For ending dead epochs and returning leases to their lanes.
    rescues: Sessions,
    /// For publishes of tenants that no other transaction has locked.
    publishing: Sessions,
    /// For publishes of tenants that another transaction has locked.
    blocked_publishing: Sessions,
    publish_watch: PublishWatch,
    /// For recording outcomes, and for marking deliveries as being sent.
    recording: Sessions,
    /// For claims, scheduling and maintenance.
    writers: Sessions,
    /// For writes of users.
    administration: Sessions,
    /// For reads of the engine.
    readers: Sessions,
    /// For reads of users.
    user_readers: Sessions,
    tenant_reads: TenantReads,
    /// Number of reads so far.
    read_count: AtomicU64,
    counts: Arc<Counts>,
    partitions: Partitions,
    hints: Hints,
    doubts: UncertainCommits,
    seals: WebhookSealer,
    /// See [`Options::allow_unsafe_durability`].
    allow_unsafe_durability: bool,
    /// Whether the server has refused to report its identity.
    hides_identity: AtomicBool,
}

impl Postgres {
    /// Connects, and creates or upgrades the schema first if the options allow it.
    pub async fn open(options: &Options) -> Result<Self, OpenError> {
        let way = ServerConfig::parse(options)?;
        schema::prepare(&way, options.migrate).await?;
        durability::refuse_unsafe(&way, options).await?;
        let counts = Arc::new(Counts::default());
        // The database cancels a slow statement first; the grace is for a server that does not respond at all.
        let grace = Duration::from_secs(2);
        let open = |size: usize, limits: SessionLimits| {
            let pool = way.pool(size, options, limits);
            Sessions::new(pool, counts.clone(), limits.statement_timeout + grace)
        };
        let write = SessionLimits::new(options.statement_timeout);
        let read = SessionLimits::new(options.query_timeout);
        let publish = SessionLimits { lock_timeout: Some(PUBLISH_LOCK_TIMEOUT), ..write };
        let timeout = Some(ADMIN_LOCK_TIMEOUT);
        // Transactions on these connections lock tenants or lanes over several round trips, and publishes wait for the
        // locks.
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
            doubts: UncertainCommits::default(),
            seals: WebhookSealer(options.vault.clone()),
            allow_unsafe_durability: options.allow_unsafe_durability,
            hides_identity: AtomicBool::default(),
        });
        let writer = Writer::start(&shared, options);
        Ok(Self { shared, writer })
    }

    /// Creates or upgrades the schema, and does nothing else.
    pub async fn migrate(options: &Options) -> Result<Migrated, OpenError> {
        schema::prepare(&ServerConfig::parse(options)?, true).await
    }

    /// Aborts the writer tasks while the store is open, as a bug might: for tests.
    #[cfg(feature = "conformance")]
    pub fn end_writers(&self) {
        self.writer.end();
    }

    /// Runs a write of the engine in one transaction.
    async fn write<T, F, C>(&self, change: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        write_on(&self.shared.writers, change).await
    }

    /// Runs a write of a user in one transaction.
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

    /// Runs a read for a user that may take long; the number of concurrent ones per tenant is limited.
    async fn list_for<T, F, C>(&self, tenant_id: &TenantId, question: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        let _permit = self.shared.tenant_reads.acquire(tenant_id).await?;
        self.read_for_user(question).await
    }

    /// Runs a read over all tenants for an admin; the number of concurrent ones is limited.
    async fn list_for_all_tenants<T, F, C>(&self, question: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        let _permit = self.shared.tenant_reads.acquire_for_all_tenants().await?;
        self.read_for_user(question).await
    }

    /// Runs a listing of the given tenant, or of all tenants if there is none, for a user.
    async fn list_for_selection<T, F, C>(
        &self,
        tenant_id: Option<&TenantId>,
        question: F,
    ) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        match tenant_id {
            Some(tenant_id) => self.list_for(tenant_id, question).await,
            None => self.list_for_all_tenants(question).await,
        }
    }

    /// Runs a read for the given tenant, or for the engine if there is none.
    async fn read_for<T, F, C>(&self, tenant_id: Option<&TenantId>, question: F) -> Result<T, StoreError>
    where
        F: Fn(Tx) -> C,
        C: Future<Output = Result<T, Failure>>,
    {
        match tenant_id {
            Some(tenant_id) => self.list_for(tenant_id, question).await,
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

/// Runs a write in one transaction on a connection of `sessions`.
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
            // A write that timed out may succeed later. The message says what stopped it.
            StoreError::TooSlow => StoreError::Unavailable(cause),
            error => error,
        }
    })
}

fn unreachable(way: &ServerConfig, reason: &impl ToString) -> OpenError {
    OpenError::Unreachable { database: way.displayed_address.clone(), reason: reason.to_string() }
}

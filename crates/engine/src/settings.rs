//! What the operator decides about the data path.

use std::time::Duration;

use redrive_core::{
    Role, delivery::retry::RetryPolicy, maintenance::retention::Retention, notification::grouping::Folds,
    protection::breaker::BreakerPolicy, protection::limiter::RateLimit, tenancy::DEFAULT_POOL,
    webhook::caps::Caps,
};

use crate::{Post, metrics::Series, queue::amqp::Tickets, trace::Tracing};

/// Limits and defaults of the data path.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node's name, shown with every attempt it makes.
    pub node: String,
    /// What this node is there for.
    pub role: Role,
    /// Where nodes share a store: whoever has not shown for so long that it is alive is dead, and the others take
    /// over what it had.
    pub lease: Duration,
    /// How often leases in the store are compared with memory; see `lease_auditor`.
    pub lease_audit_interval: Duration,
    /// Requests under way at once, over all webhooks; one counts until its outcome is stored.
    pub max_in_flight: usize,
    /// Requests under way at once to one webhook that does not say otherwise.
    pub webhook_max_in_flight: u32,
    /// Requests under way at once for one tenant that was given no number of its own.
    pub tenant_max_in_flight: Option<usize>,
    /// Requests in flight to one destination host, over all webhooks and tenants; nodes that share a store divide it.
    /// None for any number.
    pub host_max_in_flight: Option<usize>,
    /// How fast one webhook is sent to that does not say otherwise.
    pub webhook_rate_limit: Option<RateLimit>,
    /// How fast is sent for one tenant that was given no limit of its own.
    pub tenant_rate_limit: Option<RateLimit>,
    /// How fast is sent for all together.
    pub global_rate_limit: Option<RateLimit>,
    /// The circuit breaker of webhooks that do not say otherwise.
    pub breaker: BreakerPolicy,
    /// The pools of tenants that this node sends for.
    pub pools: Vec<String>,
    /// A webhook that has only failed for so long is disabled; none for never.
    pub disable_after: Option<Duration>,
    /// Deliveries held in memory; what does not fit waits in the store.
    pub max_items: usize,
    /// Payload bytes held in memory.
    pub max_bytes: usize,
    /// Deliveries held in memory for one webhook.
    pub lane_items: usize,
    /// How long an idempotency key is remembered.
    pub idempotency_window: Duration,
    /// How long things are kept that are over.
    pub retention: Retention,
    /// Whether what is forgotten is kept for the archive.
    pub archive: bool,
    /// The retry policy of webhooks that do not say otherwise.
    pub retry: RetryPolicy,
    /// The operator's upper bounds on webhooks.
    pub caps: Caps,
    /// What requests call us.
    pub user_agent: String,
    /// The Redis that all nodes of a fleet share, if there is one.
    pub redis: Option<RedisSettings>,
    /// How ready work is told to other nodes beside the store; none without a broker.
    pub tickets: Option<Tickets>,
    /// Which figures are kept for each tenant, webhook and event type.
    pub series: Series,
    /// Where spans of traces go; none are made without it.
    pub tracing: Option<Tracing>,
    /// How long nothing more is told of a kind once something was.
    pub folds: Folds,
    /// How old a secret may be before its webhook's owner is told to change it; none for any age.
    pub rotate_after: Option<Duration>,
    /// Who sends notices as mails; without one none are sent.
    pub post: Option<Post>,
}

/// Where Redis is, and how nodes find one another in it.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://` or `rediss://`, with user and password if it asks for them.
    pub url: String,
    /// What its keys begin with: fleets that share a Redis have different ones.
    pub namespace: String,
    /// How long an answer may take before the node goes by itself.
    pub timeout: Duration,
    /// The certificate of the authority to trust, as PEM; the system's if there is none.
    pub ca: Option<Vec<u8>>,
}

impl std::fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("RedisSettings").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node: "redrive".into(),
            role: Role::default(),
            lease: Duration::from_secs(5),
            lease_audit_interval: Duration::from_secs(60),
            max_in_flight: 1_000,
            webhook_max_in_flight: 5,
            tenant_max_in_flight: None,
            host_max_in_flight: None,
            webhook_rate_limit: None,
            tenant_rate_limit: None,
            global_rate_limit: None,
            breaker: BreakerPolicy::default(),
            pools: vec![DEFAULT_POOL.into()],
            disable_after: Some(Duration::from_secs(5 * 24 * 3600)),
            max_items: 20_000,
            max_bytes: 64 << 20,
            lane_items: 2_000,
            idempotency_window: Duration::from_secs(24 * 3600),
            retention: Retention::default(),
            archive: false,
            retry: RetryPolicy::default(),
            caps: Caps::default(),
            user_agent: concat!("Redrive/", env!("CARGO_PKG_VERSION")).into(),
            redis: None,
            tickets: None,
            series: Series::default(),
            tracing: None,
            folds: Folds::default(),
            rotate_after: Some(Duration::from_secs(90 * 24 * 3600)),
            post: None,
        }
    }
}

impl Settings {
    /// The pools that this node sends for; none if it sends nothing.
    pub(crate) fn served_pools(&self) -> &[String] {
        if self.role.sends() { &self.pools } else { &[] }
    }
}

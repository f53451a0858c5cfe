//! Settings of the data path.

use std::time::Duration;

use redrive_core::{
    Role,
    delivery::retry::RetryPolicy,
    maintenance::retention::Retention,
    notification::grouping::GroupIntervals,
    protection::{breaker::BreakerPolicy, limiter::RateLimit},
    tenancy::DEFAULT_POOL,
    webhook::{caps::Caps, failures::FailingRule},
};

use crate::{amqp::Broker, mailer::MailerHandle, metrics::BreakdownSettings, spans::Tracing};

/// Limits and defaults of the data path.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of this node, recorded with every attempt.
    pub node: String,
    /// Role of this node.
    pub role: Role,
    /// Time without a heartbeat after which the other nodes of a cluster declare a node dead and rescue its leases.
    pub lease: Duration,
    /// Interval between comparisons of leases in the store with memory; see `services::lease_auditor`.
    pub lease_audit_interval: Duration,
    /// Maximum number of unsettled deliveries of this node; a delivery counts until its outcome is stored.
    pub max_in_flight: usize,
    /// Default maximum number of requests in flight per webhook.
    pub webhook_max_in_flight: u32,
    /// Default maximum number of unsettled deliveries per tenant.
    pub tenant_max_in_flight: Option<usize>,
    /// Maximum number of requests in flight to one destination host, over all webhooks and tenants; the nodes of a
    /// cluster divide it. `None` for no limit.
    pub host_max_in_flight: Option<usize>,
    /// Default rate limit of a webhook.
    pub webhook_rate_limit: Option<RateLimit>,
    /// Default rate limit of a tenant.
    pub tenant_rate_limit: Option<RateLimit>,
    /// Rate limit of the whole cluster.
    pub global_rate_limit: Option<RateLimit>,
    /// Default circuit breaker policy.
    pub breaker: BreakerPolicy,
    /// Tenant pools that this node sends for.
    pub pools: Vec<String>,
    /// Time of uninterrupted failure after which a webhook is disabled; `None` for never.
    pub disable_after: Option<Duration>,
    /// Maximum number of deliveries in memory; further ones wait in the store.
    pub max_deliveries: usize,
    /// Maximum payload bytes in memory.
    pub max_bytes: usize,
    /// Maximum number of deliveries in memory per lane.
    pub max_lane_deliveries: usize,
    /// Validity of idempotency keys.
    pub idempotency_window: Duration,
    /// Retention of ended data.
    pub retention: Retention,
    /// Whether pruned data is written to the archive outbox.
    pub archive: bool,
    /// Default retry policy.
    pub retry: RetryPolicy,
    /// The operator's caps on webhook settings.
    pub caps: Caps,
    /// `User-Agent` of requests.
    pub user_agent: String,
    /// Redis shared by all nodes of a cluster.
    pub redis: Option<RedisSettings>,
    /// Tickets for other nodes over a broker; `None` without one.
    pub tickets: Option<TicketSettings>,
    /// Metrics per tenant, webhook and event type.
    pub breakdowns: BreakdownSettings,
    /// Destination of trace spans; `None` creates no spans.
    pub tracing: Option<Tracing>,
    /// Grouping intervals: time during which further occurrences of a kind are collected after a notification.
    pub group_intervals: GroupIntervals,
    /// When the failures of a webhook are reported to its owner.
    pub failing_rule: FailingRule,
    /// Age of a secret at which its webhook's owner is notified to rotate it; `None` for never.
    pub rotate_after: Option<Duration>,
    /// Mailer for notifications; without one no email is sent.
    pub mailer: Option<MailerHandle>,
}

/// Settings of tickets.
#[derive(Clone, Debug)]
pub struct TicketSettings {
    /// RabbitMQ server.
    pub broker: Broker,
    /// Prefix of the names of all exchanges and queues.
    pub namespace: String,
    /// Maximum number of unacknowledged tickets per queue and node.
    pub prefetch: u16,
}

/// Connection settings of Redis, and the namespace of a cluster in it.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://` or `rediss://` URL, with user and password if required.
    pub url: String,
    /// Prefix of its keys; clusters that share a Redis use different ones.
    pub namespace: String,
    /// Timeout for a reply, after which the node enters fallback.
    pub timeout: Duration,
    /// Certificate of the trusted authority as PEM; `None` for those of the system.
    pub ca: Option<Vec<u8>>,
}

impl std::fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may contain a password.
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
            max_deliveries: 20_000,
            max_bytes: 64 << 20,
            max_lane_deliveries: 2_000,
            idempotency_window: Duration::from_secs(24 * 3600),
            retention: Retention::default(),
            archive: false,
            retry: RetryPolicy::default(),
            caps: Caps::default(),
            user_agent: concat!("Redrive/", env!("CARGO_PKG_VERSION")).into(),
            redis: None,
            tickets: None,
            breakdowns: BreakdownSettings::default(),
            tracing: None,
            group_intervals: GroupIntervals::default(),
            failing_rule: FailingRule::default(),
            rotate_after: Some(Duration::from_secs(90 * 24 * 3600)),
            mailer: None,
        }
    }
}

impl Settings {
    /// Returns the pools that this node sends for; empty if it sends nothing.
    pub(crate) fn served_pools(&self) -> &[String] {
        if self.role.sends() { &self.pools } else { &[] }
    }
}

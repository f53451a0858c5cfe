//! Settings from a file, the environment and flags: one struct per concern, validated once at startup.
//! `settings.rs` derives the list of all settings, with their documentation, from the structs.

mod amqp;
mod archive;
mod certificates;
mod database;
mod dev;
#[cfg(test)]
mod documentation;
mod effective;
mod egress;
mod host_port;
mod kubernetes;
mod limits;
mod load;
mod node;
mod notifications;
mod oidc;
mod policies;
mod redis;
mod secret;
mod secret_files;
mod secrets;
mod sections;
mod server;
mod settings;
mod smtp;
mod sources;
mod template;
mod tracing;

use std::path::PathBuf;

use redrive_core::{
    FieldError, Role,
    delivery::retry::{RetryConfig, RetryPolicy},
    protection::breaker::{BreakerConfig, BreakerPolicy},
    tenancy::check_pool,
    time::HumanDuration,
    webhook::verification::RequireVerification,
};
use redrive_engine::{BreakdownSettings, Settings};
use serde::{Deserialize, Serialize};

use crate::telemetry::{self, LogFormat};

pub use amqp::{Amqp, AmqpUrl};
pub use archive::{Archive, ArchiveLocation};
pub(crate) use database::percent_decoded;
pub use database::{Backend, Database, DatabaseUrl};
pub use dev::{Dev, Skew};
pub use effective::EffectiveSetting;
pub use egress::Egress;
pub use host_port::HostPort;
pub use limits::{ApiRate, ClusterRate, Limits, TenantLimits, WebhookRate};
pub use load::{ConfigError, DemoEnvironment, Overrides, load, load_demo};
pub use notifications::Notifications;
pub use oidc::Oidc;
pub use redis::{Redis, RedisUrl};
pub use secret::SecretSetting;
pub use secret_files::ExposedFile;
pub(crate) use secret_files::{fix_for, warn_if_exposed};
pub use secrets::{KeyCommand, Secrets};
pub use sections::{
    Audit, Auth, Cluster, Delivery, Events, Log, Metrics, Retention, TenantMetricsAccess, Webhooks,
};
pub use server::Server;
use settings::section;
pub use settings::{SETTINGS, Setting, env_name};
pub use smtp::{Smtp, SmtpTls};
pub use sources::{Source, SourceKind};
pub use template::write_template;
pub use tracing::Tracing;

/// Set of defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Local development: loopback targets and plain http are allowed.
    Dev,
    /// Production: https to public addresses unless configured otherwise.
    Serve,
}

section! {
    /// All settings.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Config {
        /// Role of this node: `all`, `api` or `worker`; also `--role`. See [PostgreSQL and
        /// clusters](#postgresql-and-clusters).
        pub role: Role,
        /// Name of this node, recorded with every attempt that it sends: 1 to 64 letters, digits, `.`, `_` and `-`.
        ///
        /// Default: the host's name
        pub node: String,
        /// Pools of tenants that this node sends for; also `--pool NAME`, once for each. See [pools](#pools).
        pub pools: Vec<String>,
        /// The HTTP server.
        pub server: Server,
        /// The store.
        pub database: Database,
        /// The RabbitMQ server that carries tickets.
        pub amqp: Amqp,
        /// Cluster membership of this node.
        pub cluster: Cluster,
        /// The Redis server through which nodes share limits and circuits.
        pub redis: Redis,
        /// Authentication.
        pub auth: Auth,
        /// The identity provider that users log in with.
        pub oidc: Oidc,
        /// The master key that secrets are encrypted with.
        pub secrets: Secrets,
        /// The audit log.
        pub audit: Audit,
        /// Rules and limits of outgoing requests.
        pub egress: Egress,
        /// Concurrency and memory limits of deliveries.
        pub delivery: Delivery,
        /// Limits of published events.
        pub events: Events,
        /// RabbitMQ queues whose messages are published as events: a table `[[sources]]` for each, see [ingestion from
        /// RabbitMQ](ingestion.md).
        pub sources: Vec<Source>,
        /// Retention periods.
        pub retention: Retention,
        /// Archive for pruned data.
        pub archive: Archive,
        /// Default retry policy.
        pub retry: RetryConfig,
        /// Default circuit breaker policy.
        pub circuit_breaker: BreakerConfig,
        /// Rate and concurrency limits.
        pub limits: Limits,
        /// Settings that apply to all webhooks.
        pub webhooks: Webhooks,
        /// The SMTP server for emails to owners.
        pub smtp: Smtp,
        /// Grouping of notifications to owners.
        pub notifications: Notifications,
        /// Log level and format.
        pub log: Log,
        /// Metrics by tenant, webhook and event type.
        pub metrics: Metrics,
        /// Export of spans.
        pub tracing: Tracing,
        /// Development settings.
        pub dev: Dev,
        /// The first secret setting in the configuration file and the file's path. `None` if the file holds no secret.
        #[serde(skip)]
        pub file_with_secret: Option<(String, PathBuf)>,
    }
}

impl Config {
    /// Returns the defaults of a profile.
    pub fn defaults(profile: Profile) -> Self {
        let engine = Settings::default();
        Self {
            role: engine.role,
            node: node::host_name(),
            pools: engine.pools,
            server: Server::default(),
            database: Database::default(),
            amqp: Amqp::default(),
            cluster: Cluster { lease: HumanDuration::secs(engine.lease.as_secs()) },
            redis: Redis::default(),
            auth: Auth::default(),
            oidc: Oidc::default(),
            secrets: Secrets::default(),
            audit: Audit { retention: HumanDuration::secs(365 * 24 * 3600) },
            egress: Egress::defaults(profile == Profile::Dev),
            delivery: Delivery {
                max_in_flight: engine.max_in_flight,
                webhook_max_in_flight: engine.webhook_max_in_flight,
                max_deliveries_in_memory: engine.max_deliveries,
                max_payload_bytes_in_memory: engine.max_bytes,
                max_deliveries_per_lane: engine.max_lane_deliveries,
            },
            events: Events {
                max_payload_bytes: 256 * 1024,
                idempotency_window: HumanDuration::secs(24 * 3600),
                max_hops: 5,
            },
            sources: Vec::new(),
            archive: Archive::default(),
            retention: Retention {
                events: HumanDuration::secs(90 * 24 * 3600),
                dead_letters: HumanDuration::secs(30 * 24 * 3600),
            },
            retry: RetryConfig::default(),
            circuit_breaker: BreakerConfig::default(),
            limits: Limits::defaults(profile == Profile::Dev),
            webhooks: Webhooks {
                disable_after: HumanDuration::secs(5 * 24 * 3600),
                require_verification: RequireVerification::default(),
            },
            log: Log { level: "info".into(), format: LogFormat::Text },
            tracing: Tracing::default(),
            metrics: Metrics {
                by_tenant: false,
                by_webhook: false,
                by_event_type: false,
                max_values: 200,
                tenants: TenantMetricsAccess::default(),
                max_named: 50,
            },
            smtp: Smtp::default(),
            notifications: Notifications::default(),
            dev: Dev { clock_speed: 1.0, clock_skew: Skew::default() },
            file_with_secret: None,
        }
    }

    /// Returns the retry policy of webhooks that set none of their own.
    pub fn retry_policy(&self) -> Result<RetryPolicy, ConfigError> {
        self.retry
            .resolve(&RetryPolicy::default())
            .map_err(|invalid| renamed(invalid, "retry_config", "retry"))
    }

    /// Returns the circuit breaker policy of webhooks that set none of their own.
    pub fn breaker_policy(&self) -> Result<BreakerPolicy, ConfigError> {
        let policy = self.circuit_breaker.resolve(&BreakerPolicy::default());
        policy.map_err(|invalid| renamed(invalid, "circuit_breaker_config", "circuit_breaker"))
    }

    /// Returns the settings of the engine.
    pub fn engine_settings(&self) -> Result<Settings, ConfigError> {
        Ok(Settings {
            node: self.node.clone(),
            role: self.role,
            lease: self.cluster.lease.as_duration(),
            max_in_flight: self.delivery.max_in_flight,
            webhook_max_in_flight: self.delivery.webhook_max_in_flight,
            max_deliveries: self.delivery.max_deliveries_in_memory,
            max_bytes: self.delivery.max_payload_bytes_in_memory,
            max_lane_deliveries: self.delivery.max_deliveries_per_lane,
            host_max_in_flight: Some(self.egress.max_requests_per_host).filter(|max| *max > 0),
            idempotency_window: self.events.idempotency_window.as_duration(),
            retention: self.retention.periods(),
            archive: self.archive.url.is_some(),
            retry: self.retry_policy()?,
            tenant_max_in_flight: self.limits.tenant.max_in_flight,
            caps: self.limits.caps.clone(),
            webhook_rate_limit: self.limits.webhook_rate()?,
            tenant_rate_limit: self.limits.tenant_rate()?,
            global_rate_limit: self.limits.global_rate()?,
            breaker: self.breaker_policy()?,
            pools: self.pools.clone(),
            tickets: self.amqp.tickets(&self.node)?,
            disable_after: Some(self.webhooks.disable_after.as_duration()).filter(|after| !after.is_zero()),
            redis: self.redis.settings()?,
            breakdowns: BreakdownSettings {
                by_tenant: self.metrics.by_tenant,
                by_webhook: self.metrics.by_webhook,
                by_event_type: self.metrics.by_event_type,
                max_values: self.metrics.max_values,
            },
            group_intervals: self.notifications.group_intervals(),
            failing_rule: self.notifications.failing_rule(),
            rotate_after: Some(self.secrets.rotation_reminder_after.as_duration())
                .filter(|after| !after.is_zero()),
            ..Settings::default()
        })
    }

    /// Checks constraints that the types do not express.
    pub fn validate(&self, profile: Profile) -> Result<(), ConfigError> {
        let refuse = |setting: &str, reason: &str| {
            Err(ConfigError::Invalid { setting: setting.into(), reason: reason.into() })
        };
        self.server.validate()?;
        self.database.validate()?;
        self.redis.validate(&self.database.backend()?)?;
        self.amqp.validate(&self.database.backend()?)?;
        self.validate_node()?;
        self.retention.validate()?;
        sources::validate(&self.sources)?;
        self.archive.location()?;
        self.smtp.validate()?;
        self.retry_policy()?;
        self.breaker_policy()?;
        self.limits.validate()?;
        self.tracing.validate()?;
        self.oidc.validate(profile, self.server.public_base())?;
        self.validate_pools()?;
        let counts = [
            ("delivery.max_in_flight", self.delivery.max_in_flight),
            ("delivery.max_deliveries_in_memory", self.delivery.max_deliveries_in_memory),
            ("delivery.max_deliveries_per_lane", self.delivery.max_deliveries_per_lane),
        ];
        for (setting, count) in counts {
            if !(1..=1_000_000).contains(&count) {
                return refuse(setting, "must be from 1 to 1000000");
            }
        }
        if !redrive_core::webhook::MAX_IN_FLIGHT_RANGE.contains(&self.delivery.webhook_max_in_flight) {
            return refuse("delivery.webhook_max_in_flight", "must be from 1 to 1000");
        }
        if !(1024..=16 << 20).contains(&self.events.max_payload_bytes) {
            return refuse("events.max_payload_bytes", "must be from 1024 to 16777216");
        }
        if self.delivery.max_payload_bytes_in_memory < 4 * self.events.max_payload_bytes {
            return refuse(
                "delivery.max_payload_bytes_in_memory",
                "must be at least four times events.max_payload_bytes",
            );
        }
        self.egress.validate()?;
        if self.audit.retention < HumanDuration::secs(24 * 3600) {
            return refuse("audit.retention", "must be at least 1d");
        }
        if self.notifications.has_invalid_failures() {
            return refuse("notifications.failing_after_failures", "must be from 2 to 1000");
        }
        if let Some(setting) = self.notifications.too_short() {
            return refuse(
                setting,
                "must be at least 1s; otherwise every failure would cause a notification",
            );
        }
        if let Err(reason) = telemetry::check(&self.log.level) {
            return refuse("log.level", &reason);
        }
        if !(1..=10_000).contains(&self.metrics.max_values) {
            return refuse("metrics.max_values", "must be from 1 to 10000: each has four series");
        }
        if !(1..=500).contains(&self.metrics.max_named) {
            return refuse("metrics.max_named", "must be from 1 to 500");
        }
        if !(1..=100).contains(&self.events.max_hops) {
            return refuse("events.max_hops", "must be from 1 to 100");
        }
        if self.events.idempotency_window.as_duration().is_zero() {
            return refuse("events.idempotency_window", "must be longer than 0");
        }
        if !(0.001..=1_000_000.0).contains(&self.dev.clock_speed) {
            return refuse("dev.clock_speed", "must be from 0.001 to 1000000");
        }
        self.validate_safety(profile)
    }

    fn validate_pools(&self) -> Result<(), ConfigError> {
        let refuse = |reason: String| Err(ConfigError::Invalid { setting: "pools".into(), reason });
        if self.pools.is_empty() {
            return refuse("must name at least one pool, such as [\"default\"]".into());
        }
        let twice = self.pools.iter().enumerate().find(|(index, pool)| self.pools[..*index].contains(pool));
        if let Some((_, pool)) = twice {
            return refuse(format!("names {pool:?} twice"));
        }
        match self.pools.iter().find_map(|pool| Some((pool, check_pool(pool).err()?))) {
            None => Ok(()),
            Some((pool, invalid)) => refuse(format!("{pool:?} {}", invalid.message)),
        }
    }

    /// Rejects settings that are unsafe in a profile.
    fn validate_safety(&self, profile: Profile) -> Result<(), ConfigError> {
        let refuse = |setting: &str, reason: &str| {
            Err(ConfigError::Invalid { setting: setting.into(), reason: reason.into() })
        };
        if profile == Profile::Dev && !self.server.listen.is_loopback() {
            return refuse(
                "server.listen",
                "must be a loopback address or localhost for `redrive dev`, whose webhooks may reach local services; \
                 use `redrive serve` to listen on a network",
            );
        }
        if profile == Profile::Serve && self.dev.clock_speed != 1.0 {
            return refuse(
                "dev.clock_speed",
                "must be 1 outside `redrive dev`: receivers would reject the timestamps",
            );
        }
        if profile == Profile::Serve && self.dev.clock_skew != Skew::default() {
            return refuse(
                "dev.clock_skew",
                "must be 0 outside `redrive dev`: receivers would reject the timestamps",
            );
        }
        if self.auth.admin_key.as_ref().is_some_and(|key| key.reveal().len() < 32) {
            return refuse(
                "auth.admin_key",
                "must be at least 32 characters; create one with: openssl rand -hex 32",
            );
        }
        Ok(())
    }
}

/// Converts a field error, renaming the field to the setting's name.
fn renamed(invalid: FieldError, from: &str, to: &str) -> ConfigError {
    ConfigError::Invalid { setting: invalid.field.replace(from, to), reason: invalid.message }
}

//! What the operator decides, from a file, the environment and flags: one struct per concern, checked once
//! at the start. `settings.rs` is the list of every setting with its reason.

mod amqp;
mod archive;
mod database;
mod dev;
mod effective;
mod egress;
mod limits;
mod load;
mod node;
mod notifications;
mod redis;
mod secret;
mod secret_files;
mod secrets;
mod server;
mod settings;
mod smtp;
mod sources;
mod tracing;

use std::path::PathBuf;

use redrive_core::{
    Invalid, Role,
    delivery::retry::{RetryConfig, RetryPolicy},
    maintenance::retention::Retention as Kept,
    protection::breaker::{BreakerConfig, BreakerPolicy},
    tenancy::check_pool,
    time::Span,
    webhook::verification::RequireVerification,
};
use redrive_engine::{Series, Settings};
use serde::{Deserialize, Serialize};

use crate::telemetry::{self, LogFormat};

pub use amqp::{Amqp, AmqpUrl};
pub use archive::{Archive, Place};
pub use database::{Backend, Database, DatabaseUrl};
pub use dev::{Dev, Skew};
pub use effective::InForce;
pub use egress::Egress;
pub use limits::{Limits, PerMinute, PerSecond, TenantLimits};
pub use load::{ConfigError, Overrides, load};
pub use notifications::Notifications;
pub use redis::{Redis, RedisUrl};
pub use secret::Hidden;
pub use secret_files::ExposedFile;
pub(crate) use secret_files::{fix_for, warn_if_exposed};
pub use secrets::Secrets;
pub use server::Server;
pub use settings::{SETTINGS, Setting, env_name};
pub use smtp::{Smtp, SmtpTls};
pub use sources::{Source, SourceKind};
pub use tracing::Tracing;

/// Which defaults apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// A laptop: loopback targets and plain http are fine.
    Dev,
    /// Anything else: safe unless told otherwise.
    Serve,
}

/// All settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What this node is there for.
    pub role: Role,
    /// This node's name.
    pub node: String,
    /// The pools of tenants that this node sends for.
    pub pools: Vec<String>,
    /// The HTTP server.
    pub server: Server,
    /// The store.
    pub database: Database,
    /// The broker that tells of ready work.
    pub amqp: Amqp,
    /// This node among others.
    pub cluster: Cluster,
    /// What nodes share limits and circuits through.
    pub redis: Redis,
    /// Who may come in.
    pub auth: Auth,
    /// The master key that secrets are sealed with.
    pub secrets: Secrets,
    /// The log of who changed what.
    pub audit: Audit,
    /// The way out.
    pub egress: Egress,
    /// How much at once.
    pub delivery: Delivery,
    /// What is taken in.
    pub events: Events,
    /// Where events come from beside the API.
    pub sources: Vec<Source>,
    /// How long things are kept.
    pub retention: Retention,
    /// Where what is forgotten is kept.
    pub archive: Archive,
    /// When to try again.
    pub retry: RetryConfig,
    /// When to stop calling an endpoint that fails.
    pub circuit_breaker: BreakerConfig,
    /// How fast, for whom.
    pub limits: Limits,
    /// What becomes of webhooks that never work.
    pub webhooks: Webhooks,
    /// The mail server that owners are written through.
    pub smtp: Smtp,
    /// Telling owners.
    pub notifications: Notifications,
    /// What is written to the log.
    pub log: Log,
    /// Figures for each tenant, webhook and event type.
    pub metrics: Metrics,
    /// Where spans are sent.
    pub tracing: Tracing,
    /// For trying things out.
    pub dev: Dev,
    /// The configuration file, if it holds a secret itself, and the setting that is one.
    #[serde(skip)]
    pub file_with_secret: Option<(String, PathBuf)>,
}

/// This node among others on the same database.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Whoever has not shown for so long that it is alive is dead.
    pub lease: Span,
}

/// Who may come in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// The admin key.
    pub admin_key: Option<Hidden>,
    /// A file that holds the admin key.
    pub admin_key_file: Option<PathBuf>,
}

/// The log of who changed what.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Audit {
    /// How long its entries are kept.
    pub retention: Span,
}

/// How much at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    /// Requests under way over all webhooks.
    pub max_in_flight: usize,
    /// Requests under way to one webhook that does not say otherwise.
    pub webhook_max_in_flight: u32,
    /// Deliveries in memory.
    pub max_items: usize,
    /// Payload bytes in memory.
    pub max_bytes: usize,
    /// Deliveries in memory for one webhook.
    pub lane_items: usize,
}

/// What is taken in.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Events {
    /// The largest payload.
    pub max_payload_bytes: usize,
    /// How long an idempotency key is remembered.
    pub idempotency_window: Span,
    /// How many deliveries an event may have come through when it is published.
    pub max_hops: u8,
}

/// How long things are kept that are over; 0 for ever.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// Events with their deliveries and attempts.
    pub events: Span,
    /// Dead letters with their attempts.
    pub dead: Span,
}

impl Retention {
    fn kept(&self) -> Kept {
        let kept = |span: Span| Some(span.get()).filter(|kept| !kept.is_zero());
        Kept { events: kept(self.events), dead: kept(self.dead) }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let a_day = Span::secs(24 * 3600);
        for (setting, span) in [("retention.events", self.events), ("retention.dead", self.dead)] {
            if span < a_day && !span.get().is_zero() {
                let reason = "must be at least 1d, or 0 for ever".into();
                return Err(ConfigError::Invalid { setting: setting.into(), reason });
            }
        }
        Ok(())
    }
}

/// What holds for all webhooks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhooks {
    /// A webhook that has only failed for so long is disabled; 0 for never.
    pub disable_after: Span,
    /// For whose webhooks the URL must be verified.
    pub require_verification: RequireVerification,
}

/// What is written to the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// What is worth a line: `error`, `warn`, `info`, `debug`, or a filter such as `info,redrive_engine=debug`.
    pub level: String,
    /// What a line looks like: `text` or `json`.
    pub format: LogFormat,
}

/// Which figures are kept beside the usual ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// Deliveries by tenant.
    pub by_tenant: bool,
    /// Deliveries by webhook.
    pub by_webhook: bool,
    /// Deliveries by event type.
    pub by_event_type: bool,
    /// How many tenants, webhooks and event types, each, have series of their own.
    pub most_values: usize,
}

impl Config {
    /// The defaults of a profile.
    pub fn defaults(profile: Profile) -> Self {
        let engine = Settings::default();
        Self {
            role: engine.role,
            node: node::host_name(),
            pools: engine.pools,
            server: Server::default(),
            database: Database::default(),
            amqp: Amqp::default(),
            cluster: Cluster { lease: Span::secs(engine.lease.as_secs()) },
            redis: Redis::default(),
            auth: Auth::default(),
            secrets: Secrets::default(),
            audit: Audit { retention: Span::secs(365 * 24 * 3600) },
            egress: Egress::defaults(profile == Profile::Dev),
            delivery: Delivery {
                max_in_flight: engine.max_in_flight,
                webhook_max_in_flight: engine.webhook_max_in_flight,
                max_items: engine.max_items,
                max_bytes: engine.max_bytes,
                lane_items: engine.lane_items,
            },
            events: Events {
                max_payload_bytes: 256 * 1024,
                idempotency_window: Span::secs(24 * 3600),
                max_hops: 5,
            },
            sources: Vec::new(),
            archive: Archive::default(),
            retention: Retention { events: Span::secs(90 * 24 * 3600), dead: Span::secs(30 * 24 * 3600) },
            retry: RetryConfig::default(),
            circuit_breaker: BreakerConfig::default(),
            limits: Limits::default(),
            webhooks: Webhooks {
                disable_after: Span::secs(5 * 24 * 3600),
                require_verification: RequireVerification::default(),
            },
            log: Log { level: "info".into(), format: LogFormat::Text },
            tracing: Tracing::default(),
            metrics: Metrics { by_tenant: false, by_webhook: false, by_event_type: false, most_values: 200 },
            smtp: Smtp::default(),
            notifications: Notifications::default(),
            dev: Dev { clock_speed: 1.0, clock_skew: Skew::default() },
            file_with_secret: None,
        }
    }

    /// The retry policy of webhooks that do not say otherwise.
    pub fn retry_policy(&self) -> Result<RetryPolicy, ConfigError> {
        self.retry
            .resolve(&RetryPolicy::default())
            .map_err(|invalid| renamed(invalid, "retry_config", "retry"))
    }

    /// The circuit breaker of webhooks that do not say otherwise.
    pub fn breaker_policy(&self) -> Result<BreakerPolicy, ConfigError> {
        let policy = self.circuit_breaker.resolve(&BreakerPolicy::default());
        policy.map_err(|invalid| renamed(invalid, "circuit_breaker_config", "circuit_breaker"))
    }

    /// What the engine needs to know.
    pub fn engine_settings(&self) -> Result<Settings, ConfigError> {
        Ok(Settings {
            node: self.node.clone(),
            role: self.role,
            lease: self.cluster.lease.get(),
            max_in_flight: self.delivery.max_in_flight,
            webhook_max_in_flight: self.delivery.webhook_max_in_flight,
            max_items: self.delivery.max_items,
            max_bytes: self.delivery.max_bytes,
            lane_items: self.delivery.lane_items,
            host_max_in_flight: Some(self.egress.max_requests_per_host).filter(|max| *max > 0),
            idempotency_window: self.events.idempotency_window.get(),
            retention: self.retention.kept(),
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
            disable_after: Some(self.webhooks.disable_after.get()).filter(|after| !after.is_zero()),
            redis: self.redis.settings()?,
            series: Series {
                by_tenant: self.metrics.by_tenant,
                by_webhook: self.metrics.by_webhook,
                by_event_type: self.metrics.by_event_type,
                most: self.metrics.most_values,
            },
            folds: self.notifications.folds(),
            rotate_after: Some(self.secrets.rotate_after.get()).filter(|after| !after.is_zero()),
            ..Settings::default()
        })
    }

    /// Checks what a type alone cannot.
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
        self.archive.place()?;
        self.smtp.validate()?;
        self.retry_policy()?;
        self.breaker_policy()?;
        self.limits.validate()?;
        self.tracing.validate()?;
        self.validate_pools()?;
        let counts = [
            ("delivery.max_in_flight", self.delivery.max_in_flight),
            ("delivery.max_items", self.delivery.max_items),
            ("delivery.lane_items", self.delivery.lane_items),
        ];
        for (setting, count) in counts {
            if !(1..=1_000_000).contains(&count) {
                return refuse(setting, "must be from 1 to 1000000");
            }
        }
        if !redrive_core::webhook::IN_FLIGHT.contains(&self.delivery.webhook_max_in_flight) {
            return refuse("delivery.webhook_max_in_flight", "must be from 1 to 1000");
        }
        if !(1024..=16 << 20).contains(&self.events.max_payload_bytes) {
            return refuse("events.max_payload_bytes", "must be from 1024 to 16777216");
        }
        if self.delivery.max_bytes < 4 * self.events.max_payload_bytes {
            return refuse("delivery.max_bytes", "must be at least four times events.max_payload_bytes");
        }
        self.egress.validate()?;
        if self.audit.retention < Span::secs(24 * 3600) {
            return refuse("audit.retention", "must be at least 1d");
        }
        if let Some(setting) = self.notifications.too_short() {
            return refuse(setting, "must be at least 1s, since every failure would be told by itself");
        }
        if let Err(reason) = telemetry::check(&self.log.level) {
            return refuse("log.level", &reason);
        }
        if !(1..=10_000).contains(&self.metrics.most_values) {
            return refuse("metrics.most_values", "must be from 1 to 10000: each has four series");
        }
        if !(1..=100).contains(&self.events.max_hops) {
            return refuse("events.max_hops", "must be from 1 to 100");
        }
        if self.events.idempotency_window.get().is_zero() {
            return refuse("events.idempotency_window", "must be longer than nothing");
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

    /// Refuses what is unsafe in a profile.
    fn validate_safety(&self, profile: Profile) -> Result<(), ConfigError> {
        let refuse = |setting: &str, reason: &str| {
            Err(ConfigError::Invalid { setting: setting.into(), reason: reason.into() })
        };
        if profile == Profile::Dev && !self.server.listen.ip().is_loopback() {
            return refuse(
                "server.listen",
                "`redrive dev` may reach this machine's own services, so it listens on loopback only; \
                 use `redrive serve` to be reachable from elsewhere",
            );
        }
        if profile == Profile::Serve && self.dev.clock_speed != 1.0 {
            return refuse(
                "dev.clock_speed",
                "must be 1 outside `redrive dev`: receivers would refuse the timestamps",
            );
        }
        if profile == Profile::Serve && self.dev.clock_skew != Skew::default() {
            return refuse(
                "dev.clock_skew",
                "must be 0 outside `redrive dev`: receivers would refuse the timestamps",
            );
        }
        if self.auth.admin_key.as_ref().is_some_and(|key| key.reveal().len() < 32) {
            return refuse(
                "auth.admin_key",
                "must be at least 32 characters; make one with: openssl rand -hex 32",
            );
        }
        Ok(())
    }
}

/// The same refusal under the name that the setting has here.
fn renamed(invalid: Invalid, from: &str, to: &str) -> ConfigError {
    ConfigError::Invalid { setting: invalid.field.replace(from, to), reason: invalid.message }
}

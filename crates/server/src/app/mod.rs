//! Use cases of Redrive, with authorization and validation. The API, the CLI and the dashboard must make every
//! change through this module.

pub mod across_tenants;
pub mod attempts;
pub mod audit;
pub mod auth;
mod blocked;
pub mod circuit;
pub mod clock;
pub mod confirmations;
pub mod creations;
pub mod dead_letters;
pub mod deliveries;
pub mod edited_events;
mod endpoint_successes;
pub mod erase;
mod error;
mod error_code;
pub mod event_types;
pub mod events;
pub mod export;
pub mod health;
pub mod keys;
pub mod login_limit;
pub mod metrics;
pub(crate) mod named_deliveries;
pub mod node_info;
mod notifications;
pub mod operations;
pub mod overview;
pub(crate) mod parse;
pub mod payload_search;
pub mod portal;
pub mod preferences;
pub mod queue;
pub mod quota;
pub mod recoverable_counts;
pub mod search;
pub mod secrets;
pub mod session;
pub mod status;
pub mod tenants;
pub mod throttle;
pub mod traffic;
pub mod user_login;
pub mod user_sessions;
pub mod view;
pub mod webhook_names;
mod webhook_refs;
pub mod webhook_status;
pub mod webhook_summary;
pub mod webhooks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use prometheus_client::registry::Registry as Metrics;
use redrive_core::{
    Role,
    delivery::retry::RetryPolicy,
    protection::limiter::RateLimit,
    statistics::status::ServiceDown,
    webhook::{UrlRules, verification::RequireVerification},
};
use redrive_engine::{Engine, ServiceKind, clock::monotonic_now};
use redrive_store::{Store, StoreError};

pub use across_tenants::TenantSelection;
pub use audit::Actor;
pub use auth::{Caller, Capability, Scope};
pub use creations::{Created, RequestKey};
pub use error::AppError;
pub(crate) use error::store_error_code;
pub use error_code::ErrorCode;
pub use keys::{KeyCache, NewKey};
pub use node_info::Identity;
pub use throttle::Throttle;
pub use user_login::UserLogin;
pub use view::TenantView;

use self::{
    across_tenants::HealthCache, export::ExportLimiter, login_limit::FailedLogins,
    payload_search::PayloadSearchLimiter, quota::Quotas, recoverable_counts::RecoverableCounts,
    session::Sessions,
};
use crate::config::TenantMetricsAccess;

/// Settings used by the use cases.
#[derive(Clone, Debug)]
pub struct AppSettings {
    /// Identity of this node.
    pub identity: Identity,
    /// Role of this node.
    pub role: Role,
    /// Rules for webhook URLs at startup.
    pub urls: UrlRules,
    /// Maximum size of a payload.
    pub max_payload_bytes: usize,
    /// Whether URL verification is required for all webhooks, for those of portal sessions, or only on request.
    pub require_verification: RequireVerification,
    /// Maximum number of deliveries that a published event may have passed through.
    pub max_hops: u8,
    /// API rate limit per key; `None` if unlimited.
    pub api_rate: Option<RateLimit>,
    /// Retention of the audit log.
    pub audit_retention: Duration,
    /// Worker pools that this node serves.
    pub pools: Vec<String>,
    /// Who may read the metrics that name tenants.
    pub tenant_metrics: TenantMetricsAccess,
    /// Number of tenants and of webhooks that each of these metrics names.
    pub max_named_values: usize,
    /// Default retry policy.
    pub retry: RetryPolicy,
    /// Base URL for links to this server; `None` to use the URL of each request.
    pub public_url: Option<String>,
    /// Whether publishing and opening a portal session create a tenant that does not exist.
    pub create_tenants: bool,
    /// Login of users with an identity provider; `None` if only keys log in.
    pub user_login: Option<Arc<UserLogin>>,
    /// Whether the server runs as a demo, with simulated receivers and events.
    pub demo: bool,
}

/// Running application.
pub struct App {
    engine: Engine,
    keys: KeyCache,
    sessions: Sessions,
    failed_logins: FailedLogins,
    rules: AppSettings,
    /// Current rules for webhook URLs.
    urls: RwLock<UrlRules>,
    /// Rate limiter of API keys; `None` if unlimited.
    throttle: Option<Throttle>,
    /// Number of events published today per tenant.
    quotas: Quotas,
    /// Running exports of this node.
    exports: ExportLimiter,
    /// Running payload searches of this node.
    payload_searches: PayloadSearchLimiter,
    /// Counts that live pages show.
    recoverable_counts: RecoverableCounts,
    /// Held while a tenant is read, changed and written back.
    changing_tenants: tokio::sync::Mutex<()>,
    metrics: Mutex<Metrics>,
    /// Counts from the store, for the metrics.
    store_counter: metrics::StoreCounter,
    /// Values of tenants and webhooks, for the metrics that name them.
    tenant_metrics: metrics::TenantMetrics,
    /// Last health of all tenants.
    tenant_health: HealthCache,
    draining: AtomicBool,
    /// Time and result of the last check whether the store accepts writes.
    last_ping: tokio::sync::Mutex<Option<(Duration, Result<(), StoreError>)>>,
}

/// Time for which a ping result is cached: `/readyz` needs no authentication, and each ping is a write.
const PING_TTL: Duration = Duration::from_millis(500);
/// Timeout of a ping: health checks wait only briefly.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

impl App {
    /// Creates the application.
    pub fn new(
        engine: Engine,
        keys: KeyCache,
        sessions: Sessions,
        rules: AppSettings,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine,
            keys,
            sessions,
            failed_logins: FailedLogins::default(),
            throttle: rules.api_rate.map(Throttle::new),
            quotas: Quotas::default(),
            exports: ExportLimiter::default(),
            payload_searches: PayloadSearchLimiter::default(),
            recoverable_counts: RecoverableCounts::default(),
            changing_tenants: tokio::sync::Mutex::default(),
            urls: RwLock::new(rules.urls.clone()),
            rules,
            metrics: Mutex::new(metrics),
            store_counter: metrics::StoreCounter::default(),
            tenant_metrics: metrics::TenantMetrics::default(),
            tenant_health: HealthCache::default(),
            draining: AtomicBool::new(false),
            last_ping: Default::default(),
        })
    }

    /// Returns the engine (the data path).
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the cache of valid keys.
    pub fn keys(&self) -> &KeyCache {
        &self.keys
    }

    /// Returns the failed logins per address.
    pub fn failed_logins(&self) -> &FailedLogins {
        &self.failed_logins
    }

    /// Returns the rate limiter of API keys. Returns `None` if unlimited.
    pub fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_ref()
    }

    /// Returns the settings.
    pub fn rules(&self) -> &AppSettings {
        &self.rules
    }

    /// Sets the rules for webhook URLs from now on. Stored webhooks are not changed.
    pub fn set_urls(&self, urls: UrlRules) {
        *self.urls.write() = urls;
    }

    /// Returns the metrics registry of the data path.
    pub fn metrics(&self) -> &Mutex<Metrics> {
        &self.metrics
    }

    /// Marks this node as draining, so that it is no longer ready for new requests.
    pub fn start_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Returns whether this node is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Returns the background services of this node that failed and wait for their restart.
    pub fn services_down(&self) -> Vec<ServiceDown> {
        let services = self.engine.services().into_iter().filter(|service| !service.up);
        let down = services.map(|service| ServiceDown {
            name: service.name.into_owned(),
            essential: service.kind == ServiceKind::Essential,
            failure: service.last_failure.unwrap_or_default(),
        });
        down.collect()
    }

    /// Checks whether the store accepts writes; the result may be up to `PING_TTL` old.
    pub async fn check_store(&self) -> Result<(), AppError> {
        let mut pinged = self.last_ping.lock().await;
        let now = monotonic_now();
        if let Some((at, response)) = &*pinged
            && now.saturating_sub(*at) < PING_TTL
        {
            return Ok(response.clone()?);
        }
        let response = tokio::time::timeout(PING_TIMEOUT, self.store().ping()).await;
        let response =
            response.unwrap_or_else(|_| Err(StoreError::Unavailable("no response in time".into())));
        *pinged = Some((now, response.clone()));
        Ok(response?)
    }

    fn store(&self) -> &dyn Store {
        &**self.engine.store()
    }
}

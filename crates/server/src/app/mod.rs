//! What people can do with Redrive, authorised and checked. Every surface (API, CLI, pages) goes through
//! here and changes nothing in any other way.

pub mod attempts;
pub mod audit;
pub mod auth;
mod blocked;
pub mod circuit;
pub mod clock;
pub mod confirmations;
pub mod dead_letters;
pub mod deliveries;
pub mod erase;
mod error;
pub mod event_types;
pub mod events;
pub mod export;
pub mod health;
pub mod keys;
pub mod login_limit;
pub mod metrics;
pub mod node_info;
pub mod notifications;
pub mod operations;
pub mod overview;
pub mod portal;
pub mod preferences;
pub mod queue;
pub mod quota;
pub mod secrets;
pub mod session;
pub mod status;
pub mod tenants;
pub mod throttle;
pub mod traffic;
pub mod view;
pub mod webhook_names;
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
    Role, delivery::retry::RetryPolicy, protection::limiter::RateLimit, webhook::UrlRules,
    webhook::verification::RequireVerification,
};
use redrive_engine::{Engine, clock::ticks};
use redrive_store::{Store, StoreError};

pub use audit::Actor;
pub use auth::{Caller, Capability, Scope};
pub use error::AppError;
pub use keys::{Keys, NewKey};
pub use node_info::Identity;
pub use throttle::Throttle;
pub use view::TenantView;

use self::{export::Exports, login_limit::FailedLogins, quota::Quotas, session::Sessions};

/// What the use cases need to know of the settings.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What this node is.
    pub identity: Identity,
    /// What this node is there for.
    pub role: Role,
    /// Which URLs webhooks may have, to begin with.
    pub urls: UrlRules,
    /// The largest payload.
    pub max_payload_bytes: usize,
    /// For whose webhooks the URL must be verified.
    pub require_verification: RequireVerification,
    /// How many deliveries an event may have come through when it is published.
    pub max_hops: u8,
    /// How fast one key may call the API; none for no limit.
    pub api_rate: Option<RateLimit>,
    /// How long entries of the audit log are kept.
    pub audit_retention: Duration,
    /// The pools of tenants that this node sends for.
    pub pools: Vec<String>,
    /// The retry policy of webhooks that do not say otherwise.
    pub retry: RetryPolicy,
    /// How links to this server begin; none if as whoever asks has reached it.
    pub public_url: Option<String>,
    /// Whether all of this is a demo, with receivers and events that are made up.
    pub demo: bool,
}

/// The running application.
pub struct App {
    engine: Engine,
    keys: Keys,
    sessions: Sessions,
    failed_logins: FailedLogins,
    rules: Rules,
    /// Which URLs webhooks may have, as of now.
    urls: RwLock<UrlRules>,
    /// How fast keys may call; none if as fast as they like.
    throttle: Option<Throttle>,
    /// How many events tenants have published today.
    quotas: Quotas,
    /// The exports that run on this node.
    exports: Exports,
    /// Held while a tenant is read, changed and written back.
    changing_tenants: tokio::sync::Mutex<()>,
    metrics: Mutex<Metrics>,
    /// What the store has counted for them.
    counting: metrics::Counting,
    draining: AtomicBool,
    /// When the store was last asked whether it can be written, and what it said.
    pinged: tokio::sync::Mutex<Option<(Duration, Result<(), StoreError>)>>,
}

/// How long an answer of the store about itself is good for: anybody may ask, and each question is a write.
const PING_LASTS: Duration = Duration::from_millis(500);
/// How long such an answer may take: whoever asks has little patience.
const PING_PATIENCE: Duration = Duration::from_secs(3);

impl App {
    /// Puts the application together.
    pub fn new(engine: Engine, keys: Keys, sessions: Sessions, rules: Rules, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            engine,
            keys,
            sessions,
            failed_logins: FailedLogins::default(),
            throttle: rules.api_rate.map(Throttle::new),
            quotas: Quotas::default(),
            exports: Exports::default(),
            changing_tenants: tokio::sync::Mutex::default(),
            urls: RwLock::new(rules.urls.clone()),
            rules,
            metrics: Mutex::new(metrics),
            counting: metrics::Counting::default(),
            draining: AtomicBool::new(false),
            pinged: Default::default(),
        })
    }

    /// The data path.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The keys that may come in.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The failed logins of each address.
    pub fn failed_logins(&self) -> &FailedLogins {
        &self.failed_logins
    }

    /// How fast keys may call; none if as fast as they like.
    pub fn throttle(&self) -> Option<&Throttle> {
        self.throttle.as_ref()
    }

    /// The limits in force.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Says which URLs webhooks may have from now on. Those that are stored stay as they are.
    pub fn set_urls(&self, urls: UrlRules) {
        *self.urls.write() = urls;
    }

    /// The figures of the data path.
    pub fn metrics(&self) -> &Mutex<Metrics> {
        &self.metrics
    }

    /// Says that no new work should be sent here.
    pub fn start_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Whether it is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Whether the store can be written, as of a moment ago.
    pub async fn store_works(&self) -> Result<(), AppError> {
        let mut pinged = self.pinged.lock().await;
        let now = ticks();
        if let Some((at, answer)) = &*pinged
            && now.saturating_sub(*at) < PING_LASTS
        {
            return Ok(answer.clone()?);
        }
        let answer = tokio::time::timeout(PING_PATIENCE, self.store().ping()).await;
        let answer = answer.unwrap_or_else(|_| Err(StoreError::Unavailable("it does not answer".into())));
        *pinged = Some((now, answer.clone()));
        Ok(answer?)
    }

    fn store(&self) -> &dyn Store {
        &**self.engine.store()
    }
}

//! What is known of tenants' webhooks, in memory: who wants an event, and how to send to them.
//!
//! It may be behind the store. That is harmless: every publish names the version it fanned out by, and the
//! store refuses a stale one, upon which the changes are read and the fan-out is made again.

use std::{collections::HashMap, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::RwLock;
use redrive_core::{
    TenantId, WebhookId,
    invalid::Invalid,
    retry::RetryPolicy,
    subscription::Subscriptions,
    webhook::{Webhook, WebhookState},
};
use redrive_egress::Target;
use redrive_store::{ConfigChanges, Store, StoreError};

use crate::settings::Settings;

/// A webhook made ready for sending.
#[derive(Debug)]
pub struct Hook {
    /// The webhook.
    pub webhook: Webhook,
    /// Its retry policy with the server's defaults filled in.
    pub policy: RetryPolicy,
    /// Where to send; none when the URL cannot be used at all.
    pub target: Option<Target>,
    /// The headers that are the same for every request.
    pub headers: HeaderMap,
    /// Requests at once.
    pub max_in_flight: u32,
    /// The tenant's version that this was read at: a newer one replaces it, an older one does not.
    version: i64,
}

impl Hook {
    fn new(webhook: Webhook, version: i64, settings: &Settings) -> Self {
        let spec = &webhook.spec;
        // Both were checked when the webhook was saved; defaults that changed since must not stop it.
        let policy = spec.retry_config.resolve(&settings.retry).unwrap_or_else(|_| settings.retry.clone());
        let headers = spec.headers.iter().filter_map(|(name, value)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
        });
        Self {
            policy,
            target: Target::parse(&spec.url).ok(),
            headers: headers.collect(),
            max_in_flight: spec.max_in_flight.unwrap_or(settings.webhook_max_in_flight),
            version,
            webhook,
        }
    }
}

/// One tenant's webhooks at one version.
#[derive(Debug, Default)]
struct Config {
    version: i64,
    hooks: HashMap<WebhookId, Arc<Hook>>,
    subscriptions: Subscriptions,
}

impl Config {
    fn put(&mut self, hook: Arc<Hook>) {
        let id = hook.webhook.id;
        if let Some(old) = self.hooks.remove(&id) {
            self.subscriptions.remove(id, old.webhook.spec.interest());
        }
        if hook.webhook.state == WebhookState::Active {
            self.subscriptions.add(id, hook.webhook.spec.interest());
        }
        if hook.webhook.state != WebhookState::Deleted {
            self.hooks.insert(id, hook);
        }
    }
}

/// The webhooks that an event goes to, and the version that says so.
pub(crate) struct FanOut {
    pub(crate) version: i64,
    pub(crate) hooks: Vec<Arc<Hook>>,
}

/// What is known of one webhook.
#[derive(Debug)]
enum Known {
    There(Arc<Hook>),
    /// Deleted at this version; remembered so that an older reading does not bring it back.
    Gone(i64),
}

impl Known {
    fn version(&self) -> i64 {
        match self {
            Self::There(hook) => hook.version,
            Self::Gone(version) => *version,
        }
    }
}

/// All tenants' webhooks, as far as they have been needed.
pub struct Registry {
    tenants: RwLock<HashMap<TenantId, Arc<RwLock<Config>>>>,
    by_id: RwLock<HashMap<WebhookId, Known>>,
    settings: Settings,
}

impl Registry {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { tenants: RwLock::default(), by_id: RwLock::default(), settings }
    }

    /// Checks a retry configuration against this server's defaults.
    pub fn check_retry(&self, webhook: &Webhook) -> Result<RetryPolicy, Invalid> {
        webhook.spec.retry_config.resolve(&self.settings.retry)
    }

    /// Whether a tenant is known to exist.
    pub fn knows(&self, tenant: &TenantId) -> bool {
        self.tenants.read().contains_key(tenant)
    }

    /// A webhook by its id, if it is known and not deleted.
    pub(crate) fn hook(&self, id: WebhookId) -> Option<Arc<Hook>> {
        match self.by_id.read().get(&id) {
            Some(Known::There(hook)) => Some(hook.clone()),
            Some(Known::Gone(_)) | None => None,
        }
    }

    /// A webhook by its id, from the store if need be.
    pub(crate) async fn find(
        &self,
        store: &dyn Store,
        id: WebhookId,
    ) -> Result<Option<Arc<Hook>>, StoreError> {
        if let Some(hook) = self.hook(id) {
            return Ok(Some(hook));
        }
        let found = store.webhooks_by_id(vec![id]).await?;
        Ok(found.into_iter().next().map(|webhook| self.remember(webhook, 0)))
    }

    /// Who wants this event; `only` names one webhook whatever it subscribes to. None: no such tenant.
    pub(crate) async fn fan_out(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        event_type: &str,
        subject: Option<&str>,
        only: Option<WebhookId>,
    ) -> Result<Option<FanOut>, StoreError> {
        let known = self.tenants.read().get(tenant).cloned();
        let config = match known {
            Some(config) => config,
            None if !self.refresh(store, tenant).await? => return Ok(None),
            None => match self.tenants.read().get(tenant) {
                Some(config) => config.clone(),
                None => return Ok(None),
            },
        };
        let config = config.read();
        let ids = match only {
            Some(id) => vec![id],
            None => config.subscriptions.matching(event_type, subject),
        };
        let hooks = ids.iter().filter_map(|id| config.hooks.get(id).cloned()).collect();
        Ok(Some(FanOut { version: config.version, hooks }))
    }

    /// Reads what changed since the tenant was last looked at. False: no such tenant.
    pub(crate) async fn refresh(&self, store: &dyn Store, tenant: &TenantId) -> Result<bool, StoreError> {
        let known = self.tenants.read().get(tenant).map_or(0, |config| config.read().version);
        let Some(changes) = store.config_changes(tenant.clone(), known).await? else { return Ok(false) };
        self.apply(tenant, known, changes);
        Ok(true)
    }

    /// Takes in a webhook that this node has just stored as the tenant's `version`.
    pub(crate) fn changed(&self, webhook: Webhook, version: i64) {
        let tenant = webhook.tenant.clone();
        self.apply(&tenant, version - 1, ConfigChanges { version, webhooks: vec![webhook] });
    }

    /// Applies changes made after `since`; those that do not connect to what is known are left to the next
    /// refresh.
    fn apply(&self, tenant: &TenantId, since: i64, changes: ConfigChanges) {
        let version = changes.version;
        let hooks: Vec<_> =
            changes.webhooks.into_iter().map(|webhook| self.remember(webhook, version)).collect();
        let config = self.tenants.read().get(tenant).cloned();
        let config = match config {
            Some(config) => config,
            None if since == 0 => self.tenants.write().entry(tenant.clone()).or_default().clone(),
            None => return,
        };
        let mut config = config.write();
        if config.version > changes.version || config.version < since {
            return;
        }
        for hook in hooks {
            config.put(hook);
        }
        config.version = changes.version;
    }

    /// Treats a webhook as disabled from now on, ahead of the store being told. What the store says next
    /// replaces it.
    pub(crate) fn presume_disabled(&self, hook: &Hook, reason: &str) {
        let mut webhook = hook.webhook.clone();
        webhook.state = WebhookState::Disabled(reason.to_owned());
        self.remember(webhook, hook.version);
    }

    fn remember(&self, webhook: Webhook, version: i64) -> Arc<Hook> {
        let hook = Arc::new(Hook::new(webhook, version, &self.settings));
        let id = hook.webhook.id;
        let mut by_id = self.by_id.write();
        if by_id.get(&id).is_none_or(|known| known.version() <= version) {
            let known = match hook.webhook.state {
                WebhookState::Deleted => Known::Gone(version),
                _ => Known::There(hook.clone()),
            };
            by_id.insert(id, known);
        }
        hook
    }
}

//! In-memory cache of tenants' webhooks: which webhooks receive an event, and how to send to them.
//!
//! The cache may be outdated, which is harmless: every publish names the configuration version of its fan-out, and
//! the store rejects an outdated one; then the changes are read and the fan-out is repeated.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::RwLock;
use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::{
        lane::Ordering,
        retry::{RetryConfig, RetryPolicy},
    },
    event::{PayloadFormat, event_type::Pattern},
    field_error::FieldError,
    protection::{
        breaker::{BreakerConfig, BreakerPolicy},
        limiter::RateLimit,
    },
    routing::{
        filter::{Filter, Payload},
        subscription::{SubscriptionCriteria, Subscriptions},
    },
    security::{
        egress_rules::HostKey,
        signature::{LiveSecret, SignatureConfig},
    },
    webhook::{
        Webhook, WebhookSpec, WebhookState,
        caps::{Caps, EffectiveLimits},
        confidential::{EndpointAuth, SecretString},
    },
};
use redrive_egress::Target;
use redrive_store::{Store, StoreError};

use crate::{
    catalogue::{Catalogue, TypeStatus},
    ids::ById,
    limit_shares::LimitShares,
    settings::Settings,
    tenancy::TenantContext,
};

/// Webhooks read per store call.
const PAGE_SIZE: usize = 64;

/// A webhook prepared for sending, with only what that needs, since there may be very many.
#[derive(Clone, Debug)]
pub struct ResolvedWebhook {
    /// Webhook id.
    pub id: WebhookId,
    /// Tenant, with the settings common to its webhooks.
    pub tenant: Arc<TenantContext>,
    /// State, which says whether it receives events.
    pub state: WebhookState,
    /// Endpoint URL as its owner wrote it.
    pub url: Box<str>,
    /// Format of the request body.
    pub payload_format: PayloadFormat,
    /// Signature scheme of its requests.
    pub signature: SignatureConfig,
    /// Signing secrets, newest first.
    pub secrets: Box<[LiveSecret]>,
    /// Ordering guarantee of its deliveries.
    pub ordering: Ordering,
    /// Retry policy with the server's defaults filled in; shared by all webhooks that use the defaults.
    pub retry_policy: Arc<RetryPolicy>,
    /// Circuit breaker policy with the server's defaults filled in; shared in the same way.
    pub breaker: Arc<BreakerPolicy>,
    /// Maximum number of concurrent requests.
    pub max_in_flight: u32,
    /// Headers that are the same for every request.
    pub headers: Option<Box<HeaderMap>>,
    /// Whether the operator manages it.
    pub is_operator_managed: bool,
    events: Box<[Pattern]>,
    subjects: Box<[String]>,
    filter: Option<Box<Filter>>,
    /// Time of the next action of the expiry loop: verification or expiry.
    next_action_at: Option<Time>,
    expires_at: Option<Time>,
    rate_limit: Option<RateLimit>,
    /// Parsed target, created at first use; `None` if the URL is unusable.
    target: OnceLock<Option<Box<Target>>>,
    /// Tenant version at which this was read: a newer one replaces it, an older one does not.
    version: i64,
}

impl ResolvedWebhook {
    fn new(webhook: Webhook, version: i64, tenant: Arc<TenantContext>, defaults: &Defaults) -> Self {
        let next_action_at = webhook.next_action_at();
        let spec = webhook.spec;
        let caps = &defaults.settings.caps;
        // Validated when the webhook was saved; defaults and caps that changed since must not make it fail.
        let retry_policy = match spec.retry_config == RetryConfig::default() {
            true => defaults.retry.clone(),
            false => match spec.retry_config.resolve(&defaults.retry) {
                Ok(policy) => Arc::new(caps.capped_policy(&policy)),
                Err(_) => defaults.retry.clone(),
            },
        };
        let own = &spec.circuit_breaker_config;
        let breaker = match *own == BreakerConfig::default() {
            true => defaults.breaker.clone(),
            false => own.resolve(&defaults.breaker).map_or(defaults.breaker.clone(), Arc::new),
        };
        let header = |(name, value): (&String, &SecretString)| {
            let mut value = HeaderValue::try_from(value.reveal()).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name).ok()?, value))
        };
        let auth = spec.auth.as_ref().and_then(EndpointAuth::header);
        let auth = auth.map(|value| (header::AUTHORIZATION, value));
        let (max_in_flight, rate_limit) = (defaults.max_in_flight(&spec), defaults.rate_limit(&spec));
        let is_operator_managed = spec.is_operator_managed();
        let headers: HeaderMap = spec.headers.iter().filter_map(header).chain(auth).collect();
        Self {
            id: webhook.id,
            tenant,
            state: webhook.state,
            // Copy into compact allocations so that the buffers of the read can be freed.
            url: Box::from(spec.url.as_str()),
            payload_format: spec.payload_format,
            signature: spec.signature,
            secrets: webhook.secrets.iter().cloned().collect(),
            ordering: spec.ordering_guarantee,
            retry_policy,
            breaker,
            max_in_flight,
            headers: (!headers.is_empty()).then(|| Box::new(headers)),
            is_operator_managed,
            events: spec.events.iter().cloned().collect(),
            subjects: spec.subjects.iter().cloned().collect(),
            filter: spec.filter.map(Box::new),
            next_action_at,
            expires_at: spec.expires_at,
            rate_limit,
            target: OnceLock::new(),
            version,
        }
    }

    fn subscription_criteria(&self) -> SubscriptionCriteria<'_> {
        SubscriptionCriteria { events: &self.events, subjects: &self.subjects }
    }

    /// Returns whether it subscribes to events of this type and subject.
    pub(crate) fn subscribes_to(&self, event_type: &str, subject: Option<&str>) -> bool {
        self.subscription_criteria().accepts(event_type, subject)
    }

    /// Returns the request target; `None` if the URL is unusable.
    pub(crate) fn target(&self) -> Option<&Target> {
        self.target.get_or_init(|| Target::parse(&self.url).ok().map(Box::new)).as_deref()
    }

    /// Returns the host of its URL.
    pub(crate) fn host(&self) -> HostKey {
        self.target().map(Target::host_key).unwrap_or_default()
    }

    /// Returns its rate limit.
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.rate_limit
    }

    /// Returns whether it filters by payload.
    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns its payload filter.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_deref()
    }

    /// Returns whether its filter accepts this payload.
    pub fn passes_filter(&self, payload: &Payload<'_>) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(payload))
    }

    /// Returns whether it is past its `expires_at`.
    pub fn has_expired(&self, now: Time) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Returns whether the expiry loop has an action scheduled for it.
    pub(crate) fn has_scheduled_action(&self) -> bool {
        self.next_action_at.is_some()
    }
}

/// Webhooks and event types of one tenant at one version.
#[derive(Debug, Default)]
struct TenantConfig {
    version: i64,
    webhooks: ById<WebhookId, Arc<ResolvedWebhook>>,
    subscriptions: Subscriptions,
    catalogue: Arc<Catalogue>,
    /// Whether only registered event types may be published.
    strict_event_types: bool,
}

impl TenantConfig {
    /// Inserts or replaces a webhook; a deleted one is removed.
    fn insert(&mut self, webhook: Arc<ResolvedWebhook>) {
        let id = webhook.id;
        if let Some(old) = self.webhooks.remove(&id) {
            self.subscriptions.remove(id, old.subscription_criteria());
        }
        if webhook.state.receives_events() {
            self.subscriptions.add(id, webhook.subscription_criteria());
        }
        if webhook.state != WebhookState::Deleted {
            self.webhooks.insert(id, webhook);
        }
    }
}

/// Webhooks that receive an event, with the configuration version.
pub(crate) struct MatchedWebhooks {
    pub(crate) version: i64,
    pub(crate) webhooks: Vec<Arc<ResolvedWebhook>>,
    /// Catalogue entry of the event type.
    pub(crate) type_status: TypeStatus,
}

/// Event type settings of a tenant, read with its changes.
struct CatalogueUpdate {
    catalogue: Arc<Catalogue>,
    strict_event_types: bool,
}

/// Cache entry of one webhook.
#[derive(Debug)]
enum CacheEntry {
    Present(Arc<ResolvedWebhook>),
    /// Deleted at this version; kept so that an older read does not restore it.
    Deleted(i64),
}

impl CacheEntry {
    fn version(&self) -> i64 {
        match self {
            Self::Present(webhook) => webhook.version,
            Self::Deleted(version) => *version,
        }
    }
}

/// Cache of the webhooks of all tenants that were needed so far.
pub struct Registry {
    tenants: RwLock<HashMap<TenantId, Arc<RwLock<TenantConfig>>>>,
    by_id: RwLock<ById<WebhookId, CacheEntry>>,
    tenant_contexts: RwLock<HashMap<TenantId, Arc<TenantContext>>>,
    shares: Arc<LimitShares>,
    defaults: Defaults,
}

/// Server defaults for webhooks.
struct Defaults {
    retry: Arc<RetryPolicy>,
    breaker: Arc<BreakerPolicy>,
    settings: Settings,
}

impl Defaults {
    /// Returns the concurrency limit of a webhook within the caps.
    fn max_in_flight(&self, spec: &WebhookSpec) -> u32 {
        let requests = spec.max_in_flight.unwrap_or(self.settings.webhook_max_in_flight);
        self.settings.caps.capped_in_flight(requests)
    }

    /// Returns the rate limit of a webhook within the caps.
    fn rate_limit(&self, spec: &WebhookSpec) -> Option<RateLimit> {
        self.settings.caps.capped_rate(spec.rate_limit.or(self.settings.webhook_rate_limit))
    }
}

impl Registry {
    pub(crate) fn new(settings: Settings, shares: Arc<LimitShares>) -> Self {
        let defaults = Defaults {
            retry: Arc::new(settings.caps.capped_policy(&settings.retry)),
            breaker: Arc::new(settings.breaker),
            settings,
        };
        let (tenants, by_id, tenant_contexts) = Default::default();
        Self { tenants, by_id, tenant_contexts, shares, defaults }
    }

    /// Checks a webhook's settings against this server's defaults and the operator's caps. Values unchanged from `old`
    /// are accepted even if a cap was lowered since.
    pub fn check(&self, spec: &WebhookSpec, old: Option<&WebhookSpec>) -> Result<(), FieldError> {
        self.policies(spec)?;
        self.defaults.settings.caps.check(spec, old)
    }

    /// Returns a webhook's retry and circuit breaker policies, completed by this server's defaults, within the caps.
    pub fn policies(&self, spec: &WebhookSpec) -> Result<(RetryPolicy, BreakerPolicy), FieldError> {
        let retry = spec.retry_config.resolve(&self.defaults.retry)?;
        let retry = self.defaults.settings.caps.capped_policy(&retry);
        Ok((retry, spec.circuit_breaker_config.resolve(&self.defaults.breaker)?))
    }

    /// Returns the operator's caps on webhook settings.
    pub fn caps(&self) -> &Caps {
        &self.defaults.settings.caps
    }

    /// Returns the effective limits of a webhook: its settings, completed by this server's defaults, within the caps.
    pub fn effective_limits(&self, spec: &WebhookSpec) -> Result<EffectiveLimits, FieldError> {
        Ok(EffectiveLimits {
            max_in_flight: self.defaults.max_in_flight(spec),
            rate_limit: self.defaults.rate_limit(spec),
            retry: self.policies(spec)?.0,
        })
    }

    /// Returns the cached settings of a tenant.
    pub fn tenant_context(&self, tenant_id: &TenantId) -> Arc<TenantContext> {
        if let Some(known) = self.tenant_contexts.read().get(tenant_id) {
            return known.clone();
        }
        let mut contexts = self.tenant_contexts.write();
        contexts
            .entry(tenant_id.clone())
            .or_insert_with(|| {
                let settings = &self.defaults.settings;
                Arc::new(TenantContext::new(tenant_id.clone(), settings, self.shares.clone()))
            })
            .clone()
    }

    /// Returns the number of cached webhooks.
    pub fn len(&self) -> usize {
        self.by_id.read().values().filter(|entry| matches!(entry, CacheEntry::Present(_))).count()
    }

    /// Returns whether no webhook is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the tenant is cached.
    pub fn knows(&self, tenant_id: &TenantId) -> bool {
        self.tenants.read().contains_key(tenant_id)
    }

    /// Returns the cached version of a tenant's webhooks and event types.
    pub(crate) fn version(&self, tenant_id: &TenantId) -> Option<i64> {
        self.tenants.read().get(tenant_id).map(|config| config.read().version)
    }

    /// Returns the cached webhooks of a tenant that the operator manages.
    pub(crate) fn operator_webhooks(&self, tenant_id: &TenantId) -> HashSet<WebhookId> {
        let Some(config) = self.tenants.read().get(tenant_id).cloned() else { return HashSet::new() };
        let config = config.read();
        config
            .webhooks
            .values()
            .filter(|webhook| webhook.is_operator_managed)
            .map(|webhook| webhook.id)
            .collect()
    }

    /// Returns all cached tenants.
    pub(crate) fn tenants(&self) -> Vec<TenantId> {
        self.tenants.read().keys().cloned().collect()
    }

    /// Returns a webhook if it is cached and not deleted.
    pub(crate) fn webhook(&self, id: WebhookId) -> Option<Arc<ResolvedWebhook>> {
        match self.by_id.read().get(&id) {
            Some(CacheEntry::Present(webhook)) => Some(webhook.clone()),
            Some(CacheEntry::Deleted(_)) | None => None,
        }
    }

    /// Returns a webhook, from the store if it is not cached.
    pub(crate) async fn get_or_load(
        &self,
        store: &dyn Store,
        id: WebhookId,
    ) -> Result<Option<Arc<ResolvedWebhook>>, StoreError> {
        if let Some(resolved) = self.webhook(id) {
            return Ok(Some(resolved));
        }
        let Some(webhook) = store.webhooks_by_id(vec![id]).await?.into_iter().next() else { return Ok(None) };
        if !self.knows(&webhook.tenant_id) {
            // The webhook needs the settings of its tenant.
            self.refresh(store, &webhook.tenant_id).await?;
        }
        Ok(Some(self.webhook(id).unwrap_or_else(|| self.insert(webhook, 0))))
    }

    /// Loads these webhooks of a tenant into the cache, including deleted ones, unless they are there.
    pub(crate) async fn load_missing(
        &self,
        store: &dyn Store,
        tenant_id: &TenantId,
        webhooks: &[WebhookId],
    ) -> Result<(), StoreError> {
        self.load_tenant(store, tenant_id).await?;
        let unknown: Vec<_> = webhooks.iter().copied().filter(|id| self.webhook(*id).is_none()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        for webhook in store.webhooks_by_id(unknown).await? {
            if webhook.tenant_id == *tenant_id && self.webhook(webhook.id).is_none() {
                self.insert(webhook, 0);
            }
        }
        Ok(())
    }

    /// Returns the webhooks that receive this event; `only` names one webhook whatever it subscribes to. Returns
    /// `None` if the tenant does not exist.
    pub(crate) async fn match_webhooks(
        &self,
        store: &dyn Store,
        tenant_id: &TenantId,
        event_type: &str,
        subject: Option<&str>,
        only: Option<WebhookId>,
    ) -> Result<Option<MatchedWebhooks>, StoreError> {
        let known = self.tenants.read().get(tenant_id).cloned();
        let config = match known {
            Some(config) => config,
            None if !self.refresh(store, tenant_id).await? => return Ok(None),
            None => match self.tenants.read().get(tenant_id) {
                Some(config) => config.clone(),
                None => return Ok(None),
            },
        };
        let config = config.read();
        let ids = match only {
            Some(id) => vec![id],
            None => config.subscriptions.matching(event_type, subject),
        };
        let webhooks = ids.iter().filter_map(|id| config.webhooks.get(id).cloned()).collect();
        let type_status = config.catalogue.status_of(event_type, config.strict_event_types);
        Ok(Some(MatchedWebhooks { version: config.version, webhooks, type_status }))
    }

    /// Loads a tenant's webhooks if they are not cached.
    pub(crate) async fn load_tenant(
        &self,
        store: &dyn Store,
        tenant_id: &TenantId,
    ) -> Result<(), StoreError> {
        if !self.knows(tenant_id) {
            self.refresh(store, tenant_id).await?;
        }
        Ok(())
    }

    /// Reads the tenant's changes since the cached version, page by page since there may be very many webhooks.
    /// Returns false if the tenant does not exist.
    pub(crate) async fn refresh(&self, store: &dyn Store, tenant_id: &TenantId) -> Result<bool, StoreError> {
        loop {
            let (known, catalogue) =
                self.tenants.read().get(tenant_id).map_or_else(Default::default, |config| {
                    let config = config.read();
                    (config.version, config.catalogue.clone())
                });
            let changes = store.config_changes(tenant_id.clone(), known, PAGE_SIZE).await?;
            let Some(changes) = changes else {
                // The tenant may have existed before.
                if let Some(gone) = self.tenants.write().remove(tenant_id) {
                    let gone = gone.read();
                    let mut by_id = self.by_id.write();
                    for id in gone.webhooks.keys() {
                        by_id.insert(*id, CacheEntry::Deleted(gone.version));
                    }
                }
                return Ok(false);
            };
            let strict_event_types = changes.rules.strict_event_types;
            let catalogue = match catalogue.version == changes.event_types_version {
                true => catalogue,
                false => Arc::new(catalogue.refresh(store, tenant_id, changes.event_types_version).await?),
            };
            self.tenant_context(tenant_id).set(changes.rules);
            let update = CatalogueUpdate { catalogue, strict_event_types };
            self.apply(tenant_id, known, changes.version, changes.webhooks, Some(update));
            if !changes.more {
                return Ok(true);
            }
        }
    }

    /// Adds a webhook that this node has just stored as the tenant's `version`.
    pub(crate) fn apply_local_change(&self, webhook: Webhook, version: i64) {
        let tenant_id = webhook.tenant_id.clone();
        self.apply(&tenant_id, version - 1, version, vec![webhook], None);
    }

    /// Applies changes made after `since`; if they leave a gap to the cached version, they are left to the next
    /// refresh.
    fn apply(
        &self,
        tenant_id: &TenantId,
        since: i64,
        version: i64,
        webhooks: Vec<Webhook>,
        catalogue_update: Option<CatalogueUpdate>,
    ) {
        let resolved_webhooks: Vec<_> =
            webhooks.into_iter().map(|webhook| self.insert(webhook, version)).collect();
        let config = self.tenants.read().get(tenant_id).cloned();
        let config = match config {
            Some(config) => config,
            None if since == 0 => self.tenants.write().entry(tenant_id.clone()).or_default().clone(),
            None => return,
        };
        let mut config = config.write();
        if config.version > version || config.version < since {
            return;
        }
        for resolved in resolved_webhooks {
            config.insert(resolved);
        }
        if let Some(update) = catalogue_update {
            config.catalogue = update.catalogue;
            config.strict_event_types = update.strict_event_types;
        }
        config.version = version;
    }

    /// Reloads all webhooks and event types of a tenant and replaces the cache whatever its version: after a failover
    /// the same version may mean something else.
    pub(crate) async fn reload_tenant(
        &self,
        store: &dyn Store,
        tenant_id: &TenantId,
    ) -> Result<(), StoreError> {
        let (mut reloaded, mut known) = (TenantConfig::default(), 0);
        loop {
            let Some(changes) = store.config_changes(tenant_id.clone(), known, PAGE_SIZE).await? else {
                // The tenant does not exist on this server: a refresh removes it.
                return self.refresh(store, tenant_id).await.map(drop);
            };
            let version = changes.version;
            for webhook in changes.webhooks {
                let context = self.tenant_context(tenant_id);
                reloaded.insert(Arc::new(ResolvedWebhook::new(webhook, version, context, &self.defaults)));
            }
            known = version;
            self.tenant_context(tenant_id).set(changes.rules.clone());
            reloaded.strict_event_types = changes.rules.strict_event_types;
            if !changes.more {
                let catalogue = Catalogue::default();
                reloaded.catalogue =
                    Arc::new(catalogue.refresh(store, tenant_id, changes.event_types_version).await?);
                reloaded.version = version;
                break;
            }
        }
        let mut by_id = self.by_id.write();
        by_id.retain(
            |_, entry| matches!(entry, CacheEntry::Present(resolved) if resolved.tenant.id != *tenant_id),
        );
        by_id.extend(
            reloaded.webhooks.iter().map(|(id, resolved)| (*id, CacheEntry::Present(resolved.clone()))),
        );
        drop(by_id);
        self.tenants.write().insert(tenant_id.clone(), Arc::new(RwLock::new(reloaded)));
        Ok(())
    }

    /// Reads one webhook from the store and replaces its cache entry even if the versions are equal. An entry that
    /// another task replaces during the read stays.
    pub(crate) async fn reload(
        &self,
        store: &dyn Store,
        tenant_id: &TenantId,
        id: WebhookId,
    ) -> Result<(), StoreError> {
        self.refresh(store, tenant_id).await?;
        let Some(before) = self.webhook(id) else { return Ok(()) };
        let Some(webhook) = store.webhooks_by_id(vec![id]).await?.pop() else { return Ok(()) };
        let context = self.tenant_context(&webhook.tenant_id);
        let found = Arc::new(ResolvedWebhook::new(webhook, before.version, context, &self.defaults));
        if !self.webhook(id).is_some_and(|now| Arc::ptr_eq(&now, &before)) {
            return Ok(());
        }
        self.insert_if_newer(&found);
        let config = self.tenants.read().get(tenant_id).cloned();
        if let Some(config) = config {
            let mut config = config.write();
            if config.webhooks.get(&id).is_some_and(|known| known.version == found.version) {
                config.insert(found);
            }
        }
        Ok(())
    }

    /// Resolves a webhook and caches it unless a newer version is cached.
    fn insert(&self, webhook: Webhook, version: i64) -> Arc<ResolvedWebhook> {
        let context = self.tenant_context(&webhook.tenant_id);
        let resolved = Arc::new(ResolvedWebhook::new(webhook, version, context, &self.defaults));
        self.insert_if_newer(&resolved);
        resolved
    }

    /// Caches a webhook unless a newer version is cached.
    fn insert_if_newer(&self, webhook: &Arc<ResolvedWebhook>) {
        let mut by_id = self.by_id.write();
        if by_id.get(&webhook.id).is_none_or(|entry| entry.version() <= webhook.version) {
            let entry = match webhook.state {
                WebhookState::Deleted => CacheEntry::Deleted(webhook.version),
                _ => CacheEntry::Present(webhook.clone()),
            };
            by_id.insert(webhook.id, entry);
        }
    }
}

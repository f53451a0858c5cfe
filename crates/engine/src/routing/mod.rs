//! In-memory cache of tenants' webhooks: which webhooks receive an event, and how to send to them.
//!
//! The cache may be outdated, which is harmless: every publish names the configuration version of its fan-out, and
//! the store rejects an outdated one; then the changes are read and the fan-out is repeated.

mod catalogue;
mod tenancy;
mod webhook;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::RwLock;
use redrive_core::{
    TenantId, WebhookId,
    delivery::retry::RetryPolicy,
    field_error::FieldError,
    protection::breaker::BreakerPolicy,
    routing::subscription::Subscriptions,
    webhook::{
        Webhook, WebhookSpec, WebhookState,
        caps::{Caps, EffectiveLimits},
    },
};
use redrive_store::{Config, EventTypeChanges, StoreError};

pub(crate) use self::catalogue::TypeStatus;
#[cfg(test)]
pub(crate) use self::webhook::resolve_for_test;
use self::{catalogue::Catalogue, webhook::Defaults};
pub use self::{tenancy::TenantContext, webhook::ResolvedWebhook};
use crate::{cluster::limit_shares::LimitShares, ids::ById, settings::Settings};

/// Webhooks read per store call.
const PAGE_SIZE: usize = 64;

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

/// Knows which webhooks receive an event and how to send to them: a cache of the webhooks of all tenants that were needed
/// so far.
pub struct Router {
    store: Arc<dyn Config>,
    event_types: Arc<dyn EventTypeChanges>,
    tenants: RwLock<HashMap<TenantId, Arc<RwLock<TenantConfig>>>>,
    by_id: RwLock<ById<WebhookId, CacheEntry>>,
    tenant_contexts: RwLock<HashMap<TenantId, Arc<TenantContext>>>,
    shares: Arc<LimitShares>,
    defaults: Defaults,
}

impl Router {
    pub(crate) fn new(
        store: Arc<dyn Config>,
        event_types: Arc<dyn EventTypeChanges>,
        settings: Arc<Settings>,
        shares: Arc<LimitShares>,
    ) -> Self {
        let (tenants, by_id, tenant_contexts) = Default::default();
        Self {
            store,
            event_types,
            tenants,
            by_id,
            tenant_contexts,
            shares,
            defaults: Defaults::new(settings),
        }
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
        id: WebhookId,
    ) -> Result<Option<Arc<ResolvedWebhook>>, StoreError> {
        if let Some(resolved) = self.webhook(id) {
            return Ok(Some(resolved));
        }
        let Some(webhook) = self.store.webhooks_by_id(vec![id]).await?.into_iter().next() else {
            return Ok(None);
        };
        if !self.knows(&webhook.tenant_id) {
            // The webhook needs the settings of its tenant.
            self.refresh(&webhook.tenant_id).await?;
        }
        Ok(Some(self.webhook(id).unwrap_or_else(|| self.insert(webhook, 0))))
    }

    /// Returns webhooks by id, whatever their tenants and including deleted ones, with two reads for all that are not
    /// cached. Caches nothing of a tenant that is not cached, since only whole tenants are kept up to date.
    pub(crate) async fn webhooks_by_id(
        &self,
        ids: &[WebhookId],
    ) -> Result<ById<WebhookId, Arc<ResolvedWebhook>>, StoreError> {
        let (mut found, mut missing) = (ById::default(), BTreeSet::new());
        for id in ids {
            if let Some(webhook) = self.webhook(*id) {
                found.insert(*id, webhook);
            } else {
                missing.insert(*id);
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let loaded = self.store.webhooks_by_id(missing.into_iter().collect()).await?;
        let contexts = self.contexts_of_uncached(&loaded).await?;
        for webhook in loaded {
            let id = webhook.id;
            let resolved = match contexts.get(&webhook.tenant_id) {
                Some(context) => Arc::new(ResolvedWebhook::new(webhook, 0, context.clone(), &self.defaults)),
                None => self.webhook(id).unwrap_or_else(|| self.insert(webhook, 0)),
            };
            found.insert(id, resolved);
        }
        Ok(found)
    }

    /// Reads the settings of those tenants of these webhooks that are not cached.
    async fn contexts_of_uncached(
        &self,
        webhooks: &[Webhook],
    ) -> Result<HashMap<TenantId, Arc<TenantContext>>, StoreError> {
        let tenants = webhooks.iter().map(|webhook| &webhook.tenant_id);
        let uncached: BTreeSet<_> = tenants.filter(|tenant_id| !self.knows(tenant_id)).cloned().collect();
        if uncached.is_empty() {
            return Ok(HashMap::new());
        }
        let mut rules: HashMap<_, _> =
            self.store.rules_of_tenants(uncached.iter().cloned().collect()).await?.into_iter().collect();
        let context = |tenant_id: TenantId| {
            let context = TenantContext::new(tenant_id.clone(), &self.defaults.settings, self.shares.clone());
            // A deleted tenant has the defaults.
            context.set(rules.remove(&tenant_id).unwrap_or_default());
            (tenant_id, Arc::new(context))
        };
        Ok(uncached.into_iter().map(context).collect())
    }

    /// Returns the webhooks that receive this event; `only` names one webhook whatever it subscribes to. Returns
    /// `None` if the tenant does not exist.
    pub(crate) async fn match_webhooks(
        &self,
        tenant_id: &TenantId,
        event_type: &str,
        subject: Option<&str>,
        named: Option<&[WebhookId]>,
    ) -> Result<Option<MatchedWebhooks>, StoreError> {
        let known = self.tenants.read().get(tenant_id).cloned();
        let config = match known {
            Some(config) => config,
            None if !self.refresh(tenant_id).await? => return Ok(None),
            None => match self.tenants.read().get(tenant_id) {
                Some(config) => config.clone(),
                None => return Ok(None),
            },
        };
        let config = config.read();
        let ids = match named {
            Some(ids) => ids.to_vec(),
            None => config.subscriptions.matching(event_type, subject),
        };
        let webhooks = ids.iter().filter_map(|id| config.webhooks.get(id).cloned()).collect();
        let type_status = config.catalogue.status_of(event_type, config.strict_event_types);
        Ok(Some(MatchedWebhooks { version: config.version, webhooks, type_status }))
    }

    /// Loads a tenant's webhooks if they are not cached.
    pub(crate) async fn load_tenant(&self, tenant_id: &TenantId) -> Result<(), StoreError> {
        if !self.knows(tenant_id) {
            self.refresh(tenant_id).await?;
        }
        Ok(())
    }

    /// Reads the tenant's changes since the cached version, page by page since there may be very many webhooks.
    /// Returns false if the tenant does not exist.
    pub(crate) async fn refresh(&self, tenant_id: &TenantId) -> Result<bool, StoreError> {
        loop {
            let (known, catalogue) =
                self.tenants.read().get(tenant_id).map_or_else(Default::default, |config| {
                    let config = config.read();
                    (config.version, config.catalogue.clone())
                });
            let changes = self.store.config_changes(tenant_id.clone(), known, PAGE_SIZE).await?;
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
                false => Arc::new(
                    catalogue.refresh(&*self.event_types, tenant_id, changes.event_types_version).await?,
                ),
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
    pub(crate) async fn reload_tenant(&self, tenant_id: &TenantId) -> Result<(), StoreError> {
        let (mut reloaded, mut known) = (TenantConfig::default(), 0);
        loop {
            let Some(changes) = self.store.config_changes(tenant_id.clone(), known, PAGE_SIZE).await? else {
                // The tenant does not exist on this server: a refresh removes it.
                return self.refresh(tenant_id).await.map(drop);
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
                reloaded.catalogue = Arc::new(
                    catalogue.refresh(&*self.event_types, tenant_id, changes.event_types_version).await?,
                );
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
    pub(crate) async fn reload(&self, tenant_id: &TenantId, id: WebhookId) -> Result<(), StoreError> {
        self.refresh(tenant_id).await?;
        let Some(before) = self.webhook(id) else { return Ok(()) };
        let Some(webhook) = self.store.webhooks_by_id(vec![id]).await?.pop() else { return Ok(()) };
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

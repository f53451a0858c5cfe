//! What is known of tenants' webhooks, in memory: who wants an event, and how to send to them.
//!
//! It may be behind the store. That is harmless: every publish names the version it fanned out by, and the
//! store refuses a stale one, upon which the changes are read and the fan-out is made again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::RwLock;
use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::lane::Ordering,
    delivery::retry::{RetryConfig, RetryPolicy},
    event::PayloadFormat,
    event::event_type::Pattern,
    field_error::Invalid,
    protection::breaker::{BreakerConfig, BreakerPolicy},
    protection::limiter::RateLimit,
    routing::filter::{Filter, Payload},
    routing::subscription::{Interest, Subscriptions},
    security::egress_rules::HostKey,
    security::signature::{LiveSecret, SignatureConfig},
    webhook::caps::{Caps, EffectiveLimits},
    webhook::confidential::{EndpointAuth, Hidden},
    webhook::{Webhook, WebhookSpec, WebhookState},
};
use redrive_egress::Target;
use redrive_store::{Store, StoreError};

use crate::{
    catalogue::{Catalogue, Standing},
    ids::ById,
    limit_shares::Shares,
    settings::Settings,
    tenancy::Tenancy,
};

/// Webhooks read at one go.
const PAGE: usize = 64;

/// A webhook made ready for sending, and nothing beside: there may be very many.
#[derive(Clone, Debug)]
pub struct Hook {
    /// Its id.
    pub id: WebhookId,
    /// Whose it is, and what holds for all that is theirs.
    pub tenant: Arc<Tenancy>,
    /// Whether it gets events.
    pub state: WebhookState,
    /// Where events are sent, as its owner wrote it.
    pub url: Box<str>,
    /// What the request body looks like.
    pub payload_format: PayloadFormat,
    /// How requests are signed.
    pub signature: SignatureConfig,
    /// The secrets that sign, newest first.
    pub secrets: Box<[LiveSecret]>,
    /// Which of its deliveries wait for one another.
    pub ordering: Ordering,
    /// Its retry policy with the server's defaults filled in. Shared with all that have the defaults.
    pub policy: Arc<RetryPolicy>,
    /// Its circuit breaker with the server's defaults filled in. Shared in the same way.
    pub breaker: Arc<BreakerPolicy>,
    /// Requests at once.
    pub max_in_flight: u32,
    /// The headers that are the same for every request.
    pub headers: Option<Box<HeaderMap>>,
    /// Whether the operator manages it.
    pub is_operator_managed: bool,
    events: Box<[Pattern]>,
    subjects: Box<[String]>,
    filter: Option<Box<Filter>>,
    /// When something is to be done about it.
    due_at: Option<Time>,
    expires_at: Option<Time>,
    rate_limit: Option<RateLimit>,
    /// Where to send, made ready when it is first needed; none when the URL cannot be used at all.
    target: OnceLock<Option<Box<Target>>>,
    /// The tenant's version that this was read at: a newer one replaces it, an older one does not.
    version: i64,
}

impl Hook {
    fn new(webhook: Webhook, version: i64, tenant: Arc<Tenancy>, defaults: &Defaults) -> Self {
        let webhook_due = webhook.due_at();
        let spec = webhook.spec;
        let caps = &defaults.settings.caps;
        // All was checked when the webhook was saved; defaults and caps that changed since must not stop it.
        let policy = match spec.retry_config == RetryConfig::default() {
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
        let header = |(name, value): (&String, &Hidden)| {
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
            // Copied, not taken over: what was read is strewn over memory that can then be given back.
            url: Box::from(spec.url.as_str()),
            payload_format: spec.payload_format,
            signature: spec.signature,
            secrets: webhook.secrets.iter().cloned().collect(),
            ordering: spec.ordering_guarantee,
            policy,
            breaker,
            max_in_flight,
            headers: (!headers.is_empty()).then(|| Box::new(headers)),
            is_operator_managed,
            events: spec.events.iter().cloned().collect(),
            subjects: spec.subjects.iter().cloned().collect(),
            filter: spec.filter.map(Box::new),
            due_at: webhook_due,
            expires_at: spec.expires_at,
            rate_limit,
            target: OnceLock::new(),
            version,
        }
    }

    fn interest(&self) -> Interest<'_> {
        Interest { events: &self.events, subjects: &self.subjects }
    }

    /// Whether it subscribes to such events.
    pub(crate) fn wants(&self, event_type: &str, subject: Option<&str>) -> bool {
        self.interest().wants(event_type, subject)
    }

    /// Where to send; none when the URL cannot be used at all.
    pub(crate) fn target(&self) -> Option<&Target> {
        self.target.get_or_init(|| Target::parse(&self.url).ok().map(Box::new)).as_deref()
    }

    /// The host that its URL names.
    pub(crate) fn host(&self) -> HostKey {
        self.target().map(Target::host_key).unwrap_or_default()
    }

    /// How fast it is sent to.
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.rate_limit
    }

    /// Whether it looks into payloads.
    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Its condition on payloads.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_deref()
    }

    /// Whether it wants events with this payload.
    pub fn wants_payload(&self, payload: &Payload<'_>) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(payload))
    }

    /// Whether its time is over.
    pub fn has_expired(&self, now: Time) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether its time will be over at some point.
    pub(crate) fn expires(&self) -> bool {
        self.due_at.is_some()
    }
}

/// One tenant's webhooks at one version.
#[derive(Debug, Default)]
struct Config {
    version: i64,
    hooks: ById<WebhookId, Arc<Hook>>,
    subscriptions: Subscriptions,
    catalogue: Arc<Catalogue>,
    /// Whether only registered event types may be published.
    strict: bool,
}

impl Config {
    fn put(&mut self, hook: Arc<Hook>) {
        let id = hook.id;
        if let Some(old) = self.hooks.remove(&id) {
            self.subscriptions.remove(id, old.interest());
        }
        if hook.state.gets_events() {
            self.subscriptions.add(id, hook.interest());
        }
        if hook.state != WebhookState::Deleted {
            self.hooks.insert(id, hook);
        }
    }
}

/// The webhooks that an event goes to, and the version that says so.
pub(crate) struct FanOut {
    pub(crate) version: i64,
    pub(crate) hooks: Vec<Arc<Hook>>,
    /// What the tenant says about the event's type.
    pub(crate) standing: Standing,
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
    by_id: RwLock<ById<WebhookId, Known>>,
    tenancies: RwLock<HashMap<TenantId, Arc<Tenancy>>>,
    shares: Arc<Shares>,
    defaults: Defaults,
}

/// What holds for webhooks that do not say otherwise.
struct Defaults {
    retry: Arc<RetryPolicy>,
    breaker: Arc<BreakerPolicy>,
    settings: Settings,
}

impl Defaults {
    /// The concurrent requests that a webhook may have, within the caps.
    fn max_in_flight(&self, spec: &WebhookSpec) -> u32 {
        let asked = spec.max_in_flight.unwrap_or(self.settings.webhook_max_in_flight);
        self.settings.caps.capped_in_flight(asked)
    }

    /// The rate of a webhook, within the caps.
    fn rate_limit(&self, spec: &WebhookSpec) -> Option<RateLimit> {
        self.settings.caps.capped_rate(spec.rate_limit.or(self.settings.webhook_rate_limit))
    }
}

impl Registry {
    pub(crate) fn new(settings: Settings, shares: Arc<Shares>) -> Self {
        let defaults = Defaults {
            retry: Arc::new(settings.caps.capped_policy(&settings.retry)),
            breaker: Arc::new(settings.breaker),
            settings,
        };
        let (tenants, by_id, tenancies) = Default::default();
        Self { tenants, by_id, tenancies, shares, defaults }
    }

    /// Checks what a webhook asks for against this server's defaults and the operator's caps. What it had before, as
    /// `old` says, is not held against it if a cap was lowered since.
    pub fn check(&self, spec: &WebhookSpec, old: Option<&WebhookSpec>) -> Result<(), Invalid> {
        self.policies(spec)?;
        self.defaults.settings.caps.check(spec, old)
    }

    /// What a webhook says about retries and its circuit, with this server's defaults for the rest, within the caps.
    pub fn policies(&self, spec: &WebhookSpec) -> Result<(RetryPolicy, BreakerPolicy), Invalid> {
        let retry = spec.retry_config.resolve(&self.defaults.retry)?;
        let retry = self.defaults.settings.caps.capped_policy(&retry);
        Ok((retry, spec.circuit_breaker_config.resolve(&self.defaults.breaker)?))
    }

    /// The operator's upper bounds on webhooks.
    pub fn caps(&self) -> &Caps {
        &self.defaults.settings.caps
    }

    /// The limits in force for a webhook: what it asks for, this server's defaults for the rest, and the caps.
    pub fn effective_limits(&self, spec: &WebhookSpec) -> Result<EffectiveLimits, Invalid> {
        Ok(EffectiveLimits {
            max_in_flight: self.defaults.max_in_flight(spec),
            rate_limit: self.defaults.rate_limit(spec),
            retry: self.policies(spec)?.0,
        })
    }

    /// What holds for a tenant, as far as it is known here.
    pub fn tenancy(&self, tenant: &TenantId) -> Arc<Tenancy> {
        if let Some(known) = self.tenancies.read().get(tenant) {
            return known.clone();
        }
        let mut tenancies = self.tenancies.write();
        tenancies
            .entry(tenant.clone())
            .or_insert_with(|| {
                let settings = &self.defaults.settings;
                Arc::new(Tenancy::new(tenant.clone(), settings, self.shares.clone()))
            })
            .clone()
    }

    /// How many webhooks are known here.
    pub fn len(&self) -> usize {
        self.by_id.read().values().filter(|known| matches!(known, Known::There(_))).count()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a tenant is known to exist.
    pub fn knows(&self, tenant: &TenantId) -> bool {
        self.tenants.read().contains_key(tenant)
    }

    /// The version of a tenant's webhooks and event types that is known.
    pub(crate) fn version(&self, tenant: &TenantId) -> Option<i64> {
        self.tenants.read().get(tenant).map(|config| config.read().version)
    }

    /// A tenant's webhooks that the operator manages, as far as they are known.
    pub(crate) fn operator_webhooks(&self, tenant: &TenantId) -> HashSet<WebhookId> {
        let Some(config) = self.tenants.read().get(tenant).cloned() else { return HashSet::new() };
        let config = config.read();
        config.hooks.values().filter(|hook| hook.is_operator_managed).map(|hook| hook.id).collect()
    }

    /// Every tenant that is known to exist.
    pub(crate) fn tenants(&self) -> Vec<TenantId> {
        self.tenants.read().keys().cloned().collect()
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
        let Some(webhook) = store.webhooks_by_id(vec![id]).await?.into_iter().next() else { return Ok(None) };
        if !self.knows(&webhook.tenant) {
            // What holds for the tenant holds for this webhook.
            self.refresh(store, &webhook.tenant).await?;
        }
        Ok(Some(self.hook(id).unwrap_or_else(|| self.remember(webhook, 0))))
    }

    /// Reads these webhooks of a tenant into memory, deleted ones too, as far as they are not there.
    pub(crate) async fn load(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        webhooks: &[WebhookId],
    ) -> Result<(), StoreError> {
        self.learn(store, tenant).await?;
        let unknown: Vec<_> = webhooks.iter().copied().filter(|id| self.hook(*id).is_none()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        for webhook in store.webhooks_by_id(unknown).await? {
            if webhook.tenant == *tenant && self.hook(webhook.id).is_none() {
                self.remember(webhook, 0);
            }
        }
        Ok(())
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
        let standing = config.catalogue.standing(event_type, config.strict);
        Ok(Some(FanOut { version: config.version, hooks, standing }))
    }

    /// Reads a tenant's webhooks if they are not known yet.
    pub(crate) async fn learn(&self, store: &dyn Store, tenant: &TenantId) -> Result<(), StoreError> {
        if !self.knows(tenant) {
            self.refresh(store, tenant).await?;
        }
        Ok(())
    }

    /// Reads what changed since the tenant was last looked at, page by page: there may be very many webhooks.
    /// False: no such tenant.
    pub(crate) async fn refresh(&self, store: &dyn Store, tenant: &TenantId) -> Result<bool, StoreError> {
        loop {
            let (known, catalogue) =
                self.tenants.read().get(tenant).map_or_else(Default::default, |config| {
                    let config = config.read();
                    (config.version, config.catalogue.clone())
                });
            let changes = store.config_changes(tenant.clone(), known, PAGE).await?;
            let Some(changes) = changes else {
                // It may have been there once.
                if let Some(gone) = self.tenants.write().remove(tenant) {
                    let gone = gone.read();
                    let mut by_id = self.by_id.write();
                    for id in gone.hooks.keys() {
                        by_id.insert(*id, Known::Gone(gone.version));
                    }
                }
                return Ok(false);
            };
            let strict = changes.rules.strict_event_types;
            let catalogue = match catalogue.version == changes.types_version {
                true => catalogue,
                false => Arc::new(catalogue.refreshed(store, tenant, changes.types_version).await?),
            };
            self.tenancy(tenant).set(changes.rules);
            self.apply(tenant, known, changes.version, changes.webhooks, Some((catalogue, strict)));
            if !changes.more {
                return Ok(true);
            }
        }
    }

    /// Takes in a webhook that this node has just stored as the tenant's `version`.
    pub(crate) fn changed(&self, webhook: Webhook, version: i64) {
        let tenant = webhook.tenant.clone();
        self.apply(&tenant, version - 1, version, vec![webhook], None);
    }

    /// Applies changes made after `since`; those that do not connect to what is known are left to the next
    /// refresh.
    fn apply(
        &self,
        tenant: &TenantId,
        since: i64,
        version: i64,
        webhooks: Vec<Webhook>,
        told: Option<(Arc<Catalogue>, bool)>,
    ) {
        let hooks: Vec<_> = webhooks.into_iter().map(|webhook| self.remember(webhook, version)).collect();
        let config = self.tenants.read().get(tenant).cloned();
        let config = match config {
            Some(config) => config,
            None if since == 0 => self.tenants.write().entry(tenant.clone()).or_default().clone(),
            None => return,
        };
        let mut config = config.write();
        if config.version > version || config.version < since {
            return;
        }
        for hook in hooks {
            config.put(hook);
        }
        if let Some((catalogue, strict)) = told {
            (config.catalogue, config.strict) = (catalogue, strict);
        }
        config.version = version;
    }

    /// Reads all webhooks and event types of a tenant again and replaces what memory knows, whatever its version: after a
    /// fail-over the same version may mean something else.
    pub(crate) async fn reload_tenant(&self, store: &dyn Store, tenant: &TenantId) -> Result<(), StoreError> {
        let (mut fresh, mut known) = (Config::default(), 0);
        loop {
            let Some(changes) = store.config_changes(tenant.clone(), known, PAGE).await? else {
                // It is unknown to this server: a refresh removes it.
                return self.refresh(store, tenant).await.map(drop);
            };
            let version = changes.version;
            for webhook in changes.webhooks {
                let tenancy = self.tenancy(tenant);
                fresh.put(Arc::new(Hook::new(webhook, version, tenancy, &self.defaults)));
            }
            known = version;
            self.tenancy(tenant).set(changes.rules.clone());
            fresh.strict = changes.rules.strict_event_types;
            if !changes.more {
                let catalogue = Catalogue::default();
                fresh.catalogue = Arc::new(catalogue.refreshed(store, tenant, changes.types_version).await?);
                fresh.version = version;
                break;
            }
        }
        let mut by_id = self.by_id.write();
        by_id.retain(|_, known| matches!(known, Known::There(hook) if hook.tenant.id != *tenant));
        by_id.extend(fresh.hooks.iter().map(|(id, hook)| (*id, Known::There(hook.clone()))));
        drop(by_id);
        self.tenants.write().insert(tenant.clone(), Arc::new(RwLock::new(fresh)));
        Ok(())
    }

    /// Reads one webhook from the store and replaces the entry in memory, even where the versions are equal. An entry
    /// that another task replaces during the read stays.
    pub(crate) async fn reload(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        id: WebhookId,
    ) -> Result<(), StoreError> {
        self.refresh(store, tenant).await?;
        let Some(before) = self.hook(id) else { return Ok(()) };
        let Some(webhook) = store.webhooks_by_id(vec![id]).await?.pop() else { return Ok(()) };
        let tenancy = self.tenancy(&webhook.tenant);
        let found = Arc::new(Hook::new(webhook, before.version, tenancy, &self.defaults));
        if !self.hook(id).is_some_and(|now| Arc::ptr_eq(&now, &before)) {
            return Ok(());
        }
        self.keep(&found);
        let config = self.tenants.read().get(tenant).cloned();
        if let Some(config) = config {
            let mut config = config.write();
            if config.hooks.get(&id).is_some_and(|known| known.version == found.version) {
                config.put(found);
            }
        }
        Ok(())
    }

    fn remember(&self, webhook: Webhook, version: i64) -> Arc<Hook> {
        let tenancy = self.tenancy(&webhook.tenant);
        let hook = Arc::new(Hook::new(webhook, version, tenancy, &self.defaults));
        self.keep(&hook);
        hook
    }

    fn keep(&self, hook: &Arc<Hook>) {
        let mut by_id = self.by_id.write();
        if by_id.get(&hook.id).is_none_or(|known| known.version() <= hook.version) {
            let known = match hook.state {
                WebhookState::Deleted => Known::Gone(hook.version),
                _ => Known::There(hook.clone()),
            };
            by_id.insert(hook.id, known);
        }
    }
}

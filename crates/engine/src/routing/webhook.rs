//! A webhook prepared for sending, and the server's defaults for its settings.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use redrive_core::{
    Time, WebhookId,
    delivery::{
        lane::Ordering,
        retry::{RetryConfig, RetryPolicy},
    },
    event::{PayloadFormat, event_type::Pattern},
    protection::{
        breaker::{BreakerConfig, BreakerPolicy},
        limiter::RateLimit,
    },
    routing::{
        filter::{Filter, Payload},
        subscription::SubscriptionCriteria,
    },
    security::{
        egress_rules::HostKey,
        signature::{LiveSecret, SignatureConfig},
    },
    webhook::{
        Webhook, WebhookSpec, WebhookState,
        confidential::{EndpointAuth, SecretString},
    },
};
use redrive_egress::Target;

use super::TenantContext;
use crate::settings::Settings;

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
    pub(super) version: i64,
}

impl ResolvedWebhook {
    pub(super) fn new(
        webhook: Webhook,
        version: i64,
        tenant: Arc<TenantContext>,
        defaults: &Defaults,
    ) -> Self {
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

    pub(super) fn subscription_criteria(&self) -> SubscriptionCriteria<'_> {
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

/// Server defaults for webhooks.
pub(super) struct Defaults {
    pub(super) retry: Arc<RetryPolicy>,
    pub(super) breaker: Arc<BreakerPolicy>,
    pub(super) settings: Arc<Settings>,
}

impl Defaults {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self {
            retry: Arc::new(settings.caps.capped_policy(&settings.retry)),
            breaker: Arc::new(settings.breaker),
            settings,
        }
    }

    /// Returns the concurrency limit of a webhook within the caps.
    pub(super) fn max_in_flight(&self, spec: &WebhookSpec) -> u32 {
        let requests = spec.max_in_flight.unwrap_or(self.settings.webhook_max_in_flight);
        self.settings.caps.capped_in_flight(requests)
    }

    /// Returns the rate limit of a webhook within the caps.
    pub(super) fn rate_limit(&self, spec: &WebhookSpec) -> Option<RateLimit> {
        self.settings.caps.capped_rate(spec.rate_limit.or(self.settings.webhook_rate_limit))
    }
}

/// Resolves a webhook with default settings, of the default tenant, for unit tests.
#[cfg(test)]
pub(crate) fn resolve_for_test(
    spec: WebhookSpec,
    now: Time,
    shares: Arc<crate::cluster::limit_shares::LimitShares>,
) -> Arc<ResolvedWebhook> {
    let settings = Arc::new(Settings::default());
    let tenant_id = redrive_core::TenantId::default();
    let tenant = Arc::new(TenantContext::new(tenant_id.clone(), &settings, shares));
    let webhook = Webhook {
        id: WebhookId::new(now, &[1; 10]),
        tenant_id,
        spec: WebhookSpec { url: "http://127.0.0.1/".into(), ..spec },
        secrets: Vec::new(),
        state: WebhookState::Active,
        created_at: now,
        updated_at: now,
    };
    Arc::new(ResolvedWebhook::new(webhook, 1, tenant, &Defaults::new(settings)))
}

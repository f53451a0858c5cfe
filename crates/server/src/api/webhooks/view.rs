//! A webhook as people see it: everything but its secrets.

use std::collections::BTreeMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::lane::Ordering,
    delivery::retry::RetryConfig,
    event::PayloadFormat,
    event::event_type::Pattern,
    protection::breaker::BreakerConfig,
    protection::limiter::RateLimit,
    routing::filter::Filter,
    security::signature::{LiveSecret, Scheme, SignatureConfig, rotation_due},
    webhook::caps::EffectiveLimits,
    webhook::confidential::EndpointAuth,
    webhook::verification::Verification,
    webhook::{ManagedBy, Owner, Webhook, WebhookState},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::filter::FilterExpression;
use crate::api::preferences::AddressView;

/// What stands in for a value that is not shown. Sent back, it means "as it was".
pub(crate) const REDACTED: &str = "[redacted]";

/// A webhook.
#[derive(Serialize, ToSchema)]
pub(crate) struct WebhookView {
    /// Its id.
    #[schema(value_type = String)]
    id: WebhookId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Where events are sent.
    url: String,
    /// What it is for.
    description: Option<String>,
    /// Who looks after it.
    owner: Option<Owner>,
    /// Whether the owner's address receives notifications; null without an address.
    owner_email_confirmation: Option<AddressView>,
    /// Which event types it wants.
    #[schema(value_type = Vec<String>)]
    events: Vec<Pattern>,
    /// Only events about these subjects; all if empty.
    subjects: Vec<String>,
    /// Only events whose `data` passes; null for all.
    #[schema(value_type = Option<FilterExpression>)]
    filter: Option<Filter>,
    /// What the request body looks like.
    payload_format: PayloadFormat,
    /// How requests are signed.
    signature: SignatureConfig,
    /// The signing secret, shown only when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// The secrets that sign now, newest first, without their values.
    secrets: Vec<SecretView>,
    /// `active`, `paused`, `pending_verification` or `disabled`.
    state: &'static str,
    /// Whether events are sent.
    active: bool,
    /// Why it is disabled.
    disabled_reason: Option<String>,
    /// When to try again, as far as it differs from the server's defaults.
    retry_config: RetryConfig,
    /// When to stop calling an endpoint that fails, as far as it differs from the server's defaults.
    circuit_breaker_config: BreakerConfig,
    /// How fast requests may go; null for the server's default.
    rate_limit: Option<RateLimit>,
    /// Which deliveries wait for one another.
    ordering_guarantee: Ordering,
    /// Requests at once; null for the server's default.
    max_in_flight: Option<u32>,
    /// The limits in force where the operator's caps are lower than what is set; left out otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    effective_limits: Option<EffectiveLimitsView>,
    /// Who manages it: portal sessions see nothing of those of the `operator`.
    managed_by: ManagedBy,
    /// Headers sent along; values are not shown.
    headers: BTreeMap<String, String>,
    /// How the endpoint is convinced, beside the signature; values are not shown.
    auth: Option<AuthView>,
    /// Whether the endpoint has to echo a challenge before it gets events.
    verify_url: bool,
    /// How far that has come; null if nothing is waited for.
    verification: Option<VerificationView>,
    /// Since when the newest secret should have been rotated; null if it need not be.
    #[schema(value_type = Option<String>, format = DateTime)]
    rotation_due_since: Option<Time>,
    /// Your own notes.
    metadata: BTreeMap<String, String>,
    /// When it is to be disabled; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
    /// When it last took a delivery, as far as is remembered: about a day.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_success_at: Option<Time>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
}

/// The limits in force for a webhook that asks for more than the operator's caps.
#[derive(Serialize, ToSchema)]
pub(crate) struct EffectiveLimitsView {
    /// Concurrent requests.
    max_in_flight: u32,
    /// How fast requests go; null for no limit.
    rate_limit: Option<RateLimit>,
    /// Attempts of one delivery.
    max_attempts: u32,
    /// The shortest wait between two attempts, in milliseconds.
    min_retry_delay_ms: u64,
    /// The timeout of the first attempt, in milliseconds.
    timeout_ms: u64,
}

impl From<EffectiveLimits> for EffectiveLimitsView {
    fn from(limits: EffectiveLimits) -> Self {
        Self {
            max_in_flight: limits.max_in_flight,
            rate_limit: limits.rate_limit,
            max_attempts: limits.retry.max_attempts(),
            min_retry_delay_ms: limits.retry.shortest_delay_ms(),
            timeout_ms: limits.retry.timeout_ms,
        }
    }
}

/// How far the verification of a URL has come.
#[derive(Serialize, ToSchema)]
pub(crate) struct VerificationView {
    /// When it began. It is given up after a day.
    #[schema(value_type = String, format = DateTime)]
    since: Time,
    /// How often the endpoint was asked.
    tries: u32,
    /// When it is asked next.
    #[schema(value_type = String, format = DateTime)]
    next_at: Time,
    /// What came of the last time.
    last_error: Option<String>,
}

impl VerificationView {
    fn of(state: &WebhookState) -> Option<Self> {
        let WebhookState::PendingVerification(verification) = state else { return None };
        let Verification { since, tries, next, last_error, .. } = verification.clone();
        Some(Self { since, tries, next_at: next, last_error })
    }
}

/// How an endpoint is convinced, without what is secret about it.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum AuthView {
    /// HTTP basic authentication.
    Basic {
        /// The user's name.
        username: String,
        /// Not shown.
        password: &'static str,
    },
    /// A bearer token.
    Bearer {
        /// Not shown.
        token: &'static str,
    },
}

impl From<EndpointAuth> for AuthView {
    fn from(auth: EndpointAuth) -> Self {
        match auth {
            EndpointAuth::Basic { username, .. } => Self::Basic { username, password: REDACTED },
            EndpointAuth::Bearer { .. } => Self::Bearer { token: REDACTED },
        }
    }
}

/// A secret without its value.
#[derive(Serialize, ToSchema)]
pub(crate) struct SecretView {
    /// The key that verifies `v1a` signatures, where the webhook has them: `whpk_…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Until when it signs; null for as long as it is not rotated.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
}

impl WebhookView {
    /// A webhook, and when it last took a delivery.
    pub(super) fn new(webhook: Webhook, last_success_at: Option<Time>, now: Time) -> Self {
        let spec = webhook.spec;
        let public_key = |live: &LiveSecret| match spec.signature.scheme {
            Scheme::Standard => None,
            Scheme::StandardEd25519 => Some(live.secret.public_key()),
        };
        let secret = |live: &LiveSecret| SecretView {
            public_key: public_key(live),
            created_at: live.created_at,
            expires_at: live.expires_at,
        };
        Self {
            id: webhook.id,
            tenant_id: webhook.tenant,
            url: spec.url,
            description: spec.description,
            owner: spec.owner,
            owner_email_confirmation: None,
            events: spec.events,
            subjects: spec.subjects,
            filter: spec.filter,
            payload_format: spec.payload_format,
            signature: spec.signature,
            secret: None,
            secrets: webhook.secrets.iter().map(secret).collect(),
            rotation_due_since: rotation_due(&webhook.secrets, now),
            state: webhook.state.name(),
            active: webhook.state == WebhookState::Active,
            disabled_reason: webhook.state.cancels_because().map(str::to_owned),
            retry_config: spec.retry_config,
            circuit_breaker_config: spec.circuit_breaker_config,
            rate_limit: spec.rate_limit,
            ordering_guarantee: spec.ordering_guarantee,
            max_in_flight: spec.max_in_flight,
            effective_limits: None,
            managed_by: spec.managed_by,
            headers: spec.headers.into_keys().map(|name| (name, REDACTED.to_owned())).collect(),
            auth: spec.auth.map(AuthView::from),
            verify_url: spec.verify_url,
            verification: VerificationView::of(&webhook.state),
            metadata: spec.metadata,
            expires_at: spec.expires_at,
            last_success_at,
            created_at: webhook.created_at,
            updated_at: webhook.updated_at,
        }
    }

    /// The same with the limits in force, where caps lower them.
    pub(super) fn capped(mut self, limits: Option<EffectiveLimits>) -> Self {
        self.effective_limits = limits.map(EffectiveLimitsView::from);
        self
    }

    /// The same with the webhook's newest secret, which is shown this once.
    pub(super) fn with_secret(webhook: Webhook, last_success_at: Option<Time>, now: Time) -> Self {
        let secret = webhook.secrets.first().map(|live| live.secret.reveal());
        Self { secret, ..Self::new(webhook, last_success_at, now) }
    }

    /// The address of its owner.
    pub(super) fn owner_email(&self) -> Option<&str> {
        self.owner.as_ref()?.email.as_deref()
    }

    /// The same with what is known of the owner's address.
    pub(super) fn with_confirmation(self, confirmation: Option<AddressView>) -> Self {
        Self { owner_email_confirmation: confirmation, ..self }
    }
}

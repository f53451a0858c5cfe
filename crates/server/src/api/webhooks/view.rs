//! API view of a webhook. It must never contain secrets, except a new signing secret.

use std::collections::BTreeMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::{lane::Ordering, retry::RetryConfig},
    event::{PayloadFormat, event_type::Pattern},
    metadata::Metadata,
    protection::{breaker::BreakerConfig, limiter::RateLimit},
    routing::filter::Filter,
    security::signature::{LiveSecret, Scheme, SignatureConfig, rotation_due_since},
    webhook::{
        ManagedBy, Owner, Webhook, WebhookState, caps::EffectiveLimits, confidential::EndpointAuth,
        status::WebhookStatus, uid::WebhookUid, verification::Verification,
    },
};
use serde::Serialize;
use utoipa::ToSchema;

use super::filter::FilterExpression;
use crate::{api::preferences::AddressView, app::webhook_status::WebhookFacts};

/// Placeholder for a confidential value. In a request it means that the stored value is kept.
pub(crate) const REDACTED: &str = "[redacted]";

/// Webhook: the subscription of a URL to event types.
#[derive(Serialize, ToSchema)]
pub(crate) struct WebhookView {
    /// Unique id of the webhook.
    #[schema(value_type = String)]
    id: WebhookId,
    /// Your own id of the webhook, usable wherever `id` is; null if it has none.
    #[schema(value_type = Option<String>)]
    uid: Option<WebhookUid>,
    /// Tenant that the webhook belongs to.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// URL that events are sent to.
    url: String,
    /// Description of the webhook.
    description: Option<String>,
    /// Owner of the webhook.
    owner: Option<Owner>,
    /// Confirmation status of the owner's email address; null without an address.
    owner_email_confirmation: Option<AddressView>,
    /// Event types that the webhook subscribes to.
    #[schema(value_type = Vec<String>)]
    events: Vec<Pattern>,
    /// Only events with these subjects are delivered; all if empty.
    subjects: Vec<String>,
    /// Only events whose `data` passes this filter are delivered; null for all.
    #[schema(value_type = Option<FilterExpression>)]
    filter: Option<Filter>,
    /// Format of the request body.
    payload_format: PayloadFormat,
    /// Signature settings.
    signature: SignatureConfig,
    /// Signing secret. Returned only when it is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    secret: Option<String>,
    /// Current signing secrets, newest first, without their values.
    secrets: Vec<SecretView>,
    /// Whether its deliveries arrive: `healthy` (also if it was never called), `degraded`, `failing`, `paused` (also
    /// pending verification, or with a circuit that was forced open) or `disabled`.
    status: WebhookStatus,
    /// State of the webhook.
    state: WebhookStateView,
    /// Whether `state` is `active`.
    active: bool,
    /// Reason why the webhook is disabled.
    disabled_reason: Option<String>,
    /// Retry settings that override the server defaults.
    retry_config: RetryConfig,
    /// Circuit breaker settings that override the server defaults.
    circuit_breaker_config: BreakerView,
    /// Rate limit; null for the server default.
    rate_limit: Option<RateLimit>,
    /// Ordering of deliveries.
    ordering_guarantee: Ordering,
    /// Maximum concurrent requests; null for the server default.
    max_in_flight: Option<u32>,
    /// Limits in effect if the operator's caps are lower than the settings of the webhook; omitted otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    effective_limits: Option<EffectiveLimitsView>,
    /// `tenant` or `operator`. Portal sessions cannot see webhooks of the operator.
    managed_by: ManagedBy,
    /// Custom headers sent with every request; values are redacted.
    headers: BTreeMap<String, String>,
    /// Authentication at the endpoint in addition to the signature; secret values are redacted.
    auth: Option<AuthView>,
    /// Whether the endpoint must echo a challenge before it receives events.
    verify_url: bool,
    /// Progress of the URL verification; null if none is pending.
    verification: Option<VerificationView>,
    /// Time since which rotation of the newest secret is due; null if it is not due.
    #[schema(value_type = Option<String>, format = DateTime)]
    rotation_due_since: Option<Time>,
    /// Your own metadata, as sent.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    metadata: Metadata,
    /// Time at which the webhook is disabled; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
    /// Time of the last successful attempt, to the minute if it is more than a day ago; null if there was none.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_success_at: Option<Time>,
    /// Time at which the webhook was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Time of the last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
}

/// What was decided about a webhook.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WebhookStateView {
    /// Events become deliveries, which are sent.
    Active,
    /// Events become deliveries, which wait until the webhook is resumed.
    Paused,
    /// Nothing but challenges is sent until the endpoint has echoed one.
    PendingVerification,
    /// Events become no deliveries.
    Disabled,
}

impl From<&WebhookState> for WebhookStateView {
    fn from(state: &WebhookState) -> Self {
        match state {
            WebhookState::Active => Self::Active,
            WebhookState::Paused => Self::Paused,
            WebhookState::PendingVerification(_) => Self::PendingVerification,
            WebhookState::Disabled(_) | WebhookState::Deleted => Self::Disabled,
        }
    }
}

/// Circuit breaker settings of a webhook.
#[derive(Serialize, ToSchema)]
pub(crate) struct BreakerView {
    #[serde(flatten)]
    config: BreakerConfig,
    /// Time until which the circuit is forced open; omitted if it is not, or has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime, nullable = false)]
    force_open_until: Option<Time>,
}

/// Limits in effect for a webhook whose settings exceed the operator's caps.
#[derive(Serialize, ToSchema)]
pub(crate) struct EffectiveLimitsView {
    /// Maximum concurrent requests.
    max_in_flight: u32,
    /// Rate limit; null if unlimited.
    rate_limit: Option<RateLimit>,
    /// Maximum number of attempts per delivery.
    max_attempts: u32,
    /// Minimum delay between two attempts, in milliseconds.
    min_retry_delay_ms: u64,
    /// Timeout of the first attempt, in milliseconds.
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

/// Progress of a URL verification.
#[derive(Serialize, ToSchema)]
pub(crate) struct VerificationView {
    /// Start of the verification, which ends without success after one day.
    #[schema(value_type = String, format = DateTime)]
    started_at: Time,
    /// Number of challenges sent.
    attempts: u32,
    /// Time of the next challenge.
    #[schema(value_type = String, format = DateTime)]
    next_attempt_at: Time,
    /// Error of the last challenge.
    last_error: Option<String>,
}

impl VerificationView {
    fn from_state(state: &WebhookState) -> Option<Self> {
        let WebhookState::PendingVerification(verification) = state else { return None };
        let Verification { started_at: since, attempts: tries, next, last_error, .. } = verification.clone();
        Some(Self { started_at: since, attempts: tries, next_attempt_at: next, last_error })
    }
}

/// Authentication at the endpoint, with redacted secrets.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum AuthView {
    /// HTTP basic authentication.
    Basic {
        /// User name.
        username: String,
        /// Redacted.
        password: &'static str,
    },
    /// Bearer token.
    Bearer {
        /// Redacted.
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

/// Signing secret without its value.
#[derive(Serialize, ToSchema)]
pub(crate) struct SecretView {
    /// Public key for verifying `v1a` signatures, `whpk_…`; omitted if the webhook does not use them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    public_key: Option<String>,
    /// Time at which the secret was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Time until which the secret signs; null until it is rotated.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
}

impl WebhookView {
    /// Builds the view of a webhook, without its secret.
    pub(super) fn new(
        webhook: Webhook,
        facts: WebhookFacts,
        last_success_at: Option<Time>,
        now: Time,
    ) -> Self {
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
            uid: spec.uid,
            tenant_id: webhook.tenant_id,
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
            rotation_due_since: rotation_due_since(&webhook.secrets, now),
            status: facts.status,
            state: WebhookStateView::from(&webhook.state),
            active: webhook.state == WebhookState::Active,
            disabled_reason: webhook.state.cancel_reason().map(str::to_owned),
            retry_config: spec.retry_config,
            circuit_breaker_config: BreakerView {
                config: spec.circuit_breaker_config,
                force_open_until: facts.forced_open_until,
            },
            rate_limit: spec.rate_limit,
            ordering_guarantee: spec.ordering_guarantee,
            max_in_flight: spec.max_in_flight,
            effective_limits: None,
            managed_by: spec.managed_by,
            headers: spec.headers.into_keys().map(|name| (name, REDACTED.to_owned())).collect(),
            auth: spec.auth.map(AuthView::from),
            verify_url: spec.verify_url,
            verification: VerificationView::from_state(&webhook.state),
            metadata: spec.metadata,
            expires_at: spec.expires_at,
            last_success_at,
            created_at: webhook.created_at,
            updated_at: webhook.updated_at,
        }
    }

    /// Adds the effective limits, if the operator's caps lower them.
    pub(super) fn capped(mut self, limits: Option<EffectiveLimits>) -> Self {
        self.effective_limits = limits.map(EffectiveLimitsView::from);
        self
    }

    /// Builds the view of a webhook with its newest secret, which is returned only once.
    pub(super) fn with_secret(
        webhook: Webhook,
        facts: WebhookFacts,
        last_success_at: Option<Time>,
        now: Time,
    ) -> Self {
        let secret = webhook.secrets.first().map(|live| live.secret.reveal());
        Self { secret, ..Self::new(webhook, facts, last_success_at, now) }
    }

    /// Returns the owner's email address.
    pub(super) fn owner_email(&self) -> Option<&str> {
        self.owner.as_ref()?.email.as_deref()
    }

    /// Adds the confirmation status of the owner's address.
    pub(super) fn with_confirmation(self, confirmation: Option<AddressView>) -> Self {
        Self { owner_email_confirmation: confirmation, ..self }
    }
}

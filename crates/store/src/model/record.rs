//! Outcomes of deliveries, to be recorded.

use redrive_core::delivery::outcome::{AttemptStatus, Outcome};
use std::sync::Arc;

use bytes::Bytes;
use redrive_core::{
    AttemptId, DeliveryId, FailureCategory, TenantId, Time, WebhookId,
    notification::Occurrence,
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::failures::FailingRule,
};

use crate::Epoch;

/// One attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Its id; a repeated outcome has the same one.
    pub id: AttemptId,
    /// 1 for the first attempt of a delivery.
    pub number: u32,
    /// Its result.
    pub status: AttemptStatus,
    /// Category of the failure.
    pub failure_category: Option<FailureCategory>,
    /// Status code of the response.
    pub http_status_code: Option<u16>,
    /// Error message for the webhook's owner.
    pub error_message: Option<String>,
    /// Custom headers of the request, as `name: value` lines with secrets redacted.
    pub custom_headers: Option<Bytes>,
    /// Headers of the response, as `name: value` lines.
    pub response_headers: Option<Bytes>,
    /// The first bytes of the response body.
    pub response_body_sample: Option<Bytes>,
    /// Duration of each phase.
    pub timings: PhaseTimings,
    /// Due time.
    pub scheduled_at: Time,
    /// Time at which it was sent.
    pub executed_at: Time,
    /// Due time of the next attempt, if there is one.
    pub next_retry_at: Option<Time>,
    /// State of the webhook's circuit when it was sent.
    pub circuit: CircuitState,
    /// Name of the node that sent it.
    pub worker: Arc<str>,
}

/// Duration of each phase in microseconds; `None` if the phase did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimings {
    /// DNS resolution.
    pub dns: Option<u32>,
    /// TCP connect.
    pub connect: Option<u32>,
    /// TLS handshake.
    pub tls: Option<u32>,
    /// From sending to the first byte of the response.
    pub ttfb: Option<u32>,
    /// Total.
    pub total: u32,
}

/// Outcome of a leased delivery, recorded in one transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeRecord {
    /// Epoch of the lease's owner.
    pub epoch: Epoch,
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// Its tenant.
    pub tenant_id: TenantId,
    /// Its webhook.
    pub webhook_id: WebhookId,
    /// The attempt; `None` if the delivery ended without one.
    pub attempt: Option<Attempt>,
    /// Next state of the delivery.
    pub outcome: Outcome,
    /// Whether the outcome is recorded even if the delivery's cancellation was requested. If false, the store returns
    /// `CancelRequested` instead. True if the decision considered the cancellation, and for an end without an attempt, which
    /// a cancellation does not change.
    pub record_despite_cancel: bool,
    /// Whether the delivery is cancelled because its webhook is inactive (`Webhook::is_inactive`). The store compares this
    /// with the webhook's row and records nothing if the row does not confirm it.
    pub requires_inactive_webhook: bool,
    /// Disables the webhook if set.
    pub disable: Option<DisableWebhook>,
    /// Other effects on the webhook.
    pub effects: WebhookEffects,
    /// Occurrences for notifications (delivery died, circuit changed, webhook disabled), each recorded only if it took
    /// place. Most outcomes have none.
    pub occurrences: Vec<Occurrence>,
    /// Time of the decision.
    pub at: Time,
}

/// Effects of an outcome on its webhook. Most outcomes have none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhookEffects {
    /// The circuit, if it made a transition.
    pub circuit: Option<Box<SavedCircuit>>,
    /// End of the pause after a 429.
    pub pause_until: Option<Time>,
    /// What it shows about the series of failures.
    pub failing: Option<FailingChange>,
}

/// What an attempt shows about the series of failures of its webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailingChange {
    /// It failed, and the series is not reported yet as far as the node knows.
    Failed {
        /// Start of the series as the node knows it; kept only if no earlier one is stored.
        since: Time,
        /// Category of the failure.
        category: FailureCategory,
        /// When the series is reported.
        rule: FailingRule,
    },
    /// It succeeded, and ends the series.
    Recovered,
}

/// Request to disable a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisableWebhook {
    /// Reason.
    pub reason: String,
    /// The URL that was called: a webhook whose URL has changed since is not disabled.
    pub url: String,
}

/// Result of recording an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordResult {
    /// It was recorded.
    Recorded {
        /// The tenant's new configuration version, if the webhook was disabled.
        config_version: Option<i64>,
    },
    /// It was already recorded before.
    AlreadyRecorded,
    /// Cancellation was requested concurrently, for this reason: decide again.
    CancelRequested(String),
    /// The outcome requires that the webhook is inactive (`Webhook::is_inactive`), and the stored webhook is not: it is
    /// active, paused or pending verification. The lease is unchanged.
    WebhookNotInactive,
    /// The epoch does not have the lease: another node has it, or the delivery has ended.
    NotLeased,
}

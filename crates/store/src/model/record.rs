//! What happened to a delivery, to be written down.

use std::sync::Arc;

use bytes::Bytes;
use redrive_core::{
    AttemptId, DeadReason, DeliveryId, FailureCategory, TenantId, Time, WebhookId, notification::Cause,
    protection::breaker::CircuitState, protection::breaker::SavedCircuit,
};

use crate::Epoch;

/// What one attempt was like.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Its id; a resend of the same outcome has the same one.
    pub id: AttemptId,
    /// 1 for the first attempt of a delivery.
    pub number: u32,
    /// How it ended.
    pub status: AttemptStatus,
    /// What kind of failure it was.
    pub failure_category: Option<FailureCategory>,
    /// The answer's status code.
    pub http_status_code: Option<u16>,
    /// What went wrong, in words for the webhook's owner.
    pub error_message: Option<String>,
    /// The custom headers sent along, as `name: value` lines with secrets redacted.
    pub custom_headers: Option<Bytes>,
    /// The answer's headers as `name: value` lines.
    pub response_headers: Option<Bytes>,
    /// The first bytes of the answer's body.
    pub response_body_sample: Option<Bytes>,
    /// How long each phase took.
    pub timings: PhaseTimings,
    /// When it was due.
    pub scheduled_at: Time,
    /// When it was sent.
    pub executed_at: Time,
    /// When the next one is due, if there is one.
    pub next_retry_at: Option<Time>,
    /// The state of the webhook's circuit when it was sent.
    pub circuit: CircuitState,
    /// Who sent it.
    pub worker: Arc<str>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptStatus {
    /// 2xx.
    Success,
    /// Failed, and the delivery goes on (or was cancelled meanwhile).
    Failed,
    /// Failed, and ended its delivery dead.
    Exhausted,
}

impl AttemptStatus {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Exhausted => "exhausted",
        }
    }
}

/// Microseconds that each phase took; none where the phase did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimings {
    /// Looking the name up.
    pub dns: Option<u32>,
    /// Connecting.
    pub connect: Option<u32>,
    /// The TLS handshake.
    pub tls: Option<u32>,
    /// From sending to the first byte of the answer.
    pub ttfb: Option<u32>,
    /// All of it.
    pub total: u32,
}

/// What is to be recorded about a leased delivery, in one transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The owner of the lease.
    pub epoch: Epoch,
    /// The delivery.
    pub delivery: DeliveryId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its webhook.
    pub webhook: WebhookId,
    /// The attempt; none when the delivery ended without one.
    pub attempt: Option<Attempt>,
    /// Where the delivery goes.
    pub next: Next,
    /// Whether the decision took a cancellation into account.
    pub knows_cancel: bool,
    /// Whether the delivery is cancelled because its webhook has ended (`Webhook::has_ended`). The store compares this
    /// with the webhook's row and records nothing if the row does not confirm it.
    pub requires_ended_webhook: bool,
    /// Whether the webhook is to be disabled.
    pub disable: Option<Disable>,
    /// What else follows for the webhook.
    pub effects: Effects,
    /// What owners are to be told of it, each as far as it took place: that the delivery died, that the circuit moved,
    /// that the webhook was disabled. Most outcomes have none.
    pub causes: Vec<Cause>,
    /// The time of the decision.
    pub at: Time,
}

/// What an outcome changes about its webhook, beside the delivery. Most change nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// The circuit, where it has moved.
    pub circuit: Option<Box<SavedCircuit>>,
    /// Until when the endpoint asked not to be called.
    pub hold_until: Option<Time>,
    /// Whether it has begun to fail, or stopped failing.
    pub failing: Option<Failing>,
}

/// A change in how a webhook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// It fails since then.
    Since(Time),
    /// It works again.
    Over,
}

/// That a webhook is to be disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disable {
    /// Why.
    pub reason: String,
    /// The URL that gave the cause: a webhook that has another by now is left alone.
    pub url: String,
}

/// Where a delivery goes after an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Over: the endpoint has it.
    Delivered,
    /// Waits for another attempt.
    Retry {
        /// When it is due.
        due: Time,
    },
    /// Over: given up.
    Dead {
        /// Why.
        reason: DeadReason,
    },
    /// Over: called off.
    Cancelled {
        /// Why.
        reason: String,
    },
}

/// What became of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Recorded now.
    Done {
        /// The tenant's new configuration version, where the webhook was disabled.
        config_version: Option<i64>,
    },
    /// It had been recorded before: a resend.
    Again,
    /// The delivery was cancelled meanwhile, for this reason: decide again.
    CancelRequested(String),
    /// The outcome requires that the webhook has ended, and the stored webhook has not. The lease is unchanged.
    WebhookNotEnded,
    /// The lease is somebody else's, or the delivery is over.
    Fenced,
}

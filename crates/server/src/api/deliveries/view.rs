//! API view of deliveries.

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, Time, WebhookId,
    delivery::{lane::Priority, recovery::Recoverability},
    dispatch::gate::WaitingOn,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::deliveries::DeliveryDetails;

/// A delivery: one event owed to one webhook, in one round.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeliveryView {
    /// Delivery id.
    #[schema(value_type = String)]
    id: DeliveryId,
    /// Tenant id.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Event id.
    #[schema(value_type = String)]
    event_id: EventId,
    /// Event type.
    event_type: String,
    /// Webhook id.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// Round, from 1; retries and replays of ended deliveries create the next one.
    round: u32,
    /// Status.
    status: DeliveryStatus,
    /// What it waits for while pending.
    waiting_on: Option<WaitingOn>,
    /// Earliest time of the next attempt, if known.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Time>,
    /// Explanation of what it waits for.
    waiting_explanation: Option<String>,
    /// Priority.
    priority: Priority,
    /// Number of attempts so far.
    attempt_count: u32,
    /// Maximum number of attempts of its webhook.
    max_attempts: Option<u32>,
    /// Status code of the last response.
    last_status_code: Option<u16>,
    /// Category of the last failure.
    failure_category: Option<FailureCategory>,
    /// Message of the last error.
    last_error: Option<String>,
    /// Reason why it is dead.
    dead_reason: Option<DeadReason>,
    /// Whether the last failure of a dead delivery requires no change before a retry: `true` after timeouts, 5xx, 429,
    /// network and DNS failures, `false` if the endpoint rejected the request. It predicts nothing; see
    /// `endpoint_successes_since`.
    likely_recoverable: Option<bool>,
    /// Explanation of `likely_recoverable`, and what to fix first if false.
    recovery_hint: Option<String>,
    /// Number of successful attempts of the webhook since the delivery died, of the last 24 hours. Null if it is not
    /// dead, and in listings other than `GET /v1/dlq`.
    endpoint_successes_since: Option<u64>,
    /// Reason of the cancellation.
    cancel_reason: Option<String>,
    /// Delivery of the previous round.
    #[schema(value_type = Option<String>)]
    replay_of: Option<DeliveryId>,
    /// Delivery of the next round.
    #[schema(value_type = Option<String>)]
    redriven_as: Option<DeliveryId>,
    /// Time at which it was purged from the dead letters.
    #[schema(value_type = Option<String>, format = DateTime)]
    purged_at: Option<Time>,
    /// Time of creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Time of delivery.
    #[schema(value_type = Option<String>, format = DateTime)]
    delivered_at: Option<Time>,
    /// Time at which it was marked dead.
    #[schema(value_type = Option<String>, format = DateTime)]
    dead_at: Option<Time>,
    /// Time of cancellation.
    #[schema(value_type = Option<String>, format = DateTime)]
    cancelled_at: Option<Time>,
}

impl From<DeliveryDetails> for DeliveryView {
    fn from(details: DeliveryDetails) -> Self {
        let delivery = details.delivery;
        let waiting = details.waiting.as_ref();
        let recovery = delivery.dead_reason.map(|reason| {
            Recoverability::assess(reason, delivery.failure_category, delivery.last_status_code)
        });
        let ended = |status| delivery.ended_at.filter(|_| delivery.status == status);
        Self {
            delivered_at: ended(DeliveryStatus::Delivered),
            dead_at: ended(DeliveryStatus::Dead),
            cancelled_at: ended(DeliveryStatus::Cancelled),
            id: delivery.id,
            tenant_id: delivery.tenant_id,
            event_id: delivery.event_id,
            event_type: delivery.event_type,
            webhook_id: delivery.webhook_id,
            round: delivery.round,
            status: delivery.status,
            waiting_on: waiting.map(|waiting| waiting.on),
            next_attempt_at: waiting.and_then(|waiting| waiting.until),
            waiting_explanation: details.waiting.map(|waiting| waiting.explanation),
            priority: delivery.priority,
            attempt_count: delivery.attempt_count,
            max_attempts: details.max_attempts,
            last_status_code: delivery.last_status_code,
            failure_category: delivery.failure_category,
            last_error: delivery.last_error,
            likely_recoverable: recovery.as_ref().map(|recovery| recovery.likely),
            recovery_hint: recovery.map(|recovery| recovery.hint),
            endpoint_successes_since: details.endpoint_successes.map(|successes| successes.count),
            dead_reason: delivery.dead_reason,
            cancel_reason: delivery.cancel_reason,
            replay_of: delivery.replay_of,
            redriven_as: delivery.redriven_as,
            purged_at: delivery.purged_at,
            created_at: delivery.created_at,
        }
    }
}

//! Deliveries as people see them.

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, Time, WebhookId,
    delivery::lane::Priority, delivery::recovery::Recovery, dispatch::gate::WaitingOn,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::deliveries::Seen;

/// A delivery: one event owed to one webhook, in one round.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeliveryView {
    /// Its id.
    #[schema(value_type = String)]
    id: DeliveryId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// The event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// The event's type.
    event_type: String,
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// 1 for the first, counted up by retries and replays of ended ones.
    round: u32,
    /// Where it stands.
    status: DeliveryStatus,
    /// What it waits for, while it is pending.
    waiting_on: Option<WaitingOn>,
    /// When it may go, where that is known.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Time>,
    /// What it waits for, in words.
    waiting_explanation: Option<String>,
    /// How urgent it is.
    priority: Priority,
    /// Attempts made.
    attempt_count: u32,
    /// Attempts that its webhook allows.
    max_attempts: Option<u32>,
    /// The status code of the last answer.
    last_status_code: Option<u16>,
    /// What kind of failure the last one was.
    failure_category: Option<FailureCategory>,
    /// What went wrong last, in words.
    last_error: Option<String>,
    /// Why it was given up.
    dead_reason: Option<DeadReason>,
    /// Whether redriving a dead one, with nothing else changed, may well succeed.
    likely_recoverable: Option<bool>,
    /// Why so, and what to do first if not, in words.
    recovery_hint: Option<String>,
    /// Why it was cancelled.
    cancel_reason: Option<String>,
    /// The delivery that this one repeats.
    #[schema(value_type = Option<String>)]
    replay_of: Option<DeliveryId>,
    /// The delivery that repeats this one.
    #[schema(value_type = Option<String>)]
    redriven_as: Option<DeliveryId>,
    /// When it was taken off the list of dead letters.
    #[schema(value_type = Option<String>, format = DateTime)]
    purged_at: Option<Time>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When it was delivered.
    #[schema(value_type = Option<String>, format = DateTime)]
    delivered_at: Option<Time>,
    /// When it was given up.
    #[schema(value_type = Option<String>, format = DateTime)]
    dead_at: Option<Time>,
    /// When it was cancelled.
    #[schema(value_type = Option<String>, format = DateTime)]
    cancelled_at: Option<Time>,
}

impl From<Seen> for DeliveryView {
    fn from(seen: Seen) -> Self {
        let delivery = seen.delivery;
        let waiting = seen.waiting.as_ref();
        let recovery = delivery
            .dead_reason
            .map(|reason| Recovery::of(reason, delivery.failure_category, delivery.last_status_code));
        let ended = |status| delivery.ended_at.filter(|_| delivery.status == status);
        Self {
            delivered_at: ended(DeliveryStatus::Delivered),
            dead_at: ended(DeliveryStatus::Dead),
            cancelled_at: ended(DeliveryStatus::Cancelled),
            id: delivery.id,
            tenant_id: delivery.tenant,
            event_id: delivery.event,
            event_type: delivery.event_type,
            webhook_id: delivery.webhook,
            round: delivery.round,
            status: delivery.status,
            waiting_on: waiting.map(|waiting| waiting.on),
            next_attempt_at: waiting.and_then(|waiting| waiting.until),
            waiting_explanation: seen.waiting.map(|waiting| waiting.explanation),
            priority: delivery.priority,
            attempt_count: delivery.attempt_count,
            max_attempts: seen.max_attempts,
            last_status_code: delivery.last_status_code,
            failure_category: delivery.failure_category,
            last_error: delivery.last_error,
            likely_recoverable: recovery.as_ref().map(|recovery| recovery.likely),
            recovery_hint: recovery.map(|recovery| recovery.hint),
            dead_reason: delivery.dead_reason,
            cancel_reason: delivery.cancel_reason,
            replay_of: delivery.replay_of,
            redriven_as: delivery.redriven_as,
            purged_at: delivery.purged_at,
            created_at: delivery.created_at,
        }
    }
}

//! Stored events, deliveries and attempts.

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, Time, WebhookId,
    delivery::lane::Priority,
    event::{Event, PayloadFormat},
};

use crate::Attempt;

/// An event with its sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// The event.
    pub event: Event,
    /// Its position in the tenant's sequence.
    pub sequence_number: i64,
    /// The event that it is an edited copy of.
    pub edited_from: Option<EventId>,
    /// Time at which its payload and metadata were erased.
    pub erased_at: Option<Time>,
}

/// A delivery as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// Its tenant.
    pub tenant_id: TenantId,
    /// The event.
    pub event_id: EventId,
    /// The event's type.
    pub event_type: String,
    /// The webhook.
    pub webhook_id: WebhookId,
    /// Round: 1 for the first delivery of this event to this webhook, incremented by retries and replays.
    pub round: u32,
    /// Status; `Pending` also while it is leased.
    pub status: DeliveryStatus,
    /// Number of attempts so far.
    pub attempt_count: u32,
    /// Status code of the last response.
    pub last_status_code: Option<u16>,
    /// Category of the last failure.
    pub failure_category: Option<FailureCategory>,
    /// Last error.
    pub last_error: Option<String>,
    /// Reason why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// Reason why it was cancelled.
    pub cancel_reason: Option<String>,
    /// Creation time.
    pub created_at: Time,
    /// End time.
    pub ended_at: Option<Time>,
    /// The delivery that this one repeats.
    pub replay_of: Option<DeliveryId>,
    /// The delivery that repeats this one.
    pub redriven_as: Option<DeliveryId>,
    /// Time at which it was purged from the dead letters.
    pub purged_at: Option<Time>,
    /// Its priority.
    pub priority: Priority,
    /// Format of the request body.
    pub format: PayloadFormat,
    /// Due time while it waits in the store; `None` while it is leased.
    pub due: Option<Time>,
    /// The previous delivery of its order, which must end before this one may start.
    pub predecessor: Option<DeliveryId>,
}

/// An attempt with its delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// The event.
    pub event_id: EventId,
    /// The webhook.
    pub webhook_id: WebhookId,
    /// The attempt.
    pub attempt: Attempt,
}

/// Webhooks that a listing covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// All webhooks of the tenant.
    #[default]
    All,
    /// Webhooks that the tenant manages: operator-managed ones, and what belongs to them, are left out.
    TenantManaged,
}

impl Visibility {
    /// Returns whether operator-managed webhooks are left out.
    pub fn is_restricted(self) -> bool {
        self == Self::TenantManaged
    }
}

/// Requested page of a listing, newest first.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<C> {
    /// Only items after this one.
    pub after: Option<C>,
    /// Number of items to skip first.
    pub offset: u32,
    /// Maximum number of items.
    pub limit: u32,
}

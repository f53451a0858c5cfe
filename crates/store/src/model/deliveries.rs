//! What is stored of events, deliveries and attempts.

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, Time, WebhookId,
    delivery::lane::Priority,
    event::{Event, PayloadFormat},
};

use crate::Attempt;

/// An event with its place in the tenant's sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// The event.
    pub event: Event,
    /// Its place.
    pub sequence_number: i64,
    /// When its payload was erased; the event has neither that nor metadata since.
    pub erased_at: Option<Time>,
}

/// A delivery as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The event.
    pub event: EventId,
    /// The event's type.
    pub event_type: String,
    /// The webhook.
    pub webhook: WebhookId,
    /// 1 for the first delivery of this event to this webhook, counted up by retries and replays.
    pub round: u32,
    /// Where it stands; `Pending` also while it is leased.
    pub status: DeliveryStatus,
    /// Attempts made so far.
    pub attempt_count: u32,
    /// The status code of the last answer.
    pub last_status_code: Option<u16>,
    /// What kind of failure the last one was.
    pub failure_category: Option<FailureCategory>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// Why it was cancelled.
    pub cancel_reason: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// The delivery that this one repeats.
    pub replay_of: Option<DeliveryId>,
    /// The delivery that repeats this one.
    pub redriven_as: Option<DeliveryId>,
    /// When it was taken off the list of dead letters.
    pub purged_at: Option<Time>,
    /// How urgent it is.
    pub priority: Priority,
    /// What its body looks like.
    pub format: PayloadFormat,
    /// When it is due, while it waits in the store; none when a node has it.
    pub due: Option<Time>,
    /// The one that must be over before this one may start, while it waits in an order behind it.
    pub behind: Option<DeliveryId>,
}

/// An attempt with the delivery it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    /// The delivery.
    pub delivery: DeliveryId,
    /// The event.
    pub event: EventId,
    /// The webhook.
    pub webhook: WebhookId,
    /// The attempt.
    pub attempt: Attempt,
}

/// Which webhooks a listing covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// All of the tenant.
    #[default]
    All,
    /// Those that the tenant manages: webhooks that the operator manages, and what is about them, are left out.
    TenantManaged,
}

impl Visibility {
    /// Whether webhooks that the operator manages are left out.
    pub fn is_restricted(self) -> bool {
        self == Self::TenantManaged
    }
}

/// Which part of a listing to give, newest first.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<C> {
    /// Only what comes after this one in the listing.
    pub after: Option<C>,
    /// Leave out so many first.
    pub offset: u32,
    /// At most so many.
    pub limit: u32,
}

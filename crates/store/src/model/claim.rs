//! Claims of waiting deliveries.

use std::sync::Arc;

use redrive_core::{
    DeliveryId, Time, WebhookId,
    delivery::lane::Lane,
    event::{Event, PayloadFormat},
};

/// One queue of one webhook.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    /// The webhook.
    pub webhook_id: WebhookId,
    /// The queue.
    pub lane: Lane,
}

/// A lane to claim from, with its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneCapacity {
    /// The lane.
    pub key: LaneKey,
    /// Maximum number of deliveries to claim.
    pub max_deliveries: usize,
    /// Whether no other node may send to the webhook at the same time.
    pub exclusive: bool,
}

impl LaneCapacity {
    /// Creates a claim request for a lane that other nodes may also send from.
    pub fn new(key: LaneKey, capacity: usize) -> Self {
        Self { key, max_deliveries: capacity, exclusive: false }
    }
}

/// Lanes with due deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueLanes {
    /// The lanes, longest overdue first.
    pub lanes: Vec<LaneKey>,
    /// Next time at which a lane becomes due.
    pub next_wake: Option<Time>,
}

/// Claimed deliveries of one lane.
#[derive(Clone, Debug)]
pub struct LaneClaim {
    /// The lane.
    pub key: LaneKey,
    /// The deliveries in the lane's order, now leased to the caller.
    pub deliveries: Vec<ClaimedDelivery>,
    /// Whether more is due. If so, the lane stays claimed by the caller, which must claim from it again.
    pub has_more_due: bool,
}

/// A claimed delivery with all data needed to send it.
#[derive(Clone, Debug)]
pub struct ClaimedDelivery {
    /// Its id.
    pub id: DeliveryId,
    /// Its webhook.
    pub webhook_id: WebhookId,
    /// The event.
    pub event: Arc<Event>,
    /// Format of the request body.
    pub format: PayloadFormat,
    /// Number of attempts so far.
    pub attempt_count: u32,
    /// Creation time.
    pub created_at: Time,
    /// Due time.
    pub due: Time,
    /// Position in the order of publishing.
    pub seq: i64,
    /// How often its lease ended without an outcome because its node died, its task panicked, or its outcome could not be
    /// stored.
    pub abnormal_releases: u32,
    /// How often of these it was known to be sent.
    pub crash_count: u32,
}

/// A delivery named by a ticket, and the lane where it should wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketEntry {
    /// The lane. If the delivery waits in another lane, it was attempted after the ticket was issued and is skipped.
    pub key: LaneKey,
    /// The delivery.
    pub delivery_id: DeliveryId,
}

/// Progress of a rescue, an expiry or a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchProgress {
    /// Deliveries moved in this step.
    pub changed: usize,
    /// Whether nothing is left.
    pub finished: bool,
}

/// Leases, claimed lanes and assignments of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Deliveries leased to it, by id.
    pub leases: Vec<DeliveryId>,
    /// Lanes that it has claimed.
    pub lanes: Vec<LaneKey>,
    /// Webhooks that are assigned to it.
    pub assignments: Vec<WebhookId>,
}

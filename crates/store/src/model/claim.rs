//! Waiting work as it is handed out.

use std::sync::Arc;

use redrive_core::{DeliveryId, Time, WebhookId, delivery::lane::Lane, event::Event, event::PayloadFormat};

/// One queue of one webhook.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    /// The webhook.
    pub webhook: WebhookId,
    /// Which of its queues.
    pub lane: Lane,
}

/// A lane to claim from, and how many deliveries there is room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRoom {
    /// The lane.
    pub key: LaneKey,
    /// At most so many.
    pub room: usize,
    /// Whether nobody else may send to the webhook meanwhile.
    pub alone: bool,
}

impl LaneRoom {
    /// So much room for a lane, whoever else sends to its webhook.
    pub fn new(key: LaneKey, room: usize) -> Self {
        Self { key, room, alone: false }
    }
}

/// The lanes that have something due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueLanes {
    /// The longest overdue first.
    pub lanes: Vec<LaneKey>,
    /// When to look again if nothing else happens.
    pub next_wake: Option<Time>,
}

/// What was claimed from one lane.
#[derive(Clone, Debug)]
pub struct LaneClaim {
    /// The lane.
    pub key: LaneKey,
    /// The deliveries in the lane's order; leased to the caller now.
    pub deliveries: Vec<Claimed>,
    /// Whether more is due. The lane is then held by the caller, who must claim from it again.
    pub more: bool,
}

/// A delivery that was claimed, with all that is needed to send it.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its id.
    pub id: DeliveryId,
    /// Its webhook.
    pub webhook: WebhookId,
    /// The event.
    pub event: Arc<Event>,
    /// What its body looks like.
    pub format: PayloadFormat,
    /// Attempts made so far.
    pub attempt_count: u32,
    /// When it was made.
    pub created_at: Time,
    /// When it was due.
    pub due: Time,
    /// Its place in the order of publishing.
    pub seq: i64,
    /// How often its lease was rescued from a dead node.
    pub rescues: u32,
    /// How often a node died while it was known to be sending it.
    pub deaths: u32,
}

/// A delivery that a ticket names, and where it should wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The lane. If it waits elsewhere, it has been tried since, and is not meant.
    pub key: LaneKey,
    /// The delivery.
    pub delivery: DeliveryId,
}

/// How far a rescue or a sweep got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Deliveries moved in this step.
    pub moved: usize,
    /// Whether nothing is left.
    pub finished: bool,
}

/// What an epoch owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Deliveries that are leased to it, in the order of their ids.
    pub leases: Vec<DeliveryId>,
    /// Lanes that it holds.
    pub lanes: Vec<LaneKey>,
    /// Webhooks that are assigned to it.
    pub assignments: Vec<WebhookId>,
}

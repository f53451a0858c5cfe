//! Delivering again, or no more.

use redrive_core::{
    DeliveryId, DeliveryStatus, WebhookId, delivery::lane::Lane, delivery::lane::Priority,
    event::PayloadFormat,
};

/// What became of a request to deliver something again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redriven {
    /// It was still pending and is due now.
    DueNow(DeliveryId),
    /// It was over; a new round was made.
    NewRound(DeliveryId),
    /// It was redriven before: this is the round that it became.
    AlreadyAs(DeliveryId),
    /// There is nothing to send any more: the payload was erased.
    Erased,
    /// There is no such delivery.
    Missing,
}

/// A new round for one webhook.
#[derive(Clone, Debug)]
pub struct NewRound {
    /// The new delivery's id.
    pub id: DeliveryId,
    /// The webhook.
    pub webhook: WebhookId,
    /// The body's format.
    pub format: PayloadFormat,
    /// Which of the webhook's queues it belongs to. In an order it goes to the back.
    pub lane: Lane,
}

/// What became of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// New rounds were made.
    Done(Vec<DeliveryId>),
    /// This delivery of the event is still pending.
    StillPending(DeliveryId),
    /// There is nothing to send any more: the payload was erased.
    Erased,
    /// There is no such event.
    Missing,
}

/// What became of a cancellation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled.
    Done,
    /// A node has it: it will be cancelled unless the request under way succeeds.
    Requested,
    /// It was over before.
    Over(DeliveryStatus),
    /// There is no such delivery.
    Missing,
}

/// How the new round of a delivery is made, should it be over; see [`NewRound`].
#[derive(Clone, Debug)]
pub struct Again {
    /// The id of the new round.
    pub id: DeliveryId,
    /// The lane of the new round.
    pub lane: Lane,
    /// How urgent it is from now on; none for as urgent as it was.
    pub priority: Option<Priority>,
    /// Whether to leave it alone if it was taken off the list of dead letters.
    pub unless_purged: bool,
}

//! Retry, replay and cancellation.

use redrive_core::{
    DeliveryId, DeliveryStatus, WebhookId,
    delivery::lane::{Lane, Priority},
    event::PayloadFormat,
};

/// Result of retrying a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveResult {
    /// It was still pending: due now if it was waiting, unchanged if it was leased.
    DueNow(DeliveryId),
    /// It had ended; a new round was created.
    NewRound(DeliveryId),
    /// It was already redriven as this round.
    AlreadyRedriven(DeliveryId),
    /// The payload was erased.
    Erased,
    /// There is no such delivery.
    NotFound,
}

/// A new round for one webhook.
#[derive(Clone, Debug)]
pub struct NewRound {
    /// The new delivery's id.
    pub id: DeliveryId,
    /// The webhook.
    pub webhook_id: WebhookId,
    /// Format of the request body.
    pub format: PayloadFormat,
    /// Its lane. In an ordered lane it goes to the end.
    pub lane: Lane,
}

/// Result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayResult {
    /// New rounds were created.
    Done(Vec<DeliveryId>),
    /// This delivery of the event is still pending.
    StillPending(DeliveryId),
    /// The payload was erased.
    Erased,
    /// There is no such event.
    NotFound,
}

/// Result of a cancellation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelResult {
    /// It is cancelled.
    Done,
    /// It is leased: it will be cancelled unless the request in flight succeeds.
    Requested,
    /// It had already ended.
    AlreadyEnded(DeliveryStatus),
    /// There is no such delivery.
    NotFound,
}

/// Options for the new round of a delivery that has ended; see [`NewRound`].
#[derive(Clone, Debug)]
pub struct RedriveOptions {
    /// The id of the new round.
    pub id: DeliveryId,
    /// The lane of the new round.
    pub lane: Lane,
    /// New priority; `None` keeps the priority.
    pub priority: Option<Priority>,
    /// Whether to skip it if it was purged from the dead letters.
    pub unless_purged: bool,
}

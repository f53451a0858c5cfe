//! Events to be published.

use std::sync::Arc;

use redrive_core::{
    DeliveryId, EventId, Time, WebhookId,
    delivery::lane::Lane,
    event::{Event, PayloadFormat},
};

use crate::{Epoch, SequencePosition};

/// An event to be stored together with its fan-out.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The event.
    pub event: Arc<Event>,
    /// The event that it is an edited copy of.
    pub edited_from: Option<EventId>,
    /// Its reservation of an idempotency key; `None` if the publisher gave no key.
    pub idempotency: Option<IdempotencyReservation>,
    /// The configuration version that the fan-out was computed from.
    pub config_version: i64,
    /// Epoch of the node that will send the deliveries created as leased.
    pub epoch: Epoch,
    /// One delivery for each webhook that receives it.
    pub deliveries: Vec<NewDelivery>,
    /// Its position in a sequence of publishes; `None` if it is published alone.
    pub position: Option<SequencePosition>,
}

/// A reservation of an idempotency key.
#[derive(Clone, Debug)]
pub struct IdempotencyReservation {
    /// Hash over type, subject, source and raw data: equal hashes mean the same body.
    pub body_hash: [u8; 32],
    /// Time from which the key may be used again.
    pub expires_at: Time,
    /// The confirmed time: a key that expires later is still in use.
    pub confirmed_now: Time,
}

/// A delivery to be created.
#[derive(Clone, Debug)]
pub struct NewDelivery {
    /// Its id, which contains the event's time.
    pub id: DeliveryId,
    /// Its webhook.
    pub webhook_id: WebhookId,
    /// Format of the request body, fixed at creation.
    pub format: PayloadFormat,
    /// Its lane.
    pub lane: Lane,
    /// Its initial state. An ordered delivery always starts as waiting.
    pub initial_state: InitialState,
}

/// Initial state of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// Leased to the publishing node, which has capacity for it and sends it without a claim.
    Leased,
    /// Waiting in the store until this time.
    Waiting(Time),
}

/// Result of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishResult {
    /// Stored.
    New {
        /// Its position in the tenant's sequence.
        sequence_number: i64,
    },
    /// The key was used before for the same body.
    Duplicate {
        /// Id of the first event.
        event_id: EventId,
    },
    /// The key was used before for another body.
    KeyReused {
        /// The event that has the key.
        event_id: EventId,
    },
    /// The tenant's configuration has changed since the fan-out was computed: compute it again.
    ConfigChanged,
    /// The publishing node's epoch has ended: it must not get new leases.
    Fenced,
    /// There is no such tenant.
    NoTenant,
}

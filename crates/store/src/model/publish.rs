//! Events on their way in.

use std::sync::Arc;

use redrive_core::{
    DeliveryId, EventId, Time, WebhookId, delivery::lane::Lane, event::Event, event::PayloadFormat,
};

use crate::{Epoch, OrderedPosition};

/// An event to be stored together with everything it fans out to.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The event.
    pub event: Arc<Event>,
    /// Its claim on an idempotency key; none when the publisher gave no key.
    pub claim: Option<KeyClaim>,
    /// The version of the tenant's webhooks that the fan-out was made from.
    pub config_version: i64,
    /// The node that will send what is born leased.
    pub epoch: Epoch,
    /// One delivery for each webhook that wants it.
    pub deliveries: Vec<NewDelivery>,
    /// The order that it must be stored in; none if it may be stored whenever it is its turn.
    pub order: Option<OrderedPosition>,
}

/// A hold on an idempotency key.
#[derive(Clone, Debug)]
pub struct KeyClaim {
    /// What "the same body" means: a hash over type, subject, source and raw data.
    pub body_hash: [u8; 32],
    /// From when on the key may be used anew.
    pub expires_at: Time,
    /// The confirmed time: a key that expires later is still held.
    pub confirmed_now: Time,
}

/// A delivery to be made.
#[derive(Clone, Debug)]
pub struct NewDelivery {
    /// Its id, which takes the event's time.
    pub id: DeliveryId,
    /// Who it is owed to.
    pub webhook: WebhookId,
    /// What its body looks like, from now on.
    pub format: PayloadFormat,
    /// Which of the webhook's queues it belongs to.
    pub lane: Lane,
    /// How it is born. What waits in an order is always born waiting.
    pub birth: Birth,
}

/// Where a new delivery goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    /// Owned by the publishing node, which has room for it and sends it without asking again.
    Leased,
    /// Waiting in the store until this time.
    Waiting(Time),
}

/// What became of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// Stored, with its place in the tenant's sequence.
    New {
        /// The place.
        sequence_number: i64,
    },
    /// The key was used before for the same body: this is the first event.
    Duplicate {
        /// Its id.
        event: EventId,
    },
    /// The key was used before for another body.
    KeyReused {
        /// The event that has the key.
        event: EventId,
    },
    /// The tenant's webhooks have changed since the fan-out was made: make it again.
    ConfigChanged,
    /// The publishing node's epoch is over: it may not take anything on.
    Fenced,
    /// There is no such tenant.
    NoTenant,
}

//! Bulk operations, and what they work on.

use std::collections::BTreeMap;

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, FailureCategory, OperationId, TenantId, Time, WebhookId,
    delivery::bulk_operation::{Among, Candidate, OperationKind, OperationState, Selection},
    delivery::lane::Priority,
};
use serde::{Deserialize, Serialize};

use crate::{Again, Epoch, NewRound};

/// A bulk operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What it was asked to do.
    pub order: OperationOrder,
    /// Where it stands.
    pub state: OperationState,
    /// Who asked for it, in words.
    pub created_by: String,
    /// When it was asked for.
    pub created_at: Time,
    /// When it may begin.
    pub start_at: Time,
    /// When it began: what has come since is none of its business.
    pub began_at: Option<Time>,
    /// When it was over.
    pub finished_at: Option<Time>,
    /// When it last got on, or was turned.
    pub updated_at: Time,
    /// The node that carries it on.
    pub held_by: Option<Epoch>,
    /// How far it has looked; none before the first.
    pub cursor: Option<WalkCursor>,
    /// What it has done so far.
    pub tally: Tally,
    /// When it was last begun or taken up, and how much was done by then: what its rate is told from.
    pub pace_from: Option<(Time, u64)>,
}

/// What an operation was asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationOrder {
    /// What is done to each.
    pub kind: OperationKind,
    /// Where they are looked for.
    pub among: Among,
    /// Which ones.
    pub selection: Selection,
    /// The most in a second.
    pub rate: Option<u32>,
    /// How urgent they are from then on; none for as urgent as they were.
    pub priority: Option<Priority>,
}

/// The figures of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many there were when it began; none until they are counted.
    pub total: Option<u64>,
    /// How many something was done with.
    pub done: u64,
    /// How many needed it no more when their turn came.
    pub skipped: u64,
    /// How many of those queued have arrived.
    pub delivered: u64,
    /// How many of those queued are dead again.
    pub failed: u64,
    /// How many of those queued ended in any other way.
    pub cancelled: u64,
    /// How those that are dead again failed, by kind of failure.
    pub errors: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts one that was queued and has ended; one that is not there any more says nothing about how.
    pub(crate) fn note(&mut self, status: Option<DeliveryStatus>, category: Option<FailureCategory>) {
        match status {
            Some(DeliveryStatus::Delivered) => self.delivered += 1,
            Some(DeliveryStatus::Dead) => {
                self.failed += 1;
                let kind = category.map_or("none", FailureCategory::name);
                *self.errors.entry(kind.to_owned()).or_default() += 1;
            }
            _ => self.cancelled += 1,
        }
    }
}

/// A place in a walk from the oldest on: an event, and a delivery of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalkCursor {
    /// The event.
    pub event: EventId,
    /// The delivery; none where events are walked.
    pub delivery: Option<DeliveryId>,
}

/// Where to look for deliveries, from the oldest on.
#[derive(Clone, Debug)]
pub struct Walk {
    /// What is looked through.
    pub among: Among,
    /// Only those of this webhook.
    pub webhook: Option<WebhookId>,
    /// Only of events from this time on.
    pub from: Option<Time>,
    /// Only of events before this time.
    pub to: Option<Time>,
    /// Only what comes after this one.
    pub after: Option<WalkCursor>,
    /// At most so many are looked at.
    pub limit: usize,
}

/// What was come upon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Deliveries, each with its place.
    pub found: Vec<(WalkCursor, Candidate)>,
    /// The place to go on from; none if there is nothing more.
    pub next: Option<WalkCursor>,
}

/// What of an event tells whether a webhook wants it, but for its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventHead {
    /// The event.
    pub id: EventId,
    /// Its type.
    pub event_type: String,
    /// What it is about.
    pub subject: Option<String>,
    /// How urgent it is.
    pub priority: Priority,
}

/// One thing to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// Deliver again.
    Retry(DeliveryId, Again),
    /// Call off, for this reason.
    Cancel(DeliveryId, String),
    /// Take off the list of dead letters.
    Purge(DeliveryId),
    /// Deliver an event to a webhook that has had none of it.
    Send(EventId, NewRound, Priority),
}

/// A step of an operation: done as a whole or not at all, and only by who holds it while it runs.
#[derive(Clone, Debug)]
pub struct OperationStep {
    /// The operation.
    pub id: OperationId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Who holds it.
    pub epoch: Epoch,
    /// What to do.
    pub tasks: Vec<Task>,
    /// How many of those looked at need nothing.
    pub passed: usize,
    /// Up to where everything has been looked at then.
    pub cursor: Option<WalkCursor>,
    /// What the step leads to, if not to another one.
    pub then: Option<OperationState>,
    /// The time.
    pub at: Time,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// Done, all of it.
    Done {
        /// How many tasks had an effect.
        done: usize,
        /// Deliveries that a node has, and is to call off.
        to_call_off: Vec<(WebhookId, DeliveryId)>,
    },
    /// Nothing was done: somebody else holds it, or a person has turned it.
    Lost,
}

/// How far it is known how an operation's deliveries went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The place to go on from; none if all have been looked at.
    pub next: Option<DeliveryId>,
    /// How many of those looked at are still under way.
    pub open: usize,
    /// How many have ended since they were last looked at.
    pub ended: usize,
}

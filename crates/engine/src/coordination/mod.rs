//! What all senders of a webhook must agree on: its circuit, its tokens, its holds.
//!
//! Asked in batches, once for everything that is about to be sent. On one node the answers are in its memory
//! (`local`). Where several nodes share a store, each learns from it what the others have found out, and what has to be
//! counted in one place is counted where the webhook is at home. Where they share a Redis as well, it decides for all of
//! them (`redis`), and what is in memory is a picture of that (`image`).

#[cfg(test)]
mod conformance;
mod entry;
mod local;
pub(crate) mod redis;
mod redis_mirror;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use redrive_core::{
    EventId, TenantId, Time, WebhookId,
    dispatch::gate::{Scope, WaitingOn},
    protection::breaker::{Call, CircuitState, CircuitView, Forced, SavedCircuit, Transition},
};
use redrive_store::Failing;

pub(crate) use local::Local;
pub(crate) use redis_mirror::Says;

use crate::registry::Hook;

/// One delivery that is about to be sent.
pub(crate) struct Ask<'a> {
    pub(crate) hook: &'a Hook,
    pub(crate) event: EventId,
    /// How long its answer may take.
    pub(crate) patience: Duration,
}

/// Whether it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// Send it now.
    Go {
        /// The ticket of a probe of a half-open circuit.
        probe: Option<u64>,
        circuit: CircuitState,
    },
    /// Not now, nor anything else in this scope.
    Wait {
        /// Until when; none where nobody knows.
        until: Option<Time>,
        why: WaitingOn,
        scope: Scope,
    },
    /// The circuit is half open, and this one had its turn: others may be probes.
    Probed {
        /// When the verdict comes at the latest.
        until: Time,
    },
    /// The circuit is half open, and all its probes are out.
    NoProbe,
}

/// What came of a request.
#[derive(Clone, Copy)]
pub(crate) struct Report {
    pub(crate) call: Call,
    /// The ticket it went with.
    pub(crate) probe: Option<u64>,
    /// Whether the endpoint took it; none where the endpoint had no say.
    pub(crate) success: Option<bool>,
    /// Until when the endpoint asked not to be called.
    pub(crate) hold_until: Option<Time>,
}

/// What a report changed.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) circuit: Option<Moved>,
    pub(crate) failing: Option<Failing>,
    /// Since when nothing but failures came back.
    pub(crate) failing_since: Option<Time>,
    /// How many deliveries a half-open circuit wants to see at once, all told.
    pub(crate) trickle: Option<usize>,
}

/// A circuit that has moved, and what to store of it.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(crate) webhook: WebhookId,
    pub(crate) tenant: TenantId,
    pub(crate) transition: Transition,
    pub(crate) saved: SavedCircuit,
    pub(crate) trickle: Option<usize>,
}

/// What time has done.
#[derive(Default)]
pub(crate) struct Ticked {
    /// The circuits that moved.
    pub(crate) moved: Vec<(Arc<Hook>, Moved)>,
    /// Those that are half open, and may want to see more deliveries.
    pub(crate) half_open: Vec<Arc<Hook>>,
    /// Those that Redis has to be asked about.
    pub(crate) look: Vec<Arc<Hook>>,
}

/// What a person wants of a circuit.
#[derive(Clone, Debug)]
pub enum CircuitAction {
    /// Closed, with an empty window, as if nothing had happened.
    Reset,
    /// Open or closed whatever happens, for some time or until further notice.
    Force(Forced),
}

/// What came of a look into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learnt {
    /// What is known here may be newer: ask again.
    Unsure,
    /// Redis knows better: ask it.
    Elsewhere,
    /// Nothing that matters.
    Nothing,
    /// Nothing may be sent until then.
    Blocked(Time),
    /// Nothing holds it back any more, or only so that few may go at once.
    Free(Option<usize>),
}

/// What holds a webhook back, for people to read.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) circuit: CircuitView,
    pub(crate) held_until: Option<Time>,
    pub(crate) failing_since: Option<Time>,
    /// When the next token of the webhook, of its tenant and of everybody is due; none if there is one.
    pub(crate) tokens: [Option<Time>; 3],
}

/// How many circuits are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) open: usize,
    pub(crate) half_open: usize,
    pub(crate) open_over_an_hour: usize,
}

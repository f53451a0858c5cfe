//! What all senders of a webhook must agree on: its circuit, its tokens, its holds.
//!
//! Asked in batches, once for everything that is about to be sent. The answers are in memory. Where several
//! nodes share a store, each learns from it what the others have found out, and what has to be counted in one
//! place is counted where the webhook is at home.

mod known;
mod local;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use redrive_core::{
    EventId, TenantId, Time, WebhookId,
    breaker::{Call, CircuitState, CircuitView, Forced, SavedCircuit, Transition},
    gate::{Scope, WaitingOn},
};
use redrive_store::{Failing, Runtime};

pub(crate) use local::Local;

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

/// See the module.
pub(crate) trait Coordination: Send + Sync {
    /// Which of these may be sent now: one grant for each, in their order. A grant takes its tokens.
    fn admit(&self, asks: &[Ask<'_>], now: Time) -> Vec<Grant>;
    /// Takes note of what came of a request.
    fn report(&self, hook: &Hook, report: Report, now: Time) -> Changed;
    /// Makes the moves that only time makes. `find` gives the webhook as it is now.
    /// Those that are not `ours` are left for a while to whoever moves them.
    fn tick(
        &self,
        now: Time,
        find: &dyn Fn(WebhookId) -> Option<Arc<Hook>>,
        ours: &dyn Fn(WebhookId) -> bool,
    ) -> Ticked;
    /// Makes the move of one circuit that is due by now.
    fn move_on(&self, hook: &Hook, now: Time) -> Option<Moved>;
    /// Whether a move is due by which something may be sent, and if so how many may go at once.
    fn foresee(&self, hook: &Hook, now: Time) -> Option<Option<usize>>;
    /// When time makes the next move.
    fn next_tick(&self) -> Option<Time>;
    /// The webhook's policy may have changed. Gives how many deliveries a half-open circuit wants to see.
    fn reconsider(&self, hook: &Hook) -> Option<usize>;
    /// Does with a circuit what a person wants.
    fn act(&self, hook: &Hook, action: CircuitAction, now: Time) -> Option<Moved>;
    /// What holds a webhook back.
    fn standing(&self, hook: &Hook, now: Time) -> Standing;
    /// Remembers what was stored before a restart.
    fn restore(&self, runtime: Runtime, now: Time);
    /// How many moves were made here; see [`Coordination::learn`].
    fn moves(&self) -> u64;
    /// A move of the webhook's circuit that was made here is stored now.
    fn circuit_stored(&self, webhook: WebhookId);
    /// That it has begun to fail, or stopped failing, is stored now or never will be.
    fn failing_stored(&self, webhook: WebhookId);
    /// Takes over what the store says of a webhook, none if nothing is to be said. It was read after so many
    /// `moves`: what has moved here since, or is not stored yet, is not replaced by it.
    fn learn(&self, hook: &Hook, stored: Option<Runtime>, moves: u64, now: Time) -> Learnt;
    /// Whether its circuit is not closed, was set by hand, or the endpoint asked to be left alone.
    fn is_troubled(&self, webhook: WebhookId, now: Time) -> bool;
    /// When the first of an unbroken row of failures was, as far as is known here.
    fn failing_since(&self, webhook: WebhookId) -> Option<Time>;
    /// Whether another node may go on where this one is: no token is missing, and no probe was sent.
    fn is_at_rest(&self, hook: &Hook, now: Time) -> bool;
    /// Every webhook of which anything is known.
    fn known(&self) -> Vec<WebhookId>;
    /// Some of the webhooks whose circuits are open.
    fn open(&self, most: usize) -> Vec<WebhookId>;
    /// Circuits by state.
    fn census(&self, now: Time) -> Census;
    /// The webhook was enabled after having been disabled: what it did before is forgiven.
    fn forgive(&self, webhook: WebhookId);
    /// Forgets webhooks of which there is nothing to remember.
    fn tidy(&self, now: Time, find: &dyn Fn(WebhookId) -> Option<Arc<Hook>>);
}

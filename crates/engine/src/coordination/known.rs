//! What is known of one webhook.

use redrive_core::{
    TenantId, Time,
    breaker::{Circuit, Transition},
    limiter::Bucket,
};

use super::Moved;
use crate::registry::Hook;

/// What is known of one webhook. Most have nothing worth knowing and are not here.
pub(super) struct Known {
    pub(super) tenant: TenantId,
    pub(super) circuit: Circuit,
    pub(super) bucket: Bucket,
    pub(super) held_until: Option<Time>,
    pub(super) failing_since: Option<Time>,
    /// When its circuit moves by itself.
    pub(super) next_tick: Option<Time>,
    /// What its circuit has done here, and when it has begun to fail or stopped failing.
    pub(super) circuit_moves: Moves,
    pub(super) failing_moves: Moves,
}

/// Moves that were made here, and have to be stored before what others have stored counts.
#[derive(Default)]
pub(super) struct Moves {
    /// How many are on their way.
    unstored: u32,
    /// The number of the last one, among all that were made here.
    last: u64,
}

impl Moves {
    /// One more is to be stored, and has a number of its own.
    pub(super) fn made(&mut self, numbers: &mut u64) {
        *numbers += 1;
        self.last = *numbers;
        self.unstored += 1;
    }

    /// One of them is stored, or never will be.
    pub(super) fn stored(&mut self) {
        self.unstored = self.unstored.saturating_sub(1);
    }

    /// Whether what was read when there were so many numbers is newer than all of them.
    pub(super) fn are_older(&self, numbers: u64) -> bool {
        self.unstored == 0 && self.last <= numbers
    }
}

impl Known {
    pub(super) fn new(hook: &Hook, now: Time) -> Self {
        Self {
            tenant: hook.tenant.id.clone(),
            circuit: Circuit::new(now),
            bucket: Bucket::full(),
            held_until: None,
            failing_since: None,
            next_tick: None,
            circuit_moves: Moves::default(),
            failing_moves: Moves::default(),
        }
    }

    /// Until when nothing may be sent, and how many may go at once if something may.
    pub(super) fn hindrance(&self, hook: &Hook, now: Time) -> (Option<Time>, Option<usize>) {
        let held_until = self.held_until.filter(|until| *until > now);
        (held_until.max(self.circuit.saved().blocked_until()), self.circuit.may_hold(&hook.breaker))
    }

    /// What to store of a circuit that has moved.
    pub(super) fn moved(&mut self, hook: &Hook, transition: Option<Transition>) -> Option<Moved> {
        self.next_tick = self.circuit.next_tick(&hook.breaker);
        transition.map(|transition| Moved {
            webhook: hook.id,
            tenant: self.tenant.clone(),
            transition,
            saved: self.circuit.saved(),
            trickle: self.circuit.may_hold(&hook.breaker),
        })
    }

    pub(super) fn is_worthless(&self, hook: &Hook, now: Time) -> bool {
        self.circuit.is_idle(&hook.breaker, now)
            && hook.rate_limit().is_none_or(|limit| self.bucket.is_full(&limit, now))
            && self.held_until.is_none_or(|until| until <= now)
            && self.failing_since.is_none()
            && self.circuit_moves.unstored + self.failing_moves.unstored == 0
    }
}

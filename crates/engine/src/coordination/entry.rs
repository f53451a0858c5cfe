//! What is known of one webhook.

use redrive_core::{
    TenantId, Time,
    dispatch::gate::Scope,
    protection::breaker::{Circuit, Counts, Transition},
    protection::limiter::Bucket,
};
use redrive_store::Failing;

use super::{Learnt, Moved, Report, Standing};
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
    /// Its circuit has moved here, and those that share Redis do not know.
    pub(super) newer: bool,
    /// What Redis counted when it was last asked to show it.
    pub(super) counts: Option<Counts>,
    /// Probes of a trial in Redis that were sent, and those of them that came back good.
    pub(super) trial: Option<(u32, u32)>,
    /// For which token something waited, and until when.
    pub(super) token: Option<(Scope, Time)>,
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
    pub(super) fn new(hook: &Hook, bucket: Bucket, now: Time) -> Self {
        Self::of(hook.tenant.id.clone(), Circuit::new(now), bucket)
    }

    /// With this circuit, and nothing else that is worth knowing.
    pub(super) fn of(tenant: TenantId, circuit: Circuit, bucket: Bucket) -> Self {
        Self {
            tenant,
            circuit,
            bucket,
            held_until: None,
            failing_since: None,
            next_tick: None,
            circuit_moves: Moves::default(),
            failing_moves: Moves::default(),
            newer: false,
            counts: None,
            trial: None,
            token: None,
        }
    }

    /// Until when nothing may be sent, and how many may go at once if something may.
    pub(super) fn hindrance(&self, hook: &Hook, now: Time) -> (Option<Time>, Option<usize>) {
        let held_until = self.held_until.filter(|until| *until > now);
        (held_until.max(self.circuit.saved().blocked_until()), self.circuit.may_hold(&hook.breaker))
    }

    /// What a change means that was learnt, by what held it back before.
    pub(super) fn learnt(&self, hook: &Hook, before: (Option<Time>, Option<usize>), now: Time) -> Learnt {
        match self.hindrance(hook, now) {
            after if after == before => Learnt::Nothing,
            (Some(until), _) => Learnt::Blocked(until),
            (None, trickle) => Learnt::Free(trickle),
        }
    }

    /// Takes note of everything about a request but what it means for the circuit.
    pub(super) fn note(&mut self, report: &Report, now: Time, numbers: &mut u64) -> Option<Failing> {
        self.held_until = self.held_until.max(report.hold_until);
        let failing = match (report.success, self.failing_since) {
            (Some(true), Some(_)) => {
                self.failing_since = None;
                Some(Failing::Over)
            }
            (Some(false), None) => {
                self.failing_since = Some(now);
                Some(Failing::Since(now))
            }
            _ => None,
        };
        if failing.is_some() {
            self.failing_moves.made(numbers);
        }
        failing
    }

    /// What holds it back, where Redis counts and this is only a picture.
    pub(super) fn pictured(&self, hook: &Hook, now: Time) -> Standing {
        let mut circuit = self.circuit.view(&hook.breaker, now);
        if let Some(counts) = self.counts {
            (circuit.counts, circuit.error_percentage) = (counts, counts.error_percentage());
        }
        if let Some((attempts, successes)) = self.trial {
            (circuit.half_open_attempts, circuit.half_open_successes) = (attempts, successes);
        }
        let due = |scope| self.token.filter(|(of, due)| *of == scope && *due > now).map(|(_, due)| due);
        Standing {
            circuit,
            held_until: self.held_until.filter(|until| *until > now),
            failing_since: self.failing_since,
            tokens: [due(Scope::Webhook), due(Scope::Tenant), due(Scope::Node)],
        }
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
            && !self.newer
            && self.circuit_moves.unstored + self.failing_moves.unstored == 0
    }
}

//! Where Redis decides: what this node knows of it, and what it goes by while Redis is away.

use std::sync::Arc;

use redrive_core::{
    Time, WebhookId,
    dispatch::gate::{self, Facts, Scope, Verdict},
    protection::breaker::{Circuit, CircuitState, Counts, SavedCircuit},
    protection::limiter::{Bucket, RateLimit},
};

use super::{
    Changed, Grant, Learnt, Local, Report,
    entry::Known,
    local::{LOOK_AGAIN, Sharing, earlier, facts},
};
use crate::registry::Hook;

/// What a node can say without asking the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    /// Nothing limits the webhook, and nothing is known against it: it may go if there is a slot for it.
    Go,
    /// It has to wait, whatever the others say.
    Wait(Grant),
    /// All have to be asked.
    Ask,
}

/// A circuit as it is known here.
pub(super) struct Presented {
    pub(super) saved: SavedCircuit,
    /// It has moved here while Redis was away.
    pub(super) newer: bool,
}

impl Local {
    /// Redis decides from now on.
    pub(crate) fn follow(&self) {
        self.state.lock().sharing = Sharing::Elsewhere;
    }

    /// Redis is away: this node decides by itself, from what it knows. An open circuit stays open until it was to be
    /// tried again, one that was set by hand stays so until its end, and any other is closed. Buckets are empty,
    /// since nobody knows what others have taken from them.
    pub(crate) fn go_alone(&self, now: Time) {
        let state = &mut *self.state.lock();
        state.sharing = Sharing::Alone(now);
        state.tenants.clear();
        state.global = None;
        for known in state.webhooks.values_mut() {
            known.bucket = Bucket::empty(now);
            (known.counts, known.trial, known.token) = (None, None, None);
            if known.circuit.saved().is_on_trial() {
                known.circuit = Circuit::new(now);
            }
            known.next_tick = Some(now);
        }
        state.soonest = Some(now);
    }

    /// What is to be said, without asking, about a delivery of a webhook that others send to as well.
    pub(crate) fn says(&self, hook: &Hook, now: Time) -> Says {
        let limited = hook.rate_limit().is_some()
            || hook.tenant.rate_limit().is_some()
            || self.shares.global().is_some();
        let (held_until, plain) = match self.state.lock().webhooks.get(&hook.id) {
            Some(known) => (known.held_until, known.circuit.is_plain()),
            None => (None, true),
        };
        match gate::gate(&Facts { held_until, ..facts(hook, now) }) {
            Verdict::Wait { until, why, scope } => Says::Wait(Grant::Wait { until, why, scope }),
            Verdict::Go { .. } if limited || !plain => Says::Ask,
            Verdict::Go { .. } => Says::Go,
        }
    }

    /// Until when the endpoint asked to be left alone, if that is not over.
    pub(crate) fn held_until(&self, webhook: WebhookId, now: Time) -> Option<Time> {
        let state = self.state.lock();
        state.webhooks.get(&webhook).and_then(|known| known.held_until).filter(|until| *until > now)
    }

    /// Takes note of everything about a request but what it means for the circuit, which Redis is told.
    pub(crate) fn note(&self, hook: &Hook, report: Report, now: Time) -> Changed {
        let state = &mut *self.state.lock();
        if !state.webhooks.contains_key(&hook.id)
            && report.success != Some(false)
            && report.hold_until.is_none()
        {
            // Nothing is known against it, and nothing comes to be.
            return Changed::default();
        }
        let fresh = state.fresh_bucket();
        let known = state.webhooks.entry(hook.id).or_insert_with(|| Known::new(hook, fresh, now));
        let failing = known.note(&report, now, &mut state.moves);
        Changed { circuit: None, failing, failing_since: known.failing_since, trickle: None }
    }

    /// How fast is sent for all together.
    pub(super) fn global(&self) -> Option<RateLimit> {
        self.shares.global()
    }

    /// What Redis is told of a circuit, in case it has forgotten.
    pub(super) fn presented(&self, webhook: WebhookId) -> Option<Presented> {
        let state = self.state.lock();
        let known = state.webhooks.get(&webhook)?;
        Some(Presented { saved: known.circuit.saved(), newer: known.newer })
    }

    /// Something waits for a token until then.
    pub(super) fn noted(&self, hook: &Hook, scope: Scope, until: Time) {
        if let Some(known) = self.state.lock().webhooks.get_mut(&hook.id) {
            known.token = Some((scope, until));
        }
    }

    /// Takes over what Redis says of a circuit: how it is if that is news, and what it has counted. If it has `moved`
    /// by what this node said, that is to be stored.
    pub(super) fn adopt(
        &self,
        hook: &Hook,
        saved: Option<SavedCircuit>,
        counts: Option<Counts>,
        trial: Option<(u32, u32)>,
        moved: bool,
        now: Time,
    ) -> Learnt {
        let state = &mut *self.state.lock();
        let nothing_new = saved.as_ref().is_none_or(SavedCircuit::is_default)
            && counts.is_none_or(|counts| counts.total == 0)
            && !moved;
        if nothing_new && !state.webhooks.contains_key(&hook.id) {
            return Learnt::Nothing;
        }
        let fresh = state.fresh_bucket();
        let known = state.webhooks.entry(hook.id).or_insert_with(|| Known::new(hook, fresh, now));
        let before = known.hindrance(hook, now);
        known.newer = false;
        known.counts = counts.or(known.counts);
        known.trial = trial;
        if let Some(saved) = saved {
            known.circuit = Circuit::restore(saved, now);
        }
        if moved {
            known.circuit_moves.made(&mut state.moves);
        }
        known.next_tick = match known.circuit.state() {
            // Only Redis knows when its probes are lost.
            CircuitState::HalfOpen => Some(now + LOOK_AGAIN),
            _ => known.circuit.next_tick(&hook.breaker),
        };
        state.soonest = earlier(state.soonest, known.next_tick);
        known.learnt(hook, before, now)
    }

    /// Every webhook of which something is known that Redis may have forgotten.
    pub(crate) fn troubled(&self, find: &dyn Fn(WebhookId) -> Option<Arc<Hook>>) -> Vec<Arc<Hook>> {
        let state = self.state.lock();
        let troubled =
            state.webhooks.iter().filter(|(_, known)| known.newer || !known.circuit.saved().is_default());
        troubled.filter_map(|(webhook, _)| find(*webhook)).collect()
    }
}

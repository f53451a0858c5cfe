//! One node: everything in memory, behind one lock that is taken once for a batch.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{
    TenantId, Time, WebhookId,
    cluster::clock_discipline::SetBack,
    dispatch::gate::{self, Facts, Slots, Verdict},
    protection::breaker::{Circuit, CircuitState, Permit},
    protection::limiter::{Bucket, RateLimit},
};
use redrive_store::Runtime;

use super::{
    Ask, Census, Changed, CircuitAction, Grant, Learnt, Moved, Report, Standing, Ticked, entry::Known,
};
use crate::{ids::ById, limit_shares::Shares, registry::Hook};

/// How long a move that another node should make is left to it. A node that does not know yet that it was made
/// must not make it once more.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(10);
/// How soon Redis is asked again about a circuit that is due to move.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct State {
    pub(super) webhooks: ById<WebhookId, Known>,
    pub(super) tenants: HashMap<TenantId, Bucket>,
    pub(super) global: Option<Bucket>,
    /// No circuit moves by itself before this time.
    pub(super) soonest: Option<Time>,
    /// How many moves were made here.
    pub(super) moves: u64,
    /// What Redis is there for, where there is one: see `image`.
    pub(super) sharing: Sharing,
    /// Time went back, and the store may still have times that were planned by the time that is no longer used.
    set_back: Option<SetBack>,
}

/// Who decides about circuits and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sharing {
    /// This node: there is no Redis.
    #[default]
    None,
    /// Redis: what is here is only a picture of it.
    Elsewhere,
    /// This node, since Redis is away: nobody knows what was taken from buckets before.
    Alone(Time),
}

/// See the module.
pub(crate) struct Local {
    pub(super) state: Mutex<State>,
    pub(super) shares: Arc<Shares>,
}

impl Local {
    /// With this part of what is sent for all together.
    pub(crate) fn new(shares: Arc<Shares>) -> Self {
        Self { state: Mutex::default(), shares }
    }
}

/// Dispatch lets nothing through that has no slot.
const FREE: Slots = Slots { used: 0, most: 1 };

impl State {
    /// A bucket of which nothing is known.
    pub(super) fn fresh_bucket(&self) -> Bucket {
        match self.sharing {
            Sharing::Alone(since) => Bucket::empty(since),
            _ => Bucket::full(),
        }
    }

    fn admit(&mut self, ask: &Ask<'_>, global: Option<RateLimit>, now: Time) -> Grant {
        let hook = ask.hook;
        let (own, tenants) = (hook.rate_limit(), hook.tenant.rate_limit());
        let known = self.webhooks.get_mut(&hook.id);
        if known.is_none() && own.is_none() && tenants.is_none() && global.is_none() {
            // Nothing is known against it, and nothing limits it.
            return match gate::gate(&facts(hook, now)) {
                Verdict::Go { probe } => Grant::Go { probe, circuit: CircuitState::Closed },
                Verdict::Wait { until, why, scope } => Grant::Wait { until, why, scope },
            };
        }
        let fresh = self.fresh_bucket();
        let known = self.webhooks.entry(hook.id).or_insert_with(|| Known::new(hook, fresh.clone(), now));
        let permit = known.circuit.may_call(&hook.breaker, now, ask.event, ask.patience);
        known.next_tick = known.circuit.next_tick(&hook.breaker);
        self.soonest = earlier(self.soonest, known.next_tick);
        let state = known.circuit.state();
        if let (Permit::Wait { until, .. }, CircuitState::HalfOpen) = (permit, state) {
            return match until {
                Some(until) if known.circuit.has_probed(ask.event) => Grant::Probed { until },
                _ => Grant::NoProbe,
            };
        }
        let tenant_bucket = tenants.map(|limit| {
            (limit, self.tenants.entry(hook.tenant.id.clone()).or_insert_with(|| fresh.clone()))
        });
        let global_bucket = global.map(|limit| (limit, self.global.get_or_insert_with(|| fresh.clone())));
        let facts = Facts {
            held_until: known.held_until.filter(|until| *until > now),
            circuit: permit,
            webhook_token: own.and_then(|limit| known.bucket.due(&limit, now)),
            tenant_token: tenant_bucket.as_ref().and_then(|(limit, bucket)| bucket.due(limit, now)),
            global_token: global_bucket.as_ref().and_then(|(limit, bucket)| bucket.due(limit, now)),
            ..facts(hook, now)
        };
        match gate::gate(&facts) {
            Verdict::Go { probe } => {
                if let Some(limit) = own {
                    known.bucket.take(&limit, now);
                }
                for (limit, bucket) in [tenant_bucket, global_bucket].into_iter().flatten() {
                    bucket.take(&limit, now);
                }
                Grant::Go { probe, circuit: state }
            }
            Verdict::Wait { until, why, scope } => {
                if let Permit::Probe(ticket) = permit {
                    // It was not used after all.
                    known.circuit.give_back(now, ticket);
                    known.next_tick = known.circuit.next_tick(&hook.breaker);
                }
                Grant::Wait { until, why, scope }
            }
        }
    }
}

pub(super) fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}

/// What holds for a webhook of which nothing else is known.
pub(super) fn facts(hook: &Hook, now: Time) -> Facts<'_> {
    Facts {
        state: &hook.state,
        pool_served: hook.tenant.is_served(),
        held_until: None,
        circuit: Permit::Go,
        order: true,
        webhook_slots: FREE,
        tenant_slots: FREE,
        host_has_slot: true,
        node_slots: FREE,
        webhook_token: None,
        tenant_token: None,
        global_token: None,
        now,
    }
}

impl Local {
    /// Which of these may be sent now: one grant for each, in their order. A grant takes its tokens.
    pub(crate) fn admit(&self, asks: &[Ask<'_>], now: Time) -> Vec<Grant> {
        let global = self.shares.global();
        let state = &mut *self.state.lock();
        asks.iter().map(|ask| state.admit(ask, global, now)).collect()
    }

    /// Takes note of what came of a request.
    pub(crate) fn report(&self, hook: &Hook, report: Report, now: Time) -> Changed {
        let state = &mut *self.state.lock();
        let fresh = state.fresh_bucket();
        let known = state.webhooks.entry(hook.id).or_insert_with(|| Known::new(hook, fresh, now));
        let transition = known.circuit.called(&hook.breaker, now, report.call, report.probe);
        let circuit = known.moved(hook, transition);
        state.soonest = earlier(state.soonest, known.next_tick);
        let failing = known.note(&report, now, &mut state.moves);
        if circuit.is_some() {
            known.circuit_moves.made(&mut state.moves);
            known.newer = state.sharing != Sharing::None;
        }
        let trickle = known.circuit.may_hold(&hook.breaker);
        Changed { circuit, failing, failing_since: known.failing_since, trickle }
    }

    /// Makes the moves that only time makes. `find` gives the webhook as it is now.
    /// Those that are not `ours` are left for a while to whoever moves them.
    pub(crate) fn tick(
        &self,
        now: Time,
        find: &dyn Fn(WebhookId) -> Option<Arc<Hook>>,
        ours: &dyn Fn(WebhookId) -> bool,
    ) -> Ticked {
        let state = &mut *self.state.lock();
        let mut ticked = Ticked::default();
        if state.soonest.is_none_or(|at| at > now) {
            return ticked;
        }
        let mut soonest = None;
        for (webhook, known) in &mut state.webhooks {
            let mut due = known.next_tick;
            if due.is_some_and(|at| at <= now && at + LEFT_TO_OTHERS > now) && !ours(*webhook) {
                due = due.map(|at| at + LEFT_TO_OTHERS);
            }
            if due.is_none_or(|at| at > now) {
                soonest = earlier(soonest, due);
                continue;
            }
            match find(*webhook) {
                Some(hook) if state.sharing == Sharing::Elsewhere => {
                    known.next_tick = Some(now + LOOK_AGAIN);
                    ticked.look.push(hook);
                }
                Some(hook) => {
                    let transition = known.circuit.tick(&hook.breaker, now);
                    if let Some(one) = known.moved(&hook, transition) {
                        known.circuit_moves.made(&mut state.moves);
                        known.newer = state.sharing != Sharing::None;
                        ticked.moved.push((hook, one));
                    } else if known.circuit.state() == CircuitState::HalfOpen {
                        ticked.half_open.push(hook);
                    }
                }
                // Deleted, or not read yet: asked again once somebody sends to it.
                None => known.next_tick = None,
            }
            soonest = earlier(soonest, known.next_tick);
        }
        state.soonest = soonest;
        ticked
    }

    /// Makes the move of one circuit that is due by now.
    pub(crate) fn move_on(&self, hook: &Hook, now: Time) -> Option<Moved> {
        let state = &mut *self.state.lock();
        if state.sharing == Sharing::Elsewhere {
            return None;
        }
        let known = state.webhooks.get_mut(&hook.id)?;
        let transition = known.circuit.tick(&hook.breaker, now);
        let moved = known.moved(hook, transition)?;
        known.circuit_moves.made(&mut state.moves);
        known.newer = state.sharing != Sharing::None;
        state.soonest = earlier(state.soonest, known.next_tick);
        Some(moved)
    }

    /// Whether a move is due by which something may be sent, and if so how many may go at once.
    pub(crate) fn foresee(&self, hook: &Hook, now: Time) -> Option<Option<usize>> {
        let state = self.state.lock();
        let known =
            state.webhooks.get(&hook.id).filter(|known| known.next_tick.is_some_and(|at| at <= now))?;
        let mut circuit = known.circuit.clone();
        circuit.tick(&hook.breaker, now)?;
        circuit.saved().blocked_until().is_none().then(|| circuit.may_hold(&hook.breaker))
    }

    /// Time went back: moves what was planned by the time that is no longer used.
    pub(crate) fn set_back(&self, set_back: &SetBack) {
        let state = &mut *self.state.lock();
        state.set_back = Some(*set_back);
        for known in state.webhooks.values_mut() {
            known.circuit.set_back(set_back);
            for time in [&mut known.held_until, &mut known.failing_since, &mut known.next_tick] {
                *time = time.map(|time| set_back.moved(time));
            }
            known.token = known.token.map(|(scope, due)| (scope, set_back.moved(due)));
        }
        state.soonest = state.soonest.map(|soonest| set_back.moved(soonest));
        if let Sharing::Alone(since) = &mut state.sharing {
            *since = set_back.moved(*since);
        }
    }

    /// The times in the store are moved.
    pub(crate) fn end_set_back(&self) {
        self.state.lock().set_back = None;
    }

    /// When time makes the next move.
    pub(crate) fn next_tick(&self) -> Option<Time> {
        self.state.lock().soonest
    }

    /// The webhook's policy may have changed. Gives how many deliveries a half-open circuit wants to see.
    pub(crate) fn reconsider(&self, hook: &Hook) -> Option<usize> {
        let state = &mut *self.state.lock();
        let known = state.webhooks.get_mut(&hook.id)?;
        known.next_tick = known.circuit.next_tick(&hook.breaker);
        state.soonest = earlier(state.soonest, known.next_tick);
        known.circuit.may_hold(&hook.breaker)
    }

    /// Does with a circuit what a person wants.
    pub(crate) fn act(&self, hook: &Hook, action: CircuitAction, now: Time) -> Option<Moved> {
        let state = &mut *self.state.lock();
        let fresh = state.fresh_bucket();
        let known = state.webhooks.entry(hook.id).or_insert_with(|| Known::new(hook, fresh, now));
        let transition = match action {
            CircuitAction::Reset => known.circuit.reset(now),
            CircuitAction::Force(forced) => known.circuit.force(forced, now),
        };
        let moved = known.moved(hook, transition);
        if moved.is_some() {
            known.circuit_moves.made(&mut state.moves);
            known.newer = state.sharing != Sharing::None;
        }
        state.soonest = earlier(state.soonest, known.next_tick);
        moved
    }

    /// What holds a webhook back.
    pub(crate) fn standing(&self, hook: &Hook, now: Time) -> Standing {
        let state = self.state.lock();
        let known = state.webhooks.get(&hook.id);
        let fresh = Known::new(hook, Bucket::full(), now);
        let known = known.unwrap_or(&fresh);
        if state.sharing == Sharing::Elsewhere {
            return known.pictured(hook, now);
        }
        let own = hook.rate_limit().and_then(|limit| known.bucket.due(&limit, now));
        let tenants = hook
            .tenant
            .rate_limit()
            .and_then(|limit| state.tenants.get(&hook.tenant.id).and_then(|bucket| bucket.due(&limit, now)));
        let global = self.shares.global();
        let everybodys =
            global.and_then(|limit| state.global.as_ref().and_then(|bucket| bucket.due(&limit, now)));
        Standing {
            circuit: known.circuit.view(&hook.breaker, now),
            held_until: known.held_until.filter(|until| *until > now),
            failing_since: known.failing_since,
            tokens: [own, tenants, everybodys],
        }
    }

    /// Remembers what was stored before a restart.
    pub(crate) fn restore(&self, runtime: Runtime, now: Time) {
        let circuit = match runtime.circuit {
            Some(saved) => Circuit::restore(saved, now),
            None => Circuit::new(now),
        };
        // Looked at once its webhook is known.
        let next_tick =
            (circuit.state() != CircuitState::Closed || circuit.forced().is_some()).then_some(now);
        let state = &mut *self.state.lock();
        let known = Known {
            held_until: runtime.hold_until,
            failing_since: runtime.failing_since,
            next_tick,
            newer: matches!(state.sharing, Sharing::Alone(_)),
            ..Known::of(runtime.tenant, circuit, state.fresh_bucket())
        };
        state.soonest = earlier(state.soonest, known.next_tick);
        state.webhooks.insert(runtime.webhook, known);
    }

    /// How many moves were made here; see [`Local::learn`].
    pub(crate) fn moves(&self) -> u64 {
        self.state.lock().moves
    }

    /// A move of the webhook's circuit that was made here is stored now.
    pub(crate) fn circuit_stored(&self, webhook: WebhookId) {
        if let Some(known) = self.state.lock().webhooks.get_mut(&webhook) {
            known.circuit_moves.stored();
        }
    }

    /// That it has begun to fail, or stopped failing, is stored now or never will be.
    pub(crate) fn failing_stored(&self, webhook: WebhookId) {
        if let Some(known) = self.state.lock().webhooks.get_mut(&webhook) {
            known.failing_moves.stored();
        }
    }

    /// Takes over what the store says of a webhook, none if nothing is to be said. It was read after so many
    /// `moves`: what has moved here since, or is not stored yet, is not replaced by it.
    pub(crate) fn learn(&self, hook: &Hook, mut stored: Option<Runtime>, moves: u64, now: Time) -> Learnt {
        let state = &mut *self.state.lock();
        if let (Some(set_back), Some(stored)) = (&state.set_back, &mut stored) {
            stored.hold_until = stored.hold_until.map(|until| set_back.moved(until));
            stored.circuit.iter_mut().for_each(|circuit| circuit.set_back(set_back));
        }
        let fresh = state.fresh_bucket();
        let generation = stored.as_ref().map_or(0, |stored| stored.generation);
        let is_plain = stored.as_ref().is_none_or(|stored| {
            stored.circuit.is_none() && stored.hold_until.is_none() && stored.failing_since.is_none()
        });
        let known = match state.webhooks.entry(hook.id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_plain => return Learnt::Nothing,
            Entry::Vacant(vacant) => vacant.insert(Known::new(hook, fresh, now)),
        };
        if known.failing_moves.are_older(moves) {
            known.failing_since = stored.as_ref().and_then(|stored| stored.failing_since);
        }
        if !known.circuit_moves.are_older(moves) {
            return Learnt::Unsure;
        }
        let before = known.hindrance(hook, now);
        // What others decided without Redis it is told when it is back: they may be gone by then.
        let alone = matches!(state.sharing, Sharing::Alone(_));
        // Nobody takes back what an endpoint asked for.
        known.held_until = known.held_until.max(stored.as_ref().and_then(|stored| stored.hold_until));
        let here = known.circuit.saved();
        match stored.and_then(|stored| stored.circuit) {
            // Redis knows better, and is asked.
            stored if state.sharing == Sharing::Elsewhere => {
                let same = stored.map_or(here.is_default(), |stored| stored.generation == here.generation);
                return if same { known.learnt(hook, before, now) } else { Learnt::Elsewhere };
            }
            // Made here, or learnt before: its probes go on.
            Some(circuit) if circuit.generation == here.generation => {}
            // Nobody knows the probes of a trial that was in Redis: without it the circuit counts as closed.
            Some(circuit) if alone && circuit.is_on_trial() => known.circuit = Circuit::new(now),
            Some(circuit) => {
                known.circuit = Circuit::restore(circuit, now);
                known.newer = alone;
            }
            None if here.is_default() && here.generation >= generation => {}
            // Another node closed it since: what was counted here before that no longer counts.
            None => {
                known.newer = alone && !here.is_default();
                known.circuit = Circuit::closed_after(generation, now);
            }
        }
        known.next_tick = known.circuit.next_tick(&hook.breaker);
        state.soonest = earlier(state.soonest, known.next_tick);
        known.learnt(hook, before, now)
    }

    /// Whether its circuit is not closed, was set by hand, or the endpoint asked to be left alone.
    pub(crate) fn is_troubled(&self, webhook: WebhookId, now: Time) -> bool {
        self.state.lock().webhooks.get(&webhook).is_some_and(|known| {
            known.circuit.state() != CircuitState::Closed
                || known.circuit.forced().is_some()
                || known.held_until.is_some_and(|until| until > now)
        })
    }

    /// When the first of an unbroken row of failures was, as far as is known here.
    pub(crate) fn failing_since(&self, webhook: WebhookId) -> Option<Time> {
        self.state.lock().webhooks.get(&webhook).and_then(|known| known.failing_since)
    }

    /// Whether another node may go on where this one is: no token is missing, and no probe was sent.
    pub(crate) fn is_at_rest(&self, hook: &Hook, now: Time) -> bool {
        let state = self.state.lock();
        // Redis knows what was used up.
        state.sharing == Sharing::Elsewhere
            || state.webhooks.get(&hook.id).is_none_or(|known| {
                known.circuit.state() != CircuitState::HalfOpen
                    && hook.rate_limit().is_none_or(|limit| known.bucket.is_full(&limit, now))
            })
    }

    /// Every webhook of which anything is known.
    pub(crate) fn known(&self) -> Vec<WebhookId> {
        self.state.lock().webhooks.keys().copied().collect()
    }

    /// The webhook was enabled after having been disabled: what it did before is forgiven.
    pub(crate) fn forgive(&self, webhook: WebhookId) {
        if let Some(known) = self.state.lock().webhooks.get_mut(&webhook) {
            known.failing_since = None;
        }
    }

    /// Some of the webhooks whose circuits are open.
    pub(crate) fn open(&self, most: usize) -> Vec<WebhookId> {
        let state = self.state.lock();
        let open = state.webhooks.iter().filter(|(_, known)| known.circuit.state() == CircuitState::Open);
        open.map(|(webhook, _)| *webhook).take(most).collect()
    }

    /// Circuits by state.
    pub(crate) fn census(&self, now: Time) -> Census {
        let mut census = Census::default();
        for known in self.state.lock().webhooks.values() {
            match known.circuit.state() {
                CircuitState::Closed => {}
                CircuitState::HalfOpen => census.half_open += 1,
                CircuitState::Open => {
                    census.open += 1;
                    let since = known.circuit.saved().since;
                    census.open_over_an_hour += usize::from(now.since(since).as_secs() > 3600);
                }
            }
        }
        census
    }

    /// Forgets webhooks of which there is nothing to remember.
    pub(crate) fn tidy(&self, now: Time, find: &dyn Fn(WebhookId) -> Option<Arc<Hook>>) {
        self.state.lock().webhooks.retain(|webhook, known| match find(*webhook) {
            Some(hook) => !known.is_worthless(&hook, now),
            // Deleted.
            None => false,
        });
    }
}

//! Coordinator of a single node: all state in memory, behind one lock that is taken once per batch.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{
    TenantId, Time, WebhookId,
    cluster::clock_discipline::ClockStep,
    dispatch::gate::{self, GateDecision, GateInput, Slots},
    protection::{
        breaker::{Circuit, CircuitDecision, CircuitState, SavedCircuit, Transition},
        limiter::{Bucket, RateLimit},
    },
    webhook::failures::{FailingRule, FailureSeries},
};
use redrive_store::WebhookRuntime;

use super::{
    AdmissionDecision, AdmissionRequest, AttemptReport, BlockSnapshot, CircuitAction, CircuitChange,
    ReportEffects, RuntimeChange, TimerEffects, UnclosedCircuitCounts, entry::WebhookEntry,
};
use crate::{cluster::limit_shares::LimitShares, ids::ById, routing::ResolvedWebhook};

/// Time for which a due transition is left to the node responsible for it. A node that has not yet learnt of a
/// transition must not make it a second time.
const PEER_TRANSITION_GRACE: Duration = Duration::from_secs(10);
/// Delay before a circuit with a due transition is refreshed from Redis again.
pub(super) const REDIS_REFRESH_DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct State {
    pub(super) webhooks: ById<WebhookId, WebhookEntry>,
    pub(super) tenants: HashMap<TenantId, Bucket>,
    pub(super) global: Option<Bucket>,
    /// Lower bound of the next timed transition of any circuit.
    pub(super) soonest: Option<Time>,
    /// Number of transitions made on this node and of confirmations that they are stored.
    pub(super) transitions: u64,
    /// Who decides, depending on Redis: see `redis_mirror`.
    pub(super) authority: Authority,
    /// Set after the clock was set back, while the store may still contain times computed from the abandoned time.
    clock_step: Option<ClockStep>,
}

/// Who decides about circuits and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Authority {
    /// This node: no Redis is configured.
    #[default]
    Local,
    /// Redis: the state here is only a mirror of it.
    Redis,
    /// This node, since Redis is unavailable: tokens taken before this time are unknown.
    Fallback(Time),
}

/// Coordinator of a single node. See the module.
pub(crate) struct LocalCoordinator {
    pub(super) state: Mutex<State>,
    pub(super) shares: Arc<LimitShares>,
    pub(crate) failing_rule: FailingRule,
}

impl LocalCoordinator {
    /// Creates a coordinator that uses this node's share of the limits.
    pub(crate) fn new(shares: Arc<LimitShares>, failing_rule: FailingRule) -> Self {
        Self { state: Mutex::default(), shares, failing_rule }
    }
}

fn apply_to_circuit(circuit: &mut Circuit, action: CircuitAction, now: Time) -> Option<Transition> {
    match action {
        CircuitAction::Reset => circuit.reset(now),
        CircuitAction::Force(forced) => circuit.force(forced, now),
    }
}

/// Always free: the dispatcher has checked the slots before it requests admission.
const NO_SLOT_LIMIT: Slots = Slots { used: 0, max: 1 };

impl State {
    /// Returns the bucket for a webhook, tenant or cluster that is not tracked yet.
    pub(super) fn fresh_bucket(&self) -> Bucket {
        match self.authority {
            Authority::Fallback(since) => Bucket::empty(since),
            _ => Bucket::full(),
        }
    }

    fn admit(
        &mut self,
        ask: &AdmissionRequest<'_>,
        global: Option<RateLimit>,
        now: Time,
    ) -> AdmissionDecision {
        let webhook = ask.webhook;
        let (own, tenants) = (webhook.rate_limit(), webhook.tenant.rate_limit());
        let entry = self.webhooks.get_mut(&webhook.id);
        if entry.is_none() && own.is_none() && tenants.is_none() && global.is_none() {
            // The webhook is not tracked and has no limit.
            return match gate::decide_admission(&base_input(webhook, now)) {
                GateDecision::Go { probe } => AdmissionDecision::Go { probe, circuit: CircuitState::Closed },
                GateDecision::Wait { until, reason, scope } => {
                    AdmissionDecision::Wait { until, reason, scope }
                }
            };
        }
        let fresh = self.fresh_bucket();
        let entry =
            self.webhooks.entry(webhook.id).or_insert_with(|| WebhookEntry::new(webhook, fresh.clone(), now));
        let circuit_decision = entry.circuit.may_call(&webhook.breaker, now, ask.event_id, ask.probe_timeout);
        entry.next_tick = entry.circuit.next_tick(&webhook.breaker);
        self.soonest = min_time(self.soonest, entry.next_tick);
        let state = entry.circuit.state();
        if let (CircuitDecision::Wait { until, .. }, CircuitState::HalfOpen) = (circuit_decision, state) {
            return match until {
                Some(until) if entry.circuit.has_probed(ask.event_id) => {
                    AdmissionDecision::AlreadyProbed { until }
                }
                _ => AdmissionDecision::NoProbe,
            };
        }
        let tenant_bucket = tenants.map(|limit| {
            (limit, self.tenants.entry(webhook.tenant.id.clone()).or_insert_with(|| fresh.clone()))
        });
        let global_bucket = global.map(|limit| (limit, self.global.get_or_insert_with(|| fresh.clone())));
        let input = GateInput {
            paused_by_429_until: entry.paused_by_429_until.filter(|until| *until > now),
            circuit: circuit_decision,
            webhook_token: own.and_then(|limit| entry.bucket.next_token_at(&limit, now)),
            tenant_token: tenant_bucket.as_ref().and_then(|(limit, bucket)| bucket.next_token_at(limit, now)),
            global_token: global_bucket.as_ref().and_then(|(limit, bucket)| bucket.next_token_at(limit, now)),
            ..base_input(webhook, now)
        };
        match gate::decide_admission(&input) {
            GateDecision::Go { probe } => {
                if let Some(limit) = own {
                    entry.bucket.take(&limit, now);
                }
                for (limit, bucket) in [tenant_bucket, global_bucket].into_iter().flatten() {
                    bucket.take(&limit, now);
                }
                AdmissionDecision::Go { probe, circuit: state }
            }
            GateDecision::Wait { until, reason, scope } => {
                if let CircuitDecision::Probe(probe_id) = circuit_decision {
                    // The probe is not used.
                    entry.circuit.cancel_probe(now, probe_id);
                    entry.next_tick = entry.circuit.next_tick(&webhook.breaker);
                }
                AdmissionDecision::Wait { until, reason, scope }
            }
        }
    }
}

pub(super) fn min_time(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    one.into_iter().chain(other).min()
}

/// Returns the gate input of a webhook without runtime state.
pub(super) fn base_input(webhook: &ResolvedWebhook, now: Time) -> GateInput<'_> {
    GateInput {
        state: &webhook.state,
        pool_served: webhook.tenant.may_send_here(),
        paused_by_429_until: None,
        circuit: CircuitDecision::Go,
        is_first_in_order: true,
        webhook_slots: NO_SLOT_LIMIT,
        tenant_slots: NO_SLOT_LIMIT,
        host_has_slot: true,
        node_slots: NO_SLOT_LIMIT,
        webhook_token: None,
        tenant_token: None,
        global_token: None,
        now,
    }
}

impl LocalCoordinator {
    /// Decides which of these may be sent now: one decision each, in the same order. A decision to send takes its tokens.
    pub(crate) fn admit(&self, asks: &[AdmissionRequest<'_>], now: Time) -> Vec<AdmissionDecision> {
        let global = self.shares.global_rate();
        let state = &mut *self.state.lock();
        asks.iter().map(|ask| state.admit(ask, global, now)).collect()
    }

    /// Records the result of a request.
    pub(crate) fn record_attempt(
        &self,
        webhook: &ResolvedWebhook,
        report: AttemptReport,
        now: Time,
    ) -> ReportEffects {
        let state = &mut *self.state.lock();
        let fresh = state.fresh_bucket();
        let entry =
            state.webhooks.entry(webhook.id).or_insert_with(|| WebhookEntry::new(webhook, fresh, now));
        let transition =
            entry.circuit.record_call(&webhook.breaker, now, report.circuit_outcome, report.probe);
        let circuit = entry.take_change(webhook, transition);
        state.soonest = min_time(state.soonest, entry.next_tick);
        let failing = entry.record_change(&report, self.failing_rule, now, &mut state.transitions);
        if circuit.is_some() {
            entry.unstored_circuit.record(&mut state.transitions);
            entry.unsynced = state.authority != Authority::Local;
        }
        let half_open_max_in_memory = entry.circuit.half_open_max_in_memory(&webhook.breaker);
        let failing_since = entry.failing_since();
        ReportEffects { circuit, failing, failing_since, half_open_max_in_memory }
    }

    /// Makes the timed transitions that are due. `find` returns the current webhook. Transitions of webhooks that are
    /// not `ours` are left to the responsible node for `PEER_TRANSITION_GRACE`.
    pub(crate) fn tick(
        &self,
        now: Time,
        find: &dyn Fn(WebhookId) -> Option<Arc<ResolvedWebhook>>,
        ours: &dyn Fn(WebhookId) -> bool,
    ) -> TimerEffects {
        let state = &mut *self.state.lock();
        let mut ticked = TimerEffects::default();
        if state.soonest.is_none_or(|at| at > now) {
            return ticked;
        }
        let mut soonest = None;
        for (webhook_id, entry) in &mut state.webhooks {
            let mut due = entry.next_tick;
            if due.is_some_and(|at| at <= now && at + PEER_TRANSITION_GRACE > now) && !ours(*webhook_id) {
                due = due.map(|at| at + PEER_TRANSITION_GRACE);
            }
            if due.is_none_or(|at| at > now) {
                soonest = min_time(soonest, due);
                continue;
            }
            match find(*webhook_id) {
                Some(webhook) if state.authority == Authority::Redis => {
                    entry.next_tick = Some(now + REDIS_REFRESH_DELAY);
                    ticked.to_refresh.push(webhook);
                }
                Some(webhook) => {
                    let transition = entry.circuit.tick(&webhook.breaker, now);
                    if let Some(one) = entry.take_change(&webhook, transition) {
                        entry.unstored_circuit.record(&mut state.transitions);
                        entry.unsynced = state.authority != Authority::Local;
                        ticked.changes.push((webhook, one));
                    } else if entry.circuit.state() == CircuitState::HalfOpen {
                        ticked.half_open.push(webhook);
                    }
                }
                // Deleted or not loaded yet: checked again when a delivery is sent to it.
                None => entry.next_tick = None,
            }
            soonest = min_time(soonest, entry.next_tick);
        }
        state.soonest = soonest;
        ticked
    }

    /// Makes the timed transition of one circuit if it is due.
    pub(crate) fn advance(&self, webhook: &ResolvedWebhook, now: Time) -> Option<CircuitChange> {
        let state = &mut *self.state.lock();
        if state.authority == Authority::Redis {
            return None;
        }
        let entry = state.webhooks.get_mut(&webhook.id)?;
        let transition = entry.circuit.tick(&webhook.breaker, now);
        let change = entry.take_change(webhook, transition)?;
        entry.unstored_circuit.record(&mut state.transitions);
        entry.unsynced = state.authority != Authority::Local;
        state.soonest = min_time(state.soonest, entry.next_tick);
        Some(change)
    }

    /// Returns the probe limit after a due transition, or `None` if no transition that allows sending
    /// is due.
    pub(crate) fn preview_transition(&self, webhook: &ResolvedWebhook, now: Time) -> Option<Option<usize>> {
        let state = self.state.lock();
        let entry =
            state.webhooks.get(&webhook.id).filter(|entry| entry.next_tick.is_some_and(|at| at <= now))?;
        let mut circuit = entry.circuit.clone();
        circuit.tick(&webhook.breaker, now)?;
        circuit
            .to_saved()
            .blocked_until()
            .is_none()
            .then(|| circuit.half_open_max_in_memory(&webhook.breaker))
    }

    /// Adjusts all times after the clock was set back: they were computed from the abandoned time.
    pub(crate) fn adjust_for_clock_step(&self, clock_step: &ClockStep) {
        let state = &mut *self.state.lock();
        state.clock_step = Some(*clock_step);
        for entry in state.webhooks.values_mut() {
            entry.circuit.adjust_for_clock_step(clock_step);
            for time in [&mut entry.paused_by_429_until, &mut entry.next_tick] {
                *time = time.map(|time| clock_step.apply(time));
            }
            if let Some(failures) = &mut entry.failures {
                failures.since = clock_step.apply(failures.since);
            }
            entry.token = entry.token.map(|(scope, due)| (scope, clock_step.apply(due)));
        }
        state.soonest = state.soonest.map(|soonest| clock_step.apply(soonest));
        if let Authority::Fallback(since) = &mut state.authority {
            *since = clock_step.apply(*since);
        }
    }

    /// Records that the times in the store are adjusted.
    pub(crate) fn end_clock_step(&self) {
        self.state.lock().clock_step = None;
    }

    /// Returns the time of the next timed transition.
    pub(crate) fn next_tick(&self) -> Option<Time> {
        self.state.lock().soonest
    }

    /// Reschedules the circuit after its policy may have changed. Returns how many deliveries of a half-open
    /// circuit may be in memory.
    pub(crate) fn refresh_half_open_limit(&self, webhook: &ResolvedWebhook) -> Option<usize> {
        let state = &mut *self.state.lock();
        let entry = state.webhooks.get_mut(&webhook.id)?;
        entry.next_tick = entry.circuit.next_tick(&webhook.breaker);
        state.soonest = min_time(state.soonest, entry.next_tick);
        entry.circuit.half_open_max_in_memory(&webhook.breaker)
    }

    /// Applies an operator's action to a circuit.
    pub(crate) fn apply_action(
        &self,
        webhook: &ResolvedWebhook,
        action: CircuitAction,
        now: Time,
    ) -> Option<CircuitChange> {
        let state = &mut *self.state.lock();
        let fresh = state.fresh_bucket();
        let entry =
            state.webhooks.entry(webhook.id).or_insert_with(|| WebhookEntry::new(webhook, fresh, now));
        let transition = apply_to_circuit(&mut entry.circuit, action, now);
        let change = entry.take_change(webhook, transition);
        if change.is_some() {
            entry.unstored_circuit.record(&mut state.transitions);
            entry.unsynced = state.authority != Authority::Local;
        }
        state.soonest = min_time(state.soonest, entry.next_tick);
        change
    }

    /// Returns the circuit of a webhook after an operator's action, which is not applied. Returns `None` if the action
    /// changes nothing.
    pub(crate) fn preview_action(
        &self,
        webhook: &ResolvedWebhook,
        action: CircuitAction,
        now: Time,
    ) -> Option<SavedCircuit> {
        let state = self.state.lock();
        let known = state.webhooks.get(&webhook.id).map(|entry| entry.circuit.clone());
        let mut circuit = known.unwrap_or_else(|| Circuit::new(now));
        apply_to_circuit(&mut circuit, action, now).map(|_| circuit.to_saved())
    }

    /// Replaces the circuit of a webhook by one that was stored, unless a newer one is known.
    pub(crate) fn adopt_circuit(
        &self,
        webhook: &ResolvedWebhook,
        saved: SavedCircuit,
        now: Time,
    ) -> Option<CircuitChange> {
        let state = &mut *self.state.lock();
        // A circuit that is created here starts with a generation of its own and must not win.
        let known = state.webhooks.get(&webhook.id).map(|entry| entry.circuit.to_saved().generation);
        if known.is_some_and(|generation| generation > saved.generation) {
            return None;
        }
        let fresh = state.fresh_bucket();
        let entry =
            state.webhooks.entry(webhook.id).or_insert_with(|| WebhookEntry::new(webhook, fresh, now));
        let from = entry.circuit.state();
        entry.circuit = Circuit::restore(saved, now);
        entry.unsynced = state.authority != Authority::Local;
        // A read that began before the circuit was stored returns the older one.
        entry.unstored_circuit.record(&mut state.transitions);
        entry.unstored_circuit.confirm(&mut state.transitions);
        let transition = Transition { from, to: entry.circuit.state(), at: now };
        let change = entry.take_change(webhook, Some(transition));
        state.soonest = min_time(state.soonest, entry.next_tick);
        change
    }

    /// Returns what blocks a webhook.
    pub(crate) fn snapshot(&self, webhook: &ResolvedWebhook, now: Time) -> BlockSnapshot {
        let state = self.state.lock();
        let entry = state.webhooks.get(&webhook.id);
        let fresh = WebhookEntry::new(webhook, Bucket::full(), now);
        let entry = entry.unwrap_or(&fresh);
        if state.authority == Authority::Redis {
            return entry.redis_snapshot(webhook, now);
        }
        let own = webhook.rate_limit().and_then(|limit| entry.bucket.next_token_at(&limit, now));
        let tenants = webhook.tenant.rate_limit().and_then(|limit| {
            state.tenants.get(&webhook.tenant.id).and_then(|bucket| bucket.next_token_at(&limit, now))
        });
        let global = self.shares.global_rate();
        let global_wait = global
            .and_then(|limit| state.global.as_ref().and_then(|bucket| bucket.next_token_at(&limit, now)));
        BlockSnapshot {
            circuit: entry.circuit.view(&webhook.breaker, now),
            paused_by_429_until: entry.paused_by_429_until.filter(|until| *until > now),
            failures: entry.failures.clone(),
            tokens: [own, tenants, global_wait],
        }
    }

    /// Restores the stored state of a webhook after a restart.
    pub(crate) fn restore(&self, stored: WebhookRuntime, now: Time) {
        let circuit = match stored.circuit {
            Some(saved) => Circuit::restore(saved, now),
            None => Circuit::new(now),
        };
        // Rechecked at the next tick, when its webhook is loaded.
        let next_tick =
            (circuit.state() != CircuitState::Closed || circuit.forced().is_some()).then_some(now);
        let state = &mut *self.state.lock();
        let entry = WebhookEntry {
            paused_by_429_until: stored.pause_until,
            failures: stored.failures,
            next_tick,
            unsynced: matches!(state.authority, Authority::Fallback(_)),
            ..WebhookEntry::with_circuit(stored.tenant_id, circuit, state.fresh_bucket())
        };
        state.soonest = min_time(state.soonest, entry.next_tick);
        state.webhooks.insert(stored.webhook_id, entry);
    }

    /// Returns the number of transitions made and confirmed on this node; see [`LocalCoordinator::merge_stored`].
    pub(crate) fn transition_count(&self) -> u64 {
        self.state.lock().transitions
    }

    /// Records that a transition of the webhook's circuit made here is stored.
    pub(crate) fn mark_circuit_stored(&self, webhook_id: WebhookId) {
        let state = &mut *self.state.lock();
        if let Some(entry) = state.webhooks.get_mut(&webhook_id) {
            entry.unstored_circuit.confirm(&mut state.transitions);
        }
    }

    /// Records that the start or end of a series of failures is stored, or never will be.
    pub(crate) fn mark_failing_stored(&self, webhook_id: WebhookId) {
        let state = &mut *self.state.lock();
        if let Some(entry) = state.webhooks.get_mut(&webhook_id) {
            entry.unstored_failing.confirm(&mut state.transitions);
        }
    }

    /// Merges the stored state of a webhook, `None` if the store has none. The read began when this node had
    /// the given number of transitions and confirmations: local transitions that were not stored by then are not overwritten.
    pub(crate) fn merge_stored(
        &self,
        webhook: &ResolvedWebhook,
        mut stored: Option<WebhookRuntime>,
        transitions: u64,
        now: Time,
    ) -> RuntimeChange {
        let state = &mut *self.state.lock();
        if let (Some(clock_step), Some(stored)) = (&state.clock_step, &mut stored) {
            stored.pause_until = stored.pause_until.map(|until| clock_step.apply(until));
            stored.circuit.iter_mut().for_each(|circuit| circuit.adjust_for_clock_step(clock_step));
        }
        let fresh = state.fresh_bucket();
        let generation = stored.as_ref().map_or(0, |stored| stored.generation);
        let is_plain = stored.as_ref().is_none_or(|stored| {
            stored.circuit.is_none() && stored.pause_until.is_none() && stored.failures.is_none()
        });
        let entry = match state.webhooks.entry(webhook.id) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if is_plain => return RuntimeChange::Unchanged,
            Entry::Vacant(vacant) => vacant.insert(WebhookEntry::new(webhook, fresh, now)),
        };
        if entry.unstored_failing.is_superseded_by(transitions) {
            entry.failures = stored.as_ref().and_then(|stored| stored.failures.clone());
        }
        if !entry.unstored_circuit.is_superseded_by(transitions) {
            return RuntimeChange::Stale;
        }
        let before = entry.block_state(webhook, now);
        // During fallback, transitions of other nodes are marked to be sent to Redis too: those nodes may be gone by then.
        let alone = matches!(state.authority, Authority::Fallback(_));
        // A pause after a 429 is only ever extended.
        entry.paused_by_429_until =
            entry.paused_by_429_until.max(stored.as_ref().and_then(|stored| stored.pause_until));
        let here = entry.circuit.to_saved();
        match stored.and_then(|stored| stored.circuit) {
            // Redis is authoritative and must be asked.
            stored if state.authority == Authority::Redis => {
                let same = stored.map_or(here.is_default(), |stored| stored.generation == here.generation);
                return if same {
                    entry.diff_block_state(webhook, before, now)
                } else {
                    RuntimeChange::AskRedis
                };
            }
            // Same generation (made here or merged before): its probes continue.
            Some(circuit) if circuit.generation == here.generation => {}
            // The probes of a half-open period in Redis are unknown: during fallback the circuit counts as closed.
            Some(circuit) if alone && circuit.is_half_open() => entry.circuit = Circuit::new(now),
            Some(circuit) => {
                entry.circuit = Circuit::restore(circuit, now);
                entry.unsynced = alone;
            }
            None if here.is_default() && here.generation >= generation => {}
            // Another node has closed it: failures counted here before that no longer count.
            None => {
                entry.unsynced = alone && !here.is_default();
                entry.circuit = Circuit::closed_after(generation, now);
            }
        }
        entry.next_tick = entry.circuit.next_tick(&webhook.breaker);
        state.soonest = min_time(state.soonest, entry.next_tick);
        entry.diff_block_state(webhook, before, now)
    }

    /// Returns whether its circuit is not closed or is forced, or a pause after a 429 is active.
    pub(crate) fn is_impaired(&self, webhook_id: WebhookId, now: Time) -> bool {
        self.state.lock().webhooks.get(&webhook_id).is_some_and(|entry| {
            entry.circuit.state() != CircuitState::Closed
                || entry.circuit.forced().is_some()
                || entry.paused_by_429_until.is_some_and(|until| until > now)
        })
    }

    /// Returns the failures of a webhook since its last success, as far as this node knows.
    pub(crate) fn failures(&self, webhook_id: WebhookId) -> Option<FailureSeries> {
        self.state.lock().webhooks.get(&webhook_id).and_then(|entry| entry.failures.clone())
    }

    /// Returns the webhooks whose failures are to be reported by now without a further failure, up to `max`.
    pub(crate) fn webhooks_to_report(&self, now: Time, max: usize) -> Vec<(WebhookId, TenantId)> {
        let state = self.state.lock();
        let is_due = |entry: &WebhookEntry| {
            let due = entry.failures.as_ref().and_then(|failures| failures.report_due_at(&self.failing_rule));
            due.is_some_and(|due| due <= now)
        };
        let due = state.webhooks.iter().filter(|(_, entry)| is_due(entry));
        due.map(|(webhook_id, entry)| (*webhook_id, entry.tenant_id.clone())).take(max).collect()
    }

    /// Records that the failures of a webhook were reported, by this node or another one.
    pub(crate) fn mark_reported(&self, webhook_id: WebhookId) {
        let state = &mut *self.state.lock();
        if let Some(failures) = state.webhooks.get_mut(&webhook_id).and_then(|entry| entry.failures.as_mut())
        {
            failures.is_reported = true;
        }
    }

    /// Returns whether another node can take the webhook over without loss of state: its bucket is full and its
    /// circuit is not half-open.
    pub(crate) fn is_transferable(&self, webhook: &ResolvedWebhook, now: Time) -> bool {
        let state = self.state.lock();
        // Redis tracks tokens and probes.
        state.authority == Authority::Redis
            || state.webhooks.get(&webhook.id).is_none_or(|entry| {
                entry.circuit.state() != CircuitState::HalfOpen
                    && webhook.rate_limit().is_none_or(|limit| entry.bucket.is_full(&limit, now))
            })
    }

    /// Returns every webhook with runtime state in memory.
    pub(crate) fn tracked_webhooks(&self) -> Vec<WebhookId> {
        self.state.lock().webhooks.keys().copied().collect()
    }

    /// Clears the failures of a webhook whose state has changed.
    pub(crate) fn clear_failures(&self, webhook_id: WebhookId) {
        if let Some(entry) = self.state.lock().webhooks.get_mut(&webhook_id) {
            entry.failures = None;
        }
    }

    /// Returns up to `max` webhooks whose circuits are open.
    pub(crate) fn webhooks_with_open_circuit(&self, max: usize) -> Vec<WebhookId> {
        let state = self.state.lock();
        let open = state.webhooks.iter().filter(|(_, entry)| entry.circuit.state() == CircuitState::Open);
        open.map(|(webhook_id, _)| *webhook_id).take(max).collect()
    }

    /// Counts the circuits that are not closed, by state.
    pub(crate) fn count_circuits(&self, now: Time) -> UnclosedCircuitCounts {
        let mut circuit_counts = UnclosedCircuitCounts::default();
        for entry in self.state.lock().webhooks.values() {
            match entry.circuit.state() {
                CircuitState::Closed => {}
                CircuitState::HalfOpen => circuit_counts.half_open += 1,
                CircuitState::Open => {
                    circuit_counts.open += 1;
                    let saved = entry.circuit.to_saved();
                    match saved.forced {
                        Some(_) => circuit_counts.forced_open += 1,
                        None => {
                            circuit_counts.open_over_an_hour +=
                                usize::from(now.duration_since(saved.since).as_secs() > 3600);
                        }
                    }
                }
            }
        }
        circuit_counts
    }

    /// Evicts webhooks in the default state.
    pub(crate) fn evict_idle(&self, now: Time, find: &dyn Fn(WebhookId) -> Option<Arc<ResolvedWebhook>>) {
        self.state.lock().webhooks.retain(|webhook_id, entry| match find(*webhook_id) {
            Some(webhook) => !entry.is_evictable(&webhook, now),
            // Deleted.
            None => false,
        });
    }
}

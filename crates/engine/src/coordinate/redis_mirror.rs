//! This node's mirror of the state in Redis, and the fallback to it while Redis is unavailable.

use std::sync::Arc;

use redrive_core::{
    Time, WebhookId,
    dispatch::gate::{self, GateDecision, GateInput, LimitScope},
    protection::{
        breaker::{Circuit, CircuitState, Counts, SavedCircuit},
        limiter::{Bucket, RateLimit},
    },
};

use super::{
    AdmissionDecision, AttemptReport, EndpointResult, LocalCoordinator, ReportEffects, RuntimeChange,
    entry::WebhookEntry,
    local::{Authority, REDIS_REFRESH_DELAY, base_input, min_time},
};
use crate::routing::ResolvedWebhook;

/// Decision that a node can make without asking Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalDecision {
    /// No limit applies and no block is known: it may be sent if a slot is free.
    Go,
    /// It must wait, regardless of the state in Redis.
    Wait(AdmissionDecision),
    /// Redis must decide.
    AskRedis,
}

/// A circuit as known to this node.
pub(super) struct KnownCircuit {
    pub(super) saved: SavedCircuit,
    /// Whether it changed here while Redis was unavailable.
    pub(super) newer: bool,
}

impl LocalCoordinator {
    /// Delegates all decisions to Redis.
    pub(crate) fn delegate_to_redis(&self) {
        self.state.lock().authority = Authority::Redis;
    }

    /// Switches to fallback because Redis is unavailable: this node decides from its local state. An open circuit
    /// stays open until its next probe is due, a forced one until its end, and any other is closed. Buckets start
    /// empty, since tokens taken by other nodes are unknown.
    pub(crate) fn enter_fallback(&self, now: Time) {
        let state = &mut *self.state.lock();
        state.authority = Authority::Fallback(now);
        state.tenants.clear();
        state.global = None;
        for entry in state.webhooks.values_mut() {
            entry.bucket = Bucket::empty(now);
            (entry.counts, entry.half_open_counts, entry.token) = (None, None, None);
            if entry.circuit.to_saved().is_half_open() {
                entry.circuit = Circuit::new(now);
            }
            entry.next_tick = Some(now);
        }
        state.soonest = Some(now);
    }

    /// Decides, without asking Redis, about a delivery of a webhook that other nodes send to as well.
    pub(crate) fn decide_locally(&self, webhook: &ResolvedWebhook, now: Time) -> LocalDecision {
        let limited = webhook.rate_limit().is_some()
            || webhook.tenant.rate_limit().is_some()
            || self.shares.global_rate().is_some();
        let (paused_by_429_until, plain) = match self.state.lock().webhooks.get(&webhook.id) {
            Some(entry) => (entry.paused_by_429_until, entry.circuit.is_closed_unforced()),
            None => (None, true),
        };
        match gate::decide_admission(&GateInput { paused_by_429_until, ..base_input(webhook, now) }) {
            GateDecision::Wait { until, reason, scope } => {
                LocalDecision::Wait(AdmissionDecision::Wait { until, reason, scope })
            }
            GateDecision::Go { .. } if limited || !plain => LocalDecision::AskRedis,
            GateDecision::Go { .. } => LocalDecision::Go,
        }
    }

    /// Returns the end of the pause after a 429, if it has not passed.
    pub(crate) fn paused_by_429_until(&self, webhook_id: WebhookId, now: Time) -> Option<Time> {
        let state = self.state.lock();
        state
            .webhooks
            .get(&webhook_id)
            .and_then(|entry| entry.paused_by_429_until)
            .filter(|until| *until > now)
    }

    /// Records the result of a request except for the circuit, which Redis tracks.
    pub(crate) fn record_without_circuit(
        &self,
        webhook: &ResolvedWebhook,
        report: AttemptReport,
        now: Time,
    ) -> ReportEffects {
        let state = &mut *self.state.lock();
        if !state.webhooks.contains_key(&webhook.id)
            && !matches!(report.endpoint, EndpointResult::Failed(_))
            && report.pause_until.is_none()
        {
            // The webhook is not tracked, and this result gives no reason to track it.
            return ReportEffects::default();
        }
        let fresh = state.fresh_bucket();
        let entry =
            state.webhooks.entry(webhook.id).or_insert_with(|| WebhookEntry::new(webhook, fresh, now));
        let failing = entry.record_change(&report, self.failing_rule, now, &mut state.transitions);
        ReportEffects {
            circuit: None,
            failing,
            failing_since: entry.failing_since(),
            half_open_max_in_memory: None,
        }
    }

    /// Returns the rate limit of the whole cluster.
    pub(super) fn global(&self) -> Option<RateLimit> {
        self.shares.global_rate()
    }

    /// Returns the known circuit, which is sent to Redis in case Redis has lost it.
    pub(super) fn known_circuit(&self, webhook_id: WebhookId) -> Option<KnownCircuit> {
        let state = self.state.lock();
        let entry = state.webhooks.get(&webhook_id)?;
        Some(KnownCircuit { saved: entry.circuit.to_saved(), newer: entry.unsynced })
    }

    /// Records that a delivery waits for a token until `until`.
    pub(super) fn record_token_wait(
        &self,
        webhook: &ResolvedWebhook,
        scope: LimitScope,
        until: Time,
        now: Time,
    ) {
        let state = &mut *self.state.lock();
        let fresh = state.fresh_bucket();
        let entry =
            state.webhooks.entry(webhook.id).or_insert_with(|| WebhookEntry::new(webhook, fresh, now));
        entry.token = Some((scope, until));
    }

    /// Merges the state of a circuit from Redis: the circuit if it changed, and its counts. A transition that this
    /// node's report caused must be stored.
    pub(super) fn merge_from_redis(
        &self,
        webhook: &ResolvedWebhook,
        saved: Option<SavedCircuit>,
        counts: Option<Counts>,
        half_open_counts: Option<(u32, u32)>,
        changed: bool,
        now: Time,
    ) -> RuntimeChange {
        let state = &mut *self.state.lock();
        let nothing_new = saved.as_ref().is_none_or(SavedCircuit::is_default)
            && counts.is_none_or(|counts| counts.total == 0)
            && !changed;
        if nothing_new && !state.webhooks.contains_key(&webhook.id) {
            return RuntimeChange::Unchanged;
        }
        let fresh = state.fresh_bucket();
        let entry =
            state.webhooks.entry(webhook.id).or_insert_with(|| WebhookEntry::new(webhook, fresh, now));
        let before = entry.block_state(webhook, now);
        entry.unsynced = false;
        entry.counts = counts.or(entry.counts);
        entry.half_open_counts = half_open_counts;
        if let Some(saved) = saved {
            entry.circuit = Circuit::restore(saved, now);
        }
        if changed {
            entry.unstored_circuit.record(&mut state.transitions);
        }
        entry.next_tick = match entry.circuit.state() {
            // Only Redis knows when its probes time out.
            CircuitState::HalfOpen => Some(now + REDIS_REFRESH_DELAY),
            _ => entry.circuit.next_tick(&webhook.breaker),
        };
        state.soonest = min_time(state.soonest, entry.next_tick);
        entry.diff_block_state(webhook, before, now)
    }

    /// Returns every webhook whose circuit Redis may have lost.
    pub(crate) fn circuits_to_resend(
        &self,
        find: &dyn Fn(WebhookId) -> Option<Arc<ResolvedWebhook>>,
    ) -> Vec<Arc<ResolvedWebhook>> {
        let state = self.state.lock();
        let affected = state
            .webhooks
            .iter()
            .filter(|(_, entry)| entry.unsynced || !entry.circuit.to_saved().is_default());
        affected.filter_map(|(webhook_id, _)| find(*webhook_id)).collect()
    }
}

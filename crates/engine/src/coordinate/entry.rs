//! Runtime state of one webhook in memory.

use redrive_core::{
    FailureCategory, TenantId, Time,
    dispatch::gate::LimitScope,
    protection::{
        breaker::{Circuit, Counts, Transition},
        limiter::Bucket,
    },
    webhook::failures::{FailingRule, FailureSeries},
};
use redrive_store::FailingChange;

use super::{AttemptReport, BlockSnapshot, CircuitChange, EndpointResult, RuntimeChange};
use crate::routing::ResolvedWebhook;

/// Runtime state of one webhook. Webhooks in the default state, which are most, have no entry.
pub(super) struct WebhookEntry {
    pub(super) tenant_id: TenantId,
    pub(super) circuit: Circuit,
    pub(super) bucket: Bucket,
    /// End of the pause after a 429.
    pub(super) paused_by_429_until: Option<Time>,
    /// Failures since the last success.
    pub(super) failures: Option<FailureSeries>,
    /// Time of the circuit's next timed transition.
    pub(super) next_tick: Option<Time>,
    /// Unstored transitions made here: of the circuit, and of starting or ceasing to fail.
    pub(super) unstored_circuit: UnstoredTransitions,
    pub(super) unstored_failing: UnstoredTransitions,
    /// Whether its circuit changed here and Redis does not know yet.
    pub(super) unsynced: bool,
    /// Counts in Redis at the last refresh.
    pub(super) counts: Option<Counts>,
    /// Half-open probes in Redis: number sent, and number that succeeded.
    pub(super) half_open_counts: Option<(u32, u32)>,
    /// Scope of the token that a delivery waited for, and when it is due.
    pub(super) token: Option<(LimitScope, Time)>,
}

/// Transitions made here. State read from the store is ignored if the read began before they were stored.
#[derive(Default)]
pub(super) struct UnstoredTransitions {
    /// Number of transitions not stored yet.
    unstored: u32,
    /// Sequence number of the last transition or its confirmation, among those of all webhooks on this node.
    last: u64,
}

impl UnstoredTransitions {
    /// Records one more transition to store, and assigns it the next sequence number.
    pub(super) fn record(&mut self, numbers: &mut u64) {
        *numbers += 1;
        self.last = *numbers;
        self.unstored += 1;
    }

    /// Records that one of them was stored, or never will be. This takes a sequence number too: a read that began between
    /// the transition and its commit returns the older state, although it may be merged after the confirmation.
    pub(super) fn confirm(&mut self, numbers: &mut u64) {
        *numbers += 1;
        self.last = *numbers;
        self.unstored = self.unstored.saturating_sub(1);
    }

    /// Returns whether state read at this value of the node's sequence number is newer than all of these transitions.
    pub(super) fn is_superseded_by(&self, numbers: u64) -> bool {
        self.unstored == 0 && self.last <= numbers
    }
}

impl WebhookEntry {
    pub(super) fn new(webhook: &ResolvedWebhook, bucket: Bucket, now: Time) -> Self {
        Self::with_circuit(webhook.tenant.id.clone(), Circuit::new(now), bucket)
    }

    /// Creates an entry with this circuit and otherwise default state.
    pub(super) fn with_circuit(tenant_id: TenantId, circuit: Circuit, bucket: Bucket) -> Self {
        Self {
            tenant_id,
            circuit,
            bucket,
            paused_by_429_until: None,
            failures: None,
            next_tick: None,
            unstored_circuit: UnstoredTransitions::default(),
            unstored_failing: UnstoredTransitions::default(),
            unsynced: false,
            counts: None,
            half_open_counts: None,
            token: None,
        }
    }

    /// Returns until when sending is blocked, and otherwise the probe limit.
    pub(super) fn block_state(&self, webhook: &ResolvedWebhook, now: Time) -> (Option<Time>, Option<usize>) {
        let paused_by_429_until = self.paused_by_429_until.filter(|until| *until > now);
        (
            paused_by_429_until.max(self.circuit.to_saved().blocked_until()),
            self.circuit.half_open_max_in_memory(&webhook.breaker),
        )
    }

    /// Compares the block state with the one before a merge.
    pub(super) fn diff_block_state(
        &self,
        webhook: &ResolvedWebhook,
        before: (Option<Time>, Option<usize>),
        now: Time,
    ) -> RuntimeChange {
        match self.block_state(webhook, now) {
            after if after == before => RuntimeChange::Unchanged,
            (Some(until), _) => RuntimeChange::Blocked(until),
            (None, half_open_max_in_memory) => RuntimeChange::Unblocked(half_open_max_in_memory),
        }
    }

    /// Records the result of a request except for the circuit.
    pub(super) fn record_change(
        &mut self,
        report: &AttemptReport,
        rule: FailingRule,
        now: Time,
        numbers: &mut u64,
    ) -> Option<FailingChange> {
        self.paused_by_429_until = self.paused_by_429_until.max(report.pause_until);
        let failing = match report.endpoint {
            EndpointResult::Accepted => self.failures.take().map(|_| FailingChange::Recovered),
            EndpointResult::Failed(category) => self.count_failure(category, rule, now),
            EndpointResult::Inconclusive => None,
        };
        if failing.is_some() {
            self.unstored_failing.record(numbers);
        }
        failing
    }

    /// Counts a failure. Returns it as a change to store, unless the series was reported before.
    fn count_failure(
        &mut self,
        category: FailureCategory,
        rule: FailingRule,
        now: Time,
    ) -> Option<FailingChange> {
        let failures = self.failures.get_or_insert_with(|| FailureSeries::starting_at(now));
        if failures.is_reported {
            return None;
        }
        failures.add(category);
        // The store decides in the same way when it counts this failure.
        failures.report(&rule, now);
        Some(FailingChange::Failed { since: failures.since, category, rule })
    }

    /// Returns the start of the current series of failures.
    pub(super) fn failing_since(&self) -> Option<Time> {
        self.failures.as_ref().map(|failures| failures.since)
    }

    /// Returns the block state where Redis decides and this entry is only a mirror.
    pub(super) fn redis_snapshot(&self, webhook: &ResolvedWebhook, now: Time) -> BlockSnapshot {
        let mut circuit = self.circuit.view(&webhook.breaker, now);
        if let Some(counts) = self.counts {
            (circuit.counts, circuit.error_percentage) = (counts, counts.error_percentage());
        }
        if let Some((attempts, successes)) = self.half_open_counts {
            (circuit.half_open_attempts, circuit.half_open_successes) = (attempts, successes);
        }
        let due = |scope| self.token.filter(|(of, due)| *of == scope && *due > now).map(|(_, due)| due);
        BlockSnapshot {
            circuit,
            paused_by_429_until: self.paused_by_429_until.filter(|until| *until > now),
            failures: self.failures.clone(),
            tokens: [due(LimitScope::Webhook), due(LimitScope::Tenant), due(LimitScope::Node)],
        }
    }

    /// Returns the change to store if the circuit made a transition.
    pub(super) fn take_change(
        &mut self,
        webhook: &ResolvedWebhook,
        transition: Option<Transition>,
    ) -> Option<CircuitChange> {
        self.next_tick = self.circuit.next_tick(&webhook.breaker);
        transition.map(|transition| CircuitChange {
            webhook_id: webhook.id,
            tenant_id: self.tenant_id.clone(),
            transition,
            saved: self.circuit.to_saved(),
            half_open_max_in_memory: self.circuit.half_open_max_in_memory(&webhook.breaker),
        })
    }

    pub(super) fn is_evictable(&self, webhook: &ResolvedWebhook, now: Time) -> bool {
        self.circuit.is_idle(&webhook.breaker, now)
            && webhook.rate_limit().is_none_or(|limit| self.bucket.is_full(&limit, now))
            && self.paused_by_429_until.is_none_or(|until| until <= now)
            && self.token.is_none_or(|(_, due)| due <= now)
            && self.failures.is_none()
            && !self.unsynced
            && self.unstored_circuit.unstored + self.unstored_failing.unstored == 0
    }
}

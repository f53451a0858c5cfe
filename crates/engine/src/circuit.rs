//! Transitions of circuits, automatic and manual: applies their effects on the dispatcher and persists them.

use std::sync::Arc;

use redrive_core::{
    TenantId, Time, WebhookId,
    notification::Occurrence,
    protection::breaker::{CircuitState, SavedCircuit},
};
use redrive_store::StoreError;

use crate::{
    Engine, Inner,
    coordination::{CircuitAction, CircuitChange, ReportEffects, redis::RedisUnavailable},
    notify::occurrences,
    registry::ResolvedWebhook,
};

/// How many times an operator's action is tried, because another node may store a newer state concurrently.
const MAX_CIRCUIT_ACTION_TRIES: usize = 3;

impl Inner {
    /// Applies what changed in the coordinator when an attempt's result was reported to it. The changed state is stored
    /// together with the outcome.
    pub(crate) fn apply_report_effects(self: &Arc<Self>, webhook: &ResolvedWebhook, changed: &ReportEffects) {
        if let Some(change) = &changed.circuit {
            self.apply_circuit_change(webhook, change);
        } else if changed.probe_limit.is_some() {
            let actions = self.dispatcher.unpark(self.webhook_limits(webhook), changed.probe_limit);
            self.apply_actions(actions);
        }
        self.gate_wakeup.notify_one();
    }

    fn apply_circuit_change(self: &Arc<Self>, webhook: &ResolvedWebhook, change: &CircuitChange) {
        let (from, to) = (change.transition.from, change.transition.to);
        if from != to {
            tracing::info!(webhook_id = %change.webhook_id, tenant_id = %change.tenant_id, from = from.name(), to = to.name(), "circuit state changed");
            self.metrics.record_transition(from, to);
        }
        match change.saved.blocked_until() {
            Some(until) => self.park(webhook, Some(until)),
            None => {
                let actions = self.dispatcher.unpark(self.webhook_limits(webhook), change.probe_limit);
                self.apply_actions(actions);
            }
        }
        if to != CircuitState::Open {
            self.scheduler_wakeup.wake();
        }
    }

    /// Stores a circuit that changed without an outcome, retrying until it succeeds or the engine stops.
    async fn persist_circuit(
        self: &Arc<Self>,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        saved: SavedCircuit,
        occurrence: Option<Occurrence>,
    ) {
        let stored = loop {
            match self
                .store
                .set_circuit(tenant_id.clone(), webhook_id, saved.clone(), occurrence.clone())
                .await
            {
                Ok(stored) => break stored,
                Err(error) => {
                    tracing::warn!(webhook_id = %webhook_id, %error, "storing a circuit's state failed; will retry");
                }
            }
            if self.stop.is_cancelled() {
                return;
            }
            tokio::time::sleep(crate::record::RECORD_RETRY_INTERVAL).await;
        };
        self.coordination.circuit_stored(webhook_id);
        if !stored && let Err(error) = self.refresh_runtime([webhook_id].into()).await {
            tracing::warn!(webhook_id = %webhook_id, %error, "reading another node's newer circuit failed; will retry");
        }
        self.scheduler_wakeup.wake();
        if occurrence.is_some() {
            self.notifier.wake();
        }
    }

    /// Stores the circuit in the background, so that the caller does not wait for the store.
    pub(crate) fn persist_circuit_later(
        self: &Arc<Self>,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        saved: SavedCircuit,
        occurrence: Option<Occurrence>,
    ) {
        let inner = self.clone();
        self.runtime
            .spawn(async move { inner.persist_circuit(tenant_id, webhook_id, saved, occurrence).await });
    }

    /// Applies and stores the transition of a circuit that changed without an outcome.
    pub(crate) fn apply_and_persist(self: &Arc<Self>, webhook: &ResolvedWebhook, change: CircuitChange) {
        self.apply_circuit_change(webhook, &change);
        // Disabling the breaker closes the circuit, which says nothing about the endpoint: no notification.
        let occurrence = occurrences::circuit_transition(&change).filter(|_| webhook.breaker.enabled);
        self.persist_circuit_later(change.tenant_id, change.webhook_id, change.saved, occurrence);
    }

    /// Called before deliveries of a webhook are claimed. If a transition of its circuit is due, unblocks the webhook
    /// with the probe limit of the new state, without performing the transition: not every node that claims may do so.
    pub(crate) fn unpark_for_due_probe(self: &Arc<Self>, webhook: &ResolvedWebhook) {
        if self.membership.is_shared()
            && let Some(probe_limit) = self.coordination.preview_transition(webhook, self.clock.now())
        {
            let actions = self.dispatcher.unpark(self.webhook_limits(webhook), probe_limit);
            self.apply_actions(actions);
        }
    }

    /// Performs the transition of a circuit if it is due. With several nodes, the node that claimed deliveries of the
    /// webhook performs it.
    pub(crate) fn advance_circuit(self: &Arc<Self>, webhook: &ResolvedWebhook) {
        if self.membership.is_shared()
            && let Some(change) = self.coordination.advance(webhook, self.clock.now())
        {
            self.apply_and_persist(webhook, change);
        }
    }

    /// Returns whether this node performs the timed transitions of a webhook's circuit: it is assigned here, or this
    /// node holds some of its deliveries.
    fn owns_circuit_timer(&self, webhook_id: WebhookId) -> bool {
        !self.membership.is_shared()
            || self.membership.assignments.has(webhook_id)
            || self.dispatcher.has_deliveries(webhook_id)
    }

    /// Restores circuits, pauses after a 429 and failures from the store. Nothing is sent before that.
    pub(crate) async fn restore_runtime(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        for runtime in self.store.list_runtime().await? {
            let over = runtime.pause_until.is_none_or(|until| until <= now);
            if over && runtime.circuit.is_none() && runtime.failing_since.is_none() {
                continue;
            }
            // Load the webhook first: transitions of its circuit depend on its policy.
            let webhook = self.registry.get_or_load(&*self.store, runtime.webhook_id).await?;
            self.coordination.restore(runtime, now);
            if let Some(webhook) = webhook
                && let Some(probe_limit) = self.coordination.refresh_probe_limit(&webhook)
            {
                self.dispatcher.unpark(self.webhook_limits(&webhook), Some(probe_limit));
            }
        }
        Ok(())
    }

    /// Performs transitions of circuits and ends holds and parks when they are due.
    pub(crate) async fn run_gate_timer(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let find = |webhook_id| self.registry.webhook(webhook_id);
            let ours = |webhook_id| self.owns_circuit_timer(webhook_id);
            let ticked = self.coordination.tick(now, &find, &ours);
            if let Some(shared) = self.redis_coordinator() {
                ticked.to_refresh.into_iter().for_each(|webhook| shared.refresh_circuit_later(webhook));
            }
            for webhook in ticked.half_open {
                // A probe may have been lost: admit another one.
                let actions = self
                    .dispatcher
                    .unpark(self.webhook_limits(&webhook), self.coordination.refresh_probe_limit(&webhook));
                self.apply_actions(actions);
            }
            for (webhook, change) in ticked.changes {
                self.apply_and_persist(&webhook, change);
            }
            let actions = self.dispatcher.expire_blocks(now);
            self.apply_actions(actions);
            let next =
                [self.dispatcher.next_wake(), self.coordination.next_tick()].into_iter().flatten().min();
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or_default()), if next.is_some_and(|at| at < Time::FAR_FUTURE) => {}
                () = self.gate_wakeup.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }
}

impl Engine {
    /// Resets or forces a webhook's circuit. Returns false if there is no such webhook.
    pub async fn control_circuit(
        &self,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        action: CircuitAction,
    ) -> Result<bool, StoreError> {
        let inner = &self.0;
        let Some(webhook) = inner.registry.get_or_load(&*inner.store, webhook_id).await? else {
            return Ok(false);
        };
        if webhook.tenant.id != *tenant_id {
            return Ok(false);
        }
        for _ in 0..MAX_CIRCUIT_ACTION_TRIES {
            if inner.membership.is_shared() {
                // Another node may have just changed it.
                inner.refresh_runtime([webhook_id].into()).await?;
            }
            let shared = match inner.redis_coordinator() {
                Some(shared) => shared.apply_action(&webhook, action.clone()).await,
                None => Err(RedisUnavailable),
            };
            let change = shared.unwrap_or_else(|_| {
                inner.coordination.apply_action(&webhook, action.clone(), inner.clock.now())
            });
            let Some(change) = change else { return Ok(true) };
            inner.apply_circuit_change(&webhook, &change);
            // Manual actions cause no notification.
            let stored = inner
                .store
                .set_circuit(change.tenant_id.clone(), webhook_id, change.saved.clone(), None)
                .await;
            inner.scheduler_wakeup.wake();
            inner.gate_wakeup.notify_one();
            match stored {
                Ok(stored) => {
                    inner.coordination.circuit_stored(webhook_id);
                    if stored {
                        return Ok(true);
                    }
                }
                Err(error) => {
                    // The action is already in effect here, so store it in the background even though the caller gets an error.
                    inner.persist_circuit_later(change.tenant_id, webhook_id, change.saved, None);
                    return Err(error);
                }
            }
        }
        Err(StoreError::Busy("other nodes are changing this circuit; send the request again".into()))
    }

    /// Returns the number of circuits in each state.
    pub fn circuits(&self) -> CircuitCounts {
        let counts = self.0.coordination.count_circuits(self.0.clock.now());
        CircuitCounts {
            closed: self.0.registry.len().saturating_sub(counts.open + counts.half_open),
            half_open: counts.half_open,
            open: counts.open,
            open_over_an_hour: counts.open_over_an_hour,
        }
    }

    /// Returns the number of due deliveries blocked by open circuits. Counts the first hundred circuits, and up to ten
    /// thousand deliveries of each.
    pub async fn blocked_deliveries(&self) -> Result<u64, StoreError> {
        const MAX_COUNTED_CIRCUITS: usize = 100;
        const MAX_COUNTED_PER_CIRCUIT: usize = 10_000;
        let now = self.0.clock.now();
        let open = self.0.coordination.webhooks_with_open_circuit(MAX_COUNTED_CIRCUITS);
        let backlogs = self.0.store.backlogs(None, open, now, MAX_COUNTED_PER_CIRCUIT).await?;
        Ok(backlogs.iter().map(|(_, backlog)| backlog.due).sum())
    }
}

/// Number of circuits by state, among the webhooks known to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitCounts {
    /// Closed.
    pub closed: usize,
    /// Half open.
    pub half_open: usize,
    /// Open.
    pub open: usize,
    /// Open for more than an hour.
    pub open_over_an_hour: usize,
}

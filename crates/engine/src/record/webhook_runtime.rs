//! Circuits and pauses of webhooks: applies their changes to the dispatcher, stores them, and merges what other nodes have
//! stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use redrive_core::{
    TenantId, WebhookId,
    notification::Occurrence,
    protection::breaker::{CallOutcome, CircuitState, SavedCircuit},
};
use redrive_store::{RuntimeState, StoreError};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    cluster::membership::Membership,
    coordinate::{AttemptReport, CircuitChange, Coordinator, EndpointResult, ReportEffects, RuntimeChange},
    dispatch::Dispatcher,
    metrics::Metrics,
    occurrences,
    routing::{ResolvedWebhook, Router},
    wakeups::Wakeups,
};

/// Webhooks read per store call.
const BATCH_SIZE: usize = 500;

/// Applies and stores what blocks webhooks.
pub(crate) struct WebhookRuntimeUpdater {
    pub(crate) store: Arc<dyn RuntimeState>,
    pub(crate) clock: Clock,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) tokio: Handle,
    pub(crate) stop: CancellationToken,
}

impl WebhookRuntimeUpdater {
    /// Applies what changed in the coordinator when an attempt's result was reported to it. The changed state is stored
    /// together with the outcome.
    pub(crate) fn apply_report_effects(&self, webhook: &ResolvedWebhook, changed: &ReportEffects) {
        if let Some(change) = &changed.circuit {
            self.apply_change(webhook, change);
        } else if changed.half_open_max_in_memory.is_some() {
            self.dispatcher.unpark(webhook, changed.half_open_max_in_memory);
        }
        self.wakeups.gate_timer.notify_one();
    }

    pub(crate) fn apply_change(&self, webhook: &ResolvedWebhook, change: &CircuitChange) {
        let (from, to) = (change.transition.from, change.transition.to);
        if from != to {
            tracing::info!(webhook_id = %change.webhook_id, tenant_id = %change.tenant_id, from = from.name(), to = to.name(), "circuit state changed");
            self.metrics.record_transition(from, to);
        }
        match change.saved.blocked_until() {
            Some(until) => self.dispatcher.park(webhook, Some(until)),
            None => {
                self.dispatcher.unpark(webhook, change.half_open_max_in_memory);
            }
        }
        if to != CircuitState::Open {
            self.wakeups.claims.wake();
        }
    }

    /// Stores a circuit that changed without an outcome, retrying until it succeeds or the engine stops.
    async fn persist(
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
            tokio::time::sleep(super::RECORD_RETRY_INTERVAL).await;
        };
        self.coordinator.local.mark_circuit_stored(webhook_id);
        if !stored && let Err(error) = self.refresh_runtime_state([webhook_id].into()).await {
            tracing::warn!(webhook_id = %webhook_id, %error, "reading another node's newer circuit failed; will retry");
        }
        self.wakeups.claims.wake();
        if occurrence.is_some() {
            self.wakeups.notifier.notify_one();
        }
    }

    /// Stores the circuit in the background, so that the caller does not wait for the store.
    pub(crate) fn persist_in_background(
        self: &Arc<Self>,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        saved: SavedCircuit,
        occurrence: Option<Occurrence>,
    ) {
        let updater = self.clone();
        self.tokio.spawn(async move { updater.persist(tenant_id, webhook_id, saved, occurrence).await });
    }

    /// Applies and stores the transition of a circuit that changed without an outcome.
    pub(crate) fn apply_and_persist(self: &Arc<Self>, webhook: &ResolvedWebhook, change: CircuitChange) {
        self.apply_change(webhook, &change);
        // Disabling the breaker closes the circuit, which says nothing about the endpoint: no notification.
        let occurrence = occurrences::circuit_transition(&change, None).filter(|_| webhook.breaker.enabled);
        self.persist_in_background(change.tenant_id, change.webhook_id, change.saved, occurrence);
    }

    /// Called before deliveries of a webhook are claimed. If a transition of its circuit is due, unblocks the webhook
    /// with the probe limit of the new state, without performing the transition: not every node that claims may do so.
    pub(crate) fn unpark_before_transition(&self, webhook: &ResolvedWebhook) {
        if self.membership.is_shared()
            && let Some(half_open_max_in_memory) =
                self.coordinator.local.preview_transition(webhook, self.clock.now())
        {
            self.dispatcher.unpark(webhook, half_open_max_in_memory);
        }
    }

    /// Performs the transition of a circuit if it is due. With several nodes, the node that claimed deliveries of the
    /// webhook performs it.
    pub(crate) fn perform_due_transition(self: &Arc<Self>, webhook: &ResolvedWebhook) {
        if self.membership.is_shared()
            && let Some(change) = self.coordinator.local.advance(webhook, self.clock.now())
        {
            self.apply_and_persist(webhook, change);
        }
    }

    /// Reports that a probe was not sent, and applies what follows.
    pub(super) async fn return_probe(self: &Arc<Self>, webhook: &Arc<ResolvedWebhook>, id: u64) {
        let report = AttemptReport {
            circuit_outcome: CallOutcome::Ignored,
            probe: Some(id),
            endpoint: EndpointResult::Inconclusive,
            pause_until: None,
        };
        let changed = self.coordinator.report_attempt(webhook, report).await;
        self.apply_report_effects(webhook, &changed);
        if let Some(change) = changed.circuit {
            let occurrence = occurrences::circuit_transition(&change, None);
            self.persist_in_background(change.tenant_id, change.webhook_id, change.saved, occurrence);
        }
    }

    /// Restores circuits, pauses after a 429 and failures from the store. Nothing is sent before that.
    pub(crate) async fn restore_runtime_state(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        for stored in self.store.list_runtime().await? {
            let over = stored.pause_until.is_none_or(|until| until <= now);
            if over && stored.circuit.is_none() && stored.failures.is_none() {
                continue;
            }
            // Load the webhook first: transitions of its circuit depend on its policy.
            let webhook = self.router.get_or_load(stored.webhook_id).await?;
            self.coordinator.local.restore(stored, now);
            if let Some(webhook) = webhook
                && let Some(half_open_max_in_memory) =
                    self.coordinator.local.refresh_half_open_limit(&webhook)
            {
                self.dispatcher.unpark(&webhook, Some(half_open_max_in_memory));
            }
        }
        Ok(())
    }

    /// Reads the runtime state of these webhooks. Returns those with a concurrent local transition, which must be read
    /// again.
    pub(crate) async fn refresh_runtime_state(
        &self,
        webhooks: BTreeSet<WebhookId>,
    ) -> Result<BTreeSet<WebhookId>, StoreError> {
        let mut to_refresh = BTreeSet::new();
        let webhooks: Vec<_> = webhooks.into_iter().collect();
        for part in webhooks.chunks(BATCH_SIZE) {
            // Local transitions from here on may be newer than the state that is read.
            let since = self.coordinator.local.transition_count();
            let found = self.store.get_runtime(part.to_vec()).await?;
            let mut found: BTreeMap<_, _> = found.into_iter().map(|one| (one.webhook_id, one)).collect();
            for webhook_id in part {
                let stored = found.remove(webhook_id);
                let webhook = match self.router.webhook(*webhook_id) {
                    None if stored.is_some() => self.router.get_or_load(*webhook_id).await?,
                    webhook => webhook,
                };
                let Some(webhook) = webhook else { continue };
                let runtime_change =
                    self.coordinator.local.merge_stored(&webhook, stored, since, self.clock.now());
                if runtime_change == RuntimeChange::Stale {
                    to_refresh.insert(*webhook_id);
                }
                self.apply_runtime_change(&webhook, runtime_change);
            }
        }
        if !webhooks.is_empty() {
            self.wakeups.gate_timer.notify_one();
        }
        Ok(to_refresh)
    }

    pub(crate) fn apply_runtime_change(&self, webhook: &ResolvedWebhook, runtime_change: RuntimeChange) {
        match runtime_change {
            RuntimeChange::Stale | RuntimeChange::Unchanged => {}
            RuntimeChange::AskRedis => {
                if let (Some(redis), Some(webhook)) =
                    (self.coordinator.redis(), self.router.webhook(webhook.id))
                {
                    redis.refresh_circuit_in_background(webhook);
                }
            }
            RuntimeChange::Blocked(until) => self.dispatcher.park(webhook, Some(until)),
            RuntimeChange::Unblocked(half_open_max_in_memory) => {
                self.dispatcher.release_to_assigned_node(webhook);
                self.dispatcher.unpark(webhook, half_open_max_in_memory);
                self.wakeups.claims.wake();
            }
        }
    }
}

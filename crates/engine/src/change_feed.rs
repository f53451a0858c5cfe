//! Change feed reader: polls the changes of other nodes, immediately on a hint, and applies them as if they had
//! been made on this node.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::RwLock;
use redrive_core::{DeliveryId, TenantId, WebhookId};
use redrive_store::{Change, ChangeCursor, Hint, StoreError};
use tokio::sync::Notify;

use crate::{
    Engine, Inner, clock::monotonic_now, coordination::RuntimeChange, registry::ResolvedWebhook,
    unsettled::UnsettledDelivery,
};

/// Minimum interval between two polls, however many hints arrive; `POLL_WAIT` is added to it if there is no hint.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
const POLL_WAIT: Duration = Duration::from_millis(450);
/// Time without a successful poll after which everything is reloaded, because missed changes may have been pruned.
const RESYNC_AFTER: Duration = Duration::from_secs(5 * 60);
/// Retention of changes for nodes that lag behind, and the interval at which older changes are pruned.
const CHANGE_RETENTION: Duration = Duration::from_secs(10 * 60);
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// Webhooks read per store call.
const BATCH_SIZE: usize = 500;

/// Signals to the change feed loop, and the callbacks for changed API keys.
#[derive(Default)]
pub(crate) struct ChangeSignal {
    /// Wakes the loop because there may be changes to read.
    wakeup: Notify,
    /// Changes may have been missed: resync.
    missed: AtomicBool,
    /// Cached state may come from another database server, whose versions are not comparable with those of this one.
    is_foreign: AtomicBool,
    on_keys: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl ChangeSignal {
    /// Triggers a poll of the change feed now.
    pub(crate) fn notify(&self) {
        self.wakeup.notify_one();
    }

    /// Triggers a full resync.
    pub(crate) fn request_resync(&self) {
        self.missed.store(true, Relaxed);
        self.wakeup.notify_one();
    }

    /// Triggers a full resync that ignores cached versions.
    pub(crate) fn server_changed(&self) {
        self.is_foreign.store(true, Relaxed);
        self.request_resync();
    }

    fn keys_changed(&self) {
        self.on_keys.read().iter().for_each(|call| call());
    }
}

impl Engine {
    /// Registers a callback for API keys that may have been created or revoked on another node. It must not block.
    pub fn on_keys_changed(&self, call: Box<dyn Fn() + Send + Sync>) {
        self.0.membership.change_signal.on_keys.write().push(call);
    }
}

/// Positions in the change feed, oldest first, with the times at which they were reached.
#[derive(Default)]
struct CursorHistory(VecDeque<(Duration, ChangeCursor)>);

impl CursorHistory {
    /// Records a position, at most once per `PRUNE_INTERVAL`. Returns the position before which changes may be pruned.
    fn record(&mut self, now: Duration, cursor: &ChangeCursor) -> Option<ChangeCursor> {
        let age = |at: Duration| now.saturating_sub(at);
        if self.0.back().is_some_and(|(at, _)| age(*at) < PRUNE_INTERVAL) {
            return None;
        }
        self.0.push_back((now, cursor.clone()));
        let mut old = None;
        while let Some((_, cursor)) = self.0.pop_front_if(|(at, _)| age(*at) >= CHANGE_RETENTION) {
            old = Some(cursor);
        }
        old
    }
}

impl Inner {
    /// Subscribes to the store's hints, which wake the scheduler or the change feed.
    pub(crate) fn subscribe_to_hints(self: &Arc<Self>) {
        // Weak reference: the store owns this callback and the engine owns the store, so a strong one would leak both.
        let inner = Arc::downgrade(self);
        self.store.on_hint(Box::new(move |hint| {
            let Some(inner) = inner.upgrade() else { return };
            match hint {
                Hint::Work => inner.scheduler_wakeup.wake(),
                Hint::Change => inner.membership.change_signal.wakeup.notify_one(),
            }
        }));
    }

    /// Applies the changes of other nodes after a cursor, until the engine stops.
    pub(crate) async fn run_change_feed(self: Arc<Self>, mut cursor: ChangeCursor) {
        let mut cursors = CursorHistory::default();
        let mut to_refresh = BTreeSet::new();
        let mut read_at = monotonic_now();
        loop {
            tokio::time::sleep(MIN_POLL_INTERVAL).await;
            tokio::select! {
                () = tokio::time::sleep(POLL_WAIT) => {}
                () = self.membership.change_signal.wakeup.notified() => {}
                () = self.stop.cancelled() => return,
            }
            let missed = self.membership.change_signal.missed.swap(false, Relaxed);
            let needs_resync = missed || monotonic_now().saturating_sub(read_at) > RESYNC_AFTER;
            let read = if needs_resync {
                self.resync(&mut to_refresh).await
            } else {
                self.apply_changes(&cursor, &mut to_refresh).await
            };
            match read {
                Ok(next) => (cursor, read_at) = (next, monotonic_now()),
                Err(error) => {
                    self.membership.change_signal.missed.fetch_or(needs_resync, Relaxed);
                    tracing::debug!(%error, "change feed read failed; will retry");
                    continue;
                }
            }
            if let Some(old) = cursors.record(monotonic_now(), &cursor)
                && let Err(error) = self.store.prune_changes(old).await
            {
                tracing::debug!(%error, "pruning the change feed failed; will retry");
            }
        }
    }

    /// Applies the changes after a cursor. Returns the next cursor.
    async fn apply_changes(
        self: &Arc<Self>,
        since: &ChangeCursor,
        to_refresh: &mut BTreeSet<WebhookId>,
    ) -> Result<ChangeCursor, StoreError> {
        let reported = self.store.changes(Some(since.clone())).await?;
        let mut webhooks_to_refresh = to_refresh.clone();
        let mut tenants: BTreeMap<TenantId, Vec<WebhookId>> = BTreeMap::new();
        let mut cancelled = Vec::new();
        for change in reported.changes {
            match change {
                Change::Webhook(tenant_id, webhook_id) => {
                    tenants.entry(tenant_id).or_default().push(webhook_id);
                    // Enabling a webhook also clears its failures.
                    webhooks_to_refresh.insert(webhook_id);
                }
                Change::Tenant(tenant_id) => drop(tenants.entry(tenant_id).or_default()),
                Change::Runtime(webhook_id) => drop(webhooks_to_refresh.insert(webhook_id)),
                Change::Cancel(webhook_id, delivery_id) => cancelled.push((webhook_id, delivery_id)),
                Change::Keys => self.membership.change_signal.keys_changed(),
            }
        }
        for (tenant_id, webhooks) in tenants {
            self.refresh_tenant(&tenant_id, &webhooks).await?;
        }
        *to_refresh = self.refresh_runtime(webhooks_to_refresh).await?;
        for (webhook_id, delivery_id) in cancelled {
            self.release_cancelled(webhook_id, delivery_id);
        }
        Ok(reported.cursor)
    }

    /// Reloads everything that is cached on this node.
    async fn resync(
        self: &Arc<Self>,
        to_refresh: &mut BTreeSet<WebhookId>,
    ) -> Result<ChangeCursor, StoreError> {
        let cursor = self.store.changes(None).await?.cursor;
        let here = self.dispatcher.webhooks();
        let mut webhooks_to_refresh: BTreeSet<WebhookId> =
            self.coordination.tracked_webhooks().into_iter().collect();
        webhooks_to_refresh
            .extend(self.store.list_runtime().await?.into_iter().map(|runtime| runtime.webhook_id));
        webhooks_to_refresh.extend(&here);
        let is_foreign = self.membership.change_signal.is_foreign.swap(false, Relaxed);
        for tenant_id in self.registry.tenants() {
            let read = match is_foreign {
                true => self.registry.reload_tenant(&*self.store, &tenant_id).await,
                false => Ok(()),
            };
            let read = match read {
                Ok(()) => self.refresh_tenant(&tenant_id, &[]).await,
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                self.membership.change_signal.is_foreign.fetch_or(is_foreign, Relaxed);
                return Err(error);
            }
        }
        for webhook_id in here {
            self.apply_webhook_change(webhook_id);
        }
        self.membership.change_signal.keys_changed();
        *to_refresh = self.refresh_runtime(webhooks_to_refresh).await?;
        Ok(cursor)
    }

    /// Refreshes a tenant whose settings or whose given webhooks have changed.
    async fn refresh_tenant(
        self: &Arc<Self>,
        tenant_id: &TenantId,
        webhooks: &[WebhookId],
    ) -> Result<(), StoreError> {
        if self.registry.knows(tenant_id) {
            self.registry.refresh(&*self.store, tenant_id).await?;
            self.tenant_changed(tenant_id);
            webhooks.iter().for_each(|webhook_id| self.apply_webhook_change(*webhook_id));
        }
        Ok(())
    }

    /// Reads the runtime state of these webhooks. Returns those with a concurrent local transition, which must be read
    /// again.
    pub(crate) async fn refresh_runtime(
        self: &Arc<Self>,
        webhooks: BTreeSet<WebhookId>,
    ) -> Result<BTreeSet<WebhookId>, StoreError> {
        let mut to_refresh = BTreeSet::new();
        let webhooks: Vec<_> = webhooks.into_iter().collect();
        for part in webhooks.chunks(BATCH_SIZE) {
            // Local transitions from here on may be newer than the state that is read.
            let since = self.coordination.transition_count();
            let found = self.store.get_runtime(part.to_vec()).await?;
            let mut found: BTreeMap<_, _> = found.into_iter().map(|one| (one.webhook_id, one)).collect();
            for webhook_id in part {
                let runtime = found.remove(webhook_id);
                let webhook = match self.registry.webhook(*webhook_id) {
                    None if runtime.is_some() => self.registry.get_or_load(&*self.store, *webhook_id).await?,
                    webhook => webhook,
                };
                let Some(webhook) = webhook else { continue };
                let runtime_change =
                    self.coordination.merge_stored(&webhook, runtime, since, self.clock.now());
                if runtime_change == RuntimeChange::Stale {
                    to_refresh.insert(*webhook_id);
                }
                self.apply_runtime_change(&webhook, runtime_change);
            }
        }
        if !webhooks.is_empty() {
            self.gate_wakeup.notify_one();
        }
        Ok(to_refresh)
    }

    pub(crate) fn apply_runtime_change(
        self: &Arc<Self>,
        webhook: &ResolvedWebhook,
        runtime_change: RuntimeChange,
    ) {
        match runtime_change {
            RuntimeChange::Stale | RuntimeChange::Unchanged => {}
            RuntimeChange::AskRedis => {
                if let (Some(redis), Some(webhook)) =
                    (self.redis_coordinator(), self.registry.webhook(webhook.id))
                {
                    redis.refresh_circuit_later(webhook);
                }
            }
            RuntimeChange::Blocked(until) => self.park(webhook, Some(until)),
            RuntimeChange::Unblocked(probe_limit) => {
                self.release_to_assigned_node(webhook);
                let actions = self.dispatcher.unpark(self.webhook_limits(webhook), probe_limit);
                self.apply_actions(actions);
                self.scheduler_wakeup.wake();
            }
        }
    }

    /// Handles a delivery that was cancelled on another node. If it is queued here it is released, and the store,
    /// which has the reason, ends it. If its request is in flight, the store reports the cancellation when the outcome
    /// is recorded.
    fn release_cancelled(self: &Arc<Self>, webhook_id: WebhookId, delivery_id: DeliveryId) {
        if let Some(queued) = self.dispatcher.take_cancelled(webhook_id, delivery_id) {
            UnsettledDelivery::taken_from_queue(self, queued).release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_pruned_after_retention() {
        let mut cursors = CursorHistory::default();
        let mut pruned_positions = Vec::new();
        for second in 0..=1_200 {
            let old = cursors.record(Duration::from_secs(second), &ChangeCursor::at(second as i64));
            pruned_positions.extend(old.map(|cursor| (second, cursor.position)));
        }
        let expected: Vec<_> = (600..=1_200).step_by(60).map(|at| (at, at as i64 - 600)).collect();
        assert_eq!(pruned_positions, expected);
        assert_eq!(
            cursors.record(Duration::from_secs(9_999), &ChangeCursor::at(2_000)),
            Some(ChangeCursor::at(1_200))
        );
    }
}

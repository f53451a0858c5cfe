//! Change feed reader: polls the changes of other nodes, immediately on a hint, and applies them as if they had
//! been made on this node.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use redrive_core::{TenantId, WebhookId};
use redrive_store::{Change, ChangeCursor, ChangeLog, Hint, RuntimeState, StoreError};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::monotonic_now,
    coordinate::Coordinator,
    dispatch::Dispatcher,
    record::{Recorder, WebhookRuntimeUpdater},
    routing::Router,
    wakeups::Wakeups,
};

/// Minimum interval between two polls, however many hints arrive; `POLL_WAIT` is added to it if there is no hint.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
const POLL_WAIT: Duration = Duration::from_millis(450);
/// Time without a successful poll after which everything is reloaded, because missed changes may have been pruned.
const RESYNC_AFTER: Duration = Duration::from_secs(5 * 60);
/// Retention of changes for nodes that lag behind, and the interval at which older changes are pruned.
const CHANGE_RETENTION: Duration = Duration::from_secs(10 * 60);
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

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

/// Applies the changes of other nodes.
pub(crate) struct ChangeFeed {
    pub(crate) log: Arc<dyn ChangeLog>,
    pub(crate) runtime_state: Arc<dyn RuntimeState>,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
}

impl ChangeFeed {
    /// Subscribes to the store's hints, which wake the claim loop or the change feed.
    pub(crate) fn subscribe_to_hints(&self) {
        let wakeups = self.wakeups.clone();
        self.log.on_hint(Box::new(move |hint| match hint {
            Hint::Work => wakeups.claims.wake(),
            Hint::Change => wakeups.changes.notify(),
        }));
    }

    /// Applies the changes of other nodes after a cursor, until the engine stops.
    pub(crate) async fn run(self: Arc<Self>, mut cursor: ChangeCursor) {
        let mut cursors = CursorHistory::default();
        let mut to_refresh = BTreeSet::new();
        let mut read_at = monotonic_now();
        loop {
            tokio::time::sleep(MIN_POLL_INTERVAL).await;
            tokio::select! {
                () = tokio::time::sleep(POLL_WAIT) => {}
                () = self.wakeups.changes.notified() => {}
                () = self.stop.cancelled() => return,
            }
            let missed = self.wakeups.changes.take_resync_request();
            let needs_resync = missed || monotonic_now().saturating_sub(read_at) > RESYNC_AFTER;
            let read = if needs_resync {
                self.resync(&mut to_refresh).await
            } else {
                self.apply_changes(&cursor, &mut to_refresh).await
            };
            match read {
                Ok(next) => (cursor, read_at) = (next, monotonic_now()),
                Err(error) => {
                    self.wakeups.changes.restore_resync_request(needs_resync);
                    tracing::debug!(%error, "change feed read failed; will retry");
                    continue;
                }
            }
            if let Some(old) = cursors.record(monotonic_now(), &cursor)
                && let Err(error) = self.log.prune_changes(old).await
            {
                tracing::debug!(%error, "pruning the change feed failed; will retry");
            }
        }
    }

    /// Applies the changes after a cursor. Returns the next cursor.
    async fn apply_changes(
        &self,
        since: &ChangeCursor,
        to_refresh: &mut BTreeSet<WebhookId>,
    ) -> Result<ChangeCursor, StoreError> {
        let reported = self.log.changes(Some(since.clone())).await?;
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
                Change::Keys => self.wakeups.changes.keys_changed(),
            }
        }
        for (tenant_id, webhooks) in tenants {
            self.refresh_tenant(&tenant_id, &webhooks).await?;
        }
        *to_refresh = self.runtime_updater.refresh_runtime_state(webhooks_to_refresh).await?;
        for (webhook_id, delivery_id) in cancelled {
            self.recorder.release_cancelled(webhook_id, delivery_id);
        }
        Ok(reported.cursor)
    }

    /// Reloads everything that is cached on this node.
    async fn resync(&self, to_refresh: &mut BTreeSet<WebhookId>) -> Result<ChangeCursor, StoreError> {
        let cursor = self.log.changes(None).await?.cursor;
        let here = self.dispatcher.queues.webhooks();
        let mut webhooks_to_refresh: BTreeSet<WebhookId> =
            self.coordinator.local.tracked_webhooks().into_iter().collect();
        webhooks_to_refresh
            .extend(self.runtime_state.list_runtime().await?.into_iter().map(|runtime| runtime.webhook_id));
        webhooks_to_refresh.extend(&here);
        let is_foreign = self.wakeups.changes.take_foreign();
        for tenant_id in self.router.tenants() {
            let read = match is_foreign {
                true => self.router.reload_tenant(&tenant_id).await,
                false => Ok(()),
            };
            let read = match read {
                Ok(()) => self.refresh_tenant(&tenant_id, &[]).await,
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                self.wakeups.changes.restore_foreign(is_foreign);
                return Err(error);
            }
        }
        for webhook_id in here {
            self.recorder.apply_webhook_change(webhook_id);
        }
        self.wakeups.changes.keys_changed();
        *to_refresh = self.runtime_updater.refresh_runtime_state(webhooks_to_refresh).await?;
        Ok(cursor)
    }

    /// Refreshes a tenant whose settings or whose given webhooks have changed.
    async fn refresh_tenant(&self, tenant_id: &TenantId, webhooks: &[WebhookId]) -> Result<(), StoreError> {
        if self.router.knows(tenant_id) {
            self.router.refresh(tenant_id).await?;
            self.dispatcher.apply_tenant_change(tenant_id);
            webhooks.iter().for_each(|webhook_id| self.recorder.apply_webhook_change(*webhook_id));
        }
        Ok(())
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

//! Statistics: flushes the counts in memory to the store, and reads both together.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::traffic::{Resolution, Traffic},
};
use redrive_store::{MinuteRollup, Statistics, StoreError, StoreFuture, WebhookFailures};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock,
    coordinate::Coordinator,
    rollup_buffer::{RollupBuffer, minute_of},
    routing::Router,
};

/// Interval between flushes; a crash loses at most the counts of one interval.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);
/// Rollup rows pruned per store call.
const PRUNE_BATCH_SIZE: usize = 1_000;
/// Maximum time that a read waits for a flush; a store that is slower makes the counts of one batch uncertain.
const MAX_FLUSH_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of reads until one is not disturbed by a concurrent flush.
const MAX_READ_RETRIES: usize = 4;

/// Stores and reads the statistics of webhooks and tenants.
pub(crate) struct StatisticsService {
    pub(crate) store: Arc<dyn Statistics>,
    pub(crate) clock: Clock,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) buffer: Arc<RollupBuffer>,
    pub(crate) stop: CancellationToken,
}

impl StatisticsService {
    /// Flushes counts to the store periodically, and prunes old rollups.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(FLUSH_INTERVAL) => {}
                () = self.stop.cancelled() => return,
            }
            self.flush().await;
            let now = self.clock.now();
            self.coordinator.local.evict_idle(now, &|webhook_id| self.router.webhook(webhook_id));
            let confirmed_now = self.clock.confirmed_now();
            let old = confirmed_now.saturating_sub(Resolution::Minute.retention());
            while matches!(self.store.prune_rollups(old, PRUNE_BATCH_SIZE).await, Ok(PRUNE_BATCH_SIZE)) {
                tokio::task::yield_now().await;
            }
            while matches!(
                self.store.prune_traffic(confirmed_now, PRUNE_BATCH_SIZE).await,
                Ok(PRUNE_BATCH_SIZE)
            ) {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) async fn flush(&self) {
        // One flush at a time: `flushing` holds one batch, and the flush at shutdown must not replace it.
        let _guard = self.buffer.turn.lock().await;
        // The batch of a flush that panicked. If the store has accepted it all the same, its counts are stored twice,
        // which is better than losing them.
        let interrupted = self.buffer.flushing.lock().clone();
        if let Some(part) = interrupted {
            self.buffer.restore(&part);
            self.buffer.finish_flush();
        }
        for _ in 0..self.buffer.steps_to_go() {
            let Some(part) = self.buffer.take() else { return };
            let stored = self.store.add_rollups(part.minutes.clone(), part.traffic()).await;
            if stored.is_err() {
                self.buffer.restore(&part);
            }
            self.buffer.finish_flush();
            if let Err(error) = stored {
                tracing::debug!(%error, "storing statistics failed; will retry");
                return;
            }
        }
    }

    /// Reads memory and store, and retries if a flush moved counts between them during the read.
    async fn read_consistently<'a, T>(
        &self,
        check: impl Fn() -> StoreFuture<'a, T>,
    ) -> Result<T, StoreError> {
        for _ in 1..MAX_READ_RETRIES {
            // A batch that is being stored may be committed and not acknowledged: it would be counted twice. A flush that
            // begins later changes the sequence number.
            let flushed = timeout(MAX_FLUSH_WAIT, self.buffer.turn.lock()).await;
            drop(flushed);
            let before = self.buffer.flush_seq.load(SeqCst);
            let seen = check().await?;
            if self.buffer.flush_seq.load(SeqCst) == before {
                return Ok(seen);
            }
        }
        check().await
    }

    /// Returns the traffic of a tenant by minute or by hour from a time on; a start may appear in two parts. Counts of
    /// other nodes from the last seconds are not included yet.
    pub(crate) async fn traffic(
        &self,
        tenant_id: TenantId,
        resolution: Resolution,
        from: Time,
    ) -> Result<Vec<(Time, Traffic)>, StoreError> {
        let (tenant_id, from) = (&tenant_id, resolution.start(from));
        let check = || -> StoreFuture<'_, _> {
            Box::pin(async move {
                let counted = self.buffer.traffic_of(tenant_id).into_iter();
                let counted = counted.map(|(minute, counted)| (resolution.start(minute), counted));
                let mut traffic = self.store.traffic(tenant_id.clone(), resolution, from).await?;
                traffic.extend(counted.filter(|(start, _)| *start >= from));
                Ok(traffic)
            })
        };
        self.read_consistently(check).await
    }

    /// Returns the traffic of all tenants together, as [`Self::traffic`] does for one.
    pub(crate) async fn traffic_of_all_tenants(
        &self,
        resolution: Resolution,
        from: Time,
    ) -> Result<Vec<(Time, Traffic)>, StoreError> {
        let from = resolution.start(from);
        let check = || -> StoreFuture<'_, _> {
            Box::pin(async move {
                let counted = self.buffer.traffic_of_all_tenants().into_iter();
                let counted = counted.map(|(minute, counted)| (resolution.start(minute), counted));
                let mut traffic = self.store.traffic_of_all_tenants(resolution, from).await?;
                traffic.extend(counted.filter(|(start, _)| *start >= from));
                Ok(traffic)
            })
        };
        self.read_consistently(check).await
    }

    /// Returns the failed attempts of a tenant from a time on, by webhook. Reads at most the latest `max` minutes with
    /// a failure.
    pub(crate) async fn failures(
        &self,
        tenant_id: TenantId,
        from: Time,
        max: usize,
    ) -> Result<WebhookFailures, StoreError> {
        let (tenant_id, from) = (&tenant_id, minute_of(from));
        let check = || -> StoreFuture<'_, _> {
            Box::pin(async move {
                let counted = self.buffer.failures_of(tenant_id, from);
                let WebhookFailures { by_webhook, only_since } =
                    self.store.failures(tenant_id.clone(), from, max).await?;
                let mut sums: HashMap<WebhookId, u64> = HashMap::with_capacity(by_webhook.len());
                for (webhook_id, failures) in by_webhook.into_iter().chain(counted) {
                    *sums.entry(webhook_id).or_default() += failures;
                }
                Ok(WebhookFailures { by_webhook: sums.into_iter().collect(), only_since })
            })
        };
        self.read_consistently(check).await
    }

    /// Returns rollups of webhooks by minute from a time on; a minute may appear in two parts. `for_tenant` is the
    /// tenant that asked; `None` for the engine itself.
    pub(crate) async fn rollups(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> Result<Vec<MinuteRollup>, StoreError> {
        let (webhooks, from) = (&webhooks, minute_of(from));
        let check = || -> StoreFuture<'_, _> {
            Box::pin(async move {
                let counted = self.buffer.pending_rollups(webhooks);
                let mut rollups = self.store.rollups(for_tenant.cloned(), webhooks.clone(), from).await?;
                rollups.extend(counted.into_iter().filter(|one| one.minute >= from));
                Ok(rollups)
            })
        };
        self.read_consistently(check).await
    }

    /// Counts the successful attempts of each of these webhooks after a time, in the order of the pairs. Of the minute of
    /// this time only the last success is known to be later. `for_tenant` is the tenant that asked; `None` for an admin of
    /// all tenants.
    pub(crate) async fn count_successes(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: &[(WebhookId, Time)],
    ) -> Result<Vec<u64>, StoreError> {
        if webhooks.is_empty() {
            return Ok(Vec::new());
        }
        let mut ids: Vec<_> = webhooks.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        let ids = &ids;
        let check = || -> StoreFuture<'_, _> {
            Box::pin(async move {
                let mut pending: HashMap<WebhookId, Vec<MinuteRollup>> = HashMap::new();
                for one in self.buffer.pending_rollups(ids) {
                    pending.entry(one.webhook_id).or_default().push(one);
                }
                let mut counts = self.store.count_successes(for_tenant.cloned(), webhooks.to_vec()).await?;
                for (count, (id, since)) in counts.iter_mut().zip(webhooks) {
                    *count += pending.get(id).map_or(0, |minutes| successes_after(minutes, *since));
                }
                Ok(counts)
            })
        };
        self.read_consistently(check).await
    }

    /// Returns when each of these webhooks last accepted a delivery; webhooks without a success are left out.
    /// `for_tenant` is the tenant that asked; `None` for an admin of all tenants.
    pub(crate) async fn last_successes(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: &[WebhookId],
    ) -> Result<HashMap<WebhookId, Time>, StoreError> {
        if webhooks.is_empty() {
            return Ok(HashMap::new());
        }
        let counted = self.buffer.pending_rollups(webhooks);
        let stored = self.store.last_successes(for_tenant.cloned(), webhooks.to_vec()).await?;
        let mut last: HashMap<_, _> = stored.into_iter().collect();
        for (webhook_id, at) in
            counted.iter().filter_map(|one| Some((one.webhook_id, one.rollup.last_success_at?)))
        {
            last.entry(webhook_id).and_modify(|known: &mut Time| *known = at.max(*known)).or_insert(at);
        }
        Ok(last)
    }

    /// Returns when a webhook last accepted a delivery.
    pub(crate) async fn last_success(
        &self,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
    ) -> Result<Option<Time>, StoreError> {
        Ok(self.last_successes(Some(tenant_id), &[webhook_id]).await?.remove(&webhook_id))
    }
}

/// Counts the successes of the rollups of a webhook after a time, as [`Statistics::count_successes`] does.
///
/// [`Statistics::count_successes`]: redrive_store::Statistics::count_successes
fn successes_after(minutes: &[MinuteRollup], since: Time) -> u64 {
    let successes = |minute: &MinuteRollup| match minute.minute > since {
        true => u64::from(minute.rollup.successes),
        false => u64::from(minute.rollup.last_success_at.is_some_and(|at| at > since)),
    };
    minutes.iter().map(successes).sum()
}

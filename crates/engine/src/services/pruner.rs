//! Pruning: deletes data past its retention periodically, in short steps with pauses, on the leader.
//!
//! `core::retention` decides what is old. A step that is repeated, or run by two nodes concurrently, does no harm,
//! so a node that dies during a run needs no recovery: the next run continues with what is left.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redrive_core::{
    TenantId, Time,
    maintenance::retention::{Cutoffs, PruneBatchSizer, row_prune_cutoff},
    notification::{confirmation::UNCONFIRMED_RETENTION, mail_limit::USAGE_RETENTION},
};
use redrive_store::{
    EmailAddresses, Notifications, PartitionDrop, Prune, PruneCounts, PruneRequest, StoreError,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Settings,
    clock::{Clock, monotonic_now},
    cluster::membership::Membership,
    metrics::Metrics,
};

/// Interval between runs by the engine's clock, and the minimum interval by real time.
const PRUNE_INTERVAL: Duration = Duration::from_secs(3600);
const MIN_PRUNE_INTERVAL: Duration = Duration::from_secs(1);
/// Delay of the first run; short, for nodes that restart often.
const FIRST_RUN_DELAY: Duration = Duration::from_secs(60);
/// Tenants, or webhooks, read per store call.
const PAGE_SIZE: usize = 500;
/// Maximum rows per step if they are written to the archive outbox.
const ARCHIVE_BATCH_ROWS: usize = 500;
/// Retention of notifications.
const NOTIFICATION_RETENTION: Duration = Duration::from_secs(30 * 24 * 3600);
/// Bytes of free space reclaimed per step.
const RECLAIM_BYTES: usize = 256 * 1024;
/// Number of attempts to drop a partition that is in use, and the delay between them.
const PARTITION_DROP_ATTEMPTS: usize = 20;
const PARTITION_DROP_DELAY: Duration = Duration::from_millis(500);

/// Prunes what is past its retention.
pub(crate) struct Pruner {
    pub(crate) mail_addresses: Arc<dyn EmailAddresses>,
    pub(crate) notifications: Arc<dyn Notifications>,
    pub(crate) prune: Arc<dyn Prune>,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stop: CancellationToken,
}

impl Pruner {
    /// Prunes periodically until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut wait = FIRST_RUN_DELAY;
        loop {
            let next = self.clock.now() + wait;
            tokio::select! {
                () = async { tokio::join!(self.clock.sleep_until(next), tokio::time::sleep(MIN_PRUNE_INTERVAL)); } => {}
                () = self.stop.cancelled() => return,
            }
            wait = PRUNE_INTERVAL;
            if self.membership.is_leader()
                && let Err(error) = self.prune().await
            {
                tracing::warn!(%error, "pruning failed; will retry");
            }
        }
    }

    /// Prunes everything that is past its retention now.
    pub(crate) async fn prune(&self) -> Result<(), StoreError> {
        PruneRun::new(self).prune_all().await
    }
}

/// One pruning run.
struct PruneRun<'a> {
    pruner: &'a Pruner,
    stride: PruneBatchSizer,
    left: PruneCounts,
    months: usize,
}

impl<'a> PruneRun<'a> {
    fn new(pruner: &'a Pruner) -> Self {
        Self { pruner, stride: PruneBatchSizer::default(), left: PruneCounts::default(), months: 0 }
    }

    async fn prune_all(mut self) -> Result<(), StoreError> {
        let cutoffs = self.cutoffs().await?;
        // Whole partitions first, which avoids deleting their rows one by one; not with an archive, which reads the
        // rows.
        let earliest = earliest(&cutoffs);
        let keeps_months = self.pruner.prune.has_partitions();
        let by_month = keeps_months && !self.pruner.settings.archive;
        if let (true, Some(earliest)) = (by_month, earliest) {
            self.drop_months(earliest, false).await?;
        }
        for (tenant_id, cutoffs) in &cutoffs {
            self.events_of(tenant_id, cutoffs, if by_month { Some(earliest) } else { None }).await?;
            if let Some(before) = cutoffs.dead {
                self.dead_of(tenant_id, before).await?;
            }
            if self.should_stop() {
                return Ok(());
            }
        }
        let latest = cutoffs.values().filter_map(|cutoffs| cutoffs.events).max();
        if let (true, Some(latest)) = (keeps_months, latest) {
            self.drop_months(latest, true).await?;
        }
        self.periods(&cutoffs).await?;
        self.prune_notifications().await?;
        self.email_addresses().await?;
        self.update_oldest_event(&cutoffs).await?;
        self.reclaim_space().await?;
        let PruneCounts { events, deliveries, attempts } = self.left;
        if self.left.rows() + self.months > 0 {
            tracing::info!(events, deliveries, attempts, months = self.months, "pruned expired data");
        }
        Ok(())
    }

    /// Returns the cutoffs of each tenant.
    async fn cutoffs(&self) -> Result<BTreeMap<TenantId, Cutoffs>, StoreError> {
        let now = self.pruner.clock.confirmed_now();
        let server = self.pruner.settings.retention;
        let mut all = BTreeMap::new();
        loop {
            let after = all.last_key_value().map(|(tenant_id, _): (&TenantId, _)| tenant_id.clone());
            let page = self.pruner.prune.retention_by_tenant(after, PAGE_SIZE).await?;
            let is_last = page.len() < PAGE_SIZE;
            all.extend(
                page.into_iter().map(|(id, rules)| (id, server.for_tenant(&rules.quotas).cutoffs(now))),
            );
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Returns whether to stop: the engine stops, or this node is not the leader any more.
    fn should_stop(&self) -> bool {
        self.pruner.stop.is_cancelled() || !self.pruner.membership.is_leader()
    }

    async fn pause(&mut self, started: Duration) {
        let pause = self.stride.record_step(monotonic_now().saturating_sub(started));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.pruner.stop.cancelled() => {}
        }
    }

    fn prune_request<C>(&self, tenant_id: &TenantId, before: Time, after: Option<C>) -> PruneRequest<C> {
        let archive = self.pruner.settings.archive;
        let rows = if archive { self.stride.rows().min(ARCHIVE_BATCH_ROWS) } else { self.stride.rows() };
        PruneRequest { tenant_id: tenant_id.clone(), before, after, rows, archive }
    }

    fn record_counts(&mut self, counts: PruneCounts) {
        self.left.events += counts.events;
        self.left.deliveries += counts.deliveries;
        self.left.attempts += counts.attempts;
        self.pruner.metrics.pruned(&counts);
    }

    /// Prunes events of a tenant row by row. `earliest` is given if whole partitions are dropped as well.
    async fn events_of(
        &mut self,
        tenant_id: &TenantId,
        cutoffs: &Cutoffs,
        earliest: Option<Option<Time>>,
    ) -> Result<(), StoreError> {
        let Some(cutoff) = cutoffs.events else { return Ok(()) };
        let before = earliest.map_or(cutoff, |earliest| row_prune_cutoff(cutoff, earliest));
        let prune = &self.pruner.prune;
        if prune.oldest_event(tenant_id.clone()).await?.is_none_or(|oldest| oldest >= before) {
            return Ok(());
        }
        let mut after = None;
        while !self.should_stop() {
            let started = monotonic_now();
            let request = self.prune_request(tenant_id, before, after);
            let step = prune.prune_events(request).await?;
            self.record_counts(step.left);
            if step.finished {
                break;
            }
            after = step.last;
            self.pause(started).await;
        }
        Ok(())
    }

    async fn dead_of(&mut self, tenant_id: &TenantId, before: Time) -> Result<(), StoreError> {
        let mut after = None;
        while !self.should_stop() {
            let started = monotonic_now();
            let request = self.prune_request(tenant_id, before, after);
            let step = self.pruner.prune.prune_dead(request).await?;
            self.record_counts(step.left);
            if step.finished {
                break;
            }
            after = step.last;
            self.pause(started).await;
        }
        Ok(())
    }

    async fn drop_months(&mut self, before: Time, only_empty: bool) -> Result<(), StoreError> {
        let mut busy_count = 0;
        while busy_count < PARTITION_DROP_ATTEMPTS && !self.should_stop() {
            let started = monotonic_now();
            let rows = self.stride.rows();
            match self.pruner.prune.drop_oldest_partition(before, only_empty, rows).await? {
                PartitionDrop::None => break,
                PartitionDrop::Dropped { months } => {
                    self.months += months;
                    self.pruner.metrics.months_pruned.inc_by(months as u64);
                    self.pause(started).await;
                }
                PartitionDrop::Busy => {
                    busy_count += 1;
                    tokio::time::sleep(PARTITION_DROP_DELAY).await;
                }
            }
        }
        Ok(())
    }

    /// Prunes circuit periods by the retention of events.
    async fn periods(&mut self, cutoffs: &BTreeMap<TenantId, Cutoffs>) -> Result<(), StoreError> {
        let mut after = None;
        while !self.should_stop() {
            let page = self.pruner.prune.webhooks_with_periods(after, PAGE_SIZE).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            let is_last = page.len() < PAGE_SIZE;
            let before = |tenant_id| cutoffs.get(tenant_id).and_then(|cutoffs| cutoffs.events);
            let old: Vec<_> = page
                .iter()
                .filter_map(|(webhook_id, tenant_id)| Some((*webhook_id, before(tenant_id)?)))
                .collect();
            loop {
                let (started, rows) = (monotonic_now(), self.stride.rows());
                let pruned_rows = self.pruner.prune.prune_periods(old.clone(), rows).await?;
                self.pause(started).await;
                if pruned_rows < rows || self.should_stop() {
                    break;
                }
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Prunes addresses that were never confirmed, and email usage that no limit counts any more.
    async fn email_addresses(&mut self) -> Result<(), StoreError> {
        let now = self.pruner.clock.confirmed_now();
        let (unconfirmed, usage) =
            (now.saturating_sub(UNCONFIRMED_RETENTION), now.saturating_sub(USAGE_RETENTION));
        while !self.should_stop() {
            let (started, rows) = (monotonic_now(), self.stride.rows());
            if self.pruner.mail_addresses.prune_email_addresses(unconfirmed, usage, rows).await? < rows {
                break;
            }
            self.pause(started).await;
        }
        Ok(())
    }

    /// Prunes notifications.
    async fn prune_notifications(&mut self) -> Result<(), StoreError> {
        let before = self.pruner.clock.confirmed_now().saturating_sub(NOTIFICATION_RETENTION);
        while !self.should_stop() {
            let (started, rows) = (monotonic_now(), self.stride.rows());
            if self.pruner.notifications.prune_notifications(before, rows).await? < rows {
                break;
            }
            self.pause(started).await;
        }
        Ok(())
    }

    async fn update_oldest_event(&self, cutoffs: &BTreeMap<TenantId, Cutoffs>) -> Result<(), StoreError> {
        let mut oldest: Option<Time> = None;
        for tenant_id in cutoffs.keys() {
            let of_tenant = self.pruner.prune.oldest_event(tenant_id.clone()).await?;
            oldest = match (oldest, of_tenant) {
                (Some(oldest), Some(of_tenant)) => Some(oldest.min(of_tenant)),
                (oldest, of_tenant) => oldest.or(of_tenant),
            };
        }
        self.pruner.metrics.oldest_event.set(oldest.map_or(0, Time::secs));
        Ok(())
    }

    async fn reclaim_space(&mut self) -> Result<(), StoreError> {
        while !self.should_stop() {
            let started = monotonic_now();
            if self.pruner.prune.reclaim_space(RECLAIM_BYTES).await? == 0 {
                break;
            }
            self.pause(started).await;
        }
        Ok(())
    }
}

/// Returns the time before which no tenant keeps events; `None` if a tenant keeps events forever.
fn earliest(cutoffs: &BTreeMap<TenantId, Cutoffs>) -> Option<Time> {
    let mut earliest = Time::FAR_FUTURE;
    for cutoffs in cutoffs.values() {
        earliest = earliest.min(cutoffs.events?);
    }
    Some(earliest)
}

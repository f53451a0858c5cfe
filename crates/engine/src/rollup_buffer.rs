//! Rollup buffer: counts attempts of webhooks and ended deliveries of tenants in memory and adds them to the store
//! periodically.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{
    DeliveryStatus, FailureCategory, TenantId, Time, WebhookId,
    statistics::{
        rollup::Rollup,
        traffic::{EndedCounts, Resolution, Traffic},
    },
};
use redrive_store::{MinuteRollup, TenantRollup};

use crate::{ids::ById, routing::ResolvedWebhook};

/// Rollup rows written or pruned per store call.
const BATCH_SIZE: usize = 1_000;
/// Maximum number of minutes counted per webhook until a flush. Sending is suspended while the store accepts no writes,
/// so more are rare; attempts of further minutes are counted in the newest.
const MAX_MINUTES: usize = 15;

/// Counts that are not stored yet: attempts by webhook, and ended deliveries by tenant and minute.
#[derive(Default)]
pub(crate) struct RollupBuffer {
    sent: Mutex<AttemptCounts>,
    ended: Mutex<BTreeMap<(TenantId, Time), EndedCounts>>,
    /// Batch that is being stored.
    pub(crate) flushing: Mutex<Option<Arc<FlushBatch>>>,
    /// Sequence number for consistent reads, raised when a flush starts or ends: if it did not change while memory and
    /// store were read, no rollup was missed or counted twice.
    pub(crate) flush_seq: AtomicU64,
    /// Serializes flushes.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct AttemptCounts {
    /// Up to [`MAX_MINUTES`] minutes of each webhook; at least one.
    webhooks: ById<WebhookId, Vec<MinuteRollup>>,
    /// Webhooks by tenant, so that a query for one tenant does not scan all webhooks.
    by_tenant: HashMap<TenantId, Vec<WebhookId>>,
}

impl AttemptCounts {
    /// Returns the counts of a webhook for this minute; starts them if there are none.
    fn entry(&mut self, tenant_id: &TenantId, webhook_id: WebhookId, minute: Time) -> &mut Rollup {
        let minutes = match self.webhooks.entry(webhook_id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                self.by_tenant.entry(tenant_id.clone()).or_default().push(webhook_id);
                vacant.insert(Vec::with_capacity(1))
            }
        };
        let index = match minutes.iter().rposition(|one| one.minute == minute) {
            Some(index) => index,
            None if minutes.len() < MAX_MINUTES => {
                let rollup = Rollup::default();
                minutes.push(MinuteRollup { tenant_id: tenant_id.clone(), webhook_id, minute, rollup });
                minutes.len() - 1
            }
            None => minutes.len() - 1,
        };
        &mut minutes[index].rollup
    }

    fn tenant_rollups(&self, tenant_id: &TenantId) -> impl Iterator<Item = &MinuteRollup> {
        let webhooks = self.by_tenant.get(tenant_id).into_iter().flatten();
        webhooks.filter_map(|webhook_id| self.webhooks.get(webhook_id)).flatten()
    }
}

/// Counts that one store call writes.
#[derive(Default)]
pub(crate) struct FlushBatch {
    pub(crate) minutes: Vec<MinuteRollup>,
    ended: BTreeMap<(TenantId, Time), EndedCounts>,
}

impl FlushBatch {
    /// Returns the minute and hour rows of tenants for this batch.
    pub(crate) fn traffic(&self) -> Vec<TenantRollup> {
        let mut sums: BTreeMap<(TenantId, Resolution, Time), Traffic> = BTreeMap::new();
        for resolution in Resolution::ALL {
            let key = |tenant_id: &TenantId, at| (tenant_id.clone(), resolution, resolution.start(at));
            for one in &self.minutes {
                sums.entry(key(&one.tenant_id, one.minute)).or_default().sent.merge(&one.rollup);
            }
            for ((tenant_id, minute), ended) in &self.ended {
                sums.entry(key(tenant_id, *minute)).or_default().ended.add(*ended);
            }
        }
        let row = |((tenant_id, resolution, start), traffic)| {
            let expires_at = Resolution::expires_at(resolution, start);
            TenantRollup { tenant_id, resolution, start, expires_at, traffic }
        };
        sums.into_iter().map(row).collect()
    }
}

impl RollupBuffer {
    /// Counts an attempt.
    pub(crate) fn record_attempt(
        &self,
        webhook: &ResolvedWebhook,
        took: Duration,
        category: Option<FailureCategory>,
        now: Time,
    ) {
        let mut sent = self.sent.lock();
        let counted = sent.entry(&webhook.tenant.id, webhook.id, minute_of(now));
        counted.add(took.as_micros() as u64, category, now);
    }

    /// Counts `count` ended deliveries of a tenant.
    pub(crate) fn record_ended(&self, tenant_id: &TenantId, status: DeliveryStatus, count: u64, now: Time) {
        let mut ended = EndedCounts::default();
        match status {
            DeliveryStatus::Delivered => ended.delivered = count,
            DeliveryStatus::Dead => ended.dead = count,
            DeliveryStatus::Cancelled => ended.cancelled = count,
            DeliveryStatus::Pending | DeliveryStatus::InFlight => return,
        }
        if count == 0 {
            return;
        }
        self.ended.lock().entry((tenant_id.clone(), minute_of(now))).or_default().add(ended);
    }

    /// Returns the counts of a tenant that are not stored yet, by minute.
    pub(crate) fn traffic_of(&self, tenant_id: &TenantId) -> BTreeMap<Time, Traffic> {
        let mut sums: BTreeMap<Time, Traffic> = BTreeMap::new();
        let mut add = |one: &MinuteRollup| sums.entry(one.minute).or_default().sent.merge(&one.rollup);
        self.sent.lock().tenant_rollups(tenant_id).for_each(&mut add);
        let batch = self.flushing_batch();
        batch.minutes.iter().filter(|one| one.tenant_id == *tenant_id).for_each(add);
        let mut add = |all: &BTreeMap<(TenantId, Time), EndedCounts>| {
            let from = (tenant_id.clone(), Time::default());
            for ((_, minute), ended) in all.range(from..).take_while(|((tenant, _), _)| tenant == tenant_id) {
                sums.entry(*minute).or_default().ended.add(*ended);
            }
        };
        add(&self.ended.lock());
        add(&batch.ended);
        sums
    }

    /// Returns the counts of all tenants that are not stored yet, by minute.
    pub(crate) fn traffic_of_all_tenants(&self) -> BTreeMap<Time, Traffic> {
        let mut sums: BTreeMap<Time, Traffic> = BTreeMap::new();
        let mut add = |one: &MinuteRollup| sums.entry(one.minute).or_default().sent.merge(&one.rollup);
        self.sent.lock().webhooks.values().flatten().for_each(&mut add);
        let batch = self.flushing_batch();
        batch.minutes.iter().for_each(add);
        let mut add = |all: &BTreeMap<(TenantId, Time), EndedCounts>| {
            for ((_, minute), ended) in all {
                sums.entry(*minute).or_default().ended.add(*ended);
            }
        };
        add(&self.ended.lock());
        add(&batch.ended);
        sums
    }

    /// Returns the failed attempts of a tenant that are not stored yet, by webhook, from this minute on.
    pub(crate) fn failures_of(&self, tenant_id: &TenantId, from: Time) -> Vec<(WebhookId, u64)> {
        let mut failed = Vec::new();
        let mut add = |one: &MinuteRollup| {
            if one.rollup.failures() > 0 && one.minute >= from {
                failed.push((one.webhook_id, u64::from(one.rollup.failures())));
            }
        };
        self.sent.lock().tenant_rollups(tenant_id).for_each(&mut add);
        self.flushing_batch().minutes.iter().filter(|one| one.tenant_id == *tenant_id).for_each(add);
        failed
    }

    fn flushing_batch(&self) -> Arc<FlushBatch> {
        self.flushing.lock().clone().unwrap_or_default()
    }

    pub(crate) fn pending_rollups(&self, webhooks: &[WebhookId]) -> Vec<MinuteRollup> {
        let mut found: Vec<_> = {
            let sent = self.sent.lock();
            webhooks
                .iter()
                .filter_map(|webhook_id| sent.webhooks.get(webhook_id))
                .flatten()
                .cloned()
                .collect()
        };
        let batch = self.flushing_batch();
        found.extend(batch.minutes.iter().filter(|one| webhooks.contains(&one.webhook_id)).cloned());
        found
    }

    /// Returns an upper bound of the batches needed to store everything counted so far.
    pub(crate) fn steps_to_go(&self) -> usize {
        let sent: usize = self.sent.lock().webhooks.values().map(Vec::len).sum();
        let ended = self.ended.lock().len();
        // Webhooks of one tenant stay in one batch where possible, so some batches are not full.
        2 * sent.div_ceil(BATCH_SIZE) + ended.div_ceil(BATCH_SIZE)
    }

    /// Takes the next batch to store. Webhooks of one tenant stay together as far as they fit.
    pub(crate) fn take(&self) -> Option<Arc<FlushBatch>> {
        let (mut sent, mut ended) = (self.sent.lock(), self.ended.lock());
        let AttemptCounts { webhooks: counted, by_tenant } = &mut *sent;
        let mut part = FlushBatch::default();
        while part.minutes.len() + MAX_MINUTES <= BATCH_SIZE
            && let Some(tenant_id) = by_tenant.keys().next().cloned()
        {
            let Entry::Occupied(mut webhooks) = by_tenant.entry(tenant_id) else { break };
            while part.minutes.len() + MAX_MINUTES <= BATCH_SIZE
                && let Some(webhook_id) = webhooks.get_mut().pop()
            {
                part.minutes.extend(counted.remove(&webhook_id).into_iter().flatten());
            }
            if webhooks.get().is_empty() {
                webhooks.remove();
            }
        }
        for one in &part.minutes {
            let key = (one.tenant_id.clone(), one.minute);
            if let Some(ends) = ended.remove(&key) {
                part.ended.insert(key, ends);
            }
        }
        if part.minutes.is_empty() {
            let rest =
                ended.keys().nth(BATCH_SIZE).cloned().map(|key| ended.split_off(&key)).unwrap_or_default();
            part.ended = std::mem::replace(&mut ended, rest);
        }
        if part.minutes.is_empty() && part.ended.is_empty() {
            return None;
        }
        let part = Arc::new(part);
        *self.flushing.lock() = Some(part.clone());
        self.flush_seq.fetch_add(1, SeqCst);
        Some(part)
    }

    /// Ends a flush: the batch is in the store, or was restored to the buffer.
    pub(crate) fn finish_flush(&self) {
        self.flushing.lock().take();
        self.flush_seq.fetch_add(1, SeqCst);
    }

    /// Restores a batch that the store did not accept.
    pub(crate) fn restore(&self, part: &FlushBatch) {
        let mut sent = self.sent.lock();
        for back in &part.minutes {
            sent.entry(&back.tenant_id, back.webhook_id, back.minute).merge(&back.rollup);
        }
        let mut ended = self.ended.lock();
        for (key, back) in &part.ended {
            ended.entry(key.clone()).or_default().add(*back);
        }
    }
}

pub(crate) fn minute_of(time: Time) -> Time {
    Resolution::Minute.start(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u32) -> Time {
        Time::from_secs(1_700_000_000 / 3600 * 3600 + secs)
    }

    fn webhook(n: u8) -> WebhookId {
        WebhookId::from_bytes([n; 16])
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn count(health: &RollupBuffer, name: &str, webhook: u8, category: Option<FailureCategory>, now: Time) {
        let mut sent = health.sent.lock();
        sent.entry(&tenant(name), super::tests::webhook(webhook), minute_of(now)).add(1000, category, now);
    }

    #[test]
    fn minutes_add_up_to_tenant_minutes_and_hours() {
        let health = RollupBuffer::default();
        for webhook in [1, 2, 2] {
            count(&health, "acme", webhook, None, at(10));
        }
        count(&health, "acme", 3, Some(FailureCategory::Dns), at(3599));
        count(&health, "globex", 4, None, at(0));
        health.record_ended(&tenant("acme"), DeliveryStatus::Delivered, 3, at(12));
        health.record_ended(&tenant("acme"), DeliveryStatus::Dead, 2, at(3600));
        health.record_ended(&tenant("initech"), DeliveryStatus::Cancelled, 1, at(5));
        health.record_ended(&tenant("initech"), DeliveryStatus::Pending, 9, at(5));
        assert_eq!(health.traffic_of(&tenant("acme")).len(), 3);
        let of_all = health.traffic_of_all_tenants();
        assert_eq!(of_all[&at(0)].sent.attempts, 4);
        let ended = EndedCounts { delivered: 3, dead: 0, cancelled: 1 };
        assert_eq!(of_all[&at(0)].ended, ended);

        let mut rows: BTreeMap<(String, Resolution, Time), Traffic> = BTreeMap::new();
        let first = health.take();
        assert_eq!(health.traffic_of(&tenant("acme")).len(), 3, "a batch being stored is still counted");
        for part in std::iter::successors(first, |_| health.take()) {
            for row in part.traffic() {
                assert_eq!(row.expires_at, row.start + row.resolution.retention());
                let key = (row.tenant_id.as_str().to_owned(), row.resolution, row.start);
                rows.entry(key).or_default().merge(&row.traffic);
            }
        }
        let seen = |name: &str, resolution, start| {
            let one = &rows[&(name.to_owned(), resolution, start)];
            (one.sent.attempts, one.sent.successes, one.ended.delivered, one.ended.dead, one.ended.cancelled)
        };
        assert_eq!(seen("acme", Resolution::Minute, at(0)), (3, 3, 3, 0, 0));
        assert_eq!(seen("acme", Resolution::Minute, at(3540)), (1, 0, 0, 0, 0));
        assert_eq!(seen("acme", Resolution::Minute, at(3600)), (0, 0, 0, 2, 0));
        assert_eq!(seen("acme", Resolution::Hour, at(0)), (4, 3, 3, 0, 0));
        assert_eq!(seen("acme", Resolution::Hour, at(3600)), (0, 0, 0, 2, 0));
        assert_eq!(seen("globex", Resolution::Minute, at(0)), (1, 1, 0, 0, 0));
        assert_eq!(seen("initech", Resolution::Hour, at(0)), (0, 0, 0, 0, 1));
        assert_eq!(rows.len(), 9);
        health.finish_flush();
        assert!(health.take().is_none() && health.traffic_of(&tenant("acme")).is_empty());
    }

    #[test]
    fn failed_flush_is_counted_once() {
        let health = RollupBuffer::default();
        for n in 0..2500u32 {
            let mut sent = health.sent.lock();
            let mut id = [0; 16];
            id[12..].copy_from_slice(&n.to_be_bytes());
            let tenant_id = tenant(if n % 5 == 0 { "acme" } else { "globex" });
            sent.entry(&tenant_id, WebhookId::from_bytes(id), at(0)).add(1000, None, at(1));
        }
        for minute in 0..1500 {
            health.record_ended(&tenant("acme"), DeliveryStatus::Delivered, 1, at(60 * minute));
        }
        let seen = || {
            let mut sum = Traffic::default();
            health.traffic_of(&tenant("acme")).values().for_each(|one| sum.merge(one));
            (sum.sent.attempts, sum.ended.delivered)
        };
        let steps = health.steps_to_go();
        let mut parts = Vec::new();
        health.restore(&health.take().unwrap());
        health.finish_flush();
        assert_eq!(seen(), (500, 1500), "the failed batch is in memory again");
        while let Some(part) = health.take() {
            assert!(part.minutes.len() <= BATCH_SIZE && part.ended.len() <= BATCH_SIZE);
            health.finish_flush();
            parts.push(part);
        }
        assert!(parts.len() <= steps, "{} of {steps}", parts.len());
        assert_eq!(seen(), (0, 0));
        let minutes: usize = parts.iter().map(|part| part.minutes.len()).sum();
        assert_eq!((minutes, parts.iter().map(|part| part.ended.len()).sum::<usize>()), (2500, 1500));
    }

    #[test]
    fn attempts_between_two_flushes_are_counted_in_their_own_minutes() {
        let health = RollupBuffer::default();
        let counted = |health: &RollupBuffer| {
            let mut counted: Vec<_> = health
                .pending_rollups(&[webhook(1)])
                .iter()
                .map(|one| (one.minute, one.rollup.attempts))
                .collect();
            counted.sort_unstable();
            counted
        };
        for second in [0, 59, 60, 1800, 61] {
            count(&health, "acme", 1, Some(FailureCategory::Dns), at(second));
        }
        assert_eq!(counted(&health), [(at(0), 2), (at(60), 2), (at(1800), 1)]);
        assert_eq!(health.failures_of(&tenant("acme"), at(1800)), [(webhook(1), 1)]);
        let failed = health.take().unwrap();
        count(&health, "acme", 1, None, at(62));
        health.restore(&failed);
        health.finish_flush();
        assert_eq!(counted(&health), [(at(0), 2), (at(60), 3), (at(1800), 1)]);
        for minute in 0..100 {
            count(&health, "acme", 1, None, at(7200 + 60 * minute));
        }
        let minutes = counted(&health);
        assert_eq!((minutes.len(), minutes.iter().map(|one| one.1).sum::<u32>()), (MAX_MINUTES, 106));
    }
}

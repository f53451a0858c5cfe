//! How webhooks do, minute by minute: counted in memory as answers come in, added to the store now and then.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use std::collections::HashMap;

use redrive_core::{DeliveryStatus, FailureCategory, TenantId, Time, WebhookId, health::Rollup};
use redrive_store::{Ended, EndedSlot, MinuteRollup, StoreError};

use crate::{Engine, Inner, ids::ById};

/// How often counts are added to the store; a crash forgets at most what came since.
const FLUSH: Duration = Duration::from_secs(5);
/// How long minutes are kept.
const KEPT: Duration = Duration::from_secs(25 * 3600);
/// Minutes written or forgotten in one step.
const STEP: usize = 1_000;
const MINUTE: i64 = 60_000;
/// How exactly it is known when deliveries of a tenant ended.
const SLOT: i64 = 5 * MINUTE;

/// What was counted and not yet stored: by webhook, and by tenant.
#[derive(Default)]
pub(crate) struct Health(Mutex<ById<WebhookId, (Time, Rollup)>>, Mutex<HashMap<(TenantId, Time), Ended>>);

impl Health {
    /// Counts an answer. Of a webhook there is one minute at a time: the one before it is handed to whoever
    /// flushes next.
    pub(crate) fn add(
        &self,
        webhook: WebhookId,
        took: Duration,
        category: Option<FailureCategory>,
        now: Time,
    ) {
        let minute = minute_of(now);
        let mut counted = self.0.lock();
        let (begun, rollup) = counted.entry(webhook).or_insert_with(|| (minute, Rollup::default()));
        if rollup.attempts == 0 {
            *begun = minute;
        }
        // Answers around the turn of a minute may be counted in the one before.
        rollup.add(took.as_micros() as u64, category, now);
    }

    /// Counts so many deliveries of a tenant that are over.
    pub(crate) fn ended(&self, tenant: &TenantId, status: DeliveryStatus, count: u64, now: Time) {
        let mut ended = Ended::default();
        match status {
            DeliveryStatus::Delivered => ended.delivered = count,
            DeliveryStatus::Dead => ended.dead = count,
            DeliveryStatus::Cancelled => ended.cancelled = count,
            DeliveryStatus::Pending | DeliveryStatus::InFlight => return,
        }
        let mut counted = self.1.lock();
        counted.entry((tenant.clone(), slot_of(now))).or_default().add(ended);
    }

    fn take_ended(&self) -> Vec<EndedSlot> {
        let counted = std::mem::take(&mut *self.1.lock());
        counted.into_iter().map(|((tenant, slot), ended)| EndedSlot { tenant, slot, ended }).collect()
    }

    /// What was counted of a tenant and is not stored yet.
    fn ended_of(&self, tenant: &TenantId) -> Vec<(Time, Ended)> {
        let counted = self.1.lock();
        let of_tenant = counted.iter().filter(|((whose, _), _)| whose == tenant);
        of_tenant.map(|((_, slot), ended)| (*slot, *ended)).collect()
    }

    fn put_back_ended(&self, ended: &[EndedSlot]) {
        let mut counted = self.1.lock();
        for back in ended {
            counted.entry((back.tenant.clone(), back.slot)).or_default().add(back.ended);
        }
    }

    fn take(&self) -> Vec<MinuteRollup> {
        let counted = std::mem::take(&mut *self.0.lock());
        let rollups = counted.into_iter();
        rollups.map(|(webhook, (minute, rollup))| MinuteRollup { webhook, minute, rollup }).collect()
    }

    fn of(&self, webhook: WebhookId) -> Option<(Time, Rollup)> {
        self.0.lock().get(&webhook).cloned()
    }

    /// Takes back what the store did not take.
    fn put_back(&self, rollups: &[MinuteRollup]) {
        let mut counted = self.0.lock();
        for back in rollups {
            let (minute, rollup) =
                counted.entry(back.webhook).or_insert_with(|| (back.minute, Rollup::default()));
            *minute = back.minute.min(*minute);
            rollup.merge(&back.rollup);
        }
    }
}

fn minute_of(time: Time) -> Time {
    Time::from_millis(time.millis() / MINUTE * MINUTE)
}

fn slot_of(time: Time) -> Time {
    Time::from_millis(time.millis() / SLOT * SLOT)
}

impl Inner {
    /// Adds what was counted to the store, now and then, and forgets what is old.
    pub(crate) async fn keep_counting(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(FLUSH) => {}
                () = self.stop.cancelled() => return,
            }
            self.flush_health().await;
            let now = self.clock.now();
            self.coordination.tidy(now, &|webhook| self.registry.hook(webhook));
            let old = now.back(KEPT);
            while matches!(self.store.forget_rollups(old, STEP).await, Ok(STEP)) {
                tokio::task::yield_now().await;
            }
            while matches!(self.store.forget_ended(old, STEP).await, Ok(STEP)) {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) async fn flush_health(&self) {
        for part in self.health.take().chunks(STEP) {
            if let Err(error) = self.store.add_rollups(part.to_vec()).await {
                tracing::debug!(%error, "statistics are added to the store later");
                self.health.put_back(part);
            }
        }
        for part in self.health.take_ended().chunks(STEP) {
            if let Err(error) = self.store.add_ended(part.to_vec()).await {
                tracing::debug!(%error, "statistics are added to the store later");
                self.health.put_back_ended(part);
            }
        }
    }
}

impl Engine {
    /// How many deliveries of a tenant ended from some time on, to five minutes, and how. Of those that other
    /// nodes counted in the last seconds nothing is known yet.
    pub async fn ended(&self, tenant: TenantId, from: Time) -> Result<Ended, StoreError> {
        let from = slot_of(from);
        let mut sum = Ended::default();
        let counted = self.0.health.ended_of(&tenant);
        let stored = self.0.store.ended(tenant, from).await?;
        let since = |(slot, _): &(Time, Ended)| *slot >= from;
        stored.into_iter().chain(counted).filter(since).for_each(|(_, ended)| sum.add(ended));
        Ok(sum)
    }

    /// How a webhook did from some time on, to the minute.
    pub async fn rollups(&self, webhook: WebhookId, from: Time) -> Result<Vec<MinuteRollup>, StoreError> {
        let mut rollups = self.0.store.rollups(webhook, minute_of(from)).await?;
        if let Some((minute, rollup)) = self.0.health.of(webhook) {
            rollups.push(MinuteRollup { webhook, minute, rollup });
        }
        Ok(rollups)
    }

    /// When a webhook last took a delivery.
    pub async fn last_success(&self, webhook: WebhookId) -> Result<Option<Time>, StoreError> {
        let stored = self.0.store.last_success(webhook).await?;
        let counted = self.0.health.of(webhook).and_then(|(_, rollup)| rollup.last_success_at);
        Ok(stored.max(counted))
    }
}

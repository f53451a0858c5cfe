//! How webhooks do, minute by minute: counted in memory as answers come in, added to the store now and then.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{FailureCategory, Time, WebhookId, health::Rollup};
use redrive_store::{MinuteRollup, StoreError};

use crate::{Engine, Inner, ids::ById};

/// How often counts are added to the store; a crash forgets at most what came since.
const FLUSH: Duration = Duration::from_secs(5);
/// How long minutes are kept.
const KEPT: Duration = Duration::from_secs(25 * 3600);
/// Minutes written or forgotten in one step.
const STEP: usize = 1_000;
const MINUTE: i64 = 60_000;

/// What was counted and not yet stored.
#[derive(Default)]
pub(crate) struct Health(Mutex<ById<WebhookId, (Time, Rollup)>>);

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
        }
    }

    pub(crate) async fn flush_health(&self) {
        for part in self.health.take().chunks(STEP) {
            if let Err(error) = self.store.add_rollups(part.to_vec()).await {
                tracing::debug!(%error, "statistics are added to the store later");
                self.health.put_back(part);
            }
        }
    }
}

impl Engine {
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

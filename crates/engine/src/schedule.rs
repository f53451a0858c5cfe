//! Scheduler: claims from the store at the next due time, when a lane has capacity again, or when woken. Also
//! rescues leases of dead epochs, cancels deliveries of inactive webhooks, and prunes expired idempotency keys and old
//! bulk operations.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use redrive_core::{DeliveryStatus, Time};
use redrive_store::{BatchProgress, Epoch, StoreError};
use tokio::sync::Notify;

use crate::{Inner, queue::ClaimResult};

/// Maximum time between two claims, in case a wake-up was missed.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time between two claims in a cluster, where the hint of another node's publish may be lost.
const MAX_POLL_INTERVAL_SHARED: Duration = Duration::from_secs(1);
/// Delay after a failure of the store.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Deliveries moved per step of a rescue or a cancellation.
const MOVE_BATCH_SIZE: usize = 1_000;
/// Idempotency keys pruned per step.
const PRUNE_BATCH_SIZE: usize = 2_000;
/// Retention of ended bulk operations.
const OPERATION_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// Interval between maintenance runs.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// How far ahead the store creates partitions, and the number of maintenance runs between two checks for that.
pub(crate) const PARTITION_HORIZON: Duration = Duration::from_secs(40 * 24 * 3600);
const PARTITION_CHECK_EVERY: usize = 60;

/// Wakes the scheduler immediately, or at a time earlier than its current deadline.
pub(crate) struct Wakeup {
    /// Deadline in milliseconds.
    deadline_ms: AtomicI64,
    notify: Notify,
}

impl Wakeup {
    pub(crate) fn new() -> Self {
        Self { deadline_ms: AtomicI64::new(i64::MAX), notify: Notify::new() }
    }

    /// Wakes the scheduler now.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Wakes the scheduler no later than `at`.
    pub(crate) fn wake_at(&self, at: Time) {
        if self.deadline_ms.fetch_min(at.millis(), Relaxed) > at.millis() {
            self.notify.notify_one();
        }
    }
}

impl Inner {
    /// Claims due deliveries until the engine stops.
    pub(crate) async fn run_scheduler(self: Arc<Self>) {
        loop {
            let next_claim_at = match self.claim_due().await {
                Ok(ClaimResult::Claimed) => yield_and_read_clock(&self).await,
                Ok(ClaimResult::Idle(next)) => next,
                Err(error) => {
                    tracing::warn!(%error, "claiming due deliveries failed; will retry");
                    if error == StoreError::Fenced {
                        self.membership.check_epoch_now();
                    }
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                    None
                }
            };
            if self.stop.is_cancelled() {
                return;
            }
            self.wait_for_work(next_claim_at).await;
        }
    }

    async fn wait_for_work(&self, until: Option<Time>) {
        let wakeup = &self.scheduler_wakeup;
        let until = until.map_or(i64::MAX, Time::millis);
        let earliest = wakeup.deadline_ms.fetch_min(until, Relaxed).min(until);
        let longest = if self.membership.is_shared() { MAX_POLL_INTERVAL_SHARED } else { MAX_POLL_INTERVAL };
        tokio::select! {
            () = self.clock.sleep_until(Time::from_millis(earliest)), if earliest < i64::MAX => {}
            () = tokio::time::sleep(longest) => {}
            () = wakeup.notify.notified() => {}
            () = self.stop.cancelled() => {}
        }
        // Work announced after this point is found by the claim that follows, so a deadline that has passed can be
        // reset.
        let now = self.clock.now().millis();
        if wakeup.deadline_ms.load(Relaxed) <= now {
            wakeup.deadline_ms.store(i64::MAX, Relaxed);
        }
    }

    /// Rescues the leases of all former epochs. If only one process uses the store at a time, they are all dead.
    pub(crate) async fn rescue_all(self: Arc<Self>) {
        loop {
            match self.store.other_epochs(self.membership.current_epoch().epoch).await {
                Ok(others) if others.is_empty() => return,
                // An engine that was stopped must not end the epoch of its successor.
                Ok(_) if self.stop.is_cancelled() => return,
                Ok(others) => {
                    for dead in others {
                        self.rescue(dead).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "rescuing leases of a dead epoch failed; will retry");
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                }
            }
            if self.stop.is_cancelled() {
                return;
            }
        }
    }

    /// Makes the deliveries leased by a dead epoch due again, in small steps.
    pub(crate) async fn rescue(&self, dead: Epoch) {
        let mut rescued = 0;
        loop {
            let step = match self.store.rescue(dead, self.clock.now(), MOVE_BATCH_SIZE).await {
                Ok(step) => step,
                Err(error) => {
                    tracing::warn!(%error, "rescuing leases of a dead epoch failed; will retry");
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                    return;
                }
            };
            rescued += step.changed;
            self.scheduler_wakeup.wake();
            if step.finished {
                if rescued > 0 {
                    tracing::info!(epoch = dead.0, rescued, "rescued leases of a dead epoch");
                }
                return;
            }
        }
    }

    /// Cancels the waiting deliveries of inactive webhooks whenever there are some, until the engine stops.
    pub(crate) async fn run_cancellation(self: Arc<Self>) {
        loop {
            self.cancel_for_inactive_webhooks().await;
            tokio::select! {
                () = self.cancellation_wakeup.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Cancels the waiting deliveries of inactive webhooks, in small steps.
    async fn cancel_for_inactive_webhooks(&self) {
        loop {
            let inactive_webhooks = match self.store.webhooks_to_cancel_for().await {
                Ok(inactive_webhooks) if inactive_webhooks.is_empty() => return,
                Ok(inactive_webhooks) => inactive_webhooks,
                Err(_) if self.stop.is_cancelled() => return,
                Err(_) => {
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                    continue;
                }
            };
            for webhook in inactive_webhooks {
                let reason = webhook.state.cancel_reason().unwrap_or_default();
                let now = self.clock.now();
                match self.store.cancel_pending(webhook.id, reason.to_owned(), now, MOVE_BATCH_SIZE).await {
                    Ok(BatchProgress { changed: cancelled, .. }) => {
                        self.rollups.record_ended(
                            &webhook.tenant_id,
                            DeliveryStatus::Cancelled,
                            cancelled as u64,
                            now,
                        );
                    }
                    Err(error) => {
                        tracing::warn!(webhook_id = %webhook.id, %error, "cancelling pending deliveries failed; will retry");
                        tokio::time::sleep(STORE_RETRY_DELAY).await;
                    }
                }
            }
            if self.stop.is_cancelled() {
                return;
            }
        }
    }

    /// Prunes expired idempotency keys and old bulk operations, and creates partitions ahead of time.
    pub(crate) async fn run_maintenance(self: Arc<Self>) {
        for pass in 1.. {
            tokio::select! {
                () = tokio::time::sleep(MAINTENANCE_INTERVAL) => {}
                () = self.stop.cancelled() => return,
            }
            if pass % PARTITION_CHECK_EVERY == 1
                && let Err(error) = self.store.ensure_partitions(self.clock.now() + PARTITION_HORIZON).await
            {
                tracing::warn!(%error, "creating partitions for later events failed; will retry");
            }
            while matches!(
                self.store.prune_idempotency_keys(self.clock.confirmed_now(), PRUNE_BATCH_SIZE).await,
                Ok(PRUNE_BATCH_SIZE)
            ) {
                tokio::task::yield_now().await;
            }
            let old = self.clock.confirmed_now().saturating_sub(OPERATION_RETENTION);
            if let Err(error) = self.store.prune_operations(old, PRUNE_BATCH_SIZE).await {
                tracing::warn!(%error, "pruning old bulk operations failed; will retry");
            }
        }
    }
}

/// Yields to other tasks and returns the current time as the time of the next claim.
async fn yield_and_read_clock(inner: &Inner) -> Option<Time> {
    // Due now: the wait that follows ends immediately.
    tokio::task::yield_now().await;
    Some(inner.clock.now())
}

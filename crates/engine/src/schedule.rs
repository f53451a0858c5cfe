//! When to look into the store: at the next due time, when a lane has room again, or when somebody rings.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use redrive_core::{DeliveryStatus, Time};
use redrive_store::{Epoch, Step, StoreError};
use tokio::sync::Notify;

use crate::{Inner, queue::Round};

/// The longest time between two looks, should a ring ever be missed.
const LONGEST_NAP: Duration = Duration::from_secs(5);
/// The same where other nodes make work, and the store's hint of it may be lost.
const LONGEST_NAP_OF_MANY: Duration = Duration::from_secs(1);
/// After a failure of the store.
const AFTER_FAILURE: Duration = Duration::from_millis(500);
/// Deliveries moved by one step of a rescue or a sweep.
const STEP: usize = 1_000;
/// Idempotency keys forgotten in one step.
const KEYS: usize = 2_000;
/// How long bulk operations are remembered once they are over.
const OPERATIONS_KEPT: Duration = Duration::from_secs(90 * 24 * 3600);
/// How often expired idempotency keys are forgotten.
const HOUSEKEEPING: Duration = Duration::from_secs(60);
/// How far ahead the store makes room for events, and after how many rounds of housekeeping it is asked to.
pub(crate) const AHEAD: Duration = Duration::from_secs(40 * 24 * 3600);
const ROUNDS: usize = 60;

/// Wakes the scheduler: at once, or by a time that is earlier than the one it sleeps for.
pub(crate) struct Alarm {
    /// Milliseconds of the time it is set for.
    set_for: AtomicI64,
    ringing: Notify,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self { set_for: AtomicI64::new(i64::MAX), ringing: Notify::new() }
    }

    /// Look now.
    pub(crate) fn ring(&self) {
        self.ringing.notify_one();
    }

    /// Look no later than `at`.
    pub(crate) fn ring_at(&self, at: Time) {
        if self.set_for.fetch_min(at.millis(), Relaxed) > at.millis() {
            self.ringing.notify_one();
        }
    }
}

impl Inner {
    /// Claims whatever is due, for as long as the engine runs.
    pub(crate) async fn keep_scheduling(self: Arc<Self>) {
        loop {
            let nap_until = match self.claim_round().await {
                Ok(Round::Busy) => continue_unless_stopped(&self).await,
                Ok(Round::Idle(next)) => next,
                Err(error) => {
                    tracing::warn!(%error, "due deliveries cannot be claimed now");
                    if error == StoreError::Fenced {
                        self.fleet.alarm();
                    }
                    tokio::time::sleep(AFTER_FAILURE).await;
                    None
                }
            };
            if self.stop.is_cancelled() {
                return;
            }
            self.nap(nap_until).await;
        }
    }

    async fn nap(&self, until: Option<Time>) {
        let alarm = &self.alarm;
        let until = until.map_or(i64::MAX, Time::millis);
        let earliest = alarm.set_for.fetch_min(until, Relaxed).min(until);
        let longest = if self.fleet.is_shared() { LONGEST_NAP_OF_MANY } else { LONGEST_NAP };
        tokio::select! {
            () = self.clock.sleep_until(Time::from_millis(earliest)), if earliest < i64::MAX => {}
            () = tokio::time::sleep(longest) => {}
            () = alarm.ringing.notified() => {}
            () = self.stop.cancelled() => {}
        }
        // Whoever rings from here on is heard by the look that follows.
        let now = self.clock.now().millis();
        if alarm.set_for.load(Relaxed) <= now {
            alarm.set_for.store(i64::MAX, Relaxed);
        }
    }

    /// Takes back what former epochs left behind. On a store that one process has at a time they are all dead.
    pub(crate) async fn rescue_all(self: Arc<Self>) {
        loop {
            match self.store.others(self.fleet.term().epoch).await {
                Ok(others) if others.is_empty() => return,
                // An engine that was stopped must not end the epoch of its successor.
                Ok(_) if self.stop.is_cancelled() => return,
                Ok(others) => {
                    for dead in others {
                        self.rescue(dead).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "orphaned deliveries cannot be rescued yet");
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            }
            if self.stop.is_cancelled() {
                return;
            }
        }
    }

    /// Makes what a dead epoch had due again, in small steps.
    pub(crate) async fn rescue(&self, dead: Epoch) {
        let mut rescued = 0;
        loop {
            let step = match self.store.rescue(dead, self.clock.now(), STEP).await {
                Ok(step) => step,
                Err(error) => {
                    tracing::warn!(%error, "orphaned deliveries cannot be rescued yet");
                    tokio::time::sleep(AFTER_FAILURE).await;
                    return;
                }
            };
            rescued += step.moved;
            self.alarm.ring();
            if step.finished {
                if rescued > 0 {
                    tracing::info!(
                        epoch = dead.0,
                        rescued,
                        "what a dead node or a former process had is due again"
                    );
                }
                return;
            }
        }
    }

    /// Cancels, in small steps, what waits for webhooks that have ended.
    pub(crate) async fn sweep_all(self: Arc<Self>) {
        // One at a time: another one would only be in its way.
        let _turn = self.sweeping.lock().await;
        loop {
            let over = match self.store.sweeping().await {
                Ok(over) if over.is_empty() => return,
                Ok(over) => over,
                Err(_) => {
                    tokio::time::sleep(AFTER_FAILURE).await;
                    continue;
                }
            };
            for webhook in over {
                let reason = webhook.state.cancels_because().unwrap_or_default();
                let now = self.clock.now();
                match self.store.sweep(webhook.id, reason.to_owned(), now, STEP).await {
                    Ok(Step { moved, .. }) => {
                        self.health.ended(&webhook.tenant, DeliveryStatus::Cancelled, moved as u64, now);
                    }
                    Err(error) => {
                        tracing::warn!(webhook_id = %webhook.id, %error, "pending deliveries cannot be cancelled yet");
                        tokio::time::sleep(AFTER_FAILURE).await;
                    }
                }
            }
            if self.stop.is_cancelled() {
                return;
            }
        }
    }

    /// Forgets idempotency keys that have expired, and has room made for what is to come.
    pub(crate) async fn keep_house(self: Arc<Self>) {
        for round in 1.. {
            tokio::select! {
                () = tokio::time::sleep(HOUSEKEEPING) => {}
                () = self.stop.cancelled() => return,
            }
            if round % ROUNDS == 0
                && let Err(error) = self.store.prepare(self.clock.now() + AHEAD).await
            {
                tracing::warn!(%error, "the store has made no room for later events yet");
            }
            while matches!(self.store.forget_keys(self.clock.confirmed_now(), KEYS).await, Ok(KEYS)) {
                tokio::task::yield_now().await;
            }
            let old = self.clock.confirmed_now().back(OPERATIONS_KEPT);
            if let Err(error) = self.store.forget_operations(old, KEYS).await {
                tracing::warn!(%error, "old bulk operations cannot be forgotten yet");
            }
        }
    }
}

async fn continue_unless_stopped(inner: &Inner) -> Option<Time> {
    // Due now: the nap that follows ends at once.
    tokio::task::yield_now().await;
    Some(inner.clock.now())
}

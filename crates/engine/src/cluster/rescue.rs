//! Rescue: makes the deliveries that a dead epoch has leased due again.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_store::{Epoch, Nodes};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{clock::Clock, cluster::membership::Membership, wakeups::Wakeups};

/// Delay after a failure of the store.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Deliveries moved per step.
const BATCH_SIZE: usize = 1_000;

/// Rescues the leases of dead epochs.
pub(crate) struct Rescuer {
    pub(crate) store: Arc<dyn Nodes>,
    pub(crate) clock: Clock,
    pub(crate) membership: Arc<Membership>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) tokio: Handle,
    pub(crate) stop: CancellationToken,
    /// Dead epochs whose leases are being rescued.
    pub(crate) rescuing: Mutex<BTreeSet<Epoch>>,
}

/// Entry in `rescuing`. Dropped when the rescue ends, also by a panic; then the next heartbeat may start another.
struct RescueGuard {
    rescuer: Arc<Rescuer>,
    epoch: Epoch,
}

impl Drop for RescueGuard {
    fn drop(&mut self) {
        self.rescuer.rescuing.lock().remove(&self.epoch);
    }
}

impl Rescuer {
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

    /// Rescues the leases of a dead epoch, unless its heartbeat counter has advanced beyond `counter`. Runs in its own
    /// task, because this node's heartbeats must continue.
    pub(super) fn rescue_in_background(self: &Arc<Self>, dead: Epoch, counter: Option<i64>) {
        if !self.rescuing.lock().insert(dead) {
            return;
        }
        let rescuing = RescueGuard { rescuer: self.clone(), epoch: dead };
        self.tokio.spawn(async move {
            let rescuer = &rescuing.rescuer;
            let has_ended = match counter {
                Some(counter) => rescuer.store.end_epoch(dead, counter).await,
                None => Ok(true),
            };
            if has_ended == Ok(true) {
                match counter {
                    Some(_) => tracing::warn!(epoch = dead.0, "node declared dead; taking over its leases"),
                    None => tracing::warn!(epoch = dead.0, "rescuing the leases of an ended epoch"),
                }
                rescuer.rescue(dead).await;
            }
        });
    }

    /// Makes the deliveries leased by a dead epoch due again, in small steps.
    async fn rescue(&self, dead: Epoch) {
        let mut rescued = 0;
        loop {
            let step = match self.store.rescue(dead, self.clock.now(), BATCH_SIZE).await {
                Ok(step) => step,
                Err(error) => {
                    tracing::warn!(%error, "rescuing leases of a dead epoch failed; will retry");
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                    return;
                }
            };
            rescued += step.changed;
            self.wakeups.claims.wake();
            if step.finished {
                if rescued > 0 {
                    tracing::info!(epoch = dead.0, rescued, "rescued leases of a dead epoch");
                }
                return;
            }
        }
    }
}

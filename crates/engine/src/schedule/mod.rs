//! How waiting deliveries come in: the only place that claims. The claim loop claims from the store at the next due time,
//! when a lane has capacity again, or when woken; `tickets` claims what other nodes name.

mod claim;
mod reservation;
pub(crate) mod tickets;

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use redrive_core::Time;
use redrive_store::{Claim, StoreError};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use self::claim::ClaimResult;
use crate::{
    Settings, clock::Clock, cluster::membership::Membership, dispatch::Dispatcher,
    record::WebhookRuntimeUpdater, routing::Router, supervision::Faults, wakeups::Wakeups,
};

/// Maximum time between two claims, in case a wake-up was missed.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time between two claims in a cluster, where the hint of another node's publish may be lost.
const MAX_POLL_INTERVAL_SHARED: Duration = Duration::from_secs(1);
/// Delay after a failure of the store.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// What claims need: the store, this node's capacity, and the webhooks.
pub(crate) struct Claimer {
    pub(crate) store: Arc<dyn Claim>,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) faults: Faults,
    pub(crate) tokio: Handle,
    /// Number of due lanes that the last claim left to other nodes.
    pub(crate) declined_lanes: AtomicUsize,
}

/// Runs [`Claimer::claim_due`] whenever deliveries may be due.
pub(crate) struct ClaimLoop {
    pub(crate) claimer: Arc<Claimer>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
}

impl ClaimLoop {
    /// Claims due deliveries until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let next_claim_at = match self.claimer.claim_due().await {
                Ok(ClaimResult::ClaimAgain) => self.yield_and_read_clock().await,
                Ok(ClaimResult::Idle(next)) => next,
                Err(error) => {
                    tracing::warn!(%error, "claiming due deliveries failed; will retry");
                    if error == StoreError::Fenced {
                        self.claimer.membership.check_epoch_now();
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
        let wakeup = &self.wakeups.claims;
        let deadline = wakeup.lower_deadline(until);
        let is_shared = self.claimer.membership.is_shared();
        let longest = if is_shared { MAX_POLL_INTERVAL_SHARED } else { MAX_POLL_INTERVAL };
        tokio::select! {
            () = self.claimer.clock.sleep_until(deadline.unwrap_or_default()), if deadline.is_some() => {}
            () = tokio::time::sleep(longest) => {}
            () = wakeup.woken() => {}
            () = self.stop.cancelled() => {}
        }
        // Work announced after this point is found by the claim that follows.
        wakeup.reset_if_passed(self.claimer.clock.now());
    }

    /// Yields to other tasks and returns the current time as the time of the next claim.
    async fn yield_and_read_clock(&self) -> Option<Time> {
        // Due now: the wait that follows ends immediately.
        tokio::task::yield_now().await;
        Some(self.claimer.clock.now())
    }
}

//! Claims from the store: due lanes, as far as this node has capacity.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use redrive_core::{
    TenantId, Time, WebhookId, cluster::ticket::displayed_due, delivery::lane::Lane,
    security::egress_rules::HostKey,
};
use redrive_store::{ClaimedDelivery, LaneCapacity, LaneKey, StoreError};

use super::{
    Claimer,
    reservation::{ClaimReservation, LaneDeliveries},
};
use crate::{
    clock::monotonic_now,
    cluster::membership::NodeEpoch,
    dispatch::{LeasedDelivery, WebhookLimits},
    routing::ResolvedWebhook,
    supervision::FaultPoint,
};

/// Due lanes read per claim.
const MAX_LANES: usize = 64;
/// Maximum number of declined lanes that a claim reads past.
const MAX_DECLINED_LANES: usize = 2_000;
/// Approximate maximum of deliveries and payload bytes claimed per transaction.
const MAX_CLAIM_DELIVERIES: usize = 4_000;
const MAX_CLAIM_BYTES: usize = 8 << 20;

/// Result of a claim.
pub(crate) enum ClaimResult {
    /// Deliveries were claimed, or more may be due: claim again immediately.
    ClaimAgain,
    /// Nothing is due (or nothing fits) before this time.
    Idle(Option<Time>),
}

impl Claimer {
    /// Returns the delay of a webhook's first attempts.
    pub(super) fn first_delay(&self, webhook_id: WebhookId) -> Duration {
        self.router.webhook(webhook_id).map_or(Duration::ZERO, |webhook| webhook.retry_policy.first_delay())
    }

    /// Claims due deliveries from lanes of this node that need a refill and have capacity, and from lanes that
    /// no node has claimed.
    pub(crate) async fn claim_due(&self) -> Result<ClaimResult, StoreError> {
        let epoch = self.membership.current_epoch();
        self.release_idle_assignments(&epoch).await?;
        if self.dispatcher.queues.is_draining() {
            return Ok(ClaimResult::Idle(None));
        }
        let now = self.clock.now();
        if self.membership.is_shared() {
            // Expired parks are lifted first, so that this claim includes their lanes, which no node has claimed.
            self.dispatcher.expire_blocks(now);
        }
        // Lanes that this node declined stay due in the store, so this claim reads past as many as were declined last
        // time.
        let max = MAX_LANES + self.declined_lanes.load(Relaxed).min(MAX_DECLINED_LANES);
        let due = self.store.due_lanes(epoch.epoch, self.settings.pools.clone(), now, max).await?;
        let more_due = due.lanes.len() >= max;
        let mut declined = 0;
        let to_refill = self.drop_unserved(self.dispatcher.queues.take_lanes_to_refill());
        let mut reserved = ClaimReservation::new(self, &epoch, to_refill);
        let capacities = &mut reserved.capacities;
        for key in due.lanes {
            if capacities.iter().map(|capacity| capacity.max_deliveries).sum::<usize>()
                >= MAX_CLAIM_DELIVERIES
            {
                break;
            }
            let webhook = match self.router.get_or_load(key.webhook_id).await {
                Ok(webhook) => webhook,
                // One unreadable webhook must not block the others.
                Err(StoreError::InvalidItem(why)) => {
                    tracing::error!(webhook_id = %key.webhook_id, error = why, "reading a webhook failed; its deliveries stay queued");
                    continue;
                }
                Err(error) => return Err(error),
            };
            if webhook.as_ref().is_some_and(|webhook| !webhook.tenant.may_send_here()) {
                declined += 1;
                continue;
            }
            if capacities.iter().any(|capacity| capacity.key == key) {
                continue;
            }
            let capacity = self.reserve_lane(webhook.as_deref(), key);
            if capacity.max_deliveries == 0 && self.membership.is_shared() {
                // Other nodes may have capacity.
                self.dispatcher.queues.defer_lane(&capacity.key);
                declined += 1;
            } else {
                // A lane without capacity is claimed as well: it then stays claimed by this node, which requests a refill
                // when it has capacity.
                capacities.push(capacity);
            }
        }
        let before = self.declined_lanes.swap(declined, Relaxed);
        if capacities.is_empty() {
            // All lanes read were declined: there may be more behind them.
            let more_behind = declined >= max && before < declined;
            return Ok(if more_behind { ClaimResult::ClaimAgain } else { ClaimResult::Idle(due.next_wake) });
        }
        for capacity in capacities {
            capacity.exclusive = self.claims_exclusively(&capacity.key);
        }
        let bytes = reserved.reserve_bytes(MAX_CLAIM_BYTES);
        let _transfer = self.dispatcher.lease_transfers.begin();
        let claims = self.store.claim(epoch.epoch, now, reserved.capacities.clone(), bytes).await?;
        // A lane that is due but yields nothing is being written by a concurrent publish or claimed by another
        // node, which wakes the claim loop when done.
        let any_claimed = claims.iter().any(|claim| claim.has_more_due || !claim.deliveries.is_empty());
        let mut claims = claims.into_iter();
        reserved.set_claimed(|_| {
            claims.next().map_or_else(Default::default, |claim| (claim.deliveries, claim.has_more_due))
        });
        self.faults.inject(FaultPoint::Claimed);
        while let Some(lane) = reserved.next_lane() {
            self.enqueue_claims(&epoch, lane);
        }
        Ok(if any_claimed || more_due { ClaimResult::ClaimAgain } else { ClaimResult::Idle(due.next_wake) })
    }

    /// Returns whether a claim from this lane assigns its webhook to this node.
    fn claims_exclusively(&self, key: &LaneKey) -> bool {
        let needs_assignment =
            |webhook: Arc<ResolvedWebhook>| self.dispatcher.assignments.needs_assigned_node(&webhook);
        self.membership.is_shared()
            && (key.lane.is_ordered() || self.router.webhook(key.webhook_id).is_some_and(needs_assignment))
    }

    /// Releases assignments that are idle or no longer needed. Must not run concurrently with a claim: the claim could
    /// take deliveries for an assignment that is being released, and two nodes would send to the webhook.
    async fn release_idle_assignments(&self, epoch: &NodeEpoch) -> Result<(), StoreError> {
        let now = monotonic_now();
        let mut releasable = self.dispatcher.assignments.due_for_check(now);
        releasable.retain(|webhook_id| self.dispatcher.may_unassign(*webhook_id, now));
        if !releasable.is_empty() {
            self.store.release_assignments(epoch.epoch, releasable.clone()).await?;
            self.dispatcher.assignments.unassign(&releasable);
        }
        Ok(())
    }

    /// Drops lanes of tenants that this node does not send for.
    fn drop_unserved(&self, capacities: Vec<LaneCapacity>) -> Vec<LaneCapacity> {
        let may_send_here = |capacity: &LaneCapacity| {
            self.router.webhook(capacity.key.webhook_id).is_none_or(|webhook| webhook.tenant.may_send_here())
        };
        let (served, others): (Vec<_>, Vec<_>) = capacities.into_iter().partition(may_send_here);
        for capacity in &others {
            self.dispatcher.enqueue_claimed(capacity, Vec::new(), false);
        }
        if !others.is_empty() {
            // Nodes that serve these tenants cannot see lanes that are claimed here.
            let (store, epoch) = (self.store.clone(), self.membership.current_epoch());
            let webhooks = others.into_iter().map(|capacity| capacity.key.webhook_id).collect();
            self.tokio.spawn(async move {
                if let Err(error) = store.release_assignments(epoch.epoch, webhooks).await {
                    tracing::warn!(%error, "releasing lanes that other nodes serve failed; will retry");
                }
            });
        }
        served
    }

    fn reserve_lane(&self, webhook: Option<&ResolvedWebhook>, key: LaneKey) -> LaneCapacity {
        // Deliveries of a deleted webhook are claimed too, and ended one by one.
        let unknown = TenantId::default();
        let limits = match webhook {
            Some(webhook) => {
                self.runtime_updater.unpark_before_transition(webhook);
                self.dispatcher.assignments.webhook_limits(webhook)
            }
            None => WebhookLimits {
                webhook_id: key.webhook_id,
                tenant_id: &unknown,
                max_in_flight: self.settings.webhook_max_in_flight as usize,
                tenant_max_unsettled: usize::MAX,
                host: HostKey::default(),
            },
        };
        self.dispatcher.queues.reserve_lane(limits, key.lane)
    }

    fn enqueue_claims(&self, epoch: &Arc<NodeEpoch>, lane: LaneDeliveries) {
        let LaneDeliveries { capacity, deliveries, more } = lane;
        if capacity.exclusive && !deliveries.is_empty() {
            self.dispatcher.assignments.assign(capacity.key.webhook_id);
            if let Some(webhook) = self.router.webhook(capacity.key.webhook_id) {
                self.runtime_updater.perform_due_transition(&webhook);
            }
        }
        let delay = self.first_delay(capacity.key.webhook_id);
        let to_leased = |claimed| to_leased_delivery(claimed, epoch, &capacity.key.lane, delay);
        let deliveries = deliveries.into_iter().map(to_leased).collect();
        self.dispatcher.enqueue_claimed(&capacity, deliveries, more);
    }
}

/// Converts a claimed delivery. `delay` is the delay of its webhook's first attempts.
pub(super) fn to_leased_delivery(
    claimed: ClaimedDelivery,
    epoch: &Arc<NodeEpoch>,
    lane: &Lane,
    delay: Duration,
) -> LeasedDelivery {
    LeasedDelivery {
        id: claimed.id,
        epoch: epoch.clone(),
        webhook_id: claimed.webhook_id,
        lane: lane.clone(),
        event: claimed.event,
        format: claimed.format,
        attempt: claimed.attempt_count + 1,
        created_at: claimed.created_at,
        // The grace period for a ticket does not count as scheduled: the delivery is shown as late.
        due: displayed_due(claimed.created_at, claimed.due, claimed.attempt_count, delay),
        abnormal_releases: claimed.abnormal_releases,
        crash_count: claimed.crash_count,
        publish_started_at: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use parking_lot::Mutex;
    use redrive_core::delivery::lane::Priority;
    use redrive_store::{Claim, DueLanes, Epoch, LaneClaim, StoreFuture, TicketEntry};

    use super::*;
    use crate::testing::{START, TestPath};

    /// A store with one due lane, whose claims respond as the test says.
    struct FakeClaims {
        lane: LaneKey,
        results: Mutex<Vec<Result<Vec<LaneClaim>, StoreError>>>,
    }

    impl Claim for FakeClaims {
        fn due_lanes(&self, _: Epoch, _: Vec<String>, _: Time, _: usize) -> StoreFuture<'_, DueLanes> {
            Box::pin(async { Ok(DueLanes { lanes: vec![self.lane.clone()], next_wake: None }) })
        }

        fn claim(
            &self,
            _: Epoch,
            _: Time,
            _: Vec<LaneCapacity>,
            _: usize,
        ) -> StoreFuture<'_, Vec<LaneClaim>> {
            let result = self.results.lock().pop();
            Box::pin(async { result.unwrap_or_else(|| Ok(Vec::new())) })
        }

        fn claim_tickets(
            &self,
            _: Epoch,
            _: Time,
            _: Time,
            _: Vec<TicketEntry>,
            _: usize,
        ) -> StoreFuture<'_, Vec<ClaimedDelivery>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn release_assignments(&self, _: Epoch, _: Vec<WebhookId>) -> StoreFuture<'_, ()> {
            Box::pin(async { Ok(()) })
        }
    }

    fn claimer(test: &TestPath, results: Vec<Result<Vec<LaneClaim>, StoreError>>) -> Claimer {
        let lane = Lane::Unordered { priority: Priority::Normal, retry: false };
        let real = &test.path.claimer;
        Claimer {
            store: Arc::new(FakeClaims {
                lane: LaneKey { webhook_id: test.webhook_id, lane },
                results: Mutex::new(results),
            }),
            clock: real.clock.clone(),
            settings: real.settings.clone(),
            membership: real.membership.clone(),
            router: real.router.clone(),
            dispatcher: real.dispatcher.clone(),
            runtime_updater: real.runtime_updater.clone(),
            faults: real.faults.clone(),
            tokio: real.tokio.clone(),
            declined_lanes: AtomicUsize::new(0),
        }
    }

    #[tokio::test]
    async fn failed_claim_returns_its_capacity() {
        let test = TestPath::new().await;
        let claimer = claimer(&test, vec![Err(StoreError::Unavailable("restarting".into()))]);
        assert!(claimer.claim_due().await.is_err());
        let load = test.path.dispatcher.queues.load();
        assert_eq!((load.deliveries, load.bytes), (0, 0));
    }

    #[tokio::test]
    async fn claimed_delivery_is_started_with_its_attempt_number() {
        let test = TestPath::new().await;
        let leased = test.leased(&TenantId::default(), 7);
        let claimed = ClaimedDelivery {
            id: leased.id,
            webhook_id: leased.webhook_id,
            event: leased.event,
            format: leased.format,
            attempt_count: 2,
            created_at: START,
            due: START,
            abnormal_releases: 1,
            crash_count: 0,
            seq: 1,
        };
        let lane = Lane::Unordered { priority: Priority::Normal, retry: false };
        let key = LaneKey { webhook_id: test.webhook_id, lane };
        let claim = LaneClaim { key, deliveries: vec![claimed], has_more_due: false };
        let claimer = claimer(&test, vec![Ok(vec![claim])]);
        assert!(matches!(claimer.claim_due().await, Ok(ClaimResult::ClaimAgain)));
        let started = test.started.deliveries.lock();
        assert_eq!((started.len(), started[0].attempt, started[0].abnormal_releases), (1, 3, 1));
    }
}

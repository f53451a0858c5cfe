//! Guard of a claim: the capacity that is reserved for it, and what was claimed until the dispatcher has it.

use std::sync::Arc;

use redrive_store::{ClaimedDelivery, LaneCapacity};

use super::{Claimer, claim::to_leased_delivery};
use crate::{cluster::membership::NodeEpoch, dispatch::ReleaseItem};

/// A claim. Dropped, capacity that was not used is free again, and leases that the dispatcher does not have are released.
pub(super) struct ClaimReservation<'a> {
    claimer: &'a Claimer,
    epoch: Arc<NodeEpoch>,
    pub(super) capacities: Vec<LaneCapacity>,
    /// Claimed and not yet handed to the dispatcher, by lane; the last lane first.
    claimed: Vec<LaneDeliveries>,
    bytes: usize,
}

/// What was claimed for a lane with reserved capacity.
pub(super) struct LaneDeliveries {
    pub(super) capacity: LaneCapacity,
    pub(super) deliveries: Vec<ClaimedDelivery>,
    /// Whether more are due in the store.
    pub(super) more: bool,
}

impl<'a> ClaimReservation<'a> {
    pub(super) fn new(claimer: &'a Claimer, epoch: &Arc<NodeEpoch>, capacities: Vec<LaneCapacity>) -> Self {
        Self { claimer, epoch: epoch.clone(), capacities, claimed: Vec::new(), bytes: 0 }
    }

    /// Reserves up to `max` bytes for the payloads. Returns how many.
    pub(super) fn reserve_bytes(&mut self, max: usize) -> usize {
        self.bytes = self.claimer.dispatcher.queues.reserve_bytes(max);
        self.bytes
    }

    /// Records what was claimed for each lane.
    pub(super) fn set_claimed(
        &mut self,
        mut claimed: impl FnMut(&LaneCapacity) -> (Vec<ClaimedDelivery>, bool),
    ) {
        for capacity in std::mem::take(&mut self.capacities) {
            let (deliveries, more) = claimed(&capacity);
            self.claimed.push(LaneDeliveries { capacity, deliveries, more });
        }
        self.claimed.reverse();
    }

    /// Takes what was claimed for the next lane, to be handed to the dispatcher with its capacity.
    pub(super) fn next_lane(&mut self) -> Option<LaneDeliveries> {
        self.claimed.pop()
    }
}

impl Drop for ClaimReservation<'_> {
    fn drop(&mut self) {
        for lane in std::mem::take(&mut self.claimed) {
            let key = &lane.capacity.key;
            let delay = self.claimer.first_delay(key.webhook_id);
            for claimed in lane.deliveries {
                let delivery = to_leased_delivery(claimed, &self.epoch, &key.lane, delay);
                self.claimer.dispatcher.release_queue.add(ReleaseItem::unknown_to_dispatcher(delivery));
            }
            self.capacities.push(lane.capacity);
        }
        self.claimer.dispatcher.queues.free_failed_claim(&self.capacities);
        self.claimer.dispatcher.queues.free_bytes(self.bytes);
    }
}

//! Capacity in memory and its shares: no tenant, no webhook and no storm of retries may take all of it.

use redrive_core::{
    WebhookId,
    delivery::lane::Lane,
    dispatch::fairness::{self, RETRY_FACTOR, TENANT_FACTOR},
};
use redrive_store::{LaneCapacity, LaneKey};

use super::{
    LeasedDelivery, WebhookLimits,
    lanes::is_retry,
    state::{State, take_if_present},
};

/// Maximum number of deliveries that one claim takes from one lane, so that many due lanes share the capacity.
const MAX_CLAIM_PER_LANE: usize = 500;
/// Maximum for a lane of retries: publishes wait during a claim, and a storm of retries causes very many claims.
const MAX_RETRY_CLAIM_PER_LANE: usize = 16;
/// Maximum for an ordered lane: when a delivery fails, all deliveries after it are released.
const MAX_ORDERED_CLAIM_PER_LANE: usize = 64;

impl State {
    pub(super) fn reserve(&mut self, limits: WebhookLimits<'_>, lane: &Lane, bytes: usize) -> bool {
        if self.draining || self.bytes + bytes > self.limits.max_bytes {
            return false;
        }
        let index = self.ensure_webhook(limits).tenant;
        let tenant = &self.tenants[index];
        let bytes_free = self.limits.max_bytes - self.bytes;
        let fits =
            self.available_capacity(limits.webhook_id, lane) > 0 && tenant.bytes < TENANT_FACTOR * bytes_free;
        let Some(queues) = self.webhooks.get_mut(&limits.webhook_id) else { return false };
        let lane_index = queues.ensure_lane(lane);
        if !fits || queues.lanes[lane_index].has_more_due {
            queues.free_if_idle(lane_index);
            self.evict_if_idle(limits.webhook_id);
            return false;
        }
        self.occupy(limits.webhook_id, lane_index, 1, bytes);
        true
    }

    /// Returns how many more deliveries of a lane may be in memory.
    fn available_capacity(&self, webhook_id: WebhookId, lane: &Lane) -> usize {
        let Some(queues) = self.webhooks.get(&webhook_id) else { return 0 };
        if self.draining || self.bytes >= self.limits.max_bytes || queues.is_parked() {
            return 0;
        }
        let (capacity, used) = (self.limits.max_deliveries, self.deliveries);
        let occupied = queues.lane_index(lane).map_or(0, |lane_index| queues.lanes[lane_index].occupied());
        let tenant = &self.tenants[queues.tenant];
        let mut available = self.limits.max_lane_deliveries.saturating_sub(occupied);
        available = available.min(fairness::allowance(capacity, used, tenant.deliveries, TENANT_FACTOR));
        let lane_limit = fairness::lane_capacity(capacity, used, queues.max_in_flight, is_retry(lane));
        available = available.min(lane_limit.saturating_sub(occupied));
        if is_retry(lane) {
            available =
                available.min(fairness::allowance(capacity, used, self.retry_deliveries, RETRY_FACTOR));
        }
        if let Some(half_open_max_in_memory) = queues.half_open_max_in_memory {
            available = available.min(half_open_max_in_memory.saturating_sub(queues.occupied()));
        }
        available.min(capacity.saturating_sub(used))
    }

    fn occupy(&mut self, webhook_id: WebhookId, lane: usize, count: usize, bytes: usize) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let queue = &mut queues.lanes[lane];
        queue.reserved += count;
        self.deliveries += count;
        self.bytes += bytes;
        if queue.is_retry() {
            self.retry_deliveries += count;
        }
        let tenant = &mut self.tenants[queues.tenant];
        tenant.deliveries += count;
        tenant.bytes += bytes;
    }

    /// Frees capacity in memory.
    pub(super) fn free_capacity(&mut self, webhook_id: WebhookId, lane: &Lane, count: usize, bytes: usize) {
        self.deliveries -= count;
        self.bytes -= bytes;
        if is_retry(lane) {
            self.retry_deliveries -= count;
        }
        if let Some(queues) = self.webhooks.get(&webhook_id) {
            let tenant = &mut self.tenants[queues.tenant];
            tenant.deliveries -= count;
            tenant.bytes -= bytes;
        }
        self.retry_refills_without_capacity(count);
    }

    /// Requests a refill again for up to `max` lanes that have a backlog and found no capacity.
    pub(super) fn retry_refills_without_capacity(&mut self, max: usize) {
        let max = max.min(self.refills_without_capacity.len());
        self.refills.extend(self.refills_without_capacity.drain(..max));
    }

    pub(super) fn unreserve(&mut self, webhook_id: WebhookId, lane: &Lane, count: usize, bytes: usize) {
        self.free_capacity(webhook_id, lane, count, bytes);
        if let Some(queues) = self.webhooks.get_mut(&webhook_id)
            && let Some(lane_index) = queues.lane_index(lane)
        {
            queues.lanes[lane_index].reserved -= count;
            self.request_refill(webhook_id, lane_index);
            if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
                queues.free_if_idle(lane_index);
            }
        }
        self.evict_if_idle(webhook_id);
    }

    pub(super) fn mark_more_due(&mut self, webhook_id: WebhookId, lane: &Lane) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        if queues.is_parked() {
            return;
        }
        let lane_index = queues.ensure_lane(lane);
        queues.lanes[lane_index].has_more_due = true;
        self.request_refill(webhook_id, lane_index);
    }

    /// Requests a refill of a lane with a backlog once half of its capacity is free; of an ordered lane, once it is
    /// empty.
    pub(super) fn request_refill(&mut self, webhook_id: WebhookId, lane: usize) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let lane_limit = fairness::lane_capacity(
            self.limits.max_deliveries,
            self.deliveries,
            queues.max_in_flight,
            queues.lanes[lane].is_retry(),
        );
        let half = self.limits.max_lane_deliveries.min(lane_limit) / 2;
        let parked = queues.is_parked();
        let queue = &mut queues.lanes[lane];
        let enough = if queue.lane.is_ordered() { 0 } else { half };
        if queue.has_more_due && !queue.refill_requested && !parked && queue.occupied() <= enough {
            queue.refill_requested = true;
            self.refills.push_back((webhook_id, lane));
        }
    }

    pub(super) fn request_refills(&mut self, webhook_id: WebhookId) {
        let lanes = self.webhooks.get(&webhook_id).map_or(0, |queues| queues.lanes.len());
        for lane in 0..lanes {
            self.request_refill(webhook_id, lane);
        }
    }

    pub(super) fn take_lanes_to_refill(&mut self) -> Vec<LaneCapacity> {
        let lanes_to_refill = std::mem::take(&mut self.refills);
        let mut capacities = Vec::with_capacity(lanes_to_refill.len());
        for (webhook_id, lane_index) in lanes_to_refill {
            let Some(queues) = self.webhooks.get_mut(&webhook_id) else { continue };
            let queue = &mut queues.lanes[lane_index];
            if !queue.has_more_due {
                queue.refill_requested = false;
                queues.free_if_idle(lane_index);
                self.evict_if_idle(webhook_id);
                continue;
            }
            let key = LaneKey { webhook_id, lane: queue.lane.clone() };
            let capacity = self.reserve_claim(&key, lane_index);
            if capacity == 0 {
                // Requested again when capacity is freed.
                self.refills_without_capacity.push_back((webhook_id, lane_index));
                continue;
            }
            if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
                queues.lanes[lane_index].refill_requested = false;
            }
            capacities.push(LaneCapacity::new(key, capacity));
        }
        capacities
    }

    pub(super) fn reserve_lane(&mut self, limits: WebhookLimits<'_>, lane: Lane) -> LaneCapacity {
        let lane_index = self.ensure_webhook(limits).ensure_lane(&lane);
        let key = LaneKey { webhook_id: limits.webhook_id, lane };
        let capacity = self.reserve_claim(&key, lane_index);
        if let Some(queues) = self.webhooks.get_mut(&key.webhook_id) {
            // Keeps the backlog until the claim returns, so that a lane that this node has claimed is not evicted.
            queues.lanes[lane_index].has_more_due |= capacity == 0;
        }
        LaneCapacity::new(key, capacity)
    }

    pub(super) fn is_full_for(&self, key: &LaneKey, count: usize) -> bool {
        let Some(queues) = self.webhooks.get(&key.webhook_id) else { return false };
        let backlogged =
            queues.lane_index(&key.lane).is_some_and(|lane_index| queues.lanes[lane_index].has_more_due);
        !backlogged && self.available_capacity(key.webhook_id, &key.lane) < count
    }

    pub(super) fn reserve_for_tickets(
        &mut self,
        limits: WebhookLimits<'_>,
        lane: &Lane,
        max: usize,
    ) -> usize {
        let lane_index = self.ensure_webhook(limits).ensure_lane(lane);
        let capacity = match self
            .webhooks
            .get(&limits.webhook_id)
            .is_some_and(|queues| queues.lanes[lane_index].has_more_due)
        {
            true => 0,
            false => self.available_capacity(limits.webhook_id, lane).min(max),
        };
        self.occupy(limits.webhook_id, lane_index, capacity, 0);
        if capacity == 0 {
            if let Some(queues) = self.webhooks.get_mut(&limits.webhook_id) {
                queues.free_if_idle(lane_index);
            }
            self.evict_if_idle(limits.webhook_id);
        }
        capacity
    }

    /// Reserves the available capacity for one claim from a lane.
    fn reserve_claim(&mut self, key: &LaneKey, lane_index: usize) -> usize {
        let max = match &key.lane {
            Lane::Ordered(_) => MAX_ORDERED_CLAIM_PER_LANE,
            Lane::Unordered { retry: true, .. } => MAX_RETRY_CLAIM_PER_LANE,
            Lane::Unordered { retry: false, .. } => MAX_CLAIM_PER_LANE,
        };
        let capacity = self.available_capacity(key.webhook_id, &key.lane).min(max);
        self.occupy(key.webhook_id, lane_index, capacity, 0);
        capacity
    }

    /// Enqueues deliveries for which capacity was reserved. `more` says whether more are due in the store; `None` if
    /// unknown.
    pub(super) fn enqueue(
        &mut self,
        capacity: &LaneCapacity,
        deliveries: Vec<LeasedDelivery>,
        more: Option<bool>,
    ) -> Vec<LeasedDelivery> {
        let LaneCapacity { key: LaneKey { webhook_id, lane }, max_deliveries: capacity, .. } = capacity;
        let (taken, bytes) = deliveries
            .iter()
            .fold((0, 0), |(n, bytes), delivery| (n + 1, bytes + delivery.event.memory_bytes()));
        self.free_capacity(*webhook_id, lane, capacity - taken, 0);
        let Some(queues) = self.webhooks.get_mut(webhook_id) else { return Vec::new() };
        let index = queues.tenant;
        let parked = queues.is_parked();
        let lane_index = queues.ensure_lane(lane);
        let queue = &mut queues.lanes[lane_index];
        self.tracked_leases.extend(deliveries.iter().map(|delivery| (delivery.id, ())));
        queue.has_more_due = more.unwrap_or(queue.has_more_due);
        queue.reserved -= capacity - taken;
        self.bytes += bytes;
        self.tenants[index].bytes += bytes;
        if parked {
            // The webhook was parked during the claim.
            return deliveries;
        }
        let mut to_release = Vec::new();
        for delivery in deliveries {
            if take_if_present(&mut self.cancelled_early, delivery.id) {
                to_release.push(delivery);
                continue;
            }
            queue.reserved -= 1;
            queue.queue.push_back(delivery);
        }
        self.enqueue_lane(*webhook_id, lane_index);
        self.request_refill(*webhook_id, lane_index);
        if let Some(queues) = self.webhooks.get_mut(webhook_id) {
            queues.free_if_idle(lane_index);
        }
        self.evict_if_idle(*webhook_id);
        to_release
    }
}

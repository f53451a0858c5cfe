//! Capacity in memory and its shares: no tenant, no webhook and no storm of retries may take all of it.

use redrive_core::{
    WebhookId,
    delivery::lane::Lane,
    dispatch::fairness::{self, RETRY_FACTOR, TENANT_FACTOR},
};
use redrive_store::{LaneCapacity, LaneKey};

use super::{
    LeasedDelivery, WebhookCaps,
    lanes::is_retry,
    state::{State, take_if_present},
};

/// Maximum number of deliveries that one claim takes from one lane, so that many due lanes share the capacity.
const QUANTUM: usize = 500;
/// Maximum for a lane of retries: publishes wait during a claim, and a storm of retries causes very many claims.
const RETRY_QUANTUM: usize = 16;
/// Maximum for an ordered lane: when a delivery fails, all deliveries after it are released.
const ORDER_QUANTUM: usize = 64;

impl State {
    pub(super) fn reserve(&mut self, caps: WebhookCaps<'_>, lane: &Lane, bytes: usize) -> bool {
        if self.draining || self.bytes + bytes > self.bounds.max_bytes {
            return false;
        }
        let index = self.ensure_webhook(caps).tenant;
        let tenant = &self.tenants[index];
        let bytes_free = self.bounds.max_bytes - self.bytes;
        let fits = self.free_capacity(caps.webhook_id, lane) > 0 && tenant.bytes < TENANT_FACTOR * bytes_free;
        let Some(queues) = self.webhooks.get_mut(&caps.webhook_id) else { return false };
        let at = queues.lane(lane);
        if !fits || queues.lanes[at].backlog {
            queues.free_if_idle(at);
            self.evict_if_idle(caps.webhook_id);
            return false;
        }
        self.occupy(caps.webhook_id, at, 1, bytes);
        true
    }

    /// Returns how many more deliveries of a lane may be in memory.
    fn free_capacity(&self, webhook_id: WebhookId, lane: &Lane) -> usize {
        let Some(queues) = self.webhooks.get(&webhook_id) else { return 0 };
        if self.draining || self.bytes >= self.bounds.max_bytes || queues.is_parked() {
            return 0;
        }
        let (capacity, used) = (self.bounds.max_items, self.items);
        let held = queues.position(lane).map_or(0, |at| queues.lanes[at].occupied());
        let tenant = &self.tenants[queues.tenant];
        let mut room = self.bounds.lane_items.saturating_sub(held);
        room = room.min(fairness::allowance(capacity, used, tenant.items, TENANT_FACTOR));
        let ahead = fairness::lane_capacity(capacity, used, queues.max_in_flight, is_retry(lane));
        room = room.min(ahead.saturating_sub(held));
        if is_retry(lane) {
            room = room.min(fairness::allowance(capacity, used, self.retry_items, RETRY_FACTOR));
        }
        if let Some(trickle) = queues.probe_cap {
            room = room.min(trickle.saturating_sub(queues.occupied()));
        }
        room.min(capacity.saturating_sub(used))
    }

    fn occupy(&mut self, webhook_id: WebhookId, lane: usize, count: usize, bytes: usize) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let queue = &mut queues.lanes[lane];
        queue.reserved += count;
        self.items += count;
        self.bytes += bytes;
        if queue.is_retry() {
            self.retry_items += count;
        }
        let tenant = &mut self.tenants[queues.tenant];
        tenant.items += count;
        tenant.bytes += bytes;
    }

    /// Releases capacity in memory.
    pub(super) fn release_capacity(
        &mut self,
        webhook_id: WebhookId,
        lane: &Lane,
        count: usize,
        bytes: usize,
    ) {
        self.items -= count;
        self.bytes -= bytes;
        if is_retry(lane) {
            self.retry_items -= count;
        }
        if let Some(queues) = self.webhooks.get(&webhook_id) {
            let tenant = &mut self.tenants[queues.tenant];
            tenant.items -= count;
            tenant.bytes -= bytes;
        }
        self.retry_blocked_refills(count);
    }

    /// Requests a refill again for up to `max` lanes that have a backlog and found no capacity.
    pub(super) fn retry_blocked_refills(&mut self, max: usize) {
        let max = max.min(self.blocked_refills.len());
        self.refills.extend(self.blocked_refills.drain(..max));
    }

    pub(super) fn unreserve(&mut self, webhook_id: WebhookId, lane: &Lane, count: usize, bytes: usize) {
        self.release_capacity(webhook_id, lane, count, bytes);
        if let Some(queues) = self.webhooks.get_mut(&webhook_id)
            && let Some(at) = queues.position(lane)
        {
            queues.lanes[at].reserved -= count;
            self.request_refill(webhook_id, at);
            if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
                queues.free_if_idle(at);
            }
        }
        self.evict_if_idle(webhook_id);
    }

    pub(super) fn fell_behind(&mut self, webhook_id: WebhookId, lane: &Lane) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        if queues.is_parked() {
            return;
        }
        let at = queues.lane(lane);
        queues.lanes[at].backlog = true;
        self.request_refill(webhook_id, at);
    }

    /// Requests a refill of a lane with a backlog once half of its capacity is free; of an ordered lane, once it is
    /// empty.
    pub(super) fn request_refill(&mut self, webhook_id: WebhookId, lane: usize) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let ahead = fairness::lane_capacity(
            self.bounds.max_items,
            self.items,
            queues.max_in_flight,
            queues.lanes[lane].is_retry(),
        );
        let half = self.bounds.lane_items.min(ahead) / 2;
        let parked = queues.is_parked();
        let queue = &mut queues.lanes[lane];
        let enough = if queue.lane.is_ordered() { 0 } else { half };
        if queue.backlog && !queue.refill_requested && !parked && queue.occupied() <= enough {
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

    pub(super) fn take_hungry(&mut self) -> Vec<LaneCapacity> {
        let hungry = std::mem::take(&mut self.refills);
        let mut capacities = Vec::with_capacity(hungry.len());
        for (webhook_id, at) in hungry {
            let Some(queues) = self.webhooks.get_mut(&webhook_id) else { continue };
            let queue = &mut queues.lanes[at];
            if !queue.backlog {
                queue.refill_requested = false;
                queues.free_if_idle(at);
                self.evict_if_idle(webhook_id);
                continue;
            }
            let key = LaneKey { webhook_id, lane: queue.lane.clone() };
            let capacity = self.reserve_quantum(&key, at);
            if capacity == 0 {
                // Requested again when capacity is released.
                self.blocked_refills.push_back((webhook_id, at));
                continue;
            }
            if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
                queues.lanes[at].refill_requested = false;
            }
            capacities.push(LaneCapacity::new(key, capacity));
        }
        capacities
    }

    pub(super) fn reserve_lane(&mut self, caps: WebhookCaps<'_>, lane: Lane) -> LaneCapacity {
        let at = self.ensure_webhook(caps).lane(&lane);
        let key = LaneKey { webhook_id: caps.webhook_id, lane };
        let capacity = self.reserve_quantum(&key, at);
        if let Some(queues) = self.webhooks.get_mut(&key.webhook_id) {
            // Keeps the backlog until the claim returns, so that a lane that the store holds for this node is not evicted.
            queues.lanes[at].backlog |= capacity == 0;
        }
        LaneCapacity::new(key, capacity)
    }

    pub(super) fn is_full_for(&self, key: &LaneKey, count: usize) -> bool {
        let Some(queues) = self.webhooks.get(&key.webhook_id) else { return false };
        let behind = queues.position(&key.lane).is_some_and(|at| queues.lanes[at].backlog);
        !behind && self.free_capacity(key.webhook_id, &key.lane) < count
    }

    pub(super) fn reserve_for_tickets(&mut self, caps: WebhookCaps<'_>, lane: &Lane, max: usize) -> usize {
        let at = self.ensure_webhook(caps).lane(lane);
        let capacity =
            match self.webhooks.get(&caps.webhook_id).is_some_and(|queues| queues.lanes[at].backlog) {
                true => 0,
                false => self.free_capacity(caps.webhook_id, lane).min(max),
            };
        self.occupy(caps.webhook_id, at, capacity, 0);
        if capacity == 0 {
            if let Some(queues) = self.webhooks.get_mut(&caps.webhook_id) {
                queues.free_if_idle(at);
            }
            self.evict_if_idle(caps.webhook_id);
        }
        capacity
    }

    fn reserve_quantum(&mut self, key: &LaneKey, at: usize) -> usize {
        let quantum = match &key.lane {
            Lane::Ordered(_) => ORDER_QUANTUM,
            Lane::Unordered { retry: true, .. } => RETRY_QUANTUM,
            Lane::Unordered { retry: false, .. } => QUANTUM,
        };
        let capacity = self.free_capacity(key.webhook_id, &key.lane).min(quantum);
        self.occupy(key.webhook_id, at, capacity, 0);
        capacity
    }

    /// Accepts deliveries for which capacity was reserved. `more` says whether more are due in the store; `None` if
    /// unknown.
    pub(super) fn accept(
        &mut self,
        capacity: &LaneCapacity,
        deliveries: Vec<LeasedDelivery>,
        more: Option<bool>,
    ) -> Vec<LeasedDelivery> {
        let LaneCapacity { key: LaneKey { webhook_id, lane }, max_deliveries: capacity, .. } = capacity;
        let (taken, bytes) = deliveries
            .iter()
            .fold((0, 0), |(n, bytes), delivery| (n + 1, bytes + delivery.event.memory_bytes()));
        self.release_capacity(*webhook_id, lane, capacity - taken, 0);
        let Some(queues) = self.webhooks.get_mut(webhook_id) else { return Vec::new() };
        let index = queues.tenant;
        let parked = queues.is_parked();
        let at = queues.lane(lane);
        let queue = &mut queues.lanes[at];
        self.owned.extend(deliveries.iter().map(|delivery| (delivery.id, ())));
        queue.backlog = more.unwrap_or(queue.backlog);
        queue.reserved -= capacity - taken;
        self.bytes += bytes;
        self.tenants[index].bytes += bytes;
        if parked {
            // The webhook was parked during the claim.
            return deliveries;
        }
        let mut hand_back = Vec::new();
        for delivery in deliveries {
            if take_if_present(&mut self.cancelled_early, delivery.id) {
                hand_back.push(delivery);
                continue;
            }
            queue.reserved -= 1;
            queue.queue.push_back(delivery);
        }
        self.enqueue_lane(*webhook_id, at);
        self.request_refill(*webhook_id, at);
        if let Some(queues) = self.webhooks.get_mut(webhook_id) {
            queues.free_if_idle(at);
        }
        self.evict_if_idle(*webhook_id);
        hand_back
    }
}

//! What other nodes and API calls change for the queues: cancelled deliveries, ended epochs, webhooks that move to another
//! node, changed limits, and lanes that this node has claimed or declines.

use std::collections::VecDeque;

use redrive_core::{DeliveryId, WebhookId, delivery::lane::Lane};
use redrive_store::LaneKey;

use super::{LeasedDelivery, WebhookLimits, state::State};

impl State {
    /// Takes one delivery out of its queue. It occupies a slot, as if it were sent.
    pub(super) fn take_queued_delivery(
        &mut self,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
    ) -> Option<LeasedDelivery> {
        let queues = self.webhooks.get_mut(&webhook_id)?;
        let (lane, position) = queues.lanes.iter().enumerate().find_map(|(lane, queue)| {
            Some((lane, queue.queue.iter().position(|delivery| delivery.id == delivery_id)?))
        })?;
        let delivery = queues.lanes[lane].queue.remove(position)?;
        self.count_unsettled(webhook_id, lane);
        Some(delivery)
    }

    /// Discards the deliveries queued under an ended epoch. Those still being enqueued are detected by the pre-send
    /// check.
    pub(super) fn discard_ended_epoch(&mut self) {
        let webhooks: Vec<WebhookId> = self.webhooks.keys().copied().collect();
        for webhook_id in webhooks {
            let Some(queues) = self.webhooks.get_mut(&webhook_id) else { continue };
            let mut discarded = Vec::new();
            for queue in &mut queues.lanes {
                let queued = queue.queue.drain(..);
                let (gone, stays): (VecDeque<_>, VecDeque<_>) = queued.partition(|one| one.epoch.is_ended());
                queue.queue = stays;
                discarded.extend(gone);
            }
            for delivery in discarded {
                self.tracked_leases.remove(&delivery.id);
                self.free_capacity(webhook_id, &delivery.lane, 1, delivery.event.memory_bytes());
            }
            // The node that took over has released the lanes as well, so backlogs must be claimed again.
            self.request_refills(webhook_id);
            if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
                (0..queues.lanes.len()).for_each(|lane| queues.free_if_idle(lane));
            }
            self.evict_if_idle(webhook_id);
        }
    }

    pub(super) fn release_queued(&mut self, webhook_id: WebhookId) -> Vec<LeasedDelivery> {
        let mut to_release = Vec::new();
        if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
            queues.lanes.iter_mut().for_each(|queue| queue.drain_to_release(&mut to_release));
        }
        to_release
    }

    pub(super) fn set_webhook_limits(&mut self, limits: WebhookLimits<'_>) {
        if self.webhooks.contains_key(&limits.webhook_id) {
            let index = self.ensure_webhook(limits).tenant;
            self.enqueue_next_lanes(limits.webhook_id);
            self.request_refills(limits.webhook_id);
            self.resume_tenant(index);
        }
    }

    /// Returns whether a lane that this node has claimed according to the store will be claimed from again.
    pub(super) fn tracks_lane(&self, key: &LaneKey) -> bool {
        let Some(queues) = self.webhooks.get(&key.webhook_id) else { return false };
        queues.lane_index(&key.lane).is_some_and(|lane_index| {
            queues.lanes[lane_index].has_more_due || queues.lanes[lane_index].reserved > 0
        })
    }

    /// Schedules another claim from a lane that this node has claimed, as soon as there is capacity.
    pub(super) fn resume_lane(&mut self, limits: WebhookLimits<'_>, lane: &Lane) {
        let lane_index = self.ensure_webhook(limits).ensure_lane(lane);
        if let Some(queues) = self.webhooks.get_mut(&limits.webhook_id) {
            queues.lanes[lane_index].has_more_due = true;
        }
        self.request_refill(limits.webhook_id, lane_index);
    }

    /// Defers a lane for which there is no capacity. It is requested again as soon as there is.
    pub(super) fn defer_lane(&mut self, key: &LaneKey) {
        let Some(queues) = self.webhooks.get_mut(&key.webhook_id) else { return };
        let Some(lane) = queues.lane_index(&key.lane) else { return };
        // Deliveries of a parked webhook are found in the store again once it is unblocked.
        queues.lanes[lane].has_more_due = !queues.is_parked();
        self.request_refill(key.webhook_id, lane);
        if let Some(queues) = self.webhooks.get_mut(&key.webhook_id) {
            queues.free_if_idle(lane);
        }
        self.evict_if_idle(key.webhook_id);
    }

    pub(super) fn is_webhook_idle(&self, webhook_id: WebhookId) -> bool {
        self.webhooks.get(&webhook_id).is_none_or(|queues| {
            // The lanes of a parked webhook are claimed by no node.
            let backlogged = queues.lanes.iter().any(|queue| queue.has_more_due) && !queues.is_parked();
            queues.in_flight.is_empty() && queues.occupied() == 0 && !backlogged
        })
    }
}

//! Dispatcher functions that matter only if several nodes share the store.

use std::collections::VecDeque;

use redrive_core::{DeliveryId, WebhookId, delivery::lane::Lane};
use redrive_store::LaneKey;

use super::{LeasedDelivery, WebhookCaps, state::State};

impl State {
    /// Takes one delivery out of its queue. It occupies a slot, as if it were sent.
    pub(super) fn take_queued_delivery(
        &mut self,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
    ) -> Option<LeasedDelivery> {
        let queues = self.webhooks.get_mut(&webhook_id)?;
        let (lane, at) = queues.lanes.iter().enumerate().find_map(|(lane, queue)| {
            Some((lane, queue.queue.iter().position(|delivery| delivery.id == delivery_id)?))
        })?;
        let delivery = queues.lanes[lane].queue.remove(at)?;
        self.take_slot(webhook_id, lane);
        Some(delivery)
    }

    /// Discards the deliveries queued under an ended epoch. Those still being accepted are detected by the pre-send
    /// check.
    pub(super) fn discard_ended_epoch(&mut self) {
        let webhooks: Vec<WebhookId> = self.webhooks.keys().copied().collect();
        for webhook_id in webhooks {
            let Some(queues) = self.webhooks.get_mut(&webhook_id) else { continue };
            let mut over = Vec::new();
            for queue in &mut queues.lanes {
                let queued = queue.queue.drain(..);
                let (gone, stays): (VecDeque<_>, VecDeque<_>) = queued.partition(|one| one.epoch.is_ended());
                queue.queue = stays;
                over.extend(gone);
            }
            for delivery in over {
                self.owned.remove(&delivery.id);
                self.release_capacity(webhook_id, &delivery.lane, 1, delivery.event.memory_bytes());
            }
            // The node that took over has released the lanes as well, so backlogs must be claimed again.
            self.request_refills(webhook_id);
            if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
                (0..queues.lanes.len()).for_each(|lane| queues.free_if_idle(lane));
            }
            self.evict_if_idle(webhook_id);
        }
    }

    pub(super) fn return_queued(&mut self, webhook_id: WebhookId) -> Vec<LeasedDelivery> {
        let mut hand_back = Vec::new();
        if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
            queues.lanes.iter_mut().for_each(|queue| queue.drain_to_release(&mut hand_back));
        }
        hand_back
    }

    pub(super) fn set_caps(&mut self, caps: WebhookCaps<'_>) {
        if self.webhooks.contains_key(&caps.webhook_id) {
            let index = self.ensure_webhook(caps).tenant;
            self.enqueue_next_lanes(caps.webhook_id);
            self.request_refills(caps.webhook_id);
            self.unpark_tenant(index);
        }
    }

    /// Returns whether a lane that this node holds according to the store will be claimed from again.
    pub(super) fn knows_lane(&self, key: &LaneKey) -> bool {
        let Some(queues) = self.webhooks.get(&key.webhook_id) else { return false };
        queues.position(&key.lane).is_some_and(|at| queues.lanes[at].backlog || queues.lanes[at].reserved > 0)
    }

    /// Schedules a claim from a lane that this node holds, as soon as there is capacity.
    pub(super) fn adopt_lane(&mut self, caps: WebhookCaps<'_>, lane: &Lane) {
        let at = self.ensure_webhook(caps).lane(lane);
        if let Some(queues) = self.webhooks.get_mut(&caps.webhook_id) {
            queues.lanes[at].backlog = true;
        }
        self.request_refill(caps.webhook_id, at);
    }

    /// Defers a lane for which there is no capacity. It is requested again as soon as there is.
    pub(super) fn defer_lane(&mut self, key: &LaneKey) {
        let Some(queues) = self.webhooks.get_mut(&key.webhook_id) else { return };
        let Some(lane) = queues.position(&key.lane) else { return };
        // Deliveries of a parked webhook are found in the store again once it is unblocked.
        queues.lanes[lane].backlog = !queues.is_parked();
        self.request_refill(key.webhook_id, lane);
        if let Some(queues) = self.webhooks.get_mut(&key.webhook_id) {
            queues.free_if_idle(lane);
        }
        self.evict_if_idle(key.webhook_id);
    }

    pub(super) fn is_webhook_idle(&self, webhook_id: WebhookId) -> bool {
        self.webhooks.get(&webhook_id).is_none_or(|queues| {
            // The lanes of a parked webhook are held by no node.
            let behind = queues.lanes.iter().any(|queue| queue.backlog) && !queues.is_parked();
            queues.sending.is_empty() && queues.occupied() == 0 && !behind
        })
    }
}

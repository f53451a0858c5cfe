//! Commands of the dispatcher: each changes the queues and performs what follows from that.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeliveryId, TenantId, Time, WebhookId, delivery::lane::Lane,
    dispatch::retry_concurrency::RetryConcurrency, security::egress_rules::HostKey,
};
use redrive_store::LaneCapacity;

use super::{Dispatcher, LeasedDelivery, UnsettledDelivery, admission::parked_until};
use crate::{clock::monotonic_now, routing::ResolvedWebhook};

impl Dispatcher {
    /// Enqueues committed deliveries for which capacity was reserved.
    pub(crate) fn enqueue_published(self: &Arc<Self>, deliveries: impl IntoIterator<Item = LeasedDelivery>) {
        self.perform(self.queues.enqueue_published(deliveries));
    }

    /// Records that a delivery was created as waiting and due now: its lane, if in memory, has a backlog.
    pub(crate) fn mark_more_due(self: &Arc<Self>, webhook_id: WebhookId, lane: &Lane) {
        self.perform(self.queues.mark_more_due(webhook_id, lane));
    }

    /// Enqueues the deliveries claimed for a lane with reserved capacity. `more` says whether more are due in the
    /// store.
    pub(crate) fn enqueue_claimed(
        self: &Arc<Self>,
        capacity: &LaneCapacity,
        deliveries: Vec<LeasedDelivery>,
        more: bool,
    ) {
        self.perform(self.queues.enqueue_claimed(capacity, deliveries, more));
    }

    /// Enqueues deliveries leased by tickets, for which capacity was reserved.
    pub(crate) fn enqueue_ticketed(
        self: &Arc<Self>,
        capacity: &LaneCapacity,
        deliveries: Vec<LeasedDelivery>,
    ) {
        self.perform(self.queues.enqueue_ticketed(capacity, deliveries));
    }

    /// Frees the slot of a delivery's webhook on this node: its request has ended, or is not sent. The outcome is not
    /// stored yet.
    pub(super) fn free_local_webhook_slot(self: &Arc<Self>, delivery: &LeasedDelivery) {
        self.perform(self.queues.free_local_webhook_slot(delivery.webhook_id, delivery.id));
    }

    /// Frees the slots of the tenant and the node and the memory, after the outcome is stored or the lease has ended. If
    /// the delivery `returns_to_store` in an ordered lane, the deliveries after it are released and wait as well.
    pub(super) fn settle(self: &Arc<Self>, delivery: &LeasedDelivery, returns_to_store: bool) {
        self.perform(self.queues.settle(delivery, returns_to_store));
        if matches!(delivery.lane, Lane::Unordered { retry: true, .. }) {
            self.adjust_retry_concurrency(RetryConcurrency::on_retry_done);
        }
    }

    /// Measures how long a fresh delivery took from its publish to its request; concurrent retries adapt to it.
    pub(crate) fn on_fresh_sent(self: &Arc<Self>, publish_started_at: Duration) {
        self.adjust_retry_concurrency(|concurrency, retries, now| {
            concurrency.on_fresh_sent(now.saturating_sub(publish_started_at), retries, now)
        });
    }

    /// Updates the retry concurrency controller and applies a changed limit of concurrent retries.
    fn adjust_retry_concurrency(
        self: &Arc<Self>,
        update: impl FnOnce(&mut RetryConcurrency, usize, Duration),
    ) {
        let retries = self.queues.unsettled_retries();
        let changed_limit = {
            let mut concurrency = self.retry_concurrency.lock();
            let before = concurrency.limit();
            update(&mut concurrency, retries, monotonic_now());
            Some(concurrency.limit()).filter(|limit| *limit != before)
        };
        if let Some(limit) = changed_limit {
            self.perform(self.queues.set_retry_limit(limit));
        }
    }

    /// Blocks a webhook until then, or for an unknown time if `None`, and releases its queued deliveries.
    pub(crate) fn park(self: &Arc<Self>, webhook: &ResolvedWebhook, until: Option<Time>) {
        let until = parked_until(until, self.clock.now());
        self.perform(self.queues.park(self.assignments.webhook_limits(webhook), until));
        self.wakeups.gate_timer.notify_one();
    }

    /// Unblocks a webhook. `half_open_max_in_memory` is the maximum number of its deliveries in memory while its circuit is
    /// half-open.
    pub(crate) fn unpark(
        self: &Arc<Self>,
        webhook: &ResolvedWebhook,
        half_open_max_in_memory: Option<usize>,
    ) {
        self.perform(self.queues.unpark(self.assignments.webhook_limits(webhook), half_open_max_in_memory));
    }

    /// Ends the holds and parks that are due.
    pub(crate) fn expire_blocks(self: &Arc<Self>, now: Time) {
        self.perform(self.queues.expire_blocks(now));
    }

    /// Resumes sending after the store recovered.
    pub(crate) fn resume_after_store_recovery(self: &Arc<Self>) {
        self.perform(self.queues.resume_after_store_recovery());
    }

    /// Resumes sending if the node was suspended.
    pub(crate) fn resume_node(self: &Arc<Self>) {
        self.perform(self.queues.resume_node());
    }

    /// Discards all deliveries queued under an ended epoch, and this node's assignments: other nodes have them.
    pub(crate) fn discard_ended_epoch(self: &Arc<Self>) {
        self.assignments.clear();
        self.perform(self.queues.discard_ended_epoch());
    }

    /// Schedules another claim from a lane that this node has claimed.
    pub(crate) fn resume_lane(self: &Arc<Self>, webhook: &ResolvedWebhook, lane: &Lane) {
        self.perform(self.queues.resume_lane(self.assignments.webhook_limits(webhook), lane));
    }

    /// Marks a delivery as cancelled. If it is queued here, returns it, to be ended without a request; its capacity
    /// stays occupied until that is stored.
    pub(crate) fn cancel(
        self: &Arc<Self>,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
        reason: String,
    ) -> Option<UnsettledDelivery> {
        let queued = self.queues.cancel(webhook_id, delivery_id, reason)?;
        Some(UnsettledDelivery::from_queue(self, queued))
    }

    /// Takes a delivery that was cancelled in the store, on this or another node, out of the queue, to be released. One
    /// that is about to be enqueued is released then.
    pub(crate) fn take_cancelled(
        self: &Arc<Self>,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
    ) -> Option<UnsettledDelivery> {
        let queued = self.queues.take_cancelled(webhook_id, delivery_id)?;
        Some(UnsettledDelivery::from_queue(self, queued))
    }

    /// Takes all queued deliveries of a webhook, to be ended without requests. Their capacity stays occupied until
    /// that is stored.
    pub(crate) fn take_queued(self: &Arc<Self>, webhook_id: WebhookId) -> Vec<UnsettledDelivery> {
        self.guard_taken(self.queues.take_queued(webhook_id))
    }

    /// Takes the queued deliveries that have expired (exceeded `give_up_after`), to be ended without requests;
    /// otherwise as [`Dispatcher::take_queued`].
    pub(crate) fn take_expired(
        self: &Arc<Self>,
        is_expired: impl Fn(&LeasedDelivery) -> bool,
    ) -> Vec<UnsettledDelivery> {
        self.guard_taken(self.queues.take_expired(is_expired))
    }

    fn guard_taken(self: &Arc<Self>, taken: Vec<LeasedDelivery>) -> Vec<UnsettledDelivery> {
        taken.into_iter().map(|delivery| UnsettledDelivery::from_queue(self, delivery)).collect()
    }

    /// Releases queued deliveries of a webhook that needs an assigned node, if that is not this node.
    pub(crate) fn release_to_assigned_node(self: &Arc<Self>, webhook: &ResolvedWebhook) {
        if self.assignments.needs_assigned_node(webhook) && !self.assignments.is_assigned_here(webhook.id) {
            self.perform(self.queues.release_queued(webhook.id));
        }
    }

    /// Applies new limit shares after the number of nodes, or the state of Redis, has changed.
    pub(crate) fn apply_limit_shares(self: &Arc<Self>) {
        self.perform(self.queues.set_host_limit(self.assignments.host_limit()));
        for webhook_id in self.queues.webhooks() {
            if let Some(webhook) = self.router.webhook(webhook_id) {
                self.release_to_assigned_node(&webhook);
                self.perform(self.queues.set_webhook_limits(self.assignments.webhook_limits(&webhook)));
            }
        }
        self.wakeups.claims.wake();
    }

    /// Applies changed settings of a tenant, which are in the cache by now.
    pub(crate) fn apply_tenant_change(self: &Arc<Self>, tenant_id: &TenantId) {
        let max = self.router.tenant_context(tenant_id).max_in_flight();
        self.perform(self.queues.apply_tenant_change(tenant_id, max));
        self.wakeups.claims.wake();
    }

    /// Takes a slot of a host for a request that is not a delivery. Returns `None` if the host has no free slot.
    pub(crate) fn take_host_slot(self: &Arc<Self>, tenant_id: &TenantId, host: HostKey) -> Option<HostSlot> {
        let slot = || HostSlot { dispatcher: self.clone(), tenant_id: tenant_id.clone(), host };
        self.queues.take_host_slot(tenant_id, host).then(slot)
    }
}

/// A slot of a destination host, held by a request that is not a delivery until it is dropped.
pub(crate) struct HostSlot {
    dispatcher: Arc<Dispatcher>,
    tenant_id: TenantId,
    host: HostKey,
}

impl Drop for HostSlot {
    fn drop(&mut self) {
        self.dispatcher.perform(self.dispatcher.queues.free_host_slot(&self.tenant_id, self.host));
    }
}

//! Queues of the dispatcher behind one lock: each method changes them and returns the actions that follow.

use std::collections::HashMap;

use redrive_core::{
    DeliveryId, TenantId, Time, WebhookId, cluster::clock_discipline::ClockStep, delivery::lane::Lane,
    security::egress_rules::HostKey,
};
use redrive_store::{LaneCapacity, LaneKey};
use tokio_util::sync::CancellationToken;

use super::{
    DeferredDelivery, DispatchActions, DispatchLimits, LeasedDelivery, Load, MemoryState, TenantInMemory,
    Usage, WebhookLimits, poison_mutex::PoisonMutex, state::State,
};

/// The queues, behind one lock. Methods return the actions that follow from them, which the dispatcher performs once the
/// lock is free.
pub(crate) struct DispatchQueues {
    pub(super) state: PoisonMutex<State>,
    limits: DispatchLimits,
}

impl DispatchQueues {
    pub(crate) fn new(limits: DispatchLimits) -> Self {
        Self { state: PoisonMutex::new(State::new(limits)), limits }
    }

    /// Returns a token that is cancelled when a panic has left the state inconsistent, which poisons the lock. Every method panics from then on.
    pub(crate) fn lock_poisoned(&self) -> &CancellationToken {
        self.state.poisoned()
    }

    /// Panics while the state is locked.
    #[cfg(feature = "fault_injection")]
    pub(crate) fn panic_while_locked(&self) {
        let _state = self.state.lock();
        panic!("injected fault");
    }

    /// Reserves capacity for a delivery about to be published. Returns false if it must be created as waiting.
    pub(crate) fn reserve(&self, limits: WebhookLimits<'_>, lane: &Lane, bytes: usize) -> bool {
        self.state.lock().reserve(limits, lane, bytes)
    }

    /// Frees reserved capacity: the deliveries were not committed, or are back in the store.
    pub(crate) fn unreserve(&self, webhook_id: WebhookId, lane: &Lane, count: usize, bytes: usize) {
        self.state.lock().unreserve(webhook_id, lane, count, bytes);
    }

    /// Frees what a released delivery occupies: it is back in the store.
    pub(crate) fn on_released(&self, delivery: &LeasedDelivery) {
        let state = &mut *self.state.lock();
        state.tracked_leases.remove(&delivery.id);
        state.unreserve(delivery.webhook_id, &delivery.lane, 1, delivery.event.memory_bytes());
    }

    /// Returns whether the lease of a delivery is tracked in memory.
    pub(crate) fn tracks_lease(&self, delivery_id: DeliveryId) -> bool {
        self.state.lock().tracked_leases.contains_key(&delivery_id)
    }

    /// Returns whether a lane that this node has claimed is tracked in memory.
    pub(crate) fn tracks_lane(&self, key: &LaneKey) -> bool {
        self.state.lock().tracks_lane(key)
    }

    /// Schedules another claim from a lane that this node has claimed.
    pub(super) fn resume_lane(&self, limits: WebhookLimits<'_>, lane: &Lane) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.resume_lane(limits, lane);
        state.start_ready()
    }

    /// Enqueues committed deliveries for which capacity was reserved.
    pub(super) fn enqueue_published(
        &self,
        deliveries: impl IntoIterator<Item = LeasedDelivery>,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        let mut to_release = Vec::new();
        for delivery in deliveries {
            state.enqueue_published(delivery, &mut to_release);
        }
        DispatchActions { release: to_release, ..state.start_ready() }
    }

    /// Records that a delivery was created as waiting and due now: its lane, if in memory, has a backlog.
    pub(super) fn mark_more_due(&self, webhook_id: WebhookId, lane: &Lane) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.mark_more_due(webhook_id, lane);
        state.start_ready()
    }

    /// Takes back deliveries that were not admitted, and starts others instead.
    pub(super) fn defer(&self, deferred: Vec<DeferredDelivery>) -> DispatchActions {
        let state = &mut *self.state.lock();
        let mut to_release = Vec::new();
        // In reverse, so that the first delivery of each lane is at the front again.
        for DeferredDelivery { delivery, deferral } in deferred.into_iter().rev() {
            state.defer(delivery, deferral, &mut to_release);
        }
        DispatchActions { release: to_release, ..state.start_ready() }
    }

    /// Frees the slot of the webhook on this node after the response, or without one. The outcome is not stored yet.
    pub(super) fn free_local_webhook_slot(
        &self,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.free_local_webhook_slot(webhook_id, delivery_id);
        state.start_ready()
    }

    /// Frees the slots of the tenant and the node and the memory, after the outcome is stored or the lease has ended. If
    /// the delivery `returns_to_store` in an ordered lane, the deliveries after it are released and wait as well.
    pub(super) fn settle(&self, delivery: &LeasedDelivery, returns_to_store: bool) -> DispatchActions {
        let state = &mut *self.state.lock();
        let to_release = state.settle(delivery, returns_to_store);
        DispatchActions { release: to_release, ..state.start_ready() }
    }

    /// Parks a webhook until then, and releases its queued deliveries.
    pub(super) fn park(&self, limits: WebhookLimits<'_>, until: Time) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.ensure_webhook(limits);
        let mut to_release = Vec::new();
        state.park(limits.webhook_id, until, &mut to_release);
        DispatchActions { release: to_release, ..state.start_ready() }
    }

    /// Unblocks a webhook. `half_open_max_in_memory` is the maximum number of its deliveries in memory while its circuit is
    /// half-open.
    pub(super) fn unpark(
        &self,
        limits: WebhookLimits<'_>,
        half_open_max_in_memory: Option<usize>,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.unpark(limits, half_open_max_in_memory);
        state.start_ready()
    }

    /// Returns the time at which the next hold or park ends.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        self.state.lock().next_wake()
    }

    /// Adjusts all times after the clock was set back: they were computed from the abandoned time.
    pub(crate) fn adjust_for_clock_step(&self, clock_step: &ClockStep) {
        self.state.lock().adjust_for_clock_step(clock_step);
    }

    /// Ends the holds and parks that are due.
    pub(super) fn expire_blocks(&self, now: Time) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.expire_blocks(now);
        state.start_ready()
    }

    /// Suspends sending after the store failed, until it accepts a write.
    pub(crate) fn suspend_for_store(&self) {
        self.state.lock().store_down = true;
    }

    /// Resumes sending after the store recovered.
    pub(super) fn resume_after_store_recovery(&self) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.store_down = false;
        state.start_ready()
    }

    /// Returns the number of unsettled deliveries of the retry class (retries and resends).
    pub(crate) fn unsettled_retries(&self) -> usize {
        self.state.lock().unsettled_retries
    }

    /// Sets the maximum number of unsettled deliveries of the retry class.
    pub(super) fn set_retry_limit(&self, limit: usize) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.retry_limit = limit;
        state.start_ready()
    }

    /// Takes the lanes that have a backlog and capacity, with that capacity reserved.
    pub(crate) fn take_lanes_to_refill(&self) -> Vec<LaneCapacity> {
        self.state.lock().take_lanes_to_refill()
    }

    /// Reserves the available capacity, possibly none, for a lane with due deliveries in the store.
    pub(crate) fn reserve_lane(&self, limits: WebhookLimits<'_>, lane: Lane) -> LaneCapacity {
        self.state.lock().reserve_lane(limits, lane)
    }

    /// Reserves up to `max` payload bytes for a claim; half of the free bytes is left to publishes.
    pub(crate) fn reserve_bytes(&self, max: usize) -> usize {
        let state = &mut *self.state.lock();
        let bytes = (self.limits.max_bytes.saturating_sub(state.bytes) / 2).min(max);
        state.bytes += bytes;
        bytes
    }

    /// Frees the bytes reserved for a claim; the claimed deliveries have been counted.
    pub(crate) fn free_bytes(&self, bytes: usize) {
        self.state.lock().bytes -= bytes;
    }

    /// Enqueues the deliveries claimed for a lane with reserved capacity. `more` says whether more are due in the
    /// store.
    pub(super) fn enqueue_claimed(
        &self,
        capacity: &LaneCapacity,
        deliveries: Vec<LeasedDelivery>,
        more: bool,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        let to_release = state.enqueue(capacity, deliveries, Some(more));
        DispatchActions { release: to_release, ..state.start_ready() }
    }

    /// Reserves capacity for up to `max` deliveries named by tickets. Returns 0 if the lane has a backlog: older
    /// deliveries go first.
    pub(crate) fn reserve_for_tickets(&self, limits: WebhookLimits<'_>, lane: &Lane, max: usize) -> usize {
        self.state.lock().reserve_for_tickets(limits, lane, max)
    }

    /// Returns whether there is no capacity for `count` deliveries of a lane, which may be temporary. Returns false if
    /// the lane has a backlog: older deliveries go first then.
    pub(crate) fn is_full_for(&self, key: &LaneKey, count: usize) -> bool {
        self.state.lock().is_full_for(key, count)
    }

    /// Enqueues deliveries leased by tickets, for which capacity was reserved.
    pub(super) fn enqueue_ticketed(
        &self,
        capacity: &LaneCapacity,
        deliveries: Vec<LeasedDelivery>,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        let to_release = state.enqueue(capacity, deliveries, None);
        DispatchActions { release: to_release, ..state.start_ready() }
    }

    /// Returns whether memory is at least three quarters full, so that other nodes should claim instead.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let state = self.state.lock();
        state.deliveries >= self.limits.max_deliveries / 4 * 3 || state.bytes >= self.limits.max_bytes / 4 * 3
    }

    /// Frees the capacity of a failed claim. Lanes keep their backlog.
    pub(crate) fn free_failed_claim(&self, capacities: &[LaneCapacity]) {
        let state = &mut *self.state.lock();
        for capacity in capacities {
            state.unreserve(capacity.key.webhook_id, &capacity.key.lane, capacity.max_deliveries, 0);
        }
    }

    /// Marks a delivery as cancelled. If it is queued here, returns it, to be ended without a request; its capacity
    /// stays occupied until that is stored.
    pub(crate) fn cancel(
        &self,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
        reason: String,
    ) -> Option<LeasedDelivery> {
        self.state.lock().cancel(webhook_id, delivery_id, reason)
    }

    /// Takes a delivery that was cancelled in the store, on this or another node, out of the queue, to be released. One
    /// that is about to be enqueued is released then.
    pub(crate) fn take_cancelled(
        &self,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
    ) -> Option<LeasedDelivery> {
        self.state.lock().take_cancelled(webhook_id, delivery_id)
    }

    /// Takes all queued deliveries of a webhook, to be ended without requests. Their capacity stays occupied until
    /// that is stored.
    pub(crate) fn take_queued(&self, webhook_id: WebhookId) -> Vec<LeasedDelivery> {
        self.state.lock().take_queued(webhook_id)
    }

    /// Takes the queued deliveries that have expired (exceeded `give_up_after`), to be ended without requests;
    /// otherwise as [`Dispatcher::take_queued`].
    pub(crate) fn take_expired(&self, is_expired: impl Fn(&LeasedDelivery) -> bool) -> Vec<LeasedDelivery> {
        self.state.lock().take_expired(is_expired)
    }

    /// Discards all deliveries queued under an ended epoch: other nodes have their leases.
    pub(super) fn discard_ended_epoch(&self) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.discard_ended_epoch();
        state.start_ready()
    }

    /// Releases all queued deliveries of a webhook to the store, because another node sends to it.
    pub(super) fn release_queued(&self, webhook_id: WebhookId) -> DispatchActions {
        let state = &mut *self.state.lock();
        let to_release = state.release_queued(webhook_id);
        DispatchActions { release: to_release, ..state.start_ready() }
    }

    /// Applies changed limits of a webhook and its tenant.
    pub(super) fn set_webhook_limits(&self, limits: WebhookLimits<'_>) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.set_webhook_limits(limits);
        state.start_ready()
    }

    /// Changes the maximum number of requests in flight to each destination host.
    pub(super) fn set_host_limit(&self, max_in_flight: usize) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.set_host_limit(max_in_flight);
        state.start_ready()
    }

    /// Takes a slot of a host for a request that is not a delivery. Returns whether one was free; it is freed by
    /// [`Dispatcher::free_host_slot`].
    pub(crate) fn take_host_slot(&self, tenant_id: &TenantId, host: HostKey) -> bool {
        self.state.lock().take_host_slot(tenant_id, host)
    }

    /// Frees a slot taken by [`Dispatcher::take_host_slot`].
    pub(super) fn free_host_slot(&self, tenant_id: &TenantId, host: HostKey) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.free_host_slot(tenant_id, host);
        state.start_ready()
    }

    /// Resumes sending if the node was suspended.
    pub(super) fn resume_node(&self) -> DispatchActions {
        let state = &mut *self.state.lock();
        if !std::mem::take(&mut state.node_suspended) {
            return DispatchActions::default();
        }
        state.start_ready()
    }

    /// Returns every webhook in memory.
    pub(crate) fn webhooks(&self) -> Vec<WebhookId> {
        self.state.lock().webhooks.keys().copied().collect()
    }

    /// Returns the number of requests in flight to a webhook.
    pub(crate) fn in_flight_count(&self, webhook_id: WebhookId) -> usize {
        self.state.lock().webhooks.get(&webhook_id).map_or(0, |queues| queues.in_flight.len())
    }

    /// Defers a lane with due deliveries in the store, because there is no capacity for it: other nodes may have some.
    pub(crate) fn defer_lane(&self, key: &LaneKey) {
        self.state.lock().defer_lane(key);
    }

    /// Returns whether any delivery of a webhook is in memory.
    pub(crate) fn has_deliveries(&self, webhook_id: WebhookId) -> bool {
        self.state.lock().webhooks.get(&webhook_id).is_some_and(|queues| queues.occupied() > 0)
    }

    /// Returns whether no delivery of a webhook is in memory or about to be claimed.
    pub(crate) fn is_webhook_idle(&self, webhook_id: WebhookId) -> bool {
        self.state.lock().is_webhook_idle(webhook_id)
    }

    /// Applies changed limits of a tenant.
    pub(super) fn apply_tenant_change(&self, tenant_id: &TenantId, max_unsettled: usize) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.apply_tenant_change(tenant_id, max_unsettled);
        state.start_ready()
    }

    /// Returns the reason for which a delivery in memory was cancelled, or `None` if it was not.
    pub(crate) fn cancel_reason(&self, delivery_id: DeliveryId) -> Option<String> {
        let state = self.state.lock();
        if state.cancelled.is_empty() {
            return None;
        }
        state.cancelled.get(&delivery_id).cloned()
    }

    /// Returns the state of a delivery in this node's memory.
    pub(crate) fn memory_state(&self, webhook_id: WebhookId, delivery_id: DeliveryId) -> Option<MemoryState> {
        self.state.lock().memory_state(webhook_id, delivery_id)
    }

    /// Returns the slots in use by a webhook, its tenant, its host and the node.
    pub(crate) fn usage(&self, limits: WebhookLimits<'_>) -> Usage {
        self.state.lock().usage(limits)
    }

    /// Returns the deliveries of a tenant in memory.
    pub(crate) fn tenant_in_memory(&self, tenant_id: &TenantId) -> TenantInMemory {
        self.state.lock().tenant_in_memory(tenant_id)
    }

    /// Returns the number of queued deliveries by tenant; tenants without any are left out.
    pub(crate) fn queued_by_tenant(&self) -> HashMap<TenantId, u64> {
        self.state.lock().queued_by_tenant()
    }

    /// Stops sending, and returns all queued deliveries.
    pub(crate) fn drain(&self) -> Vec<LeasedDelivery> {
        self.state.lock().drain()
    }

    /// Returns whether the node is draining and starts no new requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.state.lock().draining
    }

    /// Returns the number of unsettled deliveries of each tenant that has any.
    pub(crate) fn unsettled_by_tenant(&self) -> Vec<(TenantId, usize)> {
        let state = self.state.lock();
        let used = state.tenants.iter().filter(|tenant| tenant.unsettled > 0);
        used.map(|tenant| (tenant.id.clone(), tenant.unsettled)).collect()
    }

    /// Returns the load of the node.
    pub(crate) fn load(&self) -> Load {
        let state = self.state.lock();
        Load {
            deliveries: state.deliveries,
            bytes: state.bytes,
            unsettled: state.unsettled,
            slots: self.limits.max_unsettled,
        }
    }
}

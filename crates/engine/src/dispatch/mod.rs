//! The dispatcher: deliveries leased to this node and not yet sent, and the fair order in which they are started.
//!
//! Everything is bounded: capacity for a delivery is reserved before it is committed as leased to this node, and
//! released when its outcome is committed. A delivery without capacity waits in the store; its lane then has a
//! `backlog` and is refilled from the store, in order, before anything newer is accepted directly.
//!
//! Capacity and sending slots are shared: no tenant, no webhook and no storm of retries can take all of either,
//! see [`redrive_core::fairness`]. The order of sending is in `fair_queue`, capacity in `capacity`, and what
//! matters only with several nodes in `multi_node`.

mod capacity;
mod fair_queue;
mod hosts;
mod lanes;
mod multi_node;
mod state;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    DeliveryId, TenantId, Time, WebhookId,
    cluster::clock_discipline::SetBack,
    delivery::lane::{Lane, Priority},
    dispatch::gate::Scope,
    event::{Event, PayloadFormat},
    security::egress_rules::HostKey,
};
use redrive_store::{LaneCapacity, LaneKey};

use self::state::State;
use crate::membership::NodeEpoch;

/// A delivery in memory, leased to this node.
#[derive(Clone, Debug)]
pub(crate) struct LeasedDelivery {
    pub(crate) id: DeliveryId,
    /// Epoch that it was leased under.
    pub(crate) epoch: Arc<NodeEpoch>,
    pub(crate) webhook_id: WebhookId,
    pub(crate) lane: Lane,
    pub(crate) event: Arc<Event>,
    pub(crate) format: PayloadFormat,
    /// Number of its next attempt.
    pub(crate) attempt: u32,
    pub(crate) created_at: Time,
    pub(crate) due: Time,
    pub(crate) rescues: u32,
    pub(crate) deaths: u32,
    /// Monotonic time at which its publish started, if it was accepted directly from a publish.
    pub(crate) started_at: Option<Duration>,
}

/// A webhook with the limits that the dispatcher applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WebhookCaps<'a> {
    pub(crate) webhook_id: WebhookId,
    pub(crate) tenant_id: &'a TenantId,
    /// Maximum number of requests in flight to the webhook.
    pub(crate) max_in_flight: usize,
    /// Maximum number of requests in flight of the tenant.
    pub(crate) tenant_max_in_flight: usize,
    /// Host of the webhook's URL.
    pub(crate) host: HostKey,
}

/// State of a delivery in this node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryState {
    /// Its request is in flight, or its outcome is being recorded.
    InFlight,
    /// It is queued.
    Queued,
}

/// Limits of deliveries in memory and in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchLimits {
    pub(crate) max_in_flight: usize,
    pub(crate) max_items: usize,
    pub(crate) max_bytes: usize,
    pub(crate) lane_items: usize,
    /// Maximum number of requests in flight to one destination host.
    pub(crate) host_max_in_flight: usize,
}

/// A delivery that may not be sent now.
pub(crate) struct DeferredDelivery {
    pub(crate) delivery: LeasedDelivery,
    pub(crate) how: Deferral,
}

/// How a delivery is deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deferral {
    /// A short hold: it stays in memory, first in its lane, as does everything else in this scope.
    Hold(Scope, Time),
    /// A long block: all deliveries of the webhook are released, and none is accepted until then.
    ParkWebhook(Time),
    /// Only this delivery is released, due at that time at the earliest.
    ReturnOne(Time),
    /// The half-open circuit has no probe left: it is released, and no other is accepted until the circuit changes.
    NoProbe,
    /// The node must not send at all: everything stays in memory until [`Dispatch::resume_node`].
    SuspendNode,
}

/// The dispatcher of this node.
pub(crate) struct Dispatch {
    state: Mutex<State>,
    bounds: DispatchLimits,
}

/// Actions that result from a change: deliveries to send now, deliveries to release to the store, and whether to
/// claim more from the store.
#[derive(Default)]
pub(crate) struct DispatchActions {
    pub(crate) start: Vec<LeasedDelivery>,
    /// Their capacity stays reserved until they are back in the store; see [`Dispatch::unreserve`].
    pub(crate) release: Vec<LeasedDelivery>,
    pub(crate) refill: bool,
}

/// Slots in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) webhook: usize,
    /// Deliveries queued in memory for the webhook.
    pub(crate) queued: usize,
    pub(crate) tenant: usize,
    pub(crate) node: usize,
    /// Whether the tenant may have one more request in flight to the webhook's host.
    pub(crate) host_has_slot: bool,
}

/// Deliveries of one tenant in a node's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantInMemory {
    /// Number of queued deliveries of each webhook that has any, by priority, highest first; those of ordered lanes
    /// count as normal.
    pub queued: Vec<(WebhookId, [u64; Priority::ALL.len()])>,
    /// Requests whose outcome is not stored yet.
    pub in_flight: usize,
}

/// Load of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Deliveries in memory, including reserved capacity.
    pub items: usize,
    /// Their payload bytes.
    pub bytes: usize,
    /// Requests whose outcome is not stored yet.
    pub unsettled: usize,
    /// Maximum of `unsettled`.
    pub slots: usize,
}

impl Dispatch {
    pub(crate) fn new(bounds: DispatchLimits) -> Self {
        Self { state: Mutex::new(State::new(bounds)), bounds }
    }

    /// Reserves capacity for a delivery about to be published. Returns false if it must be created as waiting.
    pub(crate) fn reserve(&self, caps: WebhookCaps<'_>, lane: &Lane, bytes: usize) -> bool {
        self.state.lock().reserve(caps, lane, bytes)
    }

    /// Releases reserved capacity: the deliveries were not committed, or are back in the store.
    pub(crate) fn unreserve(&self, webhook_id: WebhookId, lane: &Lane, count: usize, bytes: usize) {
        self.state.lock().unreserve(webhook_id, lane, count, bytes);
    }

    /// Records that a released delivery is back in the store.
    pub(crate) fn returned(&self, delivery: &LeasedDelivery) {
        let state = &mut *self.state.lock();
        state.owned.remove(&delivery.id);
        state.unreserve(delivery.webhook_id, &delivery.lane, 1, delivery.event.memory_bytes());
    }

    /// Returns whether the lease of a delivery is tracked in memory.
    pub(crate) fn owns(&self, delivery_id: DeliveryId) -> bool {
        self.state.lock().owned.contains_key(&delivery_id)
    }

    /// Keeps tracking a lease whose delivery has left memory: it stays leased until the epoch ends.
    pub(crate) fn retain_owned(&self, delivery_id: DeliveryId) {
        self.state.lock().owned.insert(delivery_id, ());
    }

    /// Returns whether a lane that this node holds is tracked in memory.
    pub(crate) fn knows_lane(&self, key: &LaneKey) -> bool {
        self.state.lock().knows_lane(key)
    }

    /// Schedules another claim from a lane that this node holds.
    pub(crate) fn adopt_lane(&self, caps: WebhookCaps<'_>, lane: &Lane) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.adopt_lane(caps, lane);
        state.start_ready()
    }

    /// Accepts committed deliveries for which capacity was reserved.
    pub(crate) fn accept_published(
        &self,
        deliveries: impl IntoIterator<Item = LeasedDelivery>,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        let mut hand_back = Vec::new();
        for delivery in deliveries {
            state.admit(delivery, &mut hand_back);
        }
        DispatchActions { release: hand_back, ..state.start_ready() }
    }

    /// Records that a delivery was created as waiting and due now: its lane, if in memory, has a backlog.
    pub(crate) fn mark_behind(&self, webhook_id: WebhookId, lane: &Lane) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.fell_behind(webhook_id, lane);
        state.start_ready()
    }

    /// Takes back deliveries that were not admitted, and starts others instead.
    pub(crate) fn defer(&self, refused: Vec<DeferredDelivery>) -> DispatchActions {
        let state = &mut *self.state.lock();
        let mut hand_back = Vec::new();
        // In reverse, so that the first delivery of each lane is at the front again.
        for DeferredDelivery { delivery, how } in refused.into_iter().rev() {
            state.refuse(delivery, how, &mut hand_back);
        }
        DispatchActions { release: hand_back, ..state.start_ready() }
    }

    /// Frees the webhook's slot after the response, or without one. The outcome is not stored yet.
    pub(crate) fn free_webhook_slot(
        &self,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.free_webhook_slot(webhook_id, delivery_id);
        state.start_ready()
    }

    /// Frees the node's slot and the memory after the outcome is stored. If the delivery still waits in an ordered
    /// lane, the deliveries after it are released and wait as well.
    pub(crate) fn settle(&self, delivery: &LeasedDelivery, still_waits: bool) -> DispatchActions {
        let state = &mut *self.state.lock();
        let hand_back = state.settled(delivery, still_waits);
        DispatchActions { release: hand_back, ..state.start_ready() }
    }

    /// Blocks a webhook until then, and releases its queued deliveries.
    pub(crate) fn park(&self, caps: WebhookCaps<'_>, until: Time) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.ensure_webhook(caps);
        let mut hand_back = Vec::new();
        state.park(caps.webhook_id, until, &mut hand_back);
        DispatchActions { release: hand_back, ..state.start_ready() }
    }

    /// Unblocks a webhook, possibly with a cap on its deliveries in memory.
    pub(crate) fn unpark(&self, caps: WebhookCaps<'_>, trickle: Option<usize>) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.unpark(caps, trickle);
        state.start_ready()
    }

    /// Returns the time at which the next hold or block ends.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        self.state.lock().next_wake()
    }

    /// Adjusts all times after the clock was set back: they were computed from the abandoned time.
    pub(crate) fn set_back(&self, set_back: &SetBack) {
        self.state.lock().set_back(set_back);
    }

    /// Ends the holds and blocks that are due.
    pub(crate) fn expire_holds(&self, now: Time) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.wake_up(now);
        state.start_ready()
    }

    /// Suspends sending after the store failed, until it accepts a write.
    pub(crate) fn store_failed(&self) {
        self.state.lock().store_down = true;
    }

    /// Resumes sending after the store recovered.
    pub(crate) fn store_recovered(&self) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.store_down = false;
        state.start_ready()
    }

    /// Returns the number of retries in flight.
    pub(crate) fn retries_in_flight(&self) -> usize {
        self.state.lock().retries
    }

    /// Sets the maximum number of retries in flight.
    pub(crate) fn set_retry_limit(&self, window: usize) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.retry_limit = window;
        state.start_ready()
    }

    /// Returns the lanes that have a backlog and capacity, with that capacity reserved.
    pub(crate) fn lanes_to_refill(&self) -> Vec<LaneCapacity> {
        self.state.lock().take_hungry()
    }

    /// Reserves the available capacity, possibly none, for a lane with due deliveries in the store.
    pub(crate) fn reserve_lane(&self, caps: WebhookCaps<'_>, lane: Lane) -> LaneCapacity {
        self.state.lock().reserve_lane(caps, lane)
    }

    /// Reserves up to `max` payload bytes for a claim; half of the free bytes is left to publishes.
    pub(crate) fn reserve_bytes(&self, max: usize) -> usize {
        let state = &mut *self.state.lock();
        let bytes = (self.bounds.max_bytes.saturating_sub(state.bytes) / 2).min(max);
        state.bytes += bytes;
        bytes
    }

    /// Releases the bytes reserved for a claim; the claimed deliveries have been counted.
    pub(crate) fn release_bytes(&self, bytes: usize) {
        self.state.lock().bytes -= bytes;
    }

    /// Accepts the deliveries claimed for a lane with reserved capacity. `more` says whether more are due in the
    /// store.
    pub(crate) fn accept_claimed(
        &self,
        capacity: &LaneCapacity,
        deliveries: Vec<LeasedDelivery>,
        more: bool,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        let hand_back = state.accept(capacity, deliveries, Some(more));
        DispatchActions { release: hand_back, ..state.start_ready() }
    }

    /// Reserves capacity for up to `max` deliveries named by tickets. Returns 0 if the lane has a backlog: older
    /// deliveries go first.
    pub(crate) fn reserve_for_tickets(&self, caps: WebhookCaps<'_>, lane: &Lane, max: usize) -> usize {
        self.state.lock().reserve_for_tickets(caps, lane, max)
    }

    /// Returns whether there is no capacity for `count` deliveries of a lane, which may be temporary. Returns false if
    /// the lane has a backlog: older deliveries go first then.
    pub(crate) fn is_full_for(&self, key: &LaneKey, count: usize) -> bool {
        self.state.lock().is_full_for(key, count)
    }

    /// Accepts deliveries leased by tickets, for which capacity was reserved.
    pub(crate) fn accept_ticketed(
        &self,
        capacity: &LaneCapacity,
        deliveries: Vec<LeasedDelivery>,
    ) -> DispatchActions {
        let state = &mut *self.state.lock();
        let hand_back = state.accept(capacity, deliveries, None);
        DispatchActions { release: hand_back, ..state.start_ready() }
    }

    /// Returns whether memory is at least three quarters full, so that other nodes should claim instead.
    pub(crate) fn is_nearly_full(&self) -> bool {
        let state = self.state.lock();
        state.items >= self.bounds.max_items / 4 * 3 || state.bytes >= self.bounds.max_bytes / 4 * 3
    }

    /// Releases the capacity of a failed claim. Lanes keep their backlog.
    pub(crate) fn claim_failed(&self, capacities: &[LaneCapacity]) {
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

    /// Takes a delivery that was cancelled on another node out of the queue, to be returned to the store. One that is
    /// about to be accepted is returned then.
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

    /// Takes the queued deliveries that have expired, to be ended without requests; otherwise as
    /// [`Dispatch::take_queued`].
    pub(crate) fn take_expired(&self, is_over: impl Fn(&LeasedDelivery) -> bool) -> Vec<LeasedDelivery> {
        self.state.lock().take_over(is_over)
    }

    /// Discards all deliveries queued under an ended epoch: other nodes own them.
    pub(crate) fn discard_ended_epoch(&self) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.discard_ended_epoch();
        state.start_ready()
    }

    /// Returns all queued deliveries of a webhook to the store, because another node sends to it.
    pub(crate) fn return_queued(&self, webhook_id: WebhookId) -> DispatchActions {
        let state = &mut *self.state.lock();
        let hand_back = state.return_queued(webhook_id);
        DispatchActions { release: hand_back, ..state.start_ready() }
    }

    /// Applies changed limits of a webhook and its tenant.
    pub(crate) fn set_caps(&self, caps: WebhookCaps<'_>) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.set_caps(caps);
        state.start_ready()
    }

    /// Changes the maximum number of requests in flight to each destination host.
    pub(crate) fn set_host_limit(&self, max_in_flight: usize) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.set_host_limit(max_in_flight);
        state.start_ready()
    }

    /// Takes a slot of a host for a request that is not a delivery. Returns whether one was free; it is released by
    /// [`Dispatch::free_host`].
    pub(crate) fn take_host(&self, tenant_id: &TenantId, host: HostKey) -> bool {
        self.state.lock().take_host(tenant_id, host)
    }

    /// Releases a slot taken by [`Dispatch::take_host`].
    pub(crate) fn free_host(&self, tenant_id: &TenantId, host: HostKey) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.free_host(tenant_id, host);
        state.start_ready()
    }

    /// Resumes sending if the node was suspended.
    pub(crate) fn resume_node(&self) -> DispatchActions {
        let state = &mut *self.state.lock();
        if !std::mem::take(&mut state.suspended) {
            return DispatchActions::default();
        }
        state.start_ready()
    }

    /// Returns every webhook in memory.
    pub(crate) fn webhooks(&self) -> Vec<WebhookId> {
        self.state.lock().webhooks.keys().copied().collect()
    }

    /// Returns the number of requests in flight to a webhook.
    pub(crate) fn sending(&self, webhook_id: WebhookId) -> usize {
        self.state.lock().webhooks.get(&webhook_id).map_or(0, |queues| queues.sending.len())
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
    pub(crate) fn tenant_changed(&self, tenant_id: &TenantId, max_in_flight: usize) -> DispatchActions {
        let state = &mut *self.state.lock();
        state.tenant_changed(tenant_id, max_in_flight);
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
        self.state.lock().whereabouts(webhook_id, delivery_id)
    }

    /// Returns the slots in use by a webhook, its tenant, its host and the node.
    pub(crate) fn usage(&self, caps: WebhookCaps<'_>) -> Usage {
        self.state.lock().usage(caps)
    }

    /// Returns the deliveries of a tenant in memory.
    pub(crate) fn tenant_in_memory(&self, tenant_id: &TenantId) -> TenantInMemory {
        self.state.lock().held(tenant_id)
    }

    /// Stops sending, and returns all queued deliveries.
    pub(crate) fn drain(&self) -> Vec<LeasedDelivery> {
        self.state.lock().drain()
    }

    /// Returns whether the node is draining and starts no new requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.state.lock().draining
    }

    /// Returns the load of the node.
    pub(crate) fn load(&self) -> Load {
        let state = self.state.lock();
        Load {
            items: state.items,
            bytes: state.bytes,
            unsettled: state.unsettled,
            slots: self.bounds.max_in_flight,
        }
    }
}

#[cfg(test)]
mod tests;

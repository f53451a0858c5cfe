//! State of the dispatcher: webhooks and tenants in memory, and the counters of both.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
};

use redrive_core::{
    DeliveryId, TenantId, Time, WebhookId,
    cluster::clock_discipline::SetBack,
    delivery::lane::{CLASS_COUNT, Lane, Priority},
    dispatch::gate::Scope,
    security::egress_rules::HostKey,
};

use super::{
    Deferral, DispatchLimits, LeasedDelivery, MemoryState, TenantInMemory, Usage, WebhookCaps,
    fair_queue::ClassQueues,
    hosts::Hosts,
    lanes::{Block, WebhookQueues, is_retry},
};
use crate::ids::ById;

/// A tenant with a webhook in memory.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    pub(super) id: TenantId,
    /// Number of its webhooks in memory.
    webhooks: usize,
    pub(super) unsettled: usize,
    pub(super) max_in_flight: usize,
    pub(super) items: usize,
    pub(super) bytes: usize,
    /// Lanes that may send, by class, each at most once.
    pub(super) turns: [VecDeque<(WebhookId, usize)>; CLASS_COUNT],
    /// Whether it is in the round-robin queue of each class.
    pub(super) in_rota: [bool; CLASS_COUNT],
    /// Whether it may not send for now: it joins no class queue, and leaves each one when it reaches the front.
    pub(super) parked: bool,
    pub(super) blocked_until: Option<Time>,
    /// Indexes of hosts at which its lanes wait; may include hosts where none waits any longer.
    pub(super) waits_at: BTreeSet<usize>,
}

pub(super) struct State {
    pub(super) bounds: DispatchLimits,
    pub(super) webhooks: ById<WebhookId, WebhookQueues>,
    pub(super) tenants: Vec<Tenant>,
    indexes: HashMap<TenantId, usize>,
    free_places: Vec<usize>,
    pub(super) hosts: Hosts,
    pub(super) round_robin: ClassQueues,
    /// Tenants that have reached their limit of requests in flight.
    pub(super) parked: VecDeque<usize>,
    pub(super) blocked_until: Option<Time>,
    /// End times of holds and blocks.
    hold_expiries: BinaryHeap<Reverse<(Time, HoldScope)>>,
    /// Lanes that have a backlog and may have capacity.
    pub(super) refills: VecDeque<(WebhookId, usize)>,
    /// Lanes that have a backlog and found no capacity.
    pub(super) blocked_refills: VecDeque<(WebhookId, usize)>,
    /// Requests whose outcome is not committed yet, and how many of them are retries.
    pub(super) unsettled: usize,
    pub(super) retries: usize,
    /// Maximum number of retries in flight.
    pub(super) retry_limit: usize,
    pub(super) items: usize,
    pub(super) retry_items: usize,
    pub(super) bytes: usize,
    /// Deliveries that were cancelled while in flight on this node, with the reason.
    pub(super) cancelled: HashMap<DeliveryId, String>,
    /// Deliveries that were cancelled while capacity of their webhook was reserved: their lease may be committed and
    /// not accepted yet. They are returned to the store when they are accepted, and the store ends them.
    pub(super) cancelled_early: HashMap<DeliveryId, WebhookId>,
    /// Every delivery in memory: queued, in flight, being recorded, or being released to the store.
    pub(super) owned: ById<DeliveryId, ()>,
    pub(super) draining: bool,
    pub(super) store_down: bool,
    /// Whether other nodes may declare this node dead: it must not send.
    pub(super) suspended: bool,
}

/// Maximum number of cancellations kept for deliveries that may still be accepted. Further ones take effect when
/// the outcome of the request is recorded.
const MAX_EARLY_CANCELS: usize = 10_000;

/// Removes an id. Returns whether it was present; the map is nearly always empty, and then nothing is hashed.
pub(super) fn take_if_present<V>(map: &mut HashMap<DeliveryId, V>, id: DeliveryId) -> bool {
    !map.is_empty() && map.remove(&id).is_some()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum HoldScope {
    Webhook(WebhookId),
    Tenant(usize),
    Node,
}

impl State {
    pub(super) fn new(bounds: DispatchLimits) -> Self {
        Self {
            bounds,
            webhooks: ById::default(),
            tenants: Vec::new(),
            indexes: HashMap::new(),
            free_places: Vec::new(),
            hosts: Hosts::new(bounds.host_max_in_flight),
            round_robin: ClassQueues::default(),
            parked: VecDeque::new(),
            blocked_until: None,
            hold_expiries: BinaryHeap::new(),
            refills: VecDeque::new(),
            blocked_refills: VecDeque::new(),
            unsettled: 0,
            retries: 0,
            retry_limit: usize::MAX,
            items: 0,
            retry_items: 0,
            bytes: 0,
            cancelled: HashMap::new(),
            cancelled_early: HashMap::new(),
            owned: ById::default(),
            draining: false,
            store_down: false,
            suspended: false,
        }
    }

    /// Ensures that a webhook and its tenant are in memory, with these limits.
    pub(super) fn ensure_webhook(&mut self, caps: WebhookCaps<'_>) -> &mut WebhookQueues {
        if !self.webhooks.contains_key(&caps.webhook_id) {
            let tenant = self.tenant_index(caps.tenant_id);
            self.tenants[tenant].webhooks += 1;
            let host = self.hosts.refer(caps.host);
            self.webhooks.insert(caps.webhook_id, WebhookQueues::new(tenant, host));
        }
        let queues =
            self.webhooks.entry(caps.webhook_id).or_insert_with(|| unreachable!("it was made above"));
        if self.hosts.key(queues.host) != caps.host {
            // Its URL has changed. Requests in flight and waiting lanes stay with the previous host.
            let before = std::mem::replace(&mut queues.host, self.hosts.refer(caps.host));
            self.hosts.release(before);
        }
        queues.max_in_flight = caps.max_in_flight.max(1);
        self.tenants[queues.tenant].max_in_flight = caps.tenant_max_in_flight.max(1);
        queues
    }

    fn tenant_index(&mut self, tenant_id: &TenantId) -> usize {
        if let Some(index) = self.indexes.get(tenant_id) {
            return *index;
        }
        let new = Tenant { id: tenant_id.clone(), ..Tenant::default() };
        let index = match self.free_places.pop() {
            Some(index) => {
                self.tenants[index] = new;
                index
            }
            None => {
                self.tenants.push(new);
                self.tenants.len() - 1
            }
        };
        self.indexes.insert(tenant_id.clone(), index);
        index
    }

    /// Evicts an idle webhook; it is created again when needed.
    pub(super) fn evict_if_idle(&mut self, webhook_id: WebhookId) {
        let Some(queues) = self.webhooks.get(&webhook_id) else { return };
        if !queues.is_idle() {
            return;
        }
        let (index, host) = (queues.tenant, queues.host);
        if !self.cancelled_early.is_empty() {
            self.cancelled_early.retain(|_, of| *of != webhook_id);
        }
        self.webhooks.remove(&webhook_id);
        self.hosts.release(host);
        self.tenants[index].webhooks -= 1;
        // A tenant that is still in a class queue or parked is evicted when it leaves.
        self.evict_tenant_if_idle(index);
    }

    /// Evicts a tenant with nothing in memory, and frees its index.
    pub(super) fn evict_tenant_if_idle(&mut self, index: usize) {
        let tenant = &self.tenants[index];
        let gone = tenant.webhooks == 0 && !tenant.parked && tenant.in_rota == [false; CLASS_COUNT];
        if gone && self.indexes.get(&tenant.id) == Some(&index) {
            self.indexes.remove(&tenant.id);
            self.free_places.push(index);
        }
    }

    /// Takes a slot for a delivery until its outcome is stored.
    pub(super) fn take_slot(&mut self, webhook_id: WebhookId, lane: usize) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let queue = &mut queues.lanes[lane];
        queue.unsettled += 1;
        self.unsettled += 1;
        self.retries += usize::from(queue.is_retry());
        self.tenants[queues.tenant].unsettled += 1;
    }

    fn free_slot(&mut self, webhook_id: WebhookId, lane: &Lane) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        if let Some(at) = queues.position(lane) {
            queues.lanes[at].unsettled -= 1;
        }
        self.unsettled -= 1;
        self.retries -= usize::from(is_retry(lane));
        let index = queues.tenant;
        self.tenants[index].unsettled -= 1;
        self.unpark_next_tenant(index);
    }

    pub(super) fn admit(&mut self, delivery: LeasedDelivery, hand_back: &mut Vec<LeasedDelivery>) {
        let webhook_id = delivery.webhook_id;
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        self.owned.insert(delivery.id, ());
        let is_cancelled = take_if_present(&mut self.cancelled_early, delivery.id);
        if is_cancelled || queues.is_parked() {
            // It was cancelled, or its webhook parked, during the commit.
            return hand_back.push(delivery);
        }
        let lane = queues.lane(&delivery.lane);
        queues.lanes[lane].reserved -= 1;
        queues.lanes[lane].queue.push_back(delivery);
        self.enqueue_lane(webhook_id, lane);
    }

    pub(super) fn free_webhook_slot(&mut self, webhook_id: WebhookId, delivery_id: DeliveryId) {
        self.remove_in_flight(webhook_id, delivery_id);
        self.enqueue_next_lanes(webhook_id);
    }

    pub(super) fn settled(&mut self, delivery: &LeasedDelivery, still_waits: bool) -> Vec<LeasedDelivery> {
        let webhook_id = delivery.webhook_id;
        self.owned.remove(&delivery.id);
        if !self.cancelled.is_empty() {
            self.cancelled.remove(&delivery.id);
        }
        self.store_down = false;
        self.free_slot(webhook_id, &delivery.lane);
        self.release_capacity(webhook_id, &delivery.lane, 1, delivery.event.memory_bytes());
        let mut hand_back = Vec::new();
        if let Some(queues) = self.webhooks.get_mut(&webhook_id)
            && let Some(lane) = queues.position(&delivery.lane)
        {
            if still_waits && delivery.lane.is_ordered() {
                // The deliveries after it wait with it, in the store.
                queues.lanes[lane].drain_to_release(&mut hand_back);
            }
            self.enqueue_lane(webhook_id, lane);
            self.request_refill(webhook_id, lane);
            if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
                queues.free_if_idle(lane);
            }
        }
        self.evict_if_idle(webhook_id);
        hand_back
    }

    /// Takes back a delivery that was not admitted.
    pub(super) fn refuse(
        &mut self,
        mut delivery: LeasedDelivery,
        how: Deferral,
        hand_back: &mut Vec<LeasedDelivery>,
    ) {
        let (webhook_id, lane) = (delivery.webhook_id, delivery.lane.clone());
        self.remove_in_flight(webhook_id, delivery.id);
        self.free_slot(webhook_id, &lane);
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else {
            self.owned.remove(&delivery.id);
            return;
        };
        let at = queues.lane(&lane);
        match how {
            // The webhook was parked while admission was requested.
            Deferral::Hold(..) | Deferral::SuspendNode if queues.is_parked() => {
                queues.lanes[at].reserved += 1;
                hand_back.push(delivery);
            }
            Deferral::Hold(scope, until) => {
                queues.lanes[at].queue.push_front(delivery);
                self.hold(webhook_id, scope, until);
            }
            Deferral::ParkWebhook(until) => {
                queues.lanes[at].queue.push_front(delivery);
                self.park(webhook_id, until, hand_back);
            }
            Deferral::SuspendNode => {
                queues.lanes[at].queue.push_front(delivery);
                self.suspended = true;
                self.enqueue_lanes(webhook_id);
            }
            Deferral::ReturnOne(_) | Deferral::NoProbe => {
                match how {
                    Deferral::ReturnOne(until) => delivery.due = delivery.due.max(until),
                    _ => queues.probe_cap = Some(queues.sending.len()),
                }
                let queue = &mut queues.lanes[at];
                queue.reserved += 1;
                hand_back.push(delivery);
                if lane.is_ordered() {
                    // No delivery after it may overtake it.
                    queue.drain_to_release(hand_back);
                }
                self.enqueue_lanes(webhook_id);
            }
        }
    }

    fn remove_in_flight(&mut self, webhook_id: WebhookId, delivery_id: DeliveryId) {
        if let Some(queues) = self.webhooks.get_mut(&webhook_id)
            && let Some(at) = queues.sending.iter().position(|sending| sending.delivery_id == delivery_id)
        {
            let (host, tenant) = (queues.sending.swap_remove(at).host, queues.tenant);
            self.hosts.free(host, tenant);
            self.wake_hosts();
        }
    }

    pub(super) fn take_host(&mut self, tenant_id: &TenantId, host: HostKey) -> bool {
        if !self.hosts.may_take_by_key(host, self.indexes.get(tenant_id).copied()) {
            return false;
        }
        let position = self.tenant_index(tenant_id);
        // Counts like a webhook, so that the tenant's index is kept.
        self.tenants[position].webhooks += 1;
        let index = self.hosts.refer(host);
        self.hosts.take(index, position);
        true
    }

    pub(super) fn free_host(&mut self, tenant_id: &TenantId, host: HostKey) {
        let Some(position) = self.indexes.get(tenant_id).copied() else { return };
        let index = self.hosts.refer(host);
        self.hosts.free(index, position);
        // One for the reference of `take_host`, one for the reference added above.
        self.hosts.release(index);
        self.hosts.release(index);
        self.wake_hosts();
        self.tenants[position].webhooks -= 1;
        self.evict_tenant_if_idle(position);
    }

    /// Holds a webhook, its tenant or the whole node for a short time. Queues stay in memory.
    fn hold(&mut self, webhook_id: WebhookId, scope: Scope, until: Time) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let waking = match scope {
            Scope::Webhook => {
                if !queues.is_parked() {
                    queues.block = Some(Block::Held(until));
                }
                HoldScope::Webhook(webhook_id)
            }
            Scope::Tenant => {
                let index = queues.tenant;
                self.tenants[index].blocked_until = Some(until);
                self.enqueue_lanes(webhook_id);
                HoldScope::Tenant(index)
            }
            // A full host holds nothing here: lanes wait for it in `hosts`.
            Scope::Host => return,
            Scope::Node => {
                self.blocked_until = Some(until);
                self.enqueue_lanes(webhook_id);
                HoldScope::Node
            }
        };
        self.hold_expiries.push(Reverse((until, waking)));
    }

    /// Releases all queued deliveries of a webhook, and accepts none until then.
    pub(super) fn park(&mut self, webhook_id: WebhookId, until: Time, hand_back: &mut Vec<LeasedDelivery>) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        queues.block = Some(Block::Parked(until));
        queues.probe_cap = None;
        for queue in &mut queues.lanes {
            queue.drain_to_release(hand_back);
        }
        self.hold_expiries.push(Reverse((until, HoldScope::Webhook(webhook_id))));
    }

    pub(super) fn unpark(&mut self, caps: WebhookCaps<'_>, trickle: Option<usize>) {
        let queues = self.ensure_webhook(caps);
        queues.block = None;
        queues.probe_cap = trickle;
        self.unblock(caps.webhook_id);
    }

    fn unblock(&mut self, webhook_id: WebhookId) {
        self.enqueue_lanes(webhook_id);
        self.request_refills(webhook_id);
        // Some lanes may have had no capacity only because of this block.
        self.retry_blocked_refills(usize::MAX);
        self.evict_if_idle(webhook_id);
    }

    pub(super) fn next_wake(&self) -> Option<Time> {
        self.hold_expiries.peek().map(|Reverse((at, _))| *at)
    }

    /// Adjusts all times after the clock was set back: they were computed from the abandoned time.
    pub(super) fn set_back(&mut self, set_back: &SetBack) {
        self.blocked_until = self.blocked_until.map(|until| set_back.apply(until));
        for tenant in &mut self.tenants {
            tenant.blocked_until = tenant.blocked_until.map(|until| set_back.apply(until));
        }
        for queues in self.webhooks.values_mut() {
            queues.block = queues.block.map(|block| match block {
                Block::Held(until) => Block::Held(set_back.apply(until)),
                Block::Parked(until) => Block::Parked(set_back.apply(until)),
            });
            for delivery in queues.lanes.iter_mut().flat_map(|lane| &mut lane.queue) {
                delivery.due = set_back.apply(delivery.due);
            }
        }
        let wakes = std::mem::take(&mut self.hold_expiries).into_iter();
        self.hold_expiries =
            wakes.map(|Reverse((at, waking))| Reverse((set_back.apply(at), waking))).collect();
    }

    pub(super) fn wake_up(&mut self, now: Time) {
        while let Some(Reverse((at, waking))) = self.hold_expiries.peek().copied()
            && at <= now
        {
            self.hold_expiries.pop();
            match waking {
                HoldScope::Webhook(webhook_id) => {
                    let Some(queues) = self.webhooks.get_mut(&webhook_id) else { continue };
                    if queues.block.is_some_and(|block| block.until() <= now) {
                        queues.block = None;
                        self.unblock(webhook_id);
                    }
                }
                HoldScope::Tenant(index) => {
                    let over = self.tenants[index].blocked_until.is_some_and(|until| until <= now);
                    if over {
                        self.tenants[index].blocked_until = None;
                        self.unpark_tenant(index);
                    }
                }
                HoldScope::Node => {
                    if self.blocked_until.is_some_and(|until| until <= now) {
                        self.blocked_until = None;
                    }
                }
            }
        }
    }

    pub(super) fn cancel(
        &mut self,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
        reason: String,
    ) -> Option<LeasedDelivery> {
        let queues = self.webhooks.get_mut(&webhook_id)?;
        if queues.is_sending(delivery_id) {
            self.cancelled.insert(delivery_id, reason);
            return None;
        }
        self.take_cancelled(webhook_id, delivery_id)
    }

    /// Takes a cancelled delivery out of its queue. One that is not in memory is recorded while capacity of its
    /// webhook is reserved, since its lease may be in transit from the store.
    pub(super) fn take_cancelled(
        &mut self,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
    ) -> Option<LeasedDelivery> {
        let queues = self.webhooks.get(&webhook_id)?;
        if queues.is_sending(delivery_id) {
            return None;
        }
        let is_expected = queues.has_reserved();
        let queued = self.take_queued_delivery(webhook_id, delivery_id);
        if queued.is_none() && is_expected {
            if self.cancelled_early.len() >= MAX_EARLY_CANCELS {
                let webhooks = &self.webhooks;
                let is_open = |webhook_id: &WebhookId| {
                    webhooks.get(webhook_id).is_some_and(WebhookQueues::has_reserved)
                };
                self.cancelled_early.retain(|_, webhook_id| is_open(webhook_id));
            }
            if self.cancelled_early.len() < MAX_EARLY_CANCELS {
                self.cancelled_early.insert(delivery_id, webhook_id);
            }
        }
        queued
    }

    pub(super) fn take_queued(&mut self, webhook_id: WebhookId) -> Vec<LeasedDelivery> {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return Vec::new() };
        let mut queued = Vec::new();
        let mut taken = Vec::new();
        for (lane, queue) in queues.lanes.iter_mut().enumerate() {
            taken.extend(std::iter::repeat_n(lane, queue.queue.len()));
            queued.extend(queue.queue.drain(..));
        }
        for lane in taken {
            self.take_slot(webhook_id, lane);
        }
        queued
    }

    /// Takes the queued deliveries that match the predicate, as [`State::take_queued`] does.
    pub(super) fn take_over(&mut self, is_over: impl Fn(&LeasedDelivery) -> bool) -> Vec<LeasedDelivery> {
        let mut over = Vec::new();
        let mut slots = Vec::new();
        for (webhook_id, queues) in &mut self.webhooks {
            for (lane, queue) in queues.lanes.iter_mut().enumerate() {
                let (ended, stays): (Vec<_>, Vec<_>) = queue.queue.drain(..).partition(&is_over);
                queue.queue = stays.into();
                slots.extend(ended.iter().map(|_| (*webhook_id, lane)));
                over.extend(ended);
            }
        }
        for (webhook_id, lane) in slots {
            self.take_slot(webhook_id, lane);
        }
        over
    }

    /// Applies changed limits of a tenant, and checks again whether it may send.
    pub(super) fn tenant_changed(&mut self, tenant_id: &TenantId, max_in_flight: usize) {
        let Some(index) = self.indexes.get(tenant_id).copied() else { return };
        self.tenants[index].max_in_flight = max_in_flight.max(1);
        self.tenants[index].blocked_until = None;
        self.unpark_tenant(index);
    }

    pub(super) fn whereabouts(&self, webhook_id: WebhookId, delivery_id: DeliveryId) -> Option<MemoryState> {
        let hook = self.webhooks.get(&webhook_id)?;
        if hook.is_sending(delivery_id) {
            return Some(MemoryState::InFlight);
        }
        let mut queues = hook.lanes.iter().map(|queue| &queue.queue);
        queues
            .any(|queue| queue.iter().any(|delivery| delivery.id == delivery_id))
            .then_some(MemoryState::Queued)
    }

    pub(super) fn usage(&self, caps: WebhookCaps<'_>) -> Usage {
        let queues = self.webhooks.get(&caps.webhook_id);
        let position = self.indexes.get(caps.tenant_id).copied();
        Usage {
            webhook: queues.map_or(0, |queues| queues.sending.len()),
            queued: queues.map_or(0, |queues| queues.lanes.iter().map(|queue| queue.queue.len()).sum()),
            tenant: position.map_or(0, |index| self.tenants[index].unsettled),
            node: self.unsettled,
            host_has_slot: self.hosts.may_take_by_key(caps.host, position),
        }
    }

    pub(super) fn held(&self, tenant_id: &TenantId) -> TenantInMemory {
        let Some(index) = self.indexes.get(tenant_id).copied() else { return TenantInMemory::default() };
        let mut held = TenantInMemory { queued: Vec::new(), in_flight: self.tenants[index].unsettled };
        let of_tenant = self.webhooks.iter().filter(|(_, queues)| queues.tenant == index);
        // Stops after the tenant's last webhook: there may be many webhooks of other tenants.
        for (webhook_id, queues) in of_tenant.take(self.tenants[index].webhooks) {
            let mut queued = [0; Priority::ALL.len()];
            for queue in &queues.lanes {
                queued[queue.lane.class() % Priority::ALL.len()] += queue.queue.len() as u64;
            }
            if queued.iter().any(|count| *count > 0) {
                held.queued.push((*webhook_id, queued));
            }
        }
        held
    }

    pub(super) fn drain(&mut self) -> Vec<LeasedDelivery> {
        self.draining = true;
        let mut queued = Vec::new();
        for queues in self.webhooks.values_mut() {
            for queue in &mut queues.lanes {
                queue.drain_to_release(&mut queued);
            }
        }
        queued
    }
}

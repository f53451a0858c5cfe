//! State of the dispatcher: webhooks and tenants in memory, and the counters of both.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
};

use redrive_core::{
    DeliveryId, TenantId, Time, WebhookId,
    cluster::clock_discipline::ClockStep,
    delivery::lane::{CLASS_COUNT, Lane, Priority},
    dispatch::gate::LimitScope,
    security::egress_rules::HostKey,
};

use super::{
    Deferral, DispatchLimits, LeasedDelivery, MemoryState, TenantInMemory, Usage, WebhookLimits,
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
    pub(super) max_unsettled: usize,
    pub(super) deliveries: usize,
    pub(super) bytes: usize,
    /// Lanes that may send, by class, each at most once.
    pub(super) ready_lanes: [VecDeque<(WebhookId, usize)>; CLASS_COUNT],
    /// Whether it is in the round-robin queue of each class: see [`ClassQueues`].
    pub(super) is_enqueued: [bool; CLASS_COUNT],
    /// Whether it may not send for now, for example at its concurrency limit: it joins no class queue, and leaves each
    /// one when it reaches the front. Its queues stay in memory.
    pub(super) is_suspended: bool,
    /// Its number of unsettled deliveries in [`State::tenants_at_fair_limit`], if it is there.
    pub(super) fair_limit_key: Option<usize>,
    /// End of its hold, for example until its next token.
    pub(super) held_until: Option<Time>,
    /// Indexes of hosts at which its lanes wait; may include hosts where none waits any longer.
    pub(super) waiting_hosts: BTreeSet<usize>,
}

pub(super) struct State {
    pub(super) limits: DispatchLimits,
    pub(super) webhooks: ById<WebhookId, WebhookQueues>,
    pub(super) tenants: Vec<Tenant>,
    tenant_indexes: HashMap<TenantId, usize>,
    free_indexes: Vec<usize>,
    pub(super) hosts: Hosts,
    pub(super) round_robin: ClassQueues,
    /// Suspended tenants that have reached their fair part of the node's slots, which depends on the number of free ones
    /// (`core::dispatch::fairness::may_take`): their unsettled deliveries and index. The
    /// first ones may send again when slots of other tenants become free.
    pub(super) tenants_at_fair_limit: BTreeSet<(usize, usize)>,
    /// End of the hold of the whole node.
    pub(super) held_until: Option<Time>,
    /// End times of holds and parks.
    block_expiries: BinaryHeap<Reverse<(Time, BlockTarget)>>,
    /// Lanes that have more due deliveries in the store, and may have capacity.
    pub(super) refills: VecDeque<(WebhookId, usize)>,
    /// Lanes that have more due deliveries in the store, and found no capacity.
    pub(super) refills_without_capacity: VecDeque<(WebhookId, usize)>,
    /// Deliveries that have left their queues and whose outcome is not committed yet, and how many of them are in the
    /// retry class (retries and resends).
    pub(super) unsettled: usize,
    pub(super) unsettled_retries: usize,
    /// Maximum number of unsettled deliveries of the retry class.
    pub(super) retry_limit: usize,
    pub(super) deliveries: usize,
    pub(super) retry_deliveries: usize,
    pub(super) bytes: usize,
    /// Deliveries that were cancelled while in flight on this node, with the reason.
    pub(super) cancelled: HashMap<DeliveryId, String>,
    /// Deliveries that were cancelled while capacity of their webhook was reserved: their lease may be committed and
    /// not enqueued yet. They are released instead of enqueued, and the store ends them.
    pub(super) cancelled_early: HashMap<DeliveryId, WebhookId>,
    /// The lease of every delivery in memory: queued, in flight, being recorded, or being released to the store.
    pub(super) tracked_leases: ById<DeliveryId, ()>,
    pub(super) draining: bool,
    pub(super) store_down: bool,
    /// Whether other nodes may declare this node dead: it must not send.
    pub(super) node_suspended: bool,
}

/// Maximum number of cancellations kept for deliveries that may still be enqueued. Further ones take effect when
/// the outcome of the request is recorded.
const MAX_EARLY_CANCELS: usize = 10_000;

/// Removes an id. Returns whether it was present; the map is nearly always empty, and then nothing is hashed.
pub(super) fn take_if_present<V>(map: &mut HashMap<DeliveryId, V>, id: DeliveryId) -> bool {
    !map.is_empty() && map.remove(&id).is_some()
}

/// The webhook, the tenant or the node that a hold or a park blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum BlockTarget {
    Webhook(WebhookId),
    Tenant(usize),
    Node,
}

impl State {
    pub(super) fn new(limits: DispatchLimits) -> Self {
        Self {
            limits,
            webhooks: ById::default(),
            tenants: Vec::new(),
            tenant_indexes: HashMap::new(),
            free_indexes: Vec::new(),
            hosts: Hosts::new(limits.host_max_in_flight),
            round_robin: ClassQueues::default(),
            tenants_at_fair_limit: BTreeSet::new(),
            held_until: None,
            block_expiries: BinaryHeap::new(),
            refills: VecDeque::new(),
            refills_without_capacity: VecDeque::new(),
            unsettled: 0,
            unsettled_retries: 0,
            retry_limit: usize::MAX,
            deliveries: 0,
            retry_deliveries: 0,
            bytes: 0,
            cancelled: HashMap::new(),
            cancelled_early: HashMap::new(),
            tracked_leases: ById::default(),
            draining: false,
            store_down: false,
            node_suspended: false,
        }
    }

    /// Ensures that a webhook and its tenant are in memory, with these limits.
    pub(super) fn ensure_webhook(&mut self, limits: WebhookLimits<'_>) -> &mut WebhookQueues {
        if !self.webhooks.contains_key(&limits.webhook_id) {
            let tenant = self.tenant_index(limits.tenant_id);
            self.tenants[tenant].webhooks += 1;
            let host = self.hosts.acquire_host_index(limits.host);
            self.webhooks.insert(limits.webhook_id, WebhookQueues::new(tenant, host));
        }
        let queues = self
            .webhooks
            .entry(limits.webhook_id)
            .or_insert_with(|| unreachable!("the entry was inserted above"));
        let mut to_enqueue = Vec::new();
        if self.hosts.key(queues.host) != limits.host {
            // Its URL has changed. Requests in flight stay with the previous host; lanes that wait there are enqueued again,
            // since they need no slot of it any more.
            let before = std::mem::replace(&mut queues.host, self.hosts.acquire_host_index(limits.host));
            to_enqueue = self.hosts.remove_waiting(before, queues.tenant, limits.webhook_id);
            to_enqueue.iter().for_each(|lane| queues.lanes[*lane].is_ready_or_waiting_at_host = false);
            self.hosts.drop_reference(before);
        }
        let before = std::mem::replace(&mut queues.max_in_flight, limits.max_in_flight.max(1));
        let (may_send_more, tenant) = (before < queues.max_in_flight, queues.tenant);
        for lane in to_enqueue {
            self.enqueue_lane(limits.webhook_id, lane);
        }
        if may_send_more {
            self.enqueue_next_lanes(limits.webhook_id);
        }
        let tenant_max = limits.tenant_max_unsettled.max(1);
        if std::mem::replace(&mut self.tenants[tenant].max_unsettled, tenant_max) < tenant_max {
            self.resume_tenant(tenant);
        }
        self.webhooks.entry(limits.webhook_id).or_insert_with(|| unreachable!("the entry was inserted above"))
    }

    fn tenant_index(&mut self, tenant_id: &TenantId) -> usize {
        if let Some(index) = self.tenant_indexes.get(tenant_id) {
            return *index;
        }
        let new = Tenant { id: tenant_id.clone(), ..Tenant::default() };
        let index = match self.free_indexes.pop() {
            Some(index) => {
                self.tenants[index] = new;
                index
            }
            None => {
                self.tenants.push(new);
                self.tenants.len() - 1
            }
        };
        self.tenant_indexes.insert(tenant_id.clone(), index);
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
        self.hosts.drop_reference(host);
        self.tenants[index].webhooks -= 1;
        // A tenant that is still in a class queue or suspended is evicted when it leaves.
        self.evict_tenant_if_idle(index);
    }

    /// Evicts a tenant with nothing in memory, and frees its index.
    pub(super) fn evict_tenant_if_idle(&mut self, index: usize) {
        let tenant = &self.tenants[index];
        let gone = tenant.webhooks == 0 && !tenant.is_suspended && tenant.is_enqueued == [false; CLASS_COUNT];
        if gone && self.tenant_indexes.get(&tenant.id) == Some(&index) {
            self.tenant_indexes.remove(&tenant.id);
            self.free_indexes.push(index);
        }
    }

    /// Counts a delivery as unsettled: it occupies a slot of its tenant and of the node until its outcome is stored.
    pub(super) fn count_unsettled(&mut self, webhook_id: WebhookId, lane: usize) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let queue = &mut queues.lanes[lane];
        queue.unsettled += 1;
        self.unsettled += 1;
        self.unsettled_retries += usize::from(queue.is_retry());
        let index = queues.tenant;
        self.tenants[index].unsettled += 1;
        self.update_fair_limit_queue(index);
    }

    fn uncount_unsettled(&mut self, webhook_id: WebhookId, lane: &Lane) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        if let Some(lane_index) = queues.lane_index(lane) {
            queues.lanes[lane_index].unsettled -= 1;
        }
        self.unsettled -= 1;
        self.unsettled_retries -= usize::from(is_retry(lane));
        let index = queues.tenant;
        self.tenants[index].unsettled -= 1;
        self.update_fair_limit_queue(index);
        self.resume_tenant(index);
    }

    /// Puts a committed delivery into its queue.
    pub(super) fn enqueue_published(
        &mut self,
        delivery: LeasedDelivery,
        to_release: &mut Vec<LeasedDelivery>,
    ) {
        let webhook_id = delivery.webhook_id;
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        self.tracked_leases.insert(delivery.id, ());
        let is_cancelled = take_if_present(&mut self.cancelled_early, delivery.id);
        if is_cancelled || queues.is_parked() {
            // It was cancelled, or its webhook parked, during the commit.
            return to_release.push(delivery);
        }
        let lane = queues.ensure_lane(&delivery.lane);
        queues.lanes[lane].reserved -= 1;
        queues.lanes[lane].queue.push_back(delivery);
        self.enqueue_lane(webhook_id, lane);
    }

    pub(super) fn free_local_webhook_slot(&mut self, webhook_id: WebhookId, delivery_id: DeliveryId) {
        self.remove_in_flight(webhook_id, delivery_id);
        self.enqueue_next_lanes(webhook_id);
    }

    pub(super) fn settle(
        &mut self,
        delivery: &LeasedDelivery,
        returns_to_store: bool,
    ) -> Vec<LeasedDelivery> {
        let webhook_id = delivery.webhook_id;
        self.tracked_leases.remove(&delivery.id);
        if !self.cancelled.is_empty() {
            self.cancelled.remove(&delivery.id);
        }
        self.store_down = false;
        self.uncount_unsettled(webhook_id, &delivery.lane);
        self.free_capacity(webhook_id, &delivery.lane, 1, delivery.event.memory_bytes());
        let mut to_release = Vec::new();
        if let Some(queues) = self.webhooks.get_mut(&webhook_id)
            && let Some(lane) = queues.lane_index(&delivery.lane)
        {
            if returns_to_store && delivery.lane.is_ordered() {
                // The deliveries after it wait with it, in the store.
                queues.lanes[lane].drain_to_release(&mut to_release);
            }
            self.enqueue_lane(webhook_id, lane);
            self.request_refill(webhook_id, lane);
            if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
                queues.free_if_idle(lane);
            }
        }
        self.evict_if_idle(webhook_id);
        to_release
    }

    /// Takes back a delivery that was not admitted.
    pub(super) fn defer(
        &mut self,
        mut delivery: LeasedDelivery,
        deferral: Deferral,
        to_release: &mut Vec<LeasedDelivery>,
    ) {
        let (webhook_id, lane) = (delivery.webhook_id, delivery.lane.clone());
        self.remove_in_flight(webhook_id, delivery.id);
        self.uncount_unsettled(webhook_id, &lane);
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else {
            self.tracked_leases.remove(&delivery.id);
            return;
        };
        let lane_index = queues.ensure_lane(&lane);
        match deferral {
            // The webhook was parked while admission was requested.
            Deferral::Requeue | Deferral::Hold(..) | Deferral::SuspendNode if queues.is_parked() => {
                queues.lanes[lane_index].reserved += 1;
                to_release.push(delivery);
            }
            Deferral::Requeue => {
                queues.lanes[lane_index].queue.push_front(delivery);
                self.enqueue_lanes(webhook_id);
            }
            Deferral::Hold(scope, until) => {
                queues.lanes[lane_index].queue.push_front(delivery);
                self.hold(webhook_id, scope, until);
            }
            Deferral::ParkWebhook(until) => {
                queues.lanes[lane_index].queue.push_front(delivery);
                self.park(webhook_id, until, to_release);
            }
            Deferral::SuspendNode => {
                queues.lanes[lane_index].queue.push_front(delivery);
                self.node_suspended = true;
                self.enqueue_lanes(webhook_id);
            }
            Deferral::ReleaseOne(_) | Deferral::NoProbe => {
                match deferral {
                    Deferral::ReleaseOne(until) => delivery.due = delivery.due.max(until),
                    _ => queues.half_open_max_in_memory = Some(queues.in_flight.len()),
                }
                let queue = &mut queues.lanes[lane_index];
                queue.reserved += 1;
                to_release.push(delivery);
                if lane.is_ordered() {
                    // No delivery after it may overtake it.
                    queue.drain_to_release(to_release);
                }
                self.enqueue_lanes(webhook_id);
            }
        }
    }

    fn remove_in_flight(&mut self, webhook_id: WebhookId, delivery_id: DeliveryId) {
        if let Some(queues) = self.webhooks.get_mut(&webhook_id)
            && let Some(index) =
                queues.in_flight.iter().position(|request| request.delivery_id == delivery_id)
        {
            let (host, tenant) = (queues.in_flight.swap_remove(index).host, queues.tenant);
            self.hosts.free(host, tenant);
            self.grant_host_slots();
        }
    }

    pub(super) fn take_host_slot(&mut self, tenant_id: &TenantId, host: HostKey) -> bool {
        if !self.hosts.may_take_by_key(host, self.tenant_indexes.get(tenant_id).copied()) {
            return false;
        }
        let tenant = self.tenant_index(tenant_id);
        // Counts like a webhook, so that the tenant's index is kept.
        self.tenants[tenant].webhooks += 1;
        let index = self.hosts.acquire_host_index(host);
        self.hosts.take(index, tenant);
        true
    }

    pub(super) fn free_host_slot(&mut self, tenant_id: &TenantId, host: HostKey) {
        let Some(tenant) = self.tenant_indexes.get(tenant_id).copied() else { return };
        let index = self.hosts.acquire_host_index(host);
        self.hosts.free(index, tenant);
        // One for the reference of `take_host_slot`, one for the reference added above.
        self.hosts.drop_reference(index);
        self.hosts.drop_reference(index);
        self.grant_host_slots();
        self.tenants[tenant].webhooks -= 1;
        self.evict_tenant_if_idle(tenant);
    }

    /// Holds a webhook, its tenant or the whole node for a short time. Queues stay in memory.
    fn hold(&mut self, webhook_id: WebhookId, scope: LimitScope, until: Time) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let target = match scope {
            LimitScope::Webhook => {
                if !queues.is_parked() {
                    queues.block = Some(Block::Held(until));
                }
                BlockTarget::Webhook(webhook_id)
            }
            LimitScope::Tenant => {
                let index = queues.tenant;
                self.tenants[index].held_until = Some(until);
                self.enqueue_lanes(webhook_id);
                BlockTarget::Tenant(index)
            }
            // A full host blocks nothing here: lanes wait for it in `hosts`.
            LimitScope::Host => return,
            LimitScope::Node => {
                self.held_until = Some(until);
                self.enqueue_lanes(webhook_id);
                BlockTarget::Node
            }
        };
        self.block_expiries.push(Reverse((until, target)));
    }

    /// Releases all queued deliveries of a webhook, and enqueues none until then.
    pub(super) fn park(&mut self, webhook_id: WebhookId, until: Time, to_release: &mut Vec<LeasedDelivery>) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        queues.block = Some(Block::Parked(until));
        queues.half_open_max_in_memory = None;
        for queue in &mut queues.lanes {
            queue.drain_to_release(to_release);
        }
        self.block_expiries.push(Reverse((until, BlockTarget::Webhook(webhook_id))));
    }

    pub(super) fn unpark(&mut self, limits: WebhookLimits<'_>, half_open_max_in_memory: Option<usize>) {
        let queues = self.ensure_webhook(limits);
        queues.block = None;
        queues.half_open_max_in_memory = half_open_max_in_memory;
        self.unblock(limits.webhook_id);
    }

    fn unblock(&mut self, webhook_id: WebhookId) {
        self.enqueue_lanes(webhook_id);
        self.request_refills(webhook_id);
        // Some lanes may have had no capacity only because of this block.
        self.retry_refills_without_capacity(usize::MAX);
        self.evict_if_idle(webhook_id);
    }

    pub(super) fn next_wake(&self) -> Option<Time> {
        self.block_expiries.peek().map(|Reverse((at, _))| *at)
    }

    /// Adjusts all times after the clock was set back: they were computed from the abandoned time.
    pub(super) fn adjust_for_clock_step(&mut self, clock_step: &ClockStep) {
        self.held_until = self.held_until.map(|until| clock_step.apply(until));
        for tenant in &mut self.tenants {
            tenant.held_until = tenant.held_until.map(|until| clock_step.apply(until));
        }
        for queues in self.webhooks.values_mut() {
            queues.block = queues.block.map(|block| match block {
                Block::Held(until) => Block::Held(clock_step.apply(until)),
                Block::Parked(until) => Block::Parked(clock_step.apply(until)),
            });
            for delivery in queues.lanes.iter_mut().flat_map(|lane| &mut lane.queue) {
                delivery.due = clock_step.apply(delivery.due);
            }
        }
        let expiries = std::mem::take(&mut self.block_expiries).into_iter();
        self.block_expiries =
            expiries.map(|Reverse((at, scope))| Reverse((clock_step.apply(at), scope))).collect();
    }

    pub(super) fn expire_blocks(&mut self, now: Time) {
        while let Some(Reverse((at, scope))) = self.block_expiries.peek().copied()
            && at <= now
        {
            self.block_expiries.pop();
            match scope {
                BlockTarget::Webhook(webhook_id) => {
                    let Some(queues) = self.webhooks.get_mut(&webhook_id) else { continue };
                    if queues.block.is_some_and(|block| block.until() <= now) {
                        queues.block = None;
                        self.unblock(webhook_id);
                    }
                }
                BlockTarget::Tenant(index) => {
                    let has_ended = self.tenants[index].held_until.is_some_and(|until| until <= now);
                    if has_ended {
                        self.tenants[index].held_until = None;
                        self.resume_tenant(index);
                    }
                }
                BlockTarget::Node => {
                    if self.held_until.is_some_and(|until| until <= now) {
                        self.held_until = None;
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
        if queues.is_in_flight(delivery_id) {
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
        if queues.is_in_flight(delivery_id) {
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
            self.count_unsettled(webhook_id, lane);
        }
        queued
    }

    /// Takes the queued deliveries that have expired (exceeded `give_up_after`), as [`State::take_queued`] does.
    pub(super) fn take_expired(
        &mut self,
        is_expired: impl Fn(&LeasedDelivery) -> bool,
    ) -> Vec<LeasedDelivery> {
        let mut expired = Vec::new();
        let mut slots = Vec::new();
        for (webhook_id, queues) in &mut self.webhooks {
            for (lane, queue) in queues.lanes.iter_mut().enumerate() {
                let (taken, stays): (Vec<_>, Vec<_>) = queue.queue.drain(..).partition(&is_expired);
                queue.queue = stays.into();
                slots.extend(taken.iter().map(|_| (*webhook_id, lane)));
                expired.extend(taken);
            }
        }
        for (webhook_id, lane) in slots {
            self.count_unsettled(webhook_id, lane);
        }
        expired
    }

    /// Applies changed limits of a tenant, and checks again whether it may send.
    pub(super) fn apply_tenant_change(&mut self, tenant_id: &TenantId, max_unsettled: usize) {
        let Some(index) = self.tenant_indexes.get(tenant_id).copied() else { return };
        self.tenants[index].max_unsettled = max_unsettled.max(1);
        self.tenants[index].held_until = None;
        self.resume_tenant(index);
    }

    pub(super) fn memory_state(&self, webhook_id: WebhookId, delivery_id: DeliveryId) -> Option<MemoryState> {
        let webhook = self.webhooks.get(&webhook_id)?;
        if webhook.is_in_flight(delivery_id) {
            return Some(MemoryState::Started);
        }
        let mut queues = webhook.lanes.iter().map(|queue| &queue.queue);
        queues
            .any(|queue| queue.iter().any(|delivery| delivery.id == delivery_id))
            .then_some(MemoryState::Queued)
    }

    pub(super) fn usage(&self, limits: WebhookLimits<'_>) -> Usage {
        let queues = self.webhooks.get(&limits.webhook_id);
        let tenant = self.tenant_indexes.get(limits.tenant_id).copied();
        Usage {
            webhook: queues.map_or(0, |queues| queues.in_flight.len()),
            queued: queues.map_or(0, |queues| queues.lanes.iter().map(|queue| queue.queue.len()).sum()),
            tenant: tenant.map_or(0, |index| self.tenants[index].unsettled),
            node: self.unsettled,
            host_has_slot: self.hosts.may_take_by_key(limits.host, tenant),
        }
    }

    pub(super) fn tenant_in_memory(&self, tenant_id: &TenantId) -> TenantInMemory {
        let Some(index) = self.tenant_indexes.get(tenant_id).copied() else {
            return TenantInMemory::default();
        };
        let mut in_memory = TenantInMemory { queued: Vec::new(), unsettled: self.tenants[index].unsettled };
        let of_tenant = self.webhooks.iter().filter(|(_, queues)| queues.tenant == index);
        // Stops after the tenant's last webhook: there may be many webhooks of other tenants.
        for (webhook_id, queues) in of_tenant.take(self.tenants[index].webhooks) {
            let mut queued = [0; Priority::ALL.len()];
            for queue in &queues.lanes {
                queued[queue.lane.class() % Priority::ALL.len()] += queue.queue.len() as u64;
            }
            if queued.iter().any(|count| *count > 0) {
                in_memory.queued.push((*webhook_id, queued));
            }
        }
        in_memory
    }

    pub(super) fn queued_by_tenant(&self) -> HashMap<TenantId, u64> {
        let mut queued = HashMap::new();
        for queues in self.webhooks.values() {
            let count: u64 = queues.lanes.iter().map(|queue| queue.queue.len() as u64).sum();
            if count > 0 {
                *queued.entry(self.tenants[queues.tenant].id.clone()).or_default() += count;
            }
        }
        queued
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

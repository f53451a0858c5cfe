//! What is in memory as a whole: webhooks, tenants, and the books that are kept of both.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
};

use redrive_core::{
    DeliveryId, TenantId, Time, WebhookId,
    cluster::clock_discipline::SetBack,
    delivery::lane::{CLASSES, Lane, Priority},
    dispatch::gate::Scope,
    security::egress_rules::HostKey,
};

use super::{
    Bounds, Held, Ready, Refusal, Usage, Whereabouts, Whom,
    fair_queue::Rota,
    hosts::Hosts,
    lanes::{Block, Hooked, is_retry},
};
use crate::ids::ById;

/// A tenant with a webhook in memory.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    pub(super) id: TenantId,
    /// Webhooks in memory.
    hooks: usize,
    pub(super) unsettled: usize,
    pub(super) max_in_flight: usize,
    pub(super) items: usize,
    pub(super) bytes: usize,
    /// Lanes that may send, by class, each once.
    pub(super) turns: [VecDeque<(WebhookId, usize)>; CLASSES],
    /// Whether it is in the rota of each class.
    pub(super) in_rota: [bool; CLASSES],
    /// It may not send for now: it joins no rota, and leaves each one when its turn comes there.
    pub(super) parked: bool,
    pub(super) blocked_until: Option<Time>,
    /// Indexes of hosts at which lanes of it wait; some may not wait there any more.
    pub(super) waits_at: BTreeSet<usize>,
}

pub(super) struct State {
    pub(super) bounds: Bounds,
    pub(super) hooks: ById<WebhookId, Hooked>,
    pub(super) tenants: Vec<Tenant>,
    places: HashMap<TenantId, usize>,
    free_places: Vec<usize>,
    pub(super) hosts: Hosts,
    pub(super) rota: Rota,
    /// Tenants that have as much under way as they may.
    pub(super) parked: VecDeque<usize>,
    pub(super) blocked_until: Option<Time>,
    /// When to look again at what is held back for a moment.
    wakes: BinaryHeap<Reverse<(Time, Waking)>>,
    /// Lanes that are behind and have room again.
    pub(super) hungry: VecDeque<(WebhookId, usize)>,
    /// Lanes that are behind and found no room.
    pub(super) starved: VecDeque<(WebhookId, usize)>,
    /// Requests whose outcome is not committed yet, and how many of them are retries.
    pub(super) unsettled: usize,
    pub(super) retries: usize,
    /// How many retries may be under way at once.
    pub(super) retry_window: usize,
    pub(super) items: usize,
    pub(super) retry_items: usize,
    pub(super) bytes: usize,
    /// Deliveries that were called off while this node has them.
    pub(super) cancelled: HashMap<DeliveryId, String>,
    /// Deliveries that were cancelled while capacity of their webhook was reserved: their lease may be committed and
    /// not admitted yet. On admission they are returned to the store, which ends them.
    pub(super) cancelled_early: HashMap<DeliveryId, WebhookId>,
    /// Every delivery in memory: queued, sent, being recorded, or on its way back to the store.
    pub(super) owned: ById<DeliveryId, ()>,
    pub(super) draining: bool,
    pub(super) store_down: bool,
    /// Others may take the node for dead: it must not send.
    pub(super) silent: bool,
}

/// Cancellations remembered for deliveries that may still be admitted. Further ones take effect when the outcome of the
/// request is recorded.
const MAX_EARLY_CANCELS: usize = 10_000;

/// Removes an id. Returns whether it was there; nearly always the map is empty and nothing is hashed.
pub(super) fn take_if_present<V>(map: &mut HashMap<DeliveryId, V>, id: DeliveryId) -> bool {
    !map.is_empty() && map.remove(&id).is_some()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waking {
    Webhook(WebhookId),
    Tenant(usize),
    Node,
}

impl State {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            hooks: ById::default(),
            tenants: Vec::new(),
            places: HashMap::new(),
            free_places: Vec::new(),
            hosts: Hosts::new(bounds.host_max_in_flight),
            rota: Rota::default(),
            parked: VecDeque::new(),
            blocked_until: None,
            wakes: BinaryHeap::new(),
            hungry: VecDeque::new(),
            starved: VecDeque::new(),
            unsettled: 0,
            retries: 0,
            retry_window: usize::MAX,
            items: 0,
            retry_items: 0,
            bytes: 0,
            cancelled: HashMap::new(),
            cancelled_early: HashMap::new(),
            owned: ById::default(),
            draining: false,
            store_down: false,
            silent: false,
        }
    }

    /// Makes sure that a webhook and its tenant are known here.
    pub(super) fn enter(&mut self, whom: Whom<'_>) -> &mut Hooked {
        if !self.hooks.contains_key(&whom.webhook) {
            let tenant = self.place(whom.tenant);
            self.tenants[tenant].hooks += 1;
            let host = self.hosts.refer(whom.host);
            self.hooks.insert(whom.webhook, Hooked::new(tenant, host));
        }
        let hook = self.hooks.entry(whom.webhook).or_insert_with(|| unreachable!("it was made above"));
        if self.hosts.key(hook.host) != whom.host {
            // Its URL has changed. Requests in flight and waiting lanes stay with the former host.
            let before = std::mem::replace(&mut hook.host, self.hosts.refer(whom.host));
            self.hosts.release(before);
        }
        hook.max_in_flight = whom.max_in_flight.max(1);
        self.tenants[hook.tenant].max_in_flight = whom.tenant_max_in_flight.max(1);
        hook
    }

    fn place(&mut self, tenant: &TenantId) -> usize {
        if let Some(place) = self.places.get(tenant) {
            return *place;
        }
        let new = Tenant { id: tenant.clone(), ..Tenant::default() };
        let place = match self.free_places.pop() {
            Some(place) => {
                self.tenants[place] = new;
                place
            }
            None => {
                self.tenants.push(new);
                self.tenants.len() - 1
            }
        };
        self.places.insert(tenant.clone(), place);
        place
    }

    /// An idle webhook costs nothing: it is made again when it is needed.
    pub(super) fn forget_if_idle(&mut self, webhook: WebhookId) {
        let Some(hook) = self.hooks.get(&webhook) else { return };
        if !hook.is_idle() {
            return;
        }
        let (place, host) = (hook.tenant, hook.host);
        if !self.cancelled_early.is_empty() {
            self.cancelled_early.retain(|_, of| *of != webhook);
        }
        self.hooks.remove(&webhook);
        self.hosts.release(host);
        self.tenants[place].hooks -= 1;
        // A place in the rota or among the parked is given up there, when its turn comes.
        self.forget_tenant_if_idle(place);
    }

    /// Gives up the place of a tenant that has nothing here any more.
    pub(super) fn forget_tenant_if_idle(&mut self, place: usize) {
        let tenant = &self.tenants[place];
        let gone = tenant.hooks == 0 && !tenant.parked && tenant.in_rota == [false; CLASSES];
        if gone && self.places.get(&tenant.id) == Some(&place) {
            self.places.remove(&tenant.id);
            self.free_places.push(place);
        }
    }

    /// A delivery takes a slot until its outcome is stored.
    pub(super) fn take_slot(&mut self, webhook: WebhookId, lane: usize) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        let queue = &mut hook.lanes[lane];
        queue.unsettled += 1;
        self.unsettled += 1;
        self.retries += usize::from(queue.is_retry());
        self.tenants[hook.tenant].unsettled += 1;
    }

    fn free_slot(&mut self, webhook: WebhookId, lane: &Lane) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        if let Some(at) = hook.position(lane) {
            hook.lanes[at].unsettled -= 1;
        }
        self.unsettled -= 1;
        self.retries -= usize::from(is_retry(lane));
        let place = hook.tenant;
        self.tenants[place].unsettled -= 1;
        self.unpark_one(place);
    }

    pub(super) fn admit(&mut self, ready: Ready, hand_back: &mut Vec<Ready>) {
        let webhook = ready.webhook;
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        self.owned.insert(ready.id, ());
        let is_cancelled = take_if_present(&mut self.cancelled_early, ready.id);
        if is_cancelled || hook.is_parked() {
            // It was cancelled, or its webhook parked, while this was being committed.
            return hand_back.push(ready);
        }
        let lane = hook.lane(&ready.lane);
        hook.lanes[lane].reserved -= 1;
        hook.lanes[lane].queue.push_back(ready);
        self.give_turn(webhook, lane);
    }

    pub(super) fn answered(&mut self, webhook: WebhookId, delivery: DeliveryId) {
        self.end_request(webhook, delivery);
        self.give_next_turns(webhook);
    }

    pub(super) fn settled(&mut self, ready: &Ready, still_waits: bool) -> Vec<Ready> {
        let webhook = ready.webhook;
        self.owned.remove(&ready.id);
        if !self.cancelled.is_empty() {
            self.cancelled.remove(&ready.id);
        }
        self.store_down = false;
        self.free_slot(webhook, &ready.lane);
        self.free_room(webhook, &ready.lane, 1, ready.event.weight());
        let mut hand_back = Vec::new();
        if let Some(hook) = self.hooks.get_mut(&webhook)
            && let Some(lane) = hook.position(&ready.lane)
        {
            if still_waits && ready.lane.is_ordered() {
                // Whatever comes after it waits with it, in the store.
                hook.lanes[lane].hand_back(&mut hand_back);
            }
            self.give_turn(webhook, lane);
            self.note_hunger(webhook, lane);
            if let Some(hook) = self.hooks.get_mut(&webhook) {
                hook.vacate_if_idle(lane);
            }
        }
        self.forget_if_idle(webhook);
        hand_back
    }

    /// Takes back what the gate did not let pass.
    pub(super) fn refuse(&mut self, mut ready: Ready, how: Refusal, hand_back: &mut Vec<Ready>) {
        let (webhook, lane) = (ready.webhook, ready.lane.clone());
        self.end_request(webhook, ready.id);
        self.free_slot(webhook, &lane);
        let Some(hook) = self.hooks.get_mut(&webhook) else {
            self.owned.remove(&ready.id);
            return;
        };
        let at = hook.lane(&lane);
        match how {
            // It was held back for longer while it was being asked for.
            Refusal::Soon(..) | Refusal::Silence if hook.is_parked() => {
                hook.lanes[at].reserved += 1;
                hand_back.push(ready);
            }
            Refusal::Soon(scope, until) => {
                hook.lanes[at].queue.push_front(ready);
                self.hold(webhook, scope, until);
            }
            Refusal::Park(until) => {
                hook.lanes[at].queue.push_front(ready);
                self.park(webhook, until, hand_back);
            }
            Refusal::Silence => {
                hook.lanes[at].queue.push_front(ready);
                self.silent = true;
                self.give_turns(webhook);
            }
            Refusal::Alone(_) | Refusal::NoProbe => {
                match how {
                    Refusal::Alone(until) => ready.due = ready.due.max(until),
                    _ => hook.trickle = Some(hook.sending.len()),
                }
                let queue = &mut hook.lanes[at];
                queue.reserved += 1;
                hand_back.push(ready);
                if lane.is_ordered() {
                    // Nothing behind it may pass it.
                    queue.hand_back(hand_back);
                }
                self.give_turns(webhook);
            }
        }
    }

    fn end_request(&mut self, webhook: WebhookId, delivery: DeliveryId) {
        if let Some(hook) = self.hooks.get_mut(&webhook)
            && let Some(at) = hook.sending.iter().position(|sending| sending.delivery == delivery)
        {
            let (host, tenant) = (hook.sending.swap_remove(at).host, hook.tenant);
            self.hosts.free(host, tenant);
            self.wake_hosts();
        }
    }

    pub(super) fn take_host(&mut self, tenant: &TenantId, host: HostKey) -> bool {
        if !self.hosts.may_take_by_key(host, self.places.get(tenant).copied()) {
            return false;
        }
        let place = self.place(tenant);
        // Keeps the tenant's place, as a webhook does.
        self.tenants[place].hooks += 1;
        let index = self.hosts.refer(host);
        self.hosts.take(index, place);
        true
    }

    pub(super) fn free_host(&mut self, tenant: &TenantId, host: HostKey) {
        let Some(place) = self.places.get(tenant).copied() else { return };
        let index = self.hosts.refer(host);
        self.hosts.free(index, place);
        // The reference of `take_host`, and the one that found the index.
        self.hosts.release(index);
        self.hosts.release(index);
        self.wake_hosts();
        self.tenants[place].hooks -= 1;
        self.forget_tenant_if_idle(place);
    }

    /// Holds back a webhook, its tenant or the whole node for a moment. Queues stay where they are.
    fn hold(&mut self, webhook: WebhookId, scope: Scope, until: Time) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        let waking = match scope {
            Scope::Webhook => {
                if !hook.is_parked() {
                    hook.block = Some(Block::Moment(until));
                }
                Waking::Webhook(webhook)
            }
            Scope::Tenant => {
                let place = hook.tenant;
                self.tenants[place].blocked_until = Some(until);
                self.give_turns(webhook);
                Waking::Tenant(place)
            }
            // A full host blocks no one here: lanes wait for it in `hosts`.
            Scope::Host => return,
            Scope::Node => {
                self.blocked_until = Some(until);
                self.give_turns(webhook);
                Waking::Node
            }
        };
        self.wakes.push(Reverse((until, waking)));
    }

    /// Hands everything that is queued for a webhook back, and takes nothing in until then.
    pub(super) fn park(&mut self, webhook: WebhookId, until: Time, hand_back: &mut Vec<Ready>) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        hook.block = Some(Block::Parked(until));
        hook.trickle = None;
        for queue in &mut hook.lanes {
            queue.hand_back(hand_back);
        }
        self.wakes.push(Reverse((until, Waking::Webhook(webhook))));
    }

    pub(super) fn unpark(&mut self, whom: Whom<'_>, trickle: Option<usize>) {
        let hook = self.enter(whom);
        hook.block = None;
        hook.trickle = trickle;
        self.is_free_again(whom.webhook);
    }

    fn is_free_again(&mut self, webhook: WebhookId) {
        self.give_turns(webhook);
        self.note_all_hunger(webhook);
        // Some may have been held back for this alone.
        self.feed_starved(usize::MAX);
        self.forget_if_idle(webhook);
    }

    pub(super) fn next_wake(&self) -> Option<Time> {
        self.wakes.peek().map(|Reverse((at, _))| *at)
    }

    /// Time went back: moves what was planned by the time that is no longer used.
    pub(super) fn set_back(&mut self, set_back: &SetBack) {
        self.blocked_until = self.blocked_until.map(|until| set_back.moved(until));
        for tenant in &mut self.tenants {
            tenant.blocked_until = tenant.blocked_until.map(|until| set_back.moved(until));
        }
        for hook in self.hooks.values_mut() {
            hook.block = hook.block.map(|block| match block {
                Block::Moment(until) => Block::Moment(set_back.moved(until)),
                Block::Parked(until) => Block::Parked(set_back.moved(until)),
            });
            for ready in hook.lanes.iter_mut().flat_map(|lane| &mut lane.queue) {
                ready.due = set_back.moved(ready.due);
            }
        }
        let wakes = std::mem::take(&mut self.wakes).into_iter();
        self.wakes = wakes.map(|Reverse((at, waking))| Reverse((set_back.moved(at), waking))).collect();
    }

    pub(super) fn wake_up(&mut self, now: Time) {
        while let Some(Reverse((at, waking))) = self.wakes.peek().copied()
            && at <= now
        {
            self.wakes.pop();
            match waking {
                Waking::Webhook(webhook) => {
                    let Some(hook) = self.hooks.get_mut(&webhook) else { continue };
                    if hook.block.is_some_and(|block| block.until() <= now) {
                        hook.block = None;
                        self.is_free_again(webhook);
                    }
                }
                Waking::Tenant(place) => {
                    let over = self.tenants[place].blocked_until.is_some_and(|until| until <= now);
                    if over {
                        self.tenants[place].blocked_until = None;
                        self.unpark_tenant(place);
                    }
                }
                Waking::Node => {
                    if self.blocked_until.is_some_and(|until| until <= now) {
                        self.blocked_until = None;
                    }
                }
            }
        }
    }

    pub(super) fn cancel(
        &mut self,
        webhook: WebhookId,
        delivery: DeliveryId,
        reason: String,
    ) -> Option<Ready> {
        let hook = self.hooks.get_mut(&webhook)?;
        if hook.is_sending(delivery) {
            self.cancelled.insert(delivery, reason);
            return None;
        }
        self.take_cancelled(webhook, delivery)
    }

    /// Takes a cancelled delivery out of its queue. One that is not here is remembered while capacity of its webhook is
    /// reserved, since its lease may be on the way from the store.
    pub(super) fn take_cancelled(&mut self, webhook: WebhookId, delivery: DeliveryId) -> Option<Ready> {
        let hook = self.hooks.get(&webhook)?;
        if hook.is_sending(delivery) {
            return None;
        }
        let is_expected = hook.has_reserved();
        let queued = self.take_one(webhook, delivery);
        if queued.is_none() && is_expected {
            if self.cancelled_early.len() >= MAX_EARLY_CANCELS {
                let hooks = &self.hooks;
                let is_open = |webhook: &WebhookId| hooks.get(webhook).is_some_and(Hooked::has_reserved);
                self.cancelled_early.retain(|_, webhook| is_open(webhook));
            }
            if self.cancelled_early.len() < MAX_EARLY_CANCELS {
                self.cancelled_early.insert(delivery, webhook);
            }
        }
        queued
    }

    pub(super) fn take_queued(&mut self, webhook: WebhookId) -> Vec<Ready> {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return Vec::new() };
        let mut queued = Vec::new();
        let mut taken = Vec::new();
        for (lane, queue) in hook.lanes.iter_mut().enumerate() {
            taken.extend(std::iter::repeat_n(lane, queue.queue.len()));
            queued.extend(queue.queue.drain(..));
        }
        for lane in taken {
            self.take_slot(webhook, lane);
        }
        queued
    }

    /// Takes out of the queues what `is_over` says is over, as [`State::take_queued`] does.
    pub(super) fn take_over(&mut self, is_over: impl Fn(&Ready) -> bool) -> Vec<Ready> {
        let mut over = Vec::new();
        let mut slots = Vec::new();
        for (webhook, hook) in &mut self.hooks {
            for (lane, queue) in hook.lanes.iter_mut().enumerate() {
                let (ended, stays): (Vec<_>, Vec<_>) = queue.queue.drain(..).partition(&is_over);
                queue.queue = stays.into();
                slots.extend(ended.iter().map(|_| (*webhook, lane)));
                over.extend(ended);
            }
        }
        for (webhook, lane) in slots {
            self.take_slot(webhook, lane);
        }
        over
    }

    /// A tenant's rules have changed: whatever held it back is asked again.
    pub(super) fn tenant_changed(&mut self, tenant: &TenantId, max_in_flight: usize) {
        let Some(place) = self.places.get(tenant).copied() else { return };
        self.tenants[place].max_in_flight = max_in_flight.max(1);
        self.tenants[place].blocked_until = None;
        self.unpark_tenant(place);
    }

    pub(super) fn whereabouts(&self, webhook: WebhookId, delivery: DeliveryId) -> Option<Whereabouts> {
        let hook = self.hooks.get(&webhook)?;
        if hook.is_sending(delivery) {
            return Some(Whereabouts::Sending);
        }
        let mut queues = hook.lanes.iter().map(|queue| &queue.queue);
        queues.any(|queue| queue.iter().any(|ready| ready.id == delivery)).then_some(Whereabouts::Queued)
    }

    pub(super) fn usage(&self, whom: Whom<'_>) -> Usage {
        let hook = self.hooks.get(&whom.webhook);
        let place = self.places.get(whom.tenant).copied();
        Usage {
            webhook: hook.map_or(0, |hook| hook.sending.len()),
            queued: hook.map_or(0, |hook| hook.lanes.iter().map(|queue| queue.queue.len()).sum()),
            tenant: place.map_or(0, |place| self.tenants[place].unsettled),
            node: self.unsettled,
            host_has_slot: self.hosts.may_take_by_key(whom.host, place),
        }
    }

    pub(super) fn held(&self, tenant: &TenantId) -> Held {
        let Some(place) = self.places.get(tenant).copied() else { return Held::default() };
        let mut held = Held { queued: Vec::new(), in_flight: self.tenants[place].unsettled };
        let of_tenant = self.hooks.iter().filter(|(_, hook)| hook.tenant == place);
        // There may be many of others', which need not be looked at once all of these were.
        for (webhook, hook) in of_tenant.take(self.tenants[place].hooks) {
            let mut queued = [0; Priority::ALL.len()];
            for queue in &hook.lanes {
                queued[queue.lane.class() % Priority::ALL.len()] += queue.queue.len() as u64;
            }
            if queued.iter().any(|count| *count > 0) {
                held.queued.push((*webhook, queued));
            }
        }
        held
    }

    pub(super) fn drain(&mut self) -> Vec<Ready> {
        self.draining = true;
        let mut queued = Vec::new();
        for hook in self.hooks.values_mut() {
            for queue in &mut hook.lanes {
                queue.hand_back(&mut queued);
            }
        }
        queued
    }
}

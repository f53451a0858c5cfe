//! How much fits in memory, and whose it is: no tenant, no webhook and no storm of retries takes all of it.

use redrive_core::{
    WebhookId,
    delivery::lane::Lane,
    dispatch::fairness::{self, RETRY_FACTOR, TENANT_FACTOR},
};
use redrive_store::{LaneKey, LaneRoom};

use super::{
    Ready, Whom,
    lanes::is_retry,
    state::{State, take_if_present},
};

/// How many deliveries one claim takes from one lane at the most, so that many due lanes share the room.
const QUANTUM: usize = 500;
/// The same for retries: publishes wait while a claim is made, and a storm makes very many.
const RETRY_QUANTUM: usize = 16;
/// The same for an order: when one fails, all behind it go back.
const ORDER_QUANTUM: usize = 64;

impl State {
    pub(super) fn reserve(&mut self, whom: Whom<'_>, lane: &Lane, bytes: usize) -> bool {
        if self.draining || self.bytes + bytes > self.bounds.max_bytes {
            return false;
        }
        let place = self.enter(whom).tenant;
        let tenant = &self.tenants[place];
        let bytes_free = self.bounds.max_bytes - self.bytes;
        let fits = self.room_for(whom.webhook, lane) > 0 && tenant.bytes < TENANT_FACTOR * bytes_free;
        let Some(hook) = self.hooks.get_mut(&whom.webhook) else { return false };
        let at = hook.lane(lane);
        if !fits || hook.lanes[at].backlog {
            hook.vacate_if_idle(at);
            self.forget_if_idle(whom.webhook);
            return false;
        }
        self.take_room(whom.webhook, at, 1, bytes);
        true
    }

    /// How many more deliveries a lane may have in memory.
    fn room_for(&self, webhook: WebhookId, lane: &Lane) -> usize {
        let Some(hook) = self.hooks.get(&webhook) else { return 0 };
        if self.draining || self.bytes >= self.bounds.max_bytes || hook.is_parked() {
            return 0;
        }
        let (capacity, used) = (self.bounds.max_items, self.items);
        let held = hook.position(lane).map_or(0, |at| hook.lanes[at].held());
        let tenant = &self.tenants[hook.tenant];
        let mut room = self.bounds.lane_items.saturating_sub(held);
        room = room.min(fairness::allowance(capacity, used, tenant.items, TENANT_FACTOR));
        let ahead = fairness::lane_room(capacity, used, hook.max_in_flight, is_retry(lane));
        room = room.min(ahead.saturating_sub(held));
        if is_retry(lane) {
            room = room.min(fairness::allowance(capacity, used, self.retry_items, RETRY_FACTOR));
        }
        if let Some(trickle) = hook.trickle {
            room = room.min(trickle.saturating_sub(hook.held()));
        }
        room.min(capacity.saturating_sub(used))
    }

    fn take_room(&mut self, webhook: WebhookId, lane: usize, count: usize, bytes: usize) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        let queue = &mut hook.lanes[lane];
        queue.reserved += count;
        self.items += count;
        self.bytes += bytes;
        if queue.is_retry() {
            self.retry_items += count;
        }
        let tenant = &mut self.tenants[hook.tenant];
        tenant.items += count;
        tenant.bytes += bytes;
    }

    /// Memory that is not needed any more.
    pub(super) fn free_room(&mut self, webhook: WebhookId, lane: &Lane, count: usize, bytes: usize) {
        self.items -= count;
        self.bytes -= bytes;
        if is_retry(lane) {
            self.retry_items -= count;
        }
        if let Some(hook) = self.hooks.get(&webhook) {
            let tenant = &mut self.tenants[hook.tenant];
            tenant.items -= count;
            tenant.bytes -= bytes;
        }
        self.feed_starved(count);
    }

    /// Has so many lanes asked again that are behind and found no room.
    pub(super) fn feed_starved(&mut self, most: usize) {
        let most = most.min(self.starved.len());
        self.hungry.extend(self.starved.drain(..most));
    }

    pub(super) fn unreserve(&mut self, webhook: WebhookId, lane: &Lane, count: usize, bytes: usize) {
        self.free_room(webhook, lane, count, bytes);
        if let Some(hook) = self.hooks.get_mut(&webhook)
            && let Some(at) = hook.position(lane)
        {
            hook.lanes[at].reserved -= count;
            self.note_hunger(webhook, at);
            if let Some(hook) = self.hooks.get_mut(&webhook) {
                hook.vacate_if_idle(at);
            }
        }
        self.forget_if_idle(webhook);
    }

    pub(super) fn fell_behind(&mut self, webhook: WebhookId, lane: &Lane) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        if hook.is_parked() {
            return;
        }
        let at = hook.lane(lane);
        hook.lanes[at].backlog = true;
        self.note_hunger(webhook, at);
    }

    /// A lane that is behind asks for more once half of its room is free; an order, once all of it is over.
    pub(super) fn note_hunger(&mut self, webhook: WebhookId, lane: usize) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        let ahead = fairness::lane_room(
            self.bounds.max_items,
            self.items,
            hook.max_in_flight,
            hook.lanes[lane].is_retry(),
        );
        let half = self.bounds.lane_items.min(ahead) / 2;
        let parked = hook.is_parked();
        let queue = &mut hook.lanes[lane];
        let enough = if queue.lane.is_ordered() { 0 } else { half };
        if queue.backlog && !queue.hungry && !parked && queue.held() <= enough {
            queue.hungry = true;
            self.hungry.push_back((webhook, lane));
        }
    }

    pub(super) fn note_all_hunger(&mut self, webhook: WebhookId) {
        let lanes = self.hooks.get(&webhook).map_or(0, |hook| hook.lanes.len());
        for lane in 0..lanes {
            self.note_hunger(webhook, lane);
        }
    }

    pub(super) fn take_hungry(&mut self) -> Vec<LaneRoom> {
        let hungry = std::mem::take(&mut self.hungry);
        let mut rooms = Vec::with_capacity(hungry.len());
        for (webhook, at) in hungry {
            let Some(hook) = self.hooks.get_mut(&webhook) else { continue };
            let queue = &mut hook.lanes[at];
            if !queue.backlog {
                queue.hungry = false;
                hook.vacate_if_idle(at);
                self.forget_if_idle(webhook);
                continue;
            }
            let key = LaneKey { webhook, lane: queue.lane.clone() };
            let room = self.reserve_room(&key, at);
            if room == 0 {
                // Asked again when something is settled.
                self.starved.push_back((webhook, at));
                continue;
            }
            if let Some(hook) = self.hooks.get_mut(&webhook) {
                hook.lanes[at].hungry = false;
            }
            rooms.push(LaneRoom::new(key, room));
        }
        rooms
    }

    pub(super) fn reserve_lane(&mut self, whom: Whom<'_>, lane: Lane) -> LaneRoom {
        let at = self.enter(whom).lane(&lane);
        let key = LaneKey { webhook: whom.webhook, lane };
        let room = self.reserve_room(&key, at);
        if let Some(hook) = self.hooks.get_mut(&key.webhook) {
            // Known until the claim says otherwise, so that a lane which is held for us is never forgotten.
            hook.lanes[at].backlog |= room == 0;
        }
        LaneRoom::new(key, room)
    }

    pub(super) fn is_full_for(&self, key: &LaneKey, count: usize) -> bool {
        let Some(hook) = self.hooks.get(&key.webhook) else { return false };
        let behind = hook.position(&key.lane).is_some_and(|at| hook.lanes[at].backlog);
        !behind && self.room_for(key.webhook, &key.lane) < count
    }

    pub(super) fn reserve_for_tickets(&mut self, whom: Whom<'_>, lane: &Lane, most: usize) -> usize {
        let at = self.enter(whom).lane(lane);
        let room = match self.hooks.get(&whom.webhook).is_some_and(|hook| hook.lanes[at].backlog) {
            true => 0,
            false => self.room_for(whom.webhook, lane).min(most),
        };
        self.take_room(whom.webhook, at, room, 0);
        if room == 0 {
            if let Some(hook) = self.hooks.get_mut(&whom.webhook) {
                hook.vacate_if_idle(at);
            }
            self.forget_if_idle(whom.webhook);
        }
        room
    }

    fn reserve_room(&mut self, key: &LaneKey, at: usize) -> usize {
        let quantum = match &key.lane {
            Lane::Ordered(_) => ORDER_QUANTUM,
            Lane::Free { retry: true, .. } => RETRY_QUANTUM,
            Lane::Free { retry: false, .. } => QUANTUM,
        };
        let room = self.room_for(key.webhook, &key.lane).min(quantum);
        self.take_room(key.webhook, at, room, 0);
        room
    }

    /// Takes in what room was reserved for. `more` is due in the store; where it was not asked, nothing is known.
    pub(super) fn take_in(
        &mut self,
        room: &LaneRoom,
        deliveries: Vec<Ready>,
        more: Option<bool>,
    ) -> Vec<Ready> {
        let LaneRoom { key: LaneKey { webhook, lane }, room, .. } = room;
        let (taken, bytes) =
            deliveries.iter().fold((0, 0), |(n, bytes), ready| (n + 1, bytes + ready.event.weight()));
        self.free_room(*webhook, lane, room - taken, 0);
        let Some(hook) = self.hooks.get_mut(webhook) else { return Vec::new() };
        let place = hook.tenant;
        let parked = hook.is_parked();
        let at = hook.lane(lane);
        let queue = &mut hook.lanes[at];
        self.owned.extend(deliveries.iter().map(|ready| (ready.id, ())));
        queue.backlog = more.unwrap_or(queue.backlog);
        queue.reserved -= room - taken;
        self.bytes += bytes;
        self.tenants[place].bytes += bytes;
        if parked {
            // It was held back while it was being claimed.
            return deliveries;
        }
        let mut hand_back = Vec::new();
        for ready in deliveries {
            if take_if_present(&mut self.cancelled_early, ready.id) {
                hand_back.push(ready);
                continue;
            }
            queue.reserved -= 1;
            queue.queue.push_back(ready);
        }
        self.give_turn(*webhook, at);
        self.note_hunger(*webhook, at);
        if let Some(hook) = self.hooks.get_mut(webhook) {
            hook.vacate_if_idle(at);
        }
        self.forget_if_idle(*webhook);
        hand_back
    }
}

//! Lanes: one queue in memory for each webhook, served in turn.
//!
//! Everything is bounded: room for a delivery is reserved before it is committed as leased to this node, and
//! given back when its outcome is committed. What finds no room waits in the store; its lane is then behind
//! (`backlog`) and is filled from the store, in order, before anything newer is taken in directly.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use redrive_core::{
    DeliveryId, Time, WebhookId,
    event::{Event, PayloadFormat},
};
use redrive_store::LaneRoom;

/// A delivery in memory, leased to this node.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) id: DeliveryId,
    pub(crate) webhook: WebhookId,
    pub(crate) event: Arc<Event>,
    pub(crate) format: PayloadFormat,
    /// The number that its next attempt will have.
    pub(crate) attempt: u32,
    pub(crate) created_at: Time,
    pub(crate) due: Time,
    pub(crate) rescues: u32,
    pub(crate) deaths: u32,
}

/// Where a delivery is that this node has in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// A request is under way.
    Sending,
    /// Its webhook has as many requests under way as it may have.
    InFlightLimit,
    /// The node has as many requests under way as it may have.
    Capacity,
}

/// How much may be in memory and under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_in_flight: usize,
    pub(crate) max_items: usize,
    pub(crate) max_bytes: usize,
    pub(crate) lane_items: usize,
}

/// How many deliveries one claim takes from one lane at the most, so that many due lanes share the room.
const QUANTUM: usize = 500;

#[derive(Default)]
struct Lane {
    queue: VecDeque<Ready>,
    /// Requests under way.
    sending: Vec<DeliveryId>,
    /// Room set aside for deliveries that are being committed or claimed.
    reserved: usize,
    max_in_flight: usize,
    /// More is due in the store: newer deliveries must not overtake it.
    backlog: bool,
    in_turn: bool,
    hungry: bool,
}

impl Lane {
    fn held(&self) -> usize {
        self.queue.len() + self.sending.len() + self.reserved
    }

    fn may_send(&self) -> bool {
        !self.queue.is_empty() && self.sending.len() < self.max_in_flight
    }
}

#[derive(Default)]
struct State {
    lanes: HashMap<WebhookId, Lane>,
    /// Lanes that may send, each once.
    turns: VecDeque<WebhookId>,
    /// Lanes that are behind and have room again.
    hungry: VecDeque<WebhookId>,
    /// Requests whose outcome is not committed yet.
    unsettled: usize,
    items: usize,
    bytes: usize,
    /// Deliveries that were called off while this node has them.
    cancelled: HashMap<DeliveryId, String>,
    draining: bool,
    store_down: bool,
}

/// The lanes of this node.
pub(crate) struct Dispatch {
    state: Mutex<State>,
    bounds: Bounds,
}

/// What came of a change: deliveries to send now, and whether the store should be asked for more.
#[derive(Default)]
pub(crate) struct Moves {
    pub(crate) start: Vec<Ready>,
    pub(crate) refill: bool,
}

impl Dispatch {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { state: Mutex::default(), bounds }
    }

    /// Sets room aside for a delivery that is about to be published. False: it must be born waiting.
    pub(crate) fn reserve(&self, webhook: WebhookId, bytes: usize) -> bool {
        let state = &mut *self.state.lock();
        if state.draining
            || state.items >= self.bounds.max_items
            || state.bytes + bytes > self.bounds.max_bytes
        {
            return false;
        }
        let lane = state.lanes.entry(webhook).or_default();
        if lane.backlog || lane.held() >= self.bounds.lane_items {
            return false;
        }
        lane.reserved += 1;
        state.items += 1;
        state.bytes += bytes;
        true
    }

    /// Gives reserved room back: the delivery was not committed.
    pub(crate) fn unreserve(&self, webhook: WebhookId, count: usize, bytes: usize) {
        let state = &mut *self.state.lock();
        state.items -= count;
        state.bytes -= bytes;
        if let Some(lane) = state.lanes.get_mut(&webhook) {
            lane.reserved -= count;
        }
        state.forget_if_idle(webhook);
    }

    /// Takes in committed deliveries that room was reserved for.
    pub(crate) fn admit(&self, deliveries: impl IntoIterator<Item = (Ready, u32)>) -> Moves {
        let state = &mut *self.state.lock();
        for (ready, max_in_flight) in deliveries {
            let webhook = ready.webhook;
            let lane = state.lanes.entry(webhook).or_default();
            lane.reserved -= 1;
            lane.max_in_flight = max_in_flight.max(1) as usize;
            lane.queue.push_back(ready);
            state.give_turn(webhook);
        }
        state.pump(&self.bounds)
    }

    /// The answer is there (or never will be): the webhook's slot is free. The outcome is still to be stored.
    pub(crate) fn answered(&self, webhook: WebhookId, delivery: DeliveryId) -> Moves {
        let state = &mut *self.state.lock();
        if let Some(lane) = state.lanes.get_mut(&webhook)
            && let Some(at) = lane.sending.iter().position(|sending| *sending == delivery)
        {
            lane.sending.swap_remove(at);
        }
        state.give_turn(webhook);
        state.note_hunger(webhook, &self.bounds);
        state.pump(&self.bounds)
    }

    /// The outcome is stored: the node's slot and memory are free.
    pub(crate) fn settled(&self, webhook: WebhookId, delivery: DeliveryId, bytes: usize) -> Moves {
        let state = &mut *self.state.lock();
        state.unsettled -= 1;
        state.items -= 1;
        state.bytes -= bytes;
        state.store_down = false;
        if !state.cancelled.is_empty() {
            state.cancelled.remove(&delivery);
        }
        state.note_hunger(webhook, &self.bounds);
        state.forget_if_idle(webhook);
        state.pump(&self.bounds)
    }

    /// The store failed: nothing new is sent until it has taken something again.
    pub(crate) fn store_failed(&self) {
        self.state.lock().store_down = true;
    }

    /// The store works again.
    pub(crate) fn store_works(&self) -> Moves {
        let state = &mut *self.state.lock();
        state.store_down = false;
        state.pump(&self.bounds)
    }

    /// Lanes that are behind and have room, with that room reserved.
    pub(crate) fn take_hungry(&self) -> Vec<LaneRoom> {
        let state = &mut *self.state.lock();
        let hungry = std::mem::take(&mut state.hungry);
        let mut rooms = Vec::with_capacity(hungry.len());
        for webhook in hungry {
            let Some(lane) = state.lanes.get_mut(&webhook) else { continue };
            if !lane.backlog {
                lane.hungry = false;
                state.forget_if_idle(webhook);
                continue;
            }
            let room = state.reserve_room(webhook, &self.bounds);
            if room == 0 {
                // Memory is full: asked again when something is settled.
                state.hungry.push_back(webhook);
                continue;
            }
            if let Some(lane) = state.lanes.get_mut(&webhook) {
                lane.hungry = false;
            }
            rooms.push(LaneRoom { webhook, room });
        }
        rooms
    }

    /// Reserves what room there is for a lane that has something due in the store; none is an answer too.
    pub(crate) fn reserve_lane(&self, webhook: WebhookId) -> LaneRoom {
        let state = &mut *self.state.lock();
        state.lanes.entry(webhook).or_default();
        LaneRoom { webhook, room: state.reserve_room(webhook, &self.bounds) }
    }

    /// Sets payload bytes aside for a claim, at most so many; half of what is free is left to publishes.
    pub(crate) fn reserve_bytes(&self, most: usize) -> usize {
        let state = &mut *self.state.lock();
        let bytes = (self.bounds.max_bytes.saturating_sub(state.bytes) / 2).min(most);
        state.bytes += bytes;
        bytes
    }

    /// Gives back what was set aside for a claim; what it brought in has been counted.
    pub(crate) fn release_bytes(&self, bytes: usize) {
        self.state.lock().bytes -= bytes;
    }

    /// Takes in what was claimed for a lane. `room` was reserved; `more` is due in the store.
    pub(crate) fn claimed(
        &self,
        lane_room: LaneRoom,
        deliveries: impl IntoIterator<Item = (Ready, u32)>,
        more: bool,
    ) -> Moves {
        let LaneRoom { webhook, room } = lane_room;
        let state = &mut *self.state.lock();
        let mut taken = 0;
        for (ready, max_in_flight) in deliveries {
            taken += 1;
            state.bytes += ready.event.weight();
            let lane = state.lanes.entry(webhook).or_default();
            lane.max_in_flight = max_in_flight.max(1) as usize;
            lane.queue.push_back(ready);
        }
        state.items -= room - taken;
        let lane = state.lanes.entry(webhook).or_default();
        lane.reserved -= room;
        lane.backlog = more;
        state.give_turn(webhook);
        state.note_hunger(webhook, &self.bounds);
        state.forget_if_idle(webhook);
        state.pump(&self.bounds)
    }

    /// Gives back the room of a claim that failed. Lanes that were behind still are.
    pub(crate) fn claim_failed(&self, rooms: &[LaneRoom]) {
        let state = &mut *self.state.lock();
        for LaneRoom { webhook, room } in rooms {
            state.items -= room;
            if let Some(lane) = state.lanes.get_mut(webhook) {
                lane.reserved -= room;
            }
            state.note_hunger(*webhook, &self.bounds);
            state.forget_if_idle(*webhook);
        }
    }

    /// Notes that a delivery is to be called off. If it was queued here it is handed out, to be ended without
    /// a request; its room stays taken until that is stored.
    pub(crate) fn cancel(&self, webhook: WebhookId, delivery: DeliveryId, reason: String) -> Option<Ready> {
        let state = &mut *self.state.lock();
        let lane = state.lanes.get_mut(&webhook)?;
        if lane.sending.contains(&delivery) {
            state.cancelled.insert(delivery, reason);
            return None;
        }
        let at = lane.queue.iter().position(|ready| ready.id == delivery)?;
        let ready = lane.queue.remove(at)?;
        state.unsettled += 1;
        Some(ready)
    }

    /// Hands out everything that is only queued for a webhook, to be ended without requests. Its room stays
    /// taken until that is stored.
    pub(crate) fn take_queued(&self, webhook: WebhookId) -> Vec<Ready> {
        let state = &mut *self.state.lock();
        let Some(lane) = state.lanes.get_mut(&webhook) else { return Vec::new() };
        let queued: Vec<_> = lane.queue.drain(..).collect();
        state.unsettled += queued.len();
        queued
    }

    /// Why a delivery that this node has was called off, if it was.
    pub(crate) fn cancel_reason(&self, delivery: DeliveryId) -> Option<String> {
        let state = self.state.lock();
        if state.cancelled.is_empty() {
            return None;
        }
        state.cancelled.get(&delivery).cloned()
    }

    /// Where a delivery is in this node's memory.
    pub(crate) fn whereabouts(&self, webhook: WebhookId, delivery: DeliveryId) -> Option<Whereabouts> {
        let state = self.state.lock();
        let lane = state.lanes.get(&webhook)?;
        if lane.sending.contains(&delivery) {
            return Some(Whereabouts::Sending);
        }
        lane.queue.iter().any(|ready| ready.id == delivery).then(|| match lane.may_send() {
            true => Whereabouts::Capacity,
            false => Whereabouts::InFlightLimit,
        })
    }

    /// Stops sending and hands out everything that is only queued.
    pub(crate) fn drain(&self) -> Vec<Ready> {
        let state = &mut *self.state.lock();
        state.draining = true;
        let mut queued = Vec::new();
        for lane in state.lanes.values_mut() {
            queued.extend(lane.queue.drain(..));
        }
        for ready in &queued {
            state.items -= 1;
            state.bytes -= ready.event.weight();
        }
        queued
    }

    /// Whether nothing new is sent any more.
    pub(crate) fn is_draining(&self) -> bool {
        self.state.lock().draining
    }

    /// Deliveries in memory, their bytes, and requests whose outcome is not stored.
    pub(crate) fn load(&self) -> Load {
        let state = self.state.lock();
        Load { items: state.items, bytes: state.bytes, unsettled: state.unsettled }
    }
}

/// How full the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Deliveries in memory, room set aside included.
    pub items: usize,
    /// Their payload bytes.
    pub bytes: usize,
    /// Requests whose outcome is not stored yet.
    pub unsettled: usize,
}

impl State {
    fn give_turn(&mut self, webhook: WebhookId) {
        if let Some(lane) = self.lanes.get_mut(&webhook)
            && !lane.in_turn
            && lane.may_send()
        {
            lane.in_turn = true;
            self.turns.push_back(webhook);
        }
    }

    /// Starts as many requests as may be started, one from each lane in turn.
    fn pump(&mut self, bounds: &Bounds) -> Moves {
        let mut moves =
            Moves { start: Vec::new(), refill: !self.hungry.is_empty() && self.items < bounds.max_items };
        if self.draining || self.store_down {
            return moves;
        }
        while self.unsettled < bounds.max_in_flight {
            let Some(webhook) = self.turns.pop_front() else { break };
            let Some(lane) = self.lanes.get_mut(&webhook) else { continue };
            lane.in_turn = false;
            if !lane.may_send() {
                continue;
            }
            if let Some(ready) = lane.queue.pop_front() {
                lane.sending.push(ready.id);
                self.unsettled += 1;
                moves.start.push(ready);
            }
            self.give_turn(webhook);
        }
        moves
    }

    /// A lane that is behind asks for more once half of its room is free.
    fn note_hunger(&mut self, webhook: WebhookId, bounds: &Bounds) {
        if let Some(lane) = self.lanes.get_mut(&webhook)
            && lane.backlog
            && !lane.hungry
            && lane.held() <= bounds.lane_items / 2
        {
            lane.hungry = true;
            self.hungry.push_back(webhook);
        }
    }

    fn reserve_room(&mut self, webhook: WebhookId, bounds: &Bounds) -> usize {
        if self.draining || self.bytes >= bounds.max_bytes {
            return 0;
        }
        let free = bounds.max_items.saturating_sub(self.items);
        let Some(lane) = self.lanes.get_mut(&webhook) else { return 0 };
        let room = bounds.lane_items.saturating_sub(lane.held()).min(free).min(QUANTUM);
        lane.reserved += room;
        self.items += room;
        room
    }

    /// An idle lane costs nothing: it is made again when it is needed.
    fn forget_if_idle(&mut self, webhook: WebhookId) {
        if let Some(lane) = self.lanes.get(&webhook)
            && lane.held() == 0
            && !lane.backlog
            && !lane.in_turn
            && !lane.hungry
        {
            self.lanes.remove(&webhook);
        }
    }
}

#[cfg(test)]
mod tests;

//! Lanes in memory: what this node has leased and not yet sent, and whose turn it is.
//!
//! Everything is bounded: room for a delivery is reserved before it is committed as leased to this node, and
//! given back when its outcome is committed. What finds no room waits in the store; its lane is then behind
//! (`backlog`) and is filled from the store, in order, before anything newer is taken in directly.
//!
//! Room and sending slots are shared: no tenant, no webhook and no storm of retries can take all of either,
//! see [`redrive_core::fairness`]. Who goes next is in `turns`, how much fits is in `room`, what matters only
//! among other nodes is in `others`.

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
use redrive_store::{LaneKey, LaneRoom};

use self::state::State;
use crate::membership::Term;

/// A delivery in memory, leased to this node.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    pub(crate) id: DeliveryId,
    /// What it was leased under.
    pub(crate) term: Arc<Term>,
    pub(crate) webhook: WebhookId,
    pub(crate) lane: Lane,
    pub(crate) event: Arc<Event>,
    pub(crate) format: PayloadFormat,
    /// The number that its next attempt will have.
    pub(crate) attempt: u32,
    pub(crate) created_at: Time,
    pub(crate) due: Time,
    pub(crate) rescues: u32,
    pub(crate) deaths: u32,
    /// When its publish began, by the ticks, if it is fresh from there.
    pub(crate) began: Option<Duration>,
}

/// Whom something is for, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whom<'a> {
    pub(crate) webhook: WebhookId,
    pub(crate) tenant: &'a TenantId,
    /// Requests at once to the webhook.
    pub(crate) max_in_flight: usize,
    /// Requests at once for the tenant.
    pub(crate) tenant_max_in_flight: usize,
    /// The host that the webhook's URL names.
    pub(crate) host: HostKey,
}

/// Where a delivery is that this node has in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// A request is under way, or its outcome is being written down.
    Sending,
    /// Queued here.
    Queued,
}

/// How much may be in memory and under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) max_in_flight: usize,
    pub(crate) max_items: usize,
    pub(crate) max_bytes: usize,
    pub(crate) lane_items: usize,
    /// Requests in flight to one destination host.
    pub(crate) host_max_in_flight: usize,
}

/// A delivery that may not go now.
pub(crate) struct Refused {
    pub(crate) ready: Ready,
    pub(crate) how: Refusal,
}

/// How it is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// For a moment: it stays here, first in its lane, and so does all that this scope has.
    Soon(Scope, Time),
    /// For a while: all that the webhook has goes back to the store, and nothing comes in until then.
    Park(Time),
    /// This one alone goes back to the store, not wanted before that time.
    Alone(Time),
    /// It is no probe of a half-open circuit: it goes back, and no other comes in, until something changes.
    NoProbe,
    /// The node must send nothing at all: all that it has stays here, until [`Dispatch::speak`].
    Silence,
}

/// The lanes of this node.
pub(crate) struct Dispatch {
    state: Mutex<State>,
    bounds: Bounds,
}

/// What came of a change: deliveries to send now, deliveries to give back to the store, and whether the
/// store should be asked for more.
#[derive(Default)]
pub(crate) struct Moves {
    pub(crate) start: Vec<Ready>,
    /// Their room stays taken until they are back; see [`Dispatch::unreserve`].
    pub(crate) hand_back: Vec<Ready>,
    pub(crate) refill: bool,
}

/// How many slots somebody uses of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) webhook: usize,
    /// Deliveries that wait in memory for the webhook.
    pub(crate) queued: usize,
    pub(crate) tenant: usize,
    pub(crate) node: usize,
    /// Whether the tenant may have one more request in flight to the webhook's host.
    pub(crate) host_has_slot: bool,
}

/// What a node has in memory of one tenant's deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// How many are queued for each webhook that has any, by priority, the most urgent first; those in an order
    /// count as normal.
    pub queued: Vec<(WebhookId, [u64; Priority::ALL.len()])>,
    /// Requests whose outcome is not stored yet.
    pub in_flight: usize,
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
    /// How many there may be.
    pub slots: usize,
}

impl Dispatch {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { state: Mutex::new(State::new(bounds)), bounds }
    }

    /// Sets room aside for a delivery that is about to be published. False: it must be born waiting.
    pub(crate) fn reserve(&self, whom: Whom<'_>, lane: &Lane, bytes: usize) -> bool {
        self.state.lock().reserve(whom, lane, bytes)
    }

    /// Gives reserved room back: the deliveries were not committed, or are in the store again.
    pub(crate) fn unreserve(&self, webhook: WebhookId, lane: &Lane, count: usize, bytes: usize) {
        self.state.lock().unreserve(webhook, lane, count, bytes);
    }

    /// A delivery that was handed back is in the store again.
    pub(crate) fn returned(&self, ready: &Ready) {
        let state = &mut *self.state.lock();
        state.owned.remove(&ready.id);
        state.unreserve(ready.webhook, &ready.lane, 1, ready.event.weight());
    }

    /// Whether memory knows the lease of a delivery.
    pub(crate) fn owns(&self, delivery: DeliveryId) -> bool {
        self.state.lock().owned.contains_key(&delivery)
    }

    /// Keeps a lease known although its delivery has left memory: it stays leased until the epoch ends.
    pub(crate) fn keep_owned(&self, delivery: DeliveryId) {
        self.state.lock().owned.insert(delivery, ());
    }

    /// Whether memory knows a lane that this node holds.
    pub(crate) fn knows_lane(&self, key: &LaneKey) -> bool {
        self.state.lock().knows_lane(key)
    }

    /// Has a lane that this node holds claimed from again.
    pub(crate) fn adopt_lane(&self, whom: Whom<'_>, lane: &Lane) -> Moves {
        let state = &mut *self.state.lock();
        state.adopt_lane(whom, lane);
        state.pump()
    }

    /// Takes in committed deliveries that room was reserved for.
    pub(crate) fn admit(&self, deliveries: impl IntoIterator<Item = Ready>) -> Moves {
        let state = &mut *self.state.lock();
        let mut hand_back = Vec::new();
        for ready in deliveries {
            state.admit(ready, &mut hand_back);
        }
        Moves { hand_back, ..state.pump() }
    }

    /// Notes that a delivery was born waiting, due now: its lane is behind if it is known here.
    pub(crate) fn fell_behind(&self, webhook: WebhookId, lane: &Lane) -> Moves {
        let state = &mut *self.state.lock();
        state.fell_behind(webhook, lane);
        state.pump()
    }

    /// Takes back what the gate did not let pass; whatever may go in its stead is started.
    pub(crate) fn refuse(&self, refused: Vec<Refused>) -> Moves {
        let state = &mut *self.state.lock();
        let mut hand_back = Vec::new();
        // The last one first, so that each lane's first is first again.
        for Refused { ready, how } in refused.into_iter().rev() {
            state.refuse(ready, how, &mut hand_back);
        }
        Moves { hand_back, ..state.pump() }
    }

    /// The answer is there (or never will be): the webhook's slot is free. The outcome is still to be stored.
    pub(crate) fn answered(&self, webhook: WebhookId, delivery: DeliveryId) -> Moves {
        let state = &mut *self.state.lock();
        state.answered(webhook, delivery);
        state.pump()
    }

    /// The outcome is stored: the node's slot and memory are free. If the delivery still waits, so does all
    /// that comes after it in its order.
    pub(crate) fn settled(&self, ready: &Ready, still_waits: bool) -> Moves {
        let state = &mut *self.state.lock();
        let hand_back = state.settled(ready, still_waits);
        Moves { hand_back, ..state.pump() }
    }

    /// Sends nothing to a webhook until then: what is queued goes back.
    pub(crate) fn park(&self, whom: Whom<'_>, until: Time) -> Moves {
        let state = &mut *self.state.lock();
        state.enter(whom);
        let mut hand_back = Vec::new();
        state.park(whom.webhook, until, &mut hand_back);
        Moves { hand_back, ..state.pump() }
    }

    /// Nothing holds a webhook back any more, or only so that few may go at once.
    pub(crate) fn unpark(&self, whom: Whom<'_>, trickle: Option<usize>) -> Moves {
        let state = &mut *self.state.lock();
        state.unpark(whom, trickle);
        state.pump()
    }

    /// When something held back here may go again.
    pub(crate) fn next_wake(&self) -> Option<Time> {
        self.state.lock().next_wake()
    }

    /// Time went back: moves what was planned by the time that is no longer used.
    pub(crate) fn set_back(&self, set_back: &SetBack) {
        self.state.lock().set_back(set_back);
    }

    /// Lets go what was held back until now.
    pub(crate) fn wake_up(&self, now: Time) -> Moves {
        let state = &mut *self.state.lock();
        state.wake_up(now);
        state.pump()
    }

    /// The store failed: nothing new is sent until it has taken something again.
    pub(crate) fn store_failed(&self) {
        self.state.lock().store_down = true;
    }

    /// The store works again.
    pub(crate) fn store_works(&self) -> Moves {
        let state = &mut *self.state.lock();
        state.store_down = false;
        state.pump()
    }

    /// How many retries are under way.
    pub(crate) fn retries(&self) -> usize {
        self.state.lock().retries
    }

    /// Lets no more retries go at once than this.
    pub(crate) fn set_retry_window(&self, window: usize) -> Moves {
        let state = &mut *self.state.lock();
        state.retry_window = window;
        state.pump()
    }

    /// Lanes that are behind and have room, with that room reserved.
    pub(crate) fn take_hungry(&self) -> Vec<LaneRoom> {
        self.state.lock().take_hungry()
    }

    /// Reserves what room there is for a lane that has something due in the store; none is an answer too.
    pub(crate) fn reserve_lane(&self, whom: Whom<'_>, lane: Lane) -> LaneRoom {
        self.state.lock().reserve_lane(whom, lane)
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
    pub(crate) fn claimed(&self, room: &LaneRoom, deliveries: Vec<Ready>, more: bool) -> Moves {
        let state = &mut *self.state.lock();
        let hand_back = state.take_in(room, deliveries, Some(more));
        Moves { hand_back, ..state.pump() }
    }

    /// Reserves room for deliveries that tickets name, at most so many; none if the lane is behind: what is older comes
    /// first.
    pub(crate) fn reserve_for_tickets(&self, whom: Whom<'_>, lane: &Lane, most: usize) -> usize {
        self.state.lock().reserve_for_tickets(whom, lane, most)
    }

    /// Whether so many deliveries of a lane find no room just now, which may soon be otherwise. Not if the lane is
    /// behind: what is older comes first then.
    pub(crate) fn is_full_for(&self, key: &LaneKey, count: usize) -> bool {
        self.state.lock().is_full_for(key, count)
    }

    /// Takes in what was leased by tickets. `room` was reserved.
    pub(crate) fn taken(&self, room: &LaneRoom, deliveries: Vec<Ready>) -> Moves {
        let state = &mut *self.state.lock();
        let hand_back = state.take_in(room, deliveries, None);
        Moves { hand_back, ..state.pump() }
    }

    /// Whether little room is left for anybody: others should take what there is to do.
    pub(crate) fn is_crowded(&self) -> bool {
        let state = self.state.lock();
        state.items >= self.bounds.max_items / 4 * 3 || state.bytes >= self.bounds.max_bytes / 4 * 3
    }

    /// Gives back the room of a claim that failed. Lanes that were behind still are.
    pub(crate) fn claim_failed(&self, rooms: &[LaneRoom]) {
        let state = &mut *self.state.lock();
        for room in rooms {
            state.unreserve(room.key.webhook, &room.key.lane, room.room, 0);
        }
    }

    /// Notes that a delivery is to be called off. If it was queued here it is handed out, to be ended without
    /// a request; its room stays taken until that is stored.
    pub(crate) fn cancel(&self, webhook: WebhookId, delivery: DeliveryId, reason: String) -> Option<Ready> {
        self.state.lock().cancel(webhook, delivery, reason)
    }

    /// Hands out a delivery that was cancelled on another node if it is queued here, to be returned to the store. One
    /// that is about to be admitted is returned then.
    pub(crate) fn take_cancelled(&self, webhook: WebhookId, delivery: DeliveryId) -> Option<Ready> {
        self.state.lock().take_cancelled(webhook, delivery)
    }

    /// Hands out everything that is only queued for a webhook, to be ended without requests. Its room stays
    /// taken until that is stored.
    pub(crate) fn take_queued(&self, webhook: WebhookId) -> Vec<Ready> {
        self.state.lock().take_queued(webhook)
    }

    /// Hands out what is queued and over, to be ended without requests; otherwise as [`Dispatch::take_queued`].
    pub(crate) fn take_over(&self, is_over: impl Fn(&Ready) -> bool) -> Vec<Ready> {
        self.state.lock().take_over(is_over)
    }

    /// Forgets everything that is queued under a term that is over: it is somebody else's.
    pub(crate) fn throw_away(&self) -> Moves {
        let state = &mut *self.state.lock();
        state.throw_away();
        state.pump()
    }

    /// Hands back everything that is queued for a webhook, which is to be sent from elsewhere.
    pub(crate) fn surrender(&self, webhook: WebhookId) -> Moves {
        let state = &mut *self.state.lock();
        let hand_back = state.surrender(webhook);
        Moves { hand_back, ..state.pump() }
    }

    /// Whoever this is for may have more or fewer requests at once.
    pub(crate) fn set_caps(&self, whom: Whom<'_>) -> Moves {
        let state = &mut *self.state.lock();
        state.set_caps(whom);
        state.pump()
    }

    /// Another number of requests may be in flight to each destination host.
    pub(crate) fn set_host_limit(&self, max_in_flight: usize) -> Moves {
        let state = &mut *self.state.lock();
        state.set_host_limit(max_in_flight);
        state.pump()
    }

    /// Takes a slot of a host for a request that is no delivery. Returns whether there was one; it is given back by
    /// [`Dispatch::free_host`].
    pub(crate) fn take_host(&self, tenant: &TenantId, host: HostKey) -> bool {
        self.state.lock().take_host(tenant, host)
    }

    /// Ends a request that [`Dispatch::take_host`] was asked for.
    pub(crate) fn free_host(&self, tenant: &TenantId, host: HostKey) -> Moves {
        let state = &mut *self.state.lock();
        state.free_host(tenant, host);
        state.pump()
    }

    /// The node may send again, if it could not.
    pub(crate) fn speak(&self) -> Moves {
        let state = &mut *self.state.lock();
        if !std::mem::take(&mut state.silent) {
            return Moves::default();
        }
        state.pump()
    }

    /// Every webhook that is known here.
    pub(crate) fn webhooks(&self) -> Vec<WebhookId> {
        self.state.lock().hooks.keys().copied().collect()
    }

    /// Requests under way to a webhook.
    pub(crate) fn sending(&self, webhook: WebhookId) -> usize {
        self.state.lock().hooks.get(&webhook).map_or(0, |hook| hook.sending.len())
    }

    /// A lane with something due in the store is not asked for, since there is no room: others may have some.
    pub(crate) fn decline(&self, key: &LaneKey) {
        self.state.lock().decline(key);
    }

    /// Whether any delivery of a webhook is here.
    pub(crate) fn has_any(&self, webhook: WebhookId) -> bool {
        self.state.lock().hooks.get(&webhook).is_some_and(|hook| hook.held() > 0)
    }

    /// Whether nothing of a webhook is here, nor is anything about to come.
    pub(crate) fn is_quiet(&self, webhook: WebhookId) -> bool {
        self.state.lock().is_quiet(webhook)
    }

    /// A tenant may have more or fewer requests at once, and other limits.
    pub(crate) fn tenant_changed(&self, tenant: &TenantId, max_in_flight: usize) -> Moves {
        let state = &mut *self.state.lock();
        state.tenant_changed(tenant, max_in_flight);
        state.pump()
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
        self.state.lock().whereabouts(webhook, delivery)
    }

    /// How many slots a webhook, its tenant, its host and the node use.
    pub(crate) fn usage(&self, whom: Whom<'_>) -> Usage {
        self.state.lock().usage(whom)
    }

    /// What is here of a tenant's.
    pub(crate) fn held(&self, tenant: &TenantId) -> Held {
        self.state.lock().held(tenant)
    }

    /// Stops sending and hands out everything that is only queued.
    pub(crate) fn drain(&self) -> Vec<Ready> {
        self.state.lock().drain()
    }

    /// Whether nothing new is sent any more.
    pub(crate) fn is_draining(&self) -> bool {
        self.state.lock().draining
    }

    /// How full the node is.
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

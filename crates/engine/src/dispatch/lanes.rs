//! A webhook in memory, with its lanes and what holds it back.

use std::collections::{HashMap, VecDeque};

use redrive_core::{
    DeliveryId, Time,
    delivery::lane::{CLASSES, Lane},
};

use super::Ready;

/// A lane: one queue of one webhook.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) lane: Lane,
    pub(super) queue: VecDeque<Ready>,
    /// Room set aside for deliveries that are being committed, claimed or handed back.
    pub(super) reserved: usize,
    /// Its deliveries whose outcome is not stored. In an order there is one at the most.
    pub(super) unsettled: usize,
    /// More is due in the store: newer deliveries must not overtake it.
    pub(super) backlog: bool,
    pub(super) in_turn: bool,
    pub(super) hungry: bool,
    /// The host that put it back in line; see `hosts`.
    pub(super) woken_at: Option<usize>,
}

impl Queue {
    fn new(lane: Lane) -> Self {
        Self {
            lane,
            queue: VecDeque::new(),
            reserved: 0,
            unsettled: 0,
            backlog: false,
            in_turn: false,
            hungry: false,
            woken_at: None,
        }
    }

    /// What it takes up.
    pub(super) fn held(&self) -> usize {
        self.queue.len() + self.reserved + self.unsettled
    }

    pub(super) fn is_retry(&self) -> bool {
        is_retry(&self.lane)
    }

    /// Gives out all that is queued, to go back to the store; its room stays taken until it is there.
    pub(super) fn hand_back(&mut self, into: &mut Vec<Ready>) {
        self.reserved += self.queue.len();
        into.extend(self.queue.drain(..));
    }

    fn is_idle(&self) -> bool {
        self.held() == 0 && !self.backlog && !self.in_turn && !self.hungry
    }
}

pub(super) fn is_retry(lane: &Lane) -> bool {
    matches!(lane, Lane::Free { retry: true, .. })
}

/// What holds a webhook back here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Soon over: the queue stays.
    Moment(Time),
    /// Not soon over: the queue is in the store, and nothing comes in.
    Parked(Time),
}

impl Block {
    pub(super) fn until(self) -> Time {
        match self {
            Self::Moment(until) | Self::Parked(until) => until,
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) delivery: DeliveryId,
    /// The index of the host that it counts for, which may not be the webhook's any more.
    pub(super) host: usize,
}

/// A webhook with something in memory, or with something that holds it back.
#[derive(Debug)]
pub(super) struct Hooked {
    /// The place of its tenant.
    pub(super) tenant: usize,
    /// Lanes by their places, which do not change while they are in use.
    pub(super) lanes: Vec<Queue>,
    /// The places of the free lanes by class, and of the orders by key. There may be very many orders.
    classes: [Option<usize>; CLASSES],
    orders: HashMap<Box<str>, usize>,
    /// Places of orders that are over.
    vacant: Vec<usize>,
    /// Where to look first for a lane that may send.
    pub(super) look_at: usize,
    /// Requests in flight.
    pub(super) sending: Vec<Sending>,
    /// The index of the host that its URL names.
    pub(super) host: usize,
    pub(super) max_in_flight: usize,
    pub(super) block: Option<Block>,
    /// While its circuit is half open: no more than so many at once in memory.
    pub(super) trickle: Option<usize>,
}

impl Hooked {
    /// Whether capacity is reserved for deliveries that are on the way from the store or back to it.
    pub(super) fn has_reserved(&self) -> bool {
        self.lanes.iter().any(|queue| queue.reserved > 0)
    }

    pub(super) fn new(tenant: usize, host: usize) -> Self {
        Self {
            tenant,
            host,
            lanes: Vec::new(),
            classes: [None; CLASSES],
            orders: HashMap::new(),
            vacant: Vec::new(),
            look_at: 0,
            sending: Vec::new(),
            max_in_flight: 1,
            block: None,
            trickle: None,
        }
    }

    pub(super) fn held(&self) -> usize {
        self.lanes.iter().map(Queue::held).sum()
    }

    pub(super) fn is_sending(&self, delivery: DeliveryId) -> bool {
        self.sending.iter().any(|sending| sending.delivery == delivery)
    }

    pub(super) fn is_parked(&self) -> bool {
        matches!(self.block, Some(Block::Parked(_)))
    }

    /// Whether the first of this lane may be sent, as far as this webhook goes.
    pub(super) fn may_send(&self, lane: usize) -> bool {
        let queue = &self.lanes[lane];
        !queue.queue.is_empty()
            && self.block.is_none()
            && self.sending.len() < self.max_in_flight
            && (queue.unsettled == 0 || !queue.lane.is_ordered())
    }

    pub(super) fn position(&self, lane: &Lane) -> Option<usize> {
        match lane {
            Lane::Free { .. } => self.classes[lane.class()],
            Lane::Ordered(key) => self.orders.get(key).copied(),
        }
    }

    /// The places of the lanes without an order.
    pub(super) fn free_lanes(&self) -> impl Iterator<Item = usize> + use<> {
        self.classes.into_iter().flatten()
    }

    pub(super) fn has_orders(&self) -> bool {
        !self.orders.is_empty()
    }

    /// The place of a lane, made if need be.
    pub(super) fn lane(&mut self, lane: &Lane) -> usize {
        if let Some(place) = self.position(lane) {
            return place;
        }
        let place = match self.vacant.pop() {
            Some(place) => {
                self.lanes[place] = Queue::new(lane.clone());
                place
            }
            None => {
                self.lanes.push(Queue::new(lane.clone()));
                self.lanes.len() - 1
            }
        };
        match lane {
            Lane::Free { .. } => self.classes[lane.class()] = Some(place),
            Lane::Ordered(key) => drop(self.orders.insert(key.clone(), place)),
        }
        place
    }

    /// Gives up the place of an order with nothing in it. Event types come and go.
    pub(super) fn vacate_if_idle(&mut self, place: usize) {
        let queue = &self.lanes[place];
        if let Lane::Ordered(key) = &queue.lane
            && queue.is_idle()
            && self.orders.get(key) == Some(&place)
        {
            self.orders.remove(key);
            self.vacant.push(place);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sending.is_empty()
            && self.block.is_none()
            && self.trickle.is_none()
            && self.lanes.iter().all(Queue::is_idle)
    }
}

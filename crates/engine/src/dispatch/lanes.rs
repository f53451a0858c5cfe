//! A webhook in memory, with its lanes and its block.

use std::collections::{HashMap, VecDeque};

use redrive_core::{
    DeliveryId, Time,
    delivery::lane::{CLASS_COUNT, Lane},
};

use super::LeasedDelivery;

/// A lane: one queue of one webhook.
#[derive(Debug)]
pub(super) struct LaneQueue {
    pub(super) lane: Lane,
    pub(super) queue: VecDeque<LeasedDelivery>,
    /// Capacity reserved for deliveries that are being committed, claimed or released.
    pub(super) reserved: usize,
    /// Number of its deliveries whose outcome is not stored; at most one in an ordered lane.
    pub(super) unsettled: usize,
    /// Whether more deliveries are due in the store: newer ones must not overtake them.
    pub(super) has_more_due: bool,
    /// Whether it is in its tenant's queue of ready lanes, or waits at a host.
    pub(super) is_ready_or_waiting_at_host: bool,
    pub(super) refill_requested: bool,
    /// Index of the host that granted it a slot and enqueued it again; see `hosts`.
    pub(super) granted_by_host: Option<usize>,
}

impl LaneQueue {
    fn new(lane: Lane) -> Self {
        Self {
            lane,
            queue: VecDeque::new(),
            reserved: 0,
            unsettled: 0,
            has_more_due: false,
            is_ready_or_waiting_at_host: false,
            refill_requested: false,
            granted_by_host: None,
        }
    }

    /// Returns the capacity it occupies.
    pub(super) fn occupied(&self) -> usize {
        self.queue.len() + self.reserved + self.unsettled
    }

    pub(super) fn is_retry(&self) -> bool {
        is_retry(&self.lane)
    }

    /// Drains all queued deliveries to be released; their capacity stays reserved until they are back in the store.
    pub(super) fn drain_to_release(&mut self, into: &mut Vec<LeasedDelivery>) {
        self.reserved += self.queue.len();
        into.extend(self.queue.drain(..));
    }

    fn is_idle(&self) -> bool {
        self.occupied() == 0
            && !self.has_more_due
            && !self.is_ready_or_waiting_at_host
            && !self.refill_requested
    }
}

/// Returns whether a lane is of the retry class: of retries and resends.
pub(super) fn is_retry(lane: &Lane) -> bool {
    matches!(lane, Lane::Unordered { retry: true, .. })
}

/// Block of a webhook on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// A short pause: the queue stays in memory.
    Held(Time),
    /// A long pause: the queue is in the store, and no delivery is enqueued.
    Parked(Time),
}

impl Block {
    pub(super) fn until(self) -> Time {
        match self {
            Self::Held(until) | Self::Parked(until) => until,
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightRequest {
    pub(super) delivery_id: DeliveryId,
    /// Index of the host that it counts for, which may differ from the webhook's current one.
    pub(super) host: usize,
}

/// A webhook with deliveries in memory or with a block.
#[derive(Debug)]
pub(super) struct WebhookQueues {
    /// Index of its tenant.
    pub(super) tenant: usize,
    /// Lanes; the index of a lane does not change while it is in use.
    pub(super) lanes: Vec<LaneQueue>,
    /// Indexes of the unordered lanes by class, and of the ordered lanes by key. There may be very many ordered lanes.
    classes: [Option<usize>; CLASS_COUNT],
    ordered_lanes: HashMap<Box<str>, usize>,
    /// Indexes of ordered lanes that are no longer in use.
    free_indexes: Vec<usize>,
    /// Index at which the search for a lane that may send starts.
    pub(super) next_lane: usize,
    /// Requests in flight.
    pub(super) in_flight: Vec<InFlightRequest>,
    /// Index of the host of its URL.
    pub(super) host: usize,
    pub(super) max_in_flight: usize,
    pub(super) block: Option<Block>,
    /// Maximum number of deliveries in memory while its circuit is half-open.
    pub(super) half_open_max_in_memory: Option<usize>,
}

impl WebhookQueues {
    /// Returns whether capacity is reserved for deliveries in transit from or to the store.
    pub(super) fn has_reserved(&self) -> bool {
        self.lanes.iter().any(|queue| queue.reserved > 0)
    }

    pub(super) fn new(tenant: usize, host: usize) -> Self {
        Self {
            tenant,
            host,
            lanes: Vec::new(),
            classes: [None; CLASS_COUNT],
            ordered_lanes: HashMap::new(),
            free_indexes: Vec::new(),
            next_lane: 0,
            in_flight: Vec::new(),
            max_in_flight: 1,
            block: None,
            half_open_max_in_memory: None,
        }
    }

    pub(super) fn occupied(&self) -> usize {
        self.lanes.iter().map(LaneQueue::occupied).sum()
    }

    pub(super) fn is_in_flight(&self, delivery_id: DeliveryId) -> bool {
        self.in_flight.iter().any(|request| request.delivery_id == delivery_id)
    }

    pub(super) fn is_parked(&self) -> bool {
        matches!(self.block, Some(Block::Parked(_)))
    }

    /// Returns whether the limits of this webhook allow sending the first delivery of this lane.
    pub(super) fn lane_may_send(&self, lane: usize) -> bool {
        let queue = &self.lanes[lane];
        !queue.queue.is_empty()
            && self.block.is_none()
            && self.in_flight.len() < self.max_in_flight
            && (queue.unsettled == 0 || !queue.lane.is_ordered())
    }

    pub(super) fn lane_index(&self, lane: &Lane) -> Option<usize> {
        match lane {
            Lane::Unordered { .. } => self.classes[lane.class()],
            Lane::Ordered(key) => self.ordered_lanes.get(key).copied(),
        }
    }

    /// Returns the indexes of the unordered lanes.
    pub(super) fn unordered_lanes(&self) -> impl Iterator<Item = usize> + use<> {
        self.classes.into_iter().flatten()
    }

    pub(super) fn has_ordered_lanes(&self) -> bool {
        !self.ordered_lanes.is_empty()
    }

    /// Returns the index of a lane, creating the lane if needed.
    pub(super) fn ensure_lane(&mut self, lane: &Lane) -> usize {
        if let Some(index) = self.lane_index(lane) {
            return index;
        }
        let index = match self.free_indexes.pop() {
            Some(index) => {
                self.lanes[index] = LaneQueue::new(lane.clone());
                index
            }
            None => {
                self.lanes.push(LaneQueue::new(lane.clone()));
                self.lanes.len() - 1
            }
        };
        match lane {
            Lane::Unordered { .. } => self.classes[lane.class()] = Some(index),
            Lane::Ordered(key) => drop(self.ordered_lanes.insert(key.clone(), index)),
        }
        index
    }

    /// Frees the index of an empty ordered lane; otherwise lanes of ordering keys that are no longer used would
    /// accumulate.
    pub(super) fn free_if_idle(&mut self, index: usize) {
        let queue = &self.lanes[index];
        if let Lane::Ordered(key) = &queue.lane
            && queue.is_idle()
            && self.ordered_lanes.get(key) == Some(&index)
        {
            self.ordered_lanes.remove(key);
            self.free_indexes.push(index);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
            && self.block.is_none()
            && self.half_open_max_in_memory.is_none()
            && self.lanes.iter().all(LaneQueue::is_idle)
    }
}

//! Records of every event of a stream: when it was due, whether it was acknowledged, when it arrived at each
//! webhook. Written by the publishers and by the receiver's thread without a lock; read when the load is over.
//!
//! Times are nanoseconds since the run began; 0 means "not yet".

use std::{
    ops::RangeBounds,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Digits of the event number that follows the mark.
pub(crate) const DIGITS: usize = 10;

/// One row per event, and per event and webhook.
pub(crate) struct Ledger {
    epoch: Instant,
    mark: String,
    fanout: usize,
    manner: ReceiverBehavior,
    events: Box<[Sent]>,
    /// Grouped by event, then in the order of the webhooks.
    deliveries: Box<[Arrival]>,
}

#[derive(Default)]
struct Sent {
    due: AtomicU64,
    acknowledged: AtomicBool,
}

#[derive(Default)]
struct Arrival {
    first: AtomicU64,
    accepted: AtomicU32,
    refused: AtomicU64,
}

/// How the receiver treats the events of a stream.
pub(crate) enum ReceiverBehavior {
    Accept,
    /// The first request of every n-th event gets this non-2xx response; all others are accepted.
    RefuseFirst {
        every: usize,
        status: Arc<str>,
    },
    /// No request gets a response.
    Hang,
}

/// How the receiver responds to one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ResponseAction {
    Accept,
    Refuse(Arc<str>),
    Hang,
}

impl Ledger {
    pub(crate) fn new(
        epoch: Instant,
        mark: String,
        events: usize,
        fanout: usize,
        manner: ReceiverBehavior,
    ) -> Self {
        Self {
            epoch,
            mark,
            fanout,
            manner,
            events: (0..events).map(|_| Sent::default()).collect(),
            deliveries: (0..events * fanout).map(|_| Arrival::default()).collect(),
        }
    }

    /// Returns the text that precedes an event's number in its payload.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn events(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn sent(&self, event: usize, due: u64) {
        self.events[event].due.store(due, Relaxed);
    }

    pub(crate) fn acknowledged(&self, event: usize) {
        self.events[event].acknowledged.store(true, Relaxed);
    }

    /// Records a request at the receiver. Returns `None` if there is no such event or webhook. A refused request
    /// counts neither as an arrival nor as a duplicate.
    pub(crate) fn arrived(&self, event: usize, webhook: usize) -> Option<ResponseAction> {
        if event >= self.events.len() || webhook >= self.fanout {
            return None;
        }
        let arrival = &self.deliveries[event * self.fanout + webhook];
        if let ReceiverBehavior::RefuseFirst { every, status: response } = &self.manner
            && event.is_multiple_of(*every)
            && arrival.refused.load(Relaxed) == 0
        {
            arrival.refused.store(self.now(), Relaxed);
            return Some(ResponseAction::Refuse(Arc::clone(response)));
        }
        if arrival.accepted.fetch_add(1, Relaxed) == 0 {
            arrival.first.store(self.now(), Relaxed);
        }
        Some(if matches!(self.manner, ReceiverBehavior::Hang) {
            ResponseAction::Hang
        } else {
            ResponseAction::Accept
        })
    }

    /// Waits until every acknowledged event has arrived at all its webhooks. Has no timeout.
    pub(crate) async fn await_all(&self) {
        let mut settled = 0;
        loop {
            settled = self.first_unsettled(settled);
            if settled == self.events.len() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Returns the first event from `event` on that was acknowledged and has not arrived at every webhook.
    fn first_unsettled(&self, event: usize) -> usize {
        (event..self.events.len()).find(|event| self.missing(*event) > 0).unwrap_or(self.events.len())
    }

    /// Counts the deliveries that were refused before a time.
    pub(crate) fn refused_before(&self, moment: u64) -> u64 {
        let refused = self.deliveries.iter().map(|arrival| arrival.refused.load(Relaxed));
        refused.filter(|at| (1..moment).contains(at)).count() as u64
    }

    /// Counts the deliveries that were accepted before a time.
    pub(crate) fn arrived_before(&self, moment: u64) -> u64 {
        let arrived = self.deliveries.iter().map(|arrival| arrival.first.load(Relaxed));
        arrived.filter(|at| (1..moment).contains(at)).count() as u64
    }

    fn missing(&self, event: usize) -> usize {
        if !self.events[event].acknowledged.load(Relaxed) {
            return 0;
        }
        self.arrivals_of(event).iter().filter(|arrival| arrival.first.load(Relaxed) == 0).count()
    }

    fn arrivals_of(&self, event: usize) -> &[Arrival] {
        &self.deliveries[event * self.fanout..(event + 1) * self.fanout]
    }

    /// Sums up the events that were due in a time range. `late` is called with each arrival's latency in
    /// nanoseconds.
    pub(crate) fn summarize(&self, span: impl RangeBounds<u64>, mut late: impl FnMut(u64)) -> Totals {
        let mut totals = Totals::default();
        for (event, sent) in self.events.iter().enumerate() {
            let due = sent.due.load(Relaxed);
            if !span.contains(&due) {
                continue;
            }
            totals.missing += self.missing(event);
            for arrival in self.arrivals_of(event) {
                let first = arrival.first.load(Relaxed);
                totals.refused += u64::from(arrival.refused.load(Relaxed) > 0);
                if first > 0 {
                    totals.arrivals += 1;
                    totals.last_arrival = totals.last_arrival.max(first);
                    totals.duplicates += u64::from(arrival.accepted.load(Relaxed) - 1);
                    late(first.saturating_sub(due));
                }
            }
        }
        totals
    }

    /// Reports the age of every missing delivery of an acknowledged event in the range: a lower bound of its latency.
    pub(crate) fn overdue(&self, span: impl RangeBounds<u64>, mut late: impl FnMut(u64)) {
        let now = self.now();
        for (event, sent) in self.events.iter().enumerate() {
            let due = sent.due.load(Relaxed);
            if span.contains(&due) {
                (0..self.missing(event)).for_each(|_| late(now.saturating_sub(due)));
            }
        }
    }
}

/// Receiver-side totals of a finished stream.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) arrivals: u64,
    pub(crate) last_arrival: u64,
    /// Deliveries of acknowledged events that never arrived.
    pub(crate) missing: usize,
    /// Deliveries that were accepted more than once; each repetition counts.
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(events: usize, fanout: usize, manner: ReceiverBehavior) -> Ledger {
        Ledger::new(Instant::now(), "~test~".into(), events, fanout, manner)
    }

    #[test]
    fn only_acknowledged_events_count_as_missing() {
        let ledger = ledger(3, 1, ReceiverBehavior::Accept);
        ledger.acknowledged(0);
        ledger.acknowledged(1);
        ledger.arrived(1, 0);
        assert_eq!(ledger.first_unsettled(0), 0);
        let totals = ledger.summarize(.., |_| ());
        assert_eq!((totals.arrivals, totals.missing, totals.duplicates), (1, 1, 0));
        ledger.arrived(0, 0);
        assert_eq!(ledger.first_unsettled(0), 3);
    }

    #[test]
    fn refused_first_arrival_is_not_a_duplicate() {
        let response: Arc<str> = "no".into();
        let ledger = ledger(4, 2, ReceiverBehavior::RefuseFirst { every: 2, status: Arc::clone(&response) });
        assert_eq!(ledger.arrived(0, 1), Some(ResponseAction::Refuse(response)));
        assert_eq!(ledger.arrived(0, 1), Some(ResponseAction::Accept));
        assert_eq!(ledger.arrived(1, 1), Some(ResponseAction::Accept));
        assert_eq!(ledger.arrived(1, 1), Some(ResponseAction::Accept));
        let totals = ledger.summarize(.., |_| ());
        assert_eq!((totals.arrivals, totals.refused, totals.duplicates), (2, 1, 1));
        assert_eq!((ledger.refused_before(u64::MAX), ledger.refused_before(1)), (1, 0));
    }

    #[test]
    fn summary_covers_only_the_requested_range() {
        let ledger = ledger(3, 1, ReceiverBehavior::Accept);
        for (event, due) in [100, 200, 300].into_iter().enumerate() {
            ledger.sent(event, due);
            ledger.acknowledged(event);
        }
        ledger.arrived(1, 0);
        let totals = ledger.summarize(150..=300, |_| ());
        assert_eq!((totals.arrivals, totals.missing), (1, 1));
        let mut overdue = 0;
        ledger.overdue(150..=300, |_| overdue += 1);
        assert_eq!(overdue, 1);
    }
}

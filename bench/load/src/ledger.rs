//! What both sides know of every event of a stream: when it was due, whether it was acknowledged, when it
//! arrived where. Written by the publishers and by the receiver's thread without a lock; read when the load
//! is over.
//!
//! Times are nanoseconds since the run began, and 0 stands for "not yet".

use std::{
    ops::RangeBounds,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Digits of an event's number behind its mark.
pub(crate) const DIGITS: usize = 10;

/// One row per event, and per event and webhook.
pub(crate) struct Ledger {
    epoch: Instant,
    mark: String,
    fanout: usize,
    manner: Manner,
    events: Box<[Sent]>,
    /// Event by event, each with its webhooks in order.
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
pub(crate) enum Manner {
    Accept,
    /// The first request of every n-th event gets this answer, which is not a 2xx; all others are accepted.
    RefuseFirst {
        every: usize,
        answer: Arc<str>,
    },
    /// No request is ever answered.
    Hang,
}

/// How the receiver is to answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Accept,
    Refuse(Arc<str>),
    Hang,
}

impl Ledger {
    pub(crate) fn new(epoch: Instant, mark: String, events: usize, fanout: usize, manner: Manner) -> Self {
        Self {
            epoch,
            mark,
            fanout,
            manner,
            events: (0..events).map(|_| Sent::default()).collect(),
            deliveries: (0..events * fanout).map(|_| Arrival::default()).collect(),
        }
    }

    /// What precedes an event's number in its payload.
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

    /// Books a request of the receiver; none where there is no such event or webhook. What is refused counts
    /// neither as an arrival nor as a duplicate.
    pub(crate) fn arrived(&self, event: usize, webhook: usize) -> Option<Verdict> {
        if event >= self.events.len() || webhook >= self.fanout {
            return None;
        }
        let arrival = &self.deliveries[event * self.fanout + webhook];
        if let Manner::RefuseFirst { every, answer } = &self.manner
            && event.is_multiple_of(*every)
            && arrival.refused.load(Relaxed) == 0
        {
            arrival.refused.store(self.now(), Relaxed);
            return Some(Verdict::Refuse(Arc::clone(answer)));
        }
        if arrival.accepted.fetch_add(1, Relaxed) == 0 {
            arrival.first.store(self.now(), Relaxed);
        }
        Some(if matches!(self.manner, Manner::Hang) { Verdict::Hang } else { Verdict::Accept })
    }

    /// Waits until everything that was acknowledged has arrived. May wait for ever.
    pub(crate) async fn await_all(&self) {
        let mut settled = 0;
        loop {
            settled = self.settled_from(settled);
            if settled == self.events.len() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The first event from `event` on that was acknowledged and is still missing somewhere.
    fn settled_from(&self, event: usize) -> usize {
        (event..self.events.len()).find(|event| self.missing(*event) > 0).unwrap_or(self.events.len())
    }

    /// How many deliveries were refused before a moment.
    pub(crate) fn refused_before(&self, moment: u64) -> u64 {
        let refused = self.deliveries.iter().map(|arrival| arrival.refused.load(Relaxed));
        refused.filter(|at| (1..moment).contains(at)).count() as u64
    }

    /// How many deliveries were accepted before a moment.
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

    /// Adds up the events that were due in a span of time. `late` is called with each arrival's latency in
    /// nanoseconds.
    pub(crate) fn sum_up(&self, span: impl RangeBounds<u64>, mut late: impl FnMut(u64)) -> Totals {
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

    /// The age of every acknowledged event of a span that is missing somewhere: it is at least so late.
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

/// The receiver's side of a finished stream.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) arrivals: u64,
    pub(crate) last_arrival: u64,
    /// Acknowledged and never arrived.
    pub(crate) missing: usize,
    /// Accepted again after it had been accepted.
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(events: usize, fanout: usize, manner: Manner) -> Ledger {
        Ledger::new(Instant::now(), "~test~".into(), events, fanout, manner)
    }

    #[test]
    fn counts_losses_only_of_what_was_acknowledged() {
        let ledger = ledger(3, 1, Manner::Accept);
        ledger.acknowledged(0);
        ledger.acknowledged(1);
        ledger.arrived(1, 0);
        assert_eq!(ledger.settled_from(0), 0);
        let totals = ledger.sum_up(.., |_| ());
        assert_eq!((totals.arrivals, totals.missing, totals.duplicates), (1, 1, 0));
        ledger.arrived(0, 0);
        assert_eq!(ledger.settled_from(0), 3);
    }

    #[test]
    fn a_refused_first_arrival_is_no_duplicate() {
        let answer: Arc<str> = "no".into();
        let ledger = ledger(4, 2, Manner::RefuseFirst { every: 2, answer: Arc::clone(&answer) });
        assert_eq!(ledger.arrived(0, 1), Some(Verdict::Refuse(answer)));
        assert_eq!(ledger.arrived(0, 1), Some(Verdict::Accept));
        assert_eq!(ledger.arrived(1, 1), Some(Verdict::Accept));
        assert_eq!(ledger.arrived(1, 1), Some(Verdict::Accept));
        let totals = ledger.sum_up(.., |_| ());
        assert_eq!((totals.arrivals, totals.refused, totals.duplicates), (2, 1, 1));
        assert_eq!((ledger.refused_before(u64::MAX), ledger.refused_before(1)), (1, 0));
    }

    #[test]
    fn only_the_span_asked_for_is_summed_up() {
        let ledger = ledger(3, 1, Manner::Accept);
        for (event, due) in [100, 200, 300].into_iter().enumerate() {
            ledger.sent(event, due);
            ledger.acknowledged(event);
        }
        ledger.arrived(1, 0);
        let totals = ledger.sum_up(150..=300, |_| ());
        assert_eq!((totals.arrivals, totals.missing), (1, 1));
        let mut overdue = 0;
        ledger.overdue(150..=300, |_| overdue += 1);
        assert_eq!(overdue, 1);
    }
}

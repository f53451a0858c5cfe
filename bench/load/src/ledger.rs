//! What both sides know of every event: when it was due, whether it was acknowledged, when it arrived where.
//! Written by the publishers and by the receiver's thread without a lock; read when the load is over.
//!
//! Times are nanoseconds since the ledger was made, and 0 stands for "not yet".

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Instant, SystemTime},
};

/// Digits of an event's number in its mark.
pub(crate) const DIGITS: usize = 10;

/// One row per event, and per event and webhook.
pub(crate) struct Ledger {
    epoch: Instant,
    run: String,
    fanout: usize,
    fail_every: usize,
    events: Box<[Sent]>,
    /// Event by event, each with its webhooks in order.
    deliveries: Box<[Arrival]>,
    /// Requests at the receiver that belong to no event of this run.
    stray: AtomicU64,
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
    refused: AtomicBool,
}

/// How the receiver is to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Accept,
    Refuse,
}

impl Ledger {
    pub(crate) fn new(events: usize, fanout: usize, fail_every: usize) -> Self {
        Self {
            epoch: Instant::now(),
            run: run_name(),
            fanout,
            fail_every,
            events: (0..events).map(|_| Sent::default()).collect(),
            deliveries: (0..events * fanout).map(|_| Arrival::default()).collect(),
            stray: AtomicU64::new(0),
        }
    }

    /// What precedes an event's number in its payload. It differs from run to run, so that what an earlier
    /// run left in a sender's database is told apart, and is found whatever JSON surrounds it.
    pub(crate) fn mark(&self) -> String {
        format!("~{}~", self.run)
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

    /// Books a request of the receiver. The first of every n-th event is refused where that was asked for;
    /// it counts neither as an arrival nor as a duplicate.
    pub(crate) fn arrived(&self, webhook: usize, payload: &[u8]) -> Verdict {
        let event =
            self.number_in(payload).filter(|event| *event < self.events.len() && webhook < self.fanout);
        let Some(event) = event else {
            self.stray.fetch_add(1, Relaxed);
            return Verdict::Accept;
        };
        let arrival = &self.deliveries[event * self.fanout + webhook];
        let to_fail = self.fail_every > 0 && event.is_multiple_of(self.fail_every);
        if to_fail && !arrival.refused.swap(true, Relaxed) {
            return Verdict::Refuse;
        }
        if arrival.accepted.fetch_add(1, Relaxed) == 0 {
            arrival.first.store(self.now(), Relaxed);
        }
        Verdict::Accept
    }

    fn number_in(&self, payload: &[u8]) -> Option<usize> {
        let mut rest = payload;
        loop {
            let at = rest.iter().position(|byte| *byte == b'~')?;
            rest = &rest[at + 1..];
            let number = rest.strip_prefix(self.run.as_bytes()).and_then(|tail| tail.strip_prefix(b"~"));
            if let Some(digits) = number.and_then(|tail| tail.get(..DIGITS)) {
                return std::str::from_utf8(digits).ok()?.parse().ok();
            }
        }
    }

    /// The first event from `event` on that was acknowledged and is still missing somewhere.
    pub(crate) fn settled_from(&self, event: usize) -> usize {
        (event..self.events.len()).find(|event| self.missing(*event) > 0).unwrap_or(self.events.len())
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

    /// Adds everything up. `late` is called with each arrival's latency in nanoseconds.
    pub(crate) fn sum_up(&self, mut late: impl FnMut(u64)) -> Totals {
        let mut totals = Totals { stray: self.stray.load(Relaxed), ..Totals::default() };
        for (event, sent) in self.events.iter().enumerate() {
            totals.missing += self.missing(event);
            for arrival in self.arrivals_of(event) {
                let first = arrival.first.load(Relaxed);
                totals.refused += u64::from(arrival.refused.load(Relaxed));
                if first > 0 {
                    totals.arrivals += 1;
                    totals.last_arrival = totals.last_arrival.max(first);
                    totals.duplicates += u64::from(arrival.accepted.load(Relaxed) - 1);
                    late(first.saturating_sub(sent.due.load(Relaxed)));
                }
            }
        }
        totals
    }
}

/// The receiver's side of a finished run.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) arrivals: u64,
    pub(crate) last_arrival: u64,
    /// Acknowledged and never arrived.
    pub(crate) missing: usize,
    /// Accepted again after it had been accepted.
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
    pub(crate) stray: u64,
}

fn run_name() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:08x}", since.as_millis() & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(ledger: &Ledger, event: usize) -> Vec<u8> {
        format!(r#"{{"id":"~","data":{{"seq":"{}{event:0DIGITS$}","pad":"xx"}}}}"#, ledger.mark())
            .into_bytes()
    }

    #[test]
    fn counts_losses_only_of_what_was_acknowledged() {
        let ledger = Ledger::new(3, 1, 0);
        ledger.acknowledged(0);
        ledger.acknowledged(1);
        ledger.arrived(0, &payload(&ledger, 1));
        assert_eq!(ledger.settled_from(0), 0);
        let totals = ledger.sum_up(|_| ());
        assert_eq!((totals.arrivals, totals.missing, totals.duplicates), (1, 1, 0));
        ledger.arrived(0, &payload(&ledger, 0));
        assert_eq!(ledger.settled_from(0), 3);
    }

    #[test]
    fn a_refused_first_arrival_is_no_duplicate() {
        let ledger = Ledger::new(2, 2, 2);
        assert_eq!(ledger.arrived(1, &payload(&ledger, 0)), Verdict::Refuse);
        assert_eq!(ledger.arrived(1, &payload(&ledger, 0)), Verdict::Accept);
        assert_eq!(ledger.arrived(1, &payload(&ledger, 1)), Verdict::Accept);
        assert_eq!(ledger.arrived(1, &payload(&ledger, 1)), Verdict::Accept);
        let totals = ledger.sum_up(|_| ());
        assert_eq!((totals.arrivals, totals.refused, totals.duplicates), (2, 1, 1));
    }

    #[test]
    fn strangers_are_counted_apart() {
        let ledger = Ledger::new(1, 1, 0);
        ledger.arrived(0, b"{}");
        ledger.arrived(0, b"~00000000~0000000000");
        ledger.arrived(7, &payload(&ledger, 0));
        let totals = ledger.sum_up(|_| ());
        assert_eq!((totals.arrivals, totals.stray), (0, 3));
    }
}

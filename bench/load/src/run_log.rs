//! The ledgers of a run, one for each stream of events, and the marks by which a request finds its own.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use crate::ledger::{DIGITS, Ledger, Manner, Verdict};

/// Digits of a stream's number in a mark.
const STREAM_DIGITS: usize = 2;

/// What the receiver books in.
pub(crate) struct Books {
    epoch: Instant,
    /// Differs from run to run, so that what an earlier run left in a sender's database is told apart.
    run: String,
    ledgers: RwLock<Vec<Arc<Ledger>>>,
    /// Requests at the receiver that belong to no event of this run.
    stray: AtomicU64,
}

impl Books {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), run: run_name(), ledgers: RwLock::default(), stray: AtomicU64::new(0) }
    }

    /// Begins a stream of `events` events, each of which goes to `fanout` webhooks.
    pub(crate) fn open(&self, events: usize, fanout: usize, manner: Manner) -> Arc<Ledger> {
        let mut ledgers = self.ledgers.write().unwrap_or_else(PoisonError::into_inner);
        let mark = format!("~{}{:0STREAM_DIGITS$}~", self.run, ledgers.len());
        let ledger = Arc::new(Ledger::new(self.epoch, mark, events, fanout, manner));
        ledgers.push(Arc::clone(&ledger));
        ledger
    }

    /// Books a request of the receiver and says how to answer it.
    pub(crate) fn arrived(&self, webhook: usize, payload: &[u8]) -> Verdict {
        let booked = self.place_in(payload).and_then(|(stream, event)| {
            let ledgers = self.ledgers.read().unwrap_or_else(PoisonError::into_inner);
            ledgers.get(stream)?.arrived(event, webhook)
        });
        booked.unwrap_or_else(|| {
            self.stray.fetch_add(1, Relaxed);
            Verdict::Accept
        })
    }

    pub(crate) fn stray(&self) -> u64 {
        self.stray.load(Relaxed)
    }

    /// The stream and the event that a payload's mark names, whatever JSON surrounds it.
    fn place_in(&self, payload: &[u8]) -> Option<(usize, usize)> {
        let mut rest = payload;
        loop {
            let at = rest.iter().position(|byte| *byte == b'~')?;
            rest = &rest[at + 1..];
            if let Some(tail) = rest.strip_prefix(self.run.as_bytes()) {
                let event = tail.get(STREAM_DIGITS + 1..STREAM_DIGITS + 1 + DIGITS)?;
                return Some((number(&tail[..STREAM_DIGITS])?, number(event)?));
            }
        }
    }
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
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
    fn every_stream_has_its_own_ledger() {
        let books = Books::new();
        let (healthy, hanging) = (books.open(2, 1, Manner::Accept), books.open(2, 1, Manner::Hang));
        assert_eq!(books.arrived(0, &payload(&healthy, 1)), Verdict::Accept);
        assert_eq!(books.arrived(0, &payload(&hanging, 0)), Verdict::Hang);
        assert_eq!(healthy.sum_up(.., |_| ()).arrivals, 1);
        assert_eq!(hanging.sum_up(.., |_| ()).arrivals, 1);
        assert_eq!(books.stray(), 0);
    }

    #[test]
    fn strangers_are_counted_apart() {
        let books = Books::new();
        let ledger = books.open(1, 1, Manner::Accept);
        books.arrived(0, b"{}");
        books.arrived(0, b"~0000000000~0000000000");
        books.arrived(0, ledger.mark().as_bytes());
        books.arrived(0, &payload(&ledger, 1));
        books.arrived(7, &payload(&ledger, 0));
        assert_eq!((ledger.sum_up(.., |_| ()).arrivals, books.stray()), (0, 5));
    }
}

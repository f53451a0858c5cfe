//! The ledgers of a run, one per stream of events, and the marks that assign a received request to its ledger.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use crate::ledger::{DIGITS, Ledger, ReceiverBehavior, ResponseAction};

/// Digits of a stream's number in a mark.
const STREAM_DIGITS: usize = 2;

/// All ledgers of a run; the receiver records requests here.
pub(crate) struct RunLog {
    epoch: Instant,
    /// Unique per run, so that events an earlier run left in the sender's database are not counted.
    run: String,
    ledgers: RwLock<Vec<Arc<Ledger>>>,
    /// Requests at the receiver that match no event of this run.
    stray: AtomicU64,
}

impl RunLog {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), run: run_name(), ledgers: RwLock::default(), stray: AtomicU64::new(0) }
    }

    /// Adds a stream of `events` events, each of which goes to `fanout` webhooks.
    pub(crate) fn add_stream(&self, events: usize, fanout: usize, manner: ReceiverBehavior) -> Arc<Ledger> {
        let mut ledgers = self.ledgers.write().unwrap_or_else(PoisonError::into_inner);
        let mark = format!("~{}{:0STREAM_DIGITS$}~", self.run, ledgers.len());
        let ledger = Arc::new(Ledger::new(self.epoch, mark, events, fanout, manner));
        ledgers.push(Arc::clone(&ledger));
        ledger
    }

    /// Records a request at the receiver and returns how to respond.
    pub(crate) fn arrived(&self, webhook: usize, payload: &[u8]) -> ResponseAction {
        let booked = self.position_in(payload).and_then(|(stream, event)| {
            let ledgers = self.ledgers.read().unwrap_or_else(PoisonError::into_inner);
            ledgers.get(stream)?.arrived(event, webhook)
        });
        booked.unwrap_or_else(|| {
            self.stray.fetch_add(1, Relaxed);
            ResponseAction::Accept
        })
    }

    pub(crate) fn stray(&self) -> u64 {
        self.stray.load(Relaxed)
    }

    /// Returns the stream and the event that a payload's mark names, regardless of the surrounding JSON.
    fn position_in(&self, payload: &[u8]) -> Option<(usize, usize)> {
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
    fn each_stream_has_its_own_ledger() {
        let books = RunLog::new();
        let (healthy, hanging) = (
            books.add_stream(2, 1, ReceiverBehavior::Accept),
            books.add_stream(2, 1, ReceiverBehavior::Hang),
        );
        assert_eq!(books.arrived(0, &payload(&healthy, 1)), ResponseAction::Accept);
        assert_eq!(books.arrived(0, &payload(&hanging, 0)), ResponseAction::Hang);
        assert_eq!(healthy.summarize(.., |_| ()).arrivals, 1);
        assert_eq!(hanging.summarize(.., |_| ()).arrivals, 1);
        assert_eq!(books.stray(), 0);
    }

    #[test]
    fn unknown_requests_are_counted_as_stray() {
        let books = RunLog::new();
        let ledger = books.add_stream(1, 1, ReceiverBehavior::Accept);
        books.arrived(0, b"{}");
        books.arrived(0, b"~0000000000~0000000000");
        books.arrived(0, ledger.mark().as_bytes());
        books.arrived(0, &payload(&ledger, 1));
        books.arrived(7, &payload(&ledger, 0));
        assert_eq!((ledger.summarize(.., |_| ()).arrivals, books.stray()), (0, 5));
    }
}

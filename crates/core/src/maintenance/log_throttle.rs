//! Log throttle: writes a few records of a kind, then suppresses further ones for a while and counts them.

use std::time::Duration;

/// Maximum number of records of a kind within [`WINDOW`].
pub const MAX_LINES_PER_WINDOW: u32 = 10;
/// Length of the window; a kind that reached its maximum is suppressed until the window ends.
pub const WINDOW: Duration = Duration::from_secs(10);

/// Throttle of one kind of log record. Times are of a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogThrottle {
    since: Duration,
    written: u32,
    suppressed: u64,
}

impl LogThrottle {
    /// Returns whether a record is written now. A suppressed one is counted.
    pub fn admit(&mut self, now: Duration) -> bool {
        if now >= self.since + WINDOW || self.written == 0 {
            (self.since, self.written) = (now, 0);
        }
        if self.written < MAX_LINES_PER_WINDOW {
            self.written += 1;
            return true;
        }
        self.suppressed += 1;
        false
    }

    /// Returns how many records were suppressed since the last call, or `None` if there were none.
    pub fn take_suppressed(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.suppressed)).filter(|count| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flood_writes_a_few_records_and_a_count() {
        let mut repeats = LogThrottle::default();
        let at = Duration::from_secs;
        let written = (0..1000).filter(|_| repeats.admit(at(5))).count();
        assert_eq!((written, repeats.take_suppressed()), (10, Some(990)));
        assert_eq!(repeats.take_suppressed(), None);
        assert!(!repeats.admit(at(14)) && repeats.admit(at(15)));
        assert_eq!(
            repeats.take_suppressed(),
            Some(1),
            "the suppressed count carries over to the next period"
        );
    }

    proptest! {
        #[test]
        fn every_record_is_written_or_counted_within_the_limit(waits in proptest::collection::vec(0u64..4_000, 1..400)) {
            let (mut repeats, mut now, mut written, mut counted) = (LogThrottle::default(), Duration::ZERO, vec![], 0);
            for wait in &waits {
                now += Duration::from_millis(*wait);
                if repeats.admit(now) { written.push(now); }
                if wait % 7 == 0 { counted += repeats.take_suppressed().unwrap_or_default(); }
            }
            counted += repeats.take_suppressed().unwrap_or_default();
            prop_assert_eq!(written.len() as u64 + counted, waits.len() as u64);
            // Two windows may be adjacent, so any time span of one window's length contains at most twice the maximum.
            for from in &written {
                let within = written.iter().filter(|at| (*from..*from + WINDOW).contains(*at)).count();
                prop_assert!(within <= 2 * MAX_LINES_PER_WINDOW as usize);
            }
        }
    }
}

//! How often the same line is written: a few at once, then none for a while, and how many were left out.

use std::time::Duration;

/// So many lines of a kind are written within [`WINDOW`].
pub const LINES: u32 = 10;
/// How long a kind of line stays away that came too often.
pub const WINDOW: Duration = Duration::from_secs(10);

/// One kind of line. Times are readings of a clock that never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    since: Duration,
    written: u32,
    left_out: u64,
}

impl Repeats {
    /// Whether a line of the kind is written now. If not, it is counted.
    pub fn admit(&mut self, now: Duration) -> bool {
        if now >= self.since + WINDOW || self.written == 0 {
            (self.since, self.written) = (now, 0);
        }
        if self.written < LINES {
            self.written += 1;
            return true;
        }
        self.left_out += 1;
        false
    }

    /// How many were left out since this was last asked, if any.
    pub fn left_out(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.left_out)).filter(|count| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_flood_gives_a_few_lines_and_a_count() {
        let mut repeats = Repeats::default();
        let at = Duration::from_secs;
        let written = (0..1000).filter(|_| repeats.admit(at(5))).count();
        assert_eq!((written, repeats.left_out()), (10, Some(990)));
        assert_eq!(repeats.left_out(), None);
        assert!(!repeats.admit(at(14)) && repeats.admit(at(15)));
        assert_eq!(repeats.left_out(), Some(1), "a new time forgets nothing of the one before");
    }

    proptest! {
        #[test]
        fn every_line_is_written_or_counted_and_never_too_many(waits in proptest::collection::vec(0u64..4_000, 1..400)) {
            let (mut repeats, mut now, mut written, mut counted) = (Repeats::default(), Duration::ZERO, vec![], 0);
            for wait in &waits {
                now += Duration::from_millis(*wait);
                if repeats.admit(now) { written.push(now); }
                if wait % 7 == 0 { counted += repeats.left_out().unwrap_or_default(); }
            }
            counted += repeats.left_out().unwrap_or_default();
            prop_assert_eq!(written.len() as u64 + counted, waits.len() as u64);
            // Two times may meet, so within any length of one there are at most twice as many.
            for from in &written {
                let within = written.iter().filter(|at| (*from..*from + WINDOW).contains(*at)).count();
                prop_assert!(within <= 2 * LINES as usize);
            }
        }
    }
}

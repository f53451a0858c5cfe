//! When to try again what an outage made fail: soon at first, ever more rarely the longer it lasts, never all at
//! once.

use std::time::Duration;

/// Waits between tries at something that is away. Each wait is a fifth longer than the one before, so that one is
/// about a fifth of the time for which it has been away: what was away for a minute is found within ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The first wait.
    pub const FIRST: Duration = Duration::from_millis(500);
    /// No wait is longer.
    pub const LONGEST: Duration = Duration::from_secs(300);
    const GROWTH: f64 = 1.2;

    /// How long to wait after one more failure. `roll` is from 0 up to 1: the wait is cut by up to a half.
    pub fn next(&mut self, roll: f64) -> Duration {
        // Beyond this it is the longest anyway.
        let grown = Self::GROWTH.powi(self.failures.min(1_000).cast_signed());
        self.failures = self.failures.saturating_add(1);
        let wait = (Self::FIRST.as_secs_f64() * grown).min(Self::LONGEST.as_secs_f64());
        Duration::from_secs_f64(wait * (1.0 - roll.clamp(0.0, 1.0) / 2.0))
    }

    /// Whether nothing has failed since it last worked.
    pub fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    /// It works again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn waits_grow_by_a_fifth_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        assert!(backoff.is_fresh());
        let waits: Vec<_> = (0..4).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(waits, [500, 600, 720, 864]);
        assert!(!backoff.is_fresh());
        backoff.reset();
        assert_eq!(backoff.next(0.0), Backoff::FIRST);
    }

    #[test]
    fn what_was_away_for_a_minute_is_found_within_ten_seconds_and_anything_within_five() {
        let (mut backoff, mut away) = (Backoff::default(), Duration::ZERO);
        while away < Duration::from_secs(3600) {
            let wait = backoff.next(0.0);
            assert!(
                away > Duration::from_secs(47) || wait <= Duration::from_secs(10),
                "{wait:?} at {away:?}"
            );
            assert!(wait <= Backoff::FIRST + away.mul_f64(0.2001), "{wait:?} at {away:?}");
            away += wait;
        }
        assert_eq!(backoff.next(0.0), Backoff::LONGEST);
    }

    proptest! {
        #[test]
        fn no_wait_is_longer_than_the_longest_or_shorter_than_half_the_first(
            rolls in proptest::collection::vec(-1.0..2.0f64, 1..2_000),
        ) {
            let mut backoff = Backoff::default();
            for roll in rolls {
                let wait = backoff.next(roll);
                prop_assert!(wait >= Backoff::FIRST / 2 && wait <= Backoff::LONGEST);
            }
        }
    }
}

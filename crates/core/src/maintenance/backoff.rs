//! Backoff for retries of a dependency during an outage: growing delays with jitter, so that nodes do not retry
//! simultaneously.

use std::time::Duration;

/// Delays between attempts to reach an unavailable dependency. Each delay is a fifth longer than the one before, which
/// makes it about a fifth of the outage so far: the end of an outage of one minute is noticed within ten
/// seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutageBackoff {
    failures: u32,
}

impl OutageBackoff {
    /// The first delay.
    pub const INITIAL_DELAY: Duration = Duration::from_millis(500);
    /// Maximum delay.
    pub const MAX_DELAY: Duration = Duration::from_secs(300);
    const GROWTH_FACTOR: f64 = 1.2;

    /// Records a failure and returns the delay before the next attempt. `random` is from 0 up to 1 and shortens the
    /// delay by up to a half.
    pub fn next_delay(&mut self, random: f64) -> Duration {
        // Beyond 1,000 failures the delay is at its maximum anyway.
        let grown = Self::GROWTH_FACTOR.powi(self.failures.min(1_000).cast_signed());
        self.failures = self.failures.saturating_add(1);
        let wait = (Self::INITIAL_DELAY.as_secs_f64() * grown).min(Self::MAX_DELAY.as_secs_f64());
        Duration::from_secs_f64(wait * (1.0 - random.clamp(0.0, 1.0) / 2.0))
    }

    /// Returns whether there was no failure since the last success.
    pub fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    /// Records a success: the next delay is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn delay_grows_by_a_fifth_and_resets_after_success() {
        let mut backoff = OutageBackoff::default();
        assert!(backoff.is_fresh());
        let waits: Vec<_> = (0..4).map(|_| backoff.next_delay(0.0).as_millis()).collect();
        assert_eq!(waits, [500, 600, 720, 864]);
        assert!(!backoff.is_fresh());
        backoff.reset();
        assert_eq!(backoff.next_delay(0.0), OutageBackoff::INITIAL_DELAY);
    }

    #[test]
    fn delay_stays_near_a_fifth_of_the_outage_up_to_the_maximum() {
        let (mut backoff, mut elapsed) = (OutageBackoff::default(), Duration::ZERO);
        while elapsed < Duration::from_secs(3600) {
            let wait = backoff.next_delay(0.0);
            assert!(
                elapsed > Duration::from_secs(47) || wait <= Duration::from_secs(10),
                "{wait:?} at {elapsed:?}"
            );
            assert!(
                wait <= OutageBackoff::INITIAL_DELAY + elapsed.mul_f64(0.2001),
                "{wait:?} at {elapsed:?}"
            );
            elapsed += wait;
        }
        assert_eq!(backoff.next_delay(0.0), OutageBackoff::MAX_DELAY);
    }

    proptest! {
        #[test]
        fn delay_stays_between_half_the_initial_and_the_maximum(
            randoms in proptest::collection::vec(-1.0..2.0f64, 1..2_000),
        ) {
            let mut backoff = OutageBackoff::default();
            for random in randoms {
                let wait = backoff.next_delay(random);
                prop_assert!(wait >= OutageBackoff::INITIAL_DELAY / 2 && wait <= OutageBackoff::MAX_DELAY);
            }
        }
    }
}

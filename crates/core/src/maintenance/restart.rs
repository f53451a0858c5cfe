//! Restarts of a background service that ended unexpectedly.

use std::{collections::VecDeque, time::Duration};

/// Decides when a service is restarted, and when restarting it has not helped.
///
/// ```
/// use std::time::Duration;
/// use redrive_core::maintenance::restart::{RestartDecision, RestartHistory};
///
/// let mut history = RestartHistory::default();
/// let at = Duration::from_secs;
/// assert_eq!(history.on_failure(at(10)), RestartDecision::After(Duration::from_millis(100)));
/// assert_eq!(history.on_failure(at(11)), RestartDecision::After(Duration::from_millis(200)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestartHistory {
    /// Times of the failures within the last `WINDOW`, oldest first.
    recent: VecDeque<Duration>,
}

/// What to do with a service that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartDecision {
    /// Restart it after this delay.
    After(Duration),
    /// It failed too often: restarting it does not help. If it is restarted all the same, then after this delay.
    GiveUp(Duration),
}

impl RestartHistory {
    /// Failures older than this are ignored.
    pub const WINDOW: Duration = Duration::from_secs(60);
    /// Restarts per `WINDOW`; one more failure means that restarting does not help.
    pub const MAX_RESTARTS: usize = 5;
    /// Delay of the first restart. Each further one within `WINDOW` is delayed twice as long.
    pub const INITIAL_DELAY: Duration = Duration::from_millis(100);
    /// Delay of a service that is restarted although restarting has not helped.
    pub const MAX_DELAY: Duration = Duration::from_secs(30);

    /// Records a failure at a monotonic time and decides about the restart.
    pub fn on_failure(&mut self, now: Duration) -> RestartDecision {
        while self.recent.front().is_some_and(|at| now.saturating_sub(*at) >= Self::WINDOW) {
            self.recent.pop_front();
        }
        if self.recent.len() >= Self::MAX_RESTARTS {
            // The oldest entry is not needed: the window stays full until it has passed.
            self.recent.pop_front();
            self.recent.push_back(now);
            return RestartDecision::GiveUp(Self::MAX_DELAY);
        }
        let delay = Self::INITIAL_DELAY * (1 << self.recent.len());
        self.recent.push_back(now);
        RestartDecision::After(delay)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decisions(times_ms: &[u64]) -> Vec<RestartDecision> {
        let mut history = RestartHistory::default();
        times_ms.iter().map(|at| history.on_failure(Duration::from_millis(*at))).collect()
    }

    fn after(ms: u64) -> RestartDecision {
        RestartDecision::After(Duration::from_millis(ms))
    }

    const GIVE_UP: RestartDecision = RestartDecision::GiveUp(RestartHistory::MAX_DELAY);

    #[test]
    fn delays_double_until_the_sixth_failure_within_a_minute() {
        assert_eq!(
            decisions(&[0, 1, 2, 3, 4, 59_999]),
            [after(100), after(200), after(400), after(800), after(1_600), GIVE_UP]
        );
    }

    #[test]
    fn failures_are_ignored_after_a_minute() {
        assert_eq!(decisions(&[0, 60_000, 120_000]), [after(100); 3]);
        assert_eq!(decisions(&[0, 1, 2, 3, 4, 60_000])[5], after(1_600), "the first failure is ignored");
    }

    #[test]
    fn service_that_keeps_failing_is_given_up_each_time() {
        assert_eq!(decisions(&[0, 0, 0, 0, 0, 0, 30_000, 59_999])[5..], [GIVE_UP; 3]);
    }

    proptest! {
        #[test]
        fn no_window_has_more_restarts_than_allowed(gaps in proptest::collection::vec(0u64..40_000, 1..200)) {
            let mut now = 0;
            let times: Vec<u64> = gaps.iter().map(|gap| { now += gap; now }).collect();
            let restarts: Vec<u64> = times
                .iter()
                .zip(decisions(&times))
                .filter(|(_, decision)| matches!(decision, RestartDecision::After(_)))
                .map(|(at, _)| *at)
                .collect();
            for window in restarts.windows(RestartHistory::MAX_RESTARTS + 1) {
                let span = window[RestartHistory::MAX_RESTARTS] - window[0];
                prop_assert!(span >= RestartHistory::WINDOW.as_millis() as u64, "{window:?}");
            }
        }
    }
}

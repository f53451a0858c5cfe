//! Adaptive limit of unsettled retries, such that fresh deliveries are not delayed noticeably.
//!
//! A storm of retries may use only idle slots and still delay other deliveries, through CPU, disk and network.
//! The limit therefore rises while fresh deliveries are sent as fast as without retries, and falls when they are
//! not. Without fresh traffic it rises quickly.

use std::time::Duration;

/// Initial limit.
const INITIAL_LIMIT: f64 = 8.0;
/// Minimum limit, so that retries always make progress.
const MIN_LIMIT: f64 = 4.0;
/// Accepted slowdown of fresh deliveries, as a multiple of the baseline.
const SLOWDOWN_TOLERANCE: f64 = 1.8;
/// Slowdowns below this many milliseconds are ignored.
const NEGLIGIBLE_DELAY_MS: f64 = 0.1;
/// How often the limit is adjusted.
const ADJUST_INTERVAL: Duration = Duration::from_millis(5);
/// Factors by which the limit rises and falls in one step.
const INCREASE_FACTOR: f64 = 1.08;
const DECREASE_FACTOR: f64 = 0.7;
/// Smoothing factor of the baseline.
const BASELINE_SMOOTHING: f64 = 0.02;

/// Adaptive limit of unsettled retries: it rises while fresh deliveries are sent as fast as without retries, and falls
/// when they are not.
#[derive(Clone, Debug)]
pub struct RetryConcurrency {
    limit: f64,
    /// Usual wait of a fresh delivery without retries, in milliseconds.
    baseline_ms: Option<f64>,
    /// Fresh deliveries since the last adjustment, and the slow ones among them.
    samples: u32,
    slow: u32,
    /// Monotonic time of the last adjustment.
    adjusted_at: Duration,
}

impl Default for RetryConcurrency {
    fn default() -> Self {
        Self { limit: INITIAL_LIMIT, baseline_ms: None, samples: 0, slow: 0, adjusted_at: Duration::ZERO }
    }
}

impl RetryConcurrency {
    /// Records that a fresh delivery was sent after `wait`, while `retries` retries were unsettled. `now` must
    /// not go back.
    pub fn on_fresh_sent(&mut self, wait: Duration, retries: usize, now: Duration) {
        let wait = wait.as_secs_f64() * 1000.0;
        let baseline = *self.baseline_ms.get_or_insert(wait);
        if retries == 0 || wait < baseline {
            self.baseline_ms = Some(baseline + (wait - baseline) * BASELINE_SMOOTHING);
        }
        self.samples += 1;
        self.slow += u32::from(wait > baseline * SLOWDOWN_TOLERANCE + NEGLIGIBLE_DELAY_MS);
        self.adjust(now);
    }

    /// Records that a retry was settled; `retries` are still unsettled.
    pub fn on_retry_done(&mut self, retries: usize, now: Duration) {
        if retries == 0 {
            // The next storm starts with the initial limit.
            self.limit = INITIAL_LIMIT;
        }
        self.adjust(now);
    }

    /// Returns how many retries may be unsettled.
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    fn adjust(&mut self, now: Duration) {
        if now.saturating_sub(self.adjusted_at) < ADJUST_INTERVAL {
            return;
        }
        self.limit = match self.slow * 4 > self.samples {
            true => (self.limit * DECREASE_FACTOR).max(MIN_LIMIT),
            false => (self.limit * INCREASE_FACTOR + 1.0).min(1e6),
        };
        (self.samples, self.slow, self.adjusted_at) = (0, 0, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: f64) -> Duration {
        Duration::from_secs_f64(millis / 1000.0)
    }

    /// Returns a limiter with a baseline of one millisecond.
    fn with_baseline() -> RetryConcurrency {
        let mut concurrency = RetryConcurrency::default();
        for at in 1..100 {
            concurrency.on_fresh_sent(millis(1.0), 0, millis(f64::from(at) * 10.0));
        }
        concurrency.on_retry_done(0, millis(1_000.0));
        concurrency
    }

    #[test]
    fn limit_rises_quickly_without_fresh_traffic() {
        let mut concurrency = RetryConcurrency::default();
        for at in 1..50 {
            concurrency.on_retry_done(1, millis(f64::from(at) * 10.0));
        }
        assert!(concurrency.limit() > 500, "{}", concurrency.limit());
    }

    #[test]
    fn limit_falls_while_fresh_deliveries_wait_and_rises_after() {
        let mut concurrency = with_baseline();
        let mut at = 1_000.0;
        let mut live = |concurrency: &mut RetryConcurrency, wait: f64, steps: usize| {
            for _ in 0..steps {
                at += 1.0;
                concurrency.on_fresh_sent(millis(wait), 10, millis(at));
            }
            concurrency.limit()
        };
        let open = live(&mut concurrency, 1.2, 100);
        assert!(open > 50, "{open}");
        let closed = live(&mut concurrency, 5.0, 200);
        assert_eq!(closed, MIN_LIMIT as usize);
        assert!(live(&mut concurrency, 1.2, 200) > open);
    }

    #[test]
    fn storm_does_not_raise_the_baseline() {
        let mut concurrency = with_baseline();
        for at in 0..10_000 {
            concurrency.on_fresh_sent(millis(20.0), 5, millis(1_000.0 + f64::from(at)));
        }
        assert_eq!(
            concurrency.limit(),
            MIN_LIMIT as usize,
            "the delay of a storm must not become the baseline"
        );
    }

    #[test]
    fn each_storm_starts_with_initial_limit() {
        let mut concurrency = RetryConcurrency::default();
        for at in 1..50 {
            concurrency.on_retry_done(1, millis(f64::from(at) * 10.0));
        }
        concurrency.on_retry_done(0, millis(500.0));
        assert!(concurrency.limit() < 12, "{}", concurrency.limit());
    }
}

//! How many retries at once, beside fresh traffic: as many as fresh deliveries do not notice.
//!
//! A storm of retries takes slots that nobody else needs, and still makes everybody wait: for the processor,
//! for the disk, for the network. So the window opens as long as fresh deliveries go out as quickly as they do
//! in calm times, and closes when they do not. Without fresh traffic it opens fast.

use std::time::Duration;

/// The window to begin with.
const START: f64 = 8.0;
/// It never closes further: retries go on, whatever happens.
const LEAST: f64 = 4.0;
/// How much slower than in calm times is still well.
const TOLERANCE: f64 = 1.8;
/// Milliseconds that are nobody's business.
const NEGLIGIBLE: f64 = 0.1;
/// How often the window moves.
const STEP: Duration = Duration::from_millis(5);
/// How much it opens and closes in a step.
const OPEN: f64 = 1.08;
const CLOSE: f64 = 0.7;
/// How fast the idea of calm follows what is seen in calm times.
const LEARN: f64 = 0.02;

/// How many retries may be under way at once.
#[derive(Clone, Debug)]
pub struct Pace {
    window: f64,
    /// What a fresh delivery waits in calm times, in milliseconds.
    calm: Option<f64>,
    /// Fresh deliveries since the last step, and those of them that were slow.
    seen: u32,
    slow: u32,
    stepped: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { window: START, calm: None, seen: 0, slow: 0, stepped: Duration::ZERO }
    }
}

impl Pace {
    /// A fresh delivery was sent after this wait, while so many retries were under way. `now` only ever grows.
    pub fn fresh(&mut self, wait: Duration, retries: usize, now: Duration) {
        let wait = wait.as_secs_f64() * 1000.0;
        let calm = *self.calm.get_or_insert(wait);
        if retries == 0 || wait < calm {
            self.calm = Some(calm + (wait - calm) * LEARN);
        }
        self.seen += 1;
        self.slow += u32::from(wait > calm * TOLERANCE + NEGLIGIBLE);
        self.step(now);
    }

    /// A retry is over; so many are still under way.
    pub fn retried(&mut self, retries: usize, now: Duration) {
        if retries == 0 {
            // The next storm begins gently.
            self.window = START;
        }
        self.step(now);
    }

    /// How many retries may be under way.
    pub fn window(&self) -> usize {
        self.window as usize
    }

    fn step(&mut self, now: Duration) {
        if now.saturating_sub(self.stepped) < STEP {
            return;
        }
        self.window = match self.slow * 4 > self.seen {
            true => (self.window * CLOSE).max(LEAST),
            false => (self.window * OPEN + 1.0).min(1e6),
        };
        (self.seen, self.slow, self.stepped) = (0, 0, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: f64) -> Duration {
        Duration::from_secs_f64(millis / 1000.0)
    }

    /// A pace that has learnt that one millisecond is calm.
    fn calm() -> Pace {
        let mut pace = Pace::default();
        for at in 1..100 {
            pace.fresh(millis(1.0), 0, millis(f64::from(at) * 10.0));
        }
        pace.retried(0, millis(1_000.0));
        pace
    }

    #[test]
    fn without_fresh_traffic_the_window_opens_fast() {
        let mut pace = Pace::default();
        for at in 1..50 {
            pace.retried(1, millis(f64::from(at) * 10.0));
        }
        assert!(pace.window() > 500, "{}", pace.window());
    }

    #[test]
    fn it_closes_while_fresh_ones_wait_and_opens_when_they_do_not() {
        let mut pace = calm();
        let mut at = 1_000.0;
        let mut live = |pace: &mut Pace, wait: f64, steps: usize| {
            for _ in 0..steps {
                at += 1.0;
                pace.fresh(millis(wait), 10, millis(at));
            }
            pace.window()
        };
        let open = live(&mut pace, 1.2, 100);
        assert!(open > 50, "{open}");
        let closed = live(&mut pace, 5.0, 200);
        assert_eq!(closed, LEAST as usize);
        assert!(live(&mut pace, 1.2, 200) > open);
    }

    #[test]
    fn what_storms_do_is_not_taken_for_calm() {
        let mut pace = calm();
        for at in 0..10_000 {
            pace.fresh(millis(20.0), 5, millis(1_000.0 + f64::from(at)));
        }
        assert_eq!(pace.window(), LEAST as usize, "it would open if this were the usual");
    }

    #[test]
    fn each_storm_begins_gently() {
        let mut pace = Pace::default();
        for at in 1..50 {
            pace.retried(1, millis(f64::from(at) * 10.0));
        }
        pace.retried(0, millis(500.0));
        assert!(pace.window() < 12, "{}", pace.window());
    }
}

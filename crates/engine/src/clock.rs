//! The one place that reads a clock or rolls dice. Everything else is told the time and the roll.
//!
//! The time is the wall clock's at the start and advances with a monotonic one from then on (the kind that
//! counts a laptop's sleep), so that setting the wall clock moves no retry.

#![allow(clippy::disallowed_methods, reason = "this is where clocks and dice live")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rand::Rng;
use redrive_core::{Time, id::Randomness};
use tokio::sync::Notify;

/// What time it is. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    System(Anchor),
    Manual(Arc<Manual>),
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    wall_millis: i64,
    ticks: Duration,
    speed: f64,
}

#[derive(Debug)]
struct Manual {
    millis: AtomicI64,
    moved: Notify,
}

impl Clock {
    /// The real time.
    pub fn system() -> Self {
        Self::at_speed(1.0)
    }

    /// A time that begins now and runs `speed` times as fast: three days of retries in a minute.
    pub fn at_speed(speed: f64) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Kind::System(Anchor { wall_millis: wall.as_millis() as i64, ticks: ticks(), speed }))
    }

    /// A time that stands still until it is moved.
    pub fn manual(start: Time) -> Self {
        Self(Kind::Manual(Arc::new(Manual { millis: AtomicI64::new(start.millis()), moved: Notify::new() })))
    }

    /// The time now.
    pub fn now(&self) -> Time {
        match &self.0 {
            Kind::System(anchor) => {
                let passed = (ticks() - anchor.ticks).as_secs_f64() * 1000.0 * anchor.speed;
                Time::from_millis(anchor.wall_millis + passed as i64)
            }
            Kind::Manual(manual) => Time::from_millis(manual.millis.load(Relaxed)),
        }
    }

    /// Moves a manual clock on.
    ///
    /// # Panics
    /// If it is not a manual clock.
    pub fn advance(&self, by: Duration) {
        let Kind::Manual(manual) = &self.0 else { panic!("only a manual clock can be moved") };
        manual.millis.fetch_add(by.as_millis() as i64, Relaxed);
        manual.moved.notify_waiters();
    }

    /// Returns at `at`, or soon after.
    pub async fn sleep_until(&self, at: Time) {
        match &self.0 {
            Kind::System(anchor) => {
                let wait = at.since(self.now()).as_secs_f64() / anchor.speed;
                // Rounded up: waking a moment early would find nothing due.
                tokio::time::sleep(Duration::from_secs_f64(wait) + Duration::from_millis(1)).await;
            }
            Kind::Manual(manual) => loop {
                let moved = manual.moved.notified();
                if self.now() >= at {
                    return;
                }
                moved.await;
            },
        }
    }
}

/// A monotonic reading for measuring how long things take.
pub fn ticks() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(clock);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// The random part of a new id.
pub fn randomness() -> Randomness {
    let mut bytes = Randomness::default();
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// 256 random bits for a secret or a key.
pub fn secret_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// A roll of the dice, uniform in [0, 1).
pub fn roll() -> f64 {
    rand::random()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_whoever_waits() {
        let clock = Clock::manual(Time::from_millis(1_000));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(Time::from_millis(1_500)).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_millis(400));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_millis(100));
        sleeper.await.unwrap();
    }

    #[tokio::test]
    async fn a_fast_clock_runs_ahead() {
        let clock = Clock::at_speed(10_000.0);
        let start = clock.now();
        clock.sleep_until(start + Duration::from_secs(60)).await;
        assert!(clock.now() >= start + Duration::from_secs(60));
    }
}

//! The one place that reads a clock or rolls dice. Everything else is told the time and the roll.
//!
//! The time is the wall clock's at the start and advances with a monotonic one from then on (the kind that
//! counts a laptop's sleep), so that setting the wall clock moves no retry. Nodes that share a store follow the
//! store's clock instead of their own: see [`Clock::anchor`].

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

/// Nanoseconds in a millisecond.
const MILLI: i64 = 1_000_000;

/// What time it is. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    System(Arc<System>),
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct System {
    /// The monotonic reading at the start.
    start: Duration,
    speed: f64,
    /// What time it was at the start, in milliseconds.
    origin: AtomicI64,
    /// The latest time that anybody was told, in milliseconds.
    floor: AtomicI64,
}

impl System {
    /// Milliseconds since the start.
    fn passed(&self) -> i64 {
        ((ticks() - self.start).as_secs_f64() * 1000.0 * self.speed) as i64
    }

    /// What the time would be if nobody had been told a later one.
    fn follow(&self) -> i64 {
        self.origin.load(Relaxed) + self.passed()
    }

    fn nanos(&self) -> i64 {
        let passed = (ticks() - self.start).as_nanos() as f64 * self.speed;
        let time = self.origin.load(Relaxed).saturating_mul(MILLI).saturating_add(passed as i64);
        time.max(self.floor.load(Relaxed).saturating_mul(MILLI))
    }

    fn now(&self) -> i64 {
        let (time, told) = (self.follow(), self.floor.load(Relaxed));
        // Written at most once a millisecond, however often the time is asked.
        if time > told { self.floor.fetch_max(time, Relaxed).max(time) } else { told }
    }
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
        Self::new(speed, 0)
    }

    /// A time that runs `speed` times as fast, on a machine whose wall clock is `skew` milliseconds ahead (or
    /// behind, if negative).
    pub fn new(speed: f64, skew: i64) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(Kind::System(Arc::new(System {
            start: ticks(),
            speed,
            origin: AtomicI64::new(wall.as_millis() as i64 + skew),
            floor: AtomicI64::new(i64::MIN),
        })))
    }

    /// A time that stands still until it is moved.
    pub fn manual(start: Time) -> Self {
        Self(Kind::Manual(Arc::new(Manual { millis: AtomicI64::new(start.millis()), moved: Notify::new() })))
    }

    /// The time now.
    pub fn now(&self) -> Time {
        match &self.0 {
            Kind::System(system) => Time::from_millis(system.now()),
            Kind::Manual(manual) => Time::from_millis(manual.millis.load(Relaxed)),
        }
    }

    /// The time now in nanoseconds since 1970, for measuring; never before what [`Clock::now`] has told.
    pub fn nanos(&self) -> u64 {
        let nanos = match &self.0 {
            Kind::System(system) => system.nanos(),
            Kind::Manual(manual) => manual.millis.load(Relaxed).saturating_mul(MILLI),
        };
        nanos.unsigned_abs()
    }

    /// The store's clock said `time` just now: from now on this clock, and every clone of it, follows that one.
    ///
    /// It is set forward at once, but never back: it stands still until the other has caught up with what
    /// anybody was told. So it is best anchored before anybody has asked it. A manual clock, and one that does
    /// not run at the speed of the real time, go their own way.
    pub fn anchor(&self, time: Time) {
        if let Kind::System(system) = &self.0
            && system.speed == 1.0
        {
            system.origin.store(time.millis() - system.passed(), Relaxed);
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
            Kind::System(system) => loop {
                // While it stands still, what is to come waits for the clock that is followed.
                let from = if self.now() < at { Time::from_millis(system.follow()) } else { at };
                let wait = at.since(from).as_secs_f64() / system.speed;
                // Never for long: the clock may be anchored elsewhere meanwhile. And rounded up: waking a moment
                // early would find nothing due.
                tokio::time::sleep(Duration::from_secs_f64(wait.min(1.0)) + Duration::from_millis(1)).await;
                if self.now() >= at {
                    return;
                }
            },
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

/// The same in hexadecimal digits.
pub fn secret_hex() -> String {
    secret_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A roll of the dice, uniform in [0, 1).
pub fn roll() -> f64 {
    rand::random()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

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

    #[test]
    fn nanoseconds_never_fall_behind_what_was_told() {
        for clock in [Clock::system(), Clock::at_speed(1000.0), Clock::manual(Time::from_millis(1_000))] {
            for _ in 0..10_000 {
                let told = clock.now();
                let (one, other) = (clock.nanos(), clock.nanos());
                assert!(one >= told.millis() as u64 * 1_000_000 && other >= one);
                assert!(one / 1_000_000 <= clock.now().millis() as u64 + 1);
            }
        }
    }

    #[tokio::test]
    async fn a_fast_clock_runs_ahead() {
        let clock = Clock::at_speed(10_000.0);
        let start = clock.now();
        clock.sleep_until(start + Duration::from_secs(60)).await;
        assert!(clock.now() >= start + Duration::from_secs(60));
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn wall() -> Time {
        Time::from_millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64)
    }

    /// Whether two times are the same but for what a busy machine takes.
    fn alike(one: Time, other: Time) -> bool {
        one.since(other).max(other.since(one)) < Duration::from_secs(30)
    }

    #[test]
    fn a_wrong_wall_clock_is_set_right_before_anybody_asked() {
        for skew in [-3_600_000, 0, 3_600_000] {
            assert!(alike(Clock::new(1.0, skew).now(), Time::from_millis(wall().millis() + skew)));
            let clock = Clock::new(1.0, skew);
            clock.anchor(wall());
            assert!(alike(clock.now(), wall()), "{skew}");
        }
    }

    #[test]
    fn it_is_set_forward_at_once_and_for_every_clone() {
        let clock = Clock::system();
        let clone = clock.clone();
        let later = clock.now() + HOUR;
        clock.anchor(later);
        assert!(clone.now() >= later && alike(clone.now(), later));
    }

    #[test]
    fn it_stands_still_rather_than_go_back() {
        let clock = Clock::system();
        let start = clock.now();
        clock.anchor(start + HOUR);
        let told = clock.now();
        clock.anchor(start);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(clock.now(), told);
        clock.anchor(told);
        std::thread::sleep(Duration::from_millis(5));
        assert!(clock.now() > told, "it goes on when the other has caught up");
    }

    #[test]
    fn nobody_sees_it_go_back_however_it_is_anchored() {
        let clock = Clock::system();
        let (start, latest) = (clock.now(), AtomicI64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100_000 {
                        let before = latest.load(SeqCst);
                        let now = clock.now().millis();
                        assert!(now >= before);
                        latest.fetch_max(now, SeqCst);
                    }
                });
            }
            for step in 0..10_000u64 {
                clock.anchor(start + Duration::from_millis(step * 7919 % 1000));
            }
        });
    }

    #[test]
    fn only_a_clock_of_real_time_is_anchored() {
        let manual = Clock::manual(Time::from_millis(1_000));
        manual.anchor(Time::from_millis(5_000));
        assert_eq!(manual.now(), Time::from_millis(1_000));
        let fast = Clock::at_speed(2.0);
        fast.anchor(fast.now() + HOUR);
        assert!(alike(fast.now(), wall()));
    }

    #[tokio::test]
    async fn a_sleeper_wakes_soon_after_the_clock_was_set_forward() {
        let clock = Clock::system();
        let at = clock.now() + HOUR;
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(at).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!sleeper.is_finished());
        clock.anchor(at);
        tokio::time::timeout(Duration::from_secs(30), sleeper).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_sleeper_sleeps_on_while_the_clock_stands_still() {
        let clock = Clock::system();
        let now = clock.now();
        let began = ticks();
        clock.anchor(Time::from_millis(now.millis() - 500));
        clock.sleep_until(now).await;
        assert!(ticks() - began < Duration::from_millis(400), "what was due stays due");
        clock.sleep_until(now + Duration::from_millis(50)).await;
        assert!(clock.now() >= now + Duration::from_millis(50));
        assert!(ticks() - began >= Duration::from_millis(540), "it had to catch up first");
    }
}

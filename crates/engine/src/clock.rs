//! The only module that reads a clock or generates random values. All others get the time and random values passed
//! in.
//!
//! Time advances with a monotonic clock (one that includes the time a laptop sleeps). `core::clock_discipline`
//! decides its offset from readings: of the store's clock if nodes share a store, otherwise of the host's wall
//! clock. [`Clock::now`] is for scheduling; [`Clock::confirmed_now`] must be used for everything that destroys
//! data.

#![allow(
    clippy::disallowed_methods,
    reason = "the only module that reads clocks and generates random values"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::{Mutex, RwLock};
use rand::Rng;
use redrive_core::{
    Time,
    cluster::clock_discipline::{ClockDiscipline, ClockEvent, ClockReading},
    id::RandomBytes,
};
use rustix::time::ClockId;
use tokio::sync::Notify;

/// Nanoseconds in a millisecond.
const NANOS_PER_MILLI: i64 = 1_000_000;

/// Clock. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    System(Arc<System>),
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct System {
    /// Monotonic time at the start.
    start: Duration,
    speed: f64,
    /// Milliseconds added to the host's wall clock.
    skew: i64,
    origins: RwLock<Origins>,
    discipline: Mutex<Option<ClockDiscipline>>,
    /// Number of times that time was set back; wakes sleepers.
    clock_steps: AtomicU64,
}

/// Times at the start of the clock, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Origins {
    scheduling: i64,
    confirmed: i64,
    /// Latest time that was returned before the last small correction: time stands still instead of going back.
    floor: i64,
}

impl System {
    /// Returns the milliseconds since the start.
    fn elapsed_ms(&self) -> i64 {
        (self.passed_nanos() / NANOS_PER_MILLI as f64) as i64
    }

    fn passed_nanos(&self) -> f64 {
        (monotonic_now() - self.start).as_nanos() as f64 * self.speed
    }

    // Reads the monotonic clock under the lock, so that no reader uses an old origin after a correction.
    fn now(&self) -> i64 {
        let origins = self.origins.read();
        (origins.scheduling + self.elapsed_ms()).max(origins.floor)
    }

    fn confirmed_now(&self) -> i64 {
        let origins = self.origins.read();
        origins.confirmed + self.elapsed_ms()
    }

    fn nanos(&self) -> i64 {
        let origins = self.origins.read();
        let time =
            origins.scheduling.saturating_mul(NANOS_PER_MILLI).saturating_add(self.passed_nanos() as i64);
        time.max(origins.floor.saturating_mul(NANOS_PER_MILLI))
    }

    /// Sets the time. It stands still instead of going back, unless `is_step_back`.
    fn set(&self, scheduling: i64, confirmed: i64, is_step_back: bool) {
        let mut origins = self.origins.write();
        let latest = (origins.scheduling + self.elapsed_ms()).max(origins.floor);
        *origins = Origins { scheduling, confirmed, floor: if is_step_back { i64::MIN } else { latest } };
        drop(origins);
        if is_step_back {
            self.clock_steps.fetch_add(1, Relaxed);
        }
    }

    fn apply(&self, discipline: &ClockDiscipline, event: Option<ClockEvent>) {
        let is_step_back = event.is_some_and(|event| event.clock_step.is_some());
        self.set(discipline.scheduling_offset(), discipline.confirmed_offset(), is_step_back);
    }
}

#[derive(Debug)]
struct Manual {
    millis: AtomicI64,
    moved: Notify,
}

impl Clock {
    /// Creates a clock of real time.
    pub fn system() -> Self {
        Self::at_speed(1.0)
    }

    /// Creates a clock that starts now and runs `speed` times as fast: three days of retries in a minute.
    pub fn at_speed(speed: f64) -> Self {
        Self::new(speed, 0)
    }

    /// Creates a clock that runs `speed` times as fast, on a machine whose wall clock is `skew` milliseconds ahead (or
    /// behind, if negative).
    pub fn new(speed: f64, skew: i64) -> Self {
        let origin = wall_millis() + skew;
        let origins = Origins { scheduling: origin, confirmed: origin, floor: i64::MIN };
        Self(Kind::System(Arc::new(System {
            start: monotonic_now(),
            speed,
            skew,
            origins: RwLock::new(origins),
            discipline: Mutex::new(None),
            clock_steps: AtomicU64::new(0),
        })))
    }

    /// Creates a clock that stands still until it is advanced.
    pub fn manual(start: Time) -> Self {
        Self(Kind::Manual(Arc::new(Manual { millis: AtomicI64::new(start.millis()), moved: Notify::new() })))
    }

    /// Returns the current time, for scheduling and timestamps.
    pub fn now(&self) -> Time {
        match &self.0 {
            Kind::System(system) => Time::from_millis(system.now()),
            Kind::Manual(manual) => Time::from_millis(manual.millis.load(Relaxed)),
        }
    }

    /// Returns the time that has certainly been reached, for everything that expires, disables, prunes or deletes. It
    /// lags [`Clock::now`] while a jump of the clock is unconfirmed.
    pub fn confirmed_now(&self) -> Time {
        match &self.0 {
            Kind::System(system) => Time::from_millis(system.confirmed_now().min(system.now())),
            Kind::Manual(_) => self.now(),
        }
    }

    /// Returns the current time in nanoseconds since 1970, for measuring; never earlier than what [`Clock::now`]
    /// returned.
    pub fn nanos(&self) -> u64 {
        let nanos = match &self.0 {
            Kind::System(system) => system.nanos(),
            Kind::Manual(manual) => manual.millis.load(Relaxed).saturating_mul(NANOS_PER_MILLI),
        };
        nanos.unsigned_abs()
    }

    /// Returns the clock that readings discipline: only one of real time. A manual clock and one of another speed
    /// ignore readings.
    fn disciplined(&self) -> Option<&Arc<System>> {
        match &self.0 {
            Kind::System(system) if system.speed == 1.0 => Some(system),
            _ => None,
        }
    }

    /// Returns whether readings of another clock adjust this one.
    pub fn is_disciplined(&self) -> bool {
        self.disciplined().is_some()
    }

    /// Starts following a clock that showed `time` between the monotonic times `sent` and `received`, given the last
    /// heartbeat stored before. Must be called before anything uses the time.
    pub fn begin(
        &self,
        (sent, received): (Duration, Duration),
        time: Time,
        last_heartbeat: Option<Time>,
    ) -> Option<ClockEvent> {
        let system = self.disciplined()?;
        let (discipline, event) =
            ClockDiscipline::start(reading(system, sent, received, time), last_heartbeat);
        system.set(discipline.scheduling_offset(), discipline.confirmed_offset(), true);
        *system.discipline.lock() = Some(discipline);
        event
    }

    /// Applies another reading of the followed clock. Returns what it changed.
    pub fn observe(&self, sent: Duration, received: Duration, time: Time) -> Option<ClockEvent> {
        let system = self.disciplined()?;
        let mut guard = system.discipline.lock();
        let discipline = guard.as_mut()?;
        let event = discipline.observe(reading(system, sent, received, time));
        system.apply(discipline, event);
        event
    }

    /// Confirms the time of the followed clock. Returns what that changed.
    pub fn confirm(&self) -> Option<ClockEvent> {
        let system = self.disciplined()?;
        let mut guard = system.discipline.lock();
        let discipline = guard.as_mut()?;
        let event = discipline.confirm(monotonic_now().saturating_sub(system.start));
        system.apply(discipline, event);
        event
    }

    /// Returns the unconfirmed difference between the followed clock and its prediction, in milliseconds.
    pub fn unconfirmed_jump_ms(&self) -> Option<i64> {
        self.disciplined()?.discipline.lock().as_ref()?.unconfirmed_jump_ms()
    }

    /// Returns the time of the host's wall clock.
    pub fn host_time(&self) -> Time {
        let skew = if let Kind::System(system) = &self.0 { system.skew } else { 0 };
        Time::from_millis(wall_millis() + skew)
    }

    /// Sets a clock that has not been used yet, for a command that reads the store's clock once.
    pub fn set(&self, time: Time) {
        if let Some(system) = self.disciplined() {
            let origin = time.millis() - system.elapsed_ms();
            system.set(origin, origin, true);
        }
    }

    /// Advances a manual clock.
    ///
    /// # Panics
    /// If it is not a manual clock.
    pub fn advance(&self, by: Duration) {
        let Kind::Manual(manual) = &self.0 else { panic!("only a manual clock can be advanced") };
        manual.millis.fetch_add(by.as_millis() as i64, Relaxed);
        manual.moved.notify_waiters();
    }

    /// Waits until `at`. Also returns when time is set back, since `at` may have been computed from the earlier time.
    pub async fn sleep_until(&self, at: Time) {
        match &self.0 {
            Kind::System(system) => {
                let clock_steps = system.clock_steps.load(Relaxed);
                while self.now() < at && system.clock_steps.load(Relaxed) == clock_steps {
                    let wait = at.duration_since(self.now()).as_secs_f64() / system.speed;
                    // Sleeps in short steps, since the clock may be corrected in between, and rounds up, since waking early
                    // would find nothing due.
                    tokio::time::sleep(Duration::from_secs_f64(wait.min(1.0)) + Duration::from_millis(1))
                        .await;
                }
            }
            Kind::Manual(manual) => loop {
                let changed = manual.moved.notified();
                if self.now() >= at {
                    return;
                }
                changed.await;
            },
        }
    }
}

fn wall_millis() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// Creates a reading relative to the clock's start, so that offsets are times at the start.
fn reading(system: &System, sent: Duration, received: Duration, time: Time) -> ClockReading {
    ClockReading::between(sent.saturating_sub(system.start), received.saturating_sub(system.start), time)
}

/// Returns the monotonic time, for measuring durations.
pub fn monotonic_now() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    // On macOS this clock includes sleep, as `Boottime` does on Linux.
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    read_clock(clock)
}

/// Returns the CPU time that this process has used.
pub fn processor_time() -> Duration {
    read_clock(ClockId::ProcessCPUTime)
}

fn read_clock(clock: ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Returns a random `i64`.
pub(crate) fn random_i64() -> i64 {
    let bytes = random_id_bytes();
    bytes.first_chunk().map_or(0, |first| i64::from_le_bytes(*first))
}

/// Returns the random part of a new id.
pub fn random_id_bytes() -> RandomBytes {
    let mut bytes = RandomBytes::default();
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// Returns 256 random bits for a secret or a key.
pub fn secret_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// Returns 256 random bits in hexadecimal digits.
pub fn secret_hex() -> String {
    secret_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a random value, uniform in [0, 1).
pub fn random_unit() -> f64 {
    rand::random()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[tokio::test]
    async fn manual_clock_wakes_sleepers() {
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
    fn nanos_never_lag_now() {
        for clock in [Clock::system(), Clock::at_speed(1000.0), Clock::manual(Time::from_millis(1_000))] {
            for _ in 0..10_000 {
                let reported = clock.now();
                let (one, other) = (clock.nanos(), clock.nanos());
                assert!(one >= reported.millis() as u64 * 1_000_000 && other >= one);
                assert!(one / 1_000_000 <= clock.now().millis() as u64 + 1);
            }
        }
    }

    #[tokio::test]
    async fn fast_clock_runs_ahead() {
        let clock = Clock::at_speed(10_000.0);
        let start = clock.now();
        clock.sleep_until(start + Duration::from_secs(60)).await;
        assert!(clock.now() >= start + Duration::from_secs(60));
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn wall() -> Time {
        Time::from_millis(wall_millis())
    }

    /// Returns whether two times are equal, with tolerance for a busy machine.
    fn alike(one: Time, other: Time) -> bool {
        one.duration_since(other).max(other.duration_since(one)) < Duration::from_secs(30)
    }

    /// Returns a clock that follows a correct one.
    fn following() -> Clock {
        let clock = Clock::system();
        assert_eq!(clock.begin((monotonic_now(), monotonic_now()), wall(), None), None);
        clock
    }

    /// Observes one reading per second, from `since` on, of a clock that is wrong by `error` milliseconds.
    fn read(clock: &Clock, since: Duration, seconds: std::ops::Range<u64>, error: i64) -> Vec<ClockEvent> {
        let right = wall().millis() - (monotonic_now() - since).as_millis() as i64;
        let read = |second: u64| {
            let at = since + Duration::from_secs(second);
            clock.observe(at, at, Time::from_millis(right + second as i64 * 1000 + error))
        };
        seconds.filter_map(read).collect()
    }

    #[test]
    fn wrong_wall_clock_is_replaced_by_the_followed_one() {
        for skew in [-3_600_000, 0, 3_600_000] {
            assert!(alike(Clock::new(1.0, skew).now(), Time::from_millis(wall().millis() + skew)));
            let clock = Clock::new(1.0, skew);
            clock.begin((monotonic_now(), monotonic_now()), wall(), None);
            assert!(alike(clock.now(), wall()) && alike(clock.confirmed_now(), wall()), "{skew}");
            let command = Clock::new(1.0, skew);
            command.set(wall());
            assert!(alike(command.now(), wall()), "{skew}");
        }
    }

    #[test]
    fn jump_is_followed_by_every_clone_and_not_confirmed() {
        let (clock, since) = (following(), monotonic_now());
        let clone = clock.clone();
        read(&clock, since, 1..30, 3_600_000);
        assert!(alike(clone.now(), wall()));
        assert_eq!(read(&clock, since, 30..40, 3_600_000).len(), 1);
        assert!(alike(clone.now(), wall() + HOUR));
        assert!(alike(clone.confirmed_now(), wall()));
        assert!(clone.unconfirmed_jump_ms().is_some_and(|jump| (jump - 3_600_000).abs() < 1000));
        clone.confirm();
        assert!(alike(clock.confirmed_now(), wall() + HOUR) && clock.unconfirmed_jump_ms().is_none());
    }

    #[test]
    fn undone_jump_sets_time_back() {
        let (clock, since) = (following(), monotonic_now());
        read(&clock, since, 1..40, 3_600_000);
        assert!(alike(clock.now(), wall() + HOUR));
        read(&clock, since, 40..43, 0);
        assert!(alike(clock.now(), wall()) && alike(clock.confirmed_now(), wall()));
    }

    #[test]
    fn small_corrections_never_set_time_back() {
        let clock = following();
        let (started, latest) = (monotonic_now(), AtomicI64::new(0));
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
                read(&clock, started, step..step + 1, step as i64 * 7919 % 1000);
            }
        });
    }

    #[test]
    fn only_real_time_clock_follows_another() {
        let manual = Clock::manual(Time::from_millis(1_000));
        manual.begin((monotonic_now(), monotonic_now()), Time::from_millis(5_000), None);
        manual.set(Time::from_millis(5_000));
        assert_eq!(
            (manual.now(), manual.confirmed_now()),
            (Time::from_millis(1_000), Time::from_millis(1_000))
        );
        let fast = Clock::at_speed(2.0);
        fast.begin((monotonic_now(), monotonic_now()), fast.now() + HOUR, None);
        assert!(alike(fast.now(), wall()) && alike(fast.confirmed_now(), fast.now()));
        assert!(!fast.is_disciplined() && !manual.is_disciplined());
    }

    #[tokio::test]
    async fn sleeper_wakes_soon_after_a_jump_was_followed_or_undone() {
        let (clock, since) = (following(), monotonic_now());
        let sleep = |at| {
            let clock = clock.clone();
            tokio::spawn(async move { clock.sleep_until(at).await })
        };
        let sleeper = sleep(clock.now() + HOUR / 2);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!sleeper.is_finished());
        read(&clock, since, 1..40, 3_600_000);
        tokio::time::timeout(Duration::from_secs(30), sleeper).await.unwrap().unwrap();
        // A deadline computed from the wrong time is not waited for.
        let sleeper = sleep(clock.now() + HOUR);
        tokio::time::sleep(Duration::from_millis(20)).await;
        read(&clock, since, 40..43, 0);
        tokio::time::timeout(Duration::from_secs(30), sleeper).await.unwrap().unwrap();
    }
}

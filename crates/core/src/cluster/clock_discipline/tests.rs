use proptest::{collection::vec, prelude::*};

use super::*;

const START: i64 = 1_790_000_000_000;
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

/// A discipline with a monotonic clock and a wall clock that the test controls.
struct Harness {
    discipline: ClockDiscipline,
    at: i64,
    /// Error of the wall clock, in milliseconds.
    error: i64,
    events: Vec<ClockEventKind>,
    clock_steps: Vec<ClockStep>,
}

impl Harness {
    fn new() -> Self {
        let (discipline, event) = ClockDiscipline::start(reading(0, 0, 0), None);
        assert_eq!(event, None);
        Self { discipline, at: 0, error: 0, events: Vec::new(), clock_steps: Vec::new() }
    }

    fn restarted(error: i64, last_heartbeat: i64) -> Self {
        let last = Time::from_millis(START + last_heartbeat);
        let (discipline, event) = ClockDiscipline::start(reading(0, error, 0), Some(last));
        let events = event.iter().map(|event| event.kind).collect();
        Self { discipline, at: 0, error, events, clock_steps: Vec::new() }
    }

    /// Reads the clock once per second, for `seconds` seconds.
    fn run(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.at += 1000;
            let event = self.discipline.observe(reading(self.at, self.error, 10));
            self.events.extend(event.map(|event| event.kind));
            self.clock_steps.extend(event.and_then(|event| event.clock_step));
        }
    }

    /// Returns the errors of scheduling time and confirmed time.
    fn errors(&self) -> (i64, i64) {
        (self.discipline.scheduling_offset() - START, self.discipline.confirmed_offset() - START)
    }
}

fn reading(at: i64, error: i64, round_trip: u64) -> ClockReading {
    ClockReading {
        monotonic: Duration::from_millis(at.unsigned_abs()),
        time: Time::from_millis(START + at + error),
        round_trip: Duration::from_millis(round_trip),
    }
}

use ClockEventKind::{Confirmed, Detected, Followed as Follows, Undone};

#[test]
fn short_jump_changes_nothing() {
    for error in [HOUR, -HOUR, 6 * DAY, -6 * DAY, 140 * DAY, -140 * DAY] {
        let mut harness = Harness::new();
        harness.run(10);
        harness.error = error;
        harness.run(20);
        assert_eq!(harness.errors(), (0, 0));
        assert_eq!(harness.discipline.unconfirmed_jump_ms(), Some(error));
        harness.error = 0;
        harness.run(1);
        assert_eq!(harness.events, [Detected, Undone]);
        assert_eq!((harness.errors(), harness.discipline.unconfirmed_jump_ms()), ((0, 0), None));
        assert_eq!(harness.clock_steps, []);
    }
}

#[test]
fn forward_jump_is_followed_then_confirmed() {
    let mut harness = Harness::new();
    harness.error = 6 * DAY;
    harness.run(30);
    assert_eq!(harness.errors(), (0, 0));
    harness.run(1);
    assert_eq!(harness.errors(), (6 * DAY, 0), "scheduling follows after 30 seconds");
    harness.run(3569);
    assert_eq!(harness.errors(), (6 * DAY, 0));
    harness.run(1);
    assert_eq!(harness.errors(), (6 * DAY, 6 * DAY), "confirmed time follows after one hour");
    assert_eq!(harness.events, [Detected, Follows, Confirmed]);
    assert_eq!(harness.discipline.unconfirmed_jump_ms(), None);
}

#[test]
fn backward_jump_is_not_followed_before_it_is_confirmed() {
    let mut harness = Harness::new();
    harness.error = -6 * DAY;
    harness.run(3600);
    assert_eq!(harness.errors(), (0, 0));
    assert_eq!(harness.discipline.unconfirmed_jump_ms(), Some(-6 * DAY));
    harness.run(1);
    assert_eq!(harness.errors(), (-6 * DAY, -6 * DAY));
    assert_eq!(harness.events, [Detected, Confirmed]);
    let clock_step = harness.clock_steps[0];
    assert_eq!(clock_step.by, Duration::from_millis(6 * DAY.unsigned_abs()));
    let planned = Time::from_millis(START + harness.at + 300_000);
    assert_eq!(clock_step.apply(planned).millis(), START + harness.at + 300_000 - 6 * DAY);
    assert_eq!(clock_step.apply(Time::FAR_FUTURE), Time::FAR_FUTURE);
}

#[test]
fn operator_confirms_a_jump_immediately() {
    for error in [6 * DAY, -6 * DAY] {
        let mut harness = Harness::new();
        harness.error = error;
        harness.run(5);
        let event = harness.discipline.confirm(Duration::from_millis(5000)).unwrap();
        assert_eq!((event.kind, event.jump_ms), (Confirmed, error));
        assert_eq!(harness.errors(), (error, error));
        assert_eq!(
            harness.discipline.confirm(Duration::from_millis(5000)),
            None,
            "nothing is left to confirm"
        );
    }
}

#[test]
fn followed_jump_is_undone_quickly() {
    let mut harness = Harness::new();
    harness.error = 6 * DAY;
    harness.run(600);
    assert_eq!(harness.errors(), (6 * DAY, 0));
    harness.error = 0;
    harness.run(1);
    assert_eq!(harness.errors(), (6 * DAY, 0), "one reading is not enough");
    harness.run(1);
    assert_eq!(harness.errors(), (0, 0));
    assert_eq!(harness.events, [Detected, Follows, Undone]);
    let clock_step = harness.clock_steps[0];
    assert_eq!(clock_step.by, Duration::from_millis(6 * DAY.unsigned_abs()));
    let (wrong, right) = (START + harness.at + 6 * DAY + 60_000, START + harness.at + 60_000);
    assert_eq!(clock_step.apply(Time::from_millis(wrong)), Time::from_millis(right));
    assert_eq!(
        clock_step.apply(Time::from_millis(right)),
        Time::from_millis(right),
        "a time planned by the right clock does not shift"
    );
}

#[test]
fn interrupted_agreement_starts_again() {
    let mut harness = Harness::new();
    for _ in 0..20 {
        harness.error = DAY;
        harness.run(25);
        harness.error = 0;
        harness.run(1);
    }
    harness.error = DAY;
    for step in 0..100 {
        harness.error = DAY + step * 10_000;
        harness.run(20);
    }
    assert_eq!(harness.errors(), (0, 0));
}

#[test]
fn confirmation_restarts_after_predicted_time_was_read() {
    let mut harness = Harness::new();
    harness.error = DAY;
    harness.run(3000);
    harness.error = 0;
    harness.run(1);
    harness.error = DAY;
    harness.run(3000);
    assert_eq!(harness.errors(), (DAY, 0));
    harness.run(700);
    assert_eq!(harness.errors(), (DAY, DAY));
}

#[test]
fn second_jump_replaces_the_first() {
    let mut harness = Harness::new();
    harness.error = 6 * DAY;
    harness.run(60);
    harness.error = HOUR;
    harness.run(30);
    assert_eq!(harness.errors(), (6 * DAY, 0));
    harness.run(1);
    assert_eq!(harness.errors(), (HOUR, 0));
    assert_eq!(harness.clock_steps[0].by, Duration::from_millis((6 * DAY - HOUR).unsigned_abs()));
    harness.error = -HOUR;
    harness.run(31);
    assert_eq!(harness.errors(), (0, 0), "a backward jump ends the forward one and is not followed");
}

#[test]
fn small_difference_is_slewed() {
    let mut harness = Harness::new();
    harness.error = 1000;
    harness.run(10);
    assert_eq!(harness.errors(), (50, 50));
    harness.run(190);
    assert_eq!(harness.errors(), (1000, 1000));
    harness.error = 0;
    harness.run(199);
    assert_eq!(harness.errors(), (5, 5));
    harness.run(1);
    assert_eq!((harness.errors(), harness.events), ((0, 0), vec![]));
}

#[test]
fn slow_reading_is_not_a_jump() {
    let mut discipline = Harness::new().discipline;
    assert_eq!(discipline.observe(reading(10_000, 4000, 8000)), None);
    assert_eq!(discipline.observe(reading(20_000, 4000, 8000)), None);
    assert_eq!((discipline.unconfirmed_jump_ms(), discipline.scheduling_offset()), (None, START));
}

#[test]
fn plausible_clock_at_start_is_confirmed_immediately() {
    for last in [-1000, 0, 59_000, -23 * HOUR] {
        let harness = Harness::restarted(0, last);
        assert_eq!(
            (harness.errors(), harness.discipline.unconfirmed_jump_ms(), harness.events),
            ((0, 0), None, vec![])
        );
    }
}

#[test]
fn clock_far_ahead_at_start_is_followed_but_not_confirmed() {
    let mut harness = Harness::restarted(140 * DAY, -1000);
    assert_eq!((harness.errors(), &harness.events[..]), ((140 * DAY, -1000), &[Detected][..]));
    assert_eq!(harness.discipline.unconfirmed_jump_ms(), Some(140 * DAY + 1000));
    harness.run(3599);
    assert_eq!(harness.errors(), (140 * DAY, -1000));
    harness.run(1);
    assert_eq!(harness.errors(), (140 * DAY, 140 * DAY));
}

#[test]
fn clock_behind_at_start_continues_from_stored_heartbeat() {
    let mut harness = Harness::restarted(-6 * DAY, -1000);
    assert_eq!(harness.errors(), (-1000, -1000));
    harness.run(100);
    assert_eq!(harness.errors(), (-1000, -1000));
    harness.error = 0;
    harness.run(30);
    assert_eq!(harness.errors(), (-1000, -1000));
    harness.run(1);
    assert_eq!(harness.errors(), (0, 0), "a plausible time is confirmed as soon as readings agree");
    assert_eq!(harness.events, [Detected, Detected, Confirmed]);
}

#[test]
fn wrong_start_is_corrected_with_the_clock() {
    let mut harness = Harness::restarted(140 * DAY, -HOUR);
    harness.run(100);
    harness.error = 0;
    harness.run(31);
    assert_eq!(harness.errors(), (0, 0));
    let clock_step = harness.clock_steps[0];
    assert_eq!(clock_step.by, Duration::from_millis(140 * DAY.unsigned_abs()));
    let planned = Time::from_millis(START + 2 * HOUR);
    assert_eq!(clock_step.apply(planned), planned, "a time planned before the start does not shift");
}

/// Generates a clock error and the number of readings that show it.
fn period() -> impl Strategy<Value = (i64, i64)> {
    let error = prop_oneof![
        3 => Just(0i64), 1 => -2000..2000i64, 1 => -200 * DAY..200 * DAY,
        1 => prop::sample::select(vec![HOUR, -HOUR, 6 * DAY, -6 * DAY, 140 * DAY])
    ];
    (error, prop_oneof![1..10i64, 1..100i64, 1..2000i64])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// For arbitrary readings: confirmed time leaves the prediction only by slewing, until a time has held for an
    /// hour.
    #[test]
    fn confirmed_time_does_not_run_ahead(periods in vec(period(), 1..30)) {
        let mut harness = Harness::new();
        for (error, seconds) in periods {
            harness.error = error;
            harness.run(seconds.min(3500));
            let slewed = harness.at / SLEW_RATE_DIVISOR + 1;
            if !harness.events.contains(&Confirmed) {
                prop_assert!(harness.errors().1.abs() <= slewed);
            }
            prop_assert!(harness.errors().1 <= harness.errors().0);
        }
    }

    /// A time is confirmed only if the clock has shown it for an hour.
    #[test]
    fn confirmation_needs_an_hour(periods in vec(period(), 1..30)) {
        let mut harness = Harness::new();
        let mut last = 0;
        for (error, seconds) in periods {
            // No error is shown for two periods in a row, and no period lasts an hour.
            harness.error = if error == last { 0 } else { error };
            last = error;
            harness.run(seconds);
        }
        prop_assert!(!harness.events.contains(&Confirmed));
    }

    /// Except for slewing, scheduling time goes back only when that is reported.
    #[test]
    fn scheduling_time_is_monotone_unless_set_back(periods in vec(period(), 1..30)) {
        let mut harness = Harness::new();
        for (error, seconds) in periods {
            harness.error = error;
            for _ in 0..seconds {
                let (before, step_count) = (harness.errors().0, harness.clock_steps.len());
                harness.run(1);
                let back = before - harness.errors().0;
                if harness.clock_steps.len() == step_count {
                    prop_assert!(back <= 1000 / SLEW_RATE_DIVISOR, "went back by {back}");
                } else {
                    let reported = harness.clock_steps[step_count].by.as_millis() as i64;
                    prop_assert!((reported - back).abs() <= 1000 / SLEW_RATE_DIVISOR);
                }
            }
        }
    }

    /// A correct clock is used again soon after any sequence of unconfirmed jumps.
    #[test]
    fn right_clock_is_used_again(periods in vec(period(), 1..20)) {
        let mut harness = Harness::new();
        for (error, seconds) in periods {
            harness.error = error;
            harness.run(seconds.min(1500));
        }
        prop_assume!(!harness.events.contains(&Confirmed));
        harness.error = 0;
        harness.run(2000);
        prop_assert_eq!(harness.errors(), (0, 0));
        prop_assert_eq!(harness.discipline.unconfirmed_jump_ms(), None);
    }

    #[test]
    fn small_drift_converges(drift in -100..=100i64, seconds in 100..3000i64) {
        // Drift in parts per ten thousand, up to one percent: more than any oscillator.
        let mut harness = Harness::new();
        for second in 0..seconds {
            harness.error = second * drift / 100;
            harness.run(1);
        }
        harness.run(1000);
        let expected = (seconds - 1) * drift / 100;
        prop_assert!((harness.errors().1 - expected).abs() <= 5, "{:?} {expected}", harness.errors());
    }
}

use proptest::{collection::vec, prelude::*};

use super::*;

const START: i64 = 1_790_000_000_000;
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;

/// A discipline with a monotonic clock and a wall clock that the test sets.
struct Bench {
    discipline: ClockDiscipline,
    at: i64,
    /// What the clock is wrong by.
    error: i64,
    events: Vec<ClockEventKind>,
    set_back: Vec<SetBack>,
}

impl Bench {
    fn new() -> Self {
        let (discipline, event) = ClockDiscipline::start(reading(0, 0, 0), None);
        assert_eq!(event, None);
        Self { discipline, at: 0, error: 0, events: Vec::new(), set_back: Vec::new() }
    }

    fn restarted(error: i64, last_heartbeat: i64) -> Self {
        let last = Time::from_millis(START + last_heartbeat);
        let (discipline, event) = ClockDiscipline::start(reading(0, error, 0), Some(last));
        let events = event.iter().map(|event| event.kind).collect();
        Self { discipline, at: 0, error, events, set_back: Vec::new() }
    }

    /// One reading a second, for `seconds` seconds.
    fn run(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.at += 1000;
            let event = self.discipline.observe(reading(self.at, self.error, 10));
            self.events.extend(event.map(|event| event.kind));
            self.set_back.extend(event.and_then(|event| event.set_back));
        }
    }

    /// Scheduling time and confirmed time, each minus the true time.
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

use ClockEventKind::{Confirmed, Followed as Follows, Seen, Undone};

#[test]
fn short_jump_changes_nothing() {
    for error in [HOUR, -HOUR, 6 * DAY, -6 * DAY, 140 * DAY, -140 * DAY] {
        let mut bench = Bench::new();
        bench.run(10);
        bench.error = error;
        bench.run(20);
        assert_eq!(bench.errors(), (0, 0));
        assert_eq!(bench.discipline.unconfirmed_jump_ms(), Some(error));
        bench.error = 0;
        bench.run(1);
        assert_eq!(bench.events, [Seen, Undone]);
        assert_eq!((bench.errors(), bench.discipline.unconfirmed_jump_ms()), ((0, 0), None));
        assert_eq!(bench.set_back, []);
    }
}

#[test]
fn forward_jump_is_followed_then_confirmed() {
    let mut bench = Bench::new();
    bench.error = 6 * DAY;
    bench.run(30);
    assert_eq!(bench.errors(), (0, 0));
    bench.run(1);
    assert_eq!(bench.errors(), (6 * DAY, 0), "scheduling follows after 30 seconds");
    bench.run(3569);
    assert_eq!(bench.errors(), (6 * DAY, 0));
    bench.run(1);
    assert_eq!(bench.errors(), (6 * DAY, 6 * DAY), "everything follows after one hour");
    assert_eq!(bench.events, [Seen, Follows, Confirmed]);
    assert_eq!(bench.discipline.unconfirmed_jump_ms(), None);
}

#[test]
fn backward_jump_is_not_followed_before_it_is_confirmed() {
    let mut bench = Bench::new();
    bench.error = -6 * DAY;
    bench.run(3600);
    assert_eq!(bench.errors(), (0, 0));
    assert_eq!(bench.discipline.unconfirmed_jump_ms(), Some(-6 * DAY));
    bench.run(1);
    assert_eq!(bench.errors(), (-6 * DAY, -6 * DAY));
    assert_eq!(bench.events, [Seen, Confirmed]);
    let set_back = bench.set_back[0];
    assert_eq!(set_back.by, Duration::from_millis(6 * DAY.unsigned_abs()));
    let planned = Time::from_millis(START + bench.at + 300_000);
    assert_eq!(set_back.moved(planned).millis(), START + bench.at + 300_000 - 6 * DAY);
    assert_eq!(set_back.moved(Time::FOREVER), Time::FOREVER);
}

#[test]
fn operator_confirms_a_jump_immediately() {
    for error in [6 * DAY, -6 * DAY] {
        let mut bench = Bench::new();
        bench.error = error;
        bench.run(5);
        let event = bench.discipline.confirm(Duration::from_millis(5000)).unwrap();
        assert_eq!((event.kind, event.jump_ms), (Confirmed, error));
        assert_eq!(bench.errors(), (error, error));
        assert_eq!(bench.discipline.confirm(Duration::from_millis(5000)), None, "nothing is left to confirm");
    }
}

#[test]
fn followed_jump_is_undone_quickly() {
    let mut bench = Bench::new();
    bench.error = 6 * DAY;
    bench.run(600);
    assert_eq!(bench.errors(), (6 * DAY, 0));
    bench.error = 0;
    bench.run(1);
    assert_eq!(bench.errors(), (6 * DAY, 0), "one reading is not enough");
    bench.run(1);
    assert_eq!(bench.errors(), (0, 0));
    assert_eq!(bench.events, [Seen, Follows, Undone]);
    let set_back = bench.set_back[0];
    assert_eq!(set_back.by, Duration::from_millis(6 * DAY.unsigned_abs()));
    let (wrong, right) = (START + bench.at + 6 * DAY + 60_000, START + bench.at + 60_000);
    assert_eq!(set_back.moved(Time::from_millis(wrong)), Time::from_millis(right));
    assert_eq!(
        set_back.moved(Time::from_millis(right)),
        Time::from_millis(right),
        "planned by the right time"
    );
}

#[test]
fn interrupted_agreement_starts_again() {
    let mut bench = Bench::new();
    for _ in 0..20 {
        bench.error = DAY;
        bench.run(25);
        bench.error = 0;
        bench.run(1);
    }
    bench.error = DAY;
    for step in 0..100 {
        bench.error = DAY + step * 10_000;
        bench.run(20);
    }
    assert_eq!(bench.errors(), (0, 0));
}

#[test]
fn hour_begins_again_when_the_predicted_time_was_seen() {
    let mut bench = Bench::new();
    bench.error = DAY;
    bench.run(3000);
    bench.error = 0;
    bench.run(1);
    bench.error = DAY;
    bench.run(3000);
    assert_eq!(bench.errors(), (DAY, 0));
    bench.run(700);
    assert_eq!(bench.errors(), (DAY, DAY));
}

#[test]
fn second_jump_replaces_the_first() {
    let mut bench = Bench::new();
    bench.error = 6 * DAY;
    bench.run(60);
    bench.error = HOUR;
    bench.run(30);
    assert_eq!(bench.errors(), (6 * DAY, 0));
    bench.run(1);
    assert_eq!(bench.errors(), (HOUR, 0));
    assert_eq!(bench.set_back[0].by, Duration::from_millis((6 * DAY - HOUR).unsigned_abs()));
    bench.error = -HOUR;
    bench.run(31);
    assert_eq!(bench.errors(), (0, 0), "a backward jump ends the forward one and is not followed");
}

#[test]
fn small_difference_is_slewed() {
    let mut bench = Bench::new();
    bench.error = 1000;
    bench.run(10);
    assert_eq!(bench.errors(), (50, 50));
    bench.run(190);
    assert_eq!(bench.errors(), (1000, 1000));
    bench.error = 0;
    bench.run(199);
    assert_eq!(bench.errors(), (5, 5));
    bench.run(1);
    assert_eq!((bench.errors(), bench.events), ((0, 0), vec![]));
}

#[test]
fn slow_reading_is_no_jump() {
    let mut discipline = Bench::new().discipline;
    assert_eq!(discipline.observe(reading(10_000, 4000, 8000)), None);
    assert_eq!(discipline.observe(reading(20_000, 4000, 8000)), None);
    assert_eq!((discipline.unconfirmed_jump_ms(), discipline.scheduling_offset()), (None, START));
}

#[test]
fn restart_is_confirmed_immediately() {
    for last in [-1000, 0, 59_000, -23 * HOUR] {
        let bench = Bench::restarted(0, last);
        assert_eq!(
            (bench.errors(), bench.discipline.unconfirmed_jump_ms(), bench.events),
            ((0, 0), None, vec![])
        );
    }
}

#[test]
fn restart_far_ahead_is_scheduled_by_and_not_confirmed() {
    let mut bench = Bench::restarted(140 * DAY, -1000);
    assert_eq!((bench.errors(), &bench.events[..]), ((140 * DAY, -1000), &[Seen][..]));
    assert_eq!(bench.discipline.unconfirmed_jump_ms(), Some(140 * DAY + 1000));
    bench.run(3599);
    assert_eq!(bench.errors(), (140 * DAY, -1000));
    bench.run(1);
    assert_eq!(bench.errors(), (140 * DAY, 140 * DAY));
}

#[test]
fn restart_behind_goes_on_from_the_stored_heartbeat() {
    let mut bench = Bench::restarted(-6 * DAY, -1000);
    assert_eq!(bench.errors(), (-1000, -1000));
    bench.run(100);
    assert_eq!(bench.errors(), (-1000, -1000));
    bench.error = 0;
    bench.run(30);
    assert_eq!(bench.errors(), (-1000, -1000));
    bench.run(1);
    assert_eq!(bench.errors(), (0, 0), "a plausible time is confirmed as soon as readings agree");
    assert_eq!(bench.events, [Seen, Seen, Confirmed]);
}

#[test]
fn wrong_start_is_corrected_when_the_clock_is() {
    let mut bench = Bench::restarted(140 * DAY, -HOUR);
    bench.run(100);
    bench.error = 0;
    bench.run(31);
    assert_eq!(bench.errors(), (0, 0));
    let set_back = bench.set_back[0];
    assert_eq!(set_back.by, Duration::from_millis(140 * DAY.unsigned_abs()));
    let planned = Time::from_millis(START + 2 * HOUR);
    assert_eq!(set_back.moved(planned), planned, "it was planned before the start");
}

/// A time that the clock shows for some readings.
fn period() -> impl Strategy<Value = (i64, i64)> {
    let error = prop_oneof![
        3 => Just(0i64), 1 => -2000..2000i64, 1 => -200 * DAY..200 * DAY,
        1 => prop::sample::select(vec![HOUR, -HOUR, 6 * DAY, -6 * DAY, 140 * DAY])
    ];
    (error, prop_oneof![1..10i64, 1..100i64, 1..2000i64])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever the clock shows: confirmed time leaves the prediction only by slewing, until a time has held for an
    /// hour.
    #[test]
    fn confirmed_time_does_not_run_ahead(periods in vec(period(), 1..30)) {
        let mut bench = Bench::new();
        for (error, seconds) in periods {
            bench.error = error;
            bench.run(seconds.min(3500));
            let slewed = bench.at / SLEW_RATE_DIVISOR + 1;
            if !bench.events.contains(&Confirmed) {
                prop_assert!(bench.errors().1.abs() <= slewed);
            }
            prop_assert!(bench.errors().1 <= bench.errors().0);
        }
    }

    /// No time is confirmed that the clock has not shown for an hour.
    #[test]
    fn confirmation_needs_an_hour(periods in vec(period(), 1..30)) {
        let mut bench = Bench::new();
        let mut last = 0;
        for (error, seconds) in periods {
            // No time is shown for two periods in a row, and no period lasts an hour.
            bench.error = if error == last { 0 } else { error };
            last = error;
            bench.run(seconds);
        }
        prop_assert!(!bench.events.contains(&Confirmed));
    }

    /// Scheduling time goes back only where that is reported, but for slewing.
    #[test]
    fn scheduling_time_is_monotone_unless_set_back(periods in vec(period(), 1..30)) {
        let mut bench = Bench::new();
        for (error, seconds) in periods {
            bench.error = error;
            for _ in 0..seconds {
                let (before, set_back) = (bench.errors().0, bench.set_back.len());
                bench.run(1);
                let back = before - bench.errors().0;
                if bench.set_back.len() == set_back {
                    prop_assert!(back <= 1000 / SLEW_RATE_DIVISOR, "went back by {back}");
                } else {
                    let reported = bench.set_back[set_back].by.as_millis() as i64;
                    prop_assert!((reported - back).abs() <= 1000 / SLEW_RATE_DIVISOR);
                }
            }
        }
    }

    /// A right clock is right again soon, whatever happened before without being confirmed.
    #[test]
    fn right_clock_is_used_again(periods in vec(period(), 1..20)) {
        let mut bench = Bench::new();
        for (error, seconds) in periods {
            bench.error = error;
            bench.run(seconds.min(1500));
        }
        prop_assume!(!bench.events.contains(&Confirmed));
        bench.error = 0;
        bench.run(2000);
        prop_assert_eq!(bench.errors(), (0, 0));
        prop_assert_eq!(bench.discipline.unconfirmed_jump_ms(), None);
    }

    #[test]
    fn small_drift_converges(drift in -100..=100i64, seconds in 100..3000i64) {
        // Parts per ten thousand, up to one percent: more than any oscillator.
        let mut bench = Bench::new();
        for second in 0..seconds {
            bench.error = second * drift / 100;
            bench.run(1);
        }
        bench.run(1000);
        let expected = (seconds - 1) * drift / 100;
        prop_assert!((bench.errors().1 - expected).abs() <= 5, "{:?} {expected}", bench.errors());
    }
}

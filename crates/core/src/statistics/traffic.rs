//! A tenant's traffic over time: what is kept of each minute and hour, and the points that a chart is drawn from.
//!
//! Adding up is the same in any order. Points have no gaps: where nothing happened there is a zero.

use std::time::Duration;

use crate::{
    delivery::response::FailureCategory,
    statistics::rollup::{Latencies, Rollup, worst},
    time::Time,
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How many deliveries ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Delivered.
    pub delivered: u64,
    /// Given up on.
    pub dead: u64,
    /// Called off.
    pub cancelled: u64,
}

impl Ended {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.delivered = self.delivered.saturating_add(other.delivered);
        self.dead = self.dead.saturating_add(other.dead);
        self.cancelled = self.cancelled.saturating_add(other.cancelled);
    }

    /// All of them.
    pub fn all(&self) -> u64 {
        self.delivered.saturating_add(self.dead).saturating_add(self.cancelled)
    }
}

/// What is kept of a tenant's traffic in some span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The attempts, and how they went.
    pub sent: Rollup,
    /// The deliveries that ended.
    pub ended: Ended,
}

impl Traffic {
    /// Adds other traffic.
    pub fn merge(&mut self, other: &Self) {
        self.sent.merge(&other.sent);
        self.ended.add(other.ended);
    }
}

/// How finely traffic is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grain {
    /// By the minute, for a day and an hour.
    Minute,
    /// By the hour, for a month.
    Hour,
}

impl Grain {
    /// Every grain.
    pub const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    /// How long one is.
    pub const fn length(self) -> Duration {
        match self {
            Self::Minute => MINUTE,
            Self::Hour => HOUR,
        }
    }

    /// How long one is kept: a little longer than the longest range that is made of it.
    pub const fn kept(self) -> Duration {
        match self {
            Self::Minute => Duration::from_secs(25 * 3600),
            Self::Hour => Duration::from_secs(31 * 24 * 3600),
        }
    }

    /// When the one began that this time lies in.
    pub fn start(self, at: Time) -> Time {
        floor(at, self.length())
    }

    /// Until when the one is kept that this time lies in.
    pub fn kept_until(self, at: Time) -> Time {
        self.start(at) + self.kept()
    }
}

fn floor(at: Time, step: Duration) -> Time {
    let step = step.as_millis().max(1) as i64;
    Time::from_millis(at.millis() / step * step)
}

/// How far back somebody looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Range {
    /// The last hour, by the minute.
    #[default]
    Hour,
    /// The last six hours, by five minutes.
    SixHours,
    /// The last day, by a quarter of an hour.
    Day,
    /// The last week, by two hours.
    Week,
    /// The last thirty days, by six hours.
    Month,
}

impl Range {
    /// Every range, the shortest first.
    pub const ALL: [Self; 5] = [Self::Hour, Self::SixHours, Self::Day, Self::Week, Self::Month];

    /// The name used everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::SixHours => "6h",
            Self::Day => "24h",
            Self::Week => "7d",
            Self::Month => "30d",
        }
    }

    /// The range of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|range| range.name() == name)
    }

    /// How long it is.
    pub const fn length(self) -> Duration {
        match self {
            Self::Hour => HOUR,
            Self::SixHours => Duration::from_secs(6 * 3600),
            Self::Day => DAY,
            Self::Week => Duration::from_secs(7 * 24 * 3600),
            Self::Month => Duration::from_secs(30 * 24 * 3600),
        }
    }

    /// How long each of its points is.
    pub const fn step(self) -> Duration {
        match self {
            Self::Hour => MINUTE,
            Self::SixHours => Duration::from_secs(5 * 60),
            Self::Day => Duration::from_secs(15 * 60),
            Self::Week => Duration::from_secs(2 * 3600),
            Self::Month => Duration::from_secs(6 * 3600),
        }
    }

    /// What its points are made of.
    pub const fn grain(self) -> Grain {
        match self {
            Self::Hour | Self::SixHours | Self::Day => Grain::Minute,
            Self::Week | Self::Month => Grain::Hour,
        }
    }

    /// Its points, the last of which `now` lies in.
    pub fn axis(self, now: Time) -> Axis {
        let points = self.length().as_secs() / self.step().as_secs();
        Axis::until(now, self.step(), points as usize)
    }
}

/// Points of time that follow one another without a gap, each as long as the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    begin: Time,
    step: Duration,
    points: usize,
}

impl Axis {
    /// So many points, the last of which `now` lies in. They begin at whole steps, so that they stay where they are
    /// while time goes on.
    pub fn until(now: Time, step: Duration, points: usize) -> Self {
        let before = step * u32::try_from(points.saturating_sub(1)).unwrap_or(u32::MAX);
        Self { begin: Time::from_millis(floor(now, step).back(before).millis()), step, points }
    }

    /// When the first begins.
    pub fn begin(&self) -> Time {
        self.begin
    }

    /// How long each is.
    pub fn step(&self) -> Duration {
        self.step
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.points
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.points == 0
    }

    /// When each begins.
    pub fn starts(&self) -> impl Iterator<Item = Time> + use<> {
        let Self { begin, step, points } = *self;
        (0..points).map(move |point| begin + step * u32::try_from(point).unwrap_or(u32::MAX))
    }

    /// Which of them a time lies in.
    pub fn place(&self, at: Time) -> Option<usize> {
        if at < self.begin {
            return None;
        }
        let steps = at.since(self.begin).as_millis() / self.step.as_millis().max(1);
        usize::try_from(steps).ok().filter(|point| *point < self.points)
    }

    /// Adds up what lies in each. What lies before or after all of them is left out.
    pub fn fold<T: Default, K>(
        &self,
        kept: impl IntoIterator<Item = (Time, K)>,
        mut add: impl FnMut(&mut T, K),
    ) -> Vec<T> {
        let mut sums: Vec<T> = std::iter::repeat_with(T::default).take(self.points).collect();
        for (at, one) in kept {
            if let Some(point) = self.place(at) {
                add(&mut sums[point], one);
            }
        }
        sums
    }
}

/// Where "the last hour" and the like begin: with so many minutes, the last of which `now` lies in.
pub fn lately(now: Time, span: Duration) -> Time {
    let minutes = usize::try_from(span.as_secs() / MINUTE.as_secs()).unwrap_or(usize::MAX);
    Axis::until(now, MINUTE, minutes).begin()
}

/// Traffic from some time on, for as long as a step of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// When it begins.
    pub start: Time,
    /// What there was.
    pub traffic: Traffic,
}

/// The points of a range up to now, made of what is kept.
pub fn points(range: Range, now: Time, kept: impl IntoIterator<Item = (Time, Traffic)>) -> Vec<Point> {
    let axis = range.axis(now);
    let sums = axis.fold(kept, |sum: &mut Traffic, one| sum.merge(&one));
    axis.starts().zip(sums).map(|(start, traffic)| Point { start, traffic }).collect()
}

/// All of some traffic together. A month of it may be more than what is kept of an hour can count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Attempts.
    pub attempts: u64,
    /// Those that succeeded.
    pub successes: u64,
    /// In what ways the others failed, in the order of [`FailureCategory::ALL`].
    pub by_category: [u64; FailureCategory::ALL.len()],
    /// How long they took.
    pub latencies: Latencies,
    /// Deliveries that ended.
    pub ended: Ended,
}

impl Totals {
    /// All of these together.
    pub fn of<'a>(traffic: impl IntoIterator<Item = &'a Traffic>) -> Self {
        let mut totals = Self::default();
        traffic.into_iter().for_each(|one| totals.add(one));
        totals
    }

    /// Adds some.
    pub fn add(&mut self, traffic: &Traffic) {
        let sent = &traffic.sent;
        self.attempts = self.attempts.saturating_add(sent.attempts.into());
        self.successes = self.successes.saturating_add(sent.successes.into());
        for (sum, count) in self.by_category.iter_mut().zip(sent.by_category) {
            *sum = sum.saturating_add(count.into());
        }
        self.latencies.merge(&sent.latencies);
        self.ended.add(traffic.ended);
    }

    /// Those that failed.
    pub fn failures(&self) -> u64 {
        self.attempts.saturating_sub(self.successes)
    }

    /// The share that succeeded, from 0 to 1; none without attempts.
    pub fn success_rate(&self) -> Option<f64> {
        (self.attempts > 0).then(|| self.successes as f64 / self.attempts as f64)
    }

    /// In what way most of them failed.
    pub fn worst(&self) -> Option<FailureCategory> {
        worst(&self.by_category)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Time {
        Time::parse(text).unwrap()
    }

    fn traffic(attempts: u32, dead: u64) -> Traffic {
        let sent = Rollup { attempts, ..Rollup::default() };
        Traffic { sent, ended: Ended { dead, ..Ended::default() } }
    }

    #[test]
    fn every_range_has_its_points() {
        let points = Range::ALL.map(|range| (range.name(), range.axis(at("2026-03-01T10:17:42.5Z")).len()));
        assert_eq!(points, [("1h", 60), ("6h", 72), ("24h", 96), ("7d", 84), ("30d", 120)]);
        for range in Range::ALL {
            assert_eq!(Range::parse(range.name()), Some(range));
        }
        assert_eq!(Range::parse("2h"), None);
    }

    #[test]
    fn points_begin_at_whole_steps_and_the_last_is_now() {
        let now = at("2026-03-01T10:17:42.5Z");
        let ends = |range: Range| {
            let starts: Vec<_> = range.axis(now).starts().collect();
            [starts[0].to_string(), starts[starts.len() - 1].to_string()]
        };
        assert_eq!(ends(Range::Hour), ["2026-03-01T09:18:00.000Z", "2026-03-01T10:17:00.000Z"]);
        assert_eq!(ends(Range::SixHours), ["2026-03-01T04:20:00.000Z", "2026-03-01T10:15:00.000Z"]);
        assert_eq!(ends(Range::Day), ["2026-02-28T10:30:00.000Z", "2026-03-01T10:15:00.000Z"]);
        assert_eq!(ends(Range::Week), ["2026-02-22T12:00:00.000Z", "2026-03-01T10:00:00.000Z"]);
        assert_eq!(ends(Range::Month), ["2026-01-30T12:00:00.000Z", "2026-03-01T06:00:00.000Z"]);
    }

    #[test]
    fn gaps_are_filled_and_what_lies_outside_is_left_out() {
        let now = at("2026-03-01T10:17:00Z");
        let kept = [
            ("2026-03-01T04:19:00Z", 1000, 0),
            ("2026-03-01T04:20:00Z", 1, 1),
            ("2026-03-01T04:24:00Z", 2, 0),
            ("2026-03-01T10:14:00Z", 4, 0),
            ("2026-03-01T10:15:00Z", 8, 3),
            ("2026-03-01T10:20:00Z", 1000, 0),
        ];
        let points = points(
            Range::SixHours,
            now,
            kept.map(|(start, attempts, dead)| (at(start), traffic(attempts, dead))),
        );
        let counts: Vec<_> =
            points.iter().map(|point| (point.traffic.sent.attempts, point.traffic.ended.dead)).collect();
        let mut expected = vec![(0, 0); 72];
        (expected[0], expected[70], expected[71]) = ((3, 1), (4, 0), (8, 3));
        assert_eq!(counts, expected);
    }

    #[test]
    fn minutes_and_hours_are_kept_for_as_long_as_they_are_shown() {
        let time = at("2026-03-01T10:17:42Z");
        assert_eq!(Grain::Minute.start(time), at("2026-03-01T10:17:00Z"));
        assert_eq!(Grain::Hour.start(time), at("2026-03-01T10:00:00Z"));
        assert_eq!(Grain::Minute.kept_until(time), at("2026-03-02T11:17:00Z"));
        assert_eq!(Grain::Hour.kept_until(time), at("2026-04-01T10:00:00Z"));
        for range in Range::ALL {
            assert_eq!(range.step().as_secs() % range.grain().length().as_secs(), 0);
            assert!(range.grain().kept() >= range.length() + range.grain().length());
        }
    }

    #[test]
    fn totals_count_further_than_an_hour() {
        let mut one = traffic(u32::MAX, u64::MAX);
        one.sent.successes = u32::MAX - 5;
        one.sent.by_category[FailureCategory::Dns as usize] = 4;
        one.sent.by_category[FailureCategory::Timeout as usize] = 1;
        let totals = Totals::of([&one, &one]);
        assert_eq!((totals.attempts, totals.failures()), (2 * u64::from(u32::MAX), 10));
        assert_eq!((totals.ended.dead, totals.ended.all()), (u64::MAX, u64::MAX));
        assert_eq!(totals.worst(), Some(FailureCategory::Dns));
        assert_eq!((Totals::default().success_rate(), Totals::default().worst()), (None, None));
        assert_eq!(Totals::of([&traffic(4, 0)]).success_rate(), Some(0.0));
    }

    fn any_time() -> impl Strategy<Value = Time> {
        (0..4_000_000_000_000i64).prop_map(Time::from_millis)
    }

    proptest! {
        #[test]
        fn each_time_lies_in_one_point_or_outside(
            now in any_time(), back in -100_000_000..4_000_000_000i64, range in 0..5usize,
        ) {
            let range = Range::ALL[range];
            let axis = range.axis(now);
            let time = Time::from_millis(now.millis() - back);
            let starts: Vec<_> = axis.starts().collect();
            let inside = |start: &Time| *start <= time && time < *start + axis.step();
            prop_assert_eq!(starts.iter().position(inside), axis.place(time));
            prop_assert!(axis.place(now) == Some(axis.len() - 1) || now < axis.begin() + range.length());
            prop_assert!(starts.windows(2).all(|pair| pair[0] + axis.step() == pair[1]));
        }

        #[test]
        fn nothing_is_counted_twice_or_lost(
            now in any_time(),
            kept in proptest::collection::vec((0..3_000_000_000i64, 1..1000u32, 0..9u64), 0..200),
            range in 0..5usize,
        ) {
            let range = Range::ALL[range];
            let begin = range.axis(now).begin();
            let kept: Vec<_> = kept
                .into_iter()
                .map(|(back, attempts, dead)| {
                    (range.grain().start(now.back(Duration::from_millis(back as u64))), traffic(attempts, dead))
                })
                .collect();
            let mut inside = Traffic::default();
            kept.iter().filter(|(start, _)| *start >= begin).for_each(|(_, one)| inside.merge(one));
            let mut backwards = kept.clone();
            backwards.reverse();
            let points = points(range, now, kept);
            prop_assert_eq!(&points, &super::points(range, now, backwards));
            let totals = Totals::of(points.iter().map(|point| &point.traffic));
            prop_assert_eq!(totals, Totals::of([&inside]));
        }
    }
}

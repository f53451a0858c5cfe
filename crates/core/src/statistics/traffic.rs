//! A tenant's traffic over time: the rollups kept per minute and hour, and the points that charts are drawn from.
//!
//! Sums do not depend on the order of addition. Points have no gaps: idle periods are zero.

use std::time::Duration;

use crate::{
    delivery::response::FailureCategory,
    statistics::rollup::{Latencies, Rollup, most_frequent},
    time::Time,
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Counts of ended deliveries by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedCounts {
    /// Delivered.
    pub delivered: u64,
    /// Marked dead.
    pub dead: u64,
    /// Cancelled.
    pub cancelled: u64,
}

impl EndedCounts {
    /// Adds other counts.
    pub fn add(&mut self, other: Self) {
        self.delivered = self.delivered.saturating_add(other.delivered);
        self.dead = self.dead.saturating_add(other.dead);
        self.cancelled = self.cancelled.saturating_add(other.cancelled);
    }

    /// Returns their sum.
    pub fn all(&self) -> u64 {
        self.delivered.saturating_add(self.dead).saturating_add(self.cancelled)
    }
}

/// Rollup of a tenant's traffic in a period of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Attempts and their results.
    pub sent: Rollup,
    /// Ended deliveries.
    pub ended: EndedCounts,
}

impl Traffic {
    /// Adds other traffic.
    pub fn merge(&mut self, other: &Self) {
        self.sent.merge(&other.sent);
        self.ended.add(other.ended);
    }
}

/// Resolution at which traffic is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    /// Per minute, kept for a day and an hour.
    Minute,
    /// Per hour, kept for 31 days.
    Hour,
}

impl Resolution {
    /// Every resolution.
    pub const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    /// Returns the length of one period.
    pub const fn length(self) -> Duration {
        match self {
            Self::Minute => MINUTE,
            Self::Hour => HOUR,
        }
    }

    /// Returns the retention of one period: slightly longer than the longest range computed from it.
    pub const fn retention(self) -> Duration {
        match self {
            Self::Minute => Duration::from_secs(25 * 3600),
            Self::Hour => Duration::from_secs(31 * 24 * 3600),
        }
    }

    /// Returns the start of the period that contains this time.
    pub fn start(self, at: Time) -> Time {
        floor(at, self.length())
    }

    /// Returns the end of the retention of the period that contains this time.
    pub fn expires_at(self, at: Time) -> Time {
        self.start(at) + self.retention()
    }
}

fn floor(at: Time, step: Duration) -> Time {
    let step = step.as_millis().max(1) as i64;
    Time::from_millis(at.millis() / step * step)
}

/// Range of time that a chart covers.
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

    /// Returns the name used in all interfaces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::SixHours => "6h",
            Self::Day => "24h",
            Self::Week => "7d",
            Self::Month => "30d",
        }
    }

    /// Parses the name of a range.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|range| range.name() == name)
    }

    /// Returns the length of the range.
    pub const fn length(self) -> Duration {
        match self {
            Self::Hour => HOUR,
            Self::SixHours => Duration::from_secs(6 * 3600),
            Self::Day => DAY,
            Self::Week => Duration::from_secs(7 * 24 * 3600),
            Self::Month => Duration::from_secs(30 * 24 * 3600),
        }
    }

    /// Returns the length of each point.
    pub const fn step(self) -> Duration {
        match self {
            Self::Hour => MINUTE,
            Self::SixHours => Duration::from_secs(5 * 60),
            Self::Day => Duration::from_secs(15 * 60),
            Self::Week => Duration::from_secs(2 * 3600),
            Self::Month => Duration::from_secs(6 * 3600),
        }
    }

    /// Returns the resolution of the rollups that the points are computed from.
    pub const fn resolution(self) -> Resolution {
        match self {
            Self::Hour | Self::SixHours | Self::Day => Resolution::Minute,
            Self::Week | Self::Month => Resolution::Hour,
        }
    }

    /// Returns the points of the range; the last one contains `now`.
    pub fn axis(self, now: Time) -> TimeBuckets {
        let points = self.length().as_secs() / self.step().as_secs();
        TimeBuckets::until(now, self.step(), points as usize)
    }
}

/// Consecutive time buckets of equal length, without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBuckets {
    begin: Time,
    step: Duration,
    points: usize,
}

impl TimeBuckets {
    /// Creates `points` buckets, the last of which contains `now`. They are aligned to whole steps, so that bucket
    /// boundaries do not move as time passes.
    pub fn until(now: Time, step: Duration, points: usize) -> Self {
        let before = step * u32::try_from(points.saturating_sub(1)).unwrap_or(u32::MAX);
        Self { begin: Time::from_millis(floor(now, step).saturating_sub(before).millis()), step, points }
    }

    /// Returns the start of the first bucket.
    pub fn begin(&self) -> Time {
        self.begin
    }

    /// Returns the length of each bucket.
    pub fn step(&self) -> Duration {
        self.step
    }

    /// Returns the number of buckets.
    pub fn len(&self) -> usize {
        self.points
    }

    /// Returns whether there are no buckets.
    pub fn is_empty(&self) -> bool {
        self.points == 0
    }

    /// Returns the start of each bucket.
    pub fn starts(&self) -> impl Iterator<Item = Time> + use<> {
        let Self { begin, step, points } = *self;
        (0..points).map(move |point| begin + step * u32::try_from(point).unwrap_or(u32::MAX))
    }

    /// Returns the index of the bucket that contains a time, or `None` if it is outside all of them.
    pub fn index_of(&self, at: Time) -> Option<usize> {
        if at < self.begin {
            return None;
        }
        let steps = at.duration_since(self.begin).as_millis() / self.step.as_millis().max(1);
        usize::try_from(steps).ok().filter(|point| *point < self.points)
    }

    /// Sums the values of each bucket. Values outside all buckets are ignored.
    pub fn fold<T: Default, K>(
        &self,
        kept: impl IntoIterator<Item = (Time, K)>,
        mut add: impl FnMut(&mut T, K),
    ) -> Vec<T> {
        let mut sums: Vec<T> = std::iter::repeat_with(T::default).take(self.points).collect();
        for (at, one) in kept {
            if let Some(point) = self.index_of(at) {
                add(&mut sums[point], one);
            }
        }
        sums
    }
}

/// Returns the start of "the last hour" and similar spans: whole minutes, the last of which contains `now`.
pub fn recent_since(now: Time, span: Duration) -> Time {
    let minutes = usize::try_from(span.as_secs() / MINUTE.as_secs()).unwrap_or(usize::MAX);
    TimeBuckets::until(now, MINUTE, minutes).begin()
}

/// Traffic of one bucket of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Start of the bucket.
    pub start: Time,
    /// Traffic in the bucket.
    pub traffic: Traffic,
}

/// Computes the points of a range up to `now` from stored rollups.
pub fn points(range: Range, now: Time, kept: impl IntoIterator<Item = (Time, Traffic)>) -> Vec<Point> {
    let axis = range.axis(now);
    let sums = axis.fold(kept, |sum: &mut Traffic, one| sum.merge(&one));
    axis.starts().zip(sums).map(|(start, traffic)| Point { start, traffic }).collect()
}

/// Sum of several rollups. Counters are wider than those of a rollup, since a month may overflow an hour's
/// counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of attempts.
    pub attempts: u64,
    /// Number of successful attempts.
    pub successes: u64,
    /// Number of failed attempts by category, in the order of [`FailureCategory::ALL`].
    pub by_category: [u64; FailureCategory::ALL.len()],
    /// Latencies of the attempts.
    pub latencies: Latencies,
    /// Ended deliveries.
    pub ended: EndedCounts,
}

impl Totals {
    /// Sums several rollups.
    pub fn from_traffic<'a>(traffic: impl IntoIterator<Item = &'a Traffic>) -> Self {
        let mut totals = Self::default();
        traffic.into_iter().for_each(|one| totals.add(one));
        totals
    }

    /// Adds one rollup.
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

    /// Returns the number of failed attempts.
    pub fn failures(&self) -> u64 {
        self.attempts.saturating_sub(self.successes)
    }

    /// Returns the ratio of successful attempts, from 0 to 1, or `None` without attempts.
    pub fn success_rate(&self) -> Option<f64> {
        (self.attempts > 0).then(|| self.successes as f64 / self.attempts as f64)
    }

    /// Returns the most frequent failure category.
    pub fn most_frequent(&self) -> Option<FailureCategory> {
        most_frequent(&self.by_category)
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
        Traffic { sent, ended: EndedCounts { dead, ..EndedCounts::default() } }
    }

    #[test]
    fn ranges_have_expected_point_counts() {
        let points = Range::ALL.map(|range| (range.name(), range.axis(at("2026-03-01T10:17:42.5Z")).len()));
        assert_eq!(points, [("1h", 60), ("6h", 72), ("24h", 96), ("7d", 84), ("30d", 120)]);
        for range in Range::ALL {
            assert_eq!(Range::parse(range.name()), Some(range));
        }
        assert_eq!(Range::parse("2h"), None);
    }

    #[test]
    fn points_are_aligned_and_last_one_contains_now() {
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
    fn gaps_are_zero_and_values_out_of_range_ignored() {
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
    fn retention_covers_every_range() {
        let time = at("2026-03-01T10:17:42Z");
        assert_eq!(Resolution::Minute.start(time), at("2026-03-01T10:17:00Z"));
        assert_eq!(Resolution::Hour.start(time), at("2026-03-01T10:00:00Z"));
        assert_eq!(Resolution::Minute.expires_at(time), at("2026-03-02T11:17:00Z"));
        assert_eq!(Resolution::Hour.expires_at(time), at("2026-04-01T10:00:00Z"));
        for range in Range::ALL {
            assert_eq!(range.step().as_secs() % range.resolution().length().as_secs(), 0);
            assert!(range.resolution().retention() >= range.length() + range.resolution().length());
        }
    }

    #[test]
    fn totals_do_not_overflow_rollup_counters() {
        let mut one = traffic(u32::MAX, u64::MAX);
        one.sent.successes = u32::MAX - 5;
        one.sent.by_category[FailureCategory::Dns as usize] = 4;
        one.sent.by_category[FailureCategory::Timeout as usize] = 1;
        let totals = Totals::from_traffic([&one, &one]);
        assert_eq!((totals.attempts, totals.failures()), (2 * u64::from(u32::MAX), 10));
        assert_eq!((totals.ended.dead, totals.ended.all()), (u64::MAX, u64::MAX));
        assert_eq!(totals.most_frequent(), Some(FailureCategory::Dns));
        assert_eq!((Totals::default().success_rate(), Totals::default().most_frequent()), (None, None));
        assert_eq!(Totals::from_traffic([&traffic(4, 0)]).success_rate(), Some(0.0));
    }

    fn any_time() -> impl Strategy<Value = Time> {
        (0..4_000_000_000_000i64).prop_map(Time::from_millis)
    }

    proptest! {
        #[test]
        fn time_falls_in_at_most_one_point(
            now in any_time(), back in -100_000_000..4_000_000_000i64, range in 0..5usize,
        ) {
            let range = Range::ALL[range];
            let axis = range.axis(now);
            let time = Time::from_millis(now.millis() - back);
            let starts: Vec<_> = axis.starts().collect();
            let inside = |start: &Time| *start <= time && time < *start + axis.step();
            prop_assert_eq!(starts.iter().position(inside), axis.index_of(time));
            prop_assert!(axis.index_of(now) == Some(axis.len() - 1) || now < axis.begin() + range.length());
            prop_assert!(starts.windows(2).all(|pair| pair[0] + axis.step() == pair[1]));
        }

        #[test]
        fn points_sum_to_traffic_in_range(
            now in any_time(),
            kept in proptest::collection::vec((0..3_000_000_000i64, 1..1000u32, 0..9u64), 0..200),
            range in 0..5usize,
        ) {
            let range = Range::ALL[range];
            let begin = range.axis(now).begin();
            let kept: Vec<_> = kept
                .into_iter()
                .map(|(back, attempts, dead)| {
                    (range.resolution().start(now.saturating_sub(Duration::from_millis(back as u64))), traffic(attempts, dead))
                })
                .collect();
            let mut inside = Traffic::default();
            kept.iter().filter(|(start, _)| *start >= begin).for_each(|(_, one)| inside.merge(one));
            let mut backwards = kept.clone();
            backwards.reverse();
            let points = points(range, now, kept);
            prop_assert_eq!(&points, &super::points(range, now, backwards));
            let totals = Totals::from_traffic(points.iter().map(|point| &point.traffic));
            prop_assert_eq!(totals, Totals::from_traffic([&inside]));
        }
    }
}

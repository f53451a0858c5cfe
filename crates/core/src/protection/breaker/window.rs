//! Rolling window of recent calls, kept as a ring of small counters.

use std::time::Duration;

use super::Counts;
use crate::{cluster::clock_discipline::ClockStep, delivery::response::FailureCategory, time::Time};

/// Number of buckets of a window, which is exact to the length of one bucket.
const BUCKET_COUNT: usize = 10;

/// Calls in one bucket of the window.
#[derive(Clone, Copy, Debug, Default)]
struct WindowBucket {
    total: u32,
    failed: u32,
    /// Saturates: at such counts, more failures of a category make no difference.
    by_category: [u16; FailureCategory::ALL.len()],
}

/// Rolling window of calls. Small, since every busy webhook has one.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// When the newest bucket begins.
    start: Time,
    /// Length of a bucket in milliseconds.
    width: u32,
    /// Newest first.
    parts: [WindowBucket; BUCKET_COUNT],
}

impl Window {
    /// Returns an empty window that begins now.
    pub(super) fn new(length: Duration, now: Time) -> Self {
        Self { start: now, width: width(length), parts: Default::default() }
    }

    /// Counts a call; `failure` is `None` if it succeeded.
    pub(super) fn add(&mut self, length: Duration, now: Time, failure: Option<FailureCategory>) {
        self.advance(length, now);
        let part = &mut self.parts[0];
        part.total = part.total.saturating_add(1);
        if let Some(category) = failure {
            part.failed = part.failed.saturating_add(1);
            let count = &mut part.by_category[category as usize];
            *count = count.saturating_add(1);
        }
    }

    /// Returns the counts of the calls within `length` before now. Never includes older calls.
    pub(super) fn counts(&self, length: Duration, now: Time) -> Counts {
        let mut counts = Counts::default();
        for (index, part) in self.parts.iter().enumerate() {
            if u128::from(self.age(index, now)) >= length.as_millis() {
                break;
            }
            counts.total = counts.total.saturating_add(part.total);
            counts.failed = counts.failed.saturating_add(part.failed);
            for (sum, count) in counts.by_category.iter_mut().zip(part.by_category) {
                *sum = sum.saturating_add(count.into());
            }
        }
        counts
    }

    /// Shifts the window after the clock was set back.
    pub(super) fn adjust_for_clock_step(&mut self, clock_step: &ClockStep) {
        self.start = clock_step.apply(self.start);
    }

    /// Returns the length of the window.
    pub(super) fn length(&self) -> Duration {
        Duration::from_millis(u64::from(self.width) * BUCKET_COUNT as u64)
    }

    /// Returns how long ago the bucket began, in milliseconds.
    fn age(&self, index: usize, now: Time) -> u64 {
        let newest = u64::try_from(now.millis() - self.start.millis()).unwrap_or(0);
        newest + index as u64 * u64::from(self.width)
    }

    /// Advances the ring so that the newest bucket contains `now`.
    fn advance(&mut self, length: Duration, now: Time) {
        if self.width != width(length) {
            *self = self.resized(length, now);
        }
        if self.counts(length, now).total == 0 {
            // Buckets start at the first call, so that this call leaves the window exactly when it is due.
            *self = Self::new(length, now);
            return;
        }
        let steps = self.age(0, now) / u64::from(self.width);
        let steps = usize::try_from(steps).unwrap_or(BUCKET_COUNT).min(BUCKET_COUNT);
        self.parts.rotate_right(steps);
        self.parts[..steps].fill(WindowBucket::default());
        self.start = self.start + Duration::from_millis(steps as u64 * u64::from(self.width));
    }

    /// Returns the same calls in buckets of another length; no call becomes younger.
    fn resized(&self, length: Duration, now: Time) -> Self {
        let mut resized = Self::new(length, now);
        for (index, part) in self.parts.iter().enumerate() {
            let position = self.age(index, now).div_ceil(u64::from(resized.width));
            let Some(new) = resized.parts.get_mut(usize::try_from(position).unwrap_or(BUCKET_COUNT)) else {
                break;
            };
            new.total = new.total.saturating_add(part.total);
            new.failed = new.failed.saturating_add(part.failed);
            for (sum, count) in new.by_category.iter_mut().zip(part.by_category) {
                *sum = sum.saturating_add(count);
            }
        }
        resized
    }
}

fn width(length: Duration) -> u32 {
    u32::try_from(length.as_millis() / BUCKET_COUNT as u128).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(millis: u64) -> Time {
        Time::from_secs(1_700_000_000) + Duration::from_millis(millis)
    }

    fn total(window: &Window, length: Duration, millis: u64) -> u32 {
        window.counts(length, at(millis)).total
    }

    #[test]
    fn window_size_is_bounded() {
        assert!(size_of::<Window>() <= 300, "{}", size_of::<Window>());
    }

    #[test]
    fn first_call_leaves_window_exactly_on_time() {
        let mut window = Window::new(MINUTE, at(0));
        for millis in [3_141, 3_141, 20_000, 63_140] {
            window.add(MINUTE, at(millis), None);
        }
        assert_eq!(total(&window, MINUTE, 63_140), 4);
        assert_eq!(total(&window, MINUTE, 63_141), 2);
        assert_eq!(total(&window, MINUTE, 79_999), 1, "at most one bucket early, never late");
        window.add(MINUTE, at(150_000), Some(FailureCategory::Dns));
        let counts = window.counts(MINUTE, at(209_999));
        assert_eq!((counts.total, counts.failed, counts.most_frequent()), (1, 1, Some(FailureCategory::Dns)));
        assert_eq!(window.counts(MINUTE, at(210_000)), Counts::default());
    }

    #[test]
    fn resized_window_keeps_calls_that_still_count() {
        let (short, long) = (Duration::from_secs(10), Duration::from_secs(600));
        let mut window = Window::new(MINUTE, at(0));
        for second in 0..60 {
            window.add(MINUTE, at(second * 1000), Some(FailureCategory::Tls));
        }
        let mut longer = window.clone();
        longer.add(long, at(60_000), None);
        assert_eq!((total(&longer, long, 60_000), total(&longer, long, 500_000)), (61, 61));
        assert_eq!(longer.counts(long, at(60_000)).failed, 60);
        window.add(short, at(60_000), None);
        assert!((1..=11).contains(&total(&window, short, 60_000)));
        assert_eq!(total(&window, short, 70_000), 0);
    }

    proptest! {
        #[test]
        fn window_is_exact_to_one_bucket(
            steps in proptest::collection::vec((0..30_000u64, any::<bool>()), 1..100), length in 1_000..120_000u64,
        ) {
            let length_ms = length;
            let length = Duration::from_millis(length);
            let (mut window, mut now, mut calls) = (Window::new(length, at(0)), 0, Vec::new());
            for (step, failed) in steps {
                now += step;
                window.add(length, at(now), failed.then_some(FailureCategory::Timeout));
                calls.push((now, failed));
                let within = |age: u64| calls.iter().filter(move |(then, _)| now - then < age);
                let counts = window.counts(length, at(now));
                prop_assert!(counts.total as usize <= within(length_ms).count());
                prop_assert!(counts.failed as usize <= within(length_ms).filter(|(_, failed)| *failed).count());
                let certain_ms = length_ms - length_ms.div_ceil(BUCKET_COUNT as u64) - BUCKET_COUNT as u64;
                prop_assert!(counts.total as usize >= within(certain_ms).count());
                prop_assert_eq!(counts.failed, counts.by_category.iter().sum::<u32>());
            }
        }
    }
}

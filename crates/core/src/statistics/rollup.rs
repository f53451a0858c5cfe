//! Rollups of an endpoint's attempts: per-minute counters, added up to hours and days.
//!
//! Merging is commutative and associative, so rollups of several nodes and minutes can be merged in any order.

use crate::{delivery::response::FailureCategory, time::Time};

/// Counts per failure category, in the order of [`FailureCategory::ALL`].
pub type ByCategory = [u32; FailureCategory::ALL.len()];

/// Number of buckets of a histogram. The bound of each is 1.5 times that of the one before.
const BUCKET_COUNT: usize = 30;

/// Upper bounds of all buckets but the last in microseconds, from 1 ms to 85 s. The last bucket is unbounded.
/// The stored form depends on these bounds: changing them requires a new format.
const BUCKET_BOUNDS_US: [u64; BUCKET_COUNT - 1] = {
    let mut bounds = [1000; BUCKET_COUNT - 1];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] * 3 / 2;
        index += 1;
    }
    bounds
};

/// Histogram of the durations of attempts, exact to a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies([u32; BUCKET_COUNT]);

impl Latencies {
    /// Counts an attempt that took `micros` microseconds.
    pub fn add(&mut self, micros: u64) {
        let count = &mut self.0[bucket_of(micros)];
        *count = count.saturating_add(1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        merge(&mut self.0, &other.0);
    }

    /// Returns the number of attempts.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }

    /// Returns the duration within which `percent` percent of the attempts ended, in milliseconds, or `None` without
    /// attempts.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let count = self.count();
        let rank = (percent.clamp(0.0, 100.0) / 100.0 * count as f64).ceil().max(1.0);
        let mut below = 0.0;
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = f64::from(*count);
            if below + count >= rank {
                let (start, end) = span_of(bucket);
                return Some(start + (end - start) * (rank - below) / count);
            }
            below += count;
        }
        None
    }

    /// Returns a compact encoding, empty if there are no attempts.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(&self.0)
    }

    /// Decodes a histogram. Returns `None` if the bytes are invalid.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        from_bytes(bytes).map(Self)
    }
}

fn bucket_of(micros: u64) -> usize {
    BUCKET_BOUNDS_US.partition_point(|bound| *bound < micros)
}

/// Returns the bounds of a bucket in milliseconds. The last bucket is treated as if it ended like the others.
fn span_of(bucket: usize) -> (f64, f64) {
    let start = bucket.checked_sub(1).map_or(0.0, |before| BUCKET_BOUNDS_US[before] as f64);
    let end = BUCKET_BOUNDS_US.get(bucket).map_or(start * 1.5, |bound| *bound as f64);
    (start / 1000.0, end / 1000.0)
}

/// Counters of the attempts in a time span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Number of attempts.
    pub attempts: u32,
    /// Number of successful attempts.
    pub successes: u32,
    /// Failed attempts by category, in the order of [`FailureCategory::ALL`].
    pub by_category: ByCategory,
    /// Durations of all attempts, including failed ones.
    pub latencies: Latencies,
    /// Time of the last success.
    pub last_success_at: Option<Time>,
}

impl Rollup {
    /// Counts an attempt that ended at this time; `category` is `None` for a success.
    pub fn add(&mut self, duration_micros: u64, category: Option<FailureCategory>, at: Time) {
        self.attempts = self.attempts.saturating_add(1);
        self.latencies.add(duration_micros);
        match category {
            Some(category) => {
                let count = &mut self.by_category[category as usize];
                *count = count.saturating_add(1);
            }
            None => {
                self.successes = self.successes.saturating_add(1);
                self.last_success_at = self.last_success_at.max(Some(at));
            }
        }
    }

    /// Adds the counters of another rollup.
    pub fn merge(&mut self, other: &Self) {
        self.attempts = self.attempts.saturating_add(other.attempts);
        self.successes = self.successes.saturating_add(other.successes);
        merge(&mut self.by_category, &other.by_category);
        self.latencies.merge(&other.latencies);
        self.last_success_at = self.last_success_at.max(other.last_success_at);
    }

    /// Returns the share of successful attempts, from 0 to 1, or `None` without attempts.
    pub fn success_rate(&self) -> Option<f64> {
        (self.attempts > 0).then(|| f64::from(self.successes) / f64::from(self.attempts))
    }

    /// Returns the number of failed attempts.
    pub fn failures(&self) -> u32 {
        self.attempts.saturating_sub(self.successes)
    }

    /// Returns the most frequent failure category.
    pub fn most_frequent(&self) -> Option<FailureCategory> {
        most_frequent(&self.by_category)
    }
}

/// Returns the category with the highest count, or `None` if all are zero.
pub fn most_frequent<N: Copy + Default + Ord>(
    by_category: &[N; FailureCategory::ALL.len()],
) -> Option<FailureCategory> {
    let counts = FailureCategory::ALL.into_iter().zip(by_category);
    let worst = counts.rev().max_by_key(|(_, count)| **count);
    worst.filter(|(_, count)| **count > N::default()).map(|(category, _)| category)
}

/// Returns a compact encoding of counts by category, empty if all are zero.
pub fn categories_to_bytes(by_category: &ByCategory) -> Vec<u8> {
    to_bytes(by_category)
}

/// Decodes counts by category. Returns `None` if the bytes are invalid.
pub fn categories_from_bytes(bytes: &[u8]) -> Option<ByCategory> {
    from_bytes(bytes)
}

fn merge(counts: &mut [u32], others: &[u32]) {
    for (count, other) in counts.iter_mut().zip(others) {
        *count = count.saturating_add(*other);
    }
}

/// Encodes the index of the first non-zero count, then each count up to the last non-zero one as a varint: seven
/// bits per byte, lowest first, the top bit set on all but the last byte.
fn to_bytes(counts: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Some(first) = counts.iter().position(|count| *count > 0) else { return bytes };
    let end = counts.iter().rposition(|count| *count > 0).map_or(counts.len(), |last| last + 1);
    bytes.push(first as u8);
    for count in &counts[first..end] {
        let mut rest = *count;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    bytes
}

fn from_bytes<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let mut counts = [0; N];
    let Some((first, mut rest)) = bytes.split_first() else { return Some(counts) };
    let mut index = usize::from(*first);
    while !rest.is_empty() {
        // Five bytes hold any `u32`.
        let last = rest.iter().take(5).position(|byte| *byte < 0x80)?;
        let (number, after) = rest.split_at(last + 1);
        let value = number.iter().rev().fold(0u64, |value, byte| value << 7 | u64::from(byte & 0x7f));
        *counts.get_mut(index)? = u32::try_from(value).ok()?;
        (index, rest) = (index + 1, after);
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const AT: Time = Time::from_secs(1_700_000_000);

    fn build_latencies(micros: &[u64]) -> Latencies {
        let mut latencies = Latencies::default();
        micros.iter().for_each(|micros| latencies.add(*micros));
        latencies
    }

    #[test]
    fn buckets_range_from_one_millisecond_to_over_a_minute() {
        assert_eq!(
            (BUCKET_BOUNDS_US[0], BUCKET_BOUNDS_US[1], BUCKET_BOUNDS_US[2], BUCKET_BOUNDS_US[3]),
            (1000, 1500, 2250, 3375)
        );
        assert!(
            (85_000_000..86_000_000).contains(&BUCKET_BOUNDS_US[BUCKET_COUNT - 2]),
            "{}",
            BUCKET_BOUNDS_US[BUCKET_COUNT - 2]
        );
        let buckets = [0, 1, 1000, 1001, 1500, 1501, u64::MAX].map(bucket_of);
        assert_eq!(buckets, [0, 0, 0, 1, 1, 2, BUCKET_COUNT - 1]);
    }

    #[test]
    fn percentiles_are_in_the_right_bucket() {
        assert_eq!(Latencies::default().percentile(50.0), None);
        let mut latencies = build_latencies(&[900; 99]);
        latencies.add(2_000_000);
        assert_eq!(latencies.percentile(99.0), Some(1.0));
        assert!((latencies.percentile(50.0).unwrap() - 50.0 / 99.0).abs() < 1e-9);
        let slowest = latencies.percentile(100.0).unwrap();
        assert_eq!(bucket_of((slowest * 1000.0) as u64), bucket_of(2_000_000));
        assert_eq!(latencies.percentile(250.0), Some(slowest));
        assert!(latencies.percentile(f64::NAN).is_some());
        let endless = build_latencies(&[u64::MAX]).percentile(50.0).unwrap();
        assert!((127_000.0..129_000.0).contains(&endless), "{endless}");
    }

    #[test]
    fn encoding_of_few_attempts_is_small() {
        assert!(Latencies::default().to_bytes().is_empty());
        assert_eq!(Latencies::from_bytes(&[]), Some(Latencies::default()));
        assert_eq!(build_latencies(&[500]).to_bytes(), [0, 1]);
        assert_eq!(build_latencies(&[1200; 300]).to_bytes(), [1, 0xac, 0x02]);
        assert_eq!(build_latencies(&[u64::MAX; 2]).to_bytes(), [29, 2]);
        let max = [u32::MAX; 10];
        assert_eq!(categories_from_bytes(&categories_to_bytes(&max)), Some(max));
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        let endless = [0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01];
        let too_large = [0, 0xff, 0xff, 0xff, 0xff, 0x1f];
        for bad in [&[0, 0x80][..], &[30, 1], &[29, 1, 1], &[255, 1], &endless, &too_large] {
            assert_eq!(Latencies::from_bytes(bad), None, "{bad:?}");
        }
        assert_eq!(categories_from_bytes(&[10, 1]), None);
    }

    #[test]
    fn rollup_counts_each_attempt_once() {
        let mut rollup = Rollup::default();
        assert_eq!(rollup.success_rate(), None);
        rollup.add(1500, None, AT);
        rollup.add(700, None, Time::from_secs(5));
        rollup.add(30_000_000, Some(FailureCategory::Timeout), AT + Duration::from_secs(9));
        rollup.add(800, Some(FailureCategory::RateLimit), AT);
        assert_eq!((rollup.attempts, rollup.successes, rollup.success_rate()), (4, 2, Some(0.5)));
        assert_eq!(rollup.last_success_at, Some(AT), "the latest success, in any order of arrival");
        assert_eq!(rollup.by_category, [1, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(
            (rollup.failures(), rollup.most_frequent()),
            (2, Some(FailureCategory::Timeout)),
            "the first of several equal counts"
        );
        assert_eq!((Rollup::default().failures(), Rollup::default().most_frequent()), (0, None));
        assert_eq!(rollup.latencies.count(), 4);
    }

    #[test]
    fn category_index_matches_its_position() {
        for (index, category) in FailureCategory::ALL.into_iter().enumerate() {
            assert_eq!(category as usize, index);
        }
    }

    prop_compose! {
        fn any_rollup()(
            attempts in any::<u32>(), successes in any::<u32>(), by_category in any::<ByCategory>(),
            latencies in any::<[u32; BUCKET_COUNT]>(), last in proptest::option::of(any::<u32>()),
        ) -> Rollup {
            let last_success_at = last.map(Time::from_secs);
            Rollup { attempts, successes, by_category, latencies: Latencies(latencies), last_success_at }
        }
    }

    fn merged(one: &Rollup, other: &Rollup) -> Rollup {
        let mut sum = one.clone();
        sum.merge(other);
        sum
    }

    proptest! {
        #[test]
        fn merge_is_commutative_and_associative(a in any_rollup(), b in any_rollup(), c in any_rollup()) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &Rollup::default()), a);
        }

        #[test]
        fn encoding_round_trips(counts in any::<[u32; BUCKET_COUNT]>(), shift in 0..32u32, by in any::<ByCategory>()) {
            let latencies = Latencies(counts.map(|count| count >> shift));
            prop_assert_eq!(Latencies::from_bytes(&latencies.to_bytes()), Some(latencies));
            let by = by.map(|count| count >> shift);
            prop_assert_eq!(categories_from_bytes(&categories_to_bytes(&by)), Some(by));
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = (Latencies::from_bytes(&bytes), categories_from_bytes(&bytes));
        }

        #[test]
        fn percentiles_are_exact_to_a_bucket(
            mut micros in proptest::collection::vec(prop_oneof![0..10_000u64, 0..100_000_000u64], 1..200),
            percent in 0.0..=100.0f64,
        ) {
            let shown = build_latencies(&micros).percentile(percent).unwrap();
            micros.sort_unstable();
            let rank = ((percent / 100.0 * micros.len() as f64).ceil() as usize).max(1);
            let exact = bucket_of(micros[rank - 1]);
            prop_assert!(bucket_of((shown * 1000.0).round() as u64).abs_diff(exact) <= 1);
        }
    }
}

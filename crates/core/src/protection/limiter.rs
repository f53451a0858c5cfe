//! Rate limit: a token bucket that refills with time.
//!
//! Integer arithmetic only, exact to the millisecond: frequent polling neither loses nor gains tokens.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::{
    field_error::{FieldError, check_range},
    time::Time,
};

/// Allowed range of `requests_per_minute`.
pub const REQUESTS_PER_MINUTE_RANGE: RangeInclusive<u32> = 1..=6_000_000;
/// Allowed range of `burst`.
pub const BURST_RANGE: RangeInclusive<u32> = 1..=1_000_000;

/// One token in the bucket's own unit, of which `requests_per_minute` are refilled per millisecond.
const TOKEN_UNITS: u64 = 60_000;
/// Maximum difference between the times of callers on several threads. If a bucket was last used further in the
/// future, the clock was set back since.
const MAX_DISORDER_MS: i64 = 1000;

/// A rate limit and its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RateLimit {
    /// Sustained requests per minute.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 6000000))]
    pub requests_per_minute: u32,
    /// Requests that may be sent immediately after idle time; one second of the rate, and at least one, if omitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000000))]
    pub burst: Option<u32>,
}

impl RateLimit {
    /// Returns a limit with a burst of one second of the rate.
    pub const fn per_minute(requests_per_minute: u32) -> Self {
        Self { requests_per_minute, burst: None }
    }

    /// Returns the effective burst.
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.requests_per_minute / 60).max(1)
    }

    /// Returns an error for a value out of range. `field` is the path of the limit, such as `rate_limit`.
    pub fn validate(&self, field: &str) -> Result<(), FieldError> {
        check_range(
            format!("{field}.requests_per_minute"),
            self.requests_per_minute,
            REQUESTS_PER_MINUTE_RANGE,
        )?;
        check_range(format!("{field}.burst"), self.burst.unwrap_or(1), BURST_RANGE)?;
        Ok(())
    }

    /// Returns the capacity of a bucket in its own unit.
    fn capacity(&self) -> u64 {
        u64::from(self.burst()) * TOKEN_UNITS
    }

    /// Returns the refill per millisecond. At least 1, since a rate of 0 would block forever.
    fn refill_per_ms(&self) -> u64 {
        u64::from(self.requests_per_minute.max(1))
    }
}

/// Token bucket. It stores the tokens taken, not its capacity, so a changed limit applies from the next call.
///
/// ```
/// use redrive_core::{
///     Time,
///     protection::limiter::{Bucket, RateLimit},
/// };
///
/// let limit = RateLimit { requests_per_minute: 60, burst: Some(2) };
/// let (mut bucket, now) = (Bucket::full(), Time::from_secs(1_000));
/// bucket.take(&limit, now);
/// bucket.take(&limit, now);
/// assert_eq!(bucket.next_token_at(&limit, now), Some(Time::from_secs(1_001)));
/// // A token that is taken before it is available leaves a debt.
/// bucket.take(&limit, now);
/// assert_eq!(bucket.next_token_at(&limit, now), Some(Time::from_secs(1_002)));
/// // Idle time accumulates at most the burst.
/// assert_eq!(bucket.remaining(&limit, Time::from_secs(2_000)), 2);
/// ```
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Units taken and not refilled yet at `at`.
    spent: u64,
    at: Time,
    /// Burst of the limit that it was last used with.
    burst: u32,
}

impl Bucket {
    /// Returns a full bucket.
    pub fn full() -> Self {
        Self { spent: 0, at: Time::default(), burst: 0 }
    }

    /// Returns a bucket that was empty at a time, for any capacity.
    pub fn empty(at: Time) -> Self {
        Self { spent: u64::MAX, at, burst: 0 }
    }

    /// Returns when the next token is available, rounded up to a millisecond, or `None` if one is available now.
    pub fn next_token_at(&self, limit: &RateLimit, now: Time) -> Option<Time> {
        let (spent, at) = self.spent(limit, now);
        let short = (spent + TOKEN_UNITS).saturating_sub(limit.capacity());
        let wait = i64::try_from(short.div_ceil(limit.refill_per_ms())).unwrap_or(i64::MAX);
        (wait > 0).then(|| Time::from_millis(at.millis().saturating_add(wait)))
    }

    /// Takes a token. Taking one that is not available yet leaves the bucket in debt.
    pub fn take(&mut self, limit: &RateLimit, now: Time) {
        let (spent, at) = self.spent(limit, now);
        *self = Self { spent: spent + TOKEN_UNITS, at, burst: limit.burst() };
    }

    /// Returns the number of available tokens.
    pub fn remaining(&self, limit: &RateLimit, now: Time) -> u32 {
        let free = limit.capacity().saturating_sub(self.spent(limit, now).0);
        u32::try_from(free / TOKEN_UNITS).unwrap_or(u32::MAX)
    }

    /// Returns whether the bucket is full, so that it may be evicted.
    pub fn is_full(&self, limit: &RateLimit, now: Time) -> bool {
        self.spent(limit, now).0 == 0
    }

    /// Returns the units not refilled yet and the time this refers to: `now`, or the later time of another caller.
    fn spent(&self, limit: &RateLimit, now: Time) -> (u64, Time) {
        if self.at.millis() - now.millis() > MAX_DISORDER_MS {
            return (0, now);
        }
        // If the burst changed, the bucket is at most empty: a smaller capacity must not cause debt.
        let max = if self.burst == limit.burst() { u64::MAX } else { limit.capacity() };
        let elapsed = u64::try_from(now.duration_since(self.at).as_millis()).unwrap_or(u64::MAX);
        let back = elapsed.saturating_mul(limit.refill_per_ms());
        (self.spent.min(max).saturating_sub(back), self.at.max(now))
    }
}

impl Default for Bucket {
    fn default() -> Self {
        Self::full()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const START: i64 = 1_700_000_000_000;

    fn at(millis: i64) -> Time {
        Time::from_millis(START + millis)
    }

    fn limit(requests_per_minute: u32, burst: u32) -> RateLimit {
        RateLimit { requests_per_minute, burst: Some(burst) }
    }

    /// Takes all available tokens.
    fn drain(bucket: &mut Bucket, limit: &RateLimit, now: Time) -> u32 {
        let mut taken = 0;
        while bucket.next_token_at(limit, now).is_none() {
            bucket.take(limit, now);
            taken += 1;
        }
        taken
    }

    #[test]
    fn burst_is_sent_immediately_and_the_rest_at_the_rate() {
        let (limit, mut bucket) = (limit(600, 3), Bucket::full());
        assert_eq!(bucket.remaining(&limit, at(0)), 3);
        assert_eq!(drain(&mut bucket, &limit, at(0)), 3);
        assert_eq!(
            (bucket.next_token_at(&limit, at(0)), bucket.remaining(&limit, at(0))),
            (Some(at(100)), 0)
        );
        assert_eq!(bucket.next_token_at(&limit, at(99)), Some(at(100)));
        assert_eq!(bucket.next_token_at(&limit, at(100)), None);
        assert_eq!(drain(&mut bucket, &limit, at(150)), 1);
        assert_eq!(bucket.next_token_at(&limit, at(150)), Some(at(200)));
        assert!(!bucket.is_full(&limit, at(399)) && bucket.is_full(&limit, at(400)));
        assert_eq!(drain(&mut bucket, &limit, at(1_000_000)), 3, "idle time accumulates at most the burst");
    }

    #[test]
    fn fractional_tokens_are_not_lost() {
        let (limit, mut bucket) = (limit(180, 1), Bucket::full());
        let mut now = at(0);
        for _ in 0..=180 {
            now = bucket.next_token_at(&limit, now).unwrap_or(now);
            bucket.take(&limit, now);
        }
        // Each wait is rounded up, and the excess is kept in the bucket only up to its burst.
        assert_eq!(now, at(180 * 334));
        let limit = RateLimit { burst: Some(2), ..limit };
        let (mut bucket, mut now) = (Bucket::full(), at(0));
        for _ in 0..=181 {
            now = bucket.next_token_at(&limit, now).unwrap_or(now);
            bucket.take(&limit, now);
        }
        assert_eq!(now, at(60_000), "with capacity for a fraction the rate is exact");
    }

    #[test]
    fn default_burst_is_one_seconds_worth() {
        for (per_minute, burst) in [(1, 1), (59, 1), (60, 1), (119, 1), (120, 2), (6_000_000, 100_000)] {
            let limit = RateLimit::per_minute(per_minute);
            assert_eq!((limit.burst(), limit.validate("rate_limit")), (burst, Ok(())), "{per_minute}");
        }
        let read: RateLimit = serde_json::from_str(r#"{"requests_per_minute": 600}"#).unwrap();
        assert_eq!(read, RateLimit::per_minute(600));
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"{"requests_per_minute":600}"#);
        assert!(serde_json::from_str::<RateLimit>(r#"{"requests_per_minute": 600, "bursts": 1}"#).is_err());
    }

    #[test]
    fn validation_error_names_the_field() {
        let refused = |rate, burst| limit(rate, burst).validate("rate_limit").unwrap_err().to_string();
        assert_eq!(refused(600, 0), "rate_limit.burst: is 0; it must be from 1 to 1000000");
        assert_eq!(refused(600, 1_000_001), "rate_limit.burst: is 1000001; it must be from 1 to 1000000");
        assert!(refused(0, 1).starts_with("rate_limit.requests_per_minute: is 0;"));
        assert!(refused(6_000_001, 1).starts_with("rate_limit.requests_per_minute: is 6000001;"));
        assert_eq!(limit(6_000_000, 1_000_000).validate("rate_limit"), Ok(()));
    }

    #[test]
    fn changed_limit_applies_immediately() {
        let (wide, narrow) = (limit(60, 100), limit(60, 10));
        let mut bucket = Bucket::full();
        assert_eq!(drain(&mut bucket, &wide, at(0)), 100);
        assert_eq!(bucket.next_token_at(&narrow, at(0)), Some(at(1000)), "empty, not in debt");
        assert_eq!(drain(&mut Bucket::full(), &narrow, at(0)), 10);
        let mut bucket = Bucket::full();
        assert_eq!(drain(&mut bucket, &narrow, at(0)), 10);
        assert_eq!(bucket.remaining(&wide, at(0)), 90);
        let fast = limit(60_000, 10);
        assert_eq!(bucket.next_token_at(&fast, at(0)), Some(at(1)), "the delay follows the new rate");
    }

    #[test]
    fn clock_set_back_does_not_block() {
        let (limit, mut bucket) = (limit(60, 1), Bucket::full());
        bucket.take(&limit, at(0));
        assert_eq!(bucket.next_token_at(&limit, at(-900)), Some(at(1000)), "an older time gains no token");
        assert_eq!(bucket.next_token_at(&limit, at(-3_600_000)), None);
        bucket.take(&limit, at(-3_600_000));
        assert_eq!(bucket.next_token_at(&limit, at(-3_600_000)), Some(at(-3_599_000)));
    }

    #[test]
    fn token_taken_early_leaves_debt() {
        let (limit, mut bucket) = (limit(60, 2), Bucket::full());
        (0..4).for_each(|_| bucket.take(&limit, at(0)));
        assert_eq!(
            (bucket.remaining(&limit, at(0)), bucket.next_token_at(&limit, at(0))),
            (0, Some(at(3000)))
        );
    }

    prop_compose! {
        fn any_limit()(
            rate in prop_oneof![1..=200u32, REQUESTS_PER_MINUTE_RANGE],
            burst in prop_oneof![1..=5u32, BURST_RANGE],
        ) -> RateLimit {
            limit(rate, burst)
        }
    }

    proptest! {
        #[test]
        fn no_window_exceeds_burst_plus_rate(
            limit in (1..=20_000u32, 1..=20u32).prop_map(|(rate, burst)| self::limit(rate, burst)),
            steps in proptest::collection::vec(0..2_000i64, 1..200),
        ) {
            let (mut bucket, mut now, mut taken) = (Bucket::full(), at(0), Vec::new());
            for step in steps {
                now = Time::from_millis(now.millis() + step);
                if bucket.next_token_at(&limit, now).is_none() {
                    bucket.take(&limit, now);
                    taken.push(now.millis());
                }
            }
            for (first, from) in taken.iter().enumerate() {
                for (last, to) in taken.iter().enumerate().skip(first) {
                    let max = limit.capacity() + u64::from(limit.requests_per_minute) * to.abs_diff(*from);
                    prop_assert!((last - first + 1) as u64 * TOKEN_UNITS <= max);
                }
            }
        }

        #[test]
        fn token_is_available_exactly_at_next_token_time(
            limits in proptest::collection::vec(any_limit(), 1..4),
            steps in proptest::collection::vec((0..100_000i64, 0..50u32), 1..20),
        ) {
            let (mut bucket, mut now) = (Bucket::full(), at(0));
            for (index, (step, takes)) in steps.into_iter().enumerate() {
                let limit = limits[index % limits.len()];
                now = now + Duration::from_millis(step.unsigned_abs());
                prop_assert!(bucket.remaining(&limit, now) <= limit.burst());
                for _ in 0..takes {
                    bucket.take(&limit, now);
                }
                if let Some(due) = bucket.next_token_at(&limit, now) {
                    prop_assert!(due > now);
                    prop_assert_eq!(bucket.next_token_at(&limit, due), None);
                    prop_assert_eq!(bucket.next_token_at(&limit, Time::from_millis(due.millis() - 1)), Some(due));
                }
                prop_assert_eq!(bucket.next_token_at(&limit, now).is_none(), bucket.remaining(&limit, now) > 0);
            }
        }

        #[test]
        fn arbitrary_times_and_limits_never_panic(rate in any::<u32>(), burst in any::<u32>(), times in proptest::collection::vec(any::<i64>(), 0..20)) {
            let (limit, mut bucket) = (limit(rate, burst), Bucket::full());
            for millis in times {
                let now = Time::from_millis(millis);
                bucket.take(&limit, now);
                prop_assert!(bucket.next_token_at(&limit, now).is_none_or(|due| due > now || now == Time::from_millis(i64::MAX)));
                prop_assert!(bucket.remaining(&limit, now) <= limit.burst());
            }
        }
    }
}

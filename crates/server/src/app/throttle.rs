//! API rate limit: one token bucket per key, on the monotonic clock, independent of the clock that schedules
//! retries.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    KeyId, Time,
    protection::limiter::{Bucket, RateLimit},
};
use redrive_engine::{Engine, clock};

/// Number of buckets at which full ones are evicted.
const EVICT_AT: usize = 1_024;

/// Token buckets of recently used keys.
pub struct Throttle {
    limit: RateLimit,
    buckets: Mutex<Buckets>,
}

struct Buckets {
    by_key: HashMap<Option<KeyId>, Bucket>,
    tidy_at: usize,
}

/// Rate limit status of a key after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// Sustained number of calls per minute.
    pub limit: u32,
    /// Number of calls allowed now.
    pub remaining: u32,
    /// Seconds until the bucket is full again, rounded up.
    pub reset: u64,
    /// Seconds until a retry is allowed, rounded up, if this call was over the limit.
    pub retry_after: Option<u64>,
}

impl Throttle {
    /// Creates a limiter with the same limit for every key.
    pub fn new(limit: RateLimit) -> Self {
        let buckets = Buckets { by_key: HashMap::new(), tidy_at: EVICT_AT };
        Self { limit, buckets: Mutex::new(buckets) }
    }

    /// Counts a call of a key (`None` for the admin key from the configuration) at a monotonic time. A rejected call
    /// takes no token.
    fn acquire_locally(&self, key: Option<KeyId>, ticks: Duration) -> RateLimitStatus {
        let limit = &self.limit;
        let now = Time::from_millis(i64::try_from(ticks.as_millis()).unwrap_or(i64::MAX));
        let mut buckets = self.buckets.lock();
        buckets.evict_full(limit, now);
        let bucket = buckets.by_key.entry(key).or_default();
        let due = bucket.next_token_at(limit, now);
        if due.is_none() {
            bucket.take(limit, now);
        }
        RateLimitStatus::new(limit, bucket.remaining(limit, now), due.map(|due| due.duration_since(now)))
    }

    /// Counts a call of a key, in the bucket shared by all nodes if there is one, otherwise in this node's own.
    pub async fn acquire(&self, engine: &Engine, key: Option<KeyId>) -> RateLimitStatus {
        let name = key.map_or("key:admin".to_owned(), |key| format!("key:{key}"));
        match engine.take_shared_token(name, self.limit).await {
            Some(token) => {
                let wait = token.due.map(|due| due.duration_since(token.now));
                RateLimitStatus::new(&self.limit, token.remaining, wait)
            }
            None => self.acquire_locally(key, clock::monotonic_now()),
        }
    }
}

impl RateLimitStatus {
    /// Builds the status from the remaining tokens and the wait until the next one.
    fn new(limit: &RateLimit, remaining: u32, wait: Option<Duration>) -> Self {
        let missing = u64::from(limit.burst().saturating_sub(remaining));
        Self {
            limit: limit.requests_per_minute,
            remaining,
            reset: (missing * 60).div_ceil(u64::from(limit.requests_per_minute.max(1))),
            retry_after: wait.map(|wait| wait.as_millis().div_ceil(1_000) as u64),
        }
    }
}

impl Buckets {
    /// Evicts full buckets, which are equivalent to missing ones.
    fn evict_full(&mut self, limit: &RateLimit, now: Time) {
        if self.by_key.len() >= self.tidy_at {
            self.by_key.retain(|_, bucket| !bucket.is_full(limit, now));
            self.tidy_at = EVICT_AT.max(2 * self.by_key.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000);

    fn throttle(requests_per_minute: u32, burst: u32) -> Throttle {
        Throttle::new(RateLimit { requests_per_minute, burst: Some(burst) })
    }

    fn key(number: u64) -> Option<KeyId> {
        let mut randomness = redrive_core::id::RandomBytes::default();
        randomness[..8].copy_from_slice(&number.to_be_bytes());
        Some(KeyId::new(Time::default(), &randomness))
    }

    #[test]
    fn key_is_limited_to_burst_then_rate() {
        let throttle = throttle(30, 3);
        let call = |after_ms: u64| throttle.acquire_locally(None, START + Duration::from_millis(after_ms));
        assert_eq!(call(0), RateLimitStatus { limit: 30, remaining: 2, reset: 2, retry_after: None });
        assert_eq!(call(0), RateLimitStatus { limit: 30, remaining: 1, reset: 4, retry_after: None });
        assert_eq!(call(0), RateLimitStatus { limit: 30, remaining: 0, reset: 6, retry_after: None });
        let over = RateLimitStatus { limit: 30, remaining: 0, reset: 6, retry_after: Some(2) };
        assert_eq!(call(0), over);
        assert_eq!(call(500), over, "rounded up, and a rejected call takes no token");
        assert_eq!(call(1_500).retry_after, Some(1));
        assert_eq!(call(2_000).retry_after, None);
        assert_eq!(call(2_000).retry_after, Some(2));
    }

    #[test]
    fn keys_have_separate_buckets() {
        let throttle = throttle(60, 1);
        assert_eq!(throttle.acquire_locally(key(1), START).retry_after, None);
        assert_eq!(throttle.acquire_locally(key(1), START).retry_after, Some(1));
        assert_eq!(throttle.acquire_locally(key(2), START).retry_after, None);
        assert_eq!(throttle.acquire_locally(None, START).retry_after, None);
    }

    #[test]
    fn only_buckets_of_idle_keys_are_evicted() {
        let throttle = throttle(60, 1);
        for number in 0..EVICT_AT as u64 {
            throttle.acquire_locally(key(number), START);
        }
        let later = START + Duration::from_millis(900);
        assert_eq!(
            throttle.acquire_locally(key(0), later).retry_after,
            Some(1),
            "no bucket was evicted too soon"
        );
        let much_later = START + Duration::from_secs(60);
        throttle.acquire_locally(key(9_999_999), much_later);
        for number in 0..3 * EVICT_AT as u64 {
            throttle.acquire_locally(key(number), much_later + Duration::from_secs(number));
        }
        assert!(throttle.buckets.lock().by_key.len() <= 2 * EVICT_AT);
    }
}

//! How fast each key may call: one bucket of tokens per key, in real time whatever the clock of retries does.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    KeyId, Time,
    protection::limiter::{Bucket, RateLimit},
};
use redrive_engine::{Engine, clock};

/// With this many buckets, those that are full again are looked for and forgotten.
const TIDY_AT: usize = 1_024;

/// The buckets of keys that have called lately.
pub struct Throttle {
    limit: RateLimit,
    buckets: Mutex<Buckets>,
}

struct Buckets {
    by_key: HashMap<Option<KeyId>, Bucket>,
    tidy_at: usize,
}

/// Where a key stands after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Calls that may be made in a minute, in the long run.
    pub limit: u32,
    /// Calls that may be made now.
    pub remaining: u32,
    /// Seconds until the bucket is full again, rounded up.
    pub reset: u64,
    /// Seconds after which to call again, rounded up, if this call was one too many.
    pub retry_after: Option<u64>,
}

impl Throttle {
    /// The same limit for every key.
    pub fn new(limit: RateLimit) -> Self {
        let buckets = Buckets { by_key: HashMap::new(), tidy_at: TIDY_AT };
        Self { limit, buckets: Mutex::new(buckets) }
    }

    /// Counts a call of a key, none for the configured admin key, at a monotonic time. One too many costs
    /// nothing.
    fn call_here(&self, key: Option<KeyId>, ticks: Duration) -> Allowance {
        let limit = &self.limit;
        let now = Time::from_millis(i64::try_from(ticks.as_millis()).unwrap_or(i64::MAX));
        let mut buckets = self.buckets.lock();
        buckets.tidy(limit, now);
        let bucket = buckets.by_key.entry(key).or_default();
        let due = bucket.due(limit, now);
        if due.is_none() {
            bucket.take(limit, now);
        }
        Allowance::of(limit, bucket.remaining(limit, now), due.map(|due| due.since(now)))
    }

    /// Counts a call of a key: in the bucket that all nodes share, if they share one, else in this node's own.
    pub async fn call(&self, engine: &Engine, key: Option<KeyId>) -> Allowance {
        let name = key.map_or("key:admin".to_owned(), |key| format!("key:{key}"));
        match engine.shared_token(name, self.limit).await {
            Some(token) => {
                let wait = token.due.map(|due| due.since(token.now));
                Allowance::of(&self.limit, token.remaining, wait)
            }
            None => self.call_here(key, clock::ticks()),
        }
    }
}

impl Allowance {
    /// With so many tokens left, and so long to wait if there was none.
    fn of(limit: &RateLimit, remaining: u32, wait: Option<Duration>) -> Self {
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
    /// A full bucket is as good as none.
    fn tidy(&mut self, limit: &RateLimit, now: Time) {
        if self.by_key.len() >= self.tidy_at {
            self.by_key.retain(|_, bucket| !bucket.is_full(limit, now));
            self.tidy_at = TIDY_AT.max(2 * self.by_key.len());
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
        let mut randomness = redrive_core::id::Randomness::default();
        randomness[..8].copy_from_slice(&number.to_be_bytes());
        Some(KeyId::new(Time::default(), &randomness))
    }

    #[test]
    fn a_key_has_its_burst_and_then_its_rate() {
        let throttle = throttle(30, 3);
        let call = |after_ms: u64| throttle.call_here(None, START + Duration::from_millis(after_ms));
        assert_eq!(call(0), Allowance { limit: 30, remaining: 2, reset: 2, retry_after: None });
        assert_eq!(call(0), Allowance { limit: 30, remaining: 1, reset: 4, retry_after: None });
        assert_eq!(call(0), Allowance { limit: 30, remaining: 0, reset: 6, retry_after: None });
        let over = Allowance { limit: 30, remaining: 0, reset: 6, retry_after: Some(2) };
        assert_eq!(call(0), over);
        assert_eq!(call(500), over, "rounded up, and what was refused cost nothing");
        assert_eq!(call(1_500).retry_after, Some(1));
        assert_eq!(call(2_000).retry_after, None);
        assert_eq!(call(2_000).retry_after, Some(2));
    }

    #[test]
    fn keys_do_not_spend_one_another_s_tokens() {
        let throttle = throttle(60, 1);
        assert_eq!(throttle.call_here(key(1), START).retry_after, None);
        assert_eq!(throttle.call_here(key(1), START).retry_after, Some(1));
        assert_eq!(throttle.call_here(key(2), START).retry_after, None);
        assert_eq!(throttle.call_here(None, START).retry_after, None);
    }

    #[test]
    fn idle_keys_are_forgotten_and_busy_ones_are_not() {
        let throttle = throttle(60, 1);
        for number in 0..TIDY_AT as u64 {
            throttle.call_here(key(number), START);
        }
        let later = START + Duration::from_millis(900);
        assert_eq!(throttle.call_here(key(0), later).retry_after, Some(1), "nobody was forgotten too soon");
        let much_later = START + Duration::from_secs(60);
        throttle.call_here(key(9_999_999), much_later);
        for number in 0..3 * TIDY_AT as u64 {
            throttle.call_here(key(number), much_later + Duration::from_secs(number));
        }
        assert!(throttle.buckets.lock().by_key.len() <= 2 * TIDY_AT);
    }
}

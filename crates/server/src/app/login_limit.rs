//! Rate limit for failed logins per address. A valid key is always accepted: keys are too long to be guessed, so
//! the limit bounds and reports failures without locking out users behind the same address (ADR 45).

use std::{collections::HashMap, net::IpAddr, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    Time,
    protection::limiter::{Bucket, RateLimit},
};
use redrive_engine::clock::monotonic_now;

use crate::request::address_group;

/// Allows a burst of 10 failures, then one every six seconds.
const FAILED_LOGINS: RateLimit = RateLimit { requests_per_minute: 10, burst: Some(10) };
/// Maximum number of tracked addresses. An address beyond it is treated as over the limit.
const MAX_ADDRESSES: usize = 10_000;

/// Failed logins per address.
#[derive(Default)]
pub struct FailedLogins(Mutex<HashMap<IpAddr, Bucket>>);

impl FailedLogins {
    /// Counts a failed login. If it exceeds the limit, returns the seconds until the next failure is allowed.
    pub fn count(&self, from: Option<IpAddr>) -> Option<u64> {
        self.count_at(from, monotonic_now())
    }

    fn count_at(&self, from: Option<IpAddr>, now: Duration) -> Option<u64> {
        let now = Time::default() + now;
        let address = address_group(from.unwrap_or(IpAddr::from([0, 0, 0, 0])));
        let mut addresses = self.0.lock();
        if addresses.len() >= MAX_ADDRESSES && !addresses.contains_key(&address) {
            addresses.retain(|_, bucket| !bucket.is_full(&FAILED_LOGINS, now));
            if addresses.len() >= MAX_ADDRESSES {
                return Some(60);
            }
        }
        let bucket = addresses.entry(address).or_insert_with(Bucket::full);
        match bucket.next_token_at(&FAILED_LOGINS, now) {
            Some(due) => Some((due.millis() - now.millis()).max(1).unsigned_abs().div_ceil(1_000)),
            None => {
                bucket.take(&FAILED_LOGINS, now);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000);

    #[test]
    fn failures_over_burst_are_limited_per_address() {
        let failed = FailedLogins::default();
        let address = |text: &str| Some(text.parse().unwrap());
        for _ in 0..10 {
            assert_eq!(failed.count_at(address("192.0.2.1"), START), None);
        }
        assert_eq!(failed.count_at(address("192.0.2.1"), START), Some(6));
        assert_eq!(failed.count_at(address("192.0.2.2"), START), None);
        assert_eq!(failed.count_at(address("192.0.2.1"), START + Duration::from_secs(6)), None);
    }

    #[test]
    fn tracked_addresses_are_bounded_and_evicted_when_idle() {
        let failed = FailedLogins::default();
        for number in 0..MAX_ADDRESSES as u32 {
            failed.count_at(Some(IpAddr::from(number.to_be_bytes())), START);
        }
        let another = Some("2001:db8::1".parse().unwrap());
        assert_eq!(failed.count_at(another, START), Some(60));
        assert_eq!(failed.count_at(another, START + Duration::from_secs(60)), None);
        assert_eq!(failed.0.lock().len(), 1);
    }
}

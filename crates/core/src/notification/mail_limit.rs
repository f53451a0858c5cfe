//! Limits on emails: to one mailbox over all tenants, and for one tenant.
//!
//! The state of a limit is kept in the store, so that all nodes share it and a restart does not reset it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// Length of the blocks in which sends are counted.
const BLOCK_MILLIS: i64 = 10 * 60 * 1000;
const BLOCKS_PER_HOUR: i64 = 6;
const BLOCKS_PER_DAY: i64 = 24 * BLOCKS_PER_HOUR;
const BLOCKS_PER_30_DAYS: i64 = 30 * BLOCKS_PER_DAY;
/// Retention of usage rows: unchanged for this long, they affect no limit.
pub const USAGE_RETENTION: Duration = Duration::from_secs(31 * 24 * 3600);

/// Purpose of an email; each purpose has its own limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MailPurpose {
    /// A notification for the holder of a confirmed address.
    Notification,
    /// The request to confirm an address.
    Confirmation,
}

/// Maximum number of emails. No window of the given length ever contains more than its limit; a limit may apply
/// for up to ten minutes longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendLimit {
    /// Per hour; `None` for no limit.
    pub max_per_hour: Option<u32>,
    /// Per day; `None` for no limit.
    pub max_per_day: Option<u32>,
    /// Per 30 days; `None` for no limit.
    pub max_per_30_days: Option<u32>,
    /// Minimum time between two emails.
    pub min_interval: Duration,
}

impl SendLimit {
    fn windows(&self) -> impl Iterator<Item = (i64, u32)> {
        let windows = [
            (BLOCKS_PER_HOUR, self.max_per_hour),
            (BLOCKS_PER_DAY, self.max_per_day),
            (BLOCKS_PER_30_DAYS, self.max_per_30_days),
        ];
        // One block more than the window has: its first and last block are only partly inside the window.
        windows.into_iter().filter_map(|(blocks, max)| Some((blocks + 1, max?)))
    }
}

/// Limit of confirmation emails to one mailbox, over all tenants.
pub const CONFIRMATIONS_PER_MAILBOX: SendLimit = SendLimit {
    max_per_hour: None,
    max_per_day: None,
    max_per_30_days: Some(3),
    min_interval: Duration::from_secs(3600),
};
/// Limit of confirmation emails caused by one tenant.
pub const CONFIRMATIONS_PER_TENANT: SendLimit = SendLimit {
    max_per_hour: None,
    max_per_day: Some(20),
    max_per_30_days: None,
    min_interval: Duration::ZERO,
};

/// Recent sends, as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MailUsage {
    /// Blocks with sends, oldest first, each with its number of sends.
    blocks: Vec<(i64, u32)>,
    /// Time of the last reservation.
    last_at: Option<Time>,
}

impl MailUsage {
    /// Reserves one send. If the limit is reached, changes nothing and returns when the next send is allowed.
    pub fn reserve(&mut self, limit: &SendLimit, now: Time) -> Result<(), Time> {
        if let Some(until) = self.blocked_until(limit, now) {
            return Err(until);
        }
        let block = block_of(now);
        let longest = limit.windows().map(|(window, _)| window).max().unwrap_or(0);
        self.blocks.retain(|(start, _)| start + longest > block);
        match self.blocks.iter_mut().find(|(start, _)| *start == block) {
            Some((_, count)) => *count = count.saturating_add(1),
            None => {
                self.blocks.push((block, 1));
                self.blocks.sort_unstable();
            }
        }
        self.last_at = self.last_at.max(Some(now));
        Ok(())
    }

    /// Releases a send that was reserved at this time and did not happen.
    pub fn release(&mut self, at: Time) {
        let block = block_of(at);
        for (start, count) in &mut self.blocks {
            if *start == block {
                *count = count.saturating_sub(1);
            }
        }
        self.blocks.retain(|(_, count)| *count > 0);
    }

    /// Returns when the next send is allowed, or `None` if it is allowed now.
    pub fn blocked_until(&self, limit: &SendLimit, now: Time) -> Option<Time> {
        let interval = self.last_at.map(|last| last + limit.min_interval).filter(|until| *until > now);
        limit.windows().filter_map(|window| self.window_free_at(window, now)).chain(interval).max()
    }

    /// Returns when a window has capacity again, or `None` if it has capacity now.
    fn window_free_at(&self, (window, max): (i64, u32), now: Time) -> Option<Time> {
        let block = block_of(now);
        let mut sum = 0_u64;
        // Blocks later than the current one were written before the clock was set back; they count.
        for (start, count) in self.blocks.iter().rev().filter(|(start, _)| start + window > block) {
            sum += u64::from(*count);
            if sum >= u64::from(max) {
                return Some(Time::from_millis((start + window).saturating_mul(BLOCK_MILLIS)));
            }
        }
        // A limit of zero never allows a send.
        (max == 0).then(|| now + Duration::from_secs(24 * 3600))
    }
}

fn block_of(at: Time) -> i64 {
    at.millis().div_euclid(BLOCK_MILLIS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;

    fn at(millis: i64) -> Time {
        Time::from_millis(1_800_000_000_000 + millis)
    }

    #[test]
    fn mailbox_gets_three_confirmations_in_30_days_an_hour_apart() {
        let mut usage = MailUsage::default();
        let mut send = |millis| usage.reserve(&CONFIRMATIONS_PER_MAILBOX, at(millis));
        assert_eq!(send(0), Ok(()));
        assert_eq!(send(HOUR - 1), Err(at(HOUR)), "the second is sent at least an hour later");
        assert_eq!(send(HOUR), Ok(()));
        assert_eq!(send(3 * HOUR), Ok(()));
        let until = send(29 * DAY).unwrap_err();
        assert!(until >= at(30 * DAY) && until < at(30 * DAY + HOUR), "{until}");
        assert_eq!(send(30 * DAY - 1), Err(until));
        assert!(send(30 * DAY + HOUR / 2).is_ok());
        assert!(send(30 * DAY + 2 * HOUR).is_ok());
    }

    #[test]
    fn daily_tenant_limit_has_capacity_again_a_day_later() {
        let mut usage = MailUsage::default();
        for n in 0..20 {
            assert_eq!(usage.reserve(&CONFIRMATIONS_PER_TENANT, at(n)), Ok(()));
        }
        let until = usage.reserve(&CONFIRMATIONS_PER_TENANT, at(30)).unwrap_err();
        assert_eq!(usage.reserve(&CONFIRMATIONS_PER_TENANT, until), Ok(()));
    }

    #[test]
    fn released_sends_are_available_again() {
        let limit = SendLimit { max_per_hour: Some(1), ..SendLimit::default() };
        let mut usage = MailUsage::default();
        assert!(usage.reserve(&limit, at(0)).is_ok() && usage.reserve(&limit, at(1)).is_err());
        usage.release(at(0));
        assert_eq!(usage.reserve(&limit, at(1)), Ok(()));
        let none = SendLimit { max_per_day: Some(0), ..SendLimit::default() };
        assert!(MailUsage::default().reserve(&none, at(0)).is_err());
        assert_eq!(MailUsage::default().reserve(&SendLimit::default(), at(0)), Ok(()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn no_window_ever_contains_more_than_its_limit(
            steps in proptest::collection::vec(0_i64..2 * HOUR, 1..150),
            (hour, day, apart) in (1_u32..4, 1_u32..8, 0_u64..3_000),
        ) {
            let limit = SendLimit {
                max_per_hour: Some(hour),
                max_per_day: Some(day),
                max_per_30_days: None,
                min_interval: Duration::from_secs(apart),
            };
            let (mut usage, mut now, mut sent) = (MailUsage::default(), 0, Vec::<i64>::new());
            for step in steps {
                now += step;
                let before = usage.clone();
                match usage.reserve(&limit, at(now)) {
                    Ok(()) => sent.push(now),
                    Err(until) => {
                        prop_assert!(until > at(now) && usage == before);
                        let mut later = usage.clone();
                        prop_assert!(later.reserve(&limit, until).is_ok(), "no capacity at the returned time");
                    }
                }
                let text = serde_json::to_string(&usage).unwrap();
                prop_assert_eq!(serde_json::from_str::<MailUsage>(&text).unwrap(), usage.clone());
                prop_assert!(usage.blocks.len() <= day as usize);
            }
            for (index, first) in sent.iter().enumerate() {
                let within = |window: i64| sent[index..].iter().filter(|at| **at < first + window).count();
                prop_assert!(within(HOUR) <= hour as usize && within(DAY) <= day as usize);
                let next = sent.get(index + 1);
                prop_assert!(next.is_none_or(|next| next - first >= apart as i64 * 1000));
            }
        }
    }
}

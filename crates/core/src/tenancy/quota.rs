//! Daily quota: how many events a tenant may publish per UTC day.
//!
//! Events have sequence numbers within their tenant, so the number published today is the difference between the
//! last sequence number and the last one before midnight: nothing has to be counted.

use crate::time::Time;

const DAY: i64 = 24 * 3600 * 1000;

/// Events that a tenant has published today, as far as this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DailyUsage {
    day: i64,
    before: i64,
    last: i64,
    in_flight: i64,
}

impl DailyUsage {
    /// Returns the start of the day that contains this time.
    pub fn day_start(now: Time) -> Time {
        Time::from_millis(now.millis().div_euclid(DAY) * DAY)
    }

    /// Creates the usage of a day from the last sequence number before it and the last one so far; 0 for none.
    pub fn new(now: Time, before: i64, last: i64) -> Self {
        Self { day: now.millis().div_euclid(DAY), before, last: last.max(before), in_flight: 0 }
    }

    /// Returns whether this time is on the same day.
    pub fn is_same_day(&self, now: Time) -> bool {
        self.day == now.millis().div_euclid(DAY)
    }

    /// Returns when the day ends.
    pub fn resets_at(&self) -> Time {
        Time::from_millis((self.day + 1) * DAY)
    }

    /// Switches to another day. Open reservations are kept, since their events may count for either day.
    pub fn roll_over(&mut self, new: Self) {
        *self = Self { in_flight: self.in_flight, ..new };
    }

    /// Reserves capacity for an event. Returns `false` if the quota is used up.
    pub fn reserve(&mut self, max: u32) -> bool {
        let free = self.last - self.before + self.in_flight < i64::from(max);
        self.in_flight += i64::from(free);
        free
    }

    /// Ends a reservation with the sequence number of the event, or `None` if it was not published.
    pub fn commit(&mut self, position: Option<i64>) {
        self.in_flight -= 1;
        self.last = self.last.max(position.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn days_follow_utc() {
        let noon = Time::parse("2026-11-15T12:00:00Z").unwrap();
        let today = DailyUsage::new(noon, 7, 9);
        assert_eq!(DailyUsage::day_start(noon).to_string(), "2026-11-15T00:00:00.000Z");
        assert_eq!(today.resets_at().to_string(), "2026-11-16T00:00:00.000Z");
        assert!(today.is_same_day(DailyUsage::day_start(noon)) && !today.is_same_day(today.resets_at()));
    }

    proptest! {
        /// For any order of results, no more events are admitted than the quota allows.
        #[test]
        fn quota_is_never_exceeded(
            before in 0i64..100, max in 0u32..20, steps in prop::collection::vec(0u8..4, 0..200),
        ) {
            let mut today = DailyUsage::new(Time::default(), before, before);
            let (mut index, mut reserved) = (before, 0);
            for step in steps {
                match step {
                    0 | 1 => reserved += u32::from(today.reserve(max)),
                    _ if reserved == 0 => {}
                    // The event is published, or not.
                    2 => {
                        index += 1;
                        reserved -= 1;
                        today.commit(Some(index));
                    }
                    _ => {
                        reserved -= 1;
                        today.commit(None);
                    }
                }
                prop_assert!(index - before + i64::from(reserved) <= i64::from(max));
            }
            // A failed publish returns its capacity.
            for _ in 0..reserved {
                today.commit(None);
            }
            let left = i64::from(max) - (index - before);
            prop_assert_eq!((0..100).filter(|_| today.reserve(max)).count() as i64, left);
        }
    }
}

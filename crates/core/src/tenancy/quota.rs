//! How many events a tenant may publish on one day, by UTC.
//!
//! Events have places in their tenant's sequence, so what was published today is the distance from the last place
//! before midnight to the last one there is: nothing has to be counted.

use crate::time::Time;

const DAY: i64 = 24 * 3600 * 1000;

/// What a tenant has published today, as far as it is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Today {
    day: i64,
    before: i64,
    last: i64,
    under_way: i64,
}

impl Today {
    /// When the day of this time began.
    pub fn began(now: Time) -> Time {
        Time::from_millis(now.millis().div_euclid(DAY) * DAY)
    }

    /// A day with the place of the last event before it, and of the last one there is; 0 for none.
    pub fn new(now: Time, before: i64, last: i64) -> Self {
        Self { day: now.millis().div_euclid(DAY), before, last: last.max(before), under_way: 0 }
    }

    /// Whether it is still that day.
    pub fn is(&self, now: Time) -> bool {
        self.day == now.millis().div_euclid(DAY)
    }

    /// When it ends.
    pub fn ends(&self) -> Time {
        Time::from_millis((self.day + 1) * DAY)
    }

    /// Begins another day; what is being published may turn out to be of either.
    pub fn turn_to(&mut self, new: Self) {
        *self = Self { under_way: self.under_way, ..new };
    }

    /// Reserves a place for an event, if there is one left of so many.
    pub fn reserve(&mut self, most: u32) -> bool {
        let free = self.last - self.before + self.under_way < i64::from(most);
        self.under_way += i64::from(free);
        free
    }

    /// Ends a reservation, with the place that the event was given, if it was.
    pub fn settle(&mut self, place: Option<i64>) {
        self.under_way -= 1;
        self.last = self.last.max(place.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn days_are_those_of_utc() {
        let noon = Time::parse("2026-11-15T12:00:00Z").unwrap();
        let today = Today::new(noon, 7, 9);
        assert_eq!(Today::began(noon).to_string(), "2026-11-15T00:00:00.000Z");
        assert_eq!(today.ends().to_string(), "2026-11-16T00:00:00.000Z");
        assert!(today.is(Today::began(noon)) && !today.is(today.ends()));
    }

    proptest! {
        /// Whatever comes back in whatever order, no more are let in than there are places.
        #[test]
        fn no_more_are_published_than_allowed(
            before in 0i64..100, most in 0u32..20, steps in prop::collection::vec(0u8..4, 0..200),
        ) {
            let mut today = Today::new(Time::default(), before, before);
            let (mut place, mut under_way) = (before, 0);
            for step in steps {
                match step {
                    0 | 1 => under_way += u32::from(today.reserve(most)),
                    _ if under_way == 0 => {}
                    // It is published, or not.
                    2 => {
                        place += 1;
                        under_way -= 1;
                        today.settle(Some(place));
                    }
                    _ => {
                        under_way -= 1;
                        today.settle(None);
                    }
                }
                prop_assert!(place - before + i64::from(under_way) <= i64::from(most));
            }
            // What was not published leaves its place to others.
            for _ in 0..under_way {
                today.settle(None);
            }
            let left = i64::from(most) - (place - before);
            prop_assert_eq!((0..100).filter(|_| today.reserve(most)).count() as i64, left);
        }
    }
}

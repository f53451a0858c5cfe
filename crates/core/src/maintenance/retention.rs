//! How long things are kept, which of them are old now, and at which pace they leave.
//!
//! What is not over yet is kept whatever its age: that is for the store to see, which knows what is pending.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

use crate::{Time, tenancy::TenantQuotas};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long things are kept. None: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Events with their deliveries and attempts, from when they were published.
    pub events: Option<Duration>,
    /// Dead letters with their attempts, from when they died. They go with their event at the latest.
    pub dead: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { events: Some(90 * DAY), dead: Some(30 * DAY) }
    }
}

/// What is from before these times is old. None: nothing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// Events that were published before.
    pub events: Option<Time>,
    /// Dead letters that died before.
    pub dead: Option<Time>,
}

impl Retention {
    /// What holds for a tenant: its own number of days where it was given one, 0 of them being for ever.
    pub fn of(self, tenant: &TenantQuotas) -> Self {
        let own = |days: Option<u32>, otherwise| match days {
            None => otherwise,
            Some(0) => None,
            Some(days) => Some(DAY * days),
        };
        Self {
            events: own(tenant.retention_days, self.events),
            dead: own(tenant.dead_retention_days, self.dead),
        }
    }

    /// What is old now.
    pub fn cutoffs(self, now: Time) -> Cutoffs {
        let cutoff = |kept: Option<Duration>| kept.map(|kept| now.back(kept).max(Time::from_millis(0)));
        Cutoffs { events: cutoff(self.events), dead: cutoff(self.dead) }
    }
}

/// The first moment of the month that a time is in, by UTC.
pub fn start_of_month(time: Time) -> Time {
    let stamp = Timestamp::from_millisecond(time.millis()).unwrap_or(Timestamp::UNIX_EPOCH);
    let first = stamp.to_zoned(TimeZone::UTC).date().first_of_month().to_zoned(TimeZone::UTC);
    Time::from_millis(first.map(|first| first.timestamp().as_millisecond()).unwrap_or_default())
}

/// Where events are kept by month: before which time a tenant's leave one by one.
///
/// Whole months are dropped, which costs next to nothing, once all tenants are done with them; the first that
/// somebody still needs is that of the `earliest` cut-off. Who is done with part of that month waits for the rest
/// of it. Who is done with later months, since its retention is shorter, does not wait for the others.
pub fn one_by_one_before(cutoff: Time, earliest: Option<Time>) -> Time {
    match earliest.map(start_of_month) {
        Some(month) if month == start_of_month(cutoff) => month,
        _ => cutoff,
    }
}

/// The pace of forgetting: how much in one step, so that a step is short, and how long to pause after it, so that
/// it takes a small part of the store's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    rows: usize,
}

impl Default for Stride {
    fn default() -> Self {
        Self { rows: Self::LEAST }
    }
}

impl Stride {
    /// The fewest rows in a step.
    pub const LEAST: usize = 100;
    /// The most rows in a step.
    pub const MOST: usize = 2_000;
    /// A step should take no longer.
    const LONG: Duration = Duration::from_millis(10);
    /// A step of this length could be larger.
    const SHORT: Duration = Duration::from_millis(4);
    /// The store rests so many times as long as a step took: pruning has a sixtieth of its time.
    const REST: u32 = 59;
    const LEAST_PAUSE: Duration = Duration::from_millis(20);
    const LONGEST_PAUSE: Duration = Duration::from_secs(2);

    /// About how many rows the next step may take away.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Learns how long a step took. Gives the pause before the next.
    pub fn after(&mut self, took: Duration) -> Duration {
        if took > Self::LONG {
            self.rows = (self.rows / 2).max(Self::LEAST);
        } else if took < Self::SHORT {
            self.rows = (self.rows * 2).min(Self::MOST);
        }
        (took * Self::REST).clamp(Self::LEAST_PAUSE, Self::LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(text: &str) -> Time {
        Time::parse(text).unwrap()
    }

    fn quotas(events: Option<u32>, dead: Option<u32>) -> TenantQuotas {
        TenantQuotas { retention_days: events, dead_retention_days: dead, ..TenantQuotas::default() }
    }

    #[test]
    fn events_are_kept_90_days_and_dead_letters_30() {
        let now = time("2026-11-15T12:00:00Z");
        let cutoffs = Retention::default().cutoffs(now);
        assert_eq!(cutoffs.events, Some(time("2026-08-17T12:00:00Z")));
        assert_eq!(cutoffs.dead, Some(time("2026-10-16T12:00:00Z")));
    }

    #[test]
    fn a_tenant_may_have_less_or_more_or_all() {
        let server = Retention::default();
        let of = |events, dead| server.of(&quotas(events, dead));
        assert_eq!(of(None, None), server);
        assert_eq!(of(Some(7), None), Retention { events: Some(7 * DAY), ..server });
        assert_eq!(of(Some(400), Some(60)), Retention { events: Some(400 * DAY), dead: Some(60 * DAY) });
        assert_eq!(of(Some(0), Some(0)), Retention { events: None, dead: None });
        let for_ever = Retention { events: None, dead: None };
        assert_eq!(for_ever.of(&quotas(Some(1), None)), Retention { events: Some(DAY), dead: None });
    }

    #[test]
    fn what_is_kept_for_ever_is_never_old() {
        let now = time("2026-11-15T12:00:00Z");
        assert_eq!(Retention { events: None, dead: None }.cutoffs(now), Cutoffs { events: None, dead: None });
        let longer_than_there_is_time = Retention { events: Some(Duration::MAX), dead: None };
        assert_eq!(longer_than_there_is_time.cutoffs(now).events, Some(Time::from_millis(0)));
    }

    #[test]
    fn months_begin_where_they_should() {
        for (at, start) in [
            ("2026-11-15T12:00:00Z", "2026-11-01T00:00:00Z"),
            ("2026-11-01T00:00:00Z", "2026-11-01T00:00:00Z"),
            ("2026-12-31T23:59:59.999Z", "2026-12-01T00:00:00Z"),
            ("2028-02-29T00:00:00Z", "2028-02-01T00:00:00Z"),
        ] {
            assert_eq!(start_of_month(time(at)), time(start));
        }
    }

    #[test]
    fn only_whoever_is_done_with_later_months_does_not_wait_for_a_month_to_be_dropped() {
        let earliest = Some(time("2026-08-17T12:00:00Z"));
        let start = time("2026-08-01T00:00:00Z");
        assert_eq!(one_by_one_before(time("2026-08-17T12:00:00Z"), earliest), start);
        assert_eq!(one_by_one_before(time("2026-08-31T23:59:59Z"), earliest), start);
        let later = time("2026-09-01T00:00:00Z");
        assert_eq!(one_by_one_before(later, earliest), later);
        assert_eq!(one_by_one_before(later, None), later, "somebody keeps everything: no month is dropped");
    }

    #[test]
    fn a_step_grows_while_it_is_short_and_shrinks_when_it_is_long() {
        let mut stride = Stride::default();
        let millis = Duration::from_millis;
        assert_eq!(stride.rows(), 100);
        assert_eq!(stride.after(millis(1)), millis(59));
        assert_eq!(stride.rows(), 200);
        assert_eq!(stride.after(millis(5)), millis(295));
        assert_eq!(stride.rows(), 200);
        assert_eq!(stride.after(millis(11)), millis(649));
        assert_eq!(stride.rows(), 100);
        assert_eq!(stride.after(Duration::from_secs(10)), Duration::from_secs(2));
        assert_eq!(stride.rows(), 100);
    }

    proptest! {
        #[test]
        fn what_is_old_stays_old_and_nothing_young_is(
            now in 0..4_000_000_000_000_i64,
            later in 0..4_000_000_000_000_i64,
            days in 1..40_000_u32,
            made in 0..4_000_000_000_000_i64,
        ) {
            let kept = Retention::default().of(&quotas(Some(days), Some(days)));
            let old = |now: i64| kept.cutoffs(Time::from_millis(now)).events.unwrap() > Time::from_millis(made);
            let age = now - made;
            prop_assert_eq!(old(now), age > i64::from(days) * 86_400_000);
            prop_assert!(!old(now) || old(now.max(later)));
        }

        #[test]
        fn nothing_leaves_one_by_one_that_is_not_old_and_nothing_is_left_but_for_a_month(
            cutoff in 0..4_000_000_000_000_i64,
            before in 0..4_000_000_000_000_i64,
        ) {
            let (earliest, cutoff) = (before.min(cutoff), Time::from_millis(cutoff));
            let one_by_one = one_by_one_before(cutoff, Some(Time::from_millis(earliest)));
            prop_assert!(one_by_one <= cutoff);
            prop_assert!(cutoff.since(one_by_one) <= DAY * 31);
        }

        #[test]
        fn steps_stay_within_bounds(took in proptest::collection::vec(0..10_000_u64, 1..50)) {
            let mut stride = Stride::default();
            for took in took {
                let pause = stride.after(Duration::from_millis(took));
                prop_assert!((Stride::LEAST..=Stride::MOST).contains(&stride.rows()));
                prop_assert!(pause >= Stride::LEAST_PAUSE && pause <= Stride::LONGEST_PAUSE);
            }
        }
    }
}

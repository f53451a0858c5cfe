//! Retention: how long objects are kept, which are due for pruning, and how fast they are pruned.
//!
//! Deliveries that have not ended are kept regardless of their age; the store checks that, since it knows what is
//! pending.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

use crate::{Time, tenancy::TenantQuotas};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Retention periods; `None` keeps the objects forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Of events with their deliveries and attempts, counted from publishing.
    pub events: Option<Duration>,
    /// Of dead letters with their attempts, counted from their death. They are pruned with their event at the latest.
    pub dead_letters: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { events: Some(90 * DAY), dead_letters: Some(30 * DAY) }
    }
}

/// Objects from before these times are pruned; `None` prunes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// Cutoff of the publish time of events.
    pub events: Option<Time>,
    /// Cutoff of the time of death of dead letters.
    pub dead: Option<Time>,
}

impl Retention {
    /// Returns the retention of a tenant: its own number of days if set, where 0 means forever.
    pub fn for_tenant(self, tenant: &TenantQuotas) -> Self {
        let own = |days: Option<u32>, otherwise| match days {
            None => otherwise,
            Some(0) => None,
            Some(days) => Some(DAY * days),
        };
        Self {
            events: own(tenant.retention_days, self.events),
            dead_letters: own(tenant.dead_retention_days, self.dead_letters),
        }
    }

    /// Returns the current cutoffs.
    pub fn cutoffs(self, now: Time) -> Cutoffs {
        let cutoff =
            |kept: Option<Duration>| kept.map(|kept| now.saturating_sub(kept).max(Time::from_millis(0)));
        Cutoffs { events: cutoff(self.events), dead: cutoff(self.dead_letters) }
    }
}

/// Returns the start of the UTC month that contains a time.
pub fn start_of_month(time: Time) -> Time {
    let stamp = Timestamp::from_millisecond(time.millis()).unwrap_or(Timestamp::UNIX_EPOCH);
    let first = stamp.to_zoned(TimeZone::UTC).date().first_of_month().to_zoned(TimeZone::UTC);
    Time::from_millis(first.map(|first| first.timestamp().as_millisecond()).unwrap_or_default())
}

/// Returns the time before which a tenant's events are pruned row by row, if events are partitioned by month.
///
/// Whole months are dropped, at almost no cost, once no tenant needs them; the first month still needed is that
/// of the `earliest` cutoff. A tenant whose cutoff is within that month waits until it is dropped as a whole. A
/// tenant whose cutoff is in a later month, because its retention is shorter, does not wait for the others.
pub fn row_prune_cutoff(cutoff: Time, earliest: Option<Time>) -> Time {
    match earliest.map(start_of_month) {
        Some(month) if month == start_of_month(cutoff) => month,
        _ => cutoff,
    }
}

/// Pace of pruning: the number of rows per step, so that a step is short, and the pause after it, so that
/// pruning takes a small share of the store's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneBatchSizer {
    rows: usize,
}

impl Default for PruneBatchSizer {
    fn default() -> Self {
        Self { rows: Self::MIN_ROWS }
    }
}

impl PruneBatchSizer {
    /// Minimum rows of a step.
    pub const MIN_ROWS: usize = 100;
    /// Maximum rows of a step.
    pub const MAX_ROWS: usize = 2_000;
    /// A step that takes longer is halved.
    const SLOW_STEP: Duration = Duration::from_millis(10);
    /// A step that takes less time is doubled.
    const FAST_STEP: Duration = Duration::from_millis(4);
    /// The pause after a step, as a multiple of its duration: pruning uses a sixtieth of the store's time.
    const PAUSE_FACTOR: u32 = 59;
    const MIN_PAUSE: Duration = Duration::from_millis(20);
    const MAX_PAUSE: Duration = Duration::from_secs(2);

    /// Returns about how many rows the next step may delete.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Records how long a step took. Returns the pause before the next one.
    pub fn record_step(&mut self, took: Duration) -> Duration {
        if took > Self::SLOW_STEP {
            self.rows = (self.rows / 2).max(Self::MIN_ROWS);
        } else if took < Self::FAST_STEP {
            self.rows = (self.rows * 2).min(Self::MAX_ROWS);
        }
        (took * Self::PAUSE_FACTOR).clamp(Self::MIN_PAUSE, Self::MAX_PAUSE)
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
    fn tenant_retention_overrides_server_default() {
        let server = Retention::default();
        let of = |events, dead| server.for_tenant(&quotas(events, dead));
        assert_eq!(of(None, None), server);
        assert_eq!(of(Some(7), None), Retention { events: Some(7 * DAY), ..server });
        assert_eq!(
            of(Some(400), Some(60)),
            Retention { events: Some(400 * DAY), dead_letters: Some(60 * DAY) }
        );
        assert_eq!(of(Some(0), Some(0)), Retention { events: None, dead_letters: None });
        let for_ever = Retention { events: None, dead_letters: None };
        assert_eq!(
            for_ever.for_tenant(&quotas(Some(1), None)),
            Retention { events: Some(DAY), dead_letters: None }
        );
    }

    #[test]
    fn unlimited_retention_has_no_cutoff() {
        let now = time("2026-11-15T12:00:00Z");
        assert_eq!(
            Retention { events: None, dead_letters: None }.cutoffs(now),
            Cutoffs { events: None, dead: None }
        );
        let longer_than_all_time = Retention { events: Some(Duration::MAX), dead_letters: None };
        assert_eq!(longer_than_all_time.cutoffs(now).events, Some(Time::from_millis(0)));
    }

    #[test]
    fn start_of_month_is_correct() {
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
    fn row_pruning_starts_only_with_cutoffs_in_later_months() {
        let earliest = Some(time("2026-08-17T12:00:00Z"));
        let start = time("2026-08-01T00:00:00Z");
        assert_eq!(row_prune_cutoff(time("2026-08-17T12:00:00Z"), earliest), start);
        assert_eq!(row_prune_cutoff(time("2026-08-31T23:59:59Z"), earliest), start);
        let later = time("2026-09-01T00:00:00Z");
        assert_eq!(row_prune_cutoff(later, earliest), later);
        assert_eq!(
            row_prune_cutoff(later, None),
            later,
            "with an unlimited retention no partition is dropped"
        );
    }

    #[test]
    fn batch_grows_when_fast_and_shrinks_when_slow() {
        let mut stride = PruneBatchSizer::default();
        let millis = Duration::from_millis;
        assert_eq!(stride.rows(), 100);
        assert_eq!(stride.record_step(millis(1)), millis(59));
        assert_eq!(stride.rows(), 200);
        assert_eq!(stride.record_step(millis(5)), millis(295));
        assert_eq!(stride.rows(), 200);
        assert_eq!(stride.record_step(millis(11)), millis(649));
        assert_eq!(stride.rows(), 100);
        assert_eq!(stride.record_step(Duration::from_secs(10)), Duration::from_secs(2));
        assert_eq!(stride.rows(), 100);
    }

    proptest! {
        #[test]
        fn cutoff_is_monotonic_and_exact(
            now in 0..4_000_000_000_000_i64,
            later in 0..4_000_000_000_000_i64,
            days in 1..40_000_u32,
            created in 0..4_000_000_000_000_i64,
        ) {
            let kept = Retention::default().for_tenant(&quotas(Some(days), Some(days)));
            let old = |now: i64| kept.cutoffs(Time::from_millis(now)).events.unwrap() > Time::from_millis(created);
            let age = now - created;
            prop_assert_eq!(old(now), age > i64::from(days) * 86_400_000);
            prop_assert!(!old(now) || old(now.max(later)));
        }

        #[test]
        fn row_prune_cutoff_is_at_most_a_month_before_the_cutoff(
            cutoff in 0..4_000_000_000_000_i64,
            before in 0..4_000_000_000_000_i64,
        ) {
            let (earliest, cutoff) = (before.min(cutoff), Time::from_millis(cutoff));
            let one_by_one = row_prune_cutoff(cutoff, Some(Time::from_millis(earliest)));
            prop_assert!(one_by_one <= cutoff);
            prop_assert!(cutoff.duration_since(one_by_one) <= DAY * 31);
        }

        #[test]
        fn batch_size_and_pause_stay_within_bounds(took in proptest::collection::vec(0..10_000_u64, 1..50)) {
            let mut stride = PruneBatchSizer::default();
            for took in took {
                let pause = stride.record_step(Duration::from_millis(took));
                prop_assert!((PruneBatchSizer::MIN_ROWS..=PruneBatchSizer::MAX_ROWS).contains(&stride.rows()));
                prop_assert!(pause >= PruneBatchSizer::MIN_PAUSE && pause <= PruneBatchSizer::MAX_PAUSE);
            }
        }
    }
}

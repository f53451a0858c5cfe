//! Series of failures of a webhook: the failed attempts since its last success, and when its owner is notified of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    delivery::response::FailureCategory, notification::OccurrenceDetails, protection::breaker::Counts,
    time::Time,
};

/// Minimum number of failures for a webhook to count as failing, however old the first of them is.
pub const MIN_FAILURES: u32 = 2;

/// When a series of failures makes a webhook failing: at the number of failures or after the time, whichever is
/// reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailingRule {
    /// Number of failures; at least [`MIN_FAILURES`].
    pub after_failures: u32,
    /// Time since the first failure, if at least [`MIN_FAILURES`] attempts failed.
    pub after: Duration,
}

impl Default for FailingRule {
    fn default() -> Self {
        Self { after_failures: 5, after: Duration::from_secs(3600) }
    }
}

/// Failures of a webhook since its last success. They are counted until the series is reported, so that an endpoint
/// that is down costs a bounded number of writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureSeries {
    /// Time of the first failure.
    pub since: Time,
    /// The failures, until the series was reported.
    #[serde(default)]
    pub counts: Counts,
    /// Whether the webhook was reported as failing.
    #[serde(default)]
    pub is_reported: bool,
}

impl FailureSeries {
    /// Returns a series that starts at this time and has no failures yet.
    pub fn starting_at(since: Time) -> Self {
        Self { since, counts: Counts::default(), is_reported: false }
    }

    /// Counts a failure, unless the series is reported already.
    pub fn add(&mut self, category: FailureCategory) {
        if self.is_reported {
            return;
        }
        let counts = &mut self.counts;
        (counts.total, counts.failed) = (counts.total.saturating_add(1), counts.failed.saturating_add(1));
        let count = &mut counts.by_category[category as usize];
        *count = count.saturating_add(1);
    }

    /// Returns whether the webhook is failing.
    pub fn is_failing(&self, rule: &FailingRule, now: Time) -> bool {
        let failed = self.counts.failed;
        self.is_reported
            || failed >= MIN_FAILURES
                && (failed >= rule.after_failures || now.duration_since(self.since) >= rule.after)
    }

    /// Returns when the series is to be reported without a further failure, or `None` if it never is.
    pub fn report_due_at(&self, rule: &FailingRule) -> Option<Time> {
        (!self.is_reported && self.counts.failed >= MIN_FAILURES).then(|| self.since + rule.after)
    }

    /// Reports the series once it is failing: returns the details of the occurrence, and `None` from then on.
    pub fn report(&mut self, rule: &FailingRule, now: Time) -> Option<OccurrenceDetails> {
        if self.is_reported || !self.is_failing(rule, now) {
            return None;
        }
        self.is_reported = true;
        Some(OccurrenceDetails {
            reason: self.counts.most_frequent().map(|category| category.name().to_owned()),
            message: Some(format!(
                "{} attempts failed since {}, and none succeeded",
                self.counts.failed, self.since
            )),
            since: Some(self.since),
            failures: Some(self.counts.failed),
            ..OccurrenceDetails::default()
        })
    }

    /// Returns the details of the recovery, or `None` if the series was not reported.
    pub fn recovery(&self) -> Option<OccurrenceDetails> {
        self.is_reported
            .then(|| OccurrenceDetails { since: Some(self.since), ..OccurrenceDetails::default() })
    }

    /// Returns whether all failures are of this category, and there are enough of them to tell.
    pub fn is_only(&self, category: FailureCategory) -> bool {
        self.counts.failed >= MIN_FAILURES && self.counts.by_category[category as usize] == self.counts.failed
    }
}

/// Adds a failure to the stored series of a webhook: one of a series that started at `since`, as the node knows it.
/// Returns the series to store, and the details of the occurrence if it is reported now.
///
/// A stored series from before the last success has ended, although its end was not recorded: outcomes of concurrent
/// attempts may be recorded in another order than they had.
pub fn after_failure(
    stored: Option<FailureSeries>,
    last_success_at: Option<Time>,
    (since, category): (Time, FailureCategory),
    rule: &FailingRule,
    now: Time,
) -> (FailureSeries, Option<OccurrenceDetails>) {
    let has_ended = |series: &FailureSeries| last_success_at.is_some_and(|success| success > series.since);
    let mut series = match stored {
        Some(series) if has_ended(&series) => FailureSeries::starting_at(now),
        Some(series) => series,
        None => FailureSeries::starting_at(since),
    };
    series.add(category);
    let details = series.report(rule, now);
    (series, details)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULE: FailingRule = FailingRule { after_failures: 5, after: Duration::from_secs(3600) };

    fn at(secs: u32) -> Time {
        Time::from_secs(secs)
    }

    fn series(since: u32, failures: &[FailureCategory]) -> FailureSeries {
        let mut series = FailureSeries::starting_at(at(since));
        failures.iter().for_each(|category| series.add(*category));
        series
    }

    #[test]
    fn fifth_failure_or_second_after_an_hour_is_failing() {
        use FailureCategory::Timeout;
        assert_eq!(RULE, FailingRule::default());
        assert!(!series(0, &[Timeout; 4]).is_failing(&RULE, at(3599)));
        assert!(series(0, &[Timeout; 5]).is_failing(&RULE, at(0)));
        assert!(!series(0, &[Timeout; 2]).is_failing(&RULE, at(3599)));
        assert!(series(0, &[Timeout; 2]).is_failing(&RULE, at(3600)));
        assert!(!series(0, &[Timeout]).is_failing(&RULE, at(86_400)), "one failure says nothing");
        let eager = FailingRule { after_failures: 2, after: Duration::ZERO };
        assert!(
            !series(0, &[Timeout]).is_failing(&eager, at(9))
                && series(0, &[Timeout; 2]).is_failing(&eager, at(0))
        );
    }

    #[test]
    fn series_is_reported_once_with_most_frequent_category() {
        use FailureCategory::{Dns, Timeout};
        let mut failing = series(60, &[Dns, Timeout, Timeout, Dns]);
        assert_eq!(failing.report(&RULE, at(61)), None);
        assert_eq!(failing.recovery(), None, "no recovery of what was not reported");
        failing.add(Dns);
        let details = failing.report(&RULE, at(62)).unwrap();
        assert_eq!(
            (details.reason.as_deref(), details.failures, details.since),
            (Some("dns"), Some(5), Some(at(60)))
        );
        assert_eq!(
            details.message.as_deref(),
            Some("5 attempts failed since 1970-01-01T00:01:00.000Z, and none succeeded")
        );
        failing.add(Timeout);
        assert_eq!((failing.counts.failed, failing.report(&RULE, at(9_999))), (5, None));
        assert_eq!(failing.recovery().unwrap().since, Some(at(60)));
    }

    #[test]
    fn due_time_needs_two_failures_and_ends_with_the_report() {
        let mut waiting = series(10, &[FailureCategory::Tls]);
        assert_eq!(waiting.report_due_at(&RULE), None);
        waiting.add(FailureCategory::Tls);
        assert_eq!(waiting.report_due_at(&RULE), Some(at(3610)));
        assert!(waiting.report(&RULE, at(3609)).is_none() && waiting.report(&RULE, at(3610)).is_some());
        assert_eq!(waiting.report_due_at(&RULE), None);
    }

    #[test]
    fn category_of_a_series_needs_two_failures() {
        use FailureCategory::{Dns, Timeout};
        assert!(series(0, &[Dns, Dns]).is_only(Dns));
        assert!(!series(0, &[Dns]).is_only(Dns) && !series(0, &[Dns, Timeout, Dns]).is_only(Dns));
    }

    #[test]
    fn stored_series_from_before_the_last_success_starts_again() {
        let failure = (at(100), FailureCategory::Network);
        let stored = series(10, &[FailureCategory::Network; 4]);
        let (kept, reported) = after_failure(Some(stored.clone()), Some(at(10)), failure, &RULE, at(101));
        assert_eq!((kept.since, kept.counts.failed, reported.is_some()), (at(10), 5, true));
        let (fresh, reported) = after_failure(Some(stored), Some(at(11)), failure, &RULE, at(101));
        assert_eq!((fresh.since, fresh.counts.failed, reported), (at(101), 1, None));
        let (first, _) = after_failure(None, Some(at(99)), failure, &RULE, at(101));
        assert_eq!((first.since, first.counts.failed), (at(100), 1));
    }

    #[test]
    fn stored_form_tolerates_missing_fields() {
        let old: FailureSeries = serde_json::from_str(r#"{"since": "1970-01-01T00:00:05Z"}"#).unwrap();
        assert_eq!(old, FailureSeries::starting_at(at(5)));
    }

    proptest! {
        /// One report per series, not before the second failure, at the latest with the configured failure, and never
        /// without one that the rule demands.
        #[test]
        fn reports_follow_the_rule(
            gaps in prop::collection::vec(0..2_000u32, 1..40), after_failures in 2..10u32, after in 0..5_000u32,
        ) {
            let rule = FailingRule { after_failures, after: Duration::from_secs(after.into()) };
            let (mut stored, mut now, mut reports) = (None, 1_000, Vec::new());
            for (index, gap) in gaps.iter().enumerate() {
                now += gap;
                let (series, details) = after_failure(stored, None, (at(now), FailureCategory::Dns), &rule, at(now));
                if details.is_some() {
                    reports.push((index as u32 + 1, at(now)));
                }
                stored = Some(series);
            }
            let series = stored.unwrap();
            let mut times = gaps.iter().scan(1_000, |now, gap| { *now += gap; Some(at(*now)) }).enumerate();
            let expected = times.find(|(index, now)| {
                let failed = *index as u32 + 1;
                failed >= MIN_FAILURES && (failed >= after_failures || now.duration_since(series.since) >= rule.after)
            });
            let expected: Vec<_> = expected.map(|(index, now)| (index as u32 + 1, now)).into_iter().collect();
            prop_assert_eq!(&reports, &expected);
            prop_assert_eq!(series.is_reported, !expected.is_empty());
            let stored = serde_json::to_string(&series).unwrap();
            prop_assert_eq!(serde_json::from_str::<FailureSeries>(&stored).unwrap(), series);
        }
    }
}

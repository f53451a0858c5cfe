//! Histogram of the responses of an endpoint in the time range of its page: successes as the rollups count them, failures
//! by status code, or by category where there was no response, as the attempt index has them.

use std::collections::BTreeMap;

use redrive_core::{
    Time,
    statistics::{rollup::Rollup, traffic::Range},
};
use redrive_store::AttemptCount;

use crate::dashboard::format;

/// Maximum number of attempts of the index that are counted: all failures, and the few successes that it has.
pub(super) const MAX_COUNTED: usize = 5_000;
/// Width of the longest bar, in its own units.
const WIDTH: u64 = 100;

/// One kind of response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResponseBar {
    /// Status code, or the failure without a response.
    pub(super) name: String,
    /// Color class.
    pub(super) tone: &'static str,
    /// Number of attempts.
    pub(super) count: u64,
    /// Width of the bar.
    pub(super) width: u64,
    /// Filter of the attempts with this response.
    pub(super) filter: String,
}

/// The histogram.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Responses {
    /// The kinds of responses: successes, failures by status code, then those without one.
    pub(super) bars: Vec<ResponseBar>,
    /// Number of failures that are too many to be counted by kind.
    pub(super) uncounted: u64,
}

impl Responses {
    /// Builds the histogram from the totals of a time range, and the attempts of the index that were sent since its start.
    pub(super) fn new(totals: &Rollup, indexed: &[AttemptCount], since: Time) -> Self {
        let mut failures = BTreeMap::<(u16, &'static str), u64>::new();
        for one in indexed {
            let Some(category) = one.category else { continue };
            // Failures without a status code come last.
            let kind = one.code.map_or((u16::MAX, category.name()), |code| (code, ""));
            *failures.entry(kind).or_default() += one.count as u64;
        }
        let successes = u64::from(totals.successes);
        let max = failures.values().copied().chain([successes]).max().unwrap_or(0).max(1);
        let since = format::query("from", &since.to_string());
        let bar = |name: String, tone, count: u64, filter: &str| {
            let (width, filter) = ((count * WIDTH / max).max(1), format!("{filter}&{since}"));
            ResponseBar { name, tone, count, width, filter }
        };
        let success = (successes > 0).then(|| bar("success".into(), "good", successes, "status=success"));
        let counted: u64 = failures.values().sum();
        let failed = failures.into_iter().map(|((code, category), count)| match code {
            u16::MAX => {
                bar(format::humanize(category), "bad", count, &format::query("failure_category", category))
            }
            code => {
                let filter = format::query("http_status_code", &code.to_string());
                bar(code.to_string(), "bad", count, &format!("{filter}&status=failed,exhausted"))
            }
        });
        let is_cut = indexed.iter().map(|one| one.count).sum::<usize>() >= MAX_COUNTED;
        let uncounted = if is_cut { u64::from(totals.failures()).saturating_sub(counted) } else { 0 };
        Self { bars: success.into_iter().chain(failed).collect(), uncounted }
    }
}

/// Describes the time range of the page.
pub(super) fn describe_range(range: Range) -> &'static str {
    match range {
        Range::Hour => "last hour",
        Range::SixHours => "last 6 hours",
        _ => "last 24 hours",
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::FailureCategory;

    use super::*;

    const SINCE: Time = Time::from_secs(60);

    fn count(code: Option<u16>, category: Option<FailureCategory>, count: usize) -> AttemptCount {
        AttemptCount { code, category, count }
    }

    fn totals(successes: u32, failures: u32) -> Rollup {
        Rollup { attempts: successes + failures, successes, ..Rollup::default() }
    }

    #[test]
    fn successes_come_first_and_failures_without_a_response_last() {
        let indexed = [
            count(None, Some(FailureCategory::Timeout), 1),
            count(Some(200), None, 3),
            count(Some(503), Some(FailureCategory::ServerError), 10),
            count(Some(429), Some(FailureCategory::RateLimit), 4),
        ];
        let found = Responses::new(&totals(40, 15), &indexed, SINCE);
        let bars: Vec<_> =
            found.bars.iter().map(|bar| (bar.name.as_str(), bar.tone, bar.count, bar.width)).collect();
        assert_eq!(
            bars,
            [
                ("success", "good", 40, 100),
                ("429", "bad", 4, 10),
                ("503", "bad", 10, 25),
                ("timeout", "bad", 1, 2),
            ],
            "successes are those of the rollups"
        );
        let filter = |at: usize| found.bars[at].filter.replace("%3A", ":");
        assert_eq!(filter(0), "status=success&from=1970-01-01T00:01:00.000Z");
        assert!(filter(1).starts_with("http_status_code=429&status=failed,exhausted&from="), "{}", filter(1));
        assert!(filter(3).starts_with("failure_category=timeout&from="), "{}", filter(3));
        assert_eq!(found.uncounted, 0);
    }

    #[test]
    fn failures_beyond_the_limit_are_reported() {
        let indexed = [count(Some(500), Some(FailureCategory::ServerError), MAX_COUNTED)];
        let found = Responses::new(&totals(0, 6_000), &indexed, SINCE);
        assert_eq!((found.bars.len(), found.uncounted), (1, 6_000 - MAX_COUNTED as u64));
    }

    #[test]
    fn endpoint_without_attempts_has_no_bars() {
        assert_eq!(Responses::new(&totals(0, 0), &[], SINCE), Responses::default());
    }
}

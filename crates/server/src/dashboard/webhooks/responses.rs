//! Histogram of the responses of an endpoint: the last response of its newest deliveries by status code, or by failure
//! where there was none. Rollups have no status codes, so the histogram covers a bounded number and says so.

use std::collections::BTreeMap;

use redrive_core::{FailureCategory, Time};
use redrive_store::Delivery;

use crate::dashboard::format;

/// Maximum number of deliveries that are counted.
pub(super) const MAX_DELIVERIES: u32 = 200;
/// Width of the longest bar, in its own units.
const WIDTH: usize = 100;

/// One kind of response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResponseBar {
    /// Status code, or the failure without a response.
    pub(super) name: String,
    /// Color class.
    pub(super) tone: &'static str,
    /// Number of deliveries.
    pub(super) count: usize,
    /// Width of the bar.
    pub(super) width: usize,
    /// Filter of deliveries whose last response is this one.
    pub(super) filter: String,
}

/// The last response of a delivery: its status code, its failure, and when the delivery was created.
pub(super) struct LastResponse {
    pub(super) code: Option<u16>,
    pub(super) failure: Option<FailureCategory>,
    pub(super) created_at: Time,
}

impl LastResponse {
    /// Returns the last response of a delivery, or `None` if it has no attempt.
    pub(super) fn of_delivery(delivery: &Delivery) -> Option<Self> {
        let has_attempt = delivery.last_status_code.is_some() || delivery.failure_category.is_some();
        has_attempt.then_some(Self {
            code: delivery.last_status_code,
            failure: delivery.failure_category,
            created_at: delivery.created_at,
        })
    }
}

/// The histogram.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Responses {
    /// The kinds of responses: by status code, then those without one.
    pub(super) bars: Vec<ResponseBar>,
    /// Number of deliveries counted.
    pub(super) total: usize,
    /// Whether there are older deliveries in the time range that are not counted.
    pub(super) is_cut: bool,
}

impl Responses {
    /// Counts the last responses of deliveries that were created at `since` or later. `newest` has the deliveries
    /// with an attempt, newest first; of a full list, older ones may exist.
    pub(super) fn new(newest: &[LastResponse], since: Time, is_full: bool) -> Self {
        let mut counts = BTreeMap::<(u16, &'static str), (usize, &'static str)>::new();
        let recent = newest.iter().take_while(|response| response.created_at >= since);
        let mut total = 0;
        for response in recent {
            let tone = if response.failure.is_none() { "good" } else { "bad" };
            let failure = response.failure.map_or("", FailureCategory::name);
            // Deliveries without a status code come last.
            let kind = response.code.map_or((u16::MAX, failure), |code| (code, ""));
            counts.entry(kind).or_insert((0, tone)).0 += 1;
            total += 1;
        }
        let max = counts.values().map(|(count, _)| *count).max().unwrap_or(1);
        let bar = |((code, failure), (count, tone)): ((u16, &str), (usize, &'static str))| {
            let (name, filter) = match code {
                u16::MAX => (format::humanize(failure), format::query("failure_category", failure)),
                code => (code.to_string(), format::query("status_code", &code.to_string())),
            };
            ResponseBar { name, tone, count, width: (count * WIDTH / max).max(1), filter }
        };
        Self { bars: counts.into_iter().map(bar).collect(), total, is_cut: is_full && total == newest.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(code: Option<u16>, failure: Option<FailureCategory>, second: u32) -> LastResponse {
        LastResponse { code, failure, created_at: Time::from_secs(second) }
    }

    fn responses() -> [LastResponse; 4] {
        [
            response(Some(200), None, 9),
            response(None, Some(FailureCategory::Timeout), 8),
            response(Some(503), Some(FailureCategory::ServerError), 7),
            response(Some(200), None, 6),
        ]
    }

    #[test]
    fn responses_are_counted_by_code_and_failures_come_last() {
        let found = Responses::new(&responses(), Time::from_secs(1), false);
        let bars: Vec<_> =
            found.bars.iter().map(|bar| (bar.name.as_str(), bar.tone, bar.count, bar.width)).collect();
        assert_eq!(bars, [("200", "good", 2, 100), ("503", "bad", 1, 50), ("timeout", "bad", 1, 50)]);
        assert_eq!(found.bars[2].filter, "failure_category=timeout");
        assert_eq!((found.total, found.is_cut), (4, false));
    }

    #[test]
    fn only_deliveries_of_the_time_range_are_counted() {
        let found = Responses::new(&responses(), Time::from_secs(8), true);
        assert_eq!((found.total, found.is_cut), (2, false));
    }

    #[test]
    fn full_list_within_the_time_range_is_reported_as_cut() {
        assert!(Responses::new(&responses(), Time::from_secs(1), true).is_cut);
    }

    #[test]
    fn endpoint_without_deliveries_has_no_bars() {
        assert_eq!(Responses::new(&[], Time::from_secs(1), false), Responses::default());
    }
}

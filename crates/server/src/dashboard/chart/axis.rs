//! Positions and labels of grid lines.

use std::time::Duration;

use redrive_core::Time;

use crate::dashboard::{format, zone::Zone};

/// Unit of a chart's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dashboard) enum Unit {
    /// A count.
    Count,
    /// Milliseconds.
    Millis,
}

impl Unit {
    /// Formats a value in full, for tooltips.
    pub(super) fn exact(self, value: f64) -> String {
        match self {
            Self::Count => format::number(value.round() as u64),
            Self::Millis => format::millis(value),
        }
    }

    /// Formats a value briefly, for axis labels.
    pub(super) fn brief(self, value: f64) -> String {
        let short = |value: f64, unit: &str| {
            let text = format!("{value:.1}");
            format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
        };
        match self {
            Self::Count if value >= 1e6 => short(value / 1e6, "M"),
            Self::Count if value >= 1e4 => short(value / 1e3, "k"),
            Self::Count => format::number(value.round() as u64),
            Self::Millis if value >= 1e3 => short(value / 1e3, " s"),
            Self::Millis => short(value, " ms"),
        }
    }
}

/// Returns the values of the grid lines, from 0 to at least the maximum, in about four steps or fewer of 1, 2 or 5
/// times a power of ten. For counts, the step is at least 1.
pub(super) fn levels(max: f64, unit: Unit) -> Vec<f64> {
    let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
    let rough = max / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let step = if unit == Unit::Count { step.max(1.0) } else { step };
    // Rounding errors must not add another line.
    let steps = (max / step - 1e-9).ceil().max(1.0) as usize;
    (0..=steps).map(|n| n as f64 * step).collect()
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Possible intervals between time labels, in seconds.
const STEPS: [u64; 17] = [
    1,
    5,
    15,
    MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    3 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    2 * DAY,
    7 * DAY,
    30 * DAY,
];
/// Maximum number of intervals between time labels.
const MAX_TIME_LABELS: u64 = 6;

/// Returns times between two times that are round in a time zone, with their labels.
pub(super) fn times(from: Time, to: Time, zone: &Zone) -> Vec<(Time, String)> {
    let whole = to.duration_since(from).as_secs();
    let step = STEPS.into_iter().find(|step| whole / step <= MAX_TIME_LABELS).unwrap_or(30 * DAY);
    let first = u64::try_from(zone.to_local(from).millis()).unwrap_or(0).div_ceil(1000 * step) * step;
    let at = |secs: u64| zone.utc_of(Time::default() + Duration::from_secs(secs));
    let all = (0..=MAX_TIME_LABELS).map(|n| first + n * step).map(at);
    let within = all.filter(|time| (from..=to).contains(time));
    within.map(|time| (time, label(time, step, zone))).collect()
}

fn label(time: Time, step: u64, zone: &Zone) -> String {
    let clock = clock(time, zone);
    match () {
        () if step >= DAY || clock == "00:00" && step >= HOUR => day(time, zone),
        () if step < MINUTE => zone.to_local(time).to_string().get(11..19).unwrap_or_default().to_owned(),
        () => clock,
    }
}

/// Formats a time of day in a time zone.
pub(super) fn clock(time: Time, zone: &Zone) -> String {
    zone.to_local(time).to_string().get(11..16).unwrap_or_default().to_owned()
}

/// Formats a date in a time zone, such as "14 Nov".
pub(super) fn day(time: Time, zone: &Zone) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = zone.to_local(time).to_string();
    let part = |from: usize| text.get(from..from + 2).and_then(|text| text.parse::<usize>().ok());
    let month = part(5).and_then(|month| MONTHS.get(month.wrapping_sub(1))).unwrap_or(&"");
    format!("{} {month}", part(8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dashboard::zone::with_zone;

    #[test]
    fn grid_lines_are_at_round_values() {
        assert_eq!(levels(97.0, Unit::Count), [0.0, 50.0, 100.0]);
        assert_eq!(levels(80.0, Unit::Count), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(levels(3.0, Unit::Count), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(levels(0.0, Unit::Count), [0.0, 1.0]);
        assert_eq!(levels(0.9, Unit::Millis), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn axis_labels_are_abbreviated() {
        let brief = [0.0, 9_999.0, 12_000.0, 2_500_000.0].map(|n| Unit::Count.brief(n));
        assert_eq!(brief, ["0", "9,999", "12k", "2.5M"]);
        assert_eq!([0.5, 250.0, 1_500.0].map(|n| Unit::Millis.brief(n)), ["0.5 ms", "250 ms", "1.5 s"]);
        assert_eq!(Unit::Count.exact(12_345.0), "12,345");
    }

    #[test]
    fn time_labels_are_round_and_midnight_shows_date() {
        let at = |secs: u32| Time::from_secs(1_700_000_000 + secs);
        let labels = |to: u32| {
            let times = times(at(0), at(to), &Zone::UTC);
            times.into_iter().map(|(_, label)| label).collect::<Vec<_>>()
        };
        assert_eq!(labels(3_600), ["22:20", "22:30", "22:40", "22:50", "23:00", "23:10"]);
        assert_eq!(labels(6 * 3_600), ["23:00", "15 Nov", "01:00", "02:00", "03:00", "04:00"]);
        assert_eq!(
            labels(30),
            ["22:13:20", "22:13:25", "22:13:30", "22:13:35", "22:13:40", "22:13:45", "22:13:50"]
        );
        assert_eq!(labels(3 * 86_400), ["15 Nov", "12:00", "16 Nov", "12:00", "17 Nov", "12:00"]);
    }

    #[test]
    fn time_labels_are_round_in_the_time_zone() {
        let at = |secs: u32| Time::from_secs(1_700_000_000 + secs);
        let in_kolkata = || times(at(0), at(6 * 3_600), &Zone::current());
        let labels: Vec<_> =
            with_zone("Asia/Kolkata~330", in_kolkata).into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["04:00", "05:00", "06:00", "07:00", "08:00", "09:00"]);
    }

    proptest! {
        #[test]
        fn last_grid_line_is_at_least_the_maximum(max in prop_oneof![0.0..10.0f64, 0.0..1e12], millis: bool) {
            let levels = levels(max, if millis { Unit::Millis } else { Unit::Count });
            prop_assert!((2..=6).contains(&levels.len()), "{levels:?}");
            prop_assert!(levels[levels.len() - 1] * (1.0 + 1e-6) >= max);
        }

        #[test]
        fn time_labels_stay_within_range(from in 0..4_000_000_000u32, whole in 0..100_000_000u32) {
            let (from, to) = (Time::from_secs(from), Time::from_secs(from) + Duration::from_secs(whole.into()));
            let times = times(from, to, &Zone::UTC);
            prop_assert!(times.len() <= MAX_TIME_LABELS as usize + 1);
            prop_assert!(times.iter().all(|(time, label)| (from..=to).contains(time) && !label.is_empty()));
        }
    }
}

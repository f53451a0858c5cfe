//! Charts of a webhook: responses, open periods of its circuit, and its retry schedule.

use std::{borrow::Borrow, time::Duration};

use redrive_core::{
    FailureCategory, Time,
    delivery::retry::RetryPolicy,
    statistics::{rollup::Latencies, traffic::Range},
};
use redrive_store::{CircuitPeriod, MinuteRollup};

use super::status_text;
use crate::dashboard::{
    chart::{self, Chart, Series, Svg, TimeBand, TimeSlots, Unit},
    format,
};

const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: i64 = 60_000;

/// Selectable ranges of the charts, about as long as the per-minute rollups of webhooks are kept.
pub(super) const RANGES: [Range; 3] = [Range::Hour, Range::SixHours, Range::Day];

/// Formats how long a circuit was open.
pub(super) fn open_duration(period: &CircuitPeriod) -> String {
    match period.ended_at {
        Some(end) => format!("open for {}", format::format_duration(end.duration_since(period.opened_at))),
        None => "open now".to_owned(),
    }
}

/// A chart with its legend.
pub(super) struct ChartWithLegend {
    pub(super) chart: Svg,
    pub(super) legend: Svg,
}

/// Draws attempts and response times over time.
pub(super) fn traffic_charts(minutes: &[MinuteRollup], range: Range, now: Time) -> [ChartWithLegend; 2] {
    let axis = range.axis(now);
    let slots = TimeSlots::from(axis);
    let (mut good, mut bad) = (vec![0.0; slots.count], vec![0.0; slots.count]);
    let mut latencies = vec![Latencies::default(); slots.count];
    for minute in minutes {
        let Some(slot) = axis.index_of(minute.minute) else { continue };
        good[slot] += f64::from(minute.rollup.successes);
        bad[slot] += f64::from(minute.rollup.failures());
        latencies[slot].merge(&minute.rollup.latencies);
    }
    let rows = [Series::new("succeeded", "good", good), Series::new("failed", "bad", bad)];
    let chart = Chart { title: "Attempts", unit: Unit::Count, slots };
    let attempts = ChartWithLegend { chart: chart.bars(&rows), legend: chart::legend(&rows) };
    let percentile = |name, tone, percent: f64| Series {
        name,
        tone,
        values: latencies.iter().map(|all| all.percentile(percent)).collect(),
    };
    let rows =
        [percentile("p50", "one", 50.0), percentile("p95", "two", 95.0), percentile("p99", "three", 99.0)];
    let chart = Chart { title: "Response time", unit: Unit::Millis, slots };
    [attempts, ChartWithLegend { chart: chart.lines(&rows), legend: chart::legend(&rows) }]
}

/// Draws the open periods of a circuit in the last day. Times are rounded to the minute, so that the page changes
/// at most once a minute if nothing happens.
pub(super) fn circuit_timeline(periods: &[CircuitPeriod], now: Time) -> Svg {
    let now = Time::from_millis(now.millis() / MINUTE * MINUTE + MINUTE);
    let band = |period: &CircuitPeriod| {
        let why = if period.forced {
            "Forced open".to_owned()
        } else {
            status_text::describe_window(&period.counts)
        };
        TimeBand {
            from: period.opened_at,
            to: period.ended_at.unwrap_or(now),
            tone: if period.forced { "waiting" } else { "bad" },
            tip: format!("{}\n{}\n{why}", format::format_time(period.opened_at), open_duration(period)),
        }
    };
    let bands: Vec<TimeBand<'_>> = periods.iter().map(band).collect();
    let title = match bands.len() {
        0 => "The circuit was not open in the last 24 hours".to_owned(),
        n => format!("The circuit was open {} in the last 24 hours, drawn over time", status_text::times(n)),
    };
    chart::bands(&title, now.saturating_sub(DAY), now, &bands)
}

/// An attempt of a retry schedule.
#[derive(Debug, PartialEq)]
pub(super) struct Step {
    /// Number of the attempt.
    pub(super) number: u32,
    /// Delay after the previous attempt, or after the event for the first one.
    pub(super) wait: Duration,
    /// Time after the event, if each previous attempt fails immediately.
    pub(super) at: Duration,
    /// Whether the delivery expires before this attempt.
    pub(super) never: bool,
}

/// Returns the attempts that a policy allows if each of them fails.
pub(super) fn schedule_steps(policy: &RetryPolicy) -> Vec<Step> {
    let mut at = Duration::ZERO;
    (1..=policy.max_attempts())
        .map(|number| {
            let wait = match number {
                1 => policy.first_delay(),
                // The random value 0.5 is the middle of the jitter range, so the delay is the configured one.
                _ => policy.delay(number - 1, FailureCategory::ServerError, None, 0.5),
            };
            at = at.saturating_add(wait);
            Step { number, wait, at, never: at > policy.give_up_after.as_duration() }
        })
        .collect()
}

/// Draws the attempts on a logarithmic timeline, on which the first seconds take as much width as the last days.
pub(super) fn schedule_chart(policy: &RetryPolicy) -> Svg {
    let dots: Vec<chart::TimeDot<'_>> = schedule_steps(policy)
        .into_iter()
        .map(|step| chart::TimeDot {
            at: step.at,
            tone: if step.never { "off" } else { "busy" },
            mark: step.number.to_string(),
            label: format_offset(step.at),
            tip: match step.never {
                false => format!("Attempt {}: {}", step.number, format_after_event(step.at)),
                true => format!("Attempt {} is not sent, because the delivery expires first", step.number),
            },
        })
        .collect();
    let last = dots.last().map_or(Duration::ZERO, |dot| dot.at);
    let title = format!("{} attempts over {}, on a logarithmic scale", dots.len(), format_exact(last));
    chart::schedule(&title, &dots)
}

/// Formats a time after an event briefly.
fn format_offset(at: Duration) -> String {
    match at {
        Duration::ZERO => "immediately".to_owned(),
        at => format_exact(at),
    }
}

/// Formats a duration, with a fraction if it is below a minute.
pub(super) fn format_exact(length: impl Borrow<Duration>) -> String {
    match *length.borrow() {
        length if length < Duration::from_secs(1) => format!("{} ms", length.as_millis()),
        length if length < Duration::from_secs(60) && length.subsec_millis() > 0 => {
            format!("{:.1} s", length.as_secs_f64())
        }
        length => format::format_duration(length),
    }
}

/// Formats a time after an event.
pub(super) fn format_after_event(at: impl Borrow<Duration>) -> String {
    match *at.borrow() {
        Duration::ZERO => "immediately".to_owned(),
        at => format!("{} after the event", format_exact(at)),
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::{WebhookId, protection::breaker::Counts, statistics::rollup::Rollup};

    use super::*;

    const NOW: Time = Time::from_secs(1_700_000_000);

    #[test]
    fn attempt_times_accumulate_delays() {
        let steps = schedule_steps(&RetryPolicy::default());
        let times: Vec<u64> = steps.iter().take(4).map(|step| step.at.as_secs()).collect();
        assert_eq!((steps.len(), times), (10, vec![0, 5, 305, 2_105]));
        assert!(steps.iter().all(|step| !step.never), "all attempts fit into five days");
        let short = RetryPolicy {
            give_up_after: redrive_core::time::HumanDuration::secs(3_600),
            ..RetryPolicy::default()
        };
        let never: Vec<u32> =
            schedule_steps(&short).iter().filter(|step| step.never).map(|step| step.number).collect();
        assert_eq!(never, [5, 6, 7, 8, 9, 10]);
        assert!(schedule_chart(&short).to_string().contains("Attempt 5 is not sent"));
    }

    #[test]
    fn short_durations_show_fractions() {
        let exact = [0, 500, 1_000, 2_500, 61_500].map(|ms| format_exact(Duration::from_millis(ms)));
        assert_eq!(exact, ["0 ms", "500 ms", "1 s", "2.5 s", "1 min 1 s"]);
    }

    #[test]
    fn rollups_of_same_minute_are_summed() {
        let part = |successes: u32, attempts: u32| {
            let mut rollup = Rollup { successes, attempts, ..Rollup::default() };
            rollup.latencies.add(20_000);
            MinuteRollup {
                tenant_id: redrive_core::TenantId::default(),
                webhook_id: WebhookId::new(NOW, &[0; 10]),
                minute: Time::from_secs(1_699_999_980),
                rollup,
            }
        };
        let [attempts, latency] = traffic_charts(&[part(2, 3), part(1, 1)], Range::Hour, NOW);
        let svg = attempts.chart.to_string();
        assert!(svg.contains("succeeded: 3&#10;failed: 1"), "{svg}");
        assert!(latency.chart.to_string().contains("p50: "));
        let [attempts, _] = traffic_charts(&[part(2, 3)], Range::Day, NOW + DAY / 2);
        assert!(
            attempts.chart.to_string().contains("failed 1 in total"),
            "the range includes half a day ago"
        );
    }

    #[test]
    fn circuit_timeline_shows_when_and_why_open() {
        let counts = Counts { total: 20, failed: 12, ..Counts::default() };
        let period = |ago: u64, ended: Option<u64>| CircuitPeriod {
            opened_at: NOW.saturating_sub(Duration::from_secs(ago)),
            ended_at: ended.map(|ago| NOW.saturating_sub(Duration::from_secs(ago))),
            forced: ended.is_none(),
            counts,
        };
        let svg = circuit_timeline(&[period(600, None), period(7_200, Some(3_600))], NOW).to_string();
        assert!(svg.contains("open for 1 h&#10;12 of 20 attempts had failed"), "{svg}");
        assert!(svg.contains("open now&#10;Forced open"), "{svg}");
        let later = circuit_timeline(&[period(600, None)], NOW + Duration::from_secs(5)).to_string();
        assert_eq!(later, circuit_timeline(&[period(600, None)], NOW).to_string());
    }
}

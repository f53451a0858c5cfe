//! The overview of a tenant: where everybody begins. What is sent, what waits, what fails, and since when.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use redrive_core::{
    FailureCategory, Time,
    delivery::lane::Priority,
    statistics::traffic::{Point, Range, lately},
};
use serde::Deserialize;

use super::{
    Shown,
    chart::{Chart, Series, Slots, Svg, Unit, legend, spark},
    first_run::FirstRun,
    format,
    page::{Asked, Frame, Html},
    viewer::Looking,
};
use crate::{
    api::AppState,
    app::{
        overview::{IncidentSeen, Overview},
        traffic::TrafficSeen,
        webhook_summary::LastHour,
    },
};

const HOUR: Duration = Duration::from_secs(3600);
/// Kinds of failure that are drawn; the rest is drawn together.
const KINDS: usize = 4;

/// Which time to look at.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    range: Option<String>,
}

impl Which {
    /// The range asked for; the last hour if there is no such range.
    fn range(&self) -> Range {
        self.range.as_deref().and_then(Range::parse).unwrap_or(Range::Hour)
    }
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    asked: Asked<Which>,
    first_run: Option<FirstRun>,
    seen: Overview,
    charts: [Drawn; 3],
}

/// A chart with its title and what its colours mean.
struct Drawn {
    title: String,
    chart: Svg,
    legend: Svg,
}

impl Drawn {
    fn bars(title: String, slots: Slots, rows: &[Series<'_>]) -> Self {
        let chart = Chart { title: &title, unit: Unit::Count, slots }.bars(rows);
        Self { chart, legend: legend(rows), title }
    }
}

/// The overview.
pub(super) async fn page(State(app): State<AppState>, looking: Looking, asked: Asked<Which>) -> Shown {
    let seen = app.overview(looking.tenant.clone(), asked.query.range()).await?;
    let first_run = FirstRun::of(&app, &looking.tenant).await?;
    let charts = charts(&seen.traffic);
    Html::of(&OverviewPage { frame: looking.frame("overview"), asked, first_run, seen, charts })
}

impl OverviewPage {
    /// The ranges to choose from, with whether each is the one that is shown.
    fn ranges(&self) -> Vec<(&'static str, bool)> {
        Range::ALL.iter().map(|range| (range.name(), *range == self.seen.traffic.range)).collect()
    }

    /// The time within which so many percent of the attempts ended.
    fn percentile(&self, percent: f64) -> String {
        let millis = self.seen.traffic.total.latencies.percentile(percent);
        millis.map_or_else(|| "–".to_owned(), format::millis)
    }

    fn success_rate(&self) -> String {
        self.seen.traffic.total.success_rate().map_or_else(|| "–".to_owned(), format::percent)
    }

    /// The colour of the share that succeeded.
    fn success_tone(&self) -> &'static str {
        rate_tone(self.seen.traffic.total.success_rate())
    }

    /// Whether failures were counted for less than an hour.
    fn is_cut_short(&self) -> bool {
        self.seen.worst.since > lately(self.seen.traffic.now, HOUR)
    }

    /// What waits, by how urgent it is; only what occurs.
    fn by_priority(&self) -> Vec<(&'static str, u64)> {
        let counted = Priority::ALL.into_iter().zip(self.seen.queue.by_priority);
        counted.filter(|(_, count)| *count > 0).map(|(priority, count)| (priority.name(), count)).collect()
    }
}

/// The colour of a share that succeeded.
pub(super) fn rate_tone(rate: Option<f64>) -> &'static str {
    match rate {
        None => "",
        Some(rate) if rate >= 0.99 => "good",
        Some(rate) if rate >= 0.9 => "waiting",
        Some(_) => "bad",
    }
}

/// How a webhook did in the last hour, as small as a word.
pub(super) fn sparkline(hour: &LastHour) -> Svg {
    let of = |value: fn(u32, u32) -> u32| {
        let minutes = hour.minutes.iter();
        minutes.map(move |one| f64::from(value(one.attempts, one.successes))).collect::<Vec<_>>()
    };
    let rows = [
        Series::of("succeeded", "good", of(|_, successes| successes)),
        Series::of("failed", "bad", of(|attempts, successes| attempts.saturating_sub(successes))),
    ];
    spark("Attempts in the last hour", &rows)
}

/// For how long a circuit was open, in words.
fn open_for(incident: &IncidentSeen, now: &Time) -> String {
    let end = incident.period.ended_at.unwrap_or(*now);
    format::span(end.since(incident.period.opened_at))
}

fn charts(traffic: &TrafficSeen) -> [Drawn; 3] {
    let range = traffic.range;
    let slots = Slots::from(range.axis(traffic.now));
    let per = format::span(range.step());
    let per = if per == "1 min" { "minute".to_owned() } else { per };
    let of = |value: &dyn Fn(&Point) -> f64| traffic.points.iter().map(value).collect::<Vec<_>>();
    let ended = [
        Series::of("delivered", "good", of(&|point| point.traffic.ended.delivered as f64)),
        Series::of("dead", "bad", of(&|point| point.traffic.ended.dead as f64)),
        Series::of("cancelled", "off", of(&|point| point.traffic.ended.cancelled as f64)),
    ];
    [
        Drawn::bars(format!("Deliveries per {per}"), slots, &ended),
        latencies(traffic, slots),
        failures(traffic, slots, &per),
    ]
}

fn latencies(traffic: &TrafficSeen, slots: Slots) -> Drawn {
    let line = |name, tone, percent: f64| Series {
        name,
        tone,
        values: traffic.points.iter().map(|point| point.traffic.sent.latencies.percentile(percent)).collect(),
    };
    let rows = [line("p50", "one", 50.0), line("p95", "two", 95.0), line("p99", "three", 99.0)];
    let title = "How long attempts took".to_owned();
    let chart = Chart { title: &title, unit: Unit::Millis, slots }.lines(&rows);
    Drawn { chart, legend: legend(&rows), title }
}

/// Failed attempts by kind: the most frequent ones, and the rest.
fn failures(traffic: &TrafficSeen, slots: Slots, per: &str) -> Drawn {
    const TONES: [&str; KINDS] = ["bad", "waiting", "busy", "off"];
    let mut kinds: Vec<_> = FailureCategory::ALL.into_iter().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(traffic.total.by_category[*kind as usize]));
    kinds.retain(|kind| traffic.total.by_category[*kind as usize] > 0);
    let names: Vec<String> = kinds.iter().map(format::category).collect();
    let count =
        |point: &Point, kind: FailureCategory| f64::from(point.traffic.sent.by_category[kind as usize]);
    // With one kind too many the last colour is for all that are left.
    let alone = if kinds.len() > KINDS { KINDS - 1 } else { kinds.len() };
    let mut rows: Vec<_> = (0..alone)
        .map(|at| {
            Series::of(&names[at], TONES[at], traffic.points.iter().map(|point| count(point, kinds[at])))
        })
        .collect();
    if kinds.len() > alone {
        let rest = |point: &Point| kinds[alone..].iter().map(|kind| count(point, *kind)).sum();
        rows.push(Series::of("others", TONES[KINDS - 1], traffic.points.iter().map(rest)));
    }
    Drawn::bars(format!("Failed attempts per {per}"), slots, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_good_when_hardly_anything_fails() {
        assert_eq!([None, Some(1.0), Some(0.95), Some(0.2)].map(rate_tone), ["", "good", "waiting", "bad"]);
    }
}

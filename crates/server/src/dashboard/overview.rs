//! Overview of a tenant, the start page: traffic, backlog, failures and recent incidents.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use redrive_core::{
    FailureCategory, Time,
    delivery::lane::Priority,
    statistics::traffic::{Point, Range, recent_since},
};
use serde::Deserialize;

use super::{
    PageResult,
    chart::{Chart, Series, Svg, TimeSlots, Unit, legend, sparkline_svg},
    first_run::FirstRun,
    format,
    page::{FormQuery, Html, PageContext, PageQuery},
    viewer::TenantViewer,
};
use crate::{
    api::AppState,
    app::{
        overview::{IncidentDetails, Overview},
        traffic::TrafficChart,
        webhook_summary::LastHour,
    },
};

const HOUR: Duration = Duration::from_secs(3600);
/// Maximum number of failure categories drawn; the last one stands for all others if there are more.
const MAX_DRAWN_CATEGORIES: usize = 4;

/// Query of the page: the time range.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OverviewQuery {
    range: Option<String>,
}

impl PageQuery for OverviewQuery {}

impl OverviewQuery {
    /// Returns the requested range, or the last hour if it is missing or unknown.
    pub(super) fn range(&self) -> Range {
        self.range.as_deref().and_then(Range::parse).unwrap_or(Range::Hour)
    }
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    layout: PageContext,
    query: FormQuery<OverviewQuery>,
    first_run: Option<FirstRun>,
    overview: Overview,
    charts: [ChartCard; 3],
}

/// A chart with its title and legend.
pub(super) struct ChartCard {
    pub(super) title: String,
    pub(super) chart: Svg,
    pub(super) legend: Svg,
}

impl ChartCard {
    fn bars(title: String, slots: TimeSlots, rows: &[Series<'_>]) -> Self {
        let chart = Chart { title: &title, unit: Unit::Count, slots }.bars(rows);
        Self { chart, legend: legend(rows), title }
    }
}

/// A page that shows the traffic of a tenant, or of all.
pub(super) trait TrafficPage {
    /// Returns the traffic that the page shows.
    fn traffic(&self) -> &TrafficChart;

    /// Returns the selectable ranges, each with whether it is the current one.
    fn ranges(&self) -> Vec<(&'static str, bool)> {
        Range::ALL.iter().map(|range| (range.name(), *range == self.traffic().range)).collect()
    }

    /// Returns a percentile of the attempts' duration.
    fn percentile(&self, percent: f64) -> String {
        let millis = self.traffic().total.latencies.percentile(percent);
        millis.map_or_else(|| "–".to_owned(), format::millis)
    }

    fn success_rate(&self) -> String {
        self.traffic().total.success_rate().map_or_else(|| "–".to_owned(), format::percent)
    }

    /// Returns the color of the success rate.
    fn success_tone(&self) -> &'static str {
        rate_tone(self.traffic().total.success_rate())
    }
}

impl TrafficPage for OverviewPage {
    fn traffic(&self) -> &TrafficChart {
        &self.overview.traffic
    }
}

/// Renders the overview.
pub(super) async fn page(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<OverviewQuery>,
) -> PageResult {
    let overview = app.overview(viewer.tenant.clone(), query.query.range()).await?;
    let first_run = FirstRun::load(&app, &viewer.tenant).await?;
    let charts = charts(&overview.traffic);
    Html::render(&OverviewPage { layout: viewer.layout("overview"), query, first_run, overview, charts })
}

impl OverviewPage {
    /// Returns whether failures were counted over less than an hour.
    fn is_cut_short(&self) -> bool {
        self.overview.worst_webhooks.since > recent_since(self.overview.traffic.now, HOUR)
    }

    /// Returns the backlog by priority, without empty priorities.
    fn by_priority(&self) -> Vec<(&'static str, u64)> {
        let counted = Priority::ALL.into_iter().zip(self.overview.queue.by_priority);
        counted.filter(|(_, count)| *count > 0).map(|(priority, count)| (priority.name(), count)).collect()
    }
}

/// Returns the color of a success rate.
pub(super) fn rate_tone(rate: Option<f64>) -> &'static str {
    match rate {
        None => "",
        Some(rate) if rate >= 0.99 => "good",
        Some(rate) if rate >= 0.9 => "waiting",
        Some(_) => "bad",
    }
}

/// Draws the attempts of a webhook in the last hour as a sparkline.
pub(super) fn sparkline(hour: &LastHour) -> Svg {
    let values = |value: fn(u32, u32) -> u32| {
        let minutes = hour.minutes.iter();
        minutes.map(move |one| f64::from(value(one.attempts, one.successes))).collect::<Vec<_>>()
    };
    let rows = [
        Series::new("succeeded", "good", values(|_, successes| successes)),
        Series::new("failed", "bad", values(|attempts, successes| attempts.saturating_sub(successes))),
    ];
    sparkline_svg("Attempts in the last hour", &rows)
}

/// Formats how long an incident lasted.
fn open_for(incident: &IncidentDetails, now: &Time) -> String {
    let end = incident.period.ended_at.unwrap_or(*now);
    format::format_duration(end.duration_since(incident.period.opened_at))
}

/// Draws the traffic of a tenant, or of all.
pub(super) fn charts(traffic: &TrafficChart) -> [ChartCard; 3] {
    let range = traffic.range;
    let slots = TimeSlots::from(range.axis(traffic.now));
    let per = format::format_duration(range.step());
    let per = if per == "1 min" { "minute".to_owned() } else { per };
    let values = |value: &dyn Fn(&Point) -> f64| traffic.points.iter().map(value).collect::<Vec<_>>();
    let ended = [
        Series::new("delivered", "good", values(&|point| point.traffic.ended.delivered as f64)),
        Series::new("dead", "bad", values(&|point| point.traffic.ended.dead as f64)),
        Series::new("cancelled", "off", values(&|point| point.traffic.ended.cancelled as f64)),
    ];
    [
        ChartCard::bars(format!("Deliveries per {per}"), slots, &ended),
        latencies(traffic, slots),
        failures(traffic, slots, &per),
    ]
}

fn latencies(traffic: &TrafficChart, slots: TimeSlots) -> ChartCard {
    let line = |name, tone, percent: f64| Series {
        name,
        tone,
        values: traffic.points.iter().map(|point| point.traffic.sent.latencies.percentile(percent)).collect(),
    };
    let rows = [line("p50", "one", 50.0), line("p95", "two", 95.0), line("p99", "three", 99.0)];
    let title = "Response time".to_owned();
    let chart = Chart { title: &title, unit: Unit::Millis, slots }.lines(&rows);
    ChartCard { chart, legend: legend(&rows), title }
}

/// Draws failed attempts by category: the most frequent ones, and all others together.
fn failures(traffic: &TrafficChart, slots: TimeSlots, per: &str) -> ChartCard {
    const TONES: [&str; MAX_DRAWN_CATEGORIES] = ["bad", "waiting", "busy", "off"];
    let mut kinds: Vec<_> = FailureCategory::ALL.into_iter().collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(traffic.total.by_category[*kind as usize]));
    kinds.retain(|kind| traffic.total.by_category[*kind as usize] > 0);
    let names: Vec<String> = kinds.iter().map(format::category).collect();
    let count =
        |point: &Point, kind: FailureCategory| f64::from(point.traffic.sent.by_category[kind as usize]);
    // If there are more categories than colors, the last color stands for all remaining ones.
    let named = if kinds.len() > MAX_DRAWN_CATEGORIES { MAX_DRAWN_CATEGORIES - 1 } else { kinds.len() };
    let mut rows: Vec<_> = (0..named)
        .map(|at| {
            Series::new(&names[at], TONES[at], traffic.points.iter().map(|point| count(point, kinds[at])))
        })
        .collect();
    if kinds.len() > named {
        let rest = |point: &Point| kinds[named..].iter().map(|kind| count(point, *kind)).sum();
        rows.push(Series::new("others", TONES[MAX_DRAWN_CATEGORIES - 1], traffic.points.iter().map(rest)));
    }
    ChartCard::bars(format!("Failed attempts per {per}"), slots, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_rate_determines_color() {
        assert_eq!([None, Some(1.0), Some(0.95), Some(0.2)].map(rate_tone), ["", "good", "waiting", "bad"]);
    }
}

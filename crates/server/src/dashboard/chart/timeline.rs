//! Timeline charts: periods in the past, and points of a schedule in the future.

use std::time::Duration;

use redrive_core::Time;

use super::{
    BOTTOM_MARGIN, PLOT_WIDTH, TimeSlots, bar,
    labels::{self, Label},
    stretched,
    svg::{Svg, num, wide},
    times,
};

/// A period on a timeline.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::dashboard) struct TimeBand<'a> {
    /// Start of the period.
    pub(in crate::dashboard) from: Time,
    /// End of the period.
    pub(in crate::dashboard) to: Time,
    /// Color class.
    pub(in crate::dashboard) tone: &'a str,
    /// Tooltip.
    pub(in crate::dashboard) tip: String,
}

/// Draws periods on a timeline between two times. `title` describes the chart.
pub(in crate::dashboard) fn bands(title: &str, from: Time, to: Time, bands: &[TimeBand<'_>]) -> Svg {
    const HEIGHT: f64 = 22.0;
    let whole = TimeSlots { from, step: to.duration_since(from).max(Duration::from_millis(1)), count: 1 };
    let mut svg = Svg::default();
    let height = num(HEIGHT + BOTTOM_MARGIN);
    svg.open("div", &[("class", "plot")]);
    svg.open("svg", &[("class", "chart"), ("height", &height), ("role", "img"), ("aria-label", title)]);
    stretched(&mut svg, HEIGHT, |svg| {
        bar(svg, "ground", 0.0, PLOT_WIDTH, 0.0, HEIGHT);
        for band in bands.iter().filter(|band| band.to >= from && band.from <= to) {
            let (start, end) = (whole.share(band.from) * PLOT_WIDTH, whole.share(band.to) * PLOT_WIDTH);
            // A very short period is still visible.
            let width = (end - start).max(4.0);
            let start = start.min(PLOT_WIDTH - width);
            svg.leaf(
                "rect",
                &[
                    ("class", band.tone),
                    ("x", &num(start)),
                    ("width", &num(width)),
                    ("height", &num(HEIGHT)),
                    ("data-tip", &band.tip),
                ],
            );
        }
    });
    times(&mut svg, from, to, HEIGHT);
    svg.close("svg");
    svg.close("div");
    svg
}

/// A point in time on a timeline that starts now.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::dashboard) struct TimeDot<'a> {
    /// Time from now.
    pub(in crate::dashboard) at: Duration,
    /// Color class.
    pub(in crate::dashboard) tone: &'a str,
    /// Text inside the dot.
    pub(in crate::dashboard) mark: String,
    /// Text below the dot; omitted if it would overlap another label.
    pub(in crate::dashboard) label: String,
    /// Tooltip.
    pub(in crate::dashboard) tip: String,
}

/// Draws points in time on a logarithmic timeline: the first seconds take as much width as the last days.
pub(in crate::dashboard) fn schedule(title: &str, dots: &[TimeDot<'_>]) -> Svg {
    const Y: f64 = 16.0;
    const MARGIN: f64 = 0.03;
    let max = dots.iter().map(|dot| dot.at.as_secs_f64()).fold(1.0, f64::max);
    let share =
        |at: Duration| MARGIN + (1.0 - 2.0 * MARGIN) * (at.as_secs_f64() + 1.0).ln() / (max + 1.0).ln();
    let mut svg = Svg::default();
    svg.open("div", &[("class", "plot")]);
    svg.open("svg", &[("class", "chart"), ("height", "56"), ("role", "img"), ("aria-label", title)]);
    let y = num(Y);
    svg.leaf(
        "line",
        &[("class", "axis"), ("x1", &wide(MARGIN)), ("x2", &wide(1.0 - MARGIN)), ("y1", &y), ("y2", &y)],
    );
    // Draws the last dot first, so that where dots overlap the earlier one is on top and readable.
    for dot in dots.iter().rev() {
        let x = wide(share(dot.at));
        svg.open("g", &[("class", "dot"), ("data-tip", &dot.tip)]);
        svg.leaf("circle", &[("class", dot.tone), ("cx", &x), ("cy", &y), ("r", &num(10.0))]);
        svg.text("text", &[("class", "mark"), ("x", &x), ("y", &num(Y + 4.0))], &dot.mark);
        svg.close("g");
    }
    // The last label is chosen first, because it shows the length of the schedule.
    let label = |dot: &TimeDot<'_>| match share(dot.at) {
        at if at < 0.1 => Label { share: 0.0, anchor: "start", text: dot.label.clone() },
        at if at > 0.96 => Label { share: 1.0, anchor: "end", text: dot.label.clone() },
        at => Label { share: at, anchor: "middle", text: dot.label.clone() },
    };
    let (last, others) = dots.split_last().map_or((None, dots), |(last, others)| (Some(last), others));
    let all: Vec<_> = last.into_iter().chain(others).map(label).collect();
    labels::draw(&mut svg, &all, "48");
    svg.close("svg");
    svg.close("div");
    svg
}

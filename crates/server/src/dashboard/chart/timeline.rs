//! Moments and spans of time on one line: when something was so, and when something will be.

use std::time::Duration;

use redrive_core::Time;

use super::{
    BELOW, Slots, WIDE, bar, stretched,
    svg::{Svg, num, wide},
    times,
};

/// A time during which something was so.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::dashboard) struct Band<'a> {
    /// Since when.
    pub(in crate::dashboard) from: Time,
    /// Until when.
    pub(in crate::dashboard) to: Time,
    /// Its colour.
    pub(in crate::dashboard) tone: &'a str,
    /// What is under the pointer.
    pub(in crate::dashboard) tip: String,
}

/// Times during which something was so, on one line between two times. `title` says what it shows.
pub(in crate::dashboard) fn bands(title: &str, from: Time, to: Time, bands: &[Band<'_>]) -> Svg {
    const TALL: f64 = 22.0;
    let whole = Slots { from, step: to.since(from).max(Duration::from_millis(1)), count: 1 };
    let mut svg = Svg::default();
    let height = num(TALL + BELOW);
    svg.open("svg", &[("class", "chart"), ("height", &height), ("role", "img"), ("aria-label", title)]);
    stretched(&mut svg, TALL, |svg| {
        bar(svg, "ground", 0.0, WIDE, 0.0, TALL);
        for band in bands.iter().filter(|band| band.to >= from && band.from <= to) {
            let (start, end) = (whole.share(band.from) * WIDE, whole.share(band.to) * WIDE);
            // A moment is still to be seen.
            let width = (end - start).max(4.0);
            let start = start.min(WIDE - width);
            svg.leaf(
                "rect",
                &[
                    ("class", band.tone),
                    ("x", &num(start)),
                    ("width", &num(width)),
                    ("height", &num(TALL)),
                    ("data-tip", &band.tip),
                ],
            );
        }
    });
    times(&mut svg, from, to, TALL);
    svg.close("svg");
    svg
}

/// A moment on a scale that begins with now.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::dashboard) struct Dot<'a> {
    /// How far off it is.
    pub(in crate::dashboard) at: Duration,
    /// Its colour.
    pub(in crate::dashboard) tone: &'a str,
    /// What stands in it.
    pub(in crate::dashboard) mark: String,
    /// What stands below it, where there is room.
    pub(in crate::dashboard) label: String,
    /// What is under the pointer.
    pub(in crate::dashboard) tip: String,
}

/// Moments on one line, whose scale grows: the first seconds take as much room as the last days.
pub(in crate::dashboard) fn schedule(title: &str, dots: &[Dot<'_>]) -> Svg {
    const Y: f64 = 16.0;
    const MARGIN: f64 = 0.03;
    /// How far apart two texts have to be.
    const APART: f64 = 0.13;
    let most = dots.iter().map(|dot| dot.at.as_secs_f64()).fold(1.0, f64::max);
    let share =
        |at: Duration| MARGIN + (1.0 - 2.0 * MARGIN) * (at.as_secs_f64() + 1.0).ln() / (most + 1.0).ln();
    let mut svg = Svg::default();
    svg.open("svg", &[("class", "chart"), ("height", "56"), ("role", "img"), ("aria-label", title)]);
    let y = num(Y);
    svg.leaf(
        "line",
        &[("class", "axis"), ("x1", &wide(MARGIN)), ("x2", &wide(1.0 - MARGIN)), ("y1", &y), ("y2", &y)],
    );
    let mut free = 0.0;
    // From the last on, so that where dots lie upon one another the earlier one is on top and can be read.
    for dot in dots.iter().rev() {
        let x = wide(share(dot.at));
        svg.open("g", &[("class", "dot"), ("data-tip", &dot.tip)]);
        svg.leaf("circle", &[("class", dot.tone), ("cx", &x), ("cy", &y), ("r", &num(10.0))]);
        svg.text("text", &[("class", "mark"), ("x", &x), ("y", &num(Y + 4.0))], &dot.mark);
        svg.close("g");
    }
    for dot in dots {
        let at = share(dot.at);
        if at < free {
            continue;
        }
        let anchor = match at {
            at if at < 0.1 => ("0", "start"),
            at if at > 0.9 => ("100%", "end"),
            _ => ("", "middle"),
        };
        let x = if anchor.0.is_empty() { wide(at) } else { anchor.0.to_owned() };
        svg.text("text", &[("x", &x), ("y", "48"), ("text-anchor", anchor.1)], &dot.label);
        free = at + APART;
    }
    svg.close("svg");
    svg
}

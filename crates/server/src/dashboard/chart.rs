//! SVG charts, as pure functions of their values. Text keeps its size at any width, values appear as tooltips
//! (`data-tip`), and each chart has a textual description for screen readers.

mod axis;
mod labels;
mod svg;
mod timeline;

use std::time::Duration;

use redrive_core::{Time, statistics::traffic::TimeBuckets};

pub(super) use self::{
    axis::Unit,
    svg::Svg,
    timeline::{TimeBand, TimeDot, bands, schedule},
};
use self::{labels::Label, svg::num};
use super::zone::Zone;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Height of the plot area, in pixels.
const PLOT_HEIGHT: f64 = 150.0;
/// Margins above the plot, and below it for the time labels.
const TOP_MARGIN: f64 = 8.0;
const BOTTOM_MARGIN: f64 = 22.0;
/// Width of the plot in its own units, before it is stretched.
const PLOT_WIDTH: f64 = 1000.0;
/// Largest value that is drawn; sums and axis labels of larger ones could overflow. NaN and infinite values are gaps too.
const MAX_VALUE: f64 = 1e300;

/// Consecutive time slots of equal length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TimeSlots {
    /// Start of the first slot.
    pub(super) from: Time,
    /// Length of each slot.
    pub(super) step: Duration,
    /// Number of slots.
    pub(super) count: usize,
}

impl From<TimeBuckets> for TimeSlots {
    fn from(axis: TimeBuckets) -> Self {
        Self { from: axis.begin(), step: axis.step(), count: axis.len() }
    }
}

impl TimeSlots {
    /// Returns the end of the last slot.
    pub(super) fn to(&self) -> Time {
        self.from + self.step.saturating_mul(u32::try_from(self.count).unwrap_or(u32::MAX))
    }

    /// Formats the start of a slot in the time zone of the page, and its end if it is longer than a minute.
    fn describe_slot(&self, index: usize) -> String {
        let zone = Zone::current();
        let begins = self.from + self.step.saturating_mul(u32::try_from(index).unwrap_or(u32::MAX));
        let ends = begins + self.step;
        let (day, from) = (axis::day(begins, &zone), axis::clock(begins, &zone));
        let (to, offset) = (axis::clock(ends, &zone), zone.offset_text(begins));
        match self.step {
            step if step >= DAY && zone == Zone::UTC => day,
            step if step >= DAY => format!("{day}, {from} – {}, {to} {offset}", axis::day(ends, &zone)),
            step if step > Duration::from_secs(60) => format!("{day}, {from} – {to} {offset}"),
            _ => format!("{day}, {from} {offset}"),
        }
    }

    fn share(&self, time: Time) -> f64 {
        let whole = self.to().duration_since(self.from).as_secs_f64().max(f64::MIN_POSITIVE);
        (time.duration_since(self.from).as_secs_f64() / whole).clamp(0.0, 1.0)
    }
}

/// A data series with one value per slot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series<'a> {
    /// Displayed name.
    pub(super) name: &'a str,
    /// Color class: good, bad, waiting, busy or off for bars; one, two or three for lines.
    pub(super) tone: &'a str,
    /// Values, `None` where there is no data.
    pub(super) values: Vec<Option<f64>>,
}

impl<'a> Series<'a> {
    /// Creates a series without gaps.
    pub(super) fn new(name: &'a str, tone: &'a str, values: impl IntoIterator<Item = f64>) -> Self {
        Self { name, tone, values: values.into_iter().map(Some).collect() }
    }

    fn at(&self, slot: usize) -> Option<f64> {
        self.values.get(slot).copied().flatten().filter(|value| value.abs() <= MAX_VALUE)
    }
}

/// Title, unit and time slots of a chart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart<'a> {
    /// Title for screen readers; it is not drawn.
    pub(super) title: &'a str,
    /// Unit of the values.
    pub(super) unit: Unit,
    /// Time slots of the values.
    pub(super) slots: TimeSlots,
}

impl Chart<'_> {
    /// Draws a bar chart over time with the series stacked.
    pub(super) fn bars(&self, rows: &[Series<'_>]) -> Svg {
        let sums = (0..self.slots.count).map(|slot| rows.iter().filter_map(|row| row.at(slot)).sum());
        let scale = Scale::for_values(sums, self.unit);
        self.draw(rows, &scale, |svg| {
            let width = PLOT_WIDTH / self.slots.count.max(1) as f64;
            for slot in 0..self.slots.count {
                let mut below = 0.0;
                for row in rows {
                    let Some(value) = row.at(slot).filter(|value| *value > 0.0) else { continue };
                    let (top, bottom) = (scale.y(below + value), scale.y(below));
                    bar(svg, row.tone, (slot as f64 + 0.1) * width, 0.8 * width, top, bottom);
                    below += value;
                }
            }
        })
    }

    /// Draws a line chart over time, one line per series. A value without neighbors is a dot.
    pub(super) fn lines(&self, rows: &[Series<'_>]) -> Svg {
        let all = rows.iter().flat_map(|row| (0..self.slots.count).filter_map(|slot| row.at(slot)));
        let scale = Scale::for_values(all, self.unit);
        self.draw(rows, &scale, |svg| {
            let width = PLOT_WIDTH / self.slots.count.max(1) as f64;
            for row in rows {
                let point =
                    |slot: usize| row.at(slot).map(|value| ((slot as f64 + 0.5) * width, scale.y(value)));
                line(svg, row.tone, (0..self.slots.count).map(point));
            }
        })
    }

    fn draw(&self, rows: &[Series<'_>], scale: &Scale, values: impl FnOnce(&mut Svg)) -> Svg {
        let mut svg = Svg::default();
        let label = self.describe(rows, scale);
        let height = num(TOP_MARGIN + PLOT_HEIGHT + BOTTOM_MARGIN);
        let class = "chart scaled";
        svg.open("div", &[("class", "plot")]);
        svg.open("svg", &[("class", class), ("height", &height), ("role", "img"), ("aria-label", &label)]);
        let above = num(TOP_MARGIN);
        svg.open("svg", &[("y", &above), ("height", &num(PLOT_HEIGHT + BOTTOM_MARGIN))]);
        for level in &scale.levels {
            let y = num(scale.y(*level) + 4.0);
            svg.text("text", &[("class", "level"), ("x", "-8"), ("y", &y)], &self.unit.brief(*level));
        }
        for level in &scale.levels {
            let y = num(scale.y(*level).round() + 0.5);
            let kind = if *level > 0.0 { "grid-line" } else { "axis" };
            svg.leaf("line", &[("class", kind), ("x1", "0"), ("x2", "100%"), ("y1", &y), ("y2", &y)]);
        }
        times(&mut svg, self.slots.from, self.slots.to(), PLOT_HEIGHT);
        stretched(&mut svg, PLOT_HEIGHT, |svg| {
            values(svg);
            self.hover_areas(svg, rows);
        });
        svg.close("svg");
        svg.close("svg");
        svg.close("div");
        svg
    }

    /// Adds a tooltip area for each slot that has a value other than zero.
    fn hover_areas(&self, svg: &mut Svg, rows: &[Series<'_>]) {
        let width = PLOT_WIDTH / self.slots.count.max(1) as f64;
        for slot in 0..self.slots.count {
            let value = |row: &Series<'_>| Some((row.name.to_owned(), row.at(slot)?));
            let known: Vec<_> = rows.iter().filter_map(value).collect();
            // A slot without values, or with zeros only, has no tooltip.
            if known.iter().all(|(_, value)| *value == 0.0) {
                continue;
            }
            let mut tip = self.slots.describe_slot(slot);
            for (name, value) in known {
                tip += &format!("\n{name}: {}", self.unit.exact(value));
            }
            let (x, width, height) = (num(slot as f64 * width), num(width), num(PLOT_HEIGHT));
            svg.leaf(
                "rect",
                &[("class", "hit"), ("x", &x), ("width", &width), ("height", &height), ("data-tip", &tip)],
            );
        }
    }

    fn describe(&self, rows: &[Series<'_>], scale: &Scale) -> String {
        let mut label = format!(
            "{}, {} to {}",
            self.title,
            self.slots.describe_slot(0),
            axis::clock(self.slots.to(), &Zone::current())
        );
        if scale.max <= 0.0 {
            return label + ": nothing";
        }
        for (at, row) in rows.iter().enumerate() {
            let values: Vec<f64> = (0..self.slots.count).filter_map(|slot| row.at(slot)).collect();
            let max = values.iter().copied().fold(0.0, f64::max);
            let comma = if at == 0 { ":" } else { ";" };
            label += &match self.unit {
                Unit::Count => {
                    let all = self.unit.exact(values.iter().sum());
                    format!("{comma} {} {all} in total, at most {}", row.name, self.unit.exact(max))
                }
                _ => format!("{comma} {} at most {}", row.name, self.unit.exact(max)),
            };
        }
        label
    }
}

/// Draws the legend of a chart: the name of each series in its color, and the time zone.
pub(super) fn legend(rows: &[Series<'_>]) -> Svg {
    let mut svg = Svg::default();
    svg.open("p", &[("class", "legend")]);
    for row in rows {
        svg.text("span", &[("class", row.tone)], row.name);
    }
    svg.text("span", &[("class", "zone")], &Zone::current_label());
    svg.close("p");
    svg
}

/// Draws a sparkline: stacked bars without axes. `title` describes it.
pub(super) fn sparkline_svg(title: &str, rows: &[Series<'_>]) -> Svg {
    const HEIGHT: f64 = 28.0;
    let count = rows.iter().map(|row| row.values.len()).max().unwrap_or(0);
    let sum = |slot: usize| rows.iter().filter_map(|row| row.at(slot)).sum::<f64>();
    let max = (0..count).map(sum).fold(0.0, f64::max);
    let sums: Vec<String> = rows
        .iter()
        .map(|row| {
            let all = (0..count).filter_map(|slot| row.at(slot)).sum();
            format!("{}: {}", row.name, Unit::Count.exact(all))
        })
        .collect();
    let tip = format!("{title}\n{}", sums.join("\n"));
    let label = format!("{title}: {}", sums.join(", "));
    let mut svg = Svg::default();
    let tall = num(HEIGHT);
    svg.open("svg", &[("class", "chart spark"), ("role", "img"), ("aria-label", &label), ("data-tip", &tip)]);
    stretched(&mut svg, HEIGHT, |svg| {
        let width = PLOT_WIDTH / count.max(1) as f64;
        bar(svg, "base", 0.0, PLOT_WIDTH, HEIGHT - 1.0, HEIGHT);
        for slot in (0..count).filter(|slot| sum(*slot) > 0.0) {
            // A value above zero is always visible, however small it is compared to the maximum.
            let height = |value: f64| (value / max * (HEIGHT - 1.0)).max(2.0);
            let mut bottom = HEIGHT - 1.0;
            for row in rows {
                let Some(value) = row.at(slot).filter(|value| *value > 0.0) else { continue };
                let top = (bottom - height(value)).max(0.0);
                bar(svg, row.tone, (slot as f64 + 0.1) * width, 0.8 * width, top, bottom);
                bottom = top;
            }
        }
        svg.leaf(
            "rect",
            &[("class", "hit"), ("width", &num(PLOT_WIDTH)), ("height", &tall), ("data-tip", &tip)],
        );
    });
    svg.close("svg");
    svg
}

/// Value range of a chart.
struct Scale {
    levels: Vec<f64>,
    max: f64,
}

impl Scale {
    fn for_values(values: impl Iterator<Item = f64>, unit: Unit) -> Self {
        let max = values.fold(0.0, f64::max);
        Self { levels: axis::levels(max, unit), max }
    }

    /// Returns the y coordinate of a value, measured from the top.
    fn y(&self, value: f64) -> f64 {
        let top = self.levels.last().copied().unwrap_or(1.0);
        PLOT_HEIGHT * (1.0 - (value / top).clamp(0.0, 1.0))
    }
}

/// Draws shapes that are stretched to the available width without keeping their aspect ratio.
fn stretched(svg: &mut Svg, height: f64, shapes: impl FnOnce(&mut Svg)) {
    let (view, height) = (format!("0 0 {} {}", num(PLOT_WIDTH), num(height)), num(height));
    svg.open(
        "svg",
        &[("width", "100%"), ("height", &height), ("viewBox", &view), ("preserveAspectRatio", "none")],
    );
    shapes(svg);
    svg.close("svg");
}

fn bar(svg: &mut Svg, tone: &str, x: f64, width: f64, top: f64, bottom: f64) {
    let (x, y, width, height) = (num(x), num(top), num(width), num((bottom - top).max(0.0)));
    svg.leaf("rect", &[("class", tone), ("x", &x), ("y", &y), ("width", &width), ("height", &height)]);
}

/// Draws a line through points, interrupted at missing ones.
fn line(svg: &mut Svg, tone: &str, points: impl Iterator<Item = Option<(f64, f64)>>) {
    let mut part: Vec<(f64, f64)> = Vec::new();
    let end = |svg: &mut Svg, part: &mut Vec<(f64, f64)>| {
        // A line of zero length is drawn as a dot, because its ends are round.
        let alone = part.len() == 1;
        part.extend(part.first().copied().filter(|_| alone));
        if !part.is_empty() {
            let points: Vec<String> = part.iter().map(|(x, y)| format!("{},{}", num(*x), num(*y))).collect();
            let class = if alone { format!("line {tone} alone") } else { format!("line {tone}") };
            svg.leaf(
                "polyline",
                &[("class", &class), ("points", &points.join(" ")), ("vector-effect", "non-scaling-stroke")],
            );
        }
        part.clear();
    };
    for point in points {
        match point {
            Some(point) => part.push(point),
            None => end(svg, &mut part),
        }
    }
    end(svg, &mut part);
}

/// Draws time labels at round times below a plot, in the time zone of the page.
fn times(svg: &mut Svg, from: Time, to: Time, below: f64) {
    let whole = TimeSlots { from, step: to.duration_since(from).max(Duration::from_millis(1)), count: 1 };
    let y = num(below + 16.0);
    let times = axis::times(from, to, &Zone::current()).into_iter();
    let all: Vec<_> = times.map(|(time, text)| Label::within(whole.share(time), text)).collect();
    labels::draw(svg, &all, &y);
}

#[cfg(test)]
mod tests;

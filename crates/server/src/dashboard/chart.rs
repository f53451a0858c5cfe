//! Charts as SVG: pure functions of numbers. Their text keeps its size at any width, values show under the pointer
//! (`data-tip`), and each says in words what it shows.

mod axis;
mod svg;
mod timeline;

use std::time::Duration;

use redrive_core::{Time, statistics::traffic::Axis};

use self::svg::{num, wide};
pub(super) use self::{
    axis::Unit,
    svg::Svg,
    timeline::{Band, Dot, bands, schedule},
};

/// How high the part with the values is, in pixels.
const HIGH: f64 = 150.0;
/// How much room is above it, and below it for the times.
const ABOVE: f64 = 8.0;
const BELOW: f64 = 22.0;
/// What a plot is wide in its own measure, before it is stretched.
const WIDE: f64 = 1000.0;

/// Spans of equal length, one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slots {
    /// Where the first begins.
    pub(super) from: Time,
    /// How long each is.
    pub(super) step: Duration,
    /// How many there are.
    pub(super) count: usize,
}

impl From<Axis> for Slots {
    fn from(axis: Axis) -> Self {
        Self { from: axis.begin(), step: axis.step(), count: axis.len() }
    }
}

impl Slots {
    /// Where the last ends.
    pub(super) fn to(&self) -> Time {
        self.from + self.step.saturating_mul(u32::try_from(self.count).unwrap_or(u32::MAX))
    }

    /// When one of them begins, and ends if they are long, in words.
    fn words(&self, at: usize) -> String {
        let begins = self.from + self.step.saturating_mul(u32::try_from(at).unwrap_or(u32::MAX));
        let (day, from) = (axis::day(begins), axis::clock(begins));
        match self.step {
            step if step >= Duration::from_secs(24 * 3600) => day,
            step if step > Duration::from_secs(60) => {
                format!("{day}, {from} – {} UTC", axis::clock(begins + step))
            }
            _ => format!("{day}, {from} UTC"),
        }
    }

    fn share(&self, time: Time) -> f64 {
        let whole = self.to().since(self.from).as_secs_f64().max(f64::MIN_POSITIVE);
        (time.since(self.from).as_secs_f64() / whole).clamp(0.0, 1.0)
    }
}

/// One row of values, with a value per slot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series<'a> {
    /// What it is, for people.
    pub(super) name: &'a str,
    /// Its colour: of bars good, bad, waiting, busy or off; of lines one, two or three.
    pub(super) tone: &'a str,
    /// The values; none where there are none.
    pub(super) values: Vec<Option<f64>>,
}

impl<'a> Series<'a> {
    /// A row of values that are all there.
    pub(super) fn of(name: &'a str, tone: &'a str, values: impl IntoIterator<Item = f64>) -> Self {
        Self { name, tone, values: values.into_iter().map(Some).collect() }
    }

    fn at(&self, slot: usize) -> Option<f64> {
        self.values.get(slot).copied().flatten().filter(|value| value.is_finite())
    }
}

/// What a chart shows, beside its values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart<'a> {
    /// Its title: read out, not drawn.
    pub(super) title: &'a str,
    /// What the values are.
    pub(super) unit: Unit,
    /// When they were.
    pub(super) slots: Slots,
}

impl Chart<'_> {
    /// Bars over time, the rows stacked on one another.
    pub(super) fn bars(&self, rows: &[Series<'_>]) -> Svg {
        let sums = (0..self.slots.count).map(|slot| rows.iter().filter_map(|row| row.at(slot)).sum());
        let scale = Scale::of(sums, self.unit);
        self.drawn(rows, &scale, |svg| {
            let width = WIDE / self.slots.count.max(1) as f64;
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

    /// Lines over time, one for each row. A value with none beside it is a dot.
    pub(super) fn lines(&self, rows: &[Series<'_>]) -> Svg {
        let all = rows.iter().flat_map(|row| (0..self.slots.count).filter_map(|slot| row.at(slot)));
        let scale = Scale::of(all, self.unit);
        self.drawn(rows, &scale, |svg| {
            let width = WIDE / self.slots.count.max(1) as f64;
            for row in rows {
                let point =
                    |slot: usize| row.at(slot).map(|value| ((slot as f64 + 0.5) * width, scale.y(value)));
                line(svg, row.tone, (0..self.slots.count).map(point));
            }
        })
    }

    fn drawn(&self, rows: &[Series<'_>], scale: &Scale, values: impl FnOnce(&mut Svg)) -> Svg {
        let mut svg = Svg::default();
        let label = self.in_words(rows, scale);
        let height = num(ABOVE + HIGH + BELOW);
        let class = "chart scaled";
        svg.open("svg", &[("class", class), ("height", &height), ("role", "img"), ("aria-label", &label)]);
        let above = num(ABOVE);
        svg.open("svg", &[("y", &above), ("height", &num(HIGH + BELOW))]);
        for level in &scale.levels {
            let y = num(scale.y(*level) + 4.0);
            svg.text("text", &[("class", "level"), ("x", "-8"), ("y", &y)], &self.unit.brief(*level));
        }
        for level in &scale.levels {
            let y = num(scale.y(*level).round() + 0.5);
            let kind = if *level > 0.0 { "grid-line" } else { "axis" };
            svg.leaf("line", &[("class", kind), ("x1", "0"), ("x2", "100%"), ("y1", &y), ("y2", &y)]);
        }
        times(&mut svg, self.slots.from, self.slots.to(), HIGH);
        stretched(&mut svg, HIGH, |svg| {
            values(svg);
            self.hits(svg, rows);
        });
        svg.close("svg");
        svg.close("svg");
        svg
    }

    /// What is under the pointer: one for each slot that has values.
    fn hits(&self, svg: &mut Svg, rows: &[Series<'_>]) {
        let width = WIDE / self.slots.count.max(1) as f64;
        for slot in 0..self.slots.count {
            let value = |row: &Series<'_>| Some((row.name.to_owned(), row.at(slot)?));
            let known: Vec<_> = rows.iter().filter_map(value).collect();
            // Where there is nothing, or nothing but zeros, there is nothing to tell.
            if known.iter().all(|(_, value)| *value == 0.0) {
                continue;
            }
            let mut tip = self.slots.words(slot);
            for (name, value) in known {
                tip += &format!("\n{name}: {}", self.unit.exact(value));
            }
            let (x, width, height) = (num(slot as f64 * width), num(width), num(HIGH));
            svg.leaf(
                "rect",
                &[("class", "hit"), ("x", &x), ("width", &width), ("height", &height), ("data-tip", &tip)],
            );
        }
    }

    fn in_words(&self, rows: &[Series<'_>], scale: &Scale) -> String {
        let mut label =
            format!("{}, {} to {}", self.title, self.slots.words(0), axis::clock(self.slots.to()));
        if scale.most <= 0.0 {
            return label + ": nothing";
        }
        for (at, row) in rows.iter().enumerate() {
            let values: Vec<f64> = (0..self.slots.count).filter_map(|slot| row.at(slot)).collect();
            let most = values.iter().copied().fold(0.0, f64::max);
            let comma = if at == 0 { ":" } else { ";" };
            label += &match self.unit {
                Unit::Count => {
                    let all = self.unit.exact(values.iter().sum());
                    format!("{comma} {} {all} in all, at most {}", row.name, self.unit.exact(most))
                }
                _ => format!("{comma} {} at most {}", row.name, self.unit.exact(most)),
            };
        }
        label
    }
}

/// What stands below a chart: the name of each row in its colour.
pub(super) fn legend(rows: &[Series<'_>]) -> Svg {
    let mut svg = Svg::default();
    svg.open("p", &[("class", "legend")]);
    for row in rows {
        svg.text("span", &[("class", row.tone)], row.name);
    }
    svg.close("p");
    svg
}

/// A chart as small as a word: bars without axes, the rows stacked. `title` says what it shows.
pub(super) fn spark(title: &str, rows: &[Series<'_>]) -> Svg {
    const TALL: f64 = 28.0;
    let count = rows.iter().map(|row| row.values.len()).max().unwrap_or(0);
    let sum = |slot: usize| rows.iter().filter_map(|row| row.at(slot)).sum::<f64>();
    let most = (0..count).map(sum).fold(0.0, f64::max);
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
    let tall = num(TALL);
    svg.open("svg", &[("class", "chart spark"), ("role", "img"), ("aria-label", &label), ("data-tip", &tip)]);
    stretched(&mut svg, TALL, |svg| {
        let width = WIDE / count.max(1) as f64;
        bar(svg, "base", 0.0, WIDE, TALL - 1.0, TALL);
        for slot in (0..count).filter(|slot| sum(*slot) > 0.0) {
            // Something is never nothing, however little it is beside the most.
            let height = |value: f64| (value / most * (TALL - 1.0)).max(2.0);
            let mut bottom = TALL - 1.0;
            for row in rows {
                let Some(value) = row.at(slot).filter(|value| *value > 0.0) else { continue };
                let top = (bottom - height(value)).max(0.0);
                bar(svg, row.tone, (slot as f64 + 0.1) * width, 0.8 * width, top, bottom);
                bottom = top;
            }
        }
        svg.leaf("rect", &[("class", "hit"), ("width", &num(WIDE)), ("height", &tall), ("data-tip", &tip)]);
    });
    svg.close("svg");
    svg
}

/// The values that a chart reaches from and to.
struct Scale {
    levels: Vec<f64>,
    most: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, unit: Unit) -> Self {
        let most = values.fold(0.0, f64::max);
        Self { levels: axis::levels(most, unit), most }
    }

    /// How far below the top a value is.
    fn y(&self, value: f64) -> f64 {
        let top = self.levels.last().copied().unwrap_or(1.0);
        HIGH * (1.0 - (value / top).clamp(0.0, 1.0))
    }
}

/// A part that is as wide as there is room for, whatever that does to its shapes.
fn stretched(svg: &mut Svg, height: f64, shapes: impl FnOnce(&mut Svg)) {
    let (view, height) = (format!("0 0 {} {}", num(WIDE), num(height)), num(height));
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

/// A line through points, interrupted where there are none.
fn line(svg: &mut Svg, tone: &str, points: impl Iterator<Item = Option<(f64, f64)>>) {
    let mut part: Vec<(f64, f64)> = Vec::new();
    let end = |svg: &mut Svg, part: &mut Vec<(f64, f64)>| {
        // A line of no length has round ends: a dot.
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

/// Round times below a plot, in UTC.
fn times(svg: &mut Svg, from: Time, to: Time, below: f64) {
    let whole = Slots { from, step: to.since(from).max(Duration::from_millis(1)), count: 1 };
    let y = num(below + 16.0);
    for (time, label) in axis::times(from, to) {
        let share = whole.share(time);
        let anchor = match share {
            share if share < 0.05 => "start",
            share if share > 0.95 => "end",
            _ => "middle",
        };
        svg.text("text", &[("x", &wide(share)), ("y", &y), ("text-anchor", anchor)], &label);
    }
}

#[cfg(test)]
mod tests;

//! Labels below a plot: which of them fit beside each other at which width. A label that would overlap another one is shown
//! only on wider charts.

use super::svg::{Svg, wide};

/// Width of a character, in pixels: the font has 11.
const CHARACTER_WIDTH: f64 = 6.4;
/// Minimum gap between two labels, in pixels.
const GAP: f64 = 8.0;
/// Plot widths in pixels for which labels are chosen, from narrow to wide, each with the class of the labels that need it.
/// The style sheet shows a class from the width of its chart on.
const WIDTHS: [(f64, &str); 3] = [(230.0, ""), (400.0, "from-medium"), (850.0, "from-wide")];

/// A label at a position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Label {
    /// Position, as a share of the width.
    pub(super) share: f64,
    /// Part of the text that is at the position: `start`, `middle` or `end`.
    pub(super) anchor: &'static str,
    /// The text.
    pub(super) text: String,
}

impl Label {
    /// Creates a label that stays within the plot: near its sides it begins or ends at its position.
    pub(super) fn within(share: f64, text: String) -> Self {
        let anchor = match share {
            share if share < 0.05 => "start",
            share if share > 0.95 => "end",
            _ => "middle",
        };
        Self { share, anchor, text }
    }

    /// Returns where the label begins and ends in a plot of this width, in pixels.
    fn span(&self, width: f64) -> (f64, f64) {
        let length = self.text.chars().count() as f64 * CHARACTER_WIDTH;
        let at = self.share * width;
        match self.anchor {
            "start" => (at, at + length),
            "end" => (at - length, at),
            _ => (at - length / 2.0, at + length / 2.0),
        }
    }

    fn overlaps(&self, other: &Self, width: f64) -> bool {
        let ((begin, end), (other_begin, other_end)) = (self.span(width), other.span(width));
        begin < other_end + GAP && other_begin < end + GAP
    }
}

/// Returns the class of each label, or `None` for a label that fits at no width.
fn classes(labels: &[Label]) -> Vec<Option<&'static str>> {
    let mut classes = vec![None; labels.len()];
    for (width, class) in WIDTHS {
        for (at, label) in labels.iter().enumerate() {
            let is_free = |(other, shown): (usize, &Option<&str>)| {
                shown.is_none() || !label.overlaps(&labels[other], width)
            };
            if classes[at].is_none() && classes.iter().enumerate().all(is_free) {
                classes[at] = Some(class);
            }
        }
    }
    classes
}

/// Draws labels at this distance from the top.
pub(super) fn draw(svg: &mut Svg, labels: &[Label], y: &str) {
    for (label, class) in labels.iter().zip(classes(labels)) {
        let Some(class) = class else { continue };
        let x = wide(label.share);
        let attributes = [("class", class), ("x", &x), ("y", y), ("text-anchor", label.anchor)];
        let from = usize::from(class.is_empty());
        svg.text("text", &attributes[from..], &label.text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(shares: &[f64], text: &str) -> Vec<Label> {
        shares.iter().map(|share| Label::within(*share, text.to_owned())).collect()
    }

    #[test]
    fn labels_that_overlap_on_a_narrow_chart_are_shown_on_wider_ones() {
        let seven: Vec<f64> = (0..7).map(|n| f64::from(n) / 6.0).collect();
        let medium = Some("from-medium");
        let (always, never) = (Some(""), None);
        let of_times = classes(&labels(&seven, "22:20"));
        assert_eq!(of_times, [always, medium, always, medium, always, medium, always]);
        let close = classes(&labels(&[0.5, 0.51, 0.6], "1 h 35 min"));
        assert_eq!(close, [always, never, Some("from-wide")]);
    }

    proptest! {
        #[test]
        fn shown_labels_never_overlap(
            shares in proptest::collection::vec(0.0..1.0f64, 0..20), text in "[a-z0-9 ]{1,12}",
        ) {
            let labels = labels(&shares, &text);
            let classes = classes(&labels);
            for (at, (width, _)) in WIDTHS.into_iter().enumerate() {
                let shown = WIDTHS[..=at].iter().map(|(_, class)| Some(*class)).collect::<Vec<_>>();
                let shown: Vec<_> =
                    labels.iter().zip(&classes).filter(|(_, class)| shown.contains(class)).collect();
                for (index, (label, _)) in shown.iter().enumerate() {
                    let is_apart = shown[..index].iter().all(|(other, _)| !label.overlaps(other, width));
                    prop_assert!(is_apart, "{shown:?} at {width}");
                }
            }
            prop_assert!(labels.is_empty() || classes[0] == Some(""));
        }
    }
}

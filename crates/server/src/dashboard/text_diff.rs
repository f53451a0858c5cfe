//! Differences between two texts, line by line. The work is bounded: texts that differ in too many lines are shown
//! one after the other.

/// Maximum number of lines that are compared on each side, after equal lines at the beginning and end.
const MAX_COMPARED_LINES: usize = 300;
/// Maximum number of lines shown.
const MAX_SHOWN_LINES: usize = 400;
/// Number of equal lines shown around a difference.
const CONTEXT_LINES: usize = 3;

/// A line of a difference.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DiffLine {
    /// A line of both texts.
    Same(String),
    /// A line of the first text only.
    Removed(String),
    /// A line of the second text only.
    Added(String),
    /// This many lines are not shown: equal ones, or those beyond the limit.
    Skipped(usize),
}

/// Differences between two texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TextDiff {
    /// The lines in order.
    pub(super) lines: Vec<DiffLine>,
}

impl TextDiff {
    /// Compares two texts.
    pub(super) fn new(before: &str, after: &str) -> Self {
        let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
        let first = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
        let shorter = old.len().min(new.len()) - first;
        let last = old.iter().rev().zip(new.iter().rev()).take(shorter).take_while(|(a, b)| a == b).count();
        let same =
            |lines: &[&str]| lines.iter().map(|line| DiffLine::Same((*line).to_owned())).collect::<Vec<_>>();
        let mut lines = same(&old[..first]);
        lines.extend(compare(&old[first..old.len() - last], &new[first..new.len() - last]));
        lines.extend(same(&old[old.len() - last..]));
        Self { lines: limit(fold_context(lines)) }
    }

    /// Returns whether the texts differ.
    pub(super) fn has_changes(&self) -> bool {
        self.lines.iter().any(|line| matches!(line, DiffLine::Removed(_) | DiffLine::Added(_)))
    }
}

/// Returns the lines of both texts in the order of a longest common subsequence.
fn compare(old: &[&str], new: &[&str]) -> Vec<DiffLine> {
    let removed = |line: &&str| DiffLine::Removed((*line).to_owned());
    let added = |line: &&str| DiffLine::Added((*line).to_owned());
    if old.len() > MAX_COMPARED_LINES || new.len() > MAX_COMPARED_LINES {
        return old.iter().map(removed).chain(new.iter().map(added)).collect();
    }
    // `common[i][j]` is the length of the longest common subsequence of `old[i..]` and `new[j..]`.
    let mut common = vec![vec![0u16; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            let skipped = common[i + 1][j].max(common[i][j + 1]);
            common[i][j] = if old[i] == new[j] { common[i + 1][j + 1] + 1 } else { skipped };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    while i < old.len() && j < new.len() {
        if old[i] == new[j] {
            lines.push(DiffLine::Same(old[i].to_owned()));
            (i, j) = (i + 1, j + 1);
        } else if common[i + 1][j] >= common[i][j + 1] {
            lines.push(removed(&old[i]));
            i += 1;
        } else {
            lines.push(added(&new[j]));
            j += 1;
        }
    }
    lines.extend(old[i..].iter().map(removed));
    lines.extend(new[j..].iter().map(added));
    lines
}

/// Replaces equal lines that are far from every difference.
fn fold_context(lines: Vec<DiffLine>) -> Vec<DiffLine> {
    let changed: Vec<usize> = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !matches!(line, DiffLine::Same(_)))
        .map(|(at, _)| at)
        .collect();
    let mut folded = Vec::new();
    let mut skipped = 0;
    for (at, line) in lines.into_iter().enumerate() {
        let next = changed.partition_point(|change| *change < at);
        let near =
            |index: usize| changed.get(index).is_some_and(|change| change.abs_diff(at) <= CONTEXT_LINES);
        if near(next) || next > 0 && near(next - 1) {
            if skipped > 0 {
                folded.push(DiffLine::Skipped(std::mem::take(&mut skipped)));
            }
            folded.push(line);
        } else {
            skipped += 1;
        }
    }
    if skipped > 0 {
        folded.push(DiffLine::Skipped(skipped));
    }
    folded
}

fn limit(mut lines: Vec<DiffLine>) -> Vec<DiffLine> {
    let more = lines.len().saturating_sub(MAX_SHOWN_LINES);
    if more > 0 {
        lines.truncate(MAX_SHOWN_LINES);
        lines.push(DiffLine::Skipped(more));
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(diff: &TextDiff) -> Vec<String> {
        let line = |line: &DiffLine| match line {
            DiffLine::Same(text) => format!(" {text}"),
            DiffLine::Removed(text) => format!("-{text}"),
            DiffLine::Added(text) => format!("+{text}"),
            DiffLine::Skipped(count) => format!("@{count}"),
        };
        diff.lines.iter().map(line).collect()
    }

    #[test]
    fn changed_lines_are_shown_with_their_context() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8";
        let diff = TextDiff::new(before, &before.replace('6', "six"));
        assert_eq!(written(&diff), ["@2", " 3", " 4", " 5", "-6", "+six", " 7", " 8"]);
        assert!(diff.has_changes());
    }

    #[test]
    fn inserted_line_leaves_the_others_equal() {
        assert_eq!(written(&TextDiff::new("a\nc", "a\nb\nc")), [" a", "+b", " c"]);
        assert_eq!(written(&TextDiff::new("", "a")), ["+a"]);
    }

    #[test]
    fn equal_texts_have_no_changes() {
        let diff = TextDiff::new("a\nb", "a\nb");
        assert!(!diff.has_changes());
        assert_eq!(written(&diff), ["@2"]);
    }

    #[test]
    fn long_difference_is_bounded() {
        let text = |from: usize| (from..from + 5_000).map(|n| format!("{n}\n")).collect::<String>();
        let diff = TextDiff::new(&text(0), &text(10_000));
        assert_eq!(diff.lines.len(), MAX_SHOWN_LINES + 1);
        assert_eq!(diff.lines.last(), Some(&DiffLine::Skipped(10_000 - MAX_SHOWN_LINES)));
    }

    proptest! {
        #[test]
        fn both_texts_can_be_restored(old in proptest::collection::vec("[ab]", 0..6), new in proptest::collection::vec("[ab]", 0..6)) {
            let (old, new): (Vec<&str>, Vec<&str>) = (old.iter().map(String::as_str).collect(), new.iter().map(String::as_str).collect());
            let lines = compare(&old, &new);
            let side = |is_old: bool| -> Vec<&str> {
                lines.iter().filter_map(|line| match line {
                    DiffLine::Same(text) => Some(text.as_str()),
                    DiffLine::Removed(text) if is_old => Some(text.as_str()),
                    DiffLine::Added(text) if !is_old => Some(text.as_str()),
                    _ => None,
                }).collect()
            };
            prop_assert_eq!(side(true), old);
            prop_assert_eq!(side(false), new);
        }
    }
}

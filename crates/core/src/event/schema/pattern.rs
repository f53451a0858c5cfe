//! Counts the positions of a regular expression, which bound the states that a matcher keeps at the same time.

/// Upper limit of the count. A pattern with more positions is refused.
pub(super) const MAX_POSITIONS: u64 = 100_000;

/// Counts the characters and classes of a pattern, with counted repetitions expanded. Never undercounts a pattern
/// that compiles; a pattern that does not compile is refused elsewhere.
pub(super) fn positions(pattern: &str) -> u64 {
    let mut chars = pattern.chars().peekable();
    // For each open group: its positions so far, and those of its last element, to which a repetition applies.
    let mut groups: Vec<(u64, u64)> = vec![(0, 0)];
    while let Some(char) = chars.next() {
        match char {
            '(' => groups.push((0, 0)),
            ')' if groups.len() > 1 => {
                let (total, last) = groups.pop().unwrap_or_default();
                push(&mut groups, (total + last).max(1));
            }
            '{' => repeat(&mut groups, &until_brace(&mut chars)),
            '[' => {
                skip_class(&mut chars);
                push(&mut groups, 1);
            }
            '\\' => {
                let named = matches!(chars.next(), Some('u' | 'x' | 'p' | 'P'));
                if named && chars.next_if_eq(&'{').is_some() {
                    until_brace(&mut chars);
                }
                push(&mut groups, 1);
            }
            '*' | '+' | '?' | '|' | '^' | '$' => {}
            _ => push(&mut groups, 1),
        }
    }
    let total = groups.iter().fold(0_u64, |sum, (total, last)| sum.saturating_add(total + last));
    total.clamp(1, MAX_POSITIONS)
}

fn push(groups: &mut [(u64, u64)], positions: u64) {
    if let Some((total, last)) = groups.last_mut() {
        *total = total.saturating_add(*last).min(MAX_POSITIONS);
        *last = positions.min(MAX_POSITIONS);
    }
}

/// Repeats the last element as often as the text between two braces says. Other text counts as literal characters.
fn repeat(groups: &mut [(u64, u64)], bound: &str) {
    let is_bound = bound.chars().all(|char| char.is_ascii_digit() || char == ',' || char == ' ');
    if !is_bound {
        return push(groups, 2 + bound.chars().count() as u64);
    }
    // A number too large to parse exceeds every limit.
    let times = bound.split(',').map(str::trim).filter(|number| !number.is_empty());
    let times = times.map(|number| number.parse().unwrap_or(MAX_POSITIONS)).max().unwrap_or(1);
    if let Some((_, last)) = groups.last_mut() {
        *last = last.saturating_mul(times.max(1)).min(MAX_POSITIONS);
    }
}

fn until_brace(chars: &mut impl Iterator<Item = char>) -> String {
    chars.take_while(|char| *char != '}').collect()
}

/// Skips to the end of a character class. A nested class ends it early, which can only overcount.
fn skip_class(chars: &mut impl Iterator<Item = char>) {
    while let Some(char) = chars.next() {
        match char {
            '\\' => drop(chars.next()),
            ']' => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_repetitions_are_expanded() {
        for (pattern, expected) in [
            ("", 1),
            ("^abc$", 3),
            (r"^[0-9a-f]{8}-[0-9a-f]{4}$", 13),
            (r"\d{3,5}", 5),
            ("(a{10}){10}", 100),
            ("((ab|c){2}d){3}", 21),
            (r"[\]a-z]+x", 2),
            ("(a{1000}){1000}", MAX_POSITIONS),
            ("a{2,}", 2),
            ("(?:x)y", 3),
            (r"\u{1000}\p{Letter}", 2),
            ("a{b}c", 5),
            ("a{99999999999999999999}", MAX_POSITIONS),
            ("[[]abc", 4),
        ] {
            assert_eq!(positions(pattern), expected, "{pattern}");
        }
    }
}

//! Why a payload passes a filter or does not, in words for whoever wrote it.

use std::fmt::Write;

use super::{Comparison, Expr, Filter, Literal, Payload, Pointer, Test};

/// What a filter says of a payload, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the payload passes.
    pub matches: bool,
    /// Which condition decided it.
    pub why: String,
}

/// The longest explanation, and the longest value in one.
const LONGEST: usize = 1000;
const LONGEST_VALUE: usize = 60;

impl Filter {
    /// Whether a payload passes, and why.
    pub fn explain(&self, payload: &Payload<'_>) -> Verdict {
        let mut why = String::new();
        let matches = tell(&self.root, payload, "filter", &mut why);
        Verdict { matches, why: shortened(&why, LONGEST) }
    }
}

/// Says which parts of an expression decided, and gives what it came to.
fn tell(expr: &Expr, payload: &Payload<'_>, place: &str, why: &mut String) -> bool {
    match expr {
        Expr::All(parts) => several(parts, payload, &format!("{place}.all"), false, why),
        Expr::Any(parts) => several(parts, payload, &format!("{place}.any"), true, why),
        Expr::Not(part) => !tell(part, payload, &format!("{place}.not"), why),
        Expr::Where(path, tests) => condition(path, tests, payload, place, why),
    }
}

/// A part that gives `decides` settles it alone; if there is none, all of them do together.
fn several(parts: &[Expr], payload: &Payload<'_>, place: &str, decides: bool, why: &mut String) -> bool {
    let decided = parts.iter().position(|part| part.holds(payload) == decides);
    match decided {
        Some(n) => tell(&parts[n], payload, &format!("{place}[{n}]"), why),
        None => {
            for (n, part) in parts.iter().enumerate() {
                if why.len() > LONGEST {
                    break;
                }
                tell(part, payload, &format!("{place}[{n}]"), why);
            }
            !decides
        }
    }
}

fn condition(path: &Pointer, tests: &[Test], payload: &Payload<'_>, place: &str, why: &mut String) -> bool {
    let found = payload.find(&path.steps);
    let failed = tests.iter().find(|test| !test.holds(found));
    let what = match payload.text_at(&path.steps) {
        Some(raw) => format!("is {}", shortened(raw, LONGEST_VALUE)),
        None => "is not there".to_owned(),
    };
    let whole = if path.text.is_empty() { "the payload" } else { &path.text };
    let said = match failed {
        Some(test) => format!("{} does not hold", in_words(test)),
        None => {
            let all: Vec<_> = tests.iter().map(in_words).collect();
            format!("{} {}", all.join(" and "), if tests.len() == 1 { "holds" } else { "hold" })
        }
    };
    let gap = if why.is_empty() { "" } else { "; " };
    // Writing to memory does not fail.
    let _ = write!(why, "{gap}{place}: {} {what}, so {said}", shortened(whole, LONGEST_VALUE));
    failed.is_none()
}

fn in_words(test: &Test) -> String {
    match test {
        Test::Eq(literal) => format!("eq {}", value(literal)),
        Test::Ne(literal) => format!("ne {}", value(literal)),
        Test::Compare(comparison, literal) => {
            let word = match comparison {
                Comparison::Gt => "gt",
                Comparison::Gte => "gte",
                Comparison::Lt => "lt",
                Comparison::Lte => "lte",
            };
            format!("{word} {}", value(literal))
        }
        Test::In(literals) => {
            let all: Vec<_> = literals.iter().map(value).collect();
            format!("in [{}]", shortened(&all.join(", "), LONGEST_VALUE))
        }
        Test::Exists(wanted) => format!("exists {wanted}"),
        Test::Prefix(text) => format!("prefix {}", quoted(text)),
        Test::Suffix(text) => format!("suffix {}", quoted(text)),
    }
}

fn value(literal: &Literal) -> String {
    match literal {
        Literal::Null => "null".to_owned(),
        Literal::Bool(value) => value.to_string(),
        Literal::Number(number) => shortened(&number.to_string(), LONGEST_VALUE),
        Literal::Text(text) => quoted(text),
    }
}

fn quoted(text: &str) -> String {
    shortened(&serde_json::Value::from(text).to_string(), LONGEST_VALUE)
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

//! Explains to the author of a filter why a payload passes it or not.

use std::fmt::Write;

use super::{Comparison, Expr, Filter, Literal, Payload, Pointer, Test};

/// Result of a filter for a payload, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterExplanation {
    /// Whether the payload passes.
    pub matches: bool,
    /// The condition that decided.
    pub why: String,
}

/// Maximum length of an explanation, and of a value in one.
const MAX_EXPLANATION_CHARS: usize = 1000;
const MAX_VALUE_CHARS: usize = 60;

impl Filter {
    /// Returns whether a payload passes, and why.
    pub fn explain(&self, payload: &Payload<'_>) -> FilterExplanation {
        let mut why = String::new();
        let matches = explain_expr(&self.root, payload, "filter", &mut why);
        FilterExplanation { matches, why: shortened(&why, MAX_EXPLANATION_CHARS) }
    }
}

/// Writes which parts of an expression decided, and returns its result.
fn explain_expr(expr: &Expr, payload: &Payload<'_>, location: &str, why: &mut String) -> bool {
    match expr {
        Expr::All(parts) => explain_list(parts, payload, &format!("{location}.all"), false, why),
        Expr::Any(parts) => explain_list(parts, payload, &format!("{location}.any"), true, why),
        Expr::Not(part) => !explain_expr(part, payload, &format!("{location}.not"), why),
        Expr::Where(path, tests) => condition(path, tests, payload, location, why),
    }
}

/// Explains a list: the first part with the result `decides` decides alone; if there is none, all parts together
/// do.
fn explain_list(
    parts: &[Expr],
    payload: &Payload<'_>,
    location: &str,
    decides: bool,
    why: &mut String,
) -> bool {
    let decided = parts.iter().position(|part| part.holds(payload) == decides);
    match decided {
        Some(n) => explain_expr(&parts[n], payload, &format!("{location}[{n}]"), why),
        None => {
            for (n, part) in parts.iter().enumerate() {
                if why.len() > MAX_EXPLANATION_CHARS {
                    break;
                }
                explain_expr(part, payload, &format!("{location}[{n}]"), why);
            }
            !decides
        }
    }
}

fn condition(
    path: &Pointer,
    tests: &[Test],
    payload: &Payload<'_>,
    location: &str,
    why: &mut String,
) -> bool {
    let found = payload.find(&path.steps);
    let failed = tests.iter().find(|test| !test.holds(found));
    let what = match payload.text_at(&path.steps) {
        Some(raw) => format!("is {}", shortened(raw, MAX_VALUE_CHARS)),
        None => "is missing".to_owned(),
    };
    let whole = if path.text.is_empty() { "the payload" } else { &path.text };
    let message = match failed {
        Some(test) => format!("{} does not hold", in_words(test)),
        None => {
            let all: Vec<_> = tests.iter().map(in_words).collect();
            format!("{} {}", all.join(" and "), if tests.len() == 1 { "holds" } else { "hold" })
        }
    };
    let gap = if why.is_empty() { "" } else { "; " };
    // Writing to memory does not fail.
    let _ = write!(why, "{gap}{location}: {} {what}, so {message}", shortened(whole, MAX_VALUE_CHARS));
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
            format!("in [{}]", shortened(&all.join(", "), MAX_VALUE_CHARS))
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
        Literal::Number(number) => shortened(&number.to_string(), MAX_VALUE_CHARS),
        Literal::Text(text) => quoted(text),
    }
}

fn quoted(text: &str) -> String {
    shortened(&serde_json::Value::from(text).to_string(), MAX_VALUE_CHARS)
}

fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

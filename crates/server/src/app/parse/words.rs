//! Words for invalid input. They replace the messages of serde, which are written for Rust programmers.

use std::fmt::Write;

use redrive_core::field_error::closest_match;

/// Maximum number of characters of a value that a message repeats.
const MAX_SHOWN_CHARS: usize = 40;
/// Maximum number of names that a message lists.
const MAX_NAMES: usize = 12;

/// Returns a text in quotes, with escapes, and shortened if it is long.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", shortened(text).escape_debug())
}

/// Returns the beginning of a long text.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Joins words as in a sentence: `a, b or c`.
pub(crate) fn any_of<S: AsRef<str>>(words: &[S]) -> String {
    let mut text = String::new();
    for (index, word) in words.iter().enumerate() {
        let joint = match index {
            0 => "",
            _ if index + 1 == words.len() => " or ",
            _ => ", ",
        };
        let _ = write!(text, "{joint}{}", word.as_ref());
    }
    text
}

/// Returns the message for a field that does not exist, with the most similar one that does.
pub(crate) fn unknown_field(name: &str, known: &[&str]) -> String {
    match closest_match(name, known) {
        Some(closest) => format!("unknown field; did you mean {closest}?"),
        None if known.is_empty() => "unknown field; there are no fields here".to_owned(),
        None if known.len() <= MAX_NAMES => format!("unknown field; the fields are {}", known.join(", ")),
        None => "unknown field; the API documentation lists the fields".to_owned(),
    }
}

/// Returns the message for a value that is not one of the known ones.
pub(crate) fn unknown_value(text: &str, known: &[&str]) -> String {
    let closest = closest_match(text, known).map(|value| format!("; did you mean {value}?"));
    format!("must be {}, got {}{}", any_of(known), quoted(text), closest.unwrap_or_default())
}

/// Rephrases a message of serde. Other messages are returned as they are.
pub(crate) fn rephrase(message: &str) -> String {
    if message.starts_with("missing field") {
        return "is missing".to_owned();
    }
    if message.starts_with("duplicate field") {
        return "is given twice".to_owned();
    }
    if let Some((name, known)) = named(message, "unknown field `") {
        return unknown_field(name, &known);
    }
    if let Some((name, known)) = named(message, "unknown variant `") {
        return unknown_value(name, &known);
    }
    let kinds = ["invalid type: ", "invalid value: "];
    let rest = kinds.iter().find_map(|kind| message.strip_prefix(kind));
    match rest.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((given, wanted)) => {
            format!("must be {}, got {}", rephrase_wanted(wanted), rephrase_given(given))
        }
        None => message.to_owned(),
    }
}

/// Returns the name in a message such as ``unknown field `x`, expected one of `a`, `b` ``, and the names it lists.
fn named<'a>(message: &'a str, beginning: &str) -> Option<(&'a str, Vec<&'a str>)> {
    // The name may have backticks of its own, so it ends where the list begins.
    let rest = message.strip_prefix(beginning)?;
    let (name, list) = rest.rsplit_once("`, expected ").or_else(|| rest.rsplit_once("`, there are no "))?;
    let is_quoted = list.starts_with('`') || list.starts_with("one of `");
    let names = if is_quoted { list.split('`').skip(1).step_by(2).collect() } else { Vec::new() };
    Some((name, names))
}

fn rephrase_wanted(wanted: &str) -> &str {
    match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list, such as [\"…\"]",
        "a map" => "an object",
        wanted if wanted.starts_with("struct ") => "an object",
        wanted => wanted,
    }
}

fn rephrase_given(given: &str) -> String {
    let quoted_value = |kind: &str| given.strip_prefix(kind)?.strip_prefix(" `")?.strip_suffix('`');
    if let Some(number) = quoted_value("integer").or_else(|| quoted_value("floating point")) {
        return format!("the number {}", shortened(number));
    }
    if let Some(boolean) = quoted_value("boolean") {
        return boolean.to_owned();
    }
    match given {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        // serde has already put a text into quotes.
        _ if given.starts_with("string ") => format!("the {}", shortened(given)),
        _ => given.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_serde_are_rephrased() {
        for (message, ours) in [
            ("missing field `url`", "is missing"),
            ("duplicate field `url`", "is given twice"),
            ("invalid type: integer `5`, expected a string", "must be a string, got the number 5"),
            (
                "invalid type: string \"1h\", expected u32",
                "must be a whole number, 0 or more, got the string \"1h\"",
            ),
            (
                "invalid value: integer `-5`, expected u32",
                "must be a whole number, 0 or more, got the number -5",
            ),
            ("invalid type: map, expected a sequence", "must be a list, such as [\"…\"], got an object"),
            ("invalid type: null, expected a boolean", "must be true or false, got null"),
            ("invalid type: sequence, expected struct RateLimit", "must be an object, got a list"),
            ("unknown field `dta`, expected one of `data`, `subject`", "unknown field; did you mean data?"),
            ("unknown field `x`y`, expected `data`", "unknown field; the fields are data"),
            ("unknown field `x`, there are no fields", "unknown field; there are no fields here"),
            (
                "unknown variant `hihg`, expected `high` or `low`",
                "must be high or low, got \"hihg\"; did you mean high?",
            ),
            ("must name a webhook", "must name a webhook"),
        ] {
            assert_eq!(rephrase(message), ours);
        }
    }

    #[test]
    fn long_values_are_shortened() {
        assert_eq!(quoted(&"é".repeat(41)), format!("\"{}…\"", "é".repeat(40)));
        assert_eq!(quoted("a\"b\n"), "\"a\\\"b\\n\"");
        assert_eq!(any_of(&["a"]), "a");
        assert_eq!(any_of(&["a", "b", "c"]), "a, b or c");
    }
}

//! Formats untrusted text and bytes for display: bounded in size, with deceptive characters escaped.

use std::fmt;

use askama::filters::Escaper;
use redrive_core::security::visible_text::{escape_deceptive, is_deceptive};

use super::json;

/// Maximum number of bytes shown of a binary body.
const MAX_BINARY_BYTES: usize = 256;
/// Number of bytes per line of a dump.
const BYTES_PER_LINE: usize = 16;

/// A response body as it is shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodySample {
    /// No body.
    Empty,
    /// Text.
    Text(String),
    /// Binary data, as a hex dump of its first bytes.
    Binary {
        /// The dump.
        dump: String,
        /// Number of bytes that are stored.
        bytes: usize,
    },
}

/// Returns a body as it is shown.
pub(super) fn sample(bytes: &[u8]) -> BodySample {
    if bytes.is_empty() {
        return BodySample::Empty;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        // A sample may be cut within a character.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok(),
        Err(_) => None,
    };
    match text.filter(|text| !text.is_empty() && !text.chars().any(is_binary_char)) {
        Some(text) => BodySample::Text(escape_invisible(text)),
        None => BodySample::Binary { dump: dump(bytes), bytes: bytes.len() },
    }
}

fn is_binary_char(char: char) -> bool {
    char.is_control() && !matches!(char, '\n' | '\r' | '\t')
}

/// Escapes text for HTML, with deceptive characters written as Unicode escapes. Every `{{ … }}` of every template
/// goes through it; a form field that must keep its exact value uses `|escape("htm")`, which only escapes HTML.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VisibleHtml;

impl Escaper for VisibleHtml {
    fn write_escaped_str<W: fmt::Write>(&self, dest: W, text: &str) -> fmt::Result {
        askama::filters::Html.write_escaped_str(dest, &escape_deceptive(text))
    }
}

/// Returns text with invisible and deceptive characters escaped.
pub(super) fn escape_invisible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            // CRLF becomes LF, as browsers show it.
            '\r' if chars.peek() == Some(&'\n') => {}
            '\r' => shown.push_str("\\r"),
            char if is_deceptive(char) => shown.extend(char.escape_unicode()),
            char => shown.push(char),
        }
    }
    shown
}

fn dump(bytes: &[u8]) -> String {
    let lines =
        bytes[..bytes.len().min(MAX_BINARY_BYTES)].chunks(BYTES_PER_LINE).enumerate().map(|(at, line)| {
            let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            let readable = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
            let text: String = line.iter().map(readable).collect();
            format!("{:04x}  {:<47}  {text}", at * BYTES_PER_LINE, hex.join(" "))
        });
    lines.collect::<Vec<_>>().join("\n")
}

/// Formats JSON with indentation, up to about this many bytes, and returns whether it was cut. Numbers, escapes
/// and duplicate names stay as they were written.
pub(super) fn pretty(json: &[u8], max: usize) -> (String, bool) {
    let (text, is_cut) = json::format_indented(&String::from_utf8_lossy(json), max);
    (escape_invisible(&text), is_cut)
}

/// Formats a number of bytes.
pub(super) fn size(bytes: impl std::borrow::Borrow<usize>) -> String {
    match *bytes.borrow() {
        bytes @ 0..1_024 => format!("{bytes} B"),
        bytes @ 1_024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1_024.0),
        bytes => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn json_is_indented_without_changing_tokens() {
        let (shown, cut) = pretty(br#"{"a":1.50,"a":[ ],"b" : {"c":["x,{\"y\"}",true]},"n":1e400}"#, 1_000);
        assert!(!cut);
        let expected = "{\n  \"a\": 1.50,\n  \"a\": [],\n  \"b\": {\n    \"c\": [\n      \"x,{\\\"y\\\"}\",\n      \
                        true\n    ]\n  },\n  \"n\": 1e400\n}";
        assert_eq!(shown, expected);
        assert_eq!(pretty(b" null ", 10), ("null".into(), false));
    }

    #[test]
    fn long_and_deep_json_is_bounded() {
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        let (shown, cut) = pretty(&deep, 10_000);
        assert!(cut && shown.len() <= 10_000 + 2 * json::MAX_INDENT + 2, "{}", shown.len());
        let (shown, cut) = pretty(json!(["é".repeat(1_000)]).to_string().as_bytes(), 100);
        assert!(cut && shown.len() <= 102);
    }

    #[test]
    fn binary_body_is_shown_as_hex_dump() {
        assert_eq!(sample(b""), BodySample::Empty);
        assert_eq!(sample(b"<script>\n"), BodySample::Text("<script>\n".into()));
        assert_eq!(
            sample("gr\u{fc}\u{df}".as_bytes().split_last().unwrap().1),
            BodySample::Text("gr\u{fc}".into())
        );
        let BodySample::Binary { dump, bytes } = sample(b"PK\x03\x04\xff<b>") else {
            panic!("binary data was shown as text")
        };
        assert_eq!(
            (dump.as_str(), bytes),
            ("0000  50 4b 03 04 ff 3c 62 3e                          PK...<b>", 8)
        );
        let BodySample::Binary { dump, .. } = sample(&[0; 5_000]) else {
            panic!("binary data was shown as text")
        };
        assert_eq!(dump.lines().count(), 16);
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(escape_invisible("a\u{202e}b\u{200b}"), "a\\u{202e}b\\u{200b}");
        assert_eq!(pretty("\"\u{202e}\"".as_bytes(), 99).0, "\"\\u{202e}\"");
    }

    #[test]
    fn escaped_html_shows_deceptive_characters() {
        let mut html = String::new();
        VisibleHtml.write_escaped_str(&mut html, "<b>\u{202e}\u{0}").unwrap();
        assert_eq!(html, "&#60;b&#62;\\u{202e}\\u{0}");
    }

    #[test]
    fn sizes_use_fitting_units() {
        assert_eq!([5, 2_048, 3 << 20].map(size), ["5 B", "2.0 KiB", "3.0 MiB"]);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-z]{1,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn indented_json_parses_to_same_value(value in any_json()) {
            let (shown, cut) = pretty(value.to_string().as_bytes(), usize::MAX);
            prop_assert!(!cut);
            if !shown.contains("\\u{") {
                prop_assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
            }
        }

        #[test]
        fn arbitrary_bytes_are_displayed_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            // An escaped character takes at most ten bytes.
            prop_assert!(pretty(&bytes, 100).0.len() <= 10 * (100 + 2 * json::MAX_INDENT + 12));
            match sample(&bytes) {
                BodySample::Text(text) => prop_assert!(!text.chars().any(is_deceptive)),
                BodySample::Binary { dump, .. } => prop_assert!(dump.lines().count() <= 16),
                BodySample::Empty => prop_assert!(bytes.is_empty()),
            }
        }
    }
}

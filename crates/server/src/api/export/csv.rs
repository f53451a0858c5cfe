//! CSV by RFC 4180. Cells with untrusted content are escaped so that no spreadsheet evaluates them as a formula.

use std::{borrow::Cow, collections::HashMap};

use serde::Serialize;
use serde_json::value::RawValue;

/// Returns the header row with the column names.
pub(super) fn head(columns: &[&str]) -> Vec<u8> {
    let mut line = columns.join(",").into_bytes();
    line.extend_from_slice(b"\r\n");
    line
}

/// Appends a row with these fields of an object. Missing and null fields are empty; strings are written without
/// their JSON quotes, all other values as JSON.
pub(super) fn row(out: &mut Vec<u8>, object: &impl Serialize, columns: &[&str]) {
    let json = serde_json::to_string(object).unwrap_or_default();
    let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(&json).unwrap_or_default();
    for (at, column) in columns.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        if let Some(value) = members.get(*column) {
            cell(out, &text_of(value.get()));
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn text_of(json: &str) -> Cow<'_, str> {
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(json).unwrap_or_default().into(),
        Some(b'n') => "".into(),
        _ => json.into(),
    }
}

fn cell(out: &mut Vec<u8>, text: &str) {
    // Spreadsheets skip leading spaces and similar characters when they detect a formula.
    let begins = text.trim_start_matches([' ', '\u{a0}', '\u{feff}']).chars().next();
    let is_formula = matches!(
        begins,
        Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\n' | '\u{ff1d}' | '\u{ff0b}' | '\u{ff0d}' | '\u{ff20}')
    );
    let quote = text.contains([',', '"', '\r', '\n']) || is_formula;
    if quote {
        out.push(b'"');
    }
    if is_formula {
        out.push(b'\'');
    }
    for part in text.split_inclusive('"') {
        out.extend_from_slice(part.as_bytes());
        if part.ends_with('"') {
            out.push(b'"');
        }
    }
    if quote {
        out.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn line(object: &serde_json::Value, columns: &[&str]) -> String {
        let mut out = Vec::new();
        row(&mut out, object, columns);
        String::from_utf8(out).unwrap()
    }

    /// Parses one row strictly by RFC 4180.
    fn read(line: &str) -> Vec<String> {
        let mut rest = line.strip_suffix("\r\n").unwrap();
        let mut cells = Vec::new();
        loop {
            let mut cell = String::new();
            if let Some(mut quoted) = rest.strip_prefix('"') {
                loop {
                    let end = quoted.find('"').unwrap();
                    cell.push_str(&quoted[..end]);
                    quoted = &quoted[end + 1..];
                    match quoted.strip_prefix('"') {
                        Some(more) => {
                            cell.push('"');
                            quoted = more;
                        }
                        None => break,
                    }
                }
                rest = quoted;
            } else {
                let end = rest.find(',').unwrap_or(rest.len());
                cell.push_str(&rest[..end]);
                assert!(!cell.contains(['"', '\r', '\n']), "{line:?}");
                rest = &rest[end..];
            }
            cells.push(cell);
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    assert_eq!(rest, "");
                    return cells;
                }
            }
        }
    }

    #[test]
    fn cells_are_quoted_if_needed() {
        let object =
            json!({"a": "x,y", "b": "say \"no\"", "c": null, "d": {"k": [1, "2"]}, "e": 7, "f": "plain"});
        let expected = "\"x,y\",\"say \"\"no\"\"\",,\"{\"\"k\"\":[1,\"\"2\"\"]}\",7,plain,\r\n";
        assert_eq!(line(&object, &["a", "b", "c", "d", "e", "f", "missing"]), expected);
        assert_eq!(head(&["a", "b"]), b"a,b\r\n");
    }

    #[test]
    fn formula_cells_are_escaped() {
        for text in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\u{feff}=1", "\u{ff1d}1"]
        {
            let cell = read(&line(&json!({"a": text}), &["a"])).remove(0);
            assert_eq!(cell, format!("'{text}"), "{text:?}");
        }
        assert_eq!(line(&json!({"a": -1.5}), &["a"]), "\"'-1.5\"\r\n", "a payload may be a number");
        assert_eq!(line(&json!({"a": "a=b"}), &["a"]), "a=b\r\n");
    }

    proptest! {
        #[test]
        fn cell_text_round_trips_with_at_most_an_escape_prefix(texts in proptest::collection::vec(any::<String>(), 3)) {
            let object = json!({"a": texts[0], "b": texts[1], "c": texts[2]});
            let cells = read(&line(&object, &["a", "b", "c"]));
            for (cell, text) in cells.iter().zip(&texts) {
                prop_assert!(cell == text || *cell == format!("'{text}"), "{:?} {:?}", cell, text);
                prop_assert!(!cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']));
            }
        }
    }
}

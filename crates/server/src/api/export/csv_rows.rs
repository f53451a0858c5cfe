//! Rows of a CSV export (RFC 4180). Cells with untrusted content are escaped so that no spreadsheet evaluates them as a
//! formula.

use std::{borrow::Cow, collections::HashMap};

use csv::{Terminator, Writer, WriterBuilder};
use serde::Serialize;
use serde_json::value::RawValue;

/// Character before a formula, which makes spreadsheets show it as text.
const ESCAPE: u8 = b'\'';

/// Part of a CSV document in memory.
pub(super) struct CsvRows(Writer<Vec<u8>>);

impl Default for CsvRows {
    fn default() -> Self {
        // Cells that contain the comment character are quoted, so each cell with the escape of a formula is.
        let builder = &mut WriterBuilder::new();
        Self(builder.terminator(Terminator::CRLF).comment(Some(ESCAPE)).from_writer(Vec::new()))
    }
}

impl CsvRows {
    /// Appends the header row with the column names.
    pub(super) fn add_head(&mut self, columns: &[&str]) -> Result<(), csv::Error> {
        self.0.write_record(columns)
    }

    /// Appends a row with these fields of an object. Missing and null fields are empty; strings are written without
    /// their JSON quotes, all other values as JSON.
    pub(super) fn add(&mut self, object: &impl Serialize, columns: &[&str]) -> Result<(), csv::Error> {
        let json = serde_json::to_string(object).unwrap_or_default();
        let members: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_str(&json).unwrap_or_default();
        for column in columns {
            let text = members.get(*column).map_or(Cow::Borrowed(""), |value| text_of(value.get()));
            match is_formula(&text) {
                true => self.0.write_field([&[ESCAPE], text.as_bytes()].concat())?,
                false => self.0.write_field(text.as_bytes())?,
            }
        }
        self.0.write_record(None::<&[u8]>)
    }

    /// Returns the bytes of the rows.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        // Writing to memory does not fail.
        self.0.into_inner().unwrap_or_default()
    }
}

fn text_of(json: &str) -> Cow<'_, str> {
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(json).unwrap_or_default().into(),
        Some(b'n') => "".into(),
        _ => json.into(),
    }
}

/// Returns whether a spreadsheet would evaluate a cell as a formula. Spreadsheets skip leading spaces and similar
/// characters when they detect one.
fn is_formula(text: &str) -> bool {
    let first = text.trim_start_matches([' ', '\u{a0}', '\u{feff}']).chars().next();
    matches!(
        first,
        Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\n' | '\u{ff1d}' | '\u{ff0b}' | '\u{ff0d}' | '\u{ff20}')
    )
}

#[cfg(test)]
mod tests {
    use csv::ReaderBuilder;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn line(object: &serde_json::Value, columns: &[&str]) -> String {
        let mut rows = CsvRows::default();
        rows.add(object, columns).unwrap();
        String::from_utf8(rows.into_bytes()).unwrap()
    }

    fn read(line: &str) -> Vec<String> {
        let mut reader = ReaderBuilder::new().has_headers(false).from_reader(line.as_bytes());
        let rows: Vec<_> = reader.records().collect::<Result<_, _>>().unwrap();
        assert_eq!(rows.len(), 1, "{line:?}");
        rows[0].iter().map(str::to_owned).collect()
    }

    #[test]
    fn cells_are_quoted_if_needed() {
        let object =
            json!({"a": "x,y", "b": "say \"no\"", "c": null, "d": {"k": [1, "2"]}, "e": 7, "f": "plain"});
        let expected = "\"x,y\",\"say \"\"no\"\"\",,\"{\"\"k\"\":[1,\"\"2\"\"]}\",7,plain,\r\n";
        assert_eq!(line(&object, &["a", "b", "c", "d", "e", "f", "missing"]), expected);
        let mut head = CsvRows::default();
        head.add_head(&["a", "b"]).unwrap();
        assert_eq!(head.into_bytes(), b"a,b\r\n");
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

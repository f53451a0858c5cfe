//! Formats JSON with indentation, keeping names, numbers and order as written, and lists the differences between
//! two documents.

use std::fmt::Write;

use serde_json::Value;

/// Maximum indentation depth; deeper indentation would only push text out of sight.
pub(super) const MAX_INDENT: usize = 24;
/// Maximum length of a value in a difference.
const MAX_VALUE_CHARS: usize = 120;
/// Maximum number of differences shown.
const MAX_DIFFERENCES: usize = 12;

/// Formats JSON with indentation; only the whitespace between tokens changes.
pub(super) fn pretty(text: &str) -> String {
    format_indented(text, usize::MAX).0
}

/// Formats JSON with indentation, up to about this many bytes, and returns whether it was cut.
pub(super) fn format_indented(text: &str, max: usize) -> (String, bool) {
    let mut out = String::with_capacity(text.len().min(max) + 64);
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let mut tokens = text.chars().peekable();
    while let Some(c) = tokens.next() {
        if out.len() >= max {
            return (out, true);
        }
        if in_string {
            out.push(c);
            (in_string, escaped) = (escaped || c != '"', c == '\\' && !escaped);
            continue;
        }
        match c {
            '"' => {
                out.push(c);
                in_string = true;
            }
            '{' | '[' => {
                while tokens.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                out.push(c);
                match tokens.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => out.push(end),
                    None => {
                        depth += 1;
                        new_line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    (out, false)
}

fn new_line(out: &mut String, depth: usize) {
    let _ = write!(out, "\n{:1$}", "", 2 * depth.min(MAX_INDENT));
}

/// One difference between two documents.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// Path, such as `rules.quotas.max_webhooks`; empty for the whole document.
    pub(super) path: String,
    /// Old value. `None` if there was none.
    pub(super) before: Option<String>,
    /// New value. `None` if there is none.
    pub(super) after: Option<String>,
}

/// Differences between two documents.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// The first differences.
    pub(super) rows: Vec<Difference>,
    /// Number of further differences.
    pub(super) more: usize,
}

/// Returns the differences. A missing document differs in every field of the other one.
pub(super) fn differences(before: Option<&str>, after: Option<&str>) -> Differences {
    let read = |text: Option<&str>| text.and_then(|text| serde_json::from_str(text).ok());
    let (before, after) = (read(before).unwrap_or(Value::Null), read(after).unwrap_or(Value::Null));
    let mut found = Differences::default();
    compare(String::new(), &before, &after, &mut found);
    found
}

fn compare(path: String, before: &Value, after: &Value, found: &mut Differences) {
    if before == after {
        return;
    }
    let none = serde_json::Map::new();
    let (old, new) = match (before, after) {
        (Value::Object(old), Value::Object(new)) => (old, new),
        (Value::Object(old), Value::Null) => (old, &none),
        (Value::Null, Value::Object(new)) => (&none, new),
        _ if found.rows.len() >= MAX_DIFFERENCES => return found.more += 1,
        _ => {
            return found.rows.push(Difference {
                path,
                before: format_value(before),
                after: format_value(after),
            });
        }
    };
    let added = new.keys().filter(|name| !old.contains_key(*name));
    for name in old.keys().chain(added) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let part = |members: &serde_json::Map<_, _>| members.get(name).cloned().unwrap_or_default();
        compare(path, &part(old), &part(new), found);
    }
}

fn format_value(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Some(super::format::shortened(&text, MAX_VALUE_CHARS))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changes(before: &str, after: &str) -> Vec<String> {
        let part = |part: Option<String>| part.unwrap_or_else(|| "–".into());
        let Differences { rows: shown, more } = differences(Some(before), Some(after));
        assert_eq!(more, 0);
        let line = |one: Difference| format!("{}: {} → {}", one.path, part(one.before), part(one.after));
        shown.into_iter().map(line).collect()
    }

    #[test]
    fn indentation_keeps_tokens_and_order() {
        let text = r#"{"z":12345678901234567890.10,"a":[1,{"b":"x, \"y\": {"}],"e":{},"f":[ ]}"#;
        let expected = "{\n  \"z\": 12345678901234567890.10,\n  \"a\": [\n    1,\n    {\n      \"b\": \"x, \\\"y\\\": \
                        {\"\n    }\n  ],\n  \"e\": {},\n  \"f\": []\n}";
        assert_eq!(pretty(text), expected);
        assert_eq!(pretty(expected), expected);
    }

    #[test]
    fn only_changed_fields_are_listed() {
        assert_eq!(
            changes(
                r#"{"name": "a", "rules": {"pool": "x", "n": 1}}"#,
                r#"{"name": "a", "rules": {"n": 2}}"#
            ),
            ["rules.n: 1 → 2", "rules.pool: x → –"]
        );
        assert_eq!(changes("{}", r#"{"a": [1, 2], "b": null}"#), ["a: – → [1,2]"]);
        assert_eq!(changes(r#"{"a": {"b": 1}}"#, r#"{"a": 5}"#), [r#"a: {"b":1} → 5"#]);
        assert_eq!(changes("1", "1"), [] as [String; 0]);
    }

    #[test]
    fn missing_document_differs_in_every_field() {
        let created = differences(None, Some(r#"{"id": "acme", "rules": {"pool": "gold"}}"#));
        let paths: Vec<_> = created.rows.iter().map(|one| one.path.as_str()).collect();
        assert_eq!(paths, ["id", "rules.pool"]);
        assert!(created.rows.iter().all(|one| one.before.is_none() && one.after.is_some()));
        assert_eq!(differences(None, None), Differences::default());
        assert_eq!(differences(Some("no JSON"), None), Differences::default());
    }

    #[test]
    fn differences_are_limited_in_number_and_length() {
        let large: serde_json::Map<_, _> =
            (0..100).map(|n| (format!("f{n}"), Value::from("x".repeat(5_000)))).collect();
        let found = differences(None, Some(&Value::from(large).to_string()));
        assert_eq!((found.rows.len(), found.more), (MAX_DIFFERENCES, 100 - MAX_DIFFERENCES));
        assert!(
            found.rows.iter().all(|one| one.after.as_ref().unwrap().chars().count() <= MAX_VALUE_CHARS + 1)
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("\\PC{0,4}", inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn indentation_is_lossless_and_idempotent(json in any_json()) {
            let text = json.to_string();
            prop_assert_eq!(serde_json::from_str::<Value>(&pretty(&text)).unwrap(), json);
            prop_assert_eq!(pretty(&pretty(&text)), pretty(&text));
        }

        #[test]
        fn indenting_arbitrary_text_never_panics(text: String) {
            pretty(&text);
        }

        #[test]
        fn identical_documents_have_no_differences(json in any_json()) {
            let text = json.to_string();
            prop_assert_eq!(differences(Some(&text), Some(&text)), Differences::default());
        }
    }
}

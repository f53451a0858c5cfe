//! Writes the document as text.

use serde::{Serialize, Serializer};
use serde_json::Value;

/// Keys that come first in their object; all others follow in alphabetical order. Some generators use the first media type
/// of a body, which must be Redrive's own JSON.
const FIRST: [&str; 5] = ["openapi", "info", "servers", "operationId", "application/json"];

/// A part of the document with its keys in the order of the text.
struct Ordered<'a>(&'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(Ordered)),
            Value::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                let rank = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
                members.sort_by_key(|(name, _)| rank(name));
                serializer.collect_map(members.into_iter().map(|(name, value)| (name, Ordered(value))))
            }
            value => value.serialize(serializer),
        }
    }
}

/// Returns the document as indented JSON.
pub(super) fn to_text(document: &Value) -> String {
    let text = serde_json::to_string_pretty(&Ordered(document));
    format!("{}\n", text.unwrap_or_default())
}

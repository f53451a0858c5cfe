//! Metadata of a webhook or tenant: JSON values by name, kept as they were written and never sent.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _};
use serde_json::{Value, value::RawValue};

use crate::{event::json_nesting::is_nested_deeper, field_error::FieldError};

/// Maximum size of the metadata of one object: its names and values.
pub const MAX_METADATA_BYTES: usize = 8192;
/// Maximum nesting of lists and objects in one value.
pub const MAX_METADATA_NESTING: usize = 20;

/// Metadata of one object, by name.
pub type Metadata = BTreeMap<String, MetadataValue>;

/// A metadata value: any JSON, kept byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataValue {
    json: Box<str>,
}

impl MetadataValue {
    /// Returns the value as JSON text, as it was written.
    pub fn as_json(&self) -> &str {
        &self.json
    }

    /// Returns the text if the value is a JSON string.
    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        if !self.json.starts_with('"') {
            return None;
        }
        serde_json::from_str::<String>(&self.json).ok().map(Cow::Owned)
    }

    /// Returns the number of bytes that count towards [`MAX_METADATA_BYTES`]: those of the text of a string,
    /// or of the JSON of another value.
    fn counted_bytes(&self) -> usize {
        self.as_text().map_or(self.json.len(), |text| text.len())
    }
}

impl From<&str> for MetadataValue {
    fn from(text: &str) -> Self {
        Self { json: Value::from(text).to_string().into() }
    }
}

impl Serialize for MetadataValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.json).map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for MetadataValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self { json: raw.get().into() })
    }
}

/// Checks the size and nesting of metadata, and that every number is within the range of JSON parsers.
pub fn validate(metadata: &Metadata) -> Result<(), FieldError> {
    let total: usize = metadata.iter().map(|(name, value)| name.len() + value.counted_bytes()).sum();
    if total > MAX_METADATA_BYTES {
        let message = format!("must be at most {MAX_METADATA_BYTES} bytes in total");
        return Err(FieldError::new("metadata", message));
    }
    for (name, value) in metadata {
        let field = || format!("metadata.{}", name.escape_debug());
        if is_nested_deeper(value.json.as_bytes(), MAX_METADATA_NESTING) {
            let message = format!("is nested too deeply; at most {MAX_METADATA_NESTING} levels are allowed");
            return Err(FieldError::new(field(), message));
        }
        if serde_json::from_str::<Value>(&value.json).is_err() {
            return Err(FieldError::new(field(), "has a number out of range, or a text that is not Unicode"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(json: &str) -> Metadata {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn values_are_kept_as_written() {
        let json = r#"{"a":1.00,"b":123456789012345678901234567890,"c":null,"d":[ 1, {"x" : "\u00e9"} ],"e":"\u00e9","f":-0.0,"g":true}"#;
        let metadata = read(json);
        assert_eq!(serde_json::to_string(&metadata).unwrap(), json);
        assert_eq!(validate(&metadata), Ok(()));
        assert_eq!(metadata["e"].as_text().as_deref(), Some("é"));
        assert_eq!((metadata["a"].as_text(), metadata["a"].as_json()), (None, "1.00"));
        assert_eq!(MetadataValue::from("a \"b\"\n").as_json(), r#""a \"b\"\n""#);
        // The audit log holds the values as parsed JSON.
        assert_eq!(serde_json::to_value(&metadata).unwrap()["d"][1]["x"], "é");
    }

    #[test]
    fn size_counts_the_text_of_strings_and_the_json_of_other_values() {
        let of_size = |value: MetadataValue| [("n".to_owned(), value)].into();
        assert_eq!(validate(&of_size("x".repeat(8191).as_str().into())), Ok(()));
        assert_eq!(validate(&of_size("\"".repeat(8191).as_str().into())), Ok(()));
        assert_eq!(validate(&of_size("x".repeat(8192).as_str().into())).unwrap_err().field, "metadata");
        let digits =
            |length: usize| of_size(MetadataValue { json: format!("[{}]", "1".repeat(length)).into() });
        assert_eq!(validate(&digits(300)), Ok(()));
        assert!(validate(&digits(8190)).unwrap_err().message.contains("8192 bytes"));
    }

    #[test]
    fn nesting_and_numbers_are_bounded() {
        let nested = |levels: usize| format!(r#"{{"n":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert_eq!(validate(&read(&nested(MAX_METADATA_NESTING))), Ok(()));
        let refused = validate(&read(&nested(MAX_METADATA_NESTING + 1))).unwrap_err();
        assert_eq!(refused.to_string(), "metadata.n: is nested too deeply; at most 20 levels are allowed");
        assert_eq!(validate(&read(r#"{"n": 1e400}"#)).unwrap_err().field, "metadata.n");
        assert_eq!(validate(&read(r#"{"n": 1e300}"#)), Ok(()));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 30, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_round_trips_unchanged(members in proptest::collection::btree_map("[a-z]{1,8}", any_value(), 0..5)) {
            let json = serde_json::to_string(&members).unwrap();
            let metadata = read(&json);
            prop_assert_eq!(&serde_json::to_string(&metadata).unwrap(), &json);
            prop_assert_eq!(validate(&metadata).is_ok(), metadata.iter().map(|(name, value)| {
                name.len() + members[name].as_str().map_or(value.as_json().len(), str::len)
            }).sum::<usize>() <= MAX_METADATA_BYTES);
            for (name, value) in &metadata {
                let text = value.as_text();
                prop_assert_eq!(text.as_deref(), members[name].as_str());
            }
        }
    }
}

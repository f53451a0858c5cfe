//! Words for what a request should contain and what it contains instead.

use serde_json::{Value, value::RawValue};

use crate::app::parse::words::{quoted, shortened};

/// Kind of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Boolean,
    Number,
    String,
    List,
    Object,
}

impl Kind {
    /// Returns the kind of an unparsed value.
    pub(super) fn from_value(value: &RawValue) -> Self {
        match value.get().as_bytes().first() {
            Some(b'n') => Self::Null,
            Some(b't' | b'f') => Self::Boolean,
            Some(b'"') => Self::String,
            Some(b'[') => Self::List,
            Some(b'{') => Self::Object,
            _ => Self::Number,
        }
    }

    /// Returns whether a schema's `type` stands for this kind.
    pub(super) fn is_named(self, name: &str) -> bool {
        match name {
            "null" => self == Self::Null,
            "boolean" => self == Self::Boolean,
            "integer" | "number" => self == Self::Number,
            "string" => self == Self::String,
            "array" => self == Self::List,
            "object" => self == Self::Object,
            _ => false,
        }
    }
}

/// Returns the words for a schema's `type`.
pub(super) fn expected_type(name: &str) -> &'static str {
    match name {
        "null" => "null",
        "boolean" => "true or false",
        "integer" => "a whole number",
        "number" => "a number",
        "string" => "a string",
        "array" => "a list",
        _ => "an object",
    }
}

/// Describes an unparsed value.
pub(super) fn describe(value: &RawValue) -> String {
    match Kind::from_value(value) {
        Kind::Null => "null".to_owned(),
        Kind::Boolean => value.get().to_owned(),
        Kind::Number => format!("the number {}", shortened(value.get())),
        Kind::String => {
            let text = serde_json::from_str::<String>(value.get()).unwrap_or_default();
            format!("the string {}", quoted(&text))
        }
        Kind::List => "a list".to_owned(),
        Kind::Object => "an object".to_owned(),
    }
}

/// Returns the words for the limits of a number or length. Returns `None` if the schema has none.
pub(super) fn range(min: Option<&Value>, max: Option<&Value>) -> Option<String> {
    match (min, max) {
        (Some(min), Some(max)) => Some(format!("from {min} to {max}")),
        (Some(min), None) => Some(format!("{min} or more")),
        (None, Some(max)) => Some(format!("at most {max}")),
        (None, None) => None,
    }
}

//! Reads the schemas of the OpenAPI document.

use serde_json::{Map, Value};

/// Maximum number of references that lead from one to the next.
const MAX_REFERENCES: usize = 8;

/// A schema of the document, with references resolved.
#[derive(Clone, Copy)]
pub(super) struct Schema<'d> {
    document: &'d Value,
    fields: &'d Map<String, Value>,
}

impl<'d> Schema<'d> {
    /// Returns the schema that a value of the document stands for. Returns `None` if it allows everything.
    pub(super) fn new(document: &'d Value, mut value: &'d Value) -> Option<Self> {
        for _ in 0..MAX_REFERENCES {
            let fields = value.as_object()?;
            match fields.get("$ref").and_then(Value::as_str) {
                Some(reference) => value = document.pointer(reference.strip_prefix('#')?)?,
                None => return Some(Self { document, fields }),
            }
        }
        None
    }

    /// Returns a keyword of the schema.
    pub(super) fn get(self, keyword: &str) -> Option<&'d Value> {
        self.fields.get(keyword)
    }

    /// Returns a keyword that is a schema.
    pub(super) fn inner(self, keyword: &str) -> Option<Self> {
        Self::new(self.document, self.get(keyword)?)
    }

    /// Returns the names of the types that the schema allows; none if it does not restrict them.
    pub(super) fn types(self) -> Vec<&'d str> {
        match self.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the schemas of which one must match; none if the schema has no alternatives.
    pub(super) fn alternatives(self) -> Vec<Self> {
        let parts = self.get("oneOf").or_else(|| self.get("anyOf")).and_then(Value::as_array);
        let parts = parts.into_iter().flatten().filter_map(|part| Self::new(self.document, part));
        parts
            .flat_map(|part| match part.get("oneOf") {
                Some(_) => part.alternatives(),
                None => vec![part],
            })
            .collect()
    }

    /// Returns the schema of a property.
    pub(super) fn property(self, name: &str) -> Option<&'d Value> {
        self.get("properties")?.get(name)
    }

    /// Returns the names of all properties.
    pub(super) fn property_names(self) -> Vec<&'d str> {
        let properties = self.get("properties").and_then(Value::as_object);
        properties.into_iter().flat_map(Map::keys).map(String::as_str).collect()
    }

    /// Returns the names of the required properties.
    pub(super) fn required(self) -> impl Iterator<Item = &'d str> {
        self.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns the values of an enumeration of strings.
    pub(super) fn values(self) -> Option<Vec<&'d str>> {
        Some(self.get("enum")?.as_array()?.iter().filter_map(Value::as_str).collect())
    }

    /// Returns the schema for a value of the document.
    pub(super) fn resolve(self, value: &'d Value) -> Option<Self> {
        Self::new(self.document, value)
    }
}

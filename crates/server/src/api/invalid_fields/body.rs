//! Compares a JSON body with its schema, and describes every difference.

use std::{borrow::Cow, collections::BTreeSet};

use redrive_core::FailureCategory;
use serde_json::{Value, value::RawValue};

use super::{
    formats,
    members::{List, Object},
    schema::Schema,
    words::{Kind, describe, expected_type, range},
};
use crate::{
    app::parse::words::{any_of, unknown_field, unknown_value},
    problem::{InvalidField, InvalidFieldCode},
};

/// Maximum number of invalid fields that a response lists.
pub(super) const MAX_LISTED: usize = 50;
/// Maximum nesting that is compared. Deeper values are left to the parser, which stops at the first error.
const MAX_DEPTH: usize = 8;

/// Returns every difference between a body and its schema, up to [`MAX_LISTED`].
pub(super) fn invalid_fields(schema: Schema<'_>, body: &[u8]) -> Vec<InvalidField> {
    let mut comparison = Comparison { found: Vec::new() };
    if let Ok(value) = serde_json::from_slice::<&RawValue>(body.trim_ascii()) {
        comparison.compare(schema, value, "", 0);
    }
    comparison.found
}

struct Comparison {
    found: Vec<InvalidField>,
}

impl Comparison {
    fn add(&mut self, field: &str, code: InvalidFieldCode, message: String) {
        if self.found.len() < MAX_LISTED && !field.is_empty() {
            self.found.push(InvalidField { field: field.to_owned(), code, message });
        }
    }

    fn compare(&mut self, schema: Schema<'_>, value: &RawValue, field: &str, depth: usize) {
        if depth > MAX_DEPTH || self.found.len() >= MAX_LISTED {
            return;
        }
        let alternatives = schema.alternatives();
        if !alternatives.is_empty() {
            return self.compare_alternatives(&alternatives, value, field, depth);
        }
        let (kind, types) = (Kind::from_value(value), schema.types());
        if !types.is_empty() && !types.iter().any(|name| accepts(name, kind, value)) {
            return self.add_wrong_type(&types, value, field);
        }
        match kind {
            Kind::Null | Kind::Boolean => {}
            Kind::Number => self.compare_number(schema, value, field),
            Kind::String => self.compare_string(schema, value, field),
            Kind::List => self.compare_list(schema, value, field, depth),
            Kind::Object => self.compare_object(schema, value, field, depth),
        }
    }

    fn add_wrong_type(&mut self, types: &[&str], value: &RawValue, field: &str) {
        // Null stands for a missing field; a client that sends another type means the others.
        let mut words: Vec<_> =
            types.iter().filter(|name| **name != "null").map(|name| expected_type(name)).collect();
        words.dedup();
        let message = format!("must be {}, got {}", any_of(&words), describe(value));
        self.add(field, InvalidFieldCode::WrongType, message);
    }

    fn compare_alternatives(&mut self, all: &[Schema<'_>], value: &RawValue, field: &str, depth: usize) {
        let kind = Kind::from_value(value);
        let fits = |schema: &&Schema<'_>| {
            let types = schema.types();
            types.is_empty() || types.iter().any(|name| accepts(name, kind, value))
        };
        let candidates: Vec<_> = all.iter().filter(fits).copied().collect();
        match candidates.as_slice() {
            [] => {
                let types: Vec<_> = all.iter().flat_map(|schema| schema.types()).collect();
                self.add_wrong_type(&types, value, field);
            }
            [only] => self.compare(*only, value, field, depth),
            // Variants of an object, distinguished by a field.
            several if kind == Kind::Object => self.compare_variants(several, value, field, depth),
            _ => {}
        }
    }

    fn compare_variants(&mut self, variants: &[Schema<'_>], value: &RawValue, field: &str, depth: usize) {
        let Ok(Object(members)) = serde_json::from_str::<Object<'_>>(value.get()) else { return };
        let Some(tag) = variants.first().and_then(|variant| tag_of(*variant)) else {
            // Without such a field, the required fields decide.
            let has = |name: &str| members.iter().any(|(given, _)| given == name);
            let mut fitting = variants.iter().filter(|variant| variant.required().all(has));
            if let (Some(only), None) = (fitting.next(), fitting.next()) {
                self.compare(*only, value, field, depth);
            }
            return;
        };
        let tags: Vec<_> = variants.iter().filter_map(|variant| tag_value(*variant, tag)).collect();
        if tags.len() != variants.len() {
            return;
        }
        let given = members.iter().find(|(name, _)| name == tag).map(|(_, value)| *value);
        let text = given.and_then(|given| serde_json::from_str::<String>(given.get()).ok());
        let chosen = tags.iter().position(|known| Some(*known) == text.as_deref());
        match (chosen.and_then(|index| variants.get(index)), given) {
            (Some(variant), _) => self.compare(*variant, value, field, depth),
            (None, None) => self.add(&within(field, tag), InvalidFieldCode::Missing, "is missing".to_owned()),
            (None, Some(given)) => {
                let message = format!("must be {}, got {}", any_of(&tags), describe(given));
                self.add(&within(field, tag), InvalidFieldCode::InvalidValue, message);
            }
        }
    }

    fn compare_number(&mut self, schema: Schema<'_>, value: &RawValue, field: &str) {
        let Ok(number) = value.get().parse::<f64>() else { return };
        if let Some(message) = outside_range(schema, number) {
            self.add(field, InvalidFieldCode::OutOfRange, format!("{message}, got {}", describe(value)));
        }
    }

    fn compare_string(&mut self, schema: Schema<'_>, value: &RawValue, field: &str) {
        let Ok(text) = serde_json::from_str::<String>(value.get()) else { return };
        if let Some((code, message)) = invalid_text(schema, &text) {
            self.add(field, code, message);
        }
    }

    fn compare_list(&mut self, schema: Schema<'_>, value: &RawValue, field: &str, depth: usize) {
        let Ok(list) = serde_json::from_str::<List<'_>>(value.get()) else { return };
        let (min, max) = (schema.get("minItems"), schema.get("maxItems"));
        if is_outside(min, max, list.len as f64)
            && let Some(words) = range(min, max)
        {
            let message = format!("must have {words} items, has {}", list.len);
            self.add(field, InvalidFieldCode::OutOfRange, message);
        }
        let Some(items) = schema.inner("items") else { return };
        for (index, item) in list.items.into_iter().enumerate() {
            self.compare(items, item, &format!("{field}[{index}]"), depth + 1);
        }
    }

    fn compare_object(&mut self, schema: Schema<'_>, value: &RawValue, field: &str, depth: usize) {
        let Ok(Object(members)) = serde_json::from_str::<Object<'_>>(value.get()) else { return };
        let mut seen = BTreeSet::new();
        let others = schema.get("additionalProperties");
        for (name, member) in &members {
            let path = within(field, name);
            if !seen.insert(name.as_ref()) {
                self.add(&path, InvalidFieldCode::InvalidValue, "is given twice".to_owned());
                continue;
            }
            let known = schema.property(name).or(others.filter(|others| others.is_object()));
            match known.and_then(|known| schema.resolve(known)) {
                Some(known) => self.compare(known, member, &path, depth + 1),
                None if others == Some(&Value::Bool(false)) => {
                    let message = unknown_field(name, &schema.property_names());
                    self.add(&path, InvalidFieldCode::UnknownField, message);
                }
                None => {}
            }
        }
        let missing = schema.required().filter(|name| !seen.contains(name));
        for name in missing {
            self.add(&within(field, name), InvalidFieldCode::Missing, "is missing".to_owned());
        }
    }
}

/// Returns whether a value is of the type with this name.
fn accepts(name: &str, kind: Kind, value: &RawValue) -> bool {
    let is_whole = || !value.get().contains(['.', 'e', 'E']);
    kind.is_named(name) && (name != "integer" || is_whole())
}

/// Returns the property that has a single value in a variant of an object.
fn tag_of<'d>(variant: Schema<'d>) -> Option<&'d str> {
    variant.property_names().into_iter().find(|name| tag_value(variant, name).is_some())
}

fn tag_value<'d>(variant: Schema<'d>, tag: &str) -> Option<&'d str> {
    match variant.resolve(variant.property(tag)?)?.values()?.as_slice() {
        [only] => Some(only),
        _ => None,
    }
}

fn is_outside(min: Option<&Value>, max: Option<&Value>, number: f64) -> bool {
    let limit = |limit: Option<&Value>| limit.and_then(Value::as_f64);
    limit(min).is_some_and(|min| number < min) || limit(max).is_some_and(|max| number > max)
}

/// Returns what is wrong with a number, if it is outside of its limits.
pub(super) fn outside_range(schema: Schema<'_>, number: f64) -> Option<String> {
    let widest = match schema.get("format").and_then(Value::as_str) {
        Some("uint16") => Some(Value::from(u16::MAX)),
        Some("uint32") => Some(Value::from(u32::MAX)),
        Some("int32") => Some(Value::from(i32::MAX)),
        _ => None,
    };
    // The limits of the type itself are worth a word only if the number violates them.
    let widest = widest.filter(|widest| widest.as_f64().is_some_and(|widest| number > widest));
    let (min, max) = (schema.get("minimum"), schema.get("maximum").or(widest.as_ref()));
    let min = min.filter(|min| number < 0.0 || min.as_f64() != Some(0.0));
    is_outside(min, max, number).then(|| range(min, max)).flatten().map(|words| format!("must be {words}"))
}

/// Returns the documented name of a value for which parsers accept another name.
fn other_name(text: &str) -> Option<&'static str> {
    serde_json::from_value::<FailureCategory>(text.into()).ok().map(FailureCategory::name)
}

/// Returns what is wrong with a text.
pub(super) fn invalid_text(schema: Schema<'_>, text: &str) -> Option<(InvalidFieldCode, String)> {
    if let Some(values) = schema.values() {
        let is_known = values.contains(&text) || other_name(text).is_some_and(|name| values.contains(&name));
        return (!is_known).then(|| (InvalidFieldCode::InvalidValue, unknown_value(text, &values)));
    }
    let (min, max) = (schema.get("minLength"), schema.get("maxLength"));
    let len = text.chars().count();
    if is_outside(min, max, len as f64) {
        // The value is not repeated: it may be a secret.
        let words = range(min, max)?;
        let message = format!("must have {words} characters, has {len}");
        return Some((InvalidFieldCode::OutOfRange, message));
    }
    let format = schema.get("format").and_then(Value::as_str)?;
    formats::invalid(format, text).map(|message| (InvalidFieldCode::InvalidValue, message))
}

/// Returns the path of a field within another.
fn within<'a>(field: &str, name: &'a str) -> Cow<'a, str> {
    match field {
        "" => Cow::Borrowed(name),
        _ => Cow::Owned(format!("{field}.{name}")),
    }
}

//! Compares two OpenAPI documents, and returns the changes that break clients.
//!
//! What clients send must still be accepted, and what they read must still be there. Additions break nothing, and neither
//! do new values of enumerations in responses: clients treat unknown values as "other".

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use serde_json::{Map, Value};

/// Direction in which a schema is used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Request,
    Response,
}

/// Returns every change from `old` to `new` that breaks clients, as one line each.
pub fn breaking_changes(old: &Value, new: &Value) -> Vec<String> {
    let (old, new) = (&with_merged_parts(old), &with_merged_parts(new));
    let mut diff = Diff { old, new, found: BTreeSet::new(), seen: BTreeSet::new() };
    diff.compare_schema_names();
    let new_operations = operations(new);
    for (name, operation) in operations(old) {
        match new_operations.get(&name) {
            Some(same) => diff.compare_operation(&name, operation, same),
            None => diff.add(name, "the operation was removed"),
        }
    }
    diff.found.into_iter().collect()
}

/// Returns a document in which every named schema that consists of parts (`allOf`) has their fields itself. Whether a field
/// is in a part makes no difference to clients.
fn with_merged_parts(document: &Value) -> Value {
    let mut merged = document.clone();
    let schemas = merged.pointer_mut("/components/schemas").and_then(Value::as_object_mut);
    for schema in schemas.into_iter().flat_map(Map::values_mut) {
        let Some(parts) = schema.as_object_mut().and_then(|schema| schema.remove("allOf")) else { continue };
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for part in all_parts(document, &parts) {
            properties.extend(part["properties"].as_object().cloned().unwrap_or_default());
            required.extend(part["required"].as_array().cloned().unwrap_or_default());
        }
        schema["type"] = "object".into();
        schema["properties"] = properties.into();
        schema["required"] = required.into();
    }
    merged
}

/// Returns the objects that the parts of a schema consist of, at any depth.
fn all_parts<'a>(document: &'a Value, parts: &'a Value) -> Vec<&'a Value> {
    let parts = parts.as_array().into_iter().flatten().map(|part| resolve(document, part));
    parts
        .flat_map(|part| match part.get("allOf") {
            Some(inner) => all_parts(document, inner),
            None => vec![part],
        })
        .collect()
}

/// Returns the operations of a document by method and path.
fn operations(document: &Value) -> BTreeMap<String, &Value> {
    let items = document["paths"].as_object().into_iter().flatten();
    items
        .flat_map(|(path, item)| {
            let operations = item.as_object().into_iter().flatten();
            operations.map(move |(method, one)| (format!("{} {path}", method.to_uppercase()), one))
        })
        .collect()
}

struct Diff<'a> {
    old: &'a Value,
    new: &'a Value,
    found: BTreeSet<String>,
    /// Pairs of named schemas that were compared, because schemas may refer to themselves.
    seen: BTreeSet<(String, String, Side)>,
}

impl<'a> Diff<'a> {
    fn add(&mut self, place: impl Display, what: impl Display) {
        self.found.insert(format!("{place}: {what}"));
    }

    /// The names of schemas are the names of classes in generated clients.
    fn compare_schema_names(&mut self) {
        let known = &self.new["components"]["schemas"];
        let names = self.old["components"]["schemas"].as_object().into_iter().flatten();
        let lost: Vec<_> = names.map(|(name, _)| name).filter(|name| known.get(*name).is_none()).collect();
        for name in lost {
            self.add(name, "the schema was removed");
        }
    }

    fn compare_operation(&mut self, name: &str, old: &'a Value, new: &'a Value) {
        if old["operationId"] != new["operationId"] {
            let (from, to) = (&old["operationId"], &new["operationId"]);
            self.add(name, format_args!("the operationId changed from {from} to {to}"));
        }
        self.compare_parameters(name, old, new);
        self.compare_body(name, &old["requestBody"], &new["requestBody"]);
        for (status, response) in old["responses"].as_object().into_iter().flatten() {
            let Some(same) = new["responses"].get(status) else {
                if status.starts_with('2') {
                    self.add(name, format_args!("the response {status} was removed"));
                }
                continue;
            };
            let (response, same) = (resolve(self.old, response), resolve(self.new, same));
            let place = format!("{name} {status}");
            self.compare_content(&place, &response["content"], &same["content"], Side::Response);
        }
    }

    fn compare_parameters(&mut self, name: &str, old: &'a Value, new: &'a Value) {
        let list = |operation: &'a Value| operation["parameters"].as_array().into_iter().flatten();
        for parameter in list(new) {
            let before = list(old).find(|known| is_same(known, parameter));
            let place = format!("{name} {}", text(&parameter["name"]));
            if parameter["required"] == true && before.is_none_or(|before| before["required"] != true) {
                self.add(&place, "the parameter is required now");
            }
        }
        for parameter in list(old) {
            let place = format!("{name} {}", text(&parameter["name"]));
            match list(new).find(|known| is_same(known, parameter)) {
                Some(same) => self.compare(&place, &parameter["schema"], &same["schema"], Side::Request),
                None => self.add(&place, "the parameter was removed"),
            }
        }
    }

    fn compare_body(&mut self, name: &str, old: &'a Value, new: &'a Value) {
        if new["required"] == true && old["required"] != true {
            self.add(name, "the body is required now");
        }
        self.compare_content(&format!("{name} body"), &old["content"], &new["content"], Side::Request);
    }

    fn compare_content(&mut self, place: &str, old: &'a Value, new: &'a Value, side: Side) {
        for (media_type, media) in old.as_object().into_iter().flatten() {
            match new.get(media_type) {
                Some(same) => self.compare(place, &media["schema"], &same["schema"], side),
                None => self.add(place, format_args!("the media type {media_type} was removed")),
            }
        }
    }

    fn compare(&mut self, place: &str, old: &'a Value, new: &'a Value, side: Side) {
        let name = reference(old);
        if !name.is_empty() && !self.seen.insert((name.to_owned(), reference(new).to_owned(), side)) {
            return;
        }
        // A named schema is used in many places; its name says more than the first of them.
        let place = if name.is_empty() { place } else { name };
        let (old, new) = (resolve(self.old, old), resolve(self.new, new));
        self.compare_types(place, old, new, side);
        if side == Side::Request {
            self.compare_values(place, old, new);
            self.compare_limits(place, old, new);
        }
        self.compare_properties(place, old, new, side);
        if let (Some(old), Some(new)) = (old.get("items"), new.get("items")) {
            self.compare(&format!("{place}[]"), old, new, side);
        }
        let (others, others_now) = (&old["additionalProperties"], &new["additionalProperties"]);
        if others.is_object() && others_now.is_object() {
            self.compare(&format!("{place}.*"), others, others_now, side);
        }
        if side == Side::Request && others_now == false && others != false && old.is_object() {
            self.add(place, "unknown fields are rejected now");
        }
        self.compare_alternatives(place, old, new, side);
    }

    fn compare_types(&mut self, place: &str, old: &'a Value, new: &'a Value, side: Side) {
        let (before, now) = (types(self.old, old), types(self.new, new));
        let (subset, superset, verb) = match side {
            Side::Request => (before, now, "is no longer accepted"),
            Side::Response => (now, before, "may be returned now"),
        };
        // No types: any value is allowed.
        match (subset.is_empty(), superset.is_empty()) {
            (_, true) => {}
            (true, false) => self.add(place, format_args!("any value {verb}")),
            (false, false) => {
                let covers = |name: &String| {
                    superset.contains(name) || (name == "integer" && superset.contains("number"))
                };
                for name in subset.iter().filter(|name| !covers(name)) {
                    self.add(place, format_args!("{name} {verb}"));
                }
            }
        }
    }

    fn compare_values(&mut self, place: &str, old: &Value, new: &Value) {
        let Some(now) = new["enum"].as_array() else { return };
        match old["enum"].as_array() {
            None => self.add(place, "only some values are accepted now"),
            Some(before) => {
                for value in before.iter().filter(|value| !now.contains(value)) {
                    self.add(place, format_args!("the value {value} is no longer accepted"));
                }
            }
        }
    }

    fn compare_limits(&mut self, place: &str, old: &Value, new: &Value) {
        for (keyword, is_upper) in [
            ("maximum", true),
            ("maxLength", true),
            ("maxItems", true),
            ("minimum", false),
            ("minLength", false),
            ("minItems", false),
        ] {
            let Some(now) = new[keyword].as_f64() else { continue };
            let before = old[keyword].as_f64();
            if before.is_none_or(|before| if is_upper { now < before } else { now > before }) {
                let before = &old[keyword];
                self.add(place, format_args!("{keyword} changed from {before} to {}", new[keyword]));
            }
        }
    }

    fn compare_properties(&mut self, place: &str, old: &'a Value, new: &'a Value, side: Side) {
        for (name, property) in old["properties"].as_object().into_iter().flatten() {
            let place = format!("{place}.{name}");
            match new["properties"].get(name) {
                Some(same) => self.compare(&place, property, same, side),
                None => self.add(&place, "the field was removed"),
            }
        }
        let (before, now) = (names(&old["required"]), names(&new["required"]));
        match side {
            Side::Request => {
                for name in now.difference(&before) {
                    self.add(format_args!("{place}.{name}"), "the field is required now");
                }
            }
            Side::Response => {
                let kept = |name: &&&str| new["properties"].get(**name).is_some();
                for name in before.difference(&now).filter(kept) {
                    self.add(format_args!("{place}.{name}"), "the field may be missing now");
                }
            }
        }
    }

    /// Compares alternatives by their name, and those without one by their position.
    fn compare_alternatives(&mut self, place: &str, old: &'a Value, new: &'a Value, side: Side) {
        let (before, now) = (alternatives(old), alternatives(new));
        for (index, part) in before.iter().enumerate() {
            let name = reference(part);
            let same = match name {
                "" => now.get(index).filter(|part| reference(part).is_empty()),
                _ => now.iter().find(|part| reference(part) == name),
            };
            match same {
                Some(same) => self.compare(place, part, same, side),
                // A single alternative next to null may be written without the list.
                None if now.is_empty() => {}
                None if !name.is_empty() && side == Side::Request => {
                    self.add(place, format_args!("{name} is no longer accepted"));
                }
                None => {}
            }
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn is_same(one: &Value, other: &Value) -> bool {
    one["name"] == other["name"] && one["in"] == other["in"]
}

fn names(list: &Value) -> BTreeSet<&str> {
    list.as_array().into_iter().flatten().map(text).collect()
}

fn reference(schema: &Value) -> &str {
    text(&schema["$ref"]).rsplit('/').next().unwrap_or_default()
}

fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    let pointer = value["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| document.pointer(pointer)).unwrap_or(value)
}

/// Returns the alternatives of a schema other than null.
fn alternatives(schema: &Value) -> Vec<&Value> {
    let lists = ["oneOf", "anyOf", "allOf"].into_iter().filter_map(|keyword| schema[keyword].as_array());
    lists.flatten().filter(|part| part["type"] != "null").collect()
}

/// Returns the types that a schema allows, also through its alternatives; none if it allows any value.
fn types(document: &Value, schema: &Value) -> BTreeSet<String> {
    let schema = resolve(document, schema);
    match &schema["type"] {
        Value::String(name) => BTreeSet::from([name.clone()]),
        Value::Array(names) => names.iter().map(|name| text(name).to_owned()).collect(),
        _ => {
            let lists =
                ["oneOf", "anyOf", "allOf"].into_iter().filter_map(|keyword| schema[keyword].as_array());
            lists.flatten().flat_map(|part| types(document, part)).collect()
        }
    }
}

//! Walks through the schemas of an OpenAPI document. Values that only look like schemas, such as examples, are not
//! visited.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Beginning of a reference to a named schema.
const PREFIX: &str = "#/components/schemas/";

/// Side of an operation that uses a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Request,
    Response,
}

/// Calls `change` for a schema and every schema within it, the outermost first.
pub(super) fn each_schema(schema: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(schema) = schema else { return };
    change(schema);
    for key in ["items", "additionalProperties", "propertyNames", "not"] {
        if let Some(inner) = schema.get_mut(key) {
            each_schema(inner, change);
        }
    }
    for key in ["oneOf", "anyOf", "allOf", "prefixItems"] {
        let parts = schema.get_mut(key).and_then(Value::as_array_mut);
        parts.into_iter().flatten().for_each(|inner| each_schema(inner, change));
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(|inner| each_schema(inner, change));
}

/// Returns the operations of a document.
pub(super) fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    let items = paths.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut);
    items.flat_map(Map::values_mut).filter(|operation| operation.get("responses").is_some())
}

/// Calls `change` for the schema of each parameter, request body and response.
pub(super) fn each_operation_schema(document: &mut Value, change: &mut impl FnMut(Side, &mut Value)) {
    for operation in operations(document) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for schema in parameters.into_iter().flatten().filter_map(|parameter| parameter.get_mut("schema")) {
            change(Side::Request, schema);
        }
        if let Some(body) = operation.get_mut("requestBody") {
            each_content(body, &mut |schema| change(Side::Request, schema));
        }
        let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
        for response in responses.into_iter().flat_map(Map::values_mut) {
            each_content(response, &mut |schema| change(Side::Response, schema));
        }
    }
}

fn each_content(holder: &mut Value, change: &mut impl FnMut(&mut Value)) {
    let content = holder.get_mut("content").and_then(Value::as_object_mut);
    let media_types = content.into_iter().flat_map(Map::values_mut);
    media_types.filter_map(|media| media.get_mut("schema")).for_each(change);
}

/// Returns the named schemas of a document.
pub(super) fn named_schemas(document: &mut Value) -> Option<&mut Map<String, Value>> {
    document.pointer_mut("/components/schemas")?.as_object_mut()
}

/// Returns the name that a schema refers to, if it is a reference.
pub(super) fn reference(schema: &Map<String, Value>) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix(PREFIX)
}

/// Returns a reference to a named schema.
pub(super) fn reference_to(name: &str) -> Value {
    Value::from(format!("{PREFIX}{name}"))
}

/// Adds the names that a schema refers to directly.
pub(super) fn add_references(schema: &Value, names: &mut BTreeSet<String>) {
    each_schema(&mut schema.clone(), &mut |part| names.extend(reference(part).map(str::to_owned)));
}

/// Renames what a schema refers to.
pub(super) fn rename_references(schema: &mut Value, names: &BTreeMap<String, String>) {
    each_schema(schema, &mut |part| {
        let renamed = reference(part).and_then(|name| names.get(name)).map(|name| reference_to(name));
        if let Some(renamed) = renamed {
            part.insert("$ref".into(), renamed);
        }
    });
}

/// Adds the names that the given ones refer to, directly or through others.
pub(super) fn with_referenced(mut names: BTreeSet<String>, schemas: &Map<String, Value>) -> BTreeSet<String> {
    let mut pending: Vec<_> = names.iter().cloned().collect();
    while let Some(name) = pending.pop() {
        let mut found = BTreeSet::new();
        schemas.get(&name).into_iter().for_each(|schema| add_references(schema, &mut found));
        pending.extend(found.into_iter().filter(|name| names.insert(name.clone())));
    }
    names
}

/// Returns whether a schema allows null next to other values.
pub(super) fn is_nullable(schema: &Map<String, Value>) -> bool {
    let is_null = |part: &Value| part == "null";
    let typed = ["type", "$ref", "oneOf", "anyOf", "allOf", "enum", "const"];
    let mut types = schema.get("type").and_then(Value::as_array).into_iter().flatten();
    let mut parts = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    types.any(is_null)
        || parts.any(|part| part.get("type").is_some_and(is_null))
        || !typed.iter().any(|key| schema.contains_key(*key))
}

/// Makes a schema reject null.
pub(super) fn reject_null(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    let Some(Value::Array(parts)) = schema.get_mut("oneOf") else { return };
    parts.retain(|part| part.get("type").is_none_or(|name| name != "null"));
    if let [Value::Object(only)] = parts.as_slice() {
        let only = only.clone();
        schema.remove("oneOf");
        for (key, value) in only {
            schema.entry(key).or_insert(value);
        }
    }
}

/// Adds a name to the required properties of a schema.
pub(super) fn require(schema: &mut Map<String, Value>, name: &str) {
    let required = schema.entry("required").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(required) = required
        && !required.iter().any(|known| known == name)
    {
        required.push(Value::from(name));
        required.sort_by_key(ToString::to_string);
    }
}

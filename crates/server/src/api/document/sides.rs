//! What requests may contain and what responses contain. A field that may be missing in a request can be part of every
//! response, so a schema for both is split if the two differ: `RetryConfigInput` is sent, `RetryConfig` is returned.
//!
//! Rust does not record what is always serialized. The rules are: a type that is only returned serializes `None` as null,
//! or omits it and is documented as not nullable; a type that is also read omits what is `None`. A test scans the sources
//! for fields that break the rules.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::walk::{
    Side, add_references, each_operation_schema, each_schema, is_nullable, named_schemas, reject_null,
    rename_references, require, with_referenced,
};

/// Returns the names of the schemas that requests use, and of those that responses use.
pub(super) fn used_names(document: &mut Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut in_requests, mut in_responses) = (BTreeSet::new(), BTreeSet::new());
    each_operation_schema(document, &mut |side, schema| match side {
        Side::Request => add_references(schema, &mut in_requests),
        Side::Response => add_references(schema, &mut in_responses),
    });
    match named_schemas(document) {
        Some(schemas) => (with_referenced(in_requests, schemas), with_referenced(in_responses, schemas)),
        None => (in_requests, in_responses),
    }
}

/// Gives requests and responses their own schemas where they differ.
pub(super) fn separate(document: &mut Value) {
    let (in_requests, in_responses) = used_names(document);
    let Some(schemas) = named_schemas(document).map(std::mem::take) else { return };
    let is_shared = |name: &str| in_requests.contains(name) && in_responses.contains(name);

    let returned: BTreeMap<_, _> = schemas
        .iter()
        .filter(|(name, _)| in_responses.contains(*name))
        .map(|(name, schema)| (name.clone(), returned_form(schema.clone(), is_shared(name))))
        .collect();
    let sent: BTreeMap<_, _> =
        schemas.iter().map(|(name, schema)| (name.clone(), sent_form(schema.clone()))).collect();
    let differs = |name: &str| returned.get(name) != sent.get(name);
    let split =
        with_users(schemas.keys().filter(|name| is_shared(name)).cloned().collect(), &schemas, differs);
    let input_names: BTreeMap<_, _> =
        split.iter().map(|name| (name.clone(), format!("{name}Input"))).collect();

    let mut all = Map::new();
    for (name, mut schema) in sent.into_iter().filter(|(name, _)| in_requests.contains(name)) {
        rename_references(&mut schema, &input_names);
        all.insert(input_names.get(&name).unwrap_or(&name).clone(), schema);
    }
    all.extend(returned);
    if let Some(schemas) = named_schemas(document) {
        *schemas = all;
    }
    each_operation_schema(document, &mut |side, schema| match side {
        Side::Request => rename_references(schema, &input_names),
        Side::Response => *schema = returned_form(schema.take(), false),
    });
}

/// Returns those of `shared` that differ between requests and responses, themselves or in what they refer to.
fn with_users(
    shared: Vec<String>,
    schemas: &Map<String, Value>,
    differs: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let needs_split = |name: &String| {
        let names = with_referenced(BTreeSet::from([name.clone()]), schemas);
        names.iter().any(|name| differs(name))
    };
    shared.into_iter().filter(needs_split).collect()
}

/// Returns the schema of what a client sends. A default is described rather than declared: generators would take a field
/// with a declared default as always present.
fn sent_form(mut schema: Value) -> Value {
    each_schema(&mut schema, &mut |part| {
        let Some(Value::Object(properties)) = part.get_mut("properties") else { return };
        for property in properties.values_mut().filter_map(Value::as_object_mut) {
            let Some(default) = property.remove("default") else { continue };
            let text = property.get("description").and_then(Value::as_str).unwrap_or_default();
            let text = format!("{text} By default {}.", default.to_string().replace('"', "`"));
            property.insert("description".into(), text.trim_start().into());
        }
    });
    schema
}

/// Returns the schema of what a response contains: everything that is always there is required.
fn returned_form(mut schema: Value, is_shared: bool) -> Value {
    each_schema(&mut schema, &mut |part| {
        let Some(Value::Object(mut properties)) = part.remove("properties") else { return };
        let required = part.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        for (name, property) in &mut properties {
            let Value::Object(property) = property else { continue };
            let has_default = property.remove("default").is_some();
            if required.iter().any(|known| known == name.as_str()) {
                continue;
            }
            if has_default || (!is_shared && is_nullable(property)) {
                require(part, name);
            } else if is_shared {
                reject_null(property);
            }
        }
        part.insert("properties".into(), Value::Object(properties));
        // Later versions may return more fields.
        if part.get("additionalProperties") == Some(&Value::Bool(false)) {
            part.remove("additionalProperties");
        }
    });
    schema
}

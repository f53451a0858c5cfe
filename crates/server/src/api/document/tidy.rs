//! Corrects what utoipa derives and generators reject or misread.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::walk::{each_operation_schema, each_schema, named_schemas, operations, reference, reject_null};

/// Corrects every operation and schema of a document.
pub(super) fn tidy(document: &mut Value) {
    let descriptions = schema_descriptions(document);
    for operation in operations(document) {
        name_operation(operation);
        describe_responses(operation, &descriptions);
        simplify_optional_body(operation);
    }
    for schema in named_schemas(document).into_iter().flat_map(Map::values_mut) {
        each_schema(schema, &mut correct);
    }
    each_operation_schema(document, &mut |_, schema| each_schema(schema, &mut correct));
}

/// Describes a body that may be missing by its schema alone. Null counts as a missing body, but generated clients send null,
/// or fail, if the schema allows it.
fn simplify_optional_body(operation: &mut Value) {
    let body = operation.pointer_mut("/requestBody/content/application~1json/schema");
    if let Some(Value::Object(schema)) = body {
        reject_null(schema);
    }
}

fn schema_descriptions(document: &mut Value) -> BTreeMap<String, Value> {
    let schemas = named_schemas(document).into_iter().flatten();
    schemas.filter_map(|(name, schema)| Some((name.clone(), schema.get("description")?.clone()))).collect()
}

/// utoipa names an operation after its handler: `list_webhooks` becomes `listWebhooks`.
fn name_operation(operation: &mut Value) {
    let Some(id) = operation.get("operationId").and_then(Value::as_str) else { return };
    let mut words = id.split('_');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        name.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        name.push_str(letters.as_str());
    }
    if let Some(id) = operation.get_mut("operationId") {
        *id = Value::from(name);
    }
}

/// Describes a response without a description of its own by what it contains.
fn describe_responses(operation: &mut Value, descriptions: &BTreeMap<String, Value>) {
    let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
    for response in responses.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
        if response.get("description").and_then(Value::as_str).is_some_and(|text| !text.is_empty()) {
            continue;
        }
        let schema =
            response.get("content").and_then(|content| content.get("application/json")?.get("schema"));
        let name = schema.and_then(Value::as_object).and_then(reference);
        if let Some(description) = name.and_then(|name| descriptions.get(name)).cloned() {
            response.insert("description".into(), description);
        }
    }
}

fn correct(schema: &mut Map<String, Value>) {
    // The default of an optional field is that it is missing, which is not the same as null.
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    // The format registry calls them `uint32` and so on.
    let format = schema.get("format").and_then(Value::as_str).and_then(|name| name.strip_prefix("u-int"));
    if let Some(bits) = format.map(|bits| format!("uint{bits}")) {
        schema.insert("format".into(), bits.into());
    }
    describe_outside(schema);
}

/// Moves the description of a nullable reference from the reference to the field, where generators look for it.
fn describe_outside(schema: &mut Map<String, Value>) {
    if schema.contains_key("description") {
        return;
    }
    let Some(Value::Array(parts)) = schema.get_mut("oneOf") else { return };
    let mut references =
        parts.iter_mut().filter_map(Value::as_object_mut).filter(|part| part.contains_key("$ref"));
    let (Some(only), None) = (references.next(), references.next()) else { return };
    if let Some(description) = only.remove("description") {
        schema.insert("description".into(), description);
    }
}

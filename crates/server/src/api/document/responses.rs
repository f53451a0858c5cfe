//! Error responses, each described once under `components/responses`. They would otherwise be repeated in every
//! operation and make up most of the document.

use serde_json::{Map, Value, json};

use super::walk::operations;

/// Media type of errors.
const PROBLEM: &str = "application/problem+json";

/// Replaces the error responses of all operations by references to shared ones. An error that an operation describes in
/// its own words stays where it is.
pub(super) fn share_problems(document: &mut Value) {
    let mut shared = Map::new();
    for operation in operations(document) {
        let responses = operation.get_mut("responses").and_then(Value::as_object_mut);
        for response in responses.into_iter().flat_map(Map::values_mut) {
            let Some(name) = shared_name(response) else { continue };
            let reference = json!({"$ref": format!("#/components/responses/{name}")});
            let response = std::mem::replace(response, reference);
            shared.insert(name, response);
        }
    }
    if let Some(Value::Object(components)) = document.get_mut("components") {
        components.insert("responses".into(), Value::Object(shared));
    }
}

/// Returns the name of a response that is described by its status only: `Bad Request` becomes `BadRequest`.
fn shared_name(response: &Value) -> Option<String> {
    let content = response.get("content")?.as_object()?;
    let description = response.get("description")?.as_str()?;
    let is_problem = content.len() == 1 && content.contains_key(PROBLEM);
    let is_title = description.split(' ').all(|word| word.starts_with(|first: char| first.is_uppercase()));
    (is_problem && is_title).then(|| description.replace(' ', ""))
}

//! Bodies that create an object and bodies that change one. The same Rust type reads both; the document describes them
//! separately, because only a creation has required fields.

use serde_json::{Map, Value};

use super::walk::{named_schemas, operations, reference, reference_to, reject_null, require};

/// One use of a type that reads several kinds of bodies.
struct Variant {
    /// Name of the type's schema.
    of: &'static str,
    /// Operations whose body it is.
    operations: &'static [&'static str],
    /// Name in the document.
    name: &'static str,
    /// Description in the document.
    description: &'static str,
    /// Fields that must be present.
    required: &'static [&'static str],
    /// Fields that are not allowed.
    without: &'static [&'static str],
}

const VARIANTS: [Variant; 4] = [
    Variant {
        of: "WebhookInput",
        operations: &["createWebhook"],
        name: "WebhookCreate",
        description: "Webhook to create. Missing fields have their default value.",
        required: &["url", "events"],
        without: &[],
    },
    Variant {
        of: "WebhookInput",
        operations: &["updateWebhook", "replaceWebhook"],
        name: "WebhookUpdate",
        description: "Changes to a webhook. Missing fields keep their value.",
        required: &[],
        without: &["secret"],
    },
    Variant {
        of: "EventTypeInput",
        operations: &["createEventType"],
        name: "EventTypeCreate",
        description: "Event type to register.",
        required: &["name"],
        without: &[],
    },
    Variant {
        of: "EventTypeInput",
        operations: &["updateEventType", "replaceEventType"],
        name: "EventTypeUpdate",
        description: "Changes to an event type. Missing fields keep their value; a name must equal the one in the path.",
        required: &[],
        without: &[],
    },
];

/// Replaces the schemas of shared types by one per kind of body.
pub(super) fn separate(document: &mut Value) {
    for variant in &VARIANTS {
        let Some(schemas) = named_schemas(document) else { return };
        let Some(Value::Object(shared)) = schemas.get(variant.of) else { continue };
        let schema = variant.schema(shared.clone());
        schemas.insert(variant.name.into(), schema);
        for operation in operations(document) {
            variant.replace_body(operation);
        }
    }
}

impl Variant {
    fn schema(&self, mut schema: Map<String, Value>) -> Value {
        schema.insert("description".into(), self.description.into());
        for name in self.required {
            require(&mut schema, name);
        }
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.retain(|name, _| !self.without.contains(&name.as_str()));
            for name in self.required {
                if let Some(Value::Object(property)) = properties.get_mut(*name) {
                    reject_null(property);
                }
            }
        }
        Value::Object(schema)
    }

    fn replace_body(&self, operation: &mut Value) {
        let id = operation.get("operationId").and_then(Value::as_str).unwrap_or_default();
        if !self.operations.contains(&id) {
            return;
        }
        let schema = operation.pointer_mut("/requestBody/content/application~1json/schema");
        if let Some(Value::Object(schema)) = schema
            && reference(schema) == Some(self.of)
        {
            schema.insert("$ref".into(), reference_to(self.name));
        }
    }
}

//! The OpenAPI document does not change in ways that break clients, unless the changelog says so.

use redrive_tests::openapi_diff::breaking_changes;
use serde_json::{Value, json};

/// Document of the last release.
const BASELINE: &str = include_str!("../../fixtures/openapi-baseline.json");
const CURRENT: &str = include_str!("../../../docs/openapi.json");
const CHANGELOG: &str = include_str!("../../../CHANGELOG.md");

fn baseline() -> Value {
    serde_json::from_str(BASELINE).unwrap()
}

#[test]
fn changes_that_break_clients_are_in_the_changelog() {
    let changes = breaking_changes(&baseline(), &serde_json::from_str(CURRENT).unwrap());
    let unlisted: Vec<_> =
        changes.into_iter().filter(|change| !CHANGELOG.contains(change.as_str())).collect();
    assert!(
        unlisted.is_empty(),
        "these changes of docs/openapi.json break clients of the last release. Undo them, or, if they are intended, add a line \
         \"Breaking: `…`\" with each to CHANGELOG.md:\n{}",
        unlisted.join("\n")
    );
}

/// Returns the breaking changes after a change of the baseline.
fn after(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut document = baseline();
    change(&mut document);
    breaking_changes(&baseline(), &document)
}

fn schema<'a>(document: &'a mut Value, name: &str) -> &'a mut Value {
    &mut document["components"]["schemas"][name]
}

#[track_caller]
fn assert_breaks(expected: &str, change: impl FnOnce(&mut Value)) {
    let found = after(change);
    assert!(found.iter().any(|line| line == expected), "{expected} is not in {found:#?}");
}

#[test]
fn changes_that_break_clients_are_found() {
    assert_breaks("GET /v1/webhooks: the operation was removed", |new| {
        new["paths"]["/v1/webhooks"].as_object_mut().unwrap().remove("get");
    });
    assert_breaks("DELETE /v1/webhooks/{id}: the operation was removed", |new| {
        new["paths"].as_object_mut().unwrap().remove("/v1/webhooks/{id}");
    });
    assert_breaks(
        r#"GET /v1/webhooks: the operationId changed from "listWebhooks" to "getWebhooks""#,
        |new| new["paths"]["/v1/webhooks"]["get"]["operationId"] = json!("getWebhooks"),
    );
    assert_breaks("GET /v1/webhooks active: the parameter was removed", |new| {
        let parameters = new["paths"]["/v1/webhooks"]["get"]["parameters"].as_array_mut().unwrap();
        parameters.retain(|parameter| parameter["name"] != "active");
    });
    assert_breaks("GET /v1/webhooks region: the parameter is required now", |new| {
        let parameters = new["paths"]["/v1/webhooks"]["get"]["parameters"].as_array_mut().unwrap();
        parameters
            .push(json!({"name": "region", "in": "query", "required": true, "schema": {"type": "string"}}));
    });
    assert_breaks("Webhook.url: the field was removed", |new| {
        schema(new, "Webhook")["properties"].as_object_mut().unwrap().remove("url");
    });
    assert_breaks("Webhook.url: the field may be missing now", |new| {
        schema(new, "Webhook")["required"].as_array_mut().unwrap().retain(|name| name != "url");
    });
    assert_breaks("Webhook.url: null may be returned now", |new| {
        schema(new, "Webhook")["properties"]["url"]["type"] = json!(["string", "null"]);
    });
    assert_breaks("WebhookCreate.owner_id: the field is required now", |new| {
        schema(new, "WebhookCreate")["required"].as_array_mut().unwrap().push(json!("owner_id"));
    });
    assert_breaks("WebhookCreate.secret: the field was removed", |new| {
        schema(new, "WebhookCreate")["properties"].as_object_mut().unwrap().remove("secret");
    });
    assert_breaks("WebhookCreate.max_in_flight: maximum changed from 1000 to 10", |new| {
        schema(new, "WebhookCreate")["properties"]["max_in_flight"]["maximum"] = json!(10);
    });
    assert_breaks("WebhookCreate.max_in_flight: integer is no longer accepted", |new| {
        schema(new, "WebhookCreate")["properties"]["max_in_flight"]["type"] = json!("string");
    });
    assert_breaks(r#"Priority: the value "low" is no longer accepted"#, |new| {
        schema(new, "Priority")["enum"].as_array_mut().unwrap().retain(|value| value != "low");
    });
    assert_breaks("POST /v1/events: the response 200 was removed", |new| {
        new["paths"]["/v1/events"]["post"]["responses"].as_object_mut().unwrap().remove("200");
    });
    assert_breaks("POST /v1/events body: the media type application/cloudevents+json was removed", |new| {
        let content = &mut new["paths"]["/v1/events"]["post"]["requestBody"]["content"];
        content.as_object_mut().unwrap().remove("application/cloudevents+json");
    });
    assert_breaks("POST /v1/webhooks/{id}/pause: the body is required now", |new| {
        new["paths"]["/v1/webhooks/{id}/pause"]["post"]["requestBody"]["required"] = json!(true);
    });
    assert_breaks("WebhookPage: the schema was removed", |new| {
        new["components"]["schemas"].as_object_mut().unwrap().remove("WebhookPage");
    });
}

#[test]
fn additions_break_nothing() {
    let found = after(|new| {
        new["paths"]["/v1/new"] = json!({"get": {"operationId": "getNew", "responses": {}}});
        schema(new, "Webhook")["properties"]["region"] = json!({"type": "string"});
        schema(new, "Webhook")["required"].as_array_mut().unwrap().push(json!("region"));
        schema(new, "WebhookCreate")["properties"]["region"] = json!({"type": "string"});
        schema(new, "WebhookCreate")["properties"]["max_in_flight"]["maximum"] = json!(5000);
        schema(new, "FailureCategory")["enum"].as_array_mut().unwrap().push(json!("new"));
        schema(new, "New")["type"] = json!("object");
        let parameters = new["paths"]["/v1/webhooks"]["get"]["parameters"].as_array_mut().unwrap();
        parameters.push(json!({"name": "region", "in": "query", "schema": {"type": "string"}}));
    });
    assert_eq!(found, Vec::<String>::new());
}

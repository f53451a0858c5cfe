//! Requests in the forms that users of other products send. Each is accepted as it is, or refused with an error that
//! names the field and the reason.

use redrive_testkit::{ApiResponse, Redrive};
use serde_json::{Value, json};

/// A webhook to create: an endpoint that is never called, and the given fields.
fn webhook(fields: &Value) -> Value {
    let mut body = json!({"url": "http://127.0.0.1:2/", "events": ["*"]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[track_caller]
fn assert_refused(response: &ApiResponse, field: &str, mentions: &str) {
    let text = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(response.status, 400, "{text}");
    let problem = response.json();
    assert_eq!(problem["field"], field, "{text}");
    assert!(problem["detail"].as_str().unwrap().contains(mentions), "{text} does not mention {mentions}");
}

#[tokio::test]
async fn exponential_retry_settings_replace_the_default_schedule() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let retry = json!({"max_attempts": 5, "base_delay_ms": 1000, "max_delay_ms": 300_000});
    let created = api.post("/v1/webhooks", webhook(&json!({"retry_config": retry}))).await.expect(201);
    assert_eq!(created["retry_config"], retry);
    api.publish("order.created", json!({})).await;
    let listed = api.get("/v1/deliveries").await.expect(200);
    let path = format!("/v1/deliveries/{}", listed["data"][0]["id"].as_str().unwrap());
    let delivery = api.get(&path).await.expect(200);
    assert_eq!(delivery["max_attempts"], 5, "{delivery}");

    // A change replaces a schedule by the exponential form as well.
    let scheduled =
        api.post("/v1/webhooks", webhook(&json!({"retry_config": {"schedule": [0, 1]}}))).await.expect(201);
    let path = format!("/v1/webhooks/{}", scheduled["id"].as_str().unwrap());
    assert_eq!(api.patch(&path, json!({"retry_config": retry})).await.expect(200)["retry_config"], retry);

    for (config, field, mentions) in [
        (json!({"schedule": [0, 1], "max_attempts": 5}), "retry_config.schedule", "cannot be combined"),
        (
            json!({"base_delay_ms": 5000, "max_delay_ms": 1000}),
            "retry_config.base_delay_ms",
            "max_delay_ms is 1000",
        ),
    ] {
        let response = api.post("/v1/webhooks", webhook(&json!({"retry_config": config}))).await;
        assert_refused(&response, field, mentions);
        let response = api.patch(&path, json!({"retry_config": config})).await;
        assert_refused(&response, field, mentions);
    }
}

//! The API's own description: served, complete, and true about who may do what.
#![allow(clippy::unwrap_used, reason = "a failed test says where")]

use redrive_testkit::{Api, Redrive};
use serde_json::{Value, json};

/// Paths that need no key.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

fn operations(document: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"] {
            if item.get(method).is_some() {
                found.push((method.to_uppercase(), path.clone()));
            }
        }
    }
    found
}

fn with_ids(path: &str) -> String {
    let hex = "0".repeat(32);
    let path =
        path.replace("{delivery_id}", &format!("dlv_{hex}")).replace("{key_id}", &format!("key_{hex}"));
    let id = match path.split('/').nth(2) {
        Some("webhooks") => format!("wh_{hex}"),
        Some("events") => format!("evt_{hex}"),
        Some("deliveries") => format!("dlv_{hex}"),
        _ => "acme".into(),
    };
    path.replace("{id}", &id)
}

async fn call(api: &Api, method: &str, path: &str) -> u16 {
    let headers = [("content-type", "application/json")];
    let body = if method == "GET" || method == "DELETE" { vec![] } else { b"{}".to_vec() };
    api.raw(method, path, &headers, body).await.status
}

#[tokio::test]
async fn the_document_and_its_page_are_served_offline() {
    let redrive = Redrive::start().await;
    let api = redrive.api().without_key();
    let document = api.get("/openapi.json").await.expect(200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let page = api.get("/docs/").await;
    let html = String::from_utf8_lossy(&page.body).into_owned();
    assert_eq!(page.status, 200);
    assert!(!html.contains("https://") && !html.contains("//cdn"), "everything comes from here: {html}");
    for asset in ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-initializer.js"] {
        assert_eq!(api.get(&format!("/docs/{asset}")).await.status, 200, "{asset}");
    }
}

#[tokio::test]
async fn every_operation_refuses_strangers_and_low_scopes() {
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    let document = admin.get("/openapi.json").await.expect(200);
    admin.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let publisher = admin.post("/v1/tenants/acme/api-keys", json!({"scopes": ["publish"]})).await.expect(201);
    let publisher = admin.with_key(publisher["key"].as_str().unwrap());
    let reader = admin.post("/v1/tenants/acme/api-keys", json!({"scopes": ["read"]})).await.expect(201);
    let reader = admin.with_key(reader["key"].as_str().unwrap());
    let operations = operations(&document);
    assert!(operations.len() >= 30, "{operations:?}");
    for (method, path) in operations {
        let at = with_ids(&path);
        if OPEN.contains(&path.as_str()) {
            assert_eq!(call(&admin.without_key(), &method, &at).await, 200, "{method} {path}");
            continue;
        }
        assert_eq!(call(&admin.without_key(), &method, &at).await, 401, "{method} {path} without a key");
        assert_eq!(
            call(&admin.with_key("rdk_x"), &method, &at).await,
            401,
            "{method} {path} with a wrong key"
        );
        let publishes = path == "/v1/events" || path == "/v1/events/batch";
        if method != "GET" {
            assert_eq!(call(&reader, &method, &at).await, 403, "{method} {path} by a reader");
        }
        if method == "POST" && publishes {
            continue;
        }
        assert_eq!(call(&publisher, &method, &at).await, 403, "{method} {path} by a publisher");
    }
}

#[tokio::test]
async fn every_answer_that_is_documented_has_a_schema() {
    let redrive = Redrive::start().await;
    let document = redrive.api().get("/openapi.json").await.expect(200);
    for (method, path) in operations(&document) {
        let operation = &document["paths"][&path][method.to_lowercase()];
        assert!(operation["summary"].is_string(), "{method} {path} has no summary");
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert!(status == "204" || response["content"].is_object(), "{method} {path} {status}");
        }
    }
}

#[tokio::test]
async fn the_document_says_what_is_sent_and_what_is_needed() {
    let redrive = Redrive::start().await;
    let document = redrive.api().get("/openapi.json").await.expect(200);
    let operation = |path: &str, method: &str| &document["paths"][path][method];
    let metrics = redrive.api().get("/metrics").await;
    let sent = metrics.header("content-type").unwrap().split(';').next().unwrap();
    assert!(operation("/metrics", "get")["responses"]["200"]["content"][sent].is_object(), "{sent}");
    let not_ready = &operation("/readyz", "get")["responses"]["503"]["content"];
    assert!(not_ready["application/problem+json"].is_object(), "{not_ready}");

    // A body is needed only where it says something that cannot be left out.
    let needed = |path: &str| operation(path, "post")["requestBody"]["required"] == true;
    assert!(needed("/v1/events") && needed("/v1/webhooks"));
    for path in ["pause", "resume", "enable", "disable", "test", "rotate-secret"] {
        assert!(!needed(&format!("/v1/webhooks/{{id}}/{path}")), "{path}");
    }
    let item = &document["components"]["schemas"]["BatchItem"];
    assert_eq!(item["oneOf"].as_array().map(Vec::len), Some(2), "taken or refused: {item}");
}

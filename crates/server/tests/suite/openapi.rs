//! The OpenAPI document: served, complete and correct. Permissions are tested in `tests/tests/authorization`.

use redrive_testkit::Redrive;
use serde_json::Value;

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

#[tokio::test]
async fn document_and_swagger_ui_are_served_without_external_hosts() {
    let redrive = Redrive::start().await;
    let api = redrive.api().without_key();
    let document = api.get("/openapi.json").await.expect(200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let page = api.get("/docs/").await;
    let html = String::from_utf8_lossy(&page.body).into_owned();
    assert_eq!(page.status, 200);
    assert!(
        !html.contains("https://") && !html.contains("//cdn"),
        "the page loads no external resources: {html}"
    );
    for asset in ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-initializer.js"] {
        assert_eq!(api.get(&format!("/docs/{asset}")).await.status, 200, "{asset}");
    }
}

#[tokio::test]
async fn every_documented_response_has_a_schema() {
    let redrive = Redrive::start().await;
    let document = redrive.api().get("/openapi.json").await.expect(200);
    for (method, path) in operations(&document) {
        let operation = &document["paths"][&path][method.to_lowercase()];
        assert!(operation["summary"].is_string(), "{method} {path} has no summary");
        for (status, response) in operation["responses"].as_object().unwrap() {
            let shared = response["$ref"].as_str().map(|name| name.trim_start_matches('#'));
            let response = shared.map_or(response, |name| document.pointer(name).unwrap());
            assert!(status == "204" || response["content"].is_object(), "{method} {path} {status}");
        }
    }
}

#[tokio::test]
async fn documented_content_types_and_required_bodies_are_correct() {
    let redrive = Redrive::start().await;
    let document = redrive.api().get("/openapi.json").await.expect(200);
    let operation = |path: &str, method: &str| &document["paths"][path][method];
    let metrics = redrive.api().get("/metrics").await;
    let sent = metrics.header("content-type").unwrap().split(';').next().unwrap();
    assert!(operation("/metrics", "get")["responses"]["200"]["content"][sent].is_object(), "{sent}");
    let not_ready = &operation("/readyz", "get")["responses"]["503"]["content"];
    assert!(not_ready["application/problem+json"].is_object(), "{not_ready}");

    // A body is required only where it has a required field.
    let needed = |path: &str| operation(path, "post")["requestBody"]["required"] == true;
    assert!(needed("/v1/events") && needed("/v1/webhooks"));
    for path in ["pause", "resume", "enable", "disable", "test", "rotate-secret"] {
        assert!(!needed(&format!("/v1/webhooks/{{id}}/{path}")), "{path}");
    }
    let item = &document["components"]["schemas"]["EventBatchItem"];
    assert_eq!(item["oneOf"].as_array().map(Vec::len), Some(2), "accepted or rejected: {item}");
}

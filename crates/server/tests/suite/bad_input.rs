//! Common mistakes, each with a specific error response. No input may cause a 5xx.

use redrive_testkit::{Api, ApiResponse, Redrive};
use serde_json::{Value, json};

const JSON: (&str, &str) = ("content-type", "application/json");

/// Asserts the status and code of a problem, and that its detail mentions a text.
#[track_caller]
fn assert_problem(response: &ApiResponse, status: u16, code: &str, mentions: &str) {
    let text = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(response.status, status, "{text}");
    assert_eq!(response.header("content-type"), Some("application/problem+json"), "{text}");
    let problem = response.json();
    assert_eq!(problem["code"], code, "{text}");
    assert_eq!(problem["status"], status, "{text}");
    assert_eq!(problem["type"], format!("urn:redrive:problem:{code}"));
    assert!(problem["detail"].as_str().unwrap().contains(mentions), "{text} does not mention {mentions}");
}

async fn post_raw(api: &Api, path: &str, body: &str) -> ApiResponse {
    api.raw("POST", path, &[JSON], body.to_owned().into_bytes()).await
}

#[tokio::test]
async fn malformed_or_mistyped_json_is_rejected() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    assert_problem(&post_raw(&api, "/v1/events", "{").await, 400, "invalid_json", "not valid JSON");
    assert_problem(&post_raw(&api, "/v1/events", "").await, 400, "invalid_json", "not valid JSON");
    assert_problem(
        &post_raw(&api, "/v1/events", "{} trailing").await,
        400,
        "invalid_field",
        "event_type: is missing",
    );
    let trailing = r#"{"event_type":"a.b","data":1} x"#;
    assert_problem(&post_raw(&api, "/v1/events", trailing).await, 400, "invalid_json", "trailing");
    assert_problem(&post_raw(&api, "/v1/events", "[]").await, 400, "invalid_body", "must be a JSON object");
    let list = r#"["a.b", 1]"#;
    assert_problem(&post_raw(&api, "/v1/events", list).await, 400, "invalid_body", "must be a JSON object");
    let pattern = r#"{"url":"http://127.0.0.1:2/","events":["*.a"]}"#;
    assert_problem(
        &post_raw(&api, "/v1/webhooks", pattern).await,
        400,
        "invalid_field",
        "events[0]: \"*.a\" is not an event",
    );
    assert_problem(
        &post_raw(&api, "/v1/events", r#"{"event_type":7,"data":1}"#).await,
        400,
        "invalid_field",
        "event_type",
    );
    let unknown = r#"{"event_type":"a.b","data":1,"dta":2}"#;
    assert_problem(
        &post_raw(&api, "/v1/events", unknown).await,
        400,
        "invalid_field",
        "dta: unknown field; did you mean data?",
    );
    let not_utf8 =
        api.raw("POST", "/v1/events", &[JSON], b"{\"event_type\":\"\xff\",\"data\":1}".to_vec()).await;
    assert_eq!(not_utf8.status, 400);
    let webhook = r#"{"url":"http://127.0.0.1:2/","events":["a"],"retry_config":{"jitter":"much"}}"#;
    assert_problem(
        &post_raw(&api, "/v1/webhooks", webhook).await,
        400,
        "invalid_field",
        "retry_config.jitter",
    );
}

#[tokio::test]
async fn wrong_content_type_or_size_is_rejected() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let event = r#"{"event_type":"a.b","data":1}"#.as_bytes().to_vec();
    let response = api.raw("POST", "/v1/events", &form, event.clone()).await;
    assert_problem(&response, 415, "unsupported_media_type", "Content-Type: application/json");
    let response = api.raw("POST", "/v1/events", &[], event.clone()).await;
    assert_problem(&response, 415, "unsupported_media_type", "it was none");
    let charset = [("content-type", "application/json; charset=utf-8")];
    assert_eq!(api.raw("POST", "/v1/events", &charset, event).await.status, 202);

    let payload = |bytes: usize| json!({"event_type": "a.b", "data": "x".repeat(bytes - 2)});
    assert_eq!(
        api.post("/v1/events", payload(256 * 1024)).await.status,
        202,
        "a body of exactly the limit is accepted"
    );
    let response = api.post("/v1/events", payload(256 * 1024 + 1)).await;
    assert_problem(&response, 413, "payload_too_large", "262144");
    let response = api.post("/v1/events", payload(1 << 20)).await;
    assert_problem(&response, 413, "body_too_large", "larger than");
}

#[tokio::test]
async fn oversized_body_is_rejected_before_it_is_read() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let redrive = Redrive::start().await;
    let mut stream = tokio::net::TcpStream::connect(redrive.address()).await.unwrap();
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 1000000000\r\n\r\n",
        redrive.key()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The response arrives although no byte of the body is sent.
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    let response = String::from_utf8_lossy(&response);
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    assert!(response.contains("body_too_large"), "{response}");
}

#[tokio::test]
async fn invalid_events_are_rejected() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let cases: [(Value, &str); 13] = [
        (json!({"event_type": "", "data": 1}), "event_type"),
        (json!({"event_type": "a.b", "data": 1, "priority": "urgent"}), "priority"),
        (json!({"event_type": "a.b", "data": 1, "priority": 1}), "priority"),
        (json!({"event_type": "a b", "data": 1}), "event_type"),
        (json!({"event_type": "a..b", "data": 1}), "event_type"),
        (json!({"event_type": "x".repeat(300), "data": 1}), "event_type"),
        (json!({"event_type": "redrive.circuit.opened", "data": 1}), "event_type"),
        (json!({"event_type": "a.b", "data": 1, "idempotency_key": ""}), "idempotency_key"),
        (json!({"event_type": "a.b", "data": 1, "idempotency_key": "k".repeat(300)}), "idempotency_key"),
        (json!({"event_type": "a.b", "data": 1, "subject": "a\r\nb"}), "subject"),
        (json!({"event_type": "a.b", "data": 1, "source": "s".repeat(600)}), "source"),
        (json!({"event_type": "a.b", "data": 1, "metadata": [1]}), "metadata"),
        (json!({"event_type": "a.b", "data": 1, "metadata": {"k": "v".repeat(5000)}}), "metadata"),
    ];
    for (body, field) in cases {
        let response = api.post("/v1/events", &body).await;
        assert_problem(&response, 400, "invalid_field", field);
        assert_eq!(response.json()["field"], field, "{body}");
    }
    assert_problem(
        &api.post("/v1/events", json!({"data": 1})).await,
        400,
        "invalid_field",
        "event_type: is missing",
    );
    assert_problem(
        &api.post("/v1/events", json!({"event_type": "a.b"})).await,
        400,
        "invalid_field",
        "data: is missing",
    );
    assert_problem(
        &api.post("/v1/events/batch", json!({"events": []})).await,
        400,
        "invalid_field",
        "1 to 1000",
    );
    let many = vec![json!({"event_type": "a.b", "data": 1}); 1001];
    assert_problem(
        &api.post("/v1/events/batch", json!({"events": many})).await,
        400,
        "invalid_field",
        "1 to 1000",
    );
}

#[tokio::test]
async fn invalid_webhooks_are_rejected() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = |change: Value| {
        let mut body = json!({"url": "http://127.0.0.1:2/", "events": ["a.b"]});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    };
    let cases: [(Value, &str); 39] = [
        (json!({"url": "not a url"}), "url"),
        (json!({"url": "ftp://example.com/"}), "url"),
        (json!({"url": "http://user:pw@example.com/"}), "url"),
        (json!({"url": "http://example.com/#x"}), "url"),
        (json!({"url": format!("http://example.com/{}", "x".repeat(2048))}), "url"),
        (json!({"events": []}), "events"),
        (json!({"events": ["a.*.b"]}), "events"),
        (json!({"events": [7]}), "events"),
        (json!({"subjects": [""]}), "subjects"),
        (json!({"headers": {"bad name": "v"}}), "headers"),
        (json!({"headers": {"x-own": "a\r\nx: y"}}), "headers"),
        (json!({"headers": {"webhook-id": "v"}}), "headers"),
        (json!({"headers": {"Host": "v"}}), "headers"),
        (json!({"secret": "password"}), "secret"),
        (json!({"secret": "whsec_dG9vIHNob3J0"}), "secret"),
        (json!({"max_in_flight": 0}), "max_in_flight"),
        (json!({"max_in_flight": 100_000}), "max_in_flight"),
        (json!({"payload_format": "xml"}), "payload_format"),
        (json!({"signature": {"scheme": "rot13"}}), "signature"),
        (json!({"retry_config": {"schedule": []}}), "retry_config"),
        (json!({"retry_config": {"schedule": [0], "max_attempts": 3}}), "retry_config"),
        (json!({"retry_config": {"timeout_ms": 0}}), "retry_config"),
        (json!({"active": true, "state": "disabled"}), "active"),
        (json!({"owner": {"email": "unknown"}}), "owner.email"),
        (json!({"active": true, "state": "paused"}), "active"),
        (json!({"state": "asleep"}), "state"),
        (json!({"circuit_breaker_config": {"window_size_ms": 0}}), "circuit_breaker_config.window_size_ms"),
        (
            json!({"circuit_breaker_config": {"minimum_throughput": 0}}),
            "circuit_breaker_config.minimum_throughput",
        ),
        (
            json!({"circuit_breaker_config": {"error_threshold_percentage": 100.5}}),
            "circuit_breaker_config.error_threshold_percentage",
        ),
        (json!({"circuit_breaker_config": {"sleep_window_ms": 0}}), "circuit_breaker_config.sleep_window_ms"),
        (
            json!({"circuit_breaker_config": {"half_open_max_calls": 0}}),
            "circuit_breaker_config.half_open_max_calls",
        ),
        (
            json!({"circuit_breaker_config": {"half_open_success_threshold": 1.1}}),
            "circuit_breaker_config.half_open_success_threshold",
        ),
        (json!({"circuit_breaker_config": {"windw": 1}}), "circuit_breaker_config.windw"),
        (json!({"rate_limit": {"requests_per_minute": 0}}), "rate_limit.requests_per_minute"),
        (json!({"rate_limit": {"requests_per_minute": 60, "burst": 0}}), "rate_limit.burst"),
        (json!({"rate_limit": {"burst": 5}}), "rate_limit.requests_per_minute"),
        (json!({"ordering_guarantee": "sometimes"}), "ordering_guarantee"),
        (json!({"expires_at": "2020-01-01T00:00:00Z"}), "expires_at"),
        (json!({"expires_at": "tomorrow"}), "expires_at"),
    ];
    for (change, field) in cases {
        let response = api.post("/v1/webhooks", webhook(change.clone())).await;
        assert_problem(&response, 400, "invalid_field", field);
        let named = response.json()["field"].as_str().unwrap().to_owned();
        assert!(named.starts_with(field), "{change}: the field was {named}");
    }
    assert_problem(
        &api.post("/v1/webhooks", json!({"events": ["a"]})).await,
        400,
        "invalid_field",
        "url: is missing",
    );
    assert_problem(
        &api.post("/v1/webhooks", json!({"url": "http://x/"})).await,
        400,
        "invalid_field",
        "events: is missing",
    );
    assert_eq!(api.get("/v1/webhooks").await.expect(200)["data"], json!([]), "nothing was stored");
}

#[tokio::test]
async fn invalid_ids_paths_methods_and_queries_are_rejected() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let hex = "0".repeat(32);
    for path in [
        format!("/v1/events/evt_{hex}"),
        "/v1/events/nonsense".into(),
        format!("/v1/events/wh_{hex}"),
        format!("/v1/webhooks/wh_{hex}"),
        format!("/v1/deliveries/dlv_{hex}"),
        format!("/v1/deliveries/dlv_{hex}/attempts"),
        format!("/v1/webhooks/wh_{hex}/deliveries"),
        format!("/v1/events/evt_{hex}/deliveries"),
        "/v1/tenants/unknown".into(),
        "/v1/tenants/NOT%20A%20NAME".into(),
        "/v1/events/%ff".into(),
    ] {
        assert_problem(&api.get(&path).await, 404, "not_found", "there is no such");
    }
    assert_problem(&api.get("/v1/nothing").await, 404, "route_not_found", "/docs");
    assert_problem(&api.raw("DELETE", "/v1/events", &[], vec![]).await, 405, "method_not_allowed", "Allow");
    for (query, mentions) in [
        ("limit=0", "limit"),
        ("limit=100000", "1 to 500"),
        ("limit=-1", "limit"),
        ("limit=many", "limit"),
        ("offset=10001", "offset"),
        ("cursor=nonsense", "cursor"),
        ("status=broken", "status"),
        ("failure_category=bad_luck", "failure_category"),
        ("from=yesterday", "RFC 3339"),
        ("webhook_id=wh_x", "webhook_id"),
        ("colour=blue", "colour"),
    ] {
        let response = api.get(&format!("/v1/deliveries?{query}")).await;
        assert_eq!(response.status, 400, "{query}");
        let detail = response.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(mentions), "{query}: {detail}");
    }
}

#[tokio::test]
async fn invalid_circuit_changes_are_rejected() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook("http://127.0.0.1:2/", Value::Null).await;
    let path = format!("/v1/webhooks/{}/circuit-breaker", webhook["id"].as_str().unwrap());
    for (body, field, mentions) in [
        (json!({}), "action", "is missing"),
        (json!({"action": "explode"}), "action", "force_open"),
        (json!({"action": "reset", "duration_seconds": 60}), "duration_seconds", "is not allowed with reset"),
        (json!({"action": "force_open", "duration_seconds": 0}), "duration_seconds", "1 to 2592000"),
        (json!({"action": "force_open", "duration_seconds": -5}), "duration_seconds", "1 to 2592000"),
        (json!({"action": "force_close", "duration_seconds": 2_592_001}), "duration_seconds", "1 to 2592000"),
        (
            json!({"action": "force_close", "duration_seconds": "1h"}),
            "duration_seconds",
            "must be a whole number, got the string \"1h\"",
        ),
        (json!({"action": "force_open", "for": 60}), "for", "unknown field"),
    ] {
        let response = api.patch(&path, &body).await;
        assert_problem(&response, 400, "invalid_field", mentions);
        assert_eq!(response.json()["field"], field, "{body}");
    }
    let hex = "0".repeat(32);
    let reset = json!({"action": "reset"});
    let nowhere = api.patch(&format!("/v1/webhooks/wh_{hex}/circuit-breaker"), &reset).await;
    assert_problem(&nowhere, 404, "not_found", "webhook");
    assert_problem(&api.get(&format!("/v1/webhooks/wh_{hex}/health")).await, 404, "not_found", "webhook");
    api.delete(&format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap())).await.expect(204);
    assert_problem(&api.patch(&path, &reset).await, 404, "not_found", "webhook");
}

#[tokio::test]
async fn unknown_priority_is_rejected() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let event = api.publish("a.b", json!(1)).await;
    let replay = format!("/v1/events/{}/replay", event["id"].as_str().unwrap());
    assert_problem(&api.post(&replay, json!({"priority": "urgent"})).await, 400, "invalid_field", "high");
    let retry = format!("/v1/deliveries/dlv_{}/retry", "0".repeat(32));
    assert_problem(&api.post(&retry, json!({"priority": "urgent"})).await, 400, "invalid_field", "high");
    let batch = json!({"events": [{"event_type": "a.b", "data": 1, "priority": "urgent"}]});
    let response = api.post("/v1/events/batch", batch).await.expect(202);
    assert_eq!(response["data"][0]["error"]["field"], "priority", "{response}");
}

#[tokio::test]
async fn missing_key_or_scope_is_rejected() {
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    let event = json!({"event_type": "a.b", "data": 1});
    for api in [admin.without_key(), admin.with_key("rdk_wrong"), admin.with_key("")] {
        assert_problem(&api.get("/v1/webhooks").await, 401, "unauthorized", "Authorization: Bearer");
        assert_problem(&api.post("/v1/events", &event).await, 401, "unauthorized", "Authorization: Bearer");
    }
    let basic = [("authorization", "Basic YTpi")];
    assert_problem(&admin.raw("GET", "/v1/webhooks", &basic, vec![]).await, 401, "unauthorized", "Bearer");

    admin.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let key = |scopes: Value| {
        let admin = admin.clone();
        async move {
            let created =
                admin.post("/v1/tenants/acme/api-keys", json!({"scopes": scopes})).await.expect(201);
            (admin.with_key(created["key"].as_str().unwrap()), created["id"].as_str().unwrap().to_owned())
        }
    };
    let (publisher, publisher_id) = key(json!(["publish"])).await;
    let (reader, _) = key(json!(["read"])).await;
    let (manager, _) = key(json!(["manage"])).await;
    assert_eq!(publisher.post("/v1/events", &event).await.status, 202);
    assert_problem(&publisher.get("/v1/events").await, 403, "forbidden", "\"read\"");
    assert_problem(&reader.post("/v1/events", &event).await, 403, "forbidden", "\"publish\"");
    assert_problem(&reader.post("/v1/webhooks", json!({})).await, 403, "forbidden", "\"manage\"");
    assert_eq!(manager.get("/v1/events").await.status, 200);
    for api in [&publisher, &reader, &manager] {
        assert_problem(&api.get("/v1/tenants").await, 403, "forbidden", "admin");
        assert_problem(&api.get("/v1/events?tenant_id=default").await, 403, "forbidden", "");
    }
    // Revocation takes effect with the next request.
    admin.delete(&format!("/v1/tenants/acme/api-keys/{publisher_id}")).await.expect(204);
    assert_problem(&publisher.post("/v1/events", &event).await, 401, "unauthorized", "");
    let again = admin.delete(&format!("/v1/tenants/acme/api-keys/{publisher_id}")).await;
    assert_problem(&again, 404, "not_found", "active API key");
}

#[tokio::test]
async fn invalid_tenants_and_keys_are_rejected() {
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    assert_problem(
        &admin.post("/v1/tenants", json!({"id": "Not A Name"})).await,
        400,
        "invalid_field",
        "a-z",
    );
    admin.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    assert_problem(&admin.post("/v1/tenants", json!({"id": "acme"})).await, 409, "tenant_exists", "acme");
    for (rules, field) in [
        (json!({"pool": "Not a name"}), "pool"),
        (json!({"rate_limit": {"requests_per_minute": 0}}), "rate_limit.requests_per_minute"),
        (json!({"rate_limit": {"requests_per_minute": 1, "burst": 0}}), "rate_limit.burst"),
        (json!({"max_in_flight": 0}), "max_in_flight"),
        (json!({"max_in_flight": -1}), "max_in_flight"),
        (json!({"name": "a\nb"}), "name"),
    ] {
        let changed = admin.patch("/v1/tenants/acme", &rules).await;
        assert_problem(&changed, 400, "invalid_field", field);
        assert_eq!(changed.json()["field"], field);
        let mut new = rules.clone();
        new["id"] = json!("other");
        assert_problem(&admin.post("/v1/tenants", new).await, 400, "invalid_field", field);
    }
    assert_problem(
        &admin.patch("/v1/tenants/acme", json!({"id": "b"})).await,
        400,
        "invalid_field",
        "unknown field",
    );
    assert_problem(&admin.patch("/v1/tenants/unknown", json!({})).await, 404, "not_found", "tenant");
    let scopes = json!({"scopes": ["fly"]});
    assert_problem(&admin.post("/v1/tenants/acme/api-keys", scopes).await, 400, "invalid_field", "scopes");
    let none = json!({"scopes": []});
    assert_problem(&admin.post("/v1/tenants/acme/api-keys", none).await, 400, "invalid_field", "scopes");
    assert_eq!(
        admin.raw("POST", "/v1/tenants/acme/api-keys", &[], vec![]).await.status,
        201,
        "a body is optional"
    );
    let limited_admin = admin.post("/v1/admin-keys", json!({"scopes": ["read"]})).await;
    assert_problem(&limited_admin, 400, "invalid_field", "an admin key allows everything");
    assert_problem(&admin.get("/v1/events?tenant_id=unknown").await, 404, "not_found", "tenant");
    let unknown = admin.post("/v1/tenants/unknown/api-keys", json!({})).await;
    assert_problem(&unknown, 404, "not_found", "tenant");
    let event = json!({"event_type": "a.b", "data": 1, "tenant_id": "unknown"});
    assert_problem(&admin.post("/v1/events", event).await, 404, "not_found", "tenant");
}

#[tokio::test]
async fn keys_created_during_revocations_all_work() {
    let redrive = Redrive::start().await;
    let admin = redrive.api();
    let create = |admin: Api| async move {
        let created = admin.post("/v1/tenants/default/api-keys", json!({})).await.expect(201);
        (created["id"].as_str().unwrap().to_owned(), created["key"].as_str().unwrap().to_owned())
    };
    let mut doomed = Vec::new();
    for _ in 0..30 {
        doomed.push(create(admin.clone()).await.0);
    }
    let creators: Vec<_> = (0..30).map(|_| tokio::spawn(create(admin.clone()))).collect();
    for id in doomed {
        admin.delete(&format!("/v1/tenants/default/api-keys/{id}")).await.expect(204);
    }
    for creator in creators {
        let (_, key) = creator.await.unwrap();
        assert_eq!(admin.with_key(&key).get("/v1/events").await.status, 200);
    }
}

#[tokio::test]
async fn list_is_rejected_as_object_and_null_counts_as_no_body() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = json!({"url": "http://127.0.0.1:2/", "events": ["a.b"]});
    for (field, list) in [
        ("owner", json!(["id", "a@example.com"])),
        ("signature", json!(["standard", "timestamped"])),
        ("retry_config", json!([[1]])),
        ("circuit_breaker_config", json!([true])),
        ("rate_limit", json!([60, 1])),
    ] {
        let mut body = webhook.clone();
        body[field] = list;
        assert_problem(&api.post("/v1/webhooks", &body).await, 400, "invalid_field", "an object");
        assert_eq!(api.post("/v1/webhooks", &body).await.json()["field"], field);
    }
    let tenant = json!({"id": "acme", "rate_limit": [60, 1]});
    assert_problem(&api.post("/v1/tenants", &tenant).await, 400, "invalid_field", "an object");
    assert_problem(
        &api.post("/v1/webhooks", Value::Null).await,
        400,
        "invalid_body",
        "must be a JSON object",
    );

    // Where a body is optional, null counts as no body.
    let id = api.post("/v1/webhooks", &webhook).await.expect(201)["id"].clone();
    let pause = format!("/v1/webhooks/{}/pause", id.as_str().unwrap());
    assert_eq!(api.post(&pause, Value::Null).await.expect(200)["state"], "paused");
    assert_problem(&api.post(&pause, json!([])).await, 400, "invalid_body", "must be a JSON object");
}

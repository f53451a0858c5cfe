//! Requests in the forms that users of other products send. Each is accepted as it is, or refused with an error that
//! names the field and the reason.

use redrive_testkit::{ApiResponse, Receiver, Redrive};
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

#[tokio::test]
async fn date_is_accepted_wherever_a_time_is() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.post("/v1/webhooks", webhook(&json!({}))).await.expect(201);
    let event = api.publish("order.created", json!({})).await;
    let today = &event["timestamp"].as_str().unwrap()[..10];
    for listing in ["events", "deliveries", "audit-log"] {
        let count = async |query: &str| {
            let path = format!("/v1/{listing}?{query}");
            api.get(&path).await.expect(200)["data"].as_array().unwrap().len()
        };
        assert!(count("from=2024-01-01").await > 0, "{listing}");
        assert!(count(&format!("from={today}")).await > 0, "{listing}");
        assert_eq!(count(&format!("to={today}")).await, 0, "{listing}: the day begins at midnight");
        assert_eq!(count("from=2024-01-01T00:00:00Z&to=2024-01-02").await, 0, "{listing}");
        for wrong in ["2024-02-30", "2024-1-1", "20240101", "2024-01-01T00:00:00"] {
            let response = api.get(&format!("/v1/{listing}?from={wrong}")).await;
            assert_refused(&response, "from", "nor a date, such as 2026-01-31");
        }
    }
    for path in ["/v1/dlq/stats", "/v1/deliveries/export", "/v1/events/export"] {
        let response = api.get(&format!("{path}?from=2024-01-01&to=2030-01-01")).await;
        assert_eq!(response.status, 200, "{path}: {}", String::from_utf8_lossy(&response.body));
    }
    let filter = json!({"filter": {"from": "2024-01-01", "to": "2024-01-02"}});
    let operation = api.post("/v1/dlq/retry-batch", &filter).await.expect(202);
    assert_eq!(operation["filter"]["from"], "2024-01-01T00:00:00.000Z", "{operation}");
    let wrong = json!({"filter": {"from": "2024-02-30"}});
    assert_refused(&api.post("/v1/dlq/retry-batch", wrong).await, "filter.from", "nor a date");
}

#[tokio::test]
async fn ssl_is_another_name_of_the_category_tls() {
    // The receiver speaks plain HTTP, so the TLS handshake fails.
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let url = receiver.url().replacen("http://", "https://", 1);
    let retry = json!({"schedule": [0]});
    let created = api.post("/v1/webhooks", webhook(&json!({"url": url, "retry_config": retry}))).await;
    created.expect(201);
    api.publish("order.created", json!({})).await;
    let dead = api
        .wait_until("the dead letter", "/v1/dlq?failure_category=ssl", |found| {
            found["data"].as_array().is_some_and(|dead| dead.len() == 1)
        })
        .await;
    assert_eq!(dead["data"][0]["failure_category"], "tls", "{dead}");
    for query in
        ["failure_category=tls", "failure_category=dns,ssl", "failure_category=ssl&failure_category=tls"]
    {
        for path in ["dlq", "deliveries"] {
            let found = api.get(&format!("/v1/{path}?{query}")).await.expect(200);
            assert_eq!(found["data"].as_array().unwrap().len(), 1, "{path}?{query}");
        }
    }
    let filter = json!({"filter": {"failure_categories": ["ssl"]}, "dry_run": true});
    let found = api.post("/v1/dlq/retry-batch", filter).await.expect(200);
    assert_eq!(found["total"], 1, "{found}");
    let both = json!({"filter": {"failure_categories": ["ssl", "tls"]}, "dry_run": true});
    let found = api.post("/v1/dlq/retry-batch", both).await.expect(200);
    assert_eq!((&found["total"], found["sample"].as_array().unwrap().len()), (&json!(1), 1), "{found}");
}

#[tokio::test]
async fn metadata_values_are_any_json_and_kept_as_sent() {
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    // The value is compared as text: parsing it would lose the digits of numbers.
    let metadata = r#"{"big":123456789012345678901234567890,"flag":true,"list":[1,"two",{"three":3.50}],"none":null,"text":"5"}"#;
    let body = format!(r#"{{"url":"http://127.0.0.1:2/","events":["*"],"metadata":{metadata}}}"#);
    let json = [("content-type", "application/json")];
    let created = api.raw("POST", "/v1/webhooks", &json, body).await;
    let id = created.expect(201)["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/webhooks/{id}");
    let has_metadata = |response: &ApiResponse| {
        String::from_utf8_lossy(&response.body).contains(&format!("\"metadata\":{metadata}"))
    };
    for read in ["/v1/webhooks", &path] {
        let response = api.get(read).await;
        assert!(has_metadata(&response), "{}", String::from_utf8_lossy(&response.body));
    }
    // A change of another field keeps it, and so does a restart.
    api.patch(&path, json!({"description": "x"})).await.expect(200);
    redrive.restart().await;
    let api = redrive.api();
    assert!(has_metadata(&api.get(&path).await));

    let event = format!(r#"{{"event_type":"order.created","data":1,"metadata":{metadata}}}"#);
    let published = api.raw("POST", "/v1/events", &json, event).await.expect(202);
    let response = api.get(&format!("/v1/events/{}", published["id"].as_str().unwrap())).await;
    assert!(has_metadata(&response), "{}", String::from_utf8_lossy(&response.body));

    let deep = format!("{}1{}", "[".repeat(21), "]".repeat(21));
    let raw = |value: &str| format!(r#"{{"metadata":{{"n":{value}}}}}"#);
    for (body, field, mentions) in [
        (raw(&deep), "metadata.n", "nested too deeply"),
        (raw("1e400"), "metadata.n", "number out of range"),
        (raw(&format!("[{}]", "1,".repeat(4100) + "1")), "metadata", "8192 bytes"),
        (r#"{"metadata": 5}"#.to_owned(), "metadata", "must be an object, got the number 5"),
    ] {
        assert_refused(&api.raw("PATCH", &path, &json, body).await, field, mentions);
    }
}

#[tokio::test]
async fn secret_is_plain_text_or_whsec() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let create = |secret: &str| api.post("/v1/webhooks", webhook(&json!({"secret": secret})));
    let created = create("plain text secret").await.expect(201);
    assert_eq!(created["secret"], "whsec_cGxhaW4gdGV4dCBzZWNyZXQ=");
    // The form that is shown is accepted as well, and is the same secret.
    let path = format!("/v1/webhooks/{}/rotate-secret", created["id"].as_str().unwrap());
    for (secret, mentions) in [
        (created["secret"].as_str().unwrap(), "in use already"),
        ("plain text secret", "in use already"),
        ("fifteen bytes!!", "must have 16 to 256 bytes"),
        ("whsec_dG9vIHNob3J0", "must have 16 to 256 bytes"),
        ("whsec_not base64 at all", "is not base64"),
    ] {
        assert_refused(&api.post(&path, json!({"secret": secret})).await, "secret", mentions);
    }
    let rotated = api.post(&path, json!({"secret": "another plain secret"})).await.expect(200);
    assert_eq!(rotated["secret"], "whsec_YW5vdGhlciBwbGFpbiBzZWNyZXQ=");
    assert_refused(&create("fifteen bytes!!").await, "secret", "but it has 15");
    assert_refused(&create(&"x".repeat(257)).await, "secret", "but it has 257");
    create(&"x".repeat(256)).await.expect(201);
}

#[tokio::test]
async fn status_filters_take_names_of_other_products() {
    let good = Receiver::start().await;
    let bad = Receiver::responding(500).await;
    let refusing = Receiver::responding(404).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let create = async |url: String, event: &str| {
        let fields = json!({"url": url, "events": [event], "retry_config": {"schedule": [0]}});
        api.post("/v1/webhooks", webhook(&fields)).await.expect(201)["id"].as_str().unwrap().to_owned()
    };
    create(good.url(), "a.delivered").await;
    create(bad.url(), "a.exhausted").await;
    create(refusing.url(), "a.permanent").await;
    let blocked = create(good.url(), "a.blocked").await;
    let circuit = format!("/v1/webhooks/{blocked}/circuit-breaker");
    api.patch(&circuit, json!({"action": "force_open"})).await.expect(200);
    for event in ["a.delivered", "a.exhausted", "a.permanent", "a.blocked", "a.blocked"] {
        api.publish(event, json!({})).await;
    }
    let found = async |query: &str| {
        let page = api.get(&format!("/v1/deliveries?{query}")).await.expect(200);
        let types =
            page["data"].as_array().unwrap().iter().map(|one| one["event_type"].as_str().unwrap().to_owned());
        (types.collect::<Vec<_>>(), page["next_cursor"].clone())
    };
    let all_ended = |page: &Value| {
        let is_open = |one: &Value| {
            one["status"] == "pending" && one["event_type"] != "a.blocked" || one["status"] == "in_flight"
        };
        page["data"].as_array().is_some_and(|all| all.len() == 5 && !all.iter().any(is_open))
    };
    api.wait_until("the end of three deliveries", "/v1/deliveries", all_ended).await;

    assert_eq!(found("status=success").await.0, ["a.delivered"]);
    assert_eq!(found("status=exhausted").await.0, ["a.exhausted"]);
    assert_eq!(found("status=exhausted&dead_reason=expired,exhausted").await.0, ["a.exhausted"]);
    assert_eq!(found("status=circuit_blocked").await, (vec!["a.blocked".to_owned(); 2], Value::Null));
    assert_eq!(found("status=circuit_blocked&offset=1").await.0, ["a.blocked"]);
    assert_eq!(found("status=circuit_blocked&offset=2").await.0.len(), 0);
    let (first, cursor) = found("status=circuit_blocked&limit=1").await;
    let second = found(&format!("status=circuit_blocked&limit=1&cursor={}", cursor.as_str().unwrap())).await;
    assert_eq!((first.len(), second), (1, (vec!["a.blocked".to_owned()], Value::Null)));
    let exported = api.get("/v1/deliveries/export?status=circuit_blocked").await;
    assert_eq!(String::from_utf8_lossy(&exported.body).trim().lines().count(), 2);
    let own = api.get(&format!("/v1/webhooks/{blocked}/deliveries?status=circuit_blocked")).await.expect(200);
    assert_eq!(own["data"].as_array().unwrap().len(), 2);
    let dead = api.get("/v1/dlq?status=exhausted").await.expect(200);
    assert_eq!(dead["data"].as_array().unwrap().len(), 1, "{dead}");

    assert_refused(
        &api.get("/v1/deliveries?status=exhausted&dead_reason=expired").await,
        "status",
        "contradicts",
    );
    assert_refused(&api.get("/v1/deliveries?status=retrying").await, "status", "circuit_blocked");

    // Pending deliveries that wait for something else are not listed.
    api.patch(&circuit, json!({"action": "reset"})).await.expect(200);
    api.post(&format!("/v1/webhooks/{blocked}/pause"), json!({})).await.expect(200);
    api.publish("a.blocked", json!({})).await;
    assert_eq!(found("status=circuit_blocked").await.0.len(), 0);
    assert_ne!(found("status=pending").await.0.len(), 0);
}

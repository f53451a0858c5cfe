//! A rejected request gets all of its invalid fields in one response, in words for API users.

use redrive_testkit::{ApiResponse, Redrive};
use serde_json::{Value, json};

/// Method, path and body of a request, and the fields that its response lists: path, code and a part of the message.
type Case<'a> = (&'a str, &'a str, Value, &'a [(&'a str, &'a str, &'a str)]);

/// Asserts that a response lists exactly these fields, each with a message that has a text, and names the first one as
/// clients of one error expect it.
#[track_caller]
fn assert_lists(response: &ApiResponse, expected: &[(&str, &str, &str)]) {
    let problem = response.json();
    assert_eq!(response.status, 400, "{problem:#}");
    let errors = problem["errors"].as_array().unwrap_or_else(|| panic!("no errors: {problem:#}"));
    let mut found: Vec<_> = errors.iter().map(|error| error["field"].as_str().unwrap()).collect();
    let first = &errors[0];
    assert_eq!(problem["field"], first["field"], "{problem:#}");
    let detail = format!("{}: {}", first["field"].as_str().unwrap(), first["message"].as_str().unwrap());
    assert_eq!(problem["detail"], detail);
    found.sort_unstable();
    let mut fields: Vec<_> = expected.iter().map(|(field, ..)| *field).collect();
    fields.sort_unstable();
    assert_eq!(found, fields, "{problem:#}");
    for (field, code, message) in expected {
        let error = errors.iter().find(|error| error["field"] == *field).unwrap();
        assert_eq!(error["code"], *code, "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error} does not say {message}");
    }
    // Nothing of serde's words.
    let text = problem.to_string();
    for word in ["invalid type", "invalid value:", "expected one of", " at line ", "struct "] {
        assert!(!text.contains(word), "{text} says {word:?}");
    }
}

#[tokio::test]
async fn all_invalid_fields_of_each_body_are_listed() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let webhook = api.create_webhook("http://127.0.0.1:2/", Value::Null).await;
    let webhook = format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap());
    let cases: [Case<'_>; 11] = [
        (
            "POST",
            "/v1/webhooks",
            json!({"url": 5, "evnts": ["a"], "max_in_flight": 0}),
            &[
                ("url", "wrong_type", "must be a string, got the number 5"),
                ("evnts", "unknown_field", "did you mean events?"),
                ("max_in_flight", "out_of_range", "must be from 1 to 1000, got the number 0"),
                ("events", "missing", "is missing"),
            ],
        ),
        // The parser accepts both, and the first rule that is violated ends the check of the others.
        (
            "POST",
            "/v1/webhooks",
            json!({"max_in_flight": 0, "secret": "short", "events": []}),
            &[
                ("secret", "out_of_range", "must have 16 to 256 bytes"),
                ("url", "missing", "is missing"),
                ("events", "out_of_range", "must have from 1 to 100 items"),
                ("max_in_flight", "out_of_range", "must be from 1 to 1000"),
            ],
        ),
        (
            "PATCH",
            &webhook,
            json!({"active": "no", "retry_config": {"jitter": 9, "max_attempts": "5"}}),
            &[
                ("active", "wrong_type", "must be true or false, got the string \"no\""),
                ("retry_config.jitter", "out_of_range", "must be at most 0.5, got the number 9"),
                ("retry_config.max_attempts", "wrong_type", "must be a whole number"),
            ],
        ),
        (
            "POST",
            "/v1/events",
            json!({"event_typ": "a.b", "priority": "hihg", "subject": 1}),
            &[
                ("event_typ", "unknown_field", "did you mean event_type?"),
                ("priority", "invalid_value", "did you mean high?"),
                ("subject", "wrong_type", "must be a string, got the number 1"),
                ("event_type", "missing", "is missing"),
                ("data", "missing", "is missing"),
            ],
        ),
        (
            "POST",
            "/v1/event-types",
            json!({"schem": {}, "archived": 1}),
            &[
                ("schem", "unknown_field", "did you mean schema?"),
                ("archived", "wrong_type", "must be true or false, got the number 1"),
                ("name", "missing", "is missing"),
            ],
        ),
        (
            "POST",
            "/v1/tenants",
            json!({"name": [], "rate_limit": {"burst": 0}, "max_in_flight": -1}),
            &[
                ("name", "wrong_type", "must be a string, got a list"),
                ("rate_limit.burst", "out_of_range", "must be from 1 to 1000000"),
                ("rate_limit.requests_per_minute", "missing", "is missing"),
                ("max_in_flight", "out_of_range", "got the number -1"),
                ("id", "missing", "is missing"),
            ],
        ),
        (
            "POST",
            "/v1/tenants/default/api-keys",
            json!({"scopes": ["raed"], "expires_at": "soon", "nam": "x"}),
            &[
                ("scopes[0]", "invalid_value", "did you mean read?"),
                ("expires_at", "invalid_value", "RFC 3339"),
                ("nam", "unknown_field", "did you mean name?"),
            ],
        ),
        (
            "POST",
            "/v1/dlq/retry-batch",
            json!({"filter": {"from": "now", "event_types": []}, "dry_run": 1}),
            &[
                ("filter.from", "invalid_value", "RFC 3339"),
                ("filter.event_types", "out_of_range", "must have from 1 to 1000 items, has 0"),
                ("dry_run", "wrong_type", "must be true or false, got the number 1"),
            ],
        ),
        (
            "POST",
            &format!("{webhook}/rotate-secret"),
            json!({"secret": 1, "overlap": {}}),
            &[
                ("secret", "wrong_type", "must be a string, got the number 1"),
                ("overlap", "wrong_type", "seconds as a number, or a string"),
            ],
        ),
        (
            "PATCH",
            "/v1/notification-preferences",
            json!({"emails": 1, "langage": "de"}),
            &[
                ("emails", "wrong_type", "must be a list"),
                ("langage", "unknown_field", "did you mean language?"),
            ],
        ),
        (
            "POST",
            "/v1/webhooks",
            json!({"url": "example.com", "events": ["*.a", "a.b"], "filter": {"path": 1}}),
            &[
                ("events[0]", "invalid_value", "is not an event"),
                ("url", "invalid_value", "is not a URL"),
                ("filter.path", "wrong_type", "must be a string, got the number 1"),
            ],
        ),
    ];
    for (method, path, body, expected) in cases {
        let content_type = [("content-type", "application/json")];
        let response = api.raw(method, path, &content_type, body.to_string().into_bytes()).await;
        println!("{method} {path} {body}");
        assert_lists(&response, expected);
    }
}

#[tokio::test]
async fn all_invalid_query_parameters_are_listed_with_those_of_the_body() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let page = &[
        ("limit", "wrong_type", "must be a whole number, got \"many\""),
        ("offset", "out_of_range", "must be at most 10000"),
        ("colour", "unknown_field", "unknown parameter"),
    ];
    for path in [
        "/v1/webhooks",
        "/v1/events",
        "/v1/deliveries",
        "/v1/dlq",
        "/v1/tenants",
        "/v1/audit-log",
        "/v1/event-types",
        "/v1/notifications",
        "/v1/admin-keys",
        "/v1/dlq/batch-operations",
    ] {
        let response = api.get(&format!("{path}?limit=many&offset=20000&colour=blue")).await;
        println!("{path}");
        assert_lists(&response, page);
        assert_eq!(response.json()["code"], "invalid_query");
    }
    // The parser accepts these; the rules of the use case reject the first.
    let response = api.get("/v1/deliveries?limit=0&status=broken&failure_category=timeout").await;
    assert_lists(
        &response,
        &[("status", "invalid_value", "must be pending"), ("limit", "out_of_range", "from 1 to 500")],
    );
    let response = api.get("/v1/deliveries?limit=1&limit=2&status=sucess").await;
    assert_lists(
        &response,
        &[("limit", "invalid_value", "is given twice"), ("status", "invalid_value", "did you mean success?")],
    );
}

#[tokio::test]
async fn each_event_of_a_batch_lists_its_own_invalid_fields() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let batch = json!({"events": [
        {"event_type": "a.b", "data": 1},
        {"event_type": 5, "dat": 1, "priority": "urgent"},
    ]});
    let results = api.post("/v1/events/batch", &batch).await.expect(202);
    assert_eq!(results["data"][0]["status"], 202);
    let error = &results["data"][1]["error"];
    let fields: Vec<_> = error["errors"].as_array().unwrap().iter().map(|error| &error["field"]).collect();
    assert_eq!(fields, ["dat", "event_type", "priority", "data"], "{error:#}");
    let whole = api.post("/v1/events/batch", json!({"events": 5, "tenant": "x"})).await;
    assert_lists(
        &whole,
        &[("events", "wrong_type", "must be a list"), ("tenant", "unknown_field", "did you mean tenant_id?")],
    );
}

#[tokio::test]
async fn other_problems_list_no_fields() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let json_type = [("content-type", "application/json")];
    for response in [
        api.raw("POST", "/v1/webhooks", &json_type, b"{".to_vec()).await,
        api.post("/v1/webhooks", json!([])).await,
        api.get("/v1/webhooks/unknown").await,
        api.without_key().post("/v1/webhooks", json!({"url": 5})).await,
    ] {
        let problem = response.json();
        assert!(response.status >= 400 && problem.get("errors").is_none(), "{problem:#}");
    }
    // The first field keeps the message of the rule that it violates.
    let response = api.post("/v1/webhooks", json!({"events": ["a.b"]})).await;
    assert_lists(&response, &[("url", "missing", "set the URL that events are sent to")]);
    assert!(response.json()["request_id"].is_string());
}

/// The work of the comparison grows with the body, not with the number of mistakes in it.
#[tokio::test]
async fn large_invalid_bodies_are_rejected_with_a_bounded_list() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let many: serde_json::Map<_, _> = (0..10_000).map(|n| (format!("field_{n}"), Value::Null)).collect();
    let response = api.post("/v1/webhooks", Value::Object(many)).await;
    let problem = response.json();
    assert_eq!((response.status, problem["errors"].as_array().unwrap().len()), (400, 50));
    let numbers = vec![0; 2_000_000];
    let response = api.post("/v1/events/batch", json!({"events": numbers, "x": 1})).await;
    assert_eq!(response.status, 400);
    assert!(response.body.len() < 32 * 1024, "{}", response.body.len());
}

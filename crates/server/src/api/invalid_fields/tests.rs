//! Every difference is found, in our words.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{body::MAX_LISTED, in_object, query::invalid_parameters};
use crate::{api::openapi, problem::InvalidField};

fn in_body(schema: &str, body: &Value) -> Vec<(String, String)> {
    words(in_object(schema, body.to_string().as_bytes()))
}

fn words(found: Vec<InvalidField>) -> Vec<(String, String)> {
    found.into_iter().map(|field| (field.field, field.message)).collect()
}

#[track_caller]
fn assert_found(found: &[(String, String)], expected: &[(&str, &str)]) {
    let found: Vec<_> = found.iter().map(|(field, message)| (field.as_str(), message.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn all_fields_of_a_body_are_compared() {
    let body = json!({
        "url": 5,
        "events": ["order.*", 7, "*.a"],
        "evnts": [],
        "max_in_flight": 0,
        "payload_format": "envelop",
        "headers": {"x-a": 1},
        "rate_limit": {"burst": 2.5},
        "retry_config": {"schedule": [], "jitter": true, "give_up_after": []},
        "auth": {"type": "digest"},
        "active": "yes",
        "expires_at": "tomorrow",
        "description": null,
    });
    let found = in_body("WebhookCreate", &body);
    let field =
        |name: &str| found.iter().find(|(field, _)| field == name).map(|(_, message)| message.as_str());
    for (name, message) in [
        ("url", "must be a string, got the number 5"),
        ("events[1]", "must be a string, got the number 7"),
        ("events[2]", "\"*.a\" is not an event"),
        ("evnts", "unknown field; did you mean events?"),
        ("max_in_flight", "must be from 1 to 1000, got the number 0"),
        ("payload_format", "got \"envelop\"; did you mean envelope?"),
        ("headers.x-a", "must be a string, got the number 1"),
        ("rate_limit.burst", "must be a whole number, got the number 2.5"),
        ("rate_limit.requests_per_minute", "is missing"),
        ("retry_config.schedule", "must have from 1 to 50 items, has 0"),
        ("retry_config.jitter", "must be a number, got true"),
        ("retry_config.give_up_after", "must be a number or a string, got a list"),
        ("auth.type", "must be basic or bearer, got the string \"digest\""),
        ("active", "must be true or false, got the string \"yes\""),
        ("expires_at", "is not an RFC 3339 time"),
    ] {
        assert!(field(name).is_some_and(|found| found.contains(message)), "{name}: {found:#?}");
    }
    assert_eq!(found.len(), 15, "{found:#?}");
    assert_found(&in_body("WebhookCreate", &json!({})), &[("events", "is missing"), ("url", "is missing")]);
    assert_found(&in_body("WebhookUpdate", &json!({"retry_config": {"retry_on": "all"}})), &[]);
    let auth = json!({"auth": {"type": "basic", "username": "a"}});
    assert_found(&in_body("WebhookUpdate", &auth), &[("auth.password", "is missing")]);
}

#[test]
fn all_broken_rules_of_a_webhook_are_found() {
    let operation = &openapi()["paths"]["/v1/webhooks"]["post"];
    let body = json!({
        "url": "https://user:password@example.com/#top",
        "events": ["order.*", "*.created"],
        "secret": "whsec_!!!!!!!!!!!!!!!!",
        "headers": {"Host": "y", "webhook-id": "z", "b c": "d", "x-good": "e"},
        "owner": {"email": "nowhere"},
        "auth": {"type": "basic", "user": "x", "password": "y"},
        "subjects": [""],
        "retry_config": {"base_delay_ms": 5_000, "max_delay_ms": 1_000},
    });
    let found = super::in_body(operation, body.to_string().as_bytes());
    let fields: BTreeSet<_> = found.iter().map(|field| field.field.as_str()).collect();
    let expected = [
        "auth.username",
        "events[1]",
        "headers.Host",
        "headers.b c",
        "headers.webhook-id",
        "owner.email",
        "retry_config.base_delay_ms",
        "secret",
        "subjects",
        "url",
    ];
    assert_eq!(fields, BTreeSet::from(expected), "{found:#?}");
    let accepted = json!({"url": "http://example.com/", "events": ["*"], "headers": {"x-a": "b"}});
    assert_eq!(super::in_body(operation, accepted.to_string().as_bytes()), []);
}

#[test]
fn other_names_of_values_are_not_reported() {
    let operation = &openapi()["paths"]["/v1/deliveries/retry-batch"]["post"];
    let body = br#"{"filter": {"failure_categories": ["ssl", "foo"]}}"#;
    let found = super::in_body(operation, body);
    let fields: Vec<_> = found.iter().map(|field| field.field.as_str()).collect();
    assert_eq!(fields, ["filter.failure_categories[1]"]);
    let operation = &openapi()["paths"]["/v1/deliveries"]["get"];
    let found = words(invalid_parameters(openapi(), operation, "failure_category=ssl,foo"));
    assert!(found[0].1.contains("\"foo\""), "{found:?}");
}

#[test]
fn repeated_fields_are_found() {
    let found = in_object("WebhookUpdate", br#"{"url": "http://a/", "url": "http://b/", "\u0075rl": 1}"#);
    assert_found(&words(found), &[("url", "is given twice"), ("url", "is given twice")]);
}

#[test]
fn secrets_of_the_wrong_length_are_not_repeated() {
    assert_found(
        &in_body("WebhookUpdate", &json!({"secret": "x"})),
        &[("secret", "unknown field; the API documentation lists the fields")],
    );
    let body = json!({"url": "http://a/", "events": ["*"], "secret": "hunter2"});
    assert_found(
        &in_body("WebhookCreate", &body),
        &[("secret", "must have from 16 to 350 characters, has 7")],
    );
}

#[test]
fn all_parameters_of_a_query_are_compared() {
    let operation = &openapi()["paths"]["/v1/deliveries"]["get"];
    let query = "limit=many&offset=99999&recoverable=yes&status=sucess&failure_category=timeout,bad&from=yesterday&\
                 webhookid=x&webhook_id=a&webhook_id=b&cursor=a&cursor=b";
    let found = words(invalid_parameters(openapi(), operation, query));
    let field =
        |name: &str| found.iter().find(|(field, _)| field == name).map(|(_, message)| message.as_str());
    for (name, message) in [
        ("limit", "must be a whole number, got \"many\""),
        ("offset", "must be at most 10000"),
        ("recoverable", "must be true or false, got \"yes\""),
        ("status", "got \"sucess\"; did you mean success?"),
        ("failure_category", "got \"bad\""),
        ("from", "is not an RFC 3339 time"),
        ("webhookid", "unknown parameter; did you mean webhook_id?"),
        ("cursor", "is given twice"),
    ] {
        assert!(field(name).is_some_and(|found| found.contains(message)), "{name}: {found:#?}");
    }
    assert_eq!(found.len(), 8, "{found:#?}");
    let valid = "limit=1&status=failed&from=2024-01-01&webhook_id=a,b&recoverable=true&status_code=5xx";
    assert_found(&words(invalid_parameters(openapi(), operation, valid)), &[]);
}

#[test]
fn number_of_listed_fields_is_bounded() {
    let names: serde_json::Map<_, _> = (0..5_000).map(|n| (format!("field_{n}"), Value::Null)).collect();
    assert_eq!(in_body("WebhookUpdate", &Value::Object(names)).len(), MAX_LISTED);
    let lists = json!({"events": vec![7; 100_000]});
    assert_eq!(in_body("WebhookUpdate", &lists).len(), MAX_LISTED);
    let query: String = (0..5_000).map(|n| format!("field_{n}=&")).collect();
    let operation = &openapi()["paths"]["/v1/webhooks"]["get"];
    assert_eq!(invalid_parameters(openapi(), operation, &query).len(), MAX_LISTED);
}

#[test]
fn deep_values_are_left_to_the_parser() {
    let deep = (0..60).fold(json!({"path": 5}), |inner, _| json!({"not": inner}));
    assert_found(&in_body("WebhookUpdate", &json!({"filter": deep})), &[]);
}

proptest! {
    #[test]
    fn arbitrary_body_never_panics(body: Vec<u8>, text in "\\PC{0,60}") {
        in_object("WebhookCreate", &body);
        in_object("WebhookCreate", format!("{{\"url\": {text}}}").as_bytes());
        let operation = &openapi()["paths"]["/v1/deliveries"]["get"];
        invalid_parameters(openapi(), operation, &text);
    }
}

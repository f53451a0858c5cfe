//! Targets that parse what tenants configure for their webhooks and event types.

use redrive_core::{
    DeliveryId, EventId, Time, WebhookId,
    event::{
        event_type::{self, Pattern},
        schema::Schema,
    },
    routing::filter::{Filter, Payload},
    time::HumanDuration,
    webhook::{UrlRules, validate_url},
};
use redrive_egress::Target as SendTarget;
use redrive_server::fuzzing;

use super::{halves, text};
use crate::Target;

pub(crate) const FILTER: Target = Target {
    name: "filter",
    run: filter,
    tokens: &[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"all\":",
        "\"any\":",
        "\"not\":",
        "\"path\":",
        "\"/amount\"",
        "\"gte\":",
        "\"in\":",
        "\"exists\":",
        "\"starts_with\":",
        "\"eq\":",
        "~1",
        "~0",
        "/0",
        "\0",
        "1e300",
        "-0",
        "null",
        "true",
    ],
    weight: 8,
};

/// Checks that a filter survives a round trip, and that its explanation agrees with its result.
fn filter(input: &[u8]) {
    let (rule, data) = halves(input);
    let Ok(filter) = Filter::parse(&text(rule)) else { return };
    let again = Filter::parse(filter.text());
    assert!(again.is_ok(), "a printed filter cannot be parsed");
    for data in [data, rule, b"{}", b"null"] {
        let payload = Payload::new(data);
        let matches = filter.matches(&payload);
        assert!(again.as_ref().is_ok_and(|again| again.matches(&Payload::new(data)) == matches));
        let explained = filter.explain(&payload);
        assert_eq!(explained.matches, matches);
        assert!(explained.why.len() <= 8_000, "{}", explained.why.len());
    }
}

pub(crate) const SCHEMA: Target = Target {
    name: "schema",
    run: schema,
    tokens: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"type\":",
        "\"object\"",
        "\"properties\":",
        "\"pattern\":",
        "\"^a+$\"",
        "\"$ref\":",
        "\"#\"",
        "\"#/$defs/a\"",
        "\"$defs\":",
        "\"anyOf\":",
        "\"multipleOf\":",
        "\"minLength\":",
        "\"enum\":",
        "\"items\":",
        "\"required\":",
        "\0",
        "1e-300",
        "\"format\":",
    ],
    weight: 1,
};

/// Checks that validating a payload terminates with the same result for every accepted schema.
fn schema(input: &[u8]) {
    let (rule, data) = halves(input);
    let Ok(schema) = Schema::parse(&text(rule)) else { return };
    for data in [data, b"{}", b"[1,\"a\",null]"] {
        let first = schema.check(data).is_ok();
        assert_eq!(schema.check(data).is_ok(), first);
    }
}

pub(crate) const WEBHOOK: Target = Target {
    name: "webhook",
    run: webhook,
    tokens: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"url\":",
        "\"https://example.com/\"",
        "\"events\":",
        "[\"*\"]",
        "\"headers\":",
        "\"filter\":",
        "\"retry_config\":",
        "\"schedule\":",
        "\"rate_limit\":",
        "\"auth\":",
        "\"type\":",
        "\"basic\"",
        "\"max_in_flight\":",
        "null",
        "\"signature\":",
        "\"circuit_breaker_config\":",
        "\"subjects\":",
        "\"expires_at\":",
        "\"owner\":",
    ],
    weight: 4,
};

/// Checks that every accepted webhook can be sent to.
fn webhook(input: &[u8]) {
    let Some(spec) = fuzzing::webhook_document(input) else { return };
    let rules = UrlRules { allow_http: true, ..UrlRules::default() };
    if spec.validate(&rules).is_err() {
        return;
    }
    assert!(validate_url(&spec.url, &rules).is_ok());
    assert!(SendTarget::parse(&spec.url).is_ok(), "{}", spec.url);
    for (name, value) in &spec.headers {
        assert!(http::HeaderName::try_from(name).is_ok(), "{name}");
        assert!(http::HeaderValue::try_from(value.reveal()).is_ok());
    }
}

pub(crate) const EVENT_TYPE: Target = Target {
    name: "event_type",
    run: event_type,
    tokens: &["*", ".*", "**", ".", "order", "created", "\0", "order.created", "redrive.", "-", "_"],
    weight: 20,
};

/// Checks that a pattern matches as a second implementation does.
fn event_type(input: &[u8]) {
    let (pattern, name) = halves(input);
    let (pattern, name) = (text(pattern), text(name));
    let Ok(read) = Pattern::parse(&pattern) else { return };
    if event_type::validate(&name).is_err() {
        return;
    }
    let expected = match pattern.strip_suffix('*') {
        Some("") => !event_type::is_reserved(&name),
        Some(prefix) => name.starts_with(prefix),
        None => *name == *pattern,
    };
    assert_eq!(read.matches(&name), expected, "{pattern} and {name}");
}

pub(crate) const IDS_AND_TIMES: Target = Target {
    name: "ids_and_times",
    run: ids_and_times,
    tokens: &[
        "evt_",
        "wh_",
        "dlv_",
        "018f3b1c7a5e7c40b0a8f3d2c1e0a9b8",
        "2026-11-15T12:00:00Z",
        "+23:59",
        ".999999999",
        "-",
        "5s",
        "1h30m",
        "T",
        "Z",
        "9999-12-31",
    ],
    weight: 20,
};

/// Checks that ids and times survive a round trip.
fn ids_and_times(input: &[u8]) {
    let text = text(input);
    if let Ok(id) = text.parse::<EventId>() {
        assert_eq!(id.to_string().parse::<EventId>().ok(), Some(id));
    }
    if let Ok(id) = text.parse::<WebhookId>() {
        assert_eq!(id.to_string().parse::<WebhookId>().ok(), Some(id));
    }
    if let Ok(id) = text.parse::<DeliveryId>() {
        assert_eq!(id.to_string().parse::<DeliveryId>().ok(), Some(id));
    }
    if let Some(time) = Time::parse(&text) {
        assert_eq!(Time::parse(&time.to_string()), Some(time), "{text}");
    }
    let _ = HumanDuration::parse(&text);
}

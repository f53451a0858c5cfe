//! Targets that parse events in every accepted format.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use redrive_core::{
    EventId, Time,
    event::{Event, PayloadFormat, cloudevents::from_header},
};
use redrive_engine::EventDraft;
use redrive_server::fuzzing::{self, Message};
use serde_json::Value;

use super::{halves, text};
use crate::Target;

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "null",
    "true",
    "{}",
    "\\u0000",
    "\\ud800",
    "\"data\":",
    "\"event_type\":",
    "\"order.created\"",
    "\"idempotency_key\":",
    "\"metadata\":",
    "\"subject\":",
    "\"source\":",
    "\"priority\":",
    "\"high\"",
    "\"tenant_id\":",
    "1e400",
];

/// Checks the properties of a draft, and of every body that is rendered from it.
fn check_draft(draft: EventDraft, body: &Bytes) {
    let data: Result<Value, _> = serde_json::from_slice(&draft.data);
    // Missing data becomes `null`, which is 4 bytes.
    assert!(draft.data.len() <= body.len().max(4));
    let event = Event {
        id: EventId::first_at(Time::from_secs(1u32)),
        tenant_id: draft.tenant_id,
        event_type: draft.event_type,
        data: draft.data,
        timestamp: Time::from_secs(1u32),
        idempotency_key: draft.idempotency_key,
        source: draft.source,
        subject: draft.subject,
        priority: draft.priority,
        metadata: draft.metadata,
        trace: draft.trace,
        hops: draft.hops,
    };
    if event.validate().is_err() {
        return;
    }
    for format in [
        PayloadFormat::Envelope,
        PayloadFormat::Data,
        PayloadFormat::Cloudevents,
        PayloadFormat::CloudeventsBinary,
    ] {
        let rendered = format.render(&event);
        assert_eq!(rendered, format.render(&event));
        // A payload that is nested too deeply to be parsed as a document is still forwarded.
        if data.is_ok() {
            assert!(rendered.len() < 2 * event.data.len() + 16 * 1024);
            let _ = serde_json::from_slice::<Value>(&rendered);
        }
        for (name, value) in format.headers(&event) {
            assert!(HeaderName::try_from(&name).is_ok(), "{name:?}");
            assert!(HeaderValue::from_str(&value).is_ok(), "{value:?}");
            assert!(from_header(value.as_bytes()).is_some());
        }
    }
    let structured = PayloadFormat::Cloudevents.render(&event);
    if let (Some(again), Ok(data)) = (fuzzing::structured_cloudevent(&structured), data) {
        assert_eq!(again.event_type, event.event_type);
        assert_eq!(again.subject, event.subject);
        assert_eq!(serde_json::from_slice::<Value>(&again.data).ok(), Some(data));
    }
}

pub(crate) const DOCUMENT: Target = Target { name: "event_document", run: document, tokens: JSON, weight: 8 };

/// Checks that the payload equals what a second parser finds under `data`.
fn document(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    let Some(draft) = fuzzing::event_document(&body) else { return };
    if let Ok(document) = serde_json::from_slice::<Value>(input) {
        let data = serde_json::from_slice::<Value>(&draft.data).ok();
        assert_eq!(document.get("data"), data.as_ref());
    }
    check_draft(draft, &body);
}

pub(crate) const CLOUDEVENTS_STRUCTURED: Target = Target {
    name: "cloudevents_structured",
    run: structured,
    tokens: &[
        "{",
        "}",
        "\"specversion\":\"1.0\"",
        "\"id\":",
        "\"source\":",
        "\"type\":",
        "\"data\":",
        "\"data_base64\":",
        "\"time\":",
        "\"2026-11-15T12:00:00Z\"",
        "\"datacontenttype\":",
        "\"application/json\"",
        "\"subject\":",
        "\"traceparent\":",
        ",",
        "null",
        "[1]",
        "\"extension1\":",
    ],
    weight: 8,
};

fn structured(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    if let Some(draft) = fuzzing::structured_cloudevent(&body) {
        check_draft(draft, &body);
    }
}

pub(crate) const CLOUDEVENTS_BINARY: Target = Target {
    name: "cloudevents_binary",
    run: binary,
    tokens: &[
        "specversion:1.0\n",
        "id:",
        "source:",
        "type:",
        "subject:",
        "time:",
        "\n",
        "%20",
        "%C3%BC",
        "%",
        ":",
        "\0",
        "{}",
        "datacontenttype:",
        "traceparent:",
        "1.0",
    ],
    weight: 8,
};

/// Parses header lines, a zero byte, and the body.
fn binary(input: &[u8]) {
    let (head, body) = halves(input);
    let body = Bytes::copy_from_slice(body);
    if let Some(draft) = fuzzing::binary_cloudevent(attributes(head), &body) {
        check_draft(draft, &body);
    }
}

fn attributes(head: &[u8]) -> BTreeMap<String, Value> {
    let lines = head.split(|byte| *byte == b'\n').take(50);
    let pairs = lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let value = from_header(&line[at + 1..])?;
        Some((text(&line[..at]).into_owned(), Value::from(value)))
    });
    pairs.collect()
}

pub(crate) const AMQP: Target = Target {
    name: "amqp",
    run: amqp,
    tokens: &[
        "\n",
        "\0",
        "application/cloudevents+json",
        "event-type:",
        "order.created",
        "cloudEvents:specversion:1.0",
        "cloudEvents_id:",
        "traceparent:",
        "subject:",
        "{}",
        "{\"event_type\":\"a\",\"data\":1}",
    ],
    weight: 8,
};

/// Parses lines (content type, type, message id, priority, headers), a zero byte, and the body.
fn amqp(input: &[u8]) {
    let (head, body) = halves(input);
    let body = Bytes::copy_from_slice(body);
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut line = || short(&text(lines.next().unwrap_or_default()));
    let (content_type, kind, message_id) = (line(), line(), line());
    let priority = line().parse().unwrap_or(0);
    let headers = lines.take(50).filter_map(|line| {
        // Header names may contain a colon: the last colon separates name and value.
        let at = line.iter().rposition(|byte| *byte == b':')?;
        Some((short(&text(&line[..at])), line[at + 1..].to_vec()))
    });
    let headers = headers.collect();
    let message = Message { content_type, kind, message_id, priority, headers, body: body.clone() };
    if let Some(draft) = fuzzing::amqp_message(message) {
        check_draft(draft, &body);
    }
}

/// Truncates a text to the length of an AMQP short string.
fn short(text: &str) -> String {
    text.chars().take(60).collect()
}

pub(crate) const ARCHIVE: Target = Target {
    name: "archive",
    run: archive,
    tokens: &["(\u{b5}/\u{fd}", "{\"event\":", "\n", "\0\0\0"],
    weight: 4,
};

/// Checks that a damaged archive object returns an error and not endless lines.
fn archive(input: &[u8]) {
    let Ok(lines) = redrive_store::archive::lines(input) else { return };
    let mut bytes = 0;
    for line in lines.take(10_000) {
        let Ok(line) = line else { break };
        bytes += line.len();
        let _ = serde_json::from_str::<Value>(&line);
    }
    assert!(bytes <= 64 << 20, "{bytes} bytes of {}", input.len());
}

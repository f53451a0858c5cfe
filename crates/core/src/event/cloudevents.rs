//! CloudEvents 1.0: conversion of events to CloudEvents and of published CloudEvents to events.
//!
//! Over HTTP an event is either entirely in the body (structured mode), or its payload is in the body and its
//! attributes are in headers (binary mode). See the specification's JSON format and HTTP binding.

use std::{collections::BTreeMap, fmt::Write, io::Write as _};

use bytes::Bytes;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::{
    event::{Event, MAX_IDEMPOTENCY_KEY, MAX_SUBJECT_BYTES, trace::Trace},
    field_error::{FieldError, check_plain_text},
    time::Time,
};

/// The content type of one event in structured mode.
pub const STRUCTURED: &str = "application/cloudevents+json";
/// The content type of a batch of events.
pub const BATCH: &str = "application/cloudevents-batch+json";
/// The prefix of header names in binary mode.
pub const HEADER_PREFIX: &str = "ce-";
/// The version of the specification.
pub const VERSION: &str = "1.0";
/// The `source` of an event whose publisher gave none.
const DEFAULT_SOURCE: &str = "urn:redrive";
/// Maximum length of an extension's name.
const MAX_EXTENSION: usize = 20;

/// Returns the body in structured mode; it contains the payload byte for byte.
pub(crate) fn structured(event: &Event) -> Bytes {
    let mut body = Vec::with_capacity(event.data.len() + event.event_type.len() + 240);
    let mut gap = '{';
    for (name, value) in attributes(event) {
        let member = write!(body, r#"{gap}"{name}":{}"#, Value::from(value));
        debug_assert!(member.is_ok(), "writing to memory does not fail");
        gap = ',';
    }
    body.extend_from_slice(br#","datacontenttype":"application/json","data":"#);
    body.extend_from_slice(&event.data);
    body.push(b'}');
    Bytes::from(body)
}

/// Returns the headers in binary mode, without the content type.
pub fn headers(event: &Event) -> Vec<(String, String)> {
    let header = |(name, value): (&str, String)| (format!("{HEADER_PREFIX}{name}"), in_header(&value));
    attributes(event).into_iter().map(header).collect()
}

fn attributes(event: &Event) -> Vec<(&'static str, String)> {
    let mut attributes = vec![
        ("specversion", VERSION.to_owned()),
        ("id", event.id.to_string()),
        ("source", source(event)),
        ("type", event.event_type.to_string()),
        ("time", event.timestamp.to_string()),
    ];
    // The subject must not be empty, but may be omitted.
    let subject = event.subject.as_deref().filter(|subject| !subject.is_empty());
    attributes.extend(subject.map(|subject| ("subject", subject.to_owned())));
    attributes
}

/// Returns the event's source as a URI reference; characters that are not allowed in one are percent-encoded.
fn source(event: &Event) -> String {
    let text = event.source.as_deref().filter(|source| !source.is_empty()).unwrap_or(DEFAULT_SOURCE);
    let bytes = text.as_bytes();
    let mut uri = String::with_capacity(text.len());
    for (n, byte) in bytes.iter().enumerate() {
        let is_escape = || bytes.get(n + 1..n + 3).is_some_and(|next| next.iter().all(u8::is_ascii_hexdigit));
        match byte {
            b'%' if is_escape() => uri.push('%'),
            b'%' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => escape(&mut uri, *byte),
            0x21..=0x7e => uri.push(char::from(*byte)),
            _ => escape(&mut uri, *byte),
        }
    }
    uri
}

/// Encodes a header value: spaces, quotes, percent signs and everything but printable ASCII are percent-encoded.
fn in_header(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'"' | b'%' => escape(&mut encoded, byte),
            0x21..=0x7e => encoded.push(char::from(byte)),
            _ => escape(&mut encoded, byte),
        }
    }
    encoded
}

fn escape(text: &mut String, byte: u8) {
    // Writing to memory does not fail.
    let _ = write!(text, "%{byte:02X}");
}

/// Decodes a header value. Returns `None` if it is not UTF-8.
pub fn from_header(value: &[u8]) -> Option<String> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((first, after)) = rest.split_first() {
        let escaped = || {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            u8::from_str_radix(digits, 16)
                .ok()
                .filter(|_| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
        };
        (rest, _) = match (first, escaped()) {
            (b'%', Some(byte)) => (&after[2..], decoded.push(byte)),
            _ => (after, decoded.push(*first)),
        };
    }
    String::from_utf8(decoded).ok()
}

/// A published CloudEvent, parsed, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCloudEvent {
    /// Its `type`.
    pub event_type: Box<str>,
    /// Its `source`.
    pub source: Box<str>,
    /// Its `subject`.
    pub subject: Option<Box<str>>,
    /// Built from `source` and `id`, which together identify a CloudEvent.
    pub idempotency_key: Box<str>,
    /// Everything else, for display: `id`, `time`, `dataschema`, extensions.
    pub metadata: Bytes,
    /// The trace named by its extensions `traceparent` and `tracestate`.
    pub trace: Option<Trace>,
}

/// Parses the attributes of a CloudEvent, without its data.
pub fn parse(mut attributes: BTreeMap<String, Value>) -> Result<ParsedCloudEvent, FieldError> {
    let version = required(&mut attributes, "specversion")?;
    if version != VERSION {
        return Err(FieldError::new("specversion", format!("must be \"{VERSION}\"")));
    }
    let id = required(&mut attributes, "id")?;
    check_plain_text("id", &id, 1024)?;
    let source = required(&mut attributes, "source")?;
    check_plain_text("source", &source, MAX_SUBJECT_BYTES)?;
    if source.contains(char::is_whitespace) {
        return Err(FieldError::new(
            "source",
            "must be a URI reference without spaces, such as /shop or https://shop.example",
        ));
    }
    let event_type = required(&mut attributes, "type")?;
    crate::event::event_type::validate(&event_type)
        .map_err(|invalid| FieldError::new("type", invalid.message))?;
    let subject = optional(&mut attributes, "subject")?;
    if let Some(subject) = &subject {
        check_plain_text("subject", subject, MAX_SUBJECT_BYTES)?;
    }
    check_content_type(optional(&mut attributes, "datacontenttype")?)?;
    let mut kept = Map::from_iter([("cloudevents_id".to_owned(), Value::from(id.as_str()))]);
    if let Some(time) = optional(&mut attributes, "time")? {
        if Time::parse(&time).is_none() {
            return Err(FieldError::new("time", "must be an RFC 3339 time, such as 2026-11-15T12:00:00Z"));
        }
        kept.insert("cloudevents_time".to_owned(), time.into());
    }
    if let Some(schema) = optional(&mut attributes, "dataschema")? {
        kept.insert("cloudevents_dataschema".to_owned(), schema.into());
    }
    let trace = trace(&attributes);
    for (name, value) in attributes {
        kept.extend(extension(name, value)?);
    }
    Ok(ParsedCloudEvent {
        idempotency_key: dedup_key(&source, &id),
        event_type: event_type.into(),
        source: source.into(),
        subject: subject.map(Into::into),
        metadata: Value::Object(kept).to_string().into(),
        trace,
    })
}

/// Returns the trace of an event with the distributed tracing extension. Invalid values are ignored.
fn trace(attributes: &BTreeMap<String, Value>) -> Option<Trace> {
    let text = |name| attributes.get(name).and_then(Value::as_str);
    Trace::from_headers(text("traceparent")?, text("tracestate").unwrap_or_default())
}

/// Returns the idempotency key of an event. It contains source and id, since both together identify the event.
fn dedup_key(source: &str, id: &str) -> Box<str> {
    // A source contains no spaces, so the key is unambiguous.
    let key = format!("ce:{source} {id}");
    if key.len() <= MAX_IDEMPOTENCY_KEY {
        return key.into();
    }
    let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    let mut short = "ce:sha256:".to_owned();
    for byte in hash {
        // Writing to memory does not fail.
        let _ = write!(short, "{byte:02x}");
    }
    short.into()
}

fn required(attributes: &mut BTreeMap<String, Value>, name: &'static str) -> Result<String, FieldError> {
    optional(attributes, name)?
        .ok_or_else(|| FieldError::new(name, "is missing; every CloudEvent must have this attribute"))
}

fn optional(
    attributes: &mut BTreeMap<String, Value>,
    name: &'static str,
) -> Result<Option<String>, FieldError> {
    match attributes.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
        Some(_) => Err(FieldError::new(name, "must be a non-empty string")),
    }
}

/// Returns an error unless the content type is JSON.
fn check_content_type(content_type: Option<String>) -> Result<(), FieldError> {
    let Some(content_type) = content_type else { return Ok(()) };
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || essence == "text/json" || essence.ends_with("+json") {
        return Ok(());
    }
    Err(FieldError::new("datacontenttype", "must be application/json or omitted: payloads are JSON"))
}

fn extension(name: String, value: Value) -> Result<Option<(String, Value)>, FieldError> {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let shown: String = name.escape_debug().take(64).collect();
    if name.is_empty() || name.len() > MAX_EXTENSION || !name.bytes().all(allowed) {
        let message = format!(
            "is not a CloudEvents attribute; extension names have 1 to {MAX_EXTENSION} characters of a-z and 0-9"
        );
        return Err(FieldError::new(shown, message));
    }
    match value {
        Value::Null => Ok(None),
        Value::Array(_) | Value::Object(_) => {
            Err(FieldError::new(shown, "must be a string, a number, true or false"))
        }
        value => Ok(Some((name, value))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{delivery::lane::Priority, id::EventId, tenancy::TenantId};

    fn event(source: Option<&str>, subject: Option<&str>) -> Event {
        let timestamp = Time::from_millis(1_700_000_000_000);
        Event {
            id: EventId::new(timestamp, &[1; 10]),
            tenant_id: TenantId::default(),
            event_type: "order.created".into(),
            data: Bytes::from_static(br#"{"b": 1,  "a":[1.0,2e3]}"#),
            timestamp,
            idempotency_key: None,
            source: source.map(Into::into),
            subject: subject.map(Into::into),
            priority: Priority::Normal,
            metadata: None,
            trace: None,
            hops: 0,
        }
    }

    #[test]
    fn structured_body_contains_payload_byte_for_byte() {
        let event = event(Some("/shop"), Some("order 42"));
        let expected = format!(
            r#"{{"specversion":"1.0","id":"{}","source":"/shop","type":"order.created","time":"2023-11-14T22:13:20.000Z","subject":"order 42","datacontenttype":"application/json","data":{{"b": 1,  "a":[1.0,2e3]}}}}"#,
            event.id
        );
        assert_eq!(std::str::from_utf8(&structured(&event)).unwrap(), expected);
    }

    #[test]
    fn headers_are_encoded_per_http_binding() {
        // Examples from the HTTP binding.
        assert_eq!(in_header("Euro € 😀"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
        assert_eq!(from_header(b"Euro%20%e2%82%ac%20%F0%9F%98%80").unwrap(), "Euro € 😀");
        assert_eq!(from_header(b"100% %4g %").unwrap(), "100% %4g %", "an invalid escape is kept as it is");
        assert_eq!(from_header(b"%ff"), None);
        let headers = headers(&event(Some("my shop"), Some("100% \"süß\"")));
        let value =
            |name: &str| headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str());
        assert_eq!(value("ce-specversion"), Some("1.0"));
        assert_eq!(
            value("ce-source"),
            Some("my%2520shop"),
            "percent-encoded as a URI reference, then as a header"
        );
        assert_eq!(value("ce-subject"), Some("100%25%20%22s%C3%BC%C3%9F%22"));
    }

    #[test]
    fn source_defaults_when_missing_and_is_percent_encoded() {
        let reported = |source: Option<&str>| super::source(&event(source, None));
        assert_eq!(reported(None), "urn:redrive");
        assert_eq!(reported(Some("")), "urn:redrive");
        assert_eq!(reported(Some("https://example.com/a%20b?c=d#e")), "https://example.com/a%20b?c=d#e");
        assert_eq!(reported(Some("a b%zz\u{e9}{}")), "a%20b%25zz%C3%A9%7B%7D");
        assert!(!structured(&event(None, Some(""))).windows(9).any(|part| part == b"\"subject\""));
    }

    fn incoming(value: Value) -> Result<ParsedCloudEvent, FieldError> {
        let Value::Object(members) = value else { panic!("{value}") };
        parse(members.into_iter().collect())
    }

    #[test]
    fn parsed_cloudevent_keeps_all_attributes() {
        let full = json!({
            "specversion": "1.0", "id": "A234-1234-1234", "source": "/mycontext", "type": "com.example.someevent",
            "subject": "s", "time": "2018-04-05T17:31:00Z", "datacontenttype": "application/json; charset=utf-8",
            "dataschema": "https://example.com/s", "comexampleextension1": "value", "othervalue": 5, "none": null,
        });
        let read = incoming(full).unwrap();
        assert_eq!((&*read.event_type, &*read.source), ("com.example.someevent", "/mycontext"));
        assert_eq!(&*read.idempotency_key, "ce:/mycontext A234-1234-1234");
        let kept: Value = serde_json::from_slice(&read.metadata).unwrap();
        assert_eq!(
            kept,
            json!({
                "cloudevents_id": "A234-1234-1234", "cloudevents_time": "2018-04-05T17:31:00Z",
                "cloudevents_dataschema": "https://example.com/s", "comexampleextension1": "value", "othervalue": 5,
            })
        );
    }

    #[test]
    fn idempotency_key_depends_on_source_and_id() {
        let key = |source: &str, id: &str| dedup_key(source, id);
        assert_ne!(key("/a", "b c"), key("/a", "bc"));
        assert_ne!(key("/a", "1"), key("/b", "1"));
        let long = "x".repeat(500);
        assert!(key(&long, "1").len() <= MAX_IDEMPOTENCY_KEY);
        assert_ne!(key(&long, "1"), key(&long, "2"));
    }

    #[test]
    fn invalid_cloudevent_is_rejected_with_attribute_name() {
        let with = |name: &str, value: Value| {
            let mut event = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "a.b"});
            event[name] = value;
            incoming(event).unwrap_err().field.into_owned()
        };
        for (name, value) in [
            ("specversion", json!("0.3")),
            ("specversion", json!(1.0)),
            ("id", json!("")),
            ("id", json!(null)),
            ("source", json!("my shop")),
            ("type", json!("a b")),
            ("subject", json!("")),
            ("time", json!("yesterday")),
            ("datacontenttype", json!("text/plain")),
            ("Upper", json!("x")),
            ("list", json!([])),
            ("averyveryverylongname", json!("x")),
        ] {
            assert_eq!(with(name, value), name);
        }
    }

    proptest! {
        #[test]
        fn header_encoding_round_trips(text in any::<String>()) {
            let encoded = in_header(&text);
            prop_assert!(encoded.bytes().all(|byte| (0x21..=0x7e).contains(&byte) && byte != b'"'));
            prop_assert_eq!(from_header(encoded.as_bytes()), Some(text));
        }

        #[test]
        fn from_header_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            from_header(&bytes);
        }

        #[test]
        fn structured_body_is_valid_json_for_any_text(source in "\\PC{0,40}", subject in ".{0,40}") {
            let event = event(Some(&source), Some(&subject));
            let body: Value = serde_json::from_slice(&structured(&event)).unwrap();
            prop_assert_eq!(body["subject"].as_str().unwrap_or_default(), subject);
            prop_assert!(body["source"].as_str().unwrap().bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
        }
    }
}

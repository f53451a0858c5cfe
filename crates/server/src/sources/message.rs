//! Parses a message into an event, in one of four formats. `docs/ingestion.md` describes them for senders.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::{
    BasicProperties,
    types::{AMQPValue, ShortString},
};
use redrive_core::{
    FieldError, TenantId,
    delivery::lane::Priority,
    event::{cloudevents::STRUCTURED, hops, trace::Trace},
};
use redrive_engine::EventDraft;
use serde_json::Value;

use crate::app::{
    AppError,
    parse::{
        PARSE_WORK_PER_BYTE,
        cloudevents::{parse_attributes, parse_structured},
        document::{EventOverrides, parse_document, parse_raw_payload},
    },
};

/// Prefixes of headers with CloudEvents attributes, in both spellings of the AMQP binding.
const CLOUDEVENTS: [&str; 2] = ["cloudEvents:", "cloudEvents_"];

/// Parser of a source's messages, with the defaults for all of them.
pub(crate) struct MessageParser {
    /// Tenant of the events.
    pub(crate) tenant_id: TenantId,
    /// Event type of messages that name none; their body is then the payload.
    pub(crate) event_type: Option<Box<str>>,
}

impl MessageParser {
    /// Parses a message into an event, with the trace and hop count of its headers.
    pub(crate) fn parse(&self, properties: &BasicProperties, body: &Bytes) -> Result<EventDraft, AppError> {
        let draft = self.event(properties, body)?;
        Ok(EventDraft { trace: trace(properties).or(draft.trace), hops: hops_of(properties)?, ..draft })
    }

    fn event(&self, properties: &BasicProperties, body: &Bytes) -> Result<EventDraft, AppError> {
        let tenant_id = self.tenant_id.clone();
        let priority = properties.priority().and_then(message_priority);
        if is_structured(properties) {
            let draft = parse_structured(body, body, tenant_id)?;
            return Ok(EventDraft { priority: priority.unwrap_or_default(), ..draft });
        }
        let attributes = attributes(properties)?;
        if attributes.contains_key("specversion") {
            let draft = parse_attributes(attributes, body, tenant_id)?;
            return Ok(EventDraft { priority: priority.unwrap_or_default(), ..draft });
        }
        let named = match header(properties, "event-type")? {
            Some(name) => Some(name.into()),
            None => text(properties.kind()).map(Into::into).or_else(|| self.event_type.clone()),
        };
        let subject = header(properties, "subject")?;
        let beside = EventOverrides {
            idempotency_key: text(properties.message_id()),
            source: text(properties.app_id()),
            subject,
            priority,
        };
        let Some(event_type) = named else { return parse_document(body, &tenant_id, &beside) };
        let owned = |text: Option<&str>| text.map(Into::into);
        Ok(EventDraft {
            tenant_id,
            event_type,
            data: parse_raw_payload(body)?,
            idempotency_key: owned(beside.idempotency_key),
            source: owned(beside.source),
            subject: owned(beside.subject),
            metadata: None,
            priority: priority.unwrap_or_default(),
            only_webhook: None,
            edited: None,
            trace: None,
            hops: 0,
        })
    }
}

/// Returns the work of parsing a message, in the units of `redrive_engine::MAX_INLINE_COST_UNITS`. The frame size of the
/// broker bounds the headers, so only the body counts.
pub(super) fn parse_work(body: &[u8]) -> u64 {
    PARSE_WORK_PER_BYTE * body.len() as u64
}

/// Returns the priority of a message, or `None` for 0, which senders use by default.
fn message_priority(number: u8) -> Option<Priority> {
    match number {
        0 => None,
        1..=3 => Some(Priority::Low),
        4..=6 => Some(Priority::Normal),
        _ => Some(Priority::High),
    }
}

fn is_structured(properties: &BasicProperties) -> bool {
    let given = properties.content_type().as_ref().map(ShortString::as_str).unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(STRUCTURED)
}

/// Returns a property that is not empty.
fn text(property: &Option<ShortString>) -> Option<&str> {
    property.as_ref().map(ShortString::as_str).filter(|text| !text.is_empty())
}

fn headers(properties: &BasicProperties) -> impl Iterator<Item = (&str, &AMQPValue)> {
    let table = properties.headers().as_ref().map(|table| table.inner());
    table.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

/// Returns a header, which must be a string if it is present.
fn header<'a>(properties: &'a BasicProperties, wanted: &'static str) -> Result<Option<&'a str>, FieldError> {
    let Some((_, value)) = headers(properties).find(|(name, _)| *name == wanted) else { return Ok(None) };
    let text = match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str()),
        _ => None,
    };
    match text {
        Some("") => Ok(None),
        Some(text) => Ok(Some(text)),
        None => Err(FieldError::new(format!("header {wanted}"), "must be a UTF-8 string")),
    }
}

/// Returns the number of Redrive deliveries that a message has passed through, from a string or number header.
fn hops_of(properties: &BasicProperties) -> Result<u8, FieldError> {
    // AMQP header names are case-sensitive. The largest count wins, so that another spelling cannot hide it.
    let named = headers(properties).filter(|(name, _)| name.eq_ignore_ascii_case(hops::HEADER));
    named.map(|(_, value)| hop_count(value)).try_fold(0, |largest, count| Ok(largest.max(count?)))
}

fn hop_count(value: &AMQPValue) -> Result<u8, FieldError> {
    let number = match value {
        AMQPValue::ShortShortInt(number) => i64::from(*number),
        AMQPValue::ShortShortUInt(number) => i64::from(*number),
        AMQPValue::ShortInt(number) => i64::from(*number),
        AMQPValue::ShortUInt(number) => i64::from(*number),
        AMQPValue::LongInt(number) => i64::from(*number),
        AMQPValue::LongUInt(number) => i64::from(*number),
        AMQPValue::LongLongInt(number) => *number,
        AMQPValue::LongString(text) => return hops::parse(&String::from_utf8_lossy(text.as_bytes())),
        AMQPValue::ShortString(text) => return hops::parse(text.as_str()),
        _ => return Err(FieldError::new(format!("header {}", hops::HEADER), "must be a number")),
    };
    hops::parse(&number.to_string())
}

/// Returns the sender's trace. An invalid one is ignored.
fn trace(properties: &BasicProperties) -> Option<Box<Trace>> {
    let text = |name| header(properties, name).ok().flatten();
    Trace::from_headers(text("traceparent")?, text("tracestate").unwrap_or_default()).map(Box::new)
}

/// Returns the CloudEvents attributes in the headers, with the content type as `datacontenttype`.
fn attributes(properties: &BasicProperties) -> Result<BTreeMap<String, Value>, FieldError> {
    let mut found = BTreeMap::new();
    for (header, value) in headers(properties) {
        let Some(name) = CLOUDEVENTS.iter().find_map(|prefix| header.strip_prefix(prefix)) else { continue };
        let value = match value {
            AMQPValue::LongString(text) => {
                let text = std::str::from_utf8(text.as_bytes());
                Value::from(text.map_err(|_| FieldError::new(format!("header {header}"), "must be UTF-8"))?)
            }
            AMQPValue::ShortString(text) => text.as_str().into(),
            AMQPValue::Boolean(flag) => (*flag).into(),
            AMQPValue::ShortShortInt(number) => (*number).into(),
            AMQPValue::ShortShortUInt(number) => (*number).into(),
            AMQPValue::ShortInt(number) => (*number).into(),
            AMQPValue::ShortUInt(number) => (*number).into(),
            AMQPValue::LongInt(number) => (*number).into(),
            AMQPValue::LongUInt(number) => (*number).into(),
            AMQPValue::LongLongInt(number) => (*number).into(),
            _ => {
                return Err(FieldError::new(
                    format!("header {header}"),
                    "must be a string, a number or a boolean",
                ));
            }
        };
        found.insert(name.to_owned(), value);
    }
    if let (false, Some(content_type)) = (found.is_empty(), text(properties.content_type())) {
        found.insert("datacontenttype".to_owned(), content_type.into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use lapin::types::FieldTable;
    use proptest::prelude::*;

    use super::*;

    fn reading(event_type: Option<&str>) -> MessageParser {
        MessageParser { tenant_id: TenantId::parse("shop").unwrap(), event_type: event_type.map(Into::into) }
    }

    #[expect(clippy::needless_pass_by_value, reason = "shorter to call")]
    fn parse(properties: BasicProperties, body: &str) -> Result<EventDraft, AppError> {
        reading(None).parse(&properties, &Bytes::copy_from_slice(body.as_bytes()))
    }

    fn plain() -> BasicProperties {
        BasicProperties::default()
    }

    fn with(headers: &[(&str, &str)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), AMQPValue::LongString((*value).into()));
        }
        plain().with_headers(table)
    }

    #[test]
    fn hop_header_is_case_insensitive_and_largest_count_wins() {
        let body = r#"{"event_type": "a", "data": 1}"#;
        let hops = |headers: &[(&str, &str)]| parse(with(headers), body).map(|draft| draft.hops).ok();
        assert_eq!(hops(&[]), Some(0));
        for name in ["redrive-hops", "Redrive-Hops", "REDRIVE-HOPS"] {
            assert_eq!(hops(&[(name, "3")]), Some(3), "{name}");
            assert_eq!(hops(&[(name, "many")]), None, "{name}");
        }
        assert_eq!(hops(&[("Redrive-Hops", "0"), ("redrive-hops", "5")]), Some(5));
        assert_eq!(hops(&[("REDRIVE-HOPS", "6"), ("redrive-hops", "1")]), Some(6));
        assert_eq!(hops(&[("Redrive-Hops", "1"), ("redrive-hops", "x")]), None);
        let mut table = FieldTable::default();
        table.insert("ReDrive-Hops".into(), AMQPValue::LongInt(4));
        assert_eq!(parse(plain().with_headers(table), body).unwrap().hops, 4);
    }

    #[test]
    fn document_fields_override_message_properties() {
        let properties = || {
            let headers = with(&[("subject", "order 7")]);
            headers.with_message_id("m1".into()).with_app_id("shop-api".into()).with_priority(9)
        };
        let draft = parse(properties(), r#"{"event_type": "a.b", "data": {"n": 1.50}}"#).unwrap();
        assert_eq!(
            (&*draft.event_type, &*draft.data, draft.tenant_id.as_str()),
            ("a.b", &br#"{"n": 1.50}"#[..], "shop")
        );
        assert_eq!(
            (draft.idempotency_key.as_deref(), draft.source.as_deref()),
            (Some("m1"), Some("shop-api"))
        );
        assert_eq!((draft.subject.as_deref(), draft.priority), (Some("order 7"), Priority::High));
        let own = r#"{"event_type": "a.b", "data": 1, "idempotency_key": "k", "source": "s", "subject": "t",
                      "priority": "low", "tenant_id": "shop", "metadata": {"x": 1}}"#;
        let draft = parse(properties(), own).unwrap();
        assert_eq!((draft.idempotency_key.as_deref(), draft.source.as_deref()), (Some("k"), Some("s")));
        assert_eq!((draft.subject.as_deref(), draft.priority), (Some("t"), Priority::Low));
        assert_eq!(draft.metadata.as_deref(), Some(&br#"{"x": 1}"#[..]));
        let bare = parse(plain(), r#"{"event_type": "a.b", "data": null}"#).unwrap();
        assert_eq!((bare.idempotency_key, bare.source, bare.priority), (None, None, Priority::Normal));
    }

    #[test]
    fn message_with_event_type_has_payload_as_body() {
        let body = " {\"event_type\": \"inner\", \"data\": [1,  2]}\n";
        for (properties, event_type) in [
            (plain().with_type("by.type".into()), "by.type"),
            (with(&[("event-type", "by.header")]), "by.header"),
            (with(&[("event-type", "by.header")]).with_type("MyApp.Order, MyApp".into()), "by.header"),
            (with(&[("event-type", "")]).with_type("by.type".into()), "by.type"),
        ] {
            let draft = parse(properties.with_message_id("m1".into()), body).unwrap();
            assert_eq!((&*draft.event_type, &*draft.data), (event_type, body.trim().as_bytes()));
            assert_eq!(draft.idempotency_key.as_deref(), Some("m1"));
        }
        let by_source = reading(Some("by.source")).parse(&plain(), &Bytes::from("7")).unwrap();
        assert_eq!((&*by_source.event_type, &*by_source.data), ("by.source", &b"7"[..]));
        let named =
            reading(Some("by.source")).parse(&plain().with_type("own".into()), &Bytes::from("7")).unwrap();
        assert_eq!(&*named.event_type, "own");
    }

    #[test]
    fn cloudevents_are_parsed_in_both_modes() {
        let whole =
            r#"{"specversion": "1.0", "id": "7", "source": "/shop", "type": "a.b", "data": {"n": 1}}"#;
        let properties = plain().with_content_type("application/CloudEvents+json; charset=utf-8".into());
        let draft = parse(properties.with_message_id("m1".into()).with_priority(1), whole).unwrap();
        assert_eq!(
            (&*draft.event_type, &*draft.data, draft.priority),
            ("a.b", &br#"{"n": 1}"#[..], Priority::Low)
        );
        assert_eq!(draft.idempotency_key.as_deref(), Some("ce:/shop 7"), "its id is the idempotency key");
        for prefix in ["cloudEvents:", "cloudEvents_"] {
            let headers =
                [("specversion", "1.0"), ("id", "7"), ("source", "/shop"), ("type", "a.b"), ("team", "x")]
                    .map(|(name, value)| (format!("{prefix}{name}"), value));
            let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            let draft = parse(with(&headers).with_type("other".into()), "[1, 2]").unwrap();
            assert_eq!((&*draft.event_type, &*draft.data), ("a.b", &b"[1, 2]"[..]));
            assert_eq!(draft.idempotency_key.as_deref(), Some("ce:/shop 7"));
            let xml = parse(with(&headers).with_content_type("text/xml".into()), "1").unwrap_err();
            assert!(xml.to_string().contains("datacontenttype"), "{xml}");
        }
    }

    #[test]
    fn trace_is_taken_from_message_headers() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let body = r#"{"event_type": "a.b", "data": 1}"#;
        let draft = parse(with(&[("traceparent", parent), ("tracestate", "a=1")]), body).unwrap();
        assert_eq!(draft.trace, Trace::from_headers(parent, "a=1").map(Box::new));
        for wrong in ["", "nonsense"] {
            assert_eq!(parse(with(&[("traceparent", wrong)]), body).unwrap().trace, None);
        }
        let event = format!(
            r#"{{"specversion": "1.0", "id": "7", "source": "/s", "type": "a.b", "traceparent": "{parent}"}}"#
        );
        let draft = parse(plain().with_content_type(STRUCTURED.into()), &event).unwrap();
        assert_eq!(draft.trace, Trace::from_headers(parent, "").map(Box::new), "or by the extension");
    }

    #[test]
    fn invalid_message_error_names_the_problem() {
        for (properties, body, code, expected) in [
            (plain(), "", "invalid_json", ""),
            (plain(), "no json", "invalid_json", ""),
            (plain(), "[1]", "invalid_body", "JSON object"),
            (plain(), r#"{"data": 1}"#, "invalid_field", "event_type"),
            (plain(), r#"{"event_type": "a", "data": 1, "more": 2}"#, "invalid_field", "more: unknown field"),
            (
                plain(),
                r#"{"event_type": "a", "data": 1, "tenant_id": "other"}"#,
                "invalid_field",
                "tenant_id: must be shop",
            ),
            (plain().with_type("a.b".into()), "no json", "invalid_json", "not valid JSON"),
            (plain().with_type("a.b".into()), "", "invalid_json", "not valid JSON"),
            (with(&[("cloudEvents:specversion", "0.3")]), "1", "invalid_field", "specversion"),
            (plain().with_content_type(STRUCTURED.into()), "1", "invalid_json", "CloudEvent"),
        ] {
            let error = parse(properties, body).unwrap_err();
            assert!(
                error.code().name() == code && error.to_string().contains(expected),
                "{body}: {} {error}",
                error.code()
            );
        }
        let mut table = FieldTable::default();
        table.insert("event-type".into(), AMQPValue::LongInt(7));
        let error = parse(plain().with_headers(table), "1").unwrap_err();
        assert_eq!(error.to_string(), "header event-type: must be a UTF-8 string");
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_messages_never_panics(
            kind in proptest::option::of("\\PC{0,40}"), content_type in proptest::option::of("\\PC{0,40}"),
            names in proptest::collection::vec("(cloudEvents[:_])?[a-z-]{0,12}", 0..6),
            body in proptest::collection::vec(any::<u8>(), 0..60), priority: u8,
        ) {
            let mut table = FieldTable::default();
            for (n, name) in names.iter().enumerate() {
                let value = if n % 2 == 0 { AMQPValue::LongString(body.clone().into()) } else { AMQPValue::Void };
                table.insert(name.as_str().into(), value);
            }
            let mut properties = plain().with_headers(table).with_priority(priority);
            if let Some(kind) = kind.filter(|kind| kind.len() < 256) { properties = properties.with_type(kind.into()); }
            if let Some(kind) = content_type.filter(|kind| kind.len() < 256) { properties = properties.with_content_type(kind.into()); }
            let _ = reading(None).parse(&properties, &body.clone().into());
            let _ = reading(Some("a.b")).parse(&properties, &body.into());
        }
    }
}

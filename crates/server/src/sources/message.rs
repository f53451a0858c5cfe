//! What a message says: an event in one of four forms. `docs/ingestion.md` is for those who write them.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::{
    BasicProperties,
    types::{AMQPValue, ShortString},
};
use redrive_core::{
    Invalid, TenantId, delivery::lane::Priority, event::cloudevents::STRUCTURED, event::hops,
    event::trace::Trace,
};
use redrive_engine::Draft;
use serde_json::Value;

use crate::api::{Beside, Problem, bare_payload, binary_cloudevent, document, structured_cloudevent};

/// What the headers begin with that have the attributes of a CloudEvent, in either spelling of its AMQP binding.
const CLOUDEVENTS: [&str; 2] = ["cloudEvents:", "cloudEvents_"];

/// What a source says about all its messages.
pub(crate) struct Reading {
    /// Whose events they are.
    pub(crate) tenant: TenantId,
    /// The type of those that name none, whose body is then the payload.
    pub(crate) event_type: Option<Box<str>>,
}

impl Reading {
    /// The event of a message, in the trace that its headers name.
    pub(crate) fn read(&self, properties: &BasicProperties, body: &Bytes) -> Result<Draft, Problem> {
        let draft = self.event(properties, body)?;
        Ok(Draft { trace: trace(properties).or(draft.trace), hops: hops_of(properties)?, ..draft })
    }

    fn event(&self, properties: &BasicProperties, body: &Bytes) -> Result<Draft, Problem> {
        let tenant = self.tenant.clone();
        let priority = properties.priority().and_then(urgency);
        if is_structured(properties) {
            let draft = structured_cloudevent(body, body, tenant)?;
            return Ok(Draft { priority: priority.unwrap_or_default(), ..draft });
        }
        let attributes = attributes(properties)?;
        if attributes.contains_key("specversion") {
            let draft = binary_cloudevent(attributes, body, tenant)?;
            return Ok(Draft { priority: priority.unwrap_or_default(), ..draft });
        }
        let named = match header(properties, "event-type")? {
            Some(name) => Some(name.into()),
            None => text(properties.kind()).map(Into::into).or_else(|| self.event_type.clone()),
        };
        let subject = header(properties, "subject")?;
        let beside = Beside {
            idempotency_key: text(properties.message_id()),
            source: text(properties.app_id()),
            subject,
            priority,
        };
        let Some(event_type) = named else { return document(body, &tenant, &beside) };
        let owned = |text: Option<&str>| text.map(Into::into);
        Ok(Draft {
            tenant,
            event_type,
            data: bare_payload(body)?,
            idempotency_key: owned(beside.idempotency_key),
            source: owned(beside.source),
            subject: owned(beside.subject),
            metadata: None,
            priority: priority.unwrap_or_default(),
            only: None,
            trace: None,
            hops: 0,
        })
    }
}

/// How urgent a message is. 0 is what it has whose sender says nothing.
fn urgency(number: u8) -> Option<Priority> {
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

/// A property that says something.
fn text(property: &Option<ShortString>) -> Option<&str> {
    property.as_ref().map(ShortString::as_str).filter(|text| !text.is_empty())
}

fn headers(properties: &BasicProperties) -> impl Iterator<Item = (&str, &AMQPValue)> {
    let table = properties.headers().as_ref().map(|table| table.inner());
    table.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

/// A header that must be a text, if it is there.
fn header<'a>(properties: &'a BasicProperties, wanted: &'static str) -> Result<Option<&'a str>, Invalid> {
    let Some((_, value)) = headers(properties).find(|(name, _)| *name == wanted) else { return Ok(None) };
    let text = match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str()),
        _ => None,
    };
    match text {
        Some("") => Ok(None),
        Some(text) => Ok(Some(text)),
        None => Err(Invalid::new(format!("header {wanted}"), "must be a text in UTF-8")),
    }
}

/// How many deliveries of Redrive a message came through, as a text or a number.
fn hops_of(properties: &BasicProperties) -> Result<u8, Invalid> {
    // AMQP tells names apart by case. The largest count holds, so that another spelling does not hide it.
    let named = headers(properties).filter(|(name, _)| name.eq_ignore_ascii_case(hops::HEADER));
    named.map(|(_, value)| hop_count(value)).try_fold(0, |largest, count| Ok(largest.max(count?)))
}

fn hop_count(value: &AMQPValue) -> Result<u8, Invalid> {
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
        _ => return Err(Invalid::new(format!("header {}", hops::HEADER), "must be a number")),
    };
    hops::parse(&number.to_string())
}

/// The trace of whoever sent the message. What cannot be used is ignored.
fn trace(properties: &BasicProperties) -> Option<Box<Trace>> {
    let text = |name| header(properties, name).ok().flatten();
    Trace::of_caller(text("traceparent")?, text("tracestate").unwrap_or_default()).map(Box::new)
}

/// The attributes of a CloudEvent that are in the headers, and the type of its data.
fn attributes(properties: &BasicProperties) -> Result<BTreeMap<String, Value>, Invalid> {
    let mut found = BTreeMap::new();
    for (header, value) in headers(properties) {
        let Some(name) = CLOUDEVENTS.iter().find_map(|prefix| header.strip_prefix(prefix)) else { continue };
        let value = match value {
            AMQPValue::LongString(text) => {
                let text = std::str::from_utf8(text.as_bytes());
                Value::from(text.map_err(|_| Invalid::new(format!("header {header}"), "must be UTF-8"))?)
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
                return Err(Invalid::new(
                    format!("header {header}"),
                    "must be a text, a number or a boolean",
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

    fn reading(event_type: Option<&str>) -> Reading {
        Reading { tenant: TenantId::parse("shop").unwrap(), event_type: event_type.map(Into::into) }
    }

    #[expect(clippy::needless_pass_by_value, reason = "shorter to call")]
    fn read(properties: BasicProperties, body: &str) -> Result<Draft, Problem> {
        reading(None).read(&properties, &Bytes::copy_from_slice(body.as_bytes()))
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
    fn hop_header_is_read_in_any_case_and_the_largest_holds() {
        let body = r#"{"event_type": "a", "data": 1}"#;
        let hops = |headers: &[(&str, &str)]| read(with(headers), body).map(|draft| draft.hops).ok();
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
        assert_eq!(read(plain().with_headers(table), body).unwrap().hops, 4);
    }

    #[test]
    fn a_document_is_the_one_of_the_api_and_properties_fill_what_it_leaves_out() {
        let properties = || {
            let headers = with(&[("subject", "order 7")]);
            headers.with_message_id("m1".into()).with_app_id("shop-api".into()).with_priority(9)
        };
        let draft = read(properties(), r#"{"event_type": "a.b", "data": {"n": 1.50}}"#).unwrap();
        assert_eq!(
            (&*draft.event_type, &*draft.data, draft.tenant.as_str()),
            ("a.b", &br#"{"n": 1.50}"#[..], "shop")
        );
        assert_eq!(
            (draft.idempotency_key.as_deref(), draft.source.as_deref()),
            (Some("m1"), Some("shop-api"))
        );
        assert_eq!((draft.subject.as_deref(), draft.priority), (Some("order 7"), Priority::High));
        let own = r#"{"event_type": "a.b", "data": 1, "idempotency_key": "k", "source": "s", "subject": "t",
                      "priority": "low", "tenant_id": "shop", "metadata": {"x": 1}}"#;
        let draft = read(properties(), own).unwrap();
        assert_eq!((draft.idempotency_key.as_deref(), draft.source.as_deref()), (Some("k"), Some("s")));
        assert_eq!((draft.subject.as_deref(), draft.priority), (Some("t"), Priority::Low));
        assert_eq!(draft.metadata.as_deref(), Some(&br#"{"x": 1}"#[..]));
        let bare = read(plain(), r#"{"event_type": "a.b", "data": null}"#).unwrap();
        assert_eq!((bare.idempotency_key, bare.source, bare.priority), (None, None, Priority::Normal));
    }

    #[test]
    fn a_message_that_names_its_type_has_the_payload_as_its_body() {
        let body = " {\"event_type\": \"inner\", \"data\": [1,  2]}\n";
        for (properties, event_type) in [
            (plain().with_type("by.type".into()), "by.type"),
            (with(&[("event-type", "by.header")]), "by.header"),
            (with(&[("event-type", "by.header")]).with_type("MyApp.Order, MyApp".into()), "by.header"),
            (with(&[("event-type", "")]).with_type("by.type".into()), "by.type"),
        ] {
            let draft = read(properties.with_message_id("m1".into()), body).unwrap();
            assert_eq!((&*draft.event_type, &*draft.data), (event_type, body.trim().as_bytes()));
            assert_eq!(draft.idempotency_key.as_deref(), Some("m1"));
        }
        let by_source = reading(Some("by.source")).read(&plain(), &Bytes::from("7")).unwrap();
        assert_eq!((&*by_source.event_type, &*by_source.data), ("by.source", &b"7"[..]));
        let named =
            reading(Some("by.source")).read(&plain().with_type("own".into()), &Bytes::from("7")).unwrap();
        assert_eq!(&*named.event_type, "own");
    }

    #[test]
    fn cloudevents_come_in_both_modes() {
        let whole =
            r#"{"specversion": "1.0", "id": "7", "source": "/shop", "type": "a.b", "data": {"n": 1}}"#;
        let properties = plain().with_content_type("application/CloudEvents+json; charset=utf-8".into());
        let draft = read(properties.with_message_id("m1".into()).with_priority(1), whole).unwrap();
        assert_eq!(
            (&*draft.event_type, &*draft.data, draft.priority),
            ("a.b", &br#"{"n": 1}"#[..], Priority::Low)
        );
        assert_eq!(draft.idempotency_key.as_deref(), Some("ce:/shop 7"), "its id is what it is known by");
        for prefix in ["cloudEvents:", "cloudEvents_"] {
            let headers =
                [("specversion", "1.0"), ("id", "7"), ("source", "/shop"), ("type", "a.b"), ("team", "x")]
                    .map(|(name, value)| (format!("{prefix}{name}"), value));
            let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            let draft = read(with(&headers).with_type("other".into()), "[1, 2]").unwrap();
            assert_eq!((&*draft.event_type, &*draft.data), ("a.b", &b"[1, 2]"[..]));
            assert_eq!(draft.idempotency_key.as_deref(), Some("ce:/shop 7"));
            let xml = read(with(&headers).with_content_type("text/xml".into()), "1").unwrap_err();
            assert!(xml.detail.contains("datacontenttype"), "{}", xml.detail);
        }
    }

    #[test]
    fn a_message_is_in_the_trace_that_its_headers_name() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let body = r#"{"event_type": "a.b", "data": 1}"#;
        let draft = read(with(&[("traceparent", parent), ("tracestate", "a=1")]), body).unwrap();
        assert_eq!(draft.trace, Trace::of_caller(parent, "a=1").map(Box::new));
        for wrong in ["", "nonsense"] {
            assert_eq!(read(with(&[("traceparent", wrong)]), body).unwrap().trace, None);
        }
        let event = format!(
            r#"{{"specversion": "1.0", "id": "7", "source": "/s", "type": "a.b", "traceparent": "{parent}"}}"#
        );
        let draft = read(plain().with_content_type(STRUCTURED.into()), &event).unwrap();
        assert_eq!(draft.trace, Trace::of_caller(parent, "").map(Box::new), "or by the extension");
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        for (properties, body, code, says) in [
            (plain(), "", "invalid_json", ""),
            (plain(), "no json", "invalid_json", ""),
            (plain(), "[1]", "invalid_body", "JSON object"),
            (plain(), r#"{"data": 1}"#, "invalid_field", "event_type"),
            (
                plain(),
                r#"{"event_type": "a", "data": 1, "more": 2}"#,
                "invalid_field",
                "unknown field `more`",
            ),
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
            let problem = read(properties, body).unwrap_err();
            assert!(
                problem.code == code && problem.detail.contains(says),
                "{body}: {} {}",
                problem.code,
                problem.detail
            );
        }
        let mut table = FieldTable::default();
        table.insert("event-type".into(), AMQPValue::LongInt(7));
        let problem = read(plain().with_headers(table), "1").unwrap_err();
        assert_eq!(problem.detail, "header event-type: must be a text in UTF-8");
    }

    proptest! {
        #[test]
        fn nothing_that_is_sent_breaks_it(
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
            let _ = reading(None).read(&properties, &body.clone().into());
            let _ = reading(Some("a.b")).read(&properties, &body.into());
        }
    }
}

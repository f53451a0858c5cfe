//! A published event, and the body that endpoints receive for it.
//!
//! The payload is opaque bytes: validated once when it is published, never parsed or re-encoded afterwards.

pub mod cloudevents;
pub mod event_type;
pub mod hops;
pub mod json_nesting;
pub mod schema;
pub mod trace;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    delivery::lane::Priority,
    event::trace::Trace,
    field_error::{FieldError, check_plain_text},
    id::EventId,
    tenancy::TenantId,
    time::Time,
};

/// Maximum length of an idempotency key.
pub const MAX_IDEMPOTENCY_KEY: usize = 256;
/// Maximum length of `source` and of `subject`.
pub const MAX_SUBJECT_BYTES: usize = 512;
/// Maximum size of `metadata` as JSON.
pub const MAX_METADATA: usize = 4096;

/// A published event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Event id, sent to receivers as `webhook-id`.
    pub id: EventId,
    /// Tenant that owns the event.
    pub tenant_id: TenantId,
    /// Event type, such as `order.created`.
    pub event_type: Box<str>,
    /// The payload: JSON, byte for byte as published.
    pub data: Bytes,
    /// When it was published.
    pub timestamp: Time,
    /// The publisher's idempotency key; if `None`, the event's id is used.
    pub idempotency_key: Option<Box<str>>,
    /// Origin of the event, as given by the publisher.
    pub source: Option<Box<str>>,
    /// Object that the event is about, such as one order or one customer.
    pub subject: Option<Box<str>>,
    /// Priority of its deliveries.
    pub priority: Priority,
    /// The publisher's metadata, a JSON object; never sent to endpoints.
    pub metadata: Option<Bytes>,
    /// Trace that the event belongs to, if any. Boxed, since most events have none.
    pub trace: Option<Box<Trace>>,
    /// Number of Redrive deliveries that led to this event before it was published here; see [`hops`].
    pub hops: u8,
}

/// Reason of deliveries that were cancelled because the payload was erased.
pub const REASON_ERASED: &str = "the payload was erased";

/// Validates an idempotency key.
pub fn check_idempotency_key(key: &str) -> Result<(), FieldError> {
    if key.is_empty() {
        return Err(FieldError::new("idempotency_key", "must not be empty; omit it to get a generated key"));
    }
    check_plain_text("idempotency_key", key, MAX_IDEMPOTENCY_KEY)
}

impl Event {
    /// Validates everything about an event that does not depend on the server's settings.
    pub fn validate(&self) -> Result<(), FieldError> {
        event_type::validate(&self.event_type)?;
        if let Some(key) = &self.idempotency_key {
            check_idempotency_key(key)?;
        }
        for (field, text) in [("source", &self.source), ("subject", &self.subject)] {
            if let Some(text) = text {
                check_plain_text(field, text, MAX_SUBJECT_BYTES)?;
            }
        }
        match &self.metadata {
            Some(metadata) if metadata.len() > MAX_METADATA => {
                Err(FieldError::new("metadata", format!("must be at most {MAX_METADATA} bytes as JSON")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the key that identifies a repeated publish of this event.
    pub fn effective_key(&self) -> String {
        self.idempotency_key.as_deref().map_or_else(|| self.id.to_string(), str::to_owned)
    }

    /// Returns the hash that defines "the same body" for an idempotency key: type, subject, source and raw data.
    pub fn body_hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for text in [Some(&self.event_type), self.subject.as_ref(), self.source.as_ref()] {
            // Length prefixes separate adjacent texts, and distinguish a missing text from an empty one.
            hash.update(text.map_or(u64::MAX, |text| text.len() as u64).to_be_bytes());
            hash.update(text.map_or("", |text| text));
        }
        hash.update(&self.data);
        hash.finalize().into()
    }

    /// Returns whether the payload was erased. No other payload is empty: `null` has four bytes.
    pub fn is_erased(&self) -> bool {
        self.data.is_empty()
    }

    /// Estimated memory use of an event in addition to its payload and metadata.
    pub const MEMORY_OVERHEAD_BYTES: usize = 512;

    /// Returns the approximate memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.data.len() + self.metadata.as_ref().map_or(0, Bytes::len) + Self::MEMORY_OVERHEAD_BYTES
    }
}

/// Format of the request body. Stored with a delivery when it is created, so that later changes to the webhook
/// do not change pending bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PayloadFormat {
    /// `{"id","type","timestamp","data"}`, with `source` and `subject` if given.
    #[default]
    Envelope,
    /// The payload alone.
    Data,
    /// A CloudEvent, entirely in the body.
    Cloudevents,
    /// A CloudEvent with its payload in the body and its attributes in headers.
    CloudeventsBinary,
}

impl PayloadFormat {
    /// Returns the body of an event in this format: the same bytes every time.
    pub fn render(self, event: &Event) -> Bytes {
        match self {
            Self::Data | Self::CloudeventsBinary => event.data.clone(),
            Self::Envelope => envelope(event),
            Self::Cloudevents => cloudevents::structured(event),
        }
    }

    /// Returns the content type of the body.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Envelope | Self::Data | Self::CloudeventsBinary => "application/json",
            Self::Cloudevents => cloudevents::STRUCTURED,
        }
    }

    /// Returns the headers that belong to the format: the same every time.
    pub fn headers(self, event: &Event) -> Vec<(String, String)> {
        match self {
            Self::Envelope | Self::Data | Self::Cloudevents => Vec::new(),
            Self::CloudeventsBinary => cloudevents::headers(event),
        }
    }
}

fn envelope(event: &Event) -> Bytes {
    use std::io::Write;
    let mut body = Vec::with_capacity(event.data.len() + event.event_type.len() + 160);
    // Ids, event types and times contain nothing that JSON would escape.
    let head = write!(
        body,
        r#"{{"id":"{}","type":"{}","timestamp":"{}""#,
        event.id, event.event_type, event.timestamp
    );
    debug_assert!(head.is_ok(), "writing to memory does not fail");
    for (name, text) in [("source", &event.source), ("subject", &event.subject)] {
        if let Some(text) = text {
            let member = write!(body, r#","{name}":{}"#, serde_json::Value::from(&**text));
            debug_assert!(member.is_ok(), "writing to memory does not fail");
        }
    }
    body.extend_from_slice(br#","data":"#);
    body.extend_from_slice(&event.data);
    body.push(b'}');
    Bytes::from(body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event() -> Event {
        Event {
            id: EventId::new(Time::from_millis(1_700_000_000_000), &[1; 10]),
            tenant_id: TenantId::default(),
            event_type: "order.created".into(),
            data: Bytes::from_static(br#"{"b": 1,  "a":[1.0,2e3]}"#),
            timestamp: Time::from_millis(1_700_000_000_000),
            idempotency_key: None,
            source: None,
            subject: None,
            priority: Priority::Normal,
            metadata: None,
            trace: None,
            hops: 0,
        }
    }

    #[test]
    fn envelope_contains_payload_byte_for_byte() {
        let body = PayloadFormat::Envelope.render(&event());
        let expected = format!(
            r#"{{"id":"{}","type":"order.created","timestamp":"2023-11-14T22:13:20.000Z","data":{{"b": 1,  "a":[1.0,2e3]}}}}"#,
            event().id
        );
        assert_eq!(std::str::from_utf8(&body).unwrap(), expected);
        assert_eq!(PayloadFormat::Data.render(&event()), event().data);
    }

    #[test]
    fn body_hash_covers_type_subject_source_and_data() {
        let changed = |change: fn(&mut Event)| {
            let mut other = event();
            change(&mut other);
            other.body_hash() != event().body_hash()
        };
        assert!(!changed(|e| e.metadata = Some(Bytes::from_static(b"{}"))));
        assert!(!changed(|e| e.priority = Priority::High));
        assert!(!changed(|e| e.idempotency_key = Some("k".into())));
        assert!(changed(|e| e.data = Bytes::from_static(b"1")));
        assert!(changed(|e| e.event_type = "order.paid".into()));
        assert!(changed(|e| e.subject = Some("".into())));
        let at = |subject: Option<&str>, source: Option<&str>| {
            let texts = (subject.map(Into::into), source.map(Into::into));
            Event { subject: texts.0, source: texts.1, ..event() }.body_hash()
        };
        assert_ne!(at(Some("x"), None), at(None, Some("x")));
        assert_ne!(at(Some("ab"), Some("c")), at(Some("a"), Some("bc")));
    }

    #[test]
    fn event_texts_are_validated() {
        let refused = |change: fn(&mut Event)| {
            let mut event = event();
            change(&mut event);
            event.validate().unwrap_err().field
        };
        assert!(event().validate().is_ok());
        assert_eq!(refused(|e| e.event_type = "a b".into()), "event_type");
        assert_eq!(refused(|e| e.idempotency_key = Some("".into())), "idempotency_key");
        assert_eq!(refused(|e| e.idempotency_key = Some("k".repeat(257).into())), "idempotency_key");
        assert_eq!(refused(|e| e.subject = Some("a\r\nb".into())), "subject");
        assert_eq!(refused(|e| e.source = Some("s".repeat(513).into())), "source");
        assert_eq!(refused(|e| e.metadata = Some(vec![b' '; 4097].into())), "metadata");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn valid_idempotency_key_is_kept_and_fits_a_header(
            key in prop_oneof!["[ -~]{0,260}", "\\PC{0,90}", any::<String>()],
        ) {
            let mut event = event();
            event.idempotency_key = Some(key.as_str().into());
            if event.validate().is_ok() {
                prop_assert_eq!(event.effective_key(), key.as_str());
                prop_assert!((1..=MAX_IDEMPOTENCY_KEY).contains(&key.len()));
                prop_assert!(!key.chars().any(char::is_control));
            }
        }

        #[test]
        fn envelope_is_valid_json_for_any_text(source in "\\PC{0,40}", subject in ".{0,40}") {
            let mut event = event();
            event.source = Some(source.as_str().into());
            event.subject = Some(subject.as_str().into());
            let body: serde_json::Value = serde_json::from_slice(&PayloadFormat::Envelope.render(&event)).unwrap();
            prop_assert_eq!(body["source"].as_str(), Some(source.as_str()));
            prop_assert_eq!(body["subject"].as_str(), Some(subject.as_str()));
        }
    }
}

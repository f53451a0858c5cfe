//! What was published, and the body that endpoints receive for it.
//!
//! The payload is opaque bytes: checked once on the way in, never parsed or written anew afterwards.

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
    field_error::{Invalid, plain_text},
    id::EventId,
    tenancy::TenantId,
    time::Time,
};

/// The longest idempotency key.
pub const MAX_IDEMPOTENCY_KEY: usize = 256;
/// The longest `source` and `subject`.
pub const MAX_NAME: usize = 512;
/// The largest `metadata`, as JSON.
pub const MAX_METADATA: usize = 4096;

/// A published event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its id, shown to receivers as `webhook-id`.
    pub id: EventId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Its type, such as `order.created`.
    pub event_type: Box<str>,
    /// The payload: JSON, byte for byte as published.
    pub data: Bytes,
    /// When it was published.
    pub timestamp: Time,
    /// The key given by the publisher; none if one is to be made up (the event's id).
    pub idempotency_key: Option<Box<str>>,
    /// Where it came from, in the publisher's words.
    pub source: Option<Box<str>>,
    /// What it is about: one order, one customer.
    pub subject: Option<Box<str>>,
    /// How urgent its deliveries are.
    pub priority: Priority,
    /// The publisher's own notes, a JSON object; never sent to endpoints.
    pub metadata: Option<Bytes>,
    /// The trace it belongs to, if it belongs to one. Boxed: most have none.
    pub trace: Option<Box<Trace>>,
    /// How many deliveries of Redrive it came through before it was published here: see [`crate::hops`].
    pub hops: u8,
}

/// Why deliveries are called off whose payload was erased.
pub const ERASED: &str = "the payload was erased";

impl Event {
    /// Checks everything about an event that does not depend on the server's settings.
    pub fn validate(&self) -> Result<(), Invalid> {
        event_type::validate(&self.event_type)?;
        if let Some(key) = &self.idempotency_key {
            if key.is_empty() {
                return Err(Invalid::new(
                    "idempotency_key",
                    "must not be empty; leave it out to have one made",
                ));
            }
            plain_text("idempotency_key", key, MAX_IDEMPOTENCY_KEY)?;
        }
        for (field, text) in [("source", &self.source), ("subject", &self.subject)] {
            if let Some(text) = text {
                plain_text(field, text, MAX_NAME)?;
            }
        }
        match &self.metadata {
            Some(metadata) if metadata.len() > MAX_METADATA => {
                Err(Invalid::new("metadata", format!("must be at most {MAX_METADATA} bytes as JSON")))
            }
            _ => Ok(()),
        }
    }

    /// The key under which a repeat of this event is known.
    pub fn key(&self) -> String {
        self.idempotency_key.as_deref().map_or_else(|| self.id.to_string(), str::to_owned)
    }

    /// What "the same body" means for an idempotency key: type, subject, source and raw data.
    pub fn body_hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for text in [Some(&self.event_type), self.subject.as_ref(), self.source.as_ref()] {
            // Lengths keep neighbouring texts apart; a missing one is not an empty one.
            hash.update(text.map_or(u64::MAX, |text| text.len() as u64).to_be_bytes());
            hash.update(text.map_or("", |text| text));
        }
        hash.update(&self.data);
        hash.finalize().into()
    }

    /// Whether its payload was erased. No payload is empty otherwise: `null` has four bytes.
    pub fn is_erased(&self) -> bool {
        self.data.is_empty()
    }

    /// What an event weighs beside its bytes.
    pub const OVERHEAD: usize = 512;

    /// How many bytes of memory it holds on to, roughly.
    pub fn weight(&self) -> usize {
        self.data.len() + self.metadata.as_ref().map_or(0, Bytes::len) + Self::OVERHEAD
    }
}

/// What the request body looks like. Stamped on a delivery when it is made, so that later changes to the
/// webhook change no pending body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum PayloadFormat {
    /// `{"id","type","timestamp","data"}`, with `source` and `subject` where given.
    #[default]
    Envelope,
    /// The payload alone.
    Data,
    /// A CloudEvent, all of it in the body.
    Cloudevents,
    /// A CloudEvent, its payload in the body and the rest in headers.
    CloudeventsBinary,
}

impl PayloadFormat {
    /// The body for an event in this format: the same bytes every time.
    pub fn render(self, event: &Event) -> Bytes {
        match self {
            Self::Data | Self::CloudeventsBinary => event.data.clone(),
            Self::Envelope => envelope(event),
            Self::Cloudevents => cloudevents::structured(event),
        }
    }

    /// What the body is.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Envelope | Self::Data | Self::CloudeventsBinary => "application/json",
            Self::Cloudevents => cloudevents::STRUCTURED,
        }
    }

    /// The headers that belong to the format: the same every time.
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
    // Ids, event types and times hold nothing that JSON would escape.
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
            tenant: TenantId::default(),
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
    fn the_envelope_holds_the_payload_byte_for_byte() {
        let body = PayloadFormat::Envelope.render(&event());
        let expected = format!(
            r#"{{"id":"{}","type":"order.created","timestamp":"2023-11-14T22:13:20.000Z","data":{{"b": 1,  "a":[1.0,2e3]}}}}"#,
            event().id
        );
        assert_eq!(std::str::from_utf8(&body).unwrap(), expected);
        assert_eq!(PayloadFormat::Data.render(&event()), event().data);
    }

    #[test]
    fn the_same_body_is_the_same_type_subject_source_and_data() {
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
    fn texts_are_checked() {
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
        fn a_key_that_passes_is_kept_as_it_is_and_fits_a_header(
            key in prop_oneof!["[ -~]{0,260}", "\\PC{0,90}", any::<String>()],
        ) {
            let mut event = event();
            event.idempotency_key = Some(key.as_str().into());
            if event.validate().is_ok() {
                prop_assert_eq!(event.key(), key.as_str());
                prop_assert!((1..=MAX_IDEMPOTENCY_KEY).contains(&key.len()));
                prop_assert!(!key.chars().any(char::is_control));
            }
        }

        #[test]
        fn the_envelope_is_json_whatever_the_texts_are(source in "\\PC{0,40}", subject in ".{0,40}") {
            let mut event = event();
            event.source = Some(source.as_str().into());
            event.subject = Some(subject.as_str().into());
            let body: serde_json::Value = serde_json::from_slice(&PayloadFormat::Envelope.render(&event)).unwrap();
            prop_assert_eq!(body["source"].as_str(), Some(source.as_str()));
            prop_assert_eq!(body["subject"].as_str(), Some(subject.as_str()));
        }
    }
}

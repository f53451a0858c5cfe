//! Parsers of untrusted input for the fuzz targets in `fuzz/`. The server itself does not use this module.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Uri};
use bytes::Bytes;
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use redrive_core::{EventId, TenantId, Time, webhook::WebhookSpec};
use redrive_engine::EventDraft;
use redrive_store::{DeliveryCursor, EventFilter};
use serde_json::Value;

use crate::{
    api::{Cursor, DeliveryQuery, EventExportQuery, EventQuery, Query, TenantsQuery, WebhookInput},
    app::parse::{
        cloudevents::{parse_attributes, parse_structured},
        document::{EventOverrides, parse_document},
    },
    oidc::{
        Identity,
        id_token::{self, Expected},
        signature,
    },
    request::cookie,
    sources::message::MessageParser,
};

/// Parses a published document.
pub fn event_document(body: &Bytes) -> Option<EventDraft> {
    parse_document(body, &TenantId::default(), &EventOverrides::default()).ok()
}

/// Parses a CloudEvent in structured mode.
pub fn structured_cloudevent(body: &Bytes) -> Option<EventDraft> {
    parse_structured(body, body, TenantId::default()).ok()
}

/// Parses a CloudEvent in binary mode.
pub fn binary_cloudevent(attributes: BTreeMap<String, Value>, body: &Bytes) -> Option<EventDraft> {
    parse_attributes(attributes, body, TenantId::default()).ok()
}

/// A message from a queue.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The property `content_type`.
    pub content_type: String,
    /// The property `type`.
    pub kind: String,
    /// The property `message_id`.
    pub message_id: String,
    /// The property `priority`.
    pub priority: u8,
    /// Headers with string values.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Bytes,
}

/// Parses a message from a queue.
pub fn amqp_message(message: Message) -> Option<EventDraft> {
    let mut headers = FieldTable::default();
    for (name, value) in message.headers {
        headers.insert(name.as_str().into(), AMQPValue::LongString(value.into()));
    }
    let properties = BasicProperties::default()
        .with_content_type(message.content_type.as_str().into())
        .with_type(message.kind.as_str().into())
        .with_message_id(message.message_id.as_str().into())
        .with_priority(message.priority)
        .with_headers(headers);
    let parser = MessageParser { tenant_id: TenantId::default(), event_type: None };
    parser.parse(&properties, &message.body).ok()
}

/// Parses the query string of the event list into its filter and cursor.
pub fn event_query(uri: &Uri) -> Option<(EventFilter, Option<EventId>)> {
    let Query(query) = Query::<EventQuery>::read(uri).ok()?;
    let request = query.paging().request::<EventId>().ok()?;
    Some((query.filter(), request.after))
}

/// Parses a query string as each other list does. Returns how many of them accept it.
pub fn other_queries(uri: &Uri) -> usize {
    usize::from(Query::<DeliveryQuery>::read(uri).is_ok())
        + usize::from(Query::<EventExportQuery>::read(uri).is_ok())
        + usize::from(Query::<TenantsQuery>::read(uri).is_ok())
}

/// Parses a cursor of the delivery list and encodes it again.
pub fn delivery_cursor(text: &str) -> Option<String> {
    DeliveryCursor::read(text).map(|cursor| cursor.write())
}

/// Returns the session cookie of a request.
pub fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    cookie::session(headers, false)
}

/// A user who logged in with the identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The subject.
    pub subject: String,
    /// The name.
    pub name: String,
    /// The groups.
    pub groups: Vec<String>,
}

impl From<Identity> for User {
    fn from(Identity { subject, name, groups }: Identity) -> Self {
        Self { subject, name, groups }
    }
}

/// What an ID token must contain to be accepted.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedToken<'a> {
    /// The issuer.
    pub issuer: &'a str,
    /// The client.
    pub client_id: &'a str,
    /// The nonce.
    pub nonce: &'a str,
    /// The time of the login.
    pub now: Time,
}

/// Verifies an ID token with a key set, as a login does. Returns the verified claims.
pub fn id_token(key_set: &[u8], token: &str, expected: ExpectedToken<'_>) -> Option<Value> {
    signature::install();
    let keys = id_token::parse_keys(&serde_json::from_slice(key_set).ok()?)?;
    let ExpectedToken { issuer, client_id, nonce, now } = expected;
    let claims = id_token::verify(token, &keys, &Expected { issuer, client_id, nonce, now });
    claims.ok().map(Value::Object)
}

/// Reads the user from claims.
pub fn user_of_claims(claims: &[u8], groups_claim: &str, name_claim: Option<&str>) -> Option<User> {
    let claims = serde_json::from_slice(claims).ok()?;
    Identity::from_claims(&claims, groups_claim, name_claim).ok().map(User::from)
}

/// Parses a webhook document, without checking it against the operator's rules.
pub fn webhook_document(body: &[u8]) -> Option<WebhookSpec> {
    let input: WebhookInput = serde_json::from_slice(body).ok()?;
    input.new_spec().ok()
}

//! Parsers of untrusted input, for the fuzz targets in `fuzz/` alone. Nothing of the server uses this module.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Uri};
use bytes::Bytes;
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use redrive_core::{EventId, TenantId, webhook::WebhookSpec};
use redrive_engine::Draft;
use redrive_store::{DeliveryCursor, EventFilter};
use serde_json::Value;

use crate::{
    api::{
        self, Beside, Cursor, DeliveryQuery, EventExportQuery, EventQuery, Query, TenantsQuery, WebhookInput,
    },
    http::cookie,
    sources::message::Reading,
};

/// The event of a document that is published.
pub fn event_document(body: &Bytes) -> Option<Draft> {
    api::document(body, &TenantId::default(), &Beside::default()).ok()
}

/// The event of a CloudEvent in structured mode.
pub fn structured_cloudevent(body: &Bytes) -> Option<Draft> {
    api::structured_cloudevent(body, body, TenantId::default()).ok()
}

/// The event of a CloudEvent in binary mode.
pub fn binary_cloudevent(attributes: BTreeMap<String, Value>, body: &Bytes) -> Option<Draft> {
    api::binary_cloudevent(attributes, body, TenantId::default()).ok()
}

/// A message of a queue.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The property of this name.
    pub content_type: String,
    /// The property `type`.
    pub kind: String,
    /// The property of this name.
    pub message_id: String,
    /// The property of this name.
    pub priority: u8,
    /// Headers, each a text.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body.
    pub body: Bytes,
}

/// The event of a message of a queue.
pub fn amqp_message(message: Message) -> Option<Draft> {
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
    let reading = Reading { tenant: TenantId::default(), event_type: None };
    reading.read(&properties, &message.body).ok()
}

/// The filter of a listing's query string, and where its page begins, if the whole is valid.
pub fn event_query(uri: &Uri) -> Option<(EventFilter, Option<EventId>)> {
    let Query(query) = Query::<EventQuery>::read(uri).ok()?;
    let request = query.paging().request::<EventId>().ok()?;
    Some((query.filter(), request.after))
}

/// Reads a query string as every other kind of listing does. Returns how many kinds take it.
pub fn other_queries(uri: &Uri) -> usize {
    usize::from(Query::<DeliveryQuery>::read(uri).is_ok())
        + usize::from(Query::<EventExportQuery>::read(uri).is_ok())
        + usize::from(Query::<TenantsQuery>::read(uri).is_ok())
}

/// A cursor of a listing of deliveries, as it is written again.
pub fn delivery_cursor(text: &str) -> Option<String> {
    DeliveryCursor::read(text).map(|cursor| cursor.write())
}

/// The session's cookie among headers.
pub fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    cookie::session(headers)
}

/// The webhook of a document, not checked against the operator's rules.
pub fn webhook_document(body: &[u8]) -> Option<WebhookSpec> {
    let input: WebhookInput = serde_json::from_slice(body).ok()?;
    input.new_spec().ok()
}

//! What is published, and the result that the publisher gets.

use bytes::Bytes;
use redrive_core::{
    EventId, TenantId, Time, WebhookId, delivery::lane::Priority, event::trace::Trace,
    field_error::FieldError,
};
use redrive_store::StoreError;

/// What makes an event an edited copy of another one.
#[derive(Clone, Debug)]
pub struct EditedCopy {
    /// The original event.
    pub original_id: EventId,
    /// Its recipients, whatever they subscribe to; `None` for the webhooks that subscribe to it.
    pub webhook_ids: Option<Vec<WebhookId>>,
}

/// An event to be published.
#[derive(Clone, Debug)]
pub struct EventDraft {
    /// Tenant of the event.
    pub tenant_id: TenantId,
    /// Event type.
    pub event_type: Box<str>,
    /// Payload: JSON, kept byte for byte.
    pub data: Bytes,
    /// Idempotency key of the publisher.
    pub idempotency_key: Option<Box<str>>,
    /// Origin of the event.
    pub source: Option<Box<str>>,
    /// Subject of the event.
    pub subject: Option<Box<str>>,
    /// Metadata of the publisher, a JSON object.
    pub metadata: Option<Bytes>,
    /// Priority.
    pub priority: Priority,
    /// Only recipient, whatever it subscribes to; for test events.
    pub only_webhook: Option<WebhookId>,
    /// Set if the event is an edited copy of another one.
    pub edited: Option<EditedCopy>,
    /// Trace context of the publisher.
    pub trace: Option<Box<Trace>>,
    /// Number of Redrive deliveries that led to this event.
    pub hops: u8,
}

/// Result of a publish for the publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishReceipt {
    /// Event id; that of the original event for a duplicate.
    pub event_id: EventId,
    /// Time of publication.
    pub timestamp: Time,
    /// Position in the tenant's sequence; `None` for a duplicate.
    pub sequence_number: Option<i64>,
    /// Number of deliveries; `None` for a duplicate.
    pub deliveries: Option<usize>,
    /// Whether the idempotency key was used before for the same event.
    pub duplicate: bool,
}

/// Reason for rejecting an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// A field is invalid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// The event type is reserved for Redrive.
    #[error("event types starting with \"redrive.\" are reserved for Redrive")]
    Reserved,
    /// The payload violates the schema of its type.
    #[error(transparent)]
    SchemaViolation(FieldError),
    /// The tenant allows only registered event types, and this one is not registered.
    #[error(
        "the event type {0} is not registered, and this tenant accepts only registered types; register it with \
         POST /v1/event-types, or publish one that GET /v1/event-types lists"
    )]
    Unregistered(Box<str>),
    /// The event type is archived.
    #[error(
        "the event type {0} is archived; PATCH /v1/event-types/{0} with \"archived\": false to publish it again"
    )]
    Archived(Box<str>),
    /// The idempotency key belongs to another event.
    #[error("the idempotency key was used before for another event ({0})")]
    KeyReused(EventId),
    /// Checking the batch of this event costs too much.
    #[error(
        "checking the events of this batch against schemas and filters takes too much work; this event was not published: \
         publish it in a smaller batch"
    )]
    BatchTooCostly,
    /// The tenant does not exist.
    #[error("there is no such tenant")]
    NoTenant,
    /// The configuration of the tenant changed again after each fan-out or check: the event was not published.
    #[error("the configuration of the tenant changed repeatedly during the publish; retry")]
    ConfigKeepsChanging,
    /// The store failed: the event was not published.
    #[error(transparent)]
    Store(#[from] StoreError),
}

//! The catalogue of event types.

use redrive_core::{TenantId, Time};

/// An event type that a tenant has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventType {
    /// Its tenant.
    pub tenant_id: TenantId,
    /// Its name, such as `order.created`.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// Example payload: JSON as written.
    pub example: Option<String>,
    /// JSON Schema of its payloads, as written.
    pub schema: Option<String>,
    /// Whether it may no longer be published.
    pub archived: bool,
    /// Registration time.
    pub created_at: Time,
    /// Time of the last change.
    pub updated_at: Time,
}

/// An event type with the configuration version of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedType {
    /// The event type.
    pub event_type: EventType,
    /// The tenant's configuration version of its last change.
    pub revision: i64,
}

/// Result of registering an event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterResult {
    /// It is stored.
    Done,
    /// An event type of this name exists.
    Exists,
    /// The tenant has the maximum number of event types.
    LimitReached,
    /// There is no such tenant.
    NotFound,
}

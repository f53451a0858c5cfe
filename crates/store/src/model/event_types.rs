//! The catalogue of event types.

use redrive_core::{TenantId, Time};

/// An event type that a tenant has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventType {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its name, such as `order.created`.
    pub name: String,
    /// What it means.
    pub description: Option<String>,
    /// A payload to show: JSON, as it was written.
    pub example: Option<String>,
    /// What payloads have to look like: a JSON Schema, as it was written.
    pub schema: Option<String>,
    /// Whether it is not to be published any more.
    pub archived: bool,
    /// When it was registered.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

/// An event type with the version of its tenant at which it last changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedType {
    /// The event type.
    pub event_type: EventType,
    /// When it changed.
    pub revision: i64,
}

/// What became of registering an event type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// It is stored.
    Done,
    /// There is one of this name.
    Exists,
    /// There are as many as there may be.
    TooMany,
    /// There is no such tenant.
    Missing,
}

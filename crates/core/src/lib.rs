//! The decision logic of Redrive.
//!
//! Everything here is a pure function of its arguments: time and random values are passed in, and decisions are
//! returned as data. No async, no I/O, no clock, no global randomness. Exactly one place of this crate
//! makes each policy decision, and the engine applies it.

// Placed in this crate because all others depend on it: a build on Windows fails here first, with only this
// message.
#[cfg(windows)]
compile_error!(
    "Redrive does not support Windows: it needs Unix signals, file permissions and directory syncs. Build and run it on \
     Linux or macOS, for example in WSL 2 or in a container."
);

pub mod cluster;
pub mod delivery;
pub mod dispatch;
pub mod event;
pub mod external_id;
pub mod field_error;
pub mod id;
pub mod maintenance;
pub mod metadata;
pub mod notification;
pub mod protection;
pub mod routing;
pub mod search;
pub mod security;
pub mod statistics;
pub mod tenancy;
pub mod time;
pub mod webhook;

pub use cluster::node::Role;
pub use delivery::{DeadReason, DeliveryStatus, response::FailureCategory};
pub use field_error::FieldError;
pub use id::{AttemptId, AuditId, DeliveryId, EventId, KeyId, NotificationId, OperationId, WebhookId};
pub use tenancy::TenantId;
pub use time::Time;

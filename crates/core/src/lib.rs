//! The rules of Redrive, and nothing else.
//!
//! Everything here is a pure function of its arguments: the time and the roll of the dice come in from
//! outside, and what should happen goes out as data. No async, no I/O, no clock, no global randomness.
//! Each question of policy has its one home in this crate; the engine carries the answers out.

// In this crate because all others depend on it: a build on Windows fails here first, with this text alone.
#[cfg(windows)]
compile_error!(
    "Redrive does not support Windows: it needs Unix signals, file permissions and directory syncs. Build and run it on \
     Linux or macOS, for example in WSL 2 or in a container."
);

pub mod cluster;
pub mod delivery;
pub mod dispatch;
pub mod event;
pub mod field_error;
pub mod id;
pub mod maintenance;
pub mod notification;
pub mod protection;
pub mod routing;
pub mod security;
pub mod statistics;
pub mod tenancy;
pub mod time;
pub mod webhook;

pub use cluster::node::Role;
pub use delivery::response::FailureCategory;
pub use delivery::{DeadReason, DeliveryStatus};
pub use field_error::Invalid;
pub use id::{AttemptId, AuditId, DeliveryId, EventId, KeyId, NoticeId, OperationId, WebhookId};
pub use tenancy::TenantId;
pub use time::Time;

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

pub mod address;
pub mod backoff;
pub mod breaker;
pub mod caps;
pub mod clock_discipline;
pub mod cloudevents;
pub mod confidential;
pub mod decide;
pub mod delivery;
pub mod durability;
pub mod event;
pub mod event_type;
pub mod fairness;
pub mod file_access;
pub mod filter;
pub mod forwarded;
pub mod gate;
pub mod health;
pub mod home;
pub mod hops;
pub mod id;
pub mod invalid;
pub mod json_nesting;
pub mod key;
pub mod lane;
pub mod limiter;
pub mod liveness;
pub mod node;
pub mod notice;
pub mod operation;
pub mod outcome;
pub mod pace;
pub mod quota;
pub mod reach;
pub mod recovery;
pub mod repeats;
pub mod retention;
pub mod retry;
pub mod schema;
pub mod share;
pub mod signature;
pub mod status;
pub mod subscription;
pub mod tenant;
pub mod ticket;
pub mod time;
pub mod trace;
pub mod traffic;
pub mod vault;
pub mod verification;
pub mod visible_text;
pub mod webhook;

pub use delivery::{DeadReason, DeliveryStatus};
pub use id::{AttemptId, AuditId, DeliveryId, EventId, KeyId, NoticeId, OperationId, WebhookId};
pub use invalid::Invalid;
pub use node::Role;
pub use outcome::FailureCategory;
pub use tenant::TenantId;
pub use time::Time;

//! The engine of Redrive, as components. A module uses only those above it in this list:
//!
//! - leaves: `clock`, `ids`, `amqp` (connections to RabbitMQ), `mailer`, `spans`, `metrics`, `settings`, `supervision`
//!   (restarts services), `wakeups` (wakes them), `tenant_slots`, `dns_suspects`
//! - `cluster::membership`, `cluster::limit_shares`: this node among others, as the data path reads it
//! - `routing`: which webhooks receive an event, and how to send to them; `rollup_buffer` counts their attempts
//! - `coordinate`: what all senders of a webhook agree on, locally or through Redis
//! - `dispatch`: deliveries leased to this node, and whose turn it is; `occurrences` and `trace` describe them
//! - `send`: one attempt
//! - `record`: the only place that writes outcomes; releases leases and stores circuits
//! - `attempt_runner`: one delivery from its admission to its record
//! - `schedule`: how waiting deliveries come in; the only place that claims
//! - `publish`: checks, fan-out, commit
//! - `cluster`: heartbeats, rescue, the change feed, the clock's discipline
//! - `control`: what people do
//! - `services`: the other background services
//! - [`Engine`]: the facade; `assemble`: builds the components and starts the services
//!
//! The engine executes what `redrive-core` decides and `redrive-store` stores. Only `trace` and `publish::spans` create
//! spans, only `clock` reads a clock or generates random values.

pub mod amqp;
mod assemble;
mod attempt_runner;
pub mod clock;
mod cluster;
mod control;
mod coordinate;
mod dispatch;
mod dns_suspects;
mod engine;
mod ids;
mod mailer;
mod metrics;
mod occurrences;
mod publish;
mod record;
mod rollup_buffer;
mod routing;
mod schedule;
mod send;
mod services;
mod settings;
mod spans;
mod supervision;
mod tenant_slots;
#[cfg(test)]
mod testing;
mod trace;
mod wakeups;

pub use control::{
    ChangeError, CircuitCounts, DeliveryState, GateStatus, PastWebhooks, ReplayCount, ReplayError,
    ReplayReceipt, ReplayTo, WaitReason,
};
pub use coordinate::{
    AvailableTokens, CircuitAction,
    redis::{TokenReply, check_redis, check_redis_settings},
};
pub use dispatch::{Load, TenantInMemory};
pub use engine::Engine;
pub use mailer::{MailError, MailFuture, Mailed, Mailer, MailerHandle};
pub use metrics::{BreakdownSettings, InternalError, Metrics};
pub use publish::{
    EditedCopy, EventDraft, MAX_BATCH_COST_UNITS, MAX_INLINE_COST_UNITS, PublishError, PublishReceipt,
};
pub use routing::{ResolvedWebhook, Router, TenantContext};
pub use services::operations::{DryRunCount, OperationActionError};
pub use settings::{RedisSettings, Settings, TicketSettings};
pub use spans::{Span, SpanKind, Tracing, Value};
#[cfg(feature = "fault_injection")]
pub use supervision::FaultInjection;
pub use supervision::{EngineFailure, FaultPoint, Service, ServiceKind, ServiceName, ServiceStatus};

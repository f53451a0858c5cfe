//! The data path of Redrive, one module per stage, in this order:
//!
//! `publish` → `dispatch` → `gate` → `attempt` → `record` → `schedule` → `replay`
//!
//! Supporting modules: `coordination` decides admission for the gate, `circuit` applies circuit transitions,
//! `expiry` ends deliveries that waited too long, `operations` runs bulk operations, `rollup_buffer` counts,
//! `wait_reason` explains what a delivery waits for, `prune` deletes old data, `notify` notifies owners.
//!
//! `catalogue` holds the event types of a tenant and is checked before anything is stored. `checking` runs
//! expensive checks on a few threads, which tenants share through `tenant_slots`.
//!
//! With other nodes on the same store: `membership` sends heartbeats and rescues leases of dead nodes, `change_feed`
//! reads the changes of other nodes, `assignments` are webhooks that only one node sends to, `limit_shares`
//! divides common limits, `redis_sync` has Redis count them instead. `lease_auditor` recovers what this node owns
//! in the store and does not know in memory.
//!
//! `timekeeping` reads the reference time that `clock` follows, and shifts times that were scheduled by a wrong
//! clock.
//!
//! `assemble` starts and stops all of it. `services` supervises the background loops.
//!
//! The engine executes what `redrive-core` decides and `redrive-store` stores. Only `record` writes the
//! outcomes of leased deliveries; waiting deliveries are ended by `schedule` (cancelled) and `expiry`. Only `queue`
//! claims, only `trace` creates spans, only `clock` reads a clock or generates random values.

pub mod amqp;
mod assemble;
mod assignments;
mod attempt;
mod catalogue;
mod change_feed;
mod checking;
mod circuit;
pub mod clock;
mod coordination;
mod dispatch;
mod erase;
mod expiry;
mod gate;
mod ids;
mod lease_auditor;
mod limit_shares;
mod membership;
mod metrics;
mod notify;
mod operations;
mod probe;
mod prune;
mod publish;
mod queue;
mod record;
mod redis_sync;
mod registry;
mod release;
mod replay;
mod rollup_buffer;
mod schedule;
mod services;
mod settings;
mod tenancy;
mod tenant_slots;
mod timekeeping;
mod trace;
mod unsettled;
mod verification;
mod wait_reason;
mod webhooks;

use std::sync::{Arc, atomic::AtomicU64};

use parking_lot::Mutex;
use redrive_core::dispatch::retry_concurrency::RetryConcurrency;
use redrive_egress::Client;
use redrive_store::{Epoch, Store};
use tokio::sync::Notify;

pub use checking::{BatchState, MAX_BATCH_WORK, MAX_INLINE_WORK};
pub use circuit::CircuitCounts;
pub use coordination::{CircuitAction, redis::TokenReply};
pub use dispatch::{Load, TenantInMemory};
pub use metrics::{BreakdownSettings, InternalError, Metrics};
pub use notify::{MailError, MailFuture, Mailed, Mailer, MailerHandle};
pub use operations::{DryRunCount, OperationActionError};
pub use publish::{EventDraft, PublishError, PublishReceipt};
pub use queue::amqp::TicketSettings;
pub use registry::{Registry, ResolvedWebhook};
pub use replay::{ReplayError, ReplayTo};
#[cfg(feature = "fault_injection")]
pub use services::FaultInjection;
pub use services::{EngineFailure, FaultPoint, Service, ServiceKind, ServiceName, ServiceStatus};
pub use settings::{RedisSettings, Settings};
pub use tenancy::TenantContext;
pub use trace::{Span, SpanKind, Tracing, Value};
pub use wait_reason::{GateStatus, WaitReason};
pub use webhooks::ChangeError;

use crate::{
    clock::Clock,
    coordination::{LocalCoordinator, redis::RedisCoordinator},
    dispatch::Dispatcher,
    lease_auditor::LeaseTransfers,
    limit_shares::LimitShares,
    membership::Membership,
    notify::Notifier,
    operations::OperationRunner,
    queue::amqp::TicketBroker,
    record::UnrecordedOutcomes,
    release::Releaser,
    rollup_buffer::RollupBuffer,
    schedule::Wakeup,
    services::Supervisor,
    tenant_slots::TenantSlots,
};

/// The running data path. Cheap to clone; see [`Engine::start`], [`Engine::drain`] and [`Engine::stop`].
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    egress: Client,
    clock: Clock,
    settings: Settings,
    metrics: Metrics,
    registry: Registry,
    dispatcher: Dispatcher,
    coordination: Arc<LocalCoordinator>,
    /// Coordinator through Redis, which decides for all nodes; `None` without Redis.
    redis: Option<Arc<RedisCoordinator>>,
    /// Limit of concurrent retries.
    retry_concurrency: Mutex<RetryConcurrency>,
    /// Rollups that are not stored yet.
    rollups: RollupBuffer,
    /// Wakes the gate timer: a block may end sooner than planned.
    gate_wakeup: Notify,
    /// Wakes the expiry loop: a webhook may expire sooner than planned.
    expiry_wakeup: Notify,
    /// Slots for verification challenges.
    verifying: TenantSlots,
    /// Wakes the cancellation of deliveries of inactive webhooks.
    cancellation_wakeup: Notify,
    /// Bulk operations that this node runs.
    operations: OperationRunner,
    /// Slots of the threads for expensive checks.
    checking: TenantSlots,
    /// Largest cost of one check that ran on a runtime thread.
    largest_inline_work: AtomicU64,
    /// Pending notifications to owners.
    notifier: Notifier,
    /// Outcomes that the store has not accepted yet.
    unrecorded: UnrecordedOutcomes,
    /// Leases to be released.
    releaser: Releaser,
    /// Operations that may commit leases and have not handed them to the dispatcher yet.
    lease_transfers: Arc<LeaseTransfers>,
    /// Wakes the scheduler.
    scheduler_wakeup: Wakeup,
    /// Cluster membership of this node, with its current epoch.
    membership: Membership,
    /// This node's shares of common limits.
    shares: Arc<LimitShares>,
    /// Ticket publisher and consumer; `None` without a broker.
    tickets: Option<TicketBroker>,
    /// Runs the background services.
    supervisor: Arc<Supervisor>,
    runtime: tokio::runtime::Handle,
    /// Cancels requests in flight at the drain deadline.
    cancel_requests: tokio_util::sync::CancellationToken,
    /// Stops the loops.
    stop: tokio_util::sync::CancellationToken,
}

impl Engine {
    /// Returns the cache of webhooks and tenants.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Returns the clock that the engine uses.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// Returns the current epoch of this node.
    pub fn epoch(&self) -> Epoch {
        self.0.membership.current_epoch().epoch
    }

    /// Returns a token that is cancelled when the engine stops.
    pub fn stop_token(&self) -> tokio_util::sync::CancellationToken {
        self.0.stop.clone()
    }

    /// Starts a background service under the engine's supervision. It must end when [`Engine::stop_token`] is cancelled,
    /// and not before.
    pub fn run_service(&self, service: Service) {
        self.0.supervisor.run(service);
    }

    /// Returns the background services of this node, ordered by name.
    pub fn services(&self) -> Vec<ServiceStatus> {
        self.0.supervisor.statuses()
    }

    /// Returns why the engine cannot go on; `None` while it can.
    pub fn failure(&self) -> Option<EngineFailure> {
        self.0.supervisor.failure()
    }

    /// Waits until the engine cannot go on: the process should exit, and be restarted.
    pub async fn failed(&self) -> EngineFailure {
        self.0.supervisor.failed().await
    }

    /// Returns the means to cause panics in services.
    #[cfg(feature = "fault_injection")]
    pub fn fault_injection(&self) -> &FaultInjection {
        &self.0.supervisor.fault_injection
    }

    /// Makes the dispatcher panic while its state is locked.
    #[cfg(feature = "fault_injection")]
    pub fn panic_in_dispatcher(&self) {
        let inner = self.0.clone();
        self.0.runtime.spawn(async move { inner.dispatcher.panic_while_locked() });
    }

    /// Returns how many deliveries and requests this node holds, and their limits.
    pub fn load(&self) -> Load {
        self.0.dispatcher.load()
    }
}

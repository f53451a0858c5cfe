//! The data path of Redrive, one file per station, in this order:
//!
//! `publish` → `dispatch` → `gate` → `attempt` → `record` → `schedule` → `replay`
//!
//! Beside it: `coordination` is what the gate asks, `circuit` moves circuits, `expiry` ends what waited for too
//! long, `operations` are carried on in bulk, `health` counts, `waiting` says in words what a delivery waits for,
//! `prune` forgets what is old, `notify` tells owners.
//!
//! `catalogue` is what a tenant says about its event types, and is asked before anything is stored. `checking` does what
//! takes long on a few threads, which tenants share by `tenant_slots`.
//!
//! Among other nodes on the same store: `fleet` beats and takes over from the dead, `follow` learns what others
//! changed, `homes` are webhooks that one node alone sends to, `shares` divides what all use together,
//! `sharing` has Redis count it instead. `lease_auditor` recovers what the store says a node owns and memory does not know.
//!
//! `timekeeping` reads the clock that `clock` follows, and moves what was planned by a wrong time.
//!
//! The engine carries out what `redrive-core` decides and `redrive-store` remembers. Only `record` writes
//! outcomes, only `queue` claims, `trace` makes spans of it all, only `clock` reads a clock or rolls dice.

pub mod amqp;
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
mod settings;
mod supervisor;
mod tenancy;
mod tenant_slots;
mod timekeeping;
mod trace;
mod verification;
mod wait_reason;
mod webhooks;

use std::sync::{Arc, atomic::AtomicU64};

use parking_lot::Mutex;
use redrive_core::dispatch::retry_concurrency::Pace;
use redrive_egress::Client;
use redrive_store::{Epoch, Store};
use tokio::sync::Notify;

pub use checking::{BatchProgress, MAX_BATCH_WORK, MAX_INLINE_WORK};
pub use circuit::Circuits;
pub use coordination::{CircuitAction, redis::Token};
pub use dispatch::{Held, Load};
pub use metrics::{Fault, Metrics, Series};
pub use notify::{MailError, Mailed, Mailer, Mailing, Post};
pub use operations::{Survey, TurnError};
pub use publish::{Draft, PublishError, Receipt};
pub use queue::amqp::Tickets;
pub use registry::{Hook, Registry};
pub use replay::{ReplayError, ReplayTo};
pub use settings::{RedisSettings, Settings};
pub use tenancy::Tenancy;
pub use trace::{Span, SpanKind, Tracing, Value};
pub use wait_reason::{GateView, Waiting};
pub use webhooks::ChangeError;

use crate::{
    clock::Clock,
    coordination::{Local, redis::Shared},
    dispatch::Dispatch,
    lease_auditor::Transfers,
    limit_shares::Shares,
    membership::Fleet,
    notify::Notifying,
    operations::Operating,
    queue::amqp::Office,
    record::Kept,
    rollup_buffer::Health,
    schedule::Alarm,
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
    dispatch: Dispatch,
    coordination: Arc<Local>,
    /// What Redis decides for all nodes, where there is one.
    shared: Option<Arc<Shared>>,
    /// How many retries go at once.
    pace: Mutex<Pace>,
    /// How webhooks do, as far as it is not stored yet.
    health: Health,
    /// Something at the gate may move sooner than was planned.
    gate_alarm: Notify,
    /// A webhook may expire sooner than was planned.
    expiry_alarm: Notify,
    /// Slots for asking endpoints to echo a challenge.
    verifying: TenantSlots,
    /// The turn to sweep up after webhooks that have ended.
    sweeping: tokio::sync::Mutex<()>,
    /// The bulk operations that it carries on.
    operating: Operating,
    /// Threads for larger checks.
    checking: TenantSlots,
    /// The most work of one check on a runtime thread.
    largest_inline_work: AtomicU64,
    /// What there is to tell to owners.
    notifying: Notifying,
    /// Outcomes that the store has not taken yet.
    kept: Kept,
    /// Operations that may commit leases and have not handed them over yet.
    transfers: Arc<Transfers>,
    /// When the scheduler looks again.
    alarm: Alarm,
    /// This node among others, and the epoch that it has now.
    fleet: Fleet,
    /// Its part of what all use together.
    shares: Arc<Shares>,
    /// Its part in carrying tickets, where there is a broker.
    tickets: Option<Office>,
    runtime: tokio::runtime::Handle,
    /// Cuts requests off at the end of a drain.
    cut: tokio_util::sync::CancellationToken,
    /// Stops the loops.
    stop: tokio_util::sync::CancellationToken,
}

impl Engine {
    /// What is known of webhooks.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// The clock that everything here goes by.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// The store underneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// The epoch that this node has now.
    pub fn epoch(&self) -> Epoch {
        self.0.fleet.term().epoch
    }

    /// How full this node is.
    pub fn load(&self) -> Load {
        self.0.dispatch.load()
    }
}

//! The data path of Redrive, one file per station, in this order:
//!
//! `publish` → `dispatch` → `gate` → `attempt` → `record` → `schedule` → `replay`
//!
//! The engine carries out what `redrive-core` decides and `redrive-store` remembers. Only `record` writes
//! outcomes, only `queue` claims, only `clock` reads a clock or rolls dice.

mod attempt;
pub mod clock;
mod dispatch;
mod gate;
mod metrics;
mod publish;
mod queue;
mod record;
mod registry;
mod replay;
mod schedule;
mod settings;
mod supervisor;
mod webhooks;

use std::sync::Arc;

use redrive_egress::Client;
use redrive_store::{Epoch, Store};

pub use dispatch::{Load, Whereabouts};
pub use metrics::Metrics;
pub use publish::{Draft, PublishError, Receipt};
pub use registry::{Hook, Registry};
pub use replay::{ReplayError, ReplayTo};
pub use settings::Settings;
pub use webhooks::ChangeError;

use crate::{clock::Clock, dispatch::Dispatch, record::Kept, schedule::Alarm};

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
    /// Outcomes that the store has not taken yet.
    kept: Kept,
    /// When the scheduler looks again.
    alarm: Alarm,
    epoch: Epoch,
    /// This node's name and epoch, shown with every attempt.
    worker: Arc<str>,
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

    /// How full this node is.
    pub fn load(&self) -> Load {
        self.0.dispatch.load()
    }

    /// Where a delivery is, if this node has it in memory.
    pub fn whereabouts(
        &self,
        webhook: redrive_core::WebhookId,
        delivery: redrive_core::DeliveryId,
    ) -> Option<Whereabouts> {
        self.0.dispatch.whereabouts(webhook, delivery)
    }
}

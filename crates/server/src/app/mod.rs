//! What people can do with Redrive, authorised and checked. Every surface (API, CLI, pages) goes through
//! here and changes nothing in any other way.

pub mod auth;
pub mod deliveries;
pub mod error;
pub mod events;
mod metrics;
pub mod tenants;
pub mod webhooks;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use parking_lot::Mutex;
use prometheus_client::registry::Registry as Metrics;
use redrive_core::webhook::UrlRules;
use redrive_engine::Engine;
use redrive_store::Store;

pub use auth::{Caller, Keys, Scope};
pub use error::AppError;

/// What the use cases need to know of the settings.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Which URLs webhooks may have.
    pub urls: UrlRules,
    /// The largest payload.
    pub max_payload_bytes: usize,
}

/// The running application.
pub struct App {
    engine: Engine,
    keys: Keys,
    rules: Rules,
    metrics: Mutex<Metrics>,
    draining: AtomicBool,
}

impl App {
    /// Puts the application together.
    pub fn new(engine: Engine, keys: Keys, rules: Rules, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { engine, keys, rules, metrics: Mutex::new(metrics), draining: AtomicBool::new(false) })
    }

    /// The data path.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The keys that may come in.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The limits in force.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The figures of the data path.
    pub fn metrics(&self) -> &Mutex<Metrics> {
        &self.metrics
    }

    /// Says that no new work should be sent here.
    pub fn start_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Whether it is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    fn store(&self) -> &dyn Store {
        &**self.engine.store()
    }
}

//! Panics that tests cause in services. Compiled into test builds only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::FaultPoint;

/// Environment variable with the name of a service that panics whenever it starts.
const ENVIRONMENT_VARIABLE: &str = "FAULT_INJECTION_PANIC_IN";

/// Makes services of one engine panic.
#[derive(Clone, Default)]
pub struct FaultInjection {
    requests: Arc<Mutex<BTreeMap<String, Arc<Notify>>>>,
    points: Arc<Mutex<BTreeSet<FaultPoint>>>,
    /// A service that panics whenever it starts.
    always: Option<String>,
}

impl FaultInjection {
    pub(super) fn from_environment() -> Self {
        Self { always: std::env::var(ENVIRONMENT_VARIABLE).ok(), ..Self::default() }
    }

    /// Makes a service panic where it waits at this moment, or where it waits next.
    pub fn panic_in(&self, service: &str) {
        self.signal(service).notify_one();
    }

    /// Makes the next delivery that reaches a point panic.
    pub fn panic_at(&self, point: FaultPoint) {
        self.points.lock().insert(point);
    }

    /// Returns whether a requested panic has not happened yet.
    pub fn is_requested(&self, point: FaultPoint) -> bool {
        self.points.lock().contains(&point)
    }

    pub(super) fn panic_if_requested(&self, point: FaultPoint) {
        let is_requested = self.points.lock().remove(&point);
        assert!(!is_requested, "injected fault");
    }

    /// Panics as soon as a test asks for it.
    pub(super) async fn panic_when_requested(&self, service: &str) {
        if self.always.as_deref() != Some(service) {
            self.signal(service).notified().await;
        }
        panic!("injected fault");
    }

    fn signal(&self, service: &str) -> Arc<Notify> {
        self.requests.lock().entry(service.to_owned()).or_default().clone()
    }
}

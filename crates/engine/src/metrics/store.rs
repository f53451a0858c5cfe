//! Availability of the store as seen by this node: whether it accepts writes, and its consecutive failures.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

/// Whether the store accepts writes.
pub(crate) struct StoreHealth {
    up: Gauge,
    consecutive_failures: Gauge,
    /// No result was recorded since the last call of `take_idle`.
    quiet: AtomicBool,
}

impl StoreHealth {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let health = Self {
            up: Gauge::default(),
            consecutive_failures: Gauge::default(),
            quiet: AtomicBool::new(false),
        };
        health.up.set(1);
        registry.register(
            "webhook_store_up",
            "1 while the store accepts writes of this node",
            health.up.clone(),
        );
        registry.register(
            "redrive_store_consecutive_failures",
            "Consecutive failures of the store, as seen by this node",
            health.consecutive_failures.clone(),
        );
        health
    }

    /// Records a success. Returns true if the store was down before. Called for every delivery, so it writes only
    /// changes.
    pub(crate) fn record_success(&self) -> bool {
        if self.quiet.load(Relaxed) {
            self.quiet.store(false, Relaxed);
        }
        if self.consecutive_failures.get() != 0 {
            self.consecutive_failures.set(0);
        }
        self.up.get() == 0 && self.up.set(1) == 0
    }

    /// Records a failure. Returns true if the store was up before.
    pub(crate) fn record_failure(&self) -> bool {
        self.quiet.store(false, Relaxed);
        self.consecutive_failures.inc();
        self.up.set(0) == 1
    }

    /// Returns whether the store accepts writes.
    pub(crate) fn is_up(&self) -> bool {
        self.up.get() == 1
    }

    /// Returns whether no result was recorded since the last call.
    pub(crate) fn take_idle(&self) -> bool {
        self.quiet.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_resets_consecutive_failures() {
        let health = StoreHealth::new(&mut Registry::default());
        assert!(!health.record_success() && health.record_failure() && !health.record_failure());
        assert_eq!((health.up.get(), health.consecutive_failures.get()), (0, 2));
        assert!(health.record_success() && !health.record_success());
        assert_eq!((health.up.get(), health.consecutive_failures.get()), (1, 0));
    }

    #[test]
    fn idle_flag_resets_on_success_and_failure() {
        let health = StoreHealth::new(&mut Registry::default());
        assert!(!health.take_idle() && health.take_idle());
        health.record_success();
        assert!(!health.take_idle() && health.take_idle());
        health.record_failure();
        assert!(!health.take_idle());
    }
}

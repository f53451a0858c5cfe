//! How the store does, as this node finds it: whether it takes writes, and how often in a row it did not.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

/// Whether the store takes writes.
pub(crate) struct StoreHealth {
    up: Gauge,
    in_a_row: Gauge,
    /// Nothing was heard of it since somebody asked.
    quiet: AtomicBool,
}

impl StoreHealth {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let health = Self { up: Gauge::default(), in_a_row: Gauge::default(), quiet: AtomicBool::new(false) };
        health.up.set(1);
        registry.register(
            "webhook_store_up",
            "1 while the store takes writes of this node",
            health.up.clone(),
        );
        registry.register(
            "redrive_store_failures_in_a_row",
            "How often the store has failed this node since it last did what it was asked",
            health.in_a_row.clone(),
        );
        health
    }

    /// It did what it was asked. True if it did not before. Called for every delivery: it writes only what changes.
    pub(crate) fn works(&self) -> bool {
        if self.quiet.load(Relaxed) {
            self.quiet.store(false, Relaxed);
        }
        if self.in_a_row.get() != 0 {
            self.in_a_row.set(0);
        }
        self.up.get() == 0 && self.up.set(1) == 0
    }

    /// It did not. True if it did before.
    pub(crate) fn failed(&self) -> bool {
        self.quiet.store(false, Relaxed);
        self.in_a_row.inc();
        self.up.set(0) == 1
    }

    /// Whether nothing was heard of it since this was last asked.
    pub(crate) fn was_quiet(&self) -> bool {
        self.quiet.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_are_counted_and_forgiven() {
        let health = StoreHealth::new(&mut Registry::default());
        assert!(!health.works() && health.failed() && !health.failed());
        assert_eq!((health.up.get(), health.in_a_row.get()), (0, 2));
        assert!(health.works() && !health.works());
        assert_eq!((health.up.get(), health.in_a_row.get()), (1, 0));
    }

    #[test]
    fn whoever_asks_learns_whether_it_was_heard_of_meanwhile() {
        let health = StoreHealth::new(&mut Registry::default());
        assert!(!health.was_quiet() && health.was_quiet());
        health.works();
        assert!(!health.was_quiet() && health.was_quiet());
        health.failed();
        assert!(!health.was_quiet());
    }
}

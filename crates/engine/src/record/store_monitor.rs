//! Availability of the store as its writers see it: while it accepts nothing, nothing is sent.

use std::sync::Arc;

use crate::{dispatch::Dispatcher, metrics::Metrics, wakeups::Wakeups};

/// Suspends sending when the store fails, and starts the retries of what it did not accept.
pub(crate) struct StoreMonitor {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) wakeups: Arc<Wakeups>,
}

impl StoreMonitor {
    /// Records that the store did not accept a write.
    pub(crate) fn record_failure(&self) {
        if self.metrics.store.record_failure() {
            tracing::error!("store is not accepting writes; sending suspended");
        }
        self.dispatcher.queues.suspend_for_store();
        self.wakeups.outcome_retry.notify_one();
    }

    /// Records that the store accepted a write.
    pub(crate) fn record_success(&self) {
        self.metrics.store.record_success();
    }
}

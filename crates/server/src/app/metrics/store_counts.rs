//! Counts from the store, computed independently of scrapes: a scrape gets the last counts and waits only briefly
//! for newer ones. One count runs at a time, and slow counts run less often.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_engine::clock::monotonic_now;
use redrive_store::{StoreError, StoreStats};
use tokio::time::timeout;

use crate::app::App;

/// Number of dead letters above which a tenant is counted in `webhook_tenants_dlq_over_threshold`.
pub(super) const TENANT_DLQ_THRESHOLD: usize = 1_000;
/// Time that a scrape waits for a running count if older counts are available.
const SCRAPE_WAIT: Duration = Duration::from_millis(10);
/// Time that a scrape waits for a running count if no counts are available.
const FIRST_COUNT_TIMEOUT: Duration = Duration::from_secs(5);
/// Age after which counts are no longer reported.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Minimum time between two counts, as a multiple of the duration of the last one.
const MIN_IDLE_FACTOR: u32 = 20;

/// Counts from the store.
#[derive(Clone, Copy, Debug)]
pub(in crate::app) struct StoreCounts {
    pub(in crate::app) vitals: StoreStats,
    /// Due deliveries blocked by open circuits.
    pub(super) blocked: u64,
    /// Tenants with more dead letters than the threshold.
    pub(super) crowded: u64,
    /// Monotonic time of the count.
    at: Duration,
    /// Duration of the count.
    duration: Duration,
}

impl StoreCounts {
    fn age(&self) -> Duration {
        monotonic_now().saturating_sub(self.at)
    }
}

/// Last counts, and the lock that allows one count at a time.
#[derive(Default)]
pub(crate) struct StoreCounter {
    last: Mutex<Option<StoreCounts>>,
    turn: tokio::sync::Mutex<()>,
}

impl App {
    /// Returns current counts if they are available quickly, otherwise the last ones. Returns `None` if those are too
    /// old.
    pub(in crate::app) async fn store_counts(self: &Arc<Self>) -> Option<StoreCounts> {
        let last = *self.store_counter.last.lock();
        let fresh = |counted: &StoreCounts| counted.age() < MAX_AGE;
        let timeout = if last.as_ref().is_some_and(fresh) { SCRAPE_WAIT } else { FIRST_COUNT_TIMEOUT };
        let app = self.clone();
        // The count continues after the timeout; the next scrape uses its result.
        let _ = tokio::time::timeout(timeout, tokio::spawn(async move { app.count().await })).await;
        self.store_counter.last.lock().filter(fresh)
    }

    async fn count(&self) {
        let Ok(_guard) = self.store_counter.turn.try_lock() else {
            // Another scrape is counting: wait for its result.
            drop(self.store_counter.turn.lock().await);
            return;
        };
        let last = *self.store_counter.last.lock();
        if last.is_some_and(|last| last.age() < last.duration * MIN_IDLE_FACTOR) {
            return;
        }
        match timeout(MAX_AGE, self.query_store()).await {
            Ok(Ok(counted)) => *self.store_counter.last.lock() = Some(counted),
            Ok(Err(error)) => tracing::debug!(%error, "counting in the store failed"),
            Err(_) => tracing::debug!("counting in the store timed out"),
        }
    }

    async fn query_store(&self) -> Result<StoreCounts, StoreError> {
        let started = monotonic_now();
        let vitals = self.store().stats().await?;
        let blocked = self.engine.blocked_deliveries().await?;
        let crowded = self.store().count_tenants_with_dead_letters_over(TENANT_DLQ_THRESHOLD).await?;
        let at = monotonic_now();
        Ok(StoreCounts { vitals, blocked, crowded, at, duration: at.saturating_sub(started) })
    }
}

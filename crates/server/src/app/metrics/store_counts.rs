//! Counts from the store.

use std::{sync::Arc, time::Duration};

use redrive_store::{StoreError, StoreStats};

use super::cached_query::CachedQuery;
use crate::app::App;

/// Number of dead letters above which a tenant is counted in `webhook_tenants_dlq_over_threshold`.
pub(super) const TENANT_DLQ_THRESHOLD: usize = 1_000;
/// Age after which counts are no longer reported.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Time that a scrape waits for newer counts.
const SCRAPE_WAIT: Duration = Duration::from_millis(10);

/// Counts from the store.
#[derive(Clone, Copy, Debug)]
pub(in crate::app) struct StoreCounts {
    pub(in crate::app) vitals: StoreStats,
    /// Due deliveries blocked by open circuits.
    pub(super) blocked: u64,
    /// Tenants with more dead letters than the threshold.
    pub(super) crowded: u64,
}

/// Counts the store.
pub(crate) struct StoreCounter(CachedQuery<StoreCounts>);

impl Default for StoreCounter {
    fn default() -> Self {
        Self(CachedQuery::new(MAX_AGE, SCRAPE_WAIT))
    }
}

impl App {
    /// Returns current counts if they are available quickly, otherwise the last ones. Returns `None` if those are too
    /// old.
    pub(in crate::app) async fn store_counts(self: &Arc<Self>) -> Option<StoreCounts> {
        let app = self.clone();
        let counted = self.store_counter.0.get(async move { app.query_store().await });
        counted.await.map(|counted| counted.value)
    }

    async fn query_store(&self) -> Result<StoreCounts, StoreError> {
        let vitals = self.store().stats().await?;
        let blocked = self.engine.blocked_deliveries().await?;
        let crowded = self.store().count_tenants_with_dead_letters_over(TENANT_DLQ_THRESHOLD).await?;
        Ok(StoreCounts { vitals, blocked, crowded })
    }
}

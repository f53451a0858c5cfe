//! Prunes expired idempotency keys and old bulk operations, and creates partitions ahead of time.

use std::{sync::Arc, time::Duration};

use redrive_store::{Maintenance, Operations};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// Idempotency keys pruned per step.
const PRUNE_BATCH_SIZE: usize = 2_000;
/// Retention of ended bulk operations.
const OPERATION_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// Interval between runs.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// How far ahead the store creates partitions, and the number of runs between two checks for that.
pub(crate) const PARTITION_HORIZON: Duration = Duration::from_secs(40 * 24 * 3600);
const PARTITION_CHECK_EVERY: usize = 60;

/// Keeps the tables that no tenant sees small.
pub(crate) struct MaintenanceService {
    pub(crate) maintenance: Arc<dyn Maintenance>,
    pub(crate) operations: Arc<dyn Operations>,
    pub(crate) clock: Clock,
    pub(crate) stop: CancellationToken,
}

impl MaintenanceService {
    /// Prunes expired idempotency keys and old bulk operations, and creates partitions ahead of time.
    pub(crate) async fn run(self: Arc<Self>) {
        for pass in 1.. {
            tokio::select! {
                () = tokio::time::sleep(MAINTENANCE_INTERVAL) => {}
                () = self.stop.cancelled() => return,
            }
            if pass % PARTITION_CHECK_EVERY == 1
                && let Err(error) =
                    self.maintenance.ensure_partitions(self.clock.now() + PARTITION_HORIZON).await
            {
                tracing::warn!(%error, "creating partitions for later events failed; will retry");
            }
            while matches!(
                self.maintenance.prune_idempotency_keys(self.clock.confirmed_now(), PRUNE_BATCH_SIZE).await,
                Ok(PRUNE_BATCH_SIZE)
            ) {
                tokio::task::yield_now().await;
            }
            let old = self.clock.confirmed_now().saturating_sub(OPERATION_RETENTION);
            if let Err(error) = self.operations.prune_operations(old, PRUNE_BATCH_SIZE).await {
                tracing::warn!(%error, "pruning old bulk operations failed; will retry");
            }
        }
    }
}

//! Stores the archive outbox in the archive; runs on the leader. After an interruption, the next run stores the
//! same objects under the same names.

use std::{sync::Arc, time::Duration};

use redrive_core::Time;
use redrive_engine::Engine;
use tokio_util::sync::CancellationToken;

use super::{Archive, ArchiveError};

/// Interval at which the outbox is checked for enough data for an object.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Time, by the engine's clock, after which data is stored even if it is less than `MIN_OBJECT_BYTES`.
const MAX_OBJECT_AGE: Duration = Duration::from_secs(3600);
/// Minimum and maximum size of an object: few objects, but each small enough to be read into memory.
const MIN_OBJECT_BYTES: usize = 4 << 20;
const MAX_OBJECT_BYTES: usize = 16 << 20;

impl Archive {
    /// Stores the outbox periodically until the server stops.
    pub(crate) async fn run_archiver(self: Arc<Self>, engine: Engine, stop: CancellationToken) {
        let mut last = Time::from_millis(0);
        loop {
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
            if !engine.is_leader() {
                continue;
            }
            let now = engine.clock().now();
            let is_time = now.duration_since(last) >= MAX_OBJECT_AGE;
            match self.store_pending(&engine, if is_time { 0 } else { MIN_OBJECT_BYTES }, &stop).await {
                Ok(()) if is_time => last = now,
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%error, "writing to the archive failed; pruned data stays in the outbox, will retry")
                }
            }
        }
    }

    async fn store_pending(
        &self,
        engine: &Engine,
        min: usize,
        stop: &CancellationToken,
    ) -> Result<(), ArchiveError> {
        let failed = |error: redrive_store::StoreError| ArchiveError::Storage(error.to_string());
        while !stop.is_cancelled() {
            let Some(object) = engine.store().next_object(min, MAX_OBJECT_BYTES).await.map_err(failed)?
            else {
                break;
            };
            let (name, events) = (object.name.clone(), object.holds.events);
            self.put(object).await?;
            engine.store().object_stored(name.clone()).await.map_err(failed)?;
            tracing::info!(name, events, "archive object stored");
        }
        Ok(())
    }
}

//! Storing what waits for the archive, by the node that prunes. Whoever is interrupted is followed by somebody who
//! stores the same objects under the same names.

use std::time::Duration;

use redrive_core::Time;
use redrive_engine::Engine;
use tokio_util::sync::CancellationToken;

use super::{Archive, ArchiveError};

/// How often it is looked whether there is enough for an object.
const LOOK: Duration = Duration::from_secs(5);
/// What is there is stored after so long, by the engine's clock, however little it is.
const AT_LEAST_EVERY: Duration = Duration::from_secs(3600);
/// Bytes of an object: enough to be worth one, and few enough to be read at once.
const LEAST: usize = 4 << 20;
const MOST: usize = 16 << 20;

impl Archive {
    /// Stores whatever waits, until the server stops.
    pub(crate) async fn keep(self, engine: Engine, stop: CancellationToken) {
        let mut last = Time::from_millis(0);
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = stop.cancelled() => return,
            }
            if !engine.is_first() {
                continue;
            }
            let now = engine.clock().now();
            let is_time = now.since(last) >= AT_LEAST_EVERY;
            match self.store_all(&engine, if is_time { 0 } else { LEAST }, &stop).await {
                Ok(()) if is_time => last = now,
                Ok(()) => {}
                Err(error) => tracing::warn!(%error, "what is forgotten waits in the store for the archive"),
            }
        }
    }

    async fn store_all(
        &self,
        engine: &Engine,
        least: usize,
        stop: &CancellationToken,
    ) -> Result<(), ArchiveError> {
        let failed = |error: redrive_store::StoreError| ArchiveError::Storage(error.to_string());
        while !stop.is_cancelled() {
            let Some(object) = engine.store().next_object(least, MOST).await.map_err(failed)? else { break };
            let (name, events) = (object.name.clone(), object.holds.events);
            self.put(object).await?;
            engine.store().object_stored(name.clone()).await.map_err(failed)?;
            tracing::info!(name, events, "stored in the archive");
        }
        Ok(())
    }
}

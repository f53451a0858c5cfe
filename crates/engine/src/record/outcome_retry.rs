//! Records outcomes again that the store did not accept, once it responds.

use std::{sync::Arc, time::Duration};

use redrive_store::{Health, StoreError};

use super::{RECORD_RETRY_INTERVAL, Recorder};
use crate::supervision::{EngineFailure, Supervisor};

/// Interval between pings of an idle store, and their timeout.
const STORE_PING_INTERVAL: Duration = Duration::from_secs(10);

/// Watches a failed store, and records the kept outcomes when it recovers.
pub(crate) struct OutcomeRetrier {
    pub(crate) store: Arc<dyn Health>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) supervisor: Arc<Supervisor>,
}

impl OutcomeRetrier {
    /// Pings the store if no result was recorded for a while; otherwise an outage would be noticed only by the next
    /// event.
    async fn ping_store_if_idle(&self) {
        if !self.recorder.metrics.store.take_idle() {
            return;
        }
        match tokio::time::timeout(STORE_PING_INTERVAL, self.store.ping()).await {
            Ok(Ok(())) => {}
            _ => self.recorder.monitor.record_failure(),
        }
    }

    /// After a store failure, pings until it responds, then records the kept outcomes and resumes sending.
    pub(crate) async fn run(self: Arc<Self>) {
        // A former run that failed may have taken the wake-up.
        self.recorder.wakeups.outcome_retry.notify_one();
        loop {
            tokio::select! {
                () = self.recorder.wakeups.outcome_retry.notified() => {}
                () = tokio::time::sleep(STORE_PING_INTERVAL) => {
                    self.ping_store_if_idle().await;
                    continue;
                }
                () = self.recorder.stop.cancelled() => return,
            }
            while let Err(error) = self.store.ping().await {
                if let StoreError::WriterEnded(_) = error {
                    // Outcomes cannot be recorded any more, so there is nothing to drain.
                    self.supervisor.fail(EngineFailure { reason: error.to_string(), can_drain: false });
                }
                if self.recorder.stop.is_cancelled() {
                    return;
                }
                self.recorder.metrics.store.record_failure();
                tokio::time::sleep(RECORD_RETRY_INTERVAL).await;
            }
            if self.recorder.metrics.store.record_success() {
                tracing::info!("store is accepting writes again; sending resumed");
            }
            // One by one, so that a panic loses at most one of them. Those that fail again are added at the end.
            let count = self.recorder.unrecorded.len();
            for _ in 0..count {
                let Some(pending) = self.recorder.unrecorded.pop_first() else { break };
                self.recorder.submit(pending);
            }
            self.recorder.dispatcher.resume_after_store_recovery();
            self.recorder.wakeups.claims.wake();
            // Limits the rate of retries if the store accepts pings but no outcomes.
            tokio::time::sleep(RECORD_RETRY_INTERVAL).await;
        }
    }
}

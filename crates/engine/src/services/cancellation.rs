//! Cancels the waiting deliveries of inactive webhooks.

use std::{sync::Arc, time::Duration};

use redrive_core::DeliveryStatus;
use redrive_store::{BatchProgress, Cancellations};
use tokio_util::sync::CancellationToken;

use crate::{clock::Clock, rollup_buffer::RollupBuffer, wakeups::Wakeups};

/// Delay after a failure of the store.
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Deliveries cancelled per step.
const BATCH_SIZE: usize = 1_000;

/// Cancels what waits for webhooks that receive no more events.
pub(crate) struct Cancellation {
    pub(crate) store: Arc<dyn Cancellations>,
    pub(crate) clock: Clock,
    pub(crate) rollups: Arc<RollupBuffer>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
}

impl Cancellation {
    /// Cancels the waiting deliveries of inactive webhooks whenever there are some, until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            self.cancel_for_inactive_webhooks().await;
            tokio::select! {
                () = self.wakeups.cancellation.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Cancels the waiting deliveries of inactive webhooks, in small steps.
    async fn cancel_for_inactive_webhooks(&self) {
        loop {
            let inactive_webhooks = match self.store.webhooks_to_cancel_for().await {
                Ok(inactive_webhooks) if inactive_webhooks.is_empty() => return,
                Ok(inactive_webhooks) => inactive_webhooks,
                Err(_) if self.stop.is_cancelled() => return,
                Err(_) => {
                    tokio::time::sleep(STORE_RETRY_DELAY).await;
                    continue;
                }
            };
            for webhook in inactive_webhooks {
                let reason = webhook.state.cancel_reason().unwrap_or_default();
                let now = self.clock.now();
                match self.store.cancel_pending(webhook.id, reason.to_owned(), now, BATCH_SIZE).await {
                    Ok(BatchProgress { changed: cancelled, .. }) => {
                        self.rollups.record_ended(
                            &webhook.tenant_id,
                            DeliveryStatus::Cancelled,
                            cancelled as u64,
                            now,
                        );
                    }
                    Err(error) => {
                        tracing::warn!(webhook_id = %webhook.id, %error, "cancelling pending deliveries failed; will retry");
                        tokio::time::sleep(STORE_RETRY_DELAY).await;
                    }
                }
            }
            if self.stop.is_cancelled() {
                return;
            }
        }
    }
}

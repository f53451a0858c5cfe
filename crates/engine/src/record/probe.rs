//! Guard of a probe of a half-open circuit.

use std::sync::Arc;

use super::WebhookRuntimeUpdater;
use crate::routing::ResolvedWebhook;

/// A probe of a half-open circuit that was granted. Dropped without a result, it is returned, so that the circuit can
/// grant another.
pub(crate) struct Probe {
    runtime_updater: Arc<WebhookRuntimeUpdater>,
    webhook: Arc<ResolvedWebhook>,
    id: u64,
    ended: bool,
}

impl Probe {
    pub(crate) fn new(
        runtime_updater: &Arc<WebhookRuntimeUpdater>,
        webhook: &Arc<ResolvedWebhook>,
        id: u64,
    ) -> Self {
        Self { runtime_updater: runtime_updater.clone(), webhook: webhook.clone(), id, ended: false }
    }

    /// Returns the probe's id in its circuit.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Ends the guard: the result of the probe was reported.
    pub(crate) fn mark_reported(mut self) {
        self.ended = true;
    }

    /// Returns a probe that was not sent.
    pub(crate) async fn return_unused(mut self) {
        self.ended = true;
        self.runtime_updater.return_probe(&self.webhook, self.id).await;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let (runtime_updater, webhook, id) = (self.runtime_updater.clone(), self.webhook.clone(), self.id);
        self.runtime_updater.tokio.spawn(async move { runtime_updater.return_probe(&webhook, id).await });
    }
}

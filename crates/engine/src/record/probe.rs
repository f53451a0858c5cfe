//! Guard of a probe of a half-open circuit.

use std::sync::Arc;

use super::Circuits;
use crate::routing::ResolvedWebhook;

/// A probe of a half-open circuit that was granted. Dropped without a result, it is returned, so that the circuit can
/// grant another.
pub(crate) struct Probe {
    circuits: Arc<Circuits>,
    webhook: Arc<ResolvedWebhook>,
    id: u64,
    ended: bool,
}

impl Probe {
    pub(crate) fn new(circuits: &Arc<Circuits>, webhook: &Arc<ResolvedWebhook>, id: u64) -> Self {
        Self { circuits: circuits.clone(), webhook: webhook.clone(), id, ended: false }
    }

    /// Returns the probe's id in its circuit.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Ends the guard: the result of the probe was reported.
    pub(crate) fn reported(mut self) {
        self.ended = true;
    }

    /// Returns a probe that was not sent.
    pub(crate) async fn return_unused(mut self) {
        self.ended = true;
        self.circuits.return_probe(&self.webhook, self.id).await;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let (circuits, webhook, id) = (self.circuits.clone(), self.webhook.clone(), self.id);
        self.circuits.runtime.spawn(async move { circuits.return_probe(&webhook, id).await });
    }
}

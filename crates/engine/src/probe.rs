//! Guard of a probe of a half-open circuit.

use std::sync::Arc;

use redrive_core::protection::breaker::CallOutcome;

use crate::{Inner, coordination::AttemptReport, notify::occurrences, registry::ResolvedWebhook};

/// A probe of a half-open circuit that was granted. Dropped without a result, it is returned, so that the circuit can
/// grant another.
pub(crate) struct Probe {
    inner: Arc<Inner>,
    webhook: Arc<ResolvedWebhook>,
    id: u64,
    ended: bool,
}

impl Probe {
    pub(crate) fn new(inner: &Arc<Inner>, webhook: &Arc<ResolvedWebhook>, id: u64) -> Self {
        Self { inner: inner.clone(), webhook: webhook.clone(), id, ended: false }
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
        self.inner.return_probe(&self.webhook, self.id).await;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let (inner, webhook, id) = (self.inner.clone(), self.webhook.clone(), self.id);
        self.inner.runtime.spawn(async move { inner.return_probe(&webhook, id).await });
    }
}

impl Inner {
    /// Reports that a probe was not sent, and applies what follows.
    async fn return_probe(self: &Arc<Self>, webhook: &Arc<ResolvedWebhook>, id: u64) {
        let report =
            AttemptReport { call: CallOutcome::Ignored, probe: Some(id), success: None, pause_until: None };
        let changed = self.report_attempt(webhook, report).await;
        self.apply_report_effects(webhook, &changed);
        if let Some(change) = changed.circuit {
            let occurrence = occurrences::circuit_transition(&change);
            self.persist_circuit_later(change.tenant_id, change.webhook_id, change.saved, occurrence);
        }
    }
}

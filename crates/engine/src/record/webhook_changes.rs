//! Changes of webhooks and what they mean for deliveries: those of an inactive webhook end, those of a paused one are
//! parked.

use redrive_core::delivery::outcome::Outcome;
use std::{sync::Arc, time::Duration};

use redrive_core::{DeliveryId, TenantId, WebhookId, webhook::WebhookState};
use redrive_store::{OutcomeRecord, StoreError};

use super::Recorder;
use crate::dispatch::EndWithoutAttempt;

/// Delay before a failed read of a webhook is repeated.
const RELOAD_RETRY_DELAY: Duration = Duration::from_millis(500);

impl Recorder {
    /// Handles a delivery that was cancelled on another node. If it is queued here it is released, and the store,
    /// which has the reason, ends it. If its request is in flight, the store reports the cancellation when the outcome
    /// is recorded.
    pub(crate) fn release_cancelled(&self, webhook_id: WebhookId, delivery_id: DeliveryId) {
        if let Some(queued) = self.dispatcher.take_cancelled(webhook_id, delivery_id) {
            queued.release();
        }
    }

    /// Cancels a leased delivery if it is queued on this node.
    pub(crate) fn cancel_if_queued(
        self: &Arc<Self>,
        webhook_id: WebhookId,
        delivery_id: DeliveryId,
        reason: String,
    ) {
        if let Some(queued) = self.dispatcher.cancel(webhook_id, delivery_id, reason.clone()) {
            self.record_without_attempt(queued, Outcome::Cancelled(reason).into());
        }
    }

    /// Applies a change of a webhook, which is in the cache by now.
    pub(crate) fn apply_webhook_change(self: &Arc<Self>, webhook_id: WebhookId) {
        let Some(webhook) = self.router.webhook(webhook_id) else {
            return self.cancel_pending(webhook_id, &WebhookState::Deleted);
        };
        self.cancel_pending(webhook_id, &webhook.state);
        if webhook.has_scheduled_action() {
            self.wakeups.expiry.notify_one();
        }
        if webhook.state.parks_deliveries() {
            self.dispatcher.park(&webhook, None);
        } else {
            self.dispatcher.release_to_assigned_node(&webhook);
            // If its circuit is open, the next admission check parks it again.
            self.dispatcher.unpark(&webhook, self.coordinator.local.refresh_half_open_limit(&webhook));
        }
        self.wakeups.claims.wake();
        self.wakeups.gate_timer.notify_one();
    }

    /// Cancels the pending deliveries of a webhook that is disabled or deleted: first those queued here, then, in
    /// small steps, those in the store.
    fn cancel_pending(self: &Arc<Self>, webhook_id: WebhookId, state: &WebhookState) {
        let Some(reason) = state.cancel_reason() else { return };
        for queued in self.dispatcher.take_queued(webhook_id) {
            self.record_without_attempt(queued, EndWithoutAttempt::for_inactive_webhook(reason));
        }
        self.wakeups.cancellation.notify_one();
    }

    /// Reloads a webhook after an outcome that was to disable it, whether the store did so, refused, or did not record
    /// the outcome. Then resumes sending, or cancels its pending deliveries, by its stored state.
    pub(crate) fn refresh_after_disable(self: &Arc<Self>, outcome: &OutcomeRecord, disabled: bool) {
        let Some(disable) = &outcome.disable else { return };
        let (webhook_id, tenant_id) = (outcome.webhook_id, outcome.tenant_id.clone());
        if disabled {
            tracing::warn!(webhook_id = %webhook_id, %tenant_id, reason = disable.reason, "webhook disabled");
        }
        let recorder = self.clone();
        self.tokio.spawn(async move { recorder.reload_webhook(&tenant_id, webhook_id).await });
    }

    /// Replaces the cache entry of a webhook by its stored state, retrying until the read succeeds, and applies the
    /// change.
    pub(crate) async fn reload_webhook(self: &Arc<Self>, tenant_id: &TenantId, webhook_id: WebhookId) {
        while let Err(error) = self.router.reload(tenant_id, webhook_id).await {
            tracing::warn!(webhook_id = %webhook_id, %tenant_id, %error, "reading a webhook again failed; will retry");
            if self.stop.is_cancelled() || matches!(error, StoreError::InvalidItem(_)) {
                return;
            }
            tokio::time::sleep(RELOAD_RETRY_DELAY).await;
        }
        self.apply_webhook_change(webhook_id);
    }
}

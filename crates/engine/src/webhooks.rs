//! Changes of webhooks and tenants: stored first, then applied to the cache, then to queued deliveries.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    TenantId, WebhookId,
    webhook::{Webhook, WebhookState},
};
use redrive_store::{Outcome, StoreError, Tenant, UpdateResult, Versioned};

use crate::{
    Engine, Inner, notify::occurrences::webhook_disabled_by_change, record::EndWithoutAttempt,
    unsettled::UnsettledDelivery,
};

/// Delay before a failed read of a webhook is repeated.
const RELOAD_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Reason why a webhook was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError<E> {
    /// The webhook or the tenant does not exist.
    #[error("there is no such webhook")]
    NotFound,
    /// The change function rejected the change.
    #[error("the change was refused")]
    Rejected(E),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Stores a new webhook. Every event acknowledged from now on reaches it. Returns false if the tenant does not
    /// exist.
    pub async fn create_webhook(&self, webhook: Webhook) -> Result<bool, StoreError> {
        match self.0.store.create_webhook(webhook.clone()).await? {
            UpdateResult::Updated { version } => {
                if webhook.next_action_at().is_some() {
                    self.0.expiry_wakeup.notify_one();
                }
                self.0.registry.apply_local_change(webhook, version);
                Ok(true)
            }
            UpdateResult::Stale | UpdateResult::NotFound => Ok(false),
        }
    }

    /// Reads a webhook, changes it and stores it; retries on a concurrent change.
    pub async fn change_webhook<E>(
        &self,
        tenant_id: &TenantId,
        id: WebhookId,
        change: impl FnMut(&mut Webhook) -> Result<(), E>,
    ) -> Result<Webhook, ChangeError<E>> {
        self.change_and_notify(tenant_id, id, change, false).await
    }

    /// Changes a webhook automatically: notifies the owner if the change disables it.
    pub(crate) async fn change_webhook_automatically<E>(
        &self,
        tenant_id: &TenantId,
        id: WebhookId,
        change: impl FnMut(&mut Webhook) -> Result<(), E>,
    ) -> Result<Webhook, ChangeError<E>> {
        self.change_and_notify(tenant_id, id, change, true).await
    }

    async fn change_and_notify<E>(
        &self,
        tenant_id: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<(), E>,
        report: bool,
    ) -> Result<Webhook, ChangeError<E>> {
        loop {
            let Some(found) = self.0.store.webhook(tenant_id.clone(), id).await? else {
                return Err(ChangeError::NotFound);
            };
            let Versioned { mut webhook, revision } = found;
            let before = webhook.state.clone();
            change(&mut webhook).map_err(ChangeError::Rejected)?;
            webhook.updated_at = self.0.clock.now();
            let disabled =
                webhook_disabled_by_change(&before, &webhook, webhook.updated_at).filter(|_| report);
            let reported = disabled.is_some();
            match self.0.store.change_webhook(webhook.clone(), revision, disabled).await? {
                UpdateResult::Updated { version } => {
                    if reported {
                        self.0.notifier.wake();
                    }
                    self.0.registry.apply_local_change(webhook.clone(), version);
                    if !before.receives_events() && webhook.state.receives_events() {
                        self.0.coordination.clear_failing_since(webhook.id);
                    }
                    self.0.apply_webhook_change(webhook.id);
                    if let Some(resolved) = self.0.registry.webhook(webhook.id) {
                        // Disabling the circuit breaker unblocks the webhook immediately.
                        self.0.advance_circuit(&resolved);
                    }
                    return Ok(webhook);
                }
                UpdateResult::NotFound => return Err(ChangeError::NotFound),
                UpdateResult::Stale => {}
            }
        }
    }
}

impl Engine {
    /// Returns the maximum number of attempts of a webhook's deliveries; `None` if the webhook is not known.
    pub async fn max_attempts(&self, webhook_id: WebhookId) -> Option<u32> {
        let webhook = self.0.registry.get_or_load(&*self.0.store, webhook_id).await;
        webhook.ok().flatten().map(|webhook| webhook.retry_policy.max_attempts())
    }
}

impl Engine {
    /// Loads these webhooks of a tenant into the cache unless they are there, with few store calls.
    pub async fn load_webhooks(
        &self,
        tenant_id: &TenantId,
        webhooks: &[WebhookId],
    ) -> Result<(), StoreError> {
        self.0.registry.load_missing(&*self.0.store, tenant_id, webhooks).await
    }
}

impl Engine {
    /// Changes a tenant's name and settings. Returns false if the tenant does not exist.
    pub async fn change_tenant(&self, tenant: Tenant) -> Result<bool, StoreError> {
        let id = tenant.id.clone();
        if !self.0.store.change_tenant(tenant).await? {
            return Ok(false);
        }
        self.0.registry.refresh(&*self.0.store, &id).await?;
        self.0.tenant_changed(&id);
        Ok(true)
    }
}

impl Engine {
    /// Refreshes the cached event types of a tenant after a change.
    pub async fn catalogue_changed(&self, tenant_id: &TenantId) -> Result<(), StoreError> {
        self.0.registry.refresh(&*self.0.store, tenant_id).await.map(drop)
    }
}

impl Engine {
    /// Deletes a tenant whose webhooks are deleted. Returns false if the tenant does not exist.
    pub async fn delete_tenant(&self, id: &TenantId) -> Result<bool, StoreError> {
        let deleted = self.0.store.delete_tenant(id.clone(), self.0.clock.now()).await?;
        self.0.registry.refresh(&*self.0.store, id).await?;
        Ok(deleted)
    }
}

impl Inner {
    /// Applies a change of a tenant's settings, which are in the cache by now.
    pub(crate) fn tenant_changed(self: &Arc<Self>, tenant_id: &TenantId) {
        let max = self.registry.tenant_context(tenant_id).max_in_flight();
        let actions = self.dispatcher.tenant_changed(tenant_id, max);
        self.apply_actions(actions);
        self.scheduler_wakeup.wake();
    }

    /// Applies a change of a webhook, which is in the cache by now.
    pub(crate) fn apply_webhook_change(self: &Arc<Self>, webhook_id: WebhookId) {
        let Some(webhook) = self.registry.webhook(webhook_id) else {
            return self.cancel_pending(webhook_id, &WebhookState::Deleted);
        };
        self.cancel_pending(webhook_id, &webhook.state);
        if webhook.has_scheduled_action() {
            self.expiry_wakeup.notify_one();
        }
        if webhook.state.is_holding() {
            self.park(&webhook, None);
        } else {
            self.release_to_assigned_node(&webhook);
            // If its circuit is open, the next admission check parks it again.
            let actions = self
                .dispatcher
                .unpark(self.webhook_limits(&webhook), self.coordination.refresh_probe_limit(&webhook));
            self.apply_actions(actions);
        }
        self.scheduler_wakeup.wake();
        self.gate_wakeup.notify_one();
    }

    /// Cancels the pending deliveries of a webhook that receives no more events: first those queued here, then, in
    /// small steps, those in the store.
    fn cancel_pending(self: &Arc<Self>, webhook_id: WebhookId, state: &WebhookState) {
        let Some(reason) = state.cancel_reason() else { return };
        let queued = self.dispatcher.take_queued(webhook_id).into_iter();
        let queued: Vec<_> =
            queued.map(|delivery| UnsettledDelivery::taken_from_queue(self, delivery)).collect();
        for queued in queued {
            self.record_without_attempt(queued, EndWithoutAttempt::for_inactive_webhook(reason));
        }
        self.cancellation_wakeup.notify_one();
    }

    /// Reloads a webhook after an outcome that was to disable it, whether the store did so, refused, or did not record
    /// the outcome. Then resumes sending, or cancels its pending deliveries, by its stored state.
    pub(crate) fn refresh_after_disable(self: &Arc<Self>, outcome: &Outcome, disabled: bool) {
        let Some(disable) = &outcome.disable else { return };
        let (webhook_id, tenant_id) = (outcome.webhook_id, outcome.tenant_id.clone());
        if disabled {
            tracing::warn!(webhook_id = %webhook_id, %tenant_id, reason = disable.reason, "webhook disabled");
        }
        let inner = self.clone();
        self.runtime.spawn(async move { inner.reload_webhook(&tenant_id, webhook_id).await });
    }

    /// Replaces the cache entry of a webhook by its stored state, retrying until the read succeeds, and applies the
    /// change.
    pub(crate) async fn reload_webhook(self: &Arc<Self>, tenant_id: &TenantId, webhook_id: WebhookId) {
        while let Err(error) = self.registry.reload(&*self.store, tenant_id, webhook_id).await {
            tracing::warn!(webhook_id = %webhook_id, %tenant_id, %error, "reading a webhook again failed; will retry");
            if self.stop.is_cancelled() || matches!(error, StoreError::InvalidItem(_)) {
                return;
            }
            tokio::time::sleep(RELOAD_RETRY_DELAY).await;
        }
        self.apply_webhook_change(webhook_id);
    }
}

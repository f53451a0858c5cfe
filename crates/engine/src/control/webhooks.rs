//! Changes of webhooks and tenants: stored first, then applied to the cache, then to queued deliveries.

use redrive_core::{
    TenantId, WebhookId,
    protection::breaker::{Circuit, CircuitView, Forced, SavedCircuit},
    webhook::{Webhook, WebhookState},
};
use redrive_store::{CreationKey, CreationResult, NewObject, StoreError, Tenant, UpdateResult, Versioned};

use super::Control;
use crate::{coordinate::CircuitAction, occurrences::webhook_disabled_by_change};

/// Reason why a webhook was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError<E> {
    /// The webhook or the tenant does not exist.
    #[error("there is no such webhook")]
    NotFound,
    /// Another webhook of the tenant has the uid.
    #[error("another webhook of the tenant has this uid")]
    UidTaken,
    /// The change function rejected the change.
    #[error("the change was refused")]
    Rejected(E),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Control {
    /// Stores a new webhook, whose circuit may be forced open until a time. Every event acknowledged from now on reaches
    /// it. With a key, it is stored only if the key was not used before.
    pub(crate) async fn create_webhook(
        &self,
        webhook: Webhook,
        forced: Option<Forced>,
        key: Option<CreationKey>,
    ) -> Result<CreationResult, StoreError> {
        let circuit = forced.map(|forced| {
            let now = self.clock.now();
            let mut circuit = Circuit::new(now);
            circuit.force(forced, now);
            circuit.to_saved()
        });
        let new = webhook.clone();
        let created = match (key, circuit.clone()) {
            (Some(key), circuit) => {
                self.creations.create(NewObject::Webhook(Box::new(new), circuit), key).await?
            }
            (None, Some(circuit)) => {
                self.webhooks.store_webhook_with_circuit(new, None, circuit).await?.into()
            }
            (None, None) => self.webhooks.create_webhook(new).await?.into(),
        };
        if let CreationResult::Created { version } = created {
            if webhook.next_action_at().is_some() {
                self.wakeups.expiry.notify_one();
            }
            let id = webhook.id;
            self.router.apply_local_change(webhook, version);
            if let Some(saved) = circuit {
                self.adopt_circuit(id, saved).await;
            }
        }
        Ok(created)
    }

    /// Changes a webhook as [`Self::change_webhook`] does, and its circuit in the same transaction. `action` returns the
    /// action for the current circuit; without one only the webhook changes.
    pub(crate) async fn change_webhook_and_circuit<E>(
        &self,
        tenant_id: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<(), E>,
        action: impl Fn(&CircuitView) -> Option<CircuitAction>,
    ) -> Result<Webhook, ChangeError<E>> {
        loop {
            let Some(found) = self.webhooks.webhook(tenant_id.clone(), id).await? else {
                return Err(ChangeError::NotFound);
            };
            if self.membership.is_shared() {
                self.runtime_updater.refresh_runtime_state([id].into()).await?;
            }
            let Some(resolved) = self.router.get_or_load(id).await? else {
                return Err(ChangeError::NotFound);
            };
            self.coordinator.refresh_circuit(&resolved).await;
            let now = self.clock.now();
            let view = self.coordinator.local.snapshot(&resolved, now).circuit;
            let saved = action(&view)
                .and_then(|action| self.coordinator.local.preview_action(&resolved, action, now));
            let Some(saved) = saved else { return self.change_webhook(tenant_id, id, change).await };
            let Versioned { mut webhook, revision } = found;
            let before = webhook.state.clone();
            change(&mut webhook).map_err(ChangeError::Rejected)?;
            webhook.updated_at = now;
            let stored = self
                .webhooks
                .store_webhook_with_circuit(webhook.clone(), Some(revision), saved.clone())
                .await?;
            match stored {
                UpdateResult::Updated { version } => {
                    self.apply_stored_webhook(&webhook, &before, version);
                    self.adopt_circuit(id, saved).await;
                    return Ok(webhook);
                }
                UpdateResult::NotFound => return Err(ChangeError::NotFound),
                UpdateResult::Exists => return Err(ChangeError::UidTaken),
                UpdateResult::Stale => {}
            }
        }
    }

    /// Applies a circuit that was stored with its webhook.
    async fn adopt_circuit(&self, webhook_id: WebhookId, saved: SavedCircuit) {
        let Some(webhook) = self.router.webhook(webhook_id) else { return };
        if let Some(change) = self.coordinator.local.adopt_circuit(&webhook, saved, self.clock.now()) {
            self.runtime_updater.apply_change(&webhook, &change);
        }
        // Redis takes the circuit over, since it is newer than the one there.
        self.coordinator.refresh_circuit(&webhook).await;
        self.wakeups.claims.wake();
        self.wakeups.gate_timer.notify_one();
    }

    /// Applies a webhook that was stored to the cache and to queued deliveries.
    fn apply_stored_webhook(&self, webhook: &Webhook, before: &WebhookState, version: i64) {
        self.router.apply_local_change(webhook.clone(), version);
        if webhook.state.ends_failures_of(before) {
            self.coordinator.local.clear_failures(webhook.id);
        }
        self.recorder.apply_webhook_change(webhook.id);
        if let Some(resolved) = self.router.webhook(webhook.id) {
            // Disabling the circuit breaker unblocks the webhook immediately.
            self.runtime_updater.perform_due_transition(&resolved);
        }
    }

    /// Reads a webhook, changes it and stores it; retries on a concurrent change.
    pub(crate) async fn change_webhook<E>(
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
            let Some(found) = self.webhooks.webhook(tenant_id.clone(), id).await? else {
                return Err(ChangeError::NotFound);
            };
            let Versioned { mut webhook, revision } = found;
            let before = webhook.state.clone();
            change(&mut webhook).map_err(ChangeError::Rejected)?;
            webhook.updated_at = self.clock.now();
            let disabled =
                webhook_disabled_by_change(&before, &webhook, webhook.updated_at).filter(|_| report);
            let reported = disabled.is_some();
            match self.webhooks.change_webhook(webhook.clone(), revision, disabled).await? {
                UpdateResult::Updated { version } => {
                    if reported {
                        self.wakeups.notifier.notify_one();
                    }
                    self.apply_stored_webhook(&webhook, &before, version);
                    return Ok(webhook);
                }
                UpdateResult::NotFound => return Err(ChangeError::NotFound),
                UpdateResult::Exists => return Err(ChangeError::UidTaken),
                UpdateResult::Stale => {}
            }
        }
    }

    /// Changes a tenant's name and settings. Returns false if the tenant does not exist.
    pub(crate) async fn change_tenant(&self, tenant: Tenant) -> Result<bool, StoreError> {
        let id = tenant.id.clone();
        if !self.tenancy.change_tenant(tenant).await? {
            return Ok(false);
        }
        self.router.refresh(&id).await?;
        self.dispatcher.apply_tenant_change(&id);
        Ok(true)
    }

    /// Deletes a tenant whose webhooks are deleted. Returns false if the tenant does not exist.
    pub(crate) async fn delete_tenant(&self, id: &TenantId) -> Result<bool, StoreError> {
        let deleted = self.tenancy.delete_tenant(id.clone(), self.clock.now()).await?;
        self.router.refresh(id).await?;
        Ok(deleted)
    }
}

//! Changing webhooks: in the store first, then in memory, then whatever follows from the change.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    TenantId, WebhookId,
    webhook::{Webhook, WebhookState},
};
use redrive_store::{Changed, Outcome, StoreError, Tenant, Versioned};

use crate::{Engine, Inner, notify::occurrences::disabled_by, record::Ending};

/// The delay before a failed read of a webhook is repeated.
const RELOAD_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Why a webhook was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError<E> {
    /// There is no such webhook (or tenant).
    #[error("there is no such webhook")]
    Missing,
    /// The change itself was refused.
    #[error("the change was refused")]
    Refused(E),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Stores a new webhook. Every event acknowledged from now on reaches it. False: no such tenant.
    pub async fn create_webhook(&self, webhook: Webhook) -> Result<bool, StoreError> {
        match self.0.store.create_webhook(webhook.clone()).await? {
            Changed::Done { version } => {
                if webhook.due_at().is_some() {
                    self.0.expiry_alarm.notify_one();
                }
                self.0.registry.changed(webhook, version);
                Ok(true)
            }
            Changed::Stale | Changed::Missing => Ok(false),
        }
    }

    /// Reads a webhook, changes it and stores it, again if somebody else was faster.
    pub async fn change_webhook<E>(
        &self,
        tenant: &TenantId,
        id: WebhookId,
        change: impl FnMut(&mut Webhook) -> Result<(), E>,
    ) -> Result<Webhook, ChangeError<E>> {
        self.change_and_tell(tenant, id, change, false).await
    }

    /// The same for a change that nobody asked for: the owner is told if it disables the webhook.
    pub(crate) async fn change_webhook_ourselves<E>(
        &self,
        tenant: &TenantId,
        id: WebhookId,
        change: impl FnMut(&mut Webhook) -> Result<(), E>,
    ) -> Result<Webhook, ChangeError<E>> {
        self.change_and_tell(tenant, id, change, true).await
    }

    async fn change_and_tell<E>(
        &self,
        tenant: &TenantId,
        id: WebhookId,
        mut change: impl FnMut(&mut Webhook) -> Result<(), E>,
        tell: bool,
    ) -> Result<Webhook, ChangeError<E>> {
        loop {
            let Some(found) = self.0.store.webhook(tenant.clone(), id).await? else {
                return Err(ChangeError::Missing);
            };
            let Versioned { mut webhook, revision } = found;
            let before = webhook.state.clone();
            change(&mut webhook).map_err(ChangeError::Refused)?;
            webhook.updated_at = self.0.clock.now();
            let disabled = disabled_by(&before, &webhook, webhook.updated_at).filter(|_| tell);
            let told = disabled.is_some();
            match self.0.store.change_webhook(webhook.clone(), revision, disabled).await? {
                Changed::Done { version } => {
                    if told {
                        self.0.notifying.ring();
                    }
                    self.0.registry.changed(webhook.clone(), version);
                    if !before.gets_events() && webhook.state.gets_events() {
                        self.0.coordination.forgive(webhook.id);
                    }
                    self.0.follow(webhook.id);
                    if let Some(hook) = self.0.registry.hook(webhook.id) {
                        // A breaker that was turned off lets go at once.
                        self.0.move_on(&hook);
                    }
                    return Ok(webhook);
                }
                Changed::Missing => return Err(ChangeError::Missing),
                Changed::Stale => {}
            }
        }
    }
}

impl Engine {
    /// How many attempts a webhook's deliveries have; none if nothing is known of it.
    pub async fn max_attempts(&self, webhook: WebhookId) -> Option<u32> {
        let hook = self.0.registry.find(&*self.0.store, webhook).await;
        hook.ok().flatten().map(|hook| hook.policy.max_attempts())
    }
}

impl Engine {
    /// Reads these webhooks of a tenant into memory, as far as they are not there, with few reads for all of them.
    pub async fn load_webhooks(&self, tenant: &TenantId, webhooks: &[WebhookId]) -> Result<(), StoreError> {
        self.0.registry.load(&*self.0.store, tenant, webhooks).await
    }
}

impl Engine {
    /// Changes a tenant's name and rules. False: no such tenant.
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
    /// Takes in what was changed in a tenant's catalogue of event types.
    pub async fn catalogue_changed(&self, tenant: &TenantId) -> Result<(), StoreError> {
        self.0.registry.refresh(&*self.0.store, tenant).await.map(drop)
    }
}

impl Engine {
    /// Ends a tenant whose webhooks are gone. False: no such tenant.
    pub async fn delete_tenant(&self, id: &TenantId) -> Result<bool, StoreError> {
        let deleted = self.0.store.delete_tenant(id.clone(), self.0.clock.now()).await?;
        self.0.registry.refresh(&*self.0.store, id).await?;
        Ok(deleted)
    }
}

impl Inner {
    /// Whatever follows from a change of a tenant's rules, which are known here by now.
    pub(crate) fn tenant_changed(self: &Arc<Self>, tenant: &TenantId) {
        let most = self.registry.tenancy(tenant).max_in_flight();
        let moves = self.dispatch.tenant_changed(tenant, most);
        self.carry_out(moves);
        self.alarm.ring();
    }

    /// Whatever follows from a change of a webhook, which is known here by now.
    pub(crate) fn follow(self: &Arc<Self>, webhook: WebhookId) {
        let Some(hook) = self.registry.hook(webhook) else {
            return self.call_off(webhook, &WebhookState::Deleted);
        };
        self.call_off(webhook, &hook.state);
        if hook.expires() {
            self.expiry_alarm.notify_one();
        }
        if hook.state.holds_back() {
            self.park(&hook, None);
        } else {
            self.leave_to_home(&hook);
            // If its circuit is open, the next look at it parks it again.
            let moves = self.dispatch.unpark(self.whom(&hook), self.coordination.reconsider(&hook));
            self.carry_out(moves);
        }
        self.alarm.ring();
        self.gate_alarm.notify_one();
    }

    /// Cancels what is pending for a webhook that gets no more events: first what is queued here, then, in
    /// small steps, what waits in the store.
    fn call_off(self: &Arc<Self>, webhook: WebhookId, state: &WebhookState) {
        let Some(reason) = state.cancels_because() else { return };
        for queued in self.dispatch.take_queued(webhook) {
            self.record_end(queued, Ending::of_webhook(reason));
        }
        self.runtime.spawn(self.clone().sweep_all());
    }

    /// Reads a webhook again after an outcome that was to disable it, whether the store did so, refused, or did not
    /// record the outcome at all. Then resumes sending, or cancels what is pending, by what the store says.
    pub(crate) fn refresh_after_disable(self: &Arc<Self>, outcome: &Outcome, disabled: bool) {
        let Some(disable) = &outcome.disable else { return };
        let (webhook, tenant) = (outcome.webhook, outcome.tenant.clone());
        if disabled {
            tracing::warn!(webhook_id = %webhook, %tenant, reason = disable.reason, "webhook disabled");
        }
        let inner = self.clone();
        self.runtime.spawn(async move { inner.reload_webhook(&tenant, webhook).await });
    }

    /// Replaces the entry of a webhook in memory by what the store says, however long that takes, and follows the change.
    pub(crate) async fn reload_webhook(self: &Arc<Self>, tenant: &TenantId, webhook: WebhookId) {
        while let Err(error) = self.registry.reload(&*self.store, tenant, webhook).await {
            tracing::warn!(webhook_id = %webhook, %tenant, %error, "reading a webhook again failed; will retry");
            if self.stop.is_cancelled() || matches!(error, StoreError::Refused(_)) {
                return;
            }
            tokio::time::sleep(RELOAD_RETRY_DELAY).await;
        }
        self.follow(webhook);
    }
}

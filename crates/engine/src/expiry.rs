//! The end of waiting: deliveries that were held back for too long, and webhooks whose time is over.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeadReason, DeliveryStatus, TenantId, Time, WebhookId,
    delivery::decide,
    notification::{Facts, Kind},
    webhook::{Webhook, WebhookState},
};
use redrive_store::{Next, StoreError};

use crate::{ChangeError, Engine, Inner, notify::occurrences::cause, verification::VerifyResult};

/// Why a webhook is disabled whose time is over.
pub(crate) const EXPIRED: &str = "expired";
/// How often waiting deliveries are looked through for those to give up on. What is sent is checked anyway;
/// this is for those that something holds back.
const LOOK: Duration = Duration::from_secs(30);
/// Webhooks looked at, and deliveries ended, in one step.
const STEP: usize = 500;
/// How long a challenge waits when the host of its URL has no free slot, or its address no free connection.
pub(crate) const HOST_BUSY_RETRY_DELAY: Duration = Duration::from_secs(1);

impl Inner {
    /// Gives up on what has waited for too long, whatever held it back.
    pub(crate) async fn keep_expiring(self: Arc<Self>) {
        loop {
            self.expire_queued();
            if let Err(error) = self.expire_deliveries().await {
                tracing::warn!(%error, "overdue deliveries cannot be given up on yet");
            }
            let next = match self.expire_webhooks().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(%error, "expired webhooks cannot be disabled yet");
                    None
                }
            };
            let soon = self.clock.now() + LOOK;
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or(soon).min(soon)) => {}
                () = self.expiry_alarm.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Gives up on what waits in memory, for a token or a slot.
    fn expire_queued(self: &Arc<Self>) {
        let now = self.clock.confirmed_now();
        let over = self.dispatch.take_over(|ready| {
            let hook = self.registry.hook(ready.webhook);
            hook.is_some_and(|hook| now >= decide::gives_up_at(ready.created_at, &hook.policy))
        });
        for ready in over {
            self.record_end(ready, Next::Dead { reason: DeadReason::Expired }.into());
        }
    }

    async fn expire_deliveries(&self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self.store.oldest(after, STEP).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(*last);
            for (webhook, oldest) in page {
                self.expire_of(webhook, oldest).await?;
            }
        }
    }

    async fn expire_of(&self, webhook: WebhookId, oldest: Time) -> Result<(), StoreError> {
        let Some(hook) = self.registry.find(&*self.store, webhook).await? else { return Ok(()) };
        let now = self.clock.confirmed_now();
        let patience = hook.policy.give_up_after.get().as_millis() as i64;
        // Made at this very moment or before: their time is up.
        let made_before = Time::from_millis(now.millis() - patience + 1);
        if oldest >= made_before {
            return Ok(());
        }
        loop {
            let facts = Facts { reason: Some(DeadReason::Expired.name().into()), ..Facts::default() };
            let cause = cause(&hook.tenant.id, Some(webhook), Kind::DeliveryDead, now, facts);
            let step = self.store.expire(webhook, made_before, now, STEP, Some(cause)).await?;
            if step.moved > 0 {
                self.notifying.ring();
            }
            self.metrics.expired(&hook.tenant.id, webhook, step.moved as u64);
            self.health.ended(&hook.tenant.id, DeliveryStatus::Dead, step.moved as u64, now);
            if step.finished {
                tracing::info!(webhook_id = %webhook, "deliveries that waited for too long are given up on");
                self.alarm.ring();
                return Ok(());
            }
        }
    }

    /// Disables webhooks whose time is over, and has endpoints asked to echo. Gives the time of the next one.
    async fn expire_webhooks(self: &Arc<Self>) -> Result<Option<Time>, StoreError> {
        // Tenants that have no slot left for verifications: theirs must not hide those of others behind them.
        let mut without_slot: Vec<TenantId> = Vec::new();
        let mut retry_at: Option<Time> = None;
        loop {
            let now = self.clock.now();
            let found = self.store.expiring(now, STEP, without_slot.clone()).await?;
            let is_full = found.expired.len() == STEP;
            let (mut done, known) = (0, without_slot.len());
            for (tenant, webhook) in found.expired {
                if without_slot.contains(&tenant) && self.awaits_verification(webhook) {
                    continue;
                }
                match self.expire_webhook(&tenant, webhook, now).await {
                    Ok(VerifyResult::Done) => done += 1,
                    Ok(VerifyResult::NoSlot) => without_slot.push(tenant),
                    // Nothing wakes this loop when a slot of the host is free.
                    Ok(VerifyResult::HostBusy) => retry_at = Some(now + HOST_BUSY_RETRY_DELAY),
                    Ok(VerifyResult::NotDue) => {}
                    // Too many reads of its tenant run at the moment.
                    Err(StoreError::Busy(_)) => {}
                    // One webhook that cannot be read must not keep all others waiting.
                    Err(StoreError::Refused(why)) => {
                        tracing::error!(webhook_id = %webhook, error = why, "a webhook cannot be read, and not be disabled");
                    }
                    Err(error) => return Err(error),
                }
            }
            // What is left is for other nodes, or for later.
            let may_hide_others = is_full && without_slot.len() > known;
            if done == 0 && !may_hide_others {
                return Ok(found.next.into_iter().chain(retry_at).min());
            }
        }
    }

    fn awaits_verification(&self, webhook: WebhookId) -> bool {
        let hook = self.registry.hook(webhook);
        hook.is_some_and(|hook| matches!(hook.state, WebhookState::PendingVerification(_)))
    }

    /// Does what is due about a webhook.
    async fn expire_webhook(
        self: &Arc<Self>,
        tenant: &TenantId,
        webhook: WebhookId,
        now: Time,
    ) -> Result<VerifyResult, StoreError> {
        match self.verify_if_due(tenant, webhook, now).await? {
            VerifyResult::NotDue => {}
            verified => return Ok(verified),
        }
        let confirmed_now = self.clock.confirmed_now();
        let disable = |webhook: &mut Webhook| {
            // It may have been given more time since, or another node was faster.
            let over = webhook.spec.expires_at.is_some_and(|at| at <= confirmed_now);
            let is_on = matches!(webhook.state, WebhookState::Active | WebhookState::Paused);
            if !is_on || !over {
                return Err(());
            }
            webhook.state = WebhookState::Disabled(EXPIRED.into());
            Ok(())
        };
        match Engine(self.clone()).change_webhook_ourselves(tenant, webhook, disable).await {
            Ok(_) => Ok(VerifyResult::Done),
            Err(ChangeError::Missing | ChangeError::Refused(())) => Ok(VerifyResult::NotDue),
            Err(ChangeError::Store(error)) => Err(error),
        }
    }
}

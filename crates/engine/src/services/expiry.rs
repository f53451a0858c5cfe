//! Expiry: gives up on deliveries that exceeded `give_up_after`, and disables webhooks past `expires_at`.

use redrive_core::delivery::outcome::Outcome;
use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeadReason, DeliveryStatus, TenantId, Time, WebhookId,
    delivery::decide,
    notification::{NotificationKind, OccurrenceDetails},
    webhook::{Webhook, WebhookState},
};
use redrive_store::{StoreError, WebhookTimers};
use tokio_util::sync::CancellationToken;

use super::verification::{Verifier, VerifyResult};
use crate::{
    clock::Clock,
    control::{ChangeError, Control},
    dispatch::{Dispatcher, REASON_EXPIRED},
    metrics::Metrics,
    occurrences::occurrence,
    record::Recorder,
    rollup_buffer::RollupBuffer,
    routing::Router,
    wakeups::Wakeups,
};

/// Interval between scans for expired deliveries. A delivery that is sent is checked anyway; the scan is for
/// deliveries that are blocked.
const SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// Webhooks read, and deliveries ended, per store call.
const BATCH_SIZE: usize = 500;

/// Gives up on deliveries and webhooks that are too old.
pub(crate) struct Expiry {
    pub(crate) store: Arc<dyn WebhookTimers>,
    pub(crate) clock: Clock,
    pub(crate) router: Arc<Router>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) control: Arc<Control>,
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rollups: Arc<RollupBuffer>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
}

impl Expiry {
    /// Marks expired deliveries dead regardless of what blocks them, and disables expired webhooks, until the engine
    /// stops.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            // Counted from the start of the scan: the clock may jump during it, past deliveries that it has already read.
            let next_scan_at = self.clock.now() + SCAN_INTERVAL;
            self.expire_queued();
            if let Err(error) = self.expire_deliveries().await {
                tracing::warn!(%error, "expiring overdue deliveries failed; will retry");
            }
            let next = match self.expire_webhooks().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(%error, "disabling expired webhooks failed; will retry");
                    None
                }
            };
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or(next_scan_at).min(next_scan_at)) => {}
                () = self.wakeups.expiry.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Marks expired deliveries dead that are queued in memory, waiting for a token or a slot.
    fn expire_queued(&self) {
        let now = self.clock.confirmed_now();
        let expired_deliveries = self.dispatcher.take_expired(|delivery| {
            let webhook = self.router.webhook(delivery.webhook_id);
            webhook
                .is_some_and(|webhook| now >= decide::give_up_at(delivery.created_at, &webhook.retry_policy))
        });
        for delivery in expired_deliveries {
            self.recorder.record_without_attempt(delivery, Outcome::Dead(DeadReason::Expired).into());
        }
    }

    async fn expire_deliveries(&self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let page = self.store.oldest_waiting(after, BATCH_SIZE).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(*last);
            for (webhook_id, oldest) in page {
                self.expire_webhook_deliveries(webhook_id, oldest).await?;
            }
        }
    }

    async fn expire_webhook_deliveries(&self, webhook_id: WebhookId, oldest: Time) -> Result<(), StoreError> {
        let Some(webhook) = self.router.get_or_load(webhook_id).await? else { return Ok(()) };
        let now = self.clock.confirmed_now();
        let timeout = webhook.retry_policy.give_up_after.as_duration().as_millis() as i64;
        // Deliveries created exactly `give_up_after` ago or earlier are expired.
        let created_before = Time::from_millis(now.millis() - timeout + 1);
        if oldest >= created_before {
            return Ok(());
        }
        loop {
            let details = OccurrenceDetails {
                reason: Some(DeadReason::Expired.name().into()),
                ..OccurrenceDetails::default()
            };
            let expired = occurrence(
                &webhook.tenant.id,
                Some(webhook_id),
                NotificationKind::DeliveryDead,
                now,
                details,
            );
            let step = self
                .store
                .expire_deliveries(webhook_id, created_before, now, BATCH_SIZE, Some(expired))
                .await?;
            if step.changed > 0 {
                self.wakeups.notifier.notify_one();
            }
            self.metrics.expired(&webhook.tenant.id, webhook_id, step.changed as u64);
            self.rollups.record_ended(&webhook.tenant.id, DeliveryStatus::Dead, step.changed as u64, now);
            if step.finished {
                tracing::info!(webhook_id = %webhook_id, "expired deliveries marked dead");
                self.wakeups.claims.wake();
                return Ok(());
            }
        }
    }

    /// Disables expired webhooks and sends due verification challenges. Returns when the next webhook is due.
    async fn expire_webhooks(&self) -> Result<Option<Time>, StoreError> {
        // Tenants without a free verification slot: skipped in the next page, so that they do not hide other tenants.
        let mut without_slot: Vec<TenantId> = Vec::new();
        let mut retry_at: Option<Time> = None;
        loop {
            let now = self.clock.now();
            let found = self.store.webhooks_with_due_action(now, BATCH_SIZE, without_slot.clone()).await?;
            let is_full = found.due.len() == BATCH_SIZE;
            let (mut done, known) = (0, without_slot.len());
            for (tenant_id, webhook_id) in found.due {
                if without_slot.contains(&tenant_id) && self.awaits_verification(webhook_id) {
                    continue;
                }
                match self.expire_webhook(&tenant_id, webhook_id, now).await {
                    Ok(VerifyResult::Done) => done += 1,
                    Ok(VerifyResult::NoSlot) => without_slot.push(tenant_id),
                    // Freeing a slot of the host does not wake this loop.
                    Ok(VerifyResult::NoHostSlot) => {
                        retry_at = Some(now + super::verification::BLOCKED_CHALLENGE_DELAY)
                    }
                    Ok(VerifyResult::NotDue) => {}
                    // The tenant has too many concurrent reads at the moment.
                    Err(StoreError::Busy(_)) => {}
                    // One unreadable webhook must not block the others.
                    Err(StoreError::InvalidItem(why)) => {
                        tracing::error!(webhook_id = %webhook_id, error = why, "reading a webhook failed; it is not disabled");
                    }
                    Err(error) => return Err(error),
                }
            }
            // What remains is left to other nodes or to a later run.
            let may_hide_others = is_full && without_slot.len() > known;
            if done == 0 && !may_hide_others {
                return Ok(found.next.into_iter().chain(retry_at).min());
            }
        }
    }

    fn awaits_verification(&self, webhook_id: WebhookId) -> bool {
        let webhook = self.router.webhook(webhook_id);
        webhook.is_some_and(|webhook| matches!(webhook.state, WebhookState::PendingVerification(_)))
    }

    /// Sends the due challenge of a webhook, or disables it if it has expired.
    async fn expire_webhook(
        &self,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        now: Time,
    ) -> Result<VerifyResult, StoreError> {
        match self.verifier.verify_if_due(tenant_id, webhook_id, now).await? {
            VerifyResult::NotDue => {}
            verified => return Ok(verified),
        }
        let confirmed_now = self.clock.confirmed_now();
        let disable = |webhook: &mut Webhook| {
            // `expires_at` may have been extended since the page was read, or another node has already disabled the
            // webhook.
            let is_expired = webhook.spec.expires_at.is_some_and(|at| at <= confirmed_now);
            let is_on = matches!(webhook.state, WebhookState::Active | WebhookState::Paused);
            if !is_on || !is_expired {
                return Err(());
            }
            webhook.state = WebhookState::Disabled(REASON_EXPIRED.into());
            Ok(())
        };
        match self.control.change_webhook_automatically(tenant_id, webhook_id, disable).await {
            Ok(_) => Ok(VerifyResult::Done),
            Err(ChangeError::NotFound | ChangeError::UidTaken | ChangeError::Rejected(())) => {
                Ok(VerifyResult::NotDue)
            }
            Err(ChangeError::Store(error)) => Err(error),
        }
    }
}

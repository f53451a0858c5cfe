//! Manual redelivery and cancellation: retry, replay, cancel.

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, WebhookId,
    delivery::lane::{Lane, Priority},
};
use redrive_store::{
    CancelResult, DeliveryFilter, NewRound, PageRequest, RedriveOptions, RedriveResult, ReplayResult,
    StoreError, Versioned,
};

use super::Control;
use crate::{clock, routing::ResolvedWebhook};

/// Target webhooks of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayTo {
    /// Every webhook that has a delivery of the event.
    All,
    /// Every webhook that has a delivery of the event, except those that the operator manages.
    AllTenantManaged,
    /// The given webhooks.
    Webhooks(Vec<WebhookId>),
}

/// Reason why a replay failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The event does not exist.
    #[error("there is no such event")]
    NotFound,
    /// The webhook does not exist.
    #[error("there is no such webhook: {0}")]
    NoWebhook(WebhookId),
    /// The event went to no webhook, or to none that receives events now.
    #[error("no webhook that the event was sent to accepts events now; name the webhooks to send it to")]
    NoTarget,
    /// A delivery of the event to one of the webhooks is still pending.
    #[error("delivery {0} of this event is still pending; retry or cancel it first")]
    StillPending(DeliveryId),
    /// The payload was erased.
    #[error("the payload of this event was erased; there is nothing to send again")]
    Erased,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Maximum number of past deliveries whose webhooks a replay selects.
const MAX_DELIVERIES: u32 = 10_000;

impl Control {
    /// Makes a pending delivery due now, or creates a new round of an ended one.
    pub(crate) async fn retry(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        priority: Option<Priority>,
    ) -> Result<RedriveResult, StoreError> {
        let Some(old) = self.history.delivery(tenant_id.clone(), delivery_id).await? else {
            return Ok(RedriveResult::NotFound);
        };
        let webhook = self.router.get_or_load(old.webhook_id).await?;
        let options = RedriveOptions {
            // A delivery id has the time of its event, as has the id of the previous round.
            id: DeliveryId::new(delivery_id.time(), &clock::random_id_bytes()),
            lane: redrive_lane(webhook.as_deref(), &old.event_type, priority.unwrap_or(old.priority)),
            priority,
            unless_purged: false,
        };
        let redriven = self.redrive.retry(tenant_id, delivery_id, options, self.clock.now()).await?;
        self.wakeups.claims.wake();
        Ok(redriven)
    }

    /// Delivers an event again: creates one new round per webhook.
    pub(crate) async fn replay(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
        to: ReplayTo,
        priority: Option<Priority>,
    ) -> Result<Vec<DeliveryId>, ReplayError> {
        let Some(stored) = self.history.event(tenant_id.clone(), event_id).await? else {
            return Err(ReplayError::NotFound);
        };
        let urgent = priority.unwrap_or(stored.event.priority);
        let lane =
            |webhook: Option<&ResolvedWebhook>| redrive_lane(webhook, &stored.event.event_type, urgent);
        let rounds = match to {
            ReplayTo::All => self.rounds_for_past_webhooks(&tenant_id, event_id, false, lane).await?,
            ReplayTo::AllTenantManaged => {
                self.rounds_for_past_webhooks(&tenant_id, event_id, true, lane).await?
            }
            ReplayTo::Webhooks(ids) => self.rounds_for_webhooks(&tenant_id, event_id, ids, lane).await?,
        };
        let replayed = self.redrive.replay(tenant_id, event_id, rounds, priority, self.clock.now()).await?;
        self.wakeups.claims.wake();
        match replayed {
            ReplayResult::Done(deliveries) if deliveries.is_empty() => Err(ReplayError::NoTarget),
            ReplayResult::Done(deliveries) => Ok(deliveries),
            ReplayResult::StillPending(delivery_id) => Err(ReplayError::StillPending(delivery_id)),
            ReplayResult::Erased => Err(ReplayError::Erased),
            ReplayResult::NotFound => Err(ReplayError::NotFound),
        }
    }

    async fn rounds_for_past_webhooks(
        &self,
        tenant_id: &TenantId,
        event_id: EventId,
        tenant_managed_only: bool,
        lane: impl Fn(Option<&ResolvedWebhook>) -> Lane,
    ) -> Result<Vec<NewRound>, StoreError> {
        let filter =
            DeliveryFilter { event_id: Some(event_id), tenant_managed_only, ..DeliveryFilter::default() };
        let page = PageRequest { after: None, offset: 0, limit: MAX_DELIVERIES };
        let former = self.history.list_deliveries(tenant_id.clone(), filter, page).await?.found;
        let mut webhooks: Vec<WebhookId> = former.into_iter().map(|delivery| delivery.webhook_id).collect();
        webhooks.sort_unstable();
        webhooks.dedup();
        let mut rounds = Vec::with_capacity(webhooks.len());
        for webhook_id in webhooks {
            let webhook = self.router.get_or_load(webhook_id).await?;
            // A round for any other webhook would be cancelled immediately.
            if let Some(webhook) = webhook.filter(|webhook| webhook.state.receives_events()) {
                rounds.push(NewRound {
                    id: DeliveryId::new(event_id.time(), &clock::random_id_bytes()),
                    webhook_id,
                    lane: lane(Some(&webhook)),
                    format: webhook.payload_format,
                });
            }
        }
        Ok(rounds)
    }

    async fn rounds_for_webhooks(
        &self,
        tenant_id: &TenantId,
        event_id: EventId,
        mut ids: Vec<WebhookId>,
        lane: impl Fn(Option<&ResolvedWebhook>) -> Lane,
    ) -> Result<Vec<NewRound>, ReplayError> {
        ids.sort_unstable();
        ids.dedup();
        let mut rounds = Vec::with_capacity(ids.len());
        for id in ids {
            let found = self.webhooks.webhook(tenant_id.clone(), id).await?;
            let Some(Versioned { webhook, .. }) = found else { return Err(ReplayError::NoWebhook(id)) };
            let resolved = self.router.get_or_load(id).await?;
            rounds.push(NewRound {
                id: DeliveryId::new(event_id.time(), &clock::random_id_bytes()),
                webhook_id: id,
                lane: lane(resolved.as_deref()),
                format: webhook.spec.payload_format,
            });
        }
        Ok(rounds)
    }

    /// Cancels a delivery. A request in flight is allowed to finish: a 2xx response still delivers it.
    pub(crate) async fn cancel(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        webhook_id: WebhookId,
        reason: String,
    ) -> Result<CancelResult, StoreError> {
        let now = self.clock.now();
        let cancelled = self.redrive.cancel(tenant_id.clone(), delivery_id, reason.clone(), now).await?;
        // The next delivery of an ordered lane may be due now.
        self.wakeups.claims.wake();
        match &cancelled {
            CancelResult::Requested => self.recorder.cancel_if_queued(webhook_id, delivery_id, reason),
            CancelResult::Done => self.rollups.record_ended(&tenant_id, DeliveryStatus::Cancelled, 1, now),
            CancelResult::AlreadyEnded(_) | CancelResult::NotFound => {}
        }
        Ok(cancelled)
    }
}

/// Returns the lane of a redriven delivery: a retry lane, or the end of its ordered lane.
pub(crate) fn redrive_lane(webhook: Option<&ResolvedWebhook>, event_type: &str, priority: Priority) -> Lane {
    let ordering = webhook.map(|webhook| webhook.ordering).unwrap_or_default();
    Lane::for_new_delivery(ordering, event_type, priority, true)
}

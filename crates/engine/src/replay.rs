//! Delivering again, or no more, because a person said so.

use redrive_core::{DeliveryId, EventId, TenantId, WebhookId};
use redrive_store::{
    Cancelled, DeliveryFilter, NewRound, Next, PageRequest, Redriven, Replayed, StoreError, Versioned,
};

use crate::{Engine, clock};

/// Which webhooks a replay goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayTo {
    /// Every webhook that the event was delivered to, or was to be.
    All,
    /// These.
    Webhooks(Vec<WebhookId>),
}

/// Why a replay was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// There is no such event.
    #[error("there is no such event")]
    Missing,
    /// There is no such webhook.
    #[error("there is no such webhook: {0}")]
    NoWebhook(WebhookId),
    /// Nothing to do: the event went to no webhook.
    #[error("the event was delivered to no webhook; name the webhooks to send it to")]
    Nobody,
    /// One of them is still under way.
    #[error("delivery {0} of this event is still pending; retry or cancel it first")]
    StillPending(DeliveryId),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The most webhooks that one replay goes to.
const MOST: u32 = 10_000;

impl Engine {
    /// Makes a pending delivery due now, or an ended one a new round.
    pub async fn retry(&self, tenant: TenantId, delivery: DeliveryId) -> Result<Redriven, StoreError> {
        // Ids take their event's time, and so does the old one's.
        let new_round = DeliveryId::new(delivery.time(), &clock::randomness());
        let redriven = self.0.store.retry(tenant, delivery, new_round, self.0.clock.now()).await?;
        self.0.alarm.ring();
        Ok(redriven)
    }

    /// Delivers an event again: one new round for each webhook.
    pub async fn replay(
        &self,
        tenant: TenantId,
        event: EventId,
        to: ReplayTo,
    ) -> Result<Vec<DeliveryId>, ReplayError> {
        let rounds = match to {
            ReplayTo::All => self.former_rounds(&tenant, event).await?,
            ReplayTo::Webhooks(ids) => self.named_rounds(&tenant, event, ids).await?,
        };
        let replayed = self.0.store.replay(tenant, event, rounds, self.0.clock.now()).await?;
        self.0.alarm.ring();
        match replayed {
            Replayed::Done(deliveries) if deliveries.is_empty() => Err(ReplayError::Nobody),
            Replayed::Done(deliveries) => Ok(deliveries),
            Replayed::StillPending(delivery) => Err(ReplayError::StillPending(delivery)),
            Replayed::Missing => Err(ReplayError::Missing),
        }
    }

    async fn former_rounds(&self, tenant: &TenantId, event: EventId) -> Result<Vec<NewRound>, StoreError> {
        let filter = DeliveryFilter { event: Some(event), ..DeliveryFilter::default() };
        let page = PageRequest { after: None, offset: 0, limit: MOST };
        let former = self.0.store.list_deliveries(tenant.clone(), filter, page).await?;
        let mut webhooks: Vec<WebhookId> = former.into_iter().map(|delivery| delivery.webhook).collect();
        webhooks.sort_unstable();
        webhooks.dedup();
        let mut rounds = Vec::with_capacity(webhooks.len());
        for webhook in webhooks {
            let hook = self.0.registry.find(&*self.0.store, webhook).await?;
            let format = hook.map(|hook| hook.webhook.spec.payload_format).unwrap_or_default();
            rounds.push(NewRound {
                id: DeliveryId::new(event.time(), &clock::randomness()),
                webhook,
                format,
            });
        }
        Ok(rounds)
    }

    async fn named_rounds(
        &self,
        tenant: &TenantId,
        event: EventId,
        mut ids: Vec<WebhookId>,
    ) -> Result<Vec<NewRound>, ReplayError> {
        ids.sort_unstable();
        ids.dedup();
        let mut rounds = Vec::with_capacity(ids.len());
        for id in ids {
            let found = self.0.store.webhook(tenant.clone(), id).await?;
            let Some(Versioned { webhook, .. }) = found else { return Err(ReplayError::NoWebhook(id)) };
            rounds.push(NewRound {
                id: DeliveryId::new(event.time(), &clock::randomness()),
                webhook: id,
                format: webhook.spec.payload_format,
            });
        }
        Ok(rounds)
    }

    /// Calls a delivery off. A request that is under way is let finish: 2xx still delivers it.
    pub async fn cancel(
        &self,
        tenant: TenantId,
        delivery: DeliveryId,
        webhook: WebhookId,
        reason: String,
    ) -> Result<Cancelled, StoreError> {
        let now = self.0.clock.now();
        let cancelled = self.0.store.cancel(tenant, delivery, reason.clone(), now).await?;
        if cancelled == Cancelled::Requested
            && let Some(queued) = self.0.dispatch.cancel(webhook, delivery, reason.clone())
        {
            self.0.record_end(queued, Next::Cancelled { reason });
        }
        Ok(cancelled)
    }
}

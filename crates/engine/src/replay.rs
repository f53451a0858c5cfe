//! Delivering again, or no more, because a person said so.

use std::sync::Arc;

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, WebhookId,
    delivery::lane::{Lane, Priority},
};
use redrive_store::{
    Again, Cancelled, DeliveryFilter, NewRound, Next, PageRequest, Redriven, Replayed, StoreError, Versioned,
};

use crate::{Engine, Inner, clock, registry::Hook};

/// Which webhooks a replay goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayTo {
    /// Every webhook that the event was delivered to, or was to be.
    All,
    /// The same without those that the operator manages.
    AllTenantManaged,
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
    /// Nothing to do: the event went to no webhook, or to none that gets events now.
    #[error("no webhook that the event went to gets events now; name the webhooks to send it to")]
    Nobody,
    /// One of them is still under way.
    #[error("delivery {0} of this event is still pending; retry or cancel it first")]
    StillPending(DeliveryId),
    /// There is nothing to send any more.
    #[error("the payload of this event was erased; there is nothing to send again")]
    Erased,
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The most webhooks that one replay goes to.
const MOST: u32 = 10_000;

impl Engine {
    /// Makes a pending delivery due now, or an ended one a new round.
    pub async fn retry(
        &self,
        tenant: TenantId,
        delivery: DeliveryId,
        priority: Option<Priority>,
    ) -> Result<Redriven, StoreError> {
        let Some(old) = self.0.store.delivery(tenant.clone(), delivery).await? else {
            return Ok(Redriven::Missing);
        };
        let hook = self.0.registry.find(&*self.0.store, old.webhook).await?;
        let again = Again {
            // Ids take their event's time, and so does the old one's.
            id: DeliveryId::new(delivery.time(), &clock::randomness()),
            lane: lane(hook.as_deref(), &old.event_type, priority.unwrap_or(old.priority)),
            priority,
            unless_purged: false,
        };
        let redriven = self.0.store.retry(tenant, delivery, again, self.0.clock.now()).await?;
        self.0.alarm.ring();
        Ok(redriven)
    }

    /// Delivers an event again: one new round for each webhook.
    pub async fn replay(
        &self,
        tenant: TenantId,
        event: EventId,
        to: ReplayTo,
        priority: Option<Priority>,
    ) -> Result<Vec<DeliveryId>, ReplayError> {
        let Some(stored) = self.0.store.event(tenant.clone(), event).await? else {
            return Err(ReplayError::Missing);
        };
        let urgent = priority.unwrap_or(stored.event.priority);
        let lane = |hook: Option<&Hook>| lane(hook, &stored.event.event_type, urgent);
        let rounds = match to {
            ReplayTo::All => self.former_rounds(&tenant, event, false, lane).await?,
            ReplayTo::AllTenantManaged => self.former_rounds(&tenant, event, true, lane).await?,
            ReplayTo::Webhooks(ids) => self.named_rounds(&tenant, event, ids, lane).await?,
        };
        let replayed = self.0.store.replay(tenant, event, rounds, priority, self.0.clock.now()).await?;
        self.0.alarm.ring();
        match replayed {
            Replayed::Done(deliveries) if deliveries.is_empty() => Err(ReplayError::Nobody),
            Replayed::Done(deliveries) => Ok(deliveries),
            Replayed::StillPending(delivery) => Err(ReplayError::StillPending(delivery)),
            Replayed::Erased => Err(ReplayError::Erased),
            Replayed::Missing => Err(ReplayError::Missing),
        }
    }

    async fn former_rounds(
        &self,
        tenant: &TenantId,
        event: EventId,
        tenant_managed_only: bool,
        lane: impl Fn(Option<&Hook>) -> Lane,
    ) -> Result<Vec<NewRound>, StoreError> {
        let filter = DeliveryFilter { event: Some(event), tenant_managed_only, ..DeliveryFilter::default() };
        let page = PageRequest { after: None, offset: 0, limit: MOST };
        let former = self.0.store.list_deliveries(tenant.clone(), filter, page).await?.found;
        let mut webhooks: Vec<WebhookId> = former.into_iter().map(|delivery| delivery.webhook).collect();
        webhooks.sort_unstable();
        webhooks.dedup();
        let mut rounds = Vec::with_capacity(webhooks.len());
        for webhook in webhooks {
            let hook = self.0.registry.find(&*self.0.store, webhook).await?;
            // For others a round would be called off at once.
            if let Some(hook) = hook.filter(|hook| hook.state.gets_events()) {
                rounds.push(NewRound {
                    id: DeliveryId::new(event.time(), &clock::randomness()),
                    webhook,
                    lane: lane(Some(&hook)),
                    format: hook.payload_format,
                });
            }
        }
        Ok(rounds)
    }

    async fn named_rounds(
        &self,
        tenant: &TenantId,
        event: EventId,
        mut ids: Vec<WebhookId>,
        lane: impl Fn(Option<&Hook>) -> Lane,
    ) -> Result<Vec<NewRound>, ReplayError> {
        ids.sort_unstable();
        ids.dedup();
        let mut rounds = Vec::with_capacity(ids.len());
        for id in ids {
            let found = self.0.store.webhook(tenant.clone(), id).await?;
            let Some(Versioned { webhook, .. }) = found else { return Err(ReplayError::NoWebhook(id)) };
            let hook = self.0.registry.find(&*self.0.store, id).await?;
            rounds.push(NewRound {
                id: DeliveryId::new(event.time(), &clock::randomness()),
                webhook: id,
                lane: lane(hook.as_deref()),
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
        let cancelled = self.0.store.cancel(tenant.clone(), delivery, reason.clone(), now).await?;
        // Whatever came after it in its order may go now.
        self.0.alarm.ring();
        match &cancelled {
            Cancelled::Requested => self.0.call_off_here(webhook, delivery, reason),
            Cancelled::Done => self.0.health.ended(&tenant, DeliveryStatus::Cancelled, 1, now),
            Cancelled::Over(_) | Cancelled::Missing => {}
        }
        Ok(cancelled)
    }
}

impl Inner {
    /// Calls a delivery off that a node has, should it be this one and have it queued only.
    pub(crate) fn call_off_here(self: &Arc<Self>, webhook: WebhookId, delivery: DeliveryId, reason: String) {
        if let Some(queued) = self.dispatch.cancel(webhook, delivery, reason.clone()) {
            self.record_end(queued, Next::Cancelled { reason }.into());
        }
    }
}

/// The lane of something that is sent again: apart from what is fresh, or at the back of its order.
pub(crate) fn lane(hook: Option<&Hook>, event_type: &str, priority: Priority) -> Lane {
    let ordering = hook.map(|hook| hook.ordering).unwrap_or_default();
    Lane::at_birth(ordering, event_type, priority, true)
}

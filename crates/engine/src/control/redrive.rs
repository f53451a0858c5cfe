//! Manual redelivery and cancellation: retry, replay, cancel.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, WebhookId,
    delivery::lane::{Lane, Priority},
};
use redrive_store::{
    CancelResult, Delivery, DeliveryFilter, NewRound, PageRequest, RedriveOptions, RedriveResult,
    ReplayResult, StoreError, Versioned,
};

use super::Control;
use crate::{clock, routing::ResolvedWebhook};

/// Target webhooks of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayTo {
    /// Every webhook that has a delivery of the event.
    Past(PastWebhooks),
    /// The given webhooks.
    Webhooks(Vec<WebhookId>),
}

/// Which of the webhooks that have a delivery of an event a replay sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastWebhooks {
    /// Whether webhooks that the operator manages are left out.
    pub tenant_managed_only: bool,
    /// Whether webhooks that have received the event receive it again.
    pub include_delivered: bool,
}

/// What a replay created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayReceipt {
    /// The new deliveries, one for each webhook.
    pub delivery_ids: Vec<DeliveryId>,
    /// Number of target webhooks that had received the event before, left out or not.
    pub already_delivered: usize,
}

/// What a replay would create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayCount {
    /// Number of new deliveries.
    pub total: usize,
    /// Number of target webhooks that had received the event before, left out or not.
    pub already_delivered: usize,
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

/// The rounds that a replay creates, and what they were decided from.
struct ReplayPlan {
    rounds: Vec<NewRound>,
    /// Number of target webhooks that had received the event before.
    already_delivered: usize,
    /// Deliveries of the event.
    former: Vec<Delivery>,
    is_erased: bool,
}

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
    ) -> Result<ReplayReceipt, ReplayError> {
        let plan = self.plan_replay(&tenant_id, event_id, to, priority).await?;
        let already_delivered = plan.already_delivered;
        if plan.is_erased {
            return Err(ReplayError::Erased);
        }
        if plan.rounds.is_empty() && already_delivered > 0 {
            return Ok(ReplayReceipt { delivery_ids: Vec::new(), already_delivered });
        }
        let now = self.clock.now();
        let replayed = self.redrive.replay(tenant_id, event_id, plan.rounds, priority, now).await?;
        self.wakeups.claims.wake();
        match replayed {
            ReplayResult::Done(deliveries) if deliveries.is_empty() => Err(ReplayError::NoTarget),
            ReplayResult::Done(delivery_ids) => Ok(ReplayReceipt { delivery_ids, already_delivered }),
            ReplayResult::StillPending(delivery_id) => Err(ReplayError::StillPending(delivery_id)),
            ReplayResult::Erased => Err(ReplayError::Erased),
            ReplayResult::NotFound => Err(ReplayError::NotFound),
        }
    }

    /// Counts what a replay would create. Fails as the replay would.
    pub(crate) async fn count_replay(
        &self,
        tenant_id: &TenantId,
        event_id: EventId,
        to: ReplayTo,
    ) -> Result<ReplayCount, ReplayError> {
        let plan = self.plan_replay(tenant_id, event_id, to, None).await?;
        if plan.is_erased {
            return Err(ReplayError::Erased);
        }
        let targets: BTreeSet<_> = plan.rounds.iter().map(|round| round.webhook_id).collect();
        let is_pending = |one: &&Delivery| !one.status.is_final() && targets.contains(&one.webhook_id);
        match plan.former.iter().find(is_pending) {
            Some(pending) => Err(ReplayError::StillPending(pending.id)),
            None if targets.is_empty() && plan.already_delivered == 0 => Err(ReplayError::NoTarget),
            None => Ok(ReplayCount { total: targets.len(), already_delivered: plan.already_delivered }),
        }
    }

    /// Decides which rounds a replay creates.
    async fn plan_replay(
        &self,
        tenant_id: &TenantId,
        event_id: EventId,
        to: ReplayTo,
        priority: Option<Priority>,
    ) -> Result<ReplayPlan, ReplayError> {
        let Some(stored) = self.history.event(tenant_id.clone(), event_id).await? else {
            return Err(ReplayError::NotFound);
        };
        let urgent = priority.unwrap_or(stored.event.priority);
        let lane =
            |webhook: Option<&ResolvedWebhook>| redrive_lane(webhook, &stored.event.event_type, urgent);
        let former = self.former_deliveries(tenant_id, event_id, &to).await?;
        // Whether each webhook that has a delivery of the event has received it.
        let mut past: HashMap<WebhookId, bool> = HashMap::new();
        for delivery in &former {
            *past.entry(delivery.webhook_id).or_default() |= delivery.status == DeliveryStatus::Delivered;
        }
        let (rounds, already_delivered) = match to {
            ReplayTo::Past(PastWebhooks { include_delivered, .. }) => {
                self.rounds_for_past_webhooks(event_id, &past, include_delivered, lane).await?
            }
            ReplayTo::Webhooks(ids) => {
                let rounds = self.rounds_for_webhooks(tenant_id, event_id, ids, lane).await?;
                let has_received = |round: &&NewRound| past.get(&round.webhook_id) == Some(&true);
                let already_delivered = rounds.iter().filter(has_received).count();
                (rounds, already_delivered)
            }
        };
        Ok(ReplayPlan { rounds, already_delivered, former, is_erased: stored.event.is_erased() })
    }

    /// Reads the deliveries of an event that its replay considers.
    async fn former_deliveries(
        &self,
        tenant_id: &TenantId,
        event_id: EventId,
        to: &ReplayTo,
    ) -> Result<Vec<Delivery>, StoreError> {
        let (webhooks, tenant_managed_only) = match to {
            ReplayTo::Past(past) => (Vec::new(), past.tenant_managed_only),
            ReplayTo::Webhooks(ids) => (ids.clone(), false),
        };
        let event_id = Some(event_id);
        let filter = DeliveryFilter { event_id, webhooks, tenant_managed_only, ..DeliveryFilter::default() };
        let page = PageRequest { after: None, offset: 0, limit: MAX_DELIVERIES };
        Ok(self.history.list_deliveries(tenant_id.clone(), filter, page).await?.found)
    }

    /// Returns the rounds for webhooks that have a delivery of the event, and how many of them have received it.
    async fn rounds_for_past_webhooks(
        &self,
        event_id: EventId,
        past: &HashMap<WebhookId, bool>,
        include_delivered: bool,
        lane: impl Fn(Option<&ResolvedWebhook>) -> Lane,
    ) -> Result<(Vec<NewRound>, usize), StoreError> {
        let mut webhooks: Vec<_> = past.iter().map(|(id, has_received)| (*id, *has_received)).collect();
        webhooks.sort_unstable();
        let mut rounds = Vec::with_capacity(webhooks.len());
        let mut already_delivered = 0;
        for (webhook_id, has_received) in webhooks {
            let webhook = self.router.get_or_load(webhook_id).await?;
            // A round for any other webhook would be cancelled immediately.
            let Some(webhook) = webhook.filter(|webhook| webhook.state.receives_events()) else { continue };
            already_delivered += usize::from(has_received);
            if include_delivered || !has_received {
                rounds.push(NewRound {
                    id: DeliveryId::new(event_id.time(), &clock::random_id_bytes()),
                    webhook_id,
                    lane: lane(Some(&webhook)),
                    format: webhook.payload_format,
                });
            }
        }
        Ok((rounds, already_delivered))
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

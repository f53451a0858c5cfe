//! History of deliveries: attempts, and periods during which an open circuit blocked the delivery.

use std::{collections::HashMap, time::Duration};

use redrive_core::{AttemptId, DeliveryId, EventId, TenantId, Time, WebhookId, event::Event};
use redrive_store::{
    AttemptCount, AttemptCursor, AttemptFilter, CircuitPeriod, Delivery, DeliveryCursor, DeliveryFilter,
    ListedAttempt, ListingPage, PageRequest, StoredAttempt,
};

pub use super::blocked::BlockedPeriod;
use super::{App, AppError, TenantSelection, TenantView, across_tenants::ObjectId, blocked::blocked};

/// Maximum number of open periods read for one delivery, newest first.
const MAX_PERIODS: usize = 100;
/// Deliveries of an event read per page.
const PAGE_SIZE: u32 = 1_000;

/// Entry in the history of a delivery.
#[derive(Clone, Debug)]
pub enum HistoryEntry {
    /// Attempt.
    Attempt(StoredAttempt),
    /// Period during which the circuit blocked the delivery.
    Blocked(BlockedPeriod),
}

/// Delivery and its history, oldest entry first.
#[derive(Clone, Debug)]
pub struct DeliveryHistory {
    /// The delivery.
    pub delivery: Delivery,
    /// History entries.
    pub entries: Vec<HistoryEntry>,
}

impl App {
    /// Lists attempts, newest first. A webhook that the caller may not see has none. Over all tenants, a webhook in the
    /// filter selects its tenant.
    pub async fn list_attempts(
        &self,
        tenants: impl Into<TenantSelection>,
        filter: AttemptFilter,
        page: PageRequest<AttemptCursor>,
    ) -> Result<ListingPage<ListedAttempt, AttemptCursor>, AppError> {
        let nothing = ListingPage { found: Vec::new(), stopped: None };
        let view = match (tenants.into(), filter.webhook_id) {
            (TenantSelection::One(view), _) => view,
            (TenantSelection::All(all), None) => return self.read_all_attempts(all, filter, page).await,
            (TenantSelection::All(all), Some(id)) => {
                match self.tenant_of(all, ObjectId::Webhook(id)).await? {
                    Some(tenant_id) => tenant_id.into(),
                    None => return Ok(nothing),
                }
            }
        };
        if let Some(webhook_id) = filter.webhook_id {
            match self.require_known_webhook(&view, webhook_id).await {
                Err(AppError::NotFound(_)) => return Ok(nothing),
                known => known?,
            }
        }
        let tenant_managed_only = filter.tenant_managed_only || view.tenant_managed_only;
        let filter = AttemptFilter { tenant_managed_only, ..filter };
        Ok(self.store().list_attempts(view.id, filter, page).await?)
    }

    /// Counts the attempts to a webhook since a time by their result, the newest `max`: all but prompt successes, which
    /// the attempt index does not have.
    pub async fn attempts_by_result(
        &self,
        view: &TenantView,
        webhook_id: WebhookId,
        from: Time,
        max: usize,
    ) -> Result<Vec<AttemptCount>, AppError> {
        self.require_known_webhook(view, webhook_id).await?;
        Ok(self.store().count_indexed_attempts(view.id.clone(), webhook_id, from, max).await?)
    }

    /// Returns an attempt with its event.
    pub async fn attempt(
        &self,
        tenant: impl Into<TenantView>,
        id: AttemptId,
    ) -> Result<(StoredAttempt, Event), AppError> {
        let view = tenant.into();
        let missing = || AppError::NotFound("attempt");
        let stored = self.store().attempt(view.id.clone(), id).await?.ok_or_else(missing)?;
        match self.require_known_webhook(&view, stored.webhook_id).await {
            Err(AppError::NotFound(_)) => return Err(missing()),
            known => known?,
        }
        let event = self.store().event(view.id, stored.event_id).await?.ok_or_else(missing)?.event;
        Ok((stored, event))
    }

    /// Returns the history of one delivery.
    pub async fn history(
        &self,
        tenant: impl Into<TenantView>,
        id: DeliveryId,
    ) -> Result<DeliveryHistory, AppError> {
        let view = tenant.into();
        let delivery = self.delivery(&view, id).await?.delivery;
        let attempts = self.store().attempts(view.id.clone(), id).await?;
        let attempts = attempts.ok_or(AppError::NotFound("delivery"))?;
        let context = self.blocking_context(&view.id, std::slice::from_ref(&delivery)).await?;
        Ok(self.add_blocked_periods(delivery, attempts, &context))
    }

    /// Returns the histories of all deliveries of an event, oldest delivery first.
    pub async fn histories_of_event(
        &self,
        tenant: impl Into<TenantView>,
        event_id: EventId,
    ) -> Result<Vec<DeliveryHistory>, AppError> {
        let tenant = tenant.into();
        let attempts = self.store().attempts_of_event(tenant.id.clone(), event_id).await?;
        let mut by_delivery: HashMap<DeliveryId, Vec<StoredAttempt>> = HashMap::new();
        for attempt in attempts.ok_or(AppError::NotFound("event"))? {
            by_delivery.entry(attempt.delivery_id).or_default().push(attempt);
        }
        let deliveries = self.deliveries_of_event(tenant.clone(), event_id).await?;
        let context = self.blocking_context(&tenant, &deliveries).await?;
        let mut histories = Vec::with_capacity(deliveries.len());
        for details in self.details_for_all(deliveries).await? {
            let attempts = by_delivery.remove(&details.delivery.id).unwrap_or_default();
            histories.push(self.add_blocked_periods(details.delivery, attempts, &context));
        }
        Ok(histories)
    }

    async fn deliveries_of_event(
        &self,
        tenant: TenantView,
        event_id: EventId,
    ) -> Result<Vec<Delivery>, AppError> {
        let filter =
            tenant.restrict(DeliveryFilter { event_id: Some(event_id), ..DeliveryFilter::default() });
        let mut deliveries: Vec<Delivery> = Vec::new();
        loop {
            let after = deliveries
                .last()
                .map(|last| DeliveryCursor { event_id: last.event_id, delivery_id: last.id });
            let page = PageRequest { after, offset: 0, limit: PAGE_SIZE };
            let found = self.store().list_deliveries(tenant.id.clone(), filter.clone(), page).await?.found;
            let is_last = found.len() < PAGE_SIZE as usize;
            deliveries.extend(found);
            if is_last {
                deliveries.sort_by_key(|delivery| (delivery.created_at, delivery.id));
                return Ok(deliveries);
            }
        }
    }

    /// Reads what is needed to compute the blocked periods of these deliveries, with few reads for all of them.
    async fn blocking_context(
        &self,
        tenant_id: &TenantId,
        deliveries: &[Delivery],
    ) -> Result<BlockingContext, AppError> {
        let Some(from) = deliveries.iter().map(|delivery| delivery.created_at).min() else {
            return Ok(BlockingContext::default());
        };
        let mut ids: Vec<_> = deliveries.iter().map(|delivery| delivery.webhook_id).collect();
        ids.sort_unstable();
        ids.dedup();
        let periods = self.store().circuit_periods_of(tenant_id.clone(), ids, from, MAX_PERIODS).await?;
        let mut context =
            BlockingContext { periods: periods.into_iter().collect(), ..BlockingContext::default() };
        if !context.periods.is_empty() {
            let blocked = context.periods.keys().copied().collect();
            for webhook in self.store().tenant_webhooks_by_id(tenant_id.clone(), blocked).await? {
                if let Ok(policy) = webhook.spec.retry_config.resolve(&self.rules.retry) {
                    context.first_delays.insert(webhook.id, policy.first_delay());
                }
            }
        }
        Ok(context)
    }

    fn add_blocked_periods(
        &self,
        delivery: Delivery,
        attempts: Vec<StoredAttempt>,
        context: &BlockingContext,
    ) -> DeliveryHistory {
        let periods = context.periods.get(&delivery.webhook_id).map_or(&[][..], Vec::as_slice);
        // Periods were read for all deliveries: ignore those that ended before this delivery was created.
        let is_later = |period: &&CircuitPeriod| period.ended_at.is_none_or(|at| at > delivery.created_at);
        let periods: Vec<_> = periods.iter().filter(is_later).cloned().collect();
        let tried: Vec<_> = attempts.iter().map(|stored| &stored.attempt).collect();
        let first_due = context.first_due(&delivery);
        let held_back = blocked(&delivery, first_due, &tried, &periods, self.engine.clock().now());
        let mut entries: Vec<HistoryEntry> = held_back.into_iter().map(HistoryEntry::Blocked).collect();
        entries.extend(attempts.into_iter().map(HistoryEntry::Attempt));
        entries.sort_by_key(|entry| match entry {
            HistoryEntry::Attempt(stored) => stored.attempt.executed_at,
            HistoryEntry::Blocked(blocked) => blocked.since,
        });
        DeliveryHistory { delivery, entries }
    }
}

/// Open periods of webhooks, and the delay of their first attempts.
#[derive(Default)]
struct BlockingContext {
    periods: HashMap<WebhookId, Vec<CircuitPeriod>>,
    first_delays: HashMap<WebhookId, Duration>,
}

impl BlockingContext {
    /// Returns when the first attempt of a delivery was originally due. A later round is sent immediately.
    fn first_due(&self, delivery: &Delivery) -> Time {
        let delay = self.first_delays.get(&delivery.webhook_id).filter(|_| delivery.round == 1);
        delivery.created_at + delay.copied().unwrap_or(Duration::ZERO)
    }
}

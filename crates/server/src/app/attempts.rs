//! The history of deliveries: what was tried, and when a circuit held them back.

use std::{collections::HashMap, time::Duration};

use redrive_core::{DeliveryId, EventId, TenantId, Time, WebhookId};
use redrive_store::{Delivery, DeliveryCursor, DeliveryFilter, PageRequest, Period, StoredAttempt};

pub use super::blocked::Blocked;
use super::{App, AppError, TenantView, blocked::blocked};

/// Open periods that are looked at for one delivery: the newest.
const PERIODS: usize = 100;
/// Deliveries of an event that are read at a time.
const STEP: u32 = 1_000;

/// One line of a delivery's history.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A try.
    Attempt(StoredAttempt),
    /// A time for which its circuit held it back.
    Blocked(Blocked),
}

/// A delivery and its history, first to last.
#[derive(Clone, Debug)]
pub struct History {
    /// The delivery.
    pub delivery: Delivery,
    /// What happened to it.
    pub entries: Vec<Entry>,
}

impl App {
    /// The history of one delivery.
    pub async fn history(&self, tenant: impl Into<TenantView>, id: DeliveryId) -> Result<History, AppError> {
        let view = tenant.into();
        let delivery = self.delivery(&view, id).await?.delivery;
        let attempts = self.store().attempts(view.id.clone(), id).await?;
        let attempts = attempts.ok_or(AppError::NotFound("delivery"))?;
        let context = self.blocking_context(&view.id, std::slice::from_ref(&delivery)).await?;
        Ok(self.with_blocked(delivery, attempts, &context))
    }

    /// The histories of all deliveries of an event, the oldest delivery first.
    pub async fn histories_of_event(
        &self,
        tenant: impl Into<TenantView>,
        event: EventId,
    ) -> Result<Vec<History>, AppError> {
        let tenant = tenant.into();
        let attempts = self.store().attempts_of_event(tenant.id.clone(), event).await?;
        let mut by_delivery: HashMap<DeliveryId, Vec<StoredAttempt>> = HashMap::new();
        for attempt in attempts.ok_or(AppError::NotFound("event"))? {
            by_delivery.entry(attempt.delivery).or_default().push(attempt);
        }
        let deliveries = self.deliveries_of_event(tenant.clone(), event).await?;
        let context = self.blocking_context(&tenant, &deliveries).await?;
        let mut histories = Vec::with_capacity(deliveries.len());
        for seen in self.see_all(deliveries).await? {
            let attempts = by_delivery.remove(&seen.delivery.id).unwrap_or_default();
            histories.push(self.with_blocked(seen.delivery, attempts, &context));
        }
        Ok(histories)
    }

    async fn deliveries_of_event(
        &self,
        tenant: TenantView,
        event: EventId,
    ) -> Result<Vec<Delivery>, AppError> {
        let filter = tenant.restrict(DeliveryFilter { event: Some(event), ..DeliveryFilter::default() });
        let mut deliveries: Vec<Delivery> = Vec::new();
        loop {
            let after = deliveries.last().map(|last| DeliveryCursor { event: last.event, delivery: last.id });
            let page = PageRequest { after, offset: 0, limit: STEP };
            let found = self.store().list_deliveries(tenant.id.clone(), filter.clone(), page).await?.found;
            let is_last = found.len() < STEP as usize;
            deliveries.extend(found);
            if is_last {
                deliveries.sort_by_key(|delivery| (delivery.created_at, delivery.id));
                return Ok(deliveries);
            }
        }
    }

    /// What is needed to find out when circuits blocked these deliveries, with few reads for all of them.
    async fn blocking_context(
        &self,
        tenant: &TenantId,
        deliveries: &[Delivery],
    ) -> Result<BlockingContext, AppError> {
        let Some(from) = deliveries.iter().map(|delivery| delivery.created_at).min() else {
            return Ok(BlockingContext::default());
        };
        let mut ids: Vec<_> = deliveries.iter().map(|delivery| delivery.webhook).collect();
        ids.sort_unstable();
        ids.dedup();
        let periods = self.store().circuit_periods_of(tenant.clone(), ids, from, PERIODS).await?;
        let mut context =
            BlockingContext { periods: periods.into_iter().collect(), ..BlockingContext::default() };
        if !context.periods.is_empty() {
            let blocked = context.periods.keys().copied().collect();
            for webhook in self.store().tenant_webhooks_by_id(tenant.clone(), blocked).await? {
                if let Ok(policy) = webhook.spec.retry_config.resolve(&self.rules.retry) {
                    context.first_delays.insert(webhook.id, policy.first_delay());
                }
            }
        }
        Ok(context)
    }

    fn with_blocked(
        &self,
        delivery: Delivery,
        attempts: Vec<StoredAttempt>,
        context: &BlockingContext,
    ) -> History {
        let periods = context.periods.get(&delivery.webhook).map_or(&[][..], Vec::as_slice);
        // Periods were read for all deliveries: those that were over before this one began do not count.
        let is_later = |period: &&Period| period.ended_at.is_none_or(|at| at > delivery.created_at);
        let periods: Vec<_> = periods.iter().filter(is_later).cloned().collect();
        let tried: Vec<_> = attempts.iter().map(|stored| &stored.attempt).collect();
        let first_due = context.first_due(&delivery);
        let held_back = blocked(&delivery, first_due, &tried, &periods, self.engine.clock().now());
        let mut entries: Vec<Entry> = held_back.into_iter().map(Entry::Blocked).collect();
        entries.extend(attempts.into_iter().map(Entry::Attempt));
        entries.sort_by_key(|entry| match entry {
            Entry::Attempt(stored) => stored.attempt.executed_at,
            Entry::Blocked(blocked) => blocked.since,
        });
        History { delivery, entries }
    }
}

/// The open periods of webhooks, and the delay of their first attempts.
#[derive(Default)]
struct BlockingContext {
    periods: HashMap<WebhookId, Vec<Period>>,
    first_delays: HashMap<WebhookId, Duration>,
}

impl BlockingContext {
    /// When the first attempt of a delivery was due originally. A new round is sent immediately.
    fn first_due(&self, delivery: &Delivery) -> Time {
        let delay = self.first_delays.get(&delivery.webhook).filter(|_| delivery.round == 1);
        delivery.created_at + delay.copied().unwrap_or(Duration::ZERO)
    }
}

//! The history of deliveries: what was tried, and when a circuit held them back.

use std::{collections::HashMap, time::Duration};

use redrive_core::{DeliveryId, EventId, Time};
use redrive_store::{Delivery, DeliveryCursor, DeliveryFilter, PageRequest, StoredAttempt};

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
        let attempts = self.store().attempts(view.id, id).await?;
        let attempts = attempts.ok_or(AppError::NotFound("delivery"))?;
        self.with_blocked(delivery, attempts).await
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
        let mut histories = Vec::new();
        for delivery in self.deliveries_of_event(tenant, event).await? {
            let attempts = by_delivery.remove(&delivery.id).unwrap_or_default();
            let delivery = self.see(delivery).await?.delivery;
            histories.push(self.with_blocked(delivery, attempts).await?);
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

    async fn with_blocked(
        &self,
        delivery: Delivery,
        attempts: Vec<StoredAttempt>,
    ) -> Result<History, AppError> {
        let periods = self.store().circuit_periods(delivery.webhook, delivery.created_at, PERIODS).await?;
        let tried: Vec<_> = attempts.iter().map(|stored| &stored.attempt).collect();
        let first_due = match periods.is_empty() {
            true => delivery.created_at,
            false => self.first_due(&delivery).await?,
        };
        let held_back = blocked(&delivery, first_due, &tried, &periods, self.engine.clock().now());
        let mut entries: Vec<Entry> = held_back.into_iter().map(Entry::Blocked).collect();
        entries.extend(attempts.into_iter().map(Entry::Attempt));
        entries.sort_by_key(|entry| match entry {
            Entry::Attempt(stored) => stored.attempt.executed_at,
            Entry::Blocked(blocked) => blocked.since,
        });
        Ok(History { delivery, entries })
    }

    /// When the first attempt of a delivery was due to begin with: what is sent again is sent at once.
    async fn first_due(&self, delivery: &Delivery) -> Result<Time, AppError> {
        let webhooks = self.store().webhooks_by_id(vec![delivery.webhook]).await?;
        let policy = webhooks.first().and_then(|hook| hook.spec.retry_config.resolve(&self.rules.retry).ok());
        let wait = match (delivery.round, policy) {
            (1, Some(policy)) => policy.first_delay(),
            _ => Duration::ZERO,
        };
        Ok(delivery.created_at + wait)
    }
}

//! How much a tenant may have and do.
//!
//! What a tenant published today is told by the places of its events in its sequence: the last one before midnight,
//! by UTC, and the last one now. So nothing is counted, and other nodes' events count as soon as one is published
//! here. A few may slip through that are published at the same moment.

use std::collections::HashMap;

use parking_lot::Mutex;
use redrive_core::{TenantId, Time};
use redrive_store::{EventFilter, PageRequest};

use super::{App, AppError};

const DAY: i64 = 24 * 3600 * 1000;

/// How many events tenants have published today, of those that may not publish any number.
#[derive(Default)]
pub(super) struct Quotas(Mutex<HashMap<TenantId, Today>>);

#[derive(Clone, Copy)]
struct Today {
    day: i64,
    /// The place of the last event before today, and of the last one there is.
    before: i64,
    last: i64,
    /// Events that are being published.
    under_way: i64,
}

impl Quotas {
    /// Reserves a place for an event, if there is one left.
    fn reserve(&self, tenant: &TenantId, day: i64, most: i64) -> bool {
        let mut known = self.0.lock();
        let Some(today) = known.get_mut(tenant).filter(|today| today.day == day) else { return false };
        let free = today.last - today.before + today.under_way < most;
        today.under_way += i64::from(free);
        free
    }
}

impl App {
    /// Refuses an event that is one too many, or too large, for its tenant. True: a place was reserved for it, see
    /// [`Self::settle_place`].
    pub(super) async fn check_event_quotas(&self, tenant: &TenantId, size: usize) -> Result<bool, AppError> {
        self.engine.learn(tenant).await?;
        let quotas = self.engine.registry().tenancy(tenant).quotas();
        if let Some(most) = quotas.max_payload_bytes.filter(|most| size > *most as usize) {
            return Err(AppError::TooLarge(format!(
                "data is {size} bytes; this tenant may send {most}. Publish a reference to larger content instead"
            )));
        }
        let Some(most) = quotas.max_events_per_day else { return Ok(false) };
        let now = self.engine.clock().now();
        let day = self.learn_today(tenant, now).await?;
        if self.quotas.reserve(tenant, day, i64::from(most)) {
            return Ok(true);
        }
        let midnight = (day + 1) * DAY;
        Err(AppError::OverQuota {
            detail: format!(
                "this tenant has published its {most} events of today; publish again from {}, or have its quota raised",
                Time::from_millis(midnight)
            ),
            retry_after: u64::try_from((midnight - now.millis()) / 1000 + 1).unwrap_or(1),
        })
    }

    /// Sees to it that what was published today is known. Gives the day.
    async fn learn_today(&self, tenant: &TenantId, now: Time) -> Result<i64, AppError> {
        let day = now.millis().div_euclid(DAY);
        if self.quotas.0.lock().get(tenant).is_some_and(|today| today.day == day) {
            return Ok(day);
        }
        let before = self.last_place(tenant, Some(Time::from_millis(day * DAY))).await?;
        let last = self.last_place(tenant, None).await?.max(before);
        let mut known = self.quotas.0.lock();
        let under_way = known.get(tenant).map_or(0, |today| today.under_way);
        known.insert(tenant.clone(), Today { day, before, last, under_way });
        Ok(day)
    }

    /// The place of a tenant's last event before a time; 0 if there is none.
    async fn last_place(&self, tenant: &TenantId, before: Option<Time>) -> Result<i64, AppError> {
        let filter = EventFilter { to: before, ..EventFilter::default() };
        let page = PageRequest { after: None, offset: 0, limit: 1 };
        let found = self.store().list_events(tenant.clone(), filter, page).await?;
        Ok(found.first().map_or(0, |stored| stored.sequence_number))
    }

    /// Notes the place that an event was given, if it was, in return for the one that was reserved.
    pub(super) fn settle_place(&self, tenant: &TenantId, place: Option<i64>) {
        if let Some(today) = self.quotas.0.lock().get_mut(tenant) {
            today.under_way -= 1;
            today.last = today.last.max(place.unwrap_or_default());
        }
    }

    /// Refuses a webhook that is one too many for its tenant.
    pub(super) async fn check_webhook_quota(&self, tenant: &TenantId) -> Result<(), AppError> {
        let Some(found) = self.store().tenant(tenant.clone()).await? else {
            return Err(AppError::NotFound("tenant"));
        };
        let Some(most) = found.rules.quotas.max_webhooks else { return Ok(()) };
        let page = PageRequest { after: None, offset: 0, limit: most };
        if self.store().list_webhooks(tenant.clone(), page).await?.len() < most as usize {
            return Ok(());
        }
        Err(AppError::conflict(
            "quota_exceeded",
            format!("this tenant may have {most} webhooks; delete one, or have its quota raised"),
        ))
    }
}

//! How much a tenant may have and do.
//!
//! What other nodes have published today is known as soon as something is published here. A few events may slip
//! through that are published on several nodes at the same moment.

use std::collections::HashMap;

use parking_lot::Mutex;
use redrive_core::{TenantId, Time, tenancy::quota::Today};
use redrive_store::{EventFilter, PageRequest, Visibility};

use super::{App, AppError};

/// What tenants have published today, of those that may not publish any number.
#[derive(Default)]
pub(super) struct Quotas(Mutex<HashMap<TenantId, Today>>);

/// A place among today's events of a tenant; given back when it is dropped, whatever became of the event.
pub(super) struct Reserved<'a> {
    quotas: &'a Quotas,
    tenant: TenantId,
    /// The place that the event was given in the tenant's sequence, if it was.
    pub(super) place: Option<i64>,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(today) = self.quotas.0.lock().get_mut(&self.tenant) {
            today.settle(self.place);
        }
    }
}

impl App {
    /// Refuses an event that is one too many, or too large, for its tenant. Where events are numbered, a place is
    /// reserved for it.
    pub(super) async fn check_event_quotas(
        &self,
        tenant: &TenantId,
        size: usize,
    ) -> Result<Option<Reserved<'_>>, AppError> {
        self.engine.learn(tenant).await?;
        let quotas = self.engine.registry().tenancy(tenant).quotas();
        if let Some(most) = quotas.max_payload_bytes.filter(|most| size > *most as usize) {
            return Err(AppError::TooLarge(format!(
                "data is {size} bytes; this tenant may send {most}. Publish a reference to larger content instead"
            )));
        }
        let Some(most) = quotas.max_events_per_day else { return Ok(None) };
        let now = self.engine.clock().now();
        self.learn_today(tenant, now).await?;
        let mut known = self.quotas.0.lock();
        let Some(today) = known.get_mut(tenant) else { return Ok(None) };
        if today.reserve(most) {
            return Ok(Some(Reserved { quotas: &self.quotas, tenant: tenant.clone(), place: None }));
        }
        let ends = today.ends();
        drop(known);
        let detail = format!(
            "this tenant has published its {most} events of today; publish again from {ends}, or have its quota raised"
        );
        self.engine.quota_reached(tenant, "max_events_per_day", &detail, Some(ends));
        Err(AppError::OverQuota { detail, retry_after: ends.since(now).as_secs() + 1 })
    }

    /// Sees to it that what was published today is known.
    async fn learn_today(&self, tenant: &TenantId, now: Time) -> Result<(), AppError> {
        if self.quotas.0.lock().get(tenant).is_some_and(|today| today.is(now)) {
            return Ok(());
        }
        let before = self.last_place(tenant, Some(Today::began(now))).await?;
        let today = Today::new(now, before, self.last_place(tenant, None).await?);
        self.quotas.0.lock().entry(tenant.clone()).or_insert(today).turn_to(today);
        Ok(())
    }

    /// The place of a tenant's last event before a time; 0 if there is none.
    async fn last_place(&self, tenant: &TenantId, before: Option<Time>) -> Result<i64, AppError> {
        let filter = EventFilter { to: before, ..EventFilter::default() };
        let page = PageRequest { after: None, offset: 0, limit: 1 };
        let found = self.store().list_events(tenant.clone(), filter, page).await?;
        Ok(found.found.first().map_or(0, |stored| stored.sequence_number))
    }

    /// Whether a tenant has this many webhooks.
    async fn has_webhooks(&self, tenant: &TenantId, count: u32) -> Result<bool, AppError> {
        let Some(offset) = count.checked_sub(1) else { return Ok(true) };
        let page = PageRequest { after: None, offset, limit: 1 };
        Ok(!self.store().list_webhooks(tenant.clone(), Visibility::All, page).await?.is_empty())
    }

    /// Refuses a webhook that is one too many for its tenant.
    pub(super) async fn check_webhook_quota(&self, tenant: &TenantId) -> Result<(), AppError> {
        let Some(found) = self.store().tenant(tenant.clone()).await? else {
            return Err(AppError::NotFound("tenant"));
        };
        let cap = self.engine.registry().caps().webhooks_per_tenant;
        if let Some(cap) = cap
            && self.has_webhooks(tenant, cap).await?
        {
            let detail = format!(
                "a tenant may have {cap} webhooks, the operator's limits.caps.webhooks_per_tenant; delete one"
            );
            return Err(AppError::conflict("cap_reached", detail));
        }
        let Some(most) = found.rules.quotas.max_webhooks else { return Ok(()) };
        if !self.has_webhooks(tenant, most).await? {
            return Ok(());
        }
        let detail = format!("this tenant may have {most} webhooks; delete one, or have its quota raised");
        self.engine.quota_reached(tenant, "max_webhooks", &detail, None);
        Err(AppError::conflict("quota_exceeded", detail))
    }
}

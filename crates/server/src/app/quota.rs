//! Quotas of tenants.
//!
//! The number of events published today on other nodes is taken from the sequence number of each event published
//! here. Events published on several nodes at the same moment may exceed a quota slightly.

use std::collections::HashMap;

use parking_lot::Mutex;
use redrive_core::{TenantId, Time, tenancy::quota::DailyUsage};
use redrive_store::{EventFilter, PageRequest, Visibility};

use super::{App, AppError, ErrorCode};

/// Daily usage of tenants that have a limit.
#[derive(Default)]
pub(super) struct Quotas(Mutex<HashMap<TenantId, DailyUsage>>);

/// Reservation of one of today's events of a tenant; released on drop, whether or not the event was published.
pub(super) struct QuotaReservation<'a> {
    quotas: &'a Quotas,
    tenant_id: TenantId,
    /// Sequence number of the event in its tenant, if it was published.
    pub(super) position: Option<i64>,
}

impl Drop for QuotaReservation<'_> {
    fn drop(&mut self) {
        if let Some(today) = self.quotas.0.lock().get_mut(&self.tenant_id) {
            today.commit(self.position);
        }
    }
}

impl App {
    /// Rejects an event that exceeds a quota of its tenant. If the number of events per day is limited, reserves one.
    pub(super) async fn check_event_quotas(
        &self,
        tenant_id: &TenantId,
        size: usize,
    ) -> Result<Option<QuotaReservation<'_>>, AppError> {
        self.engine.preload_tenant(tenant_id).await?;
        let quotas = self.engine.router().tenant_context(tenant_id).quotas();
        if let Some(max) = quotas.max_payload_bytes.filter(|max| size > *max as usize) {
            return Err(AppError::TooLarge(format!(
                "data is {size} bytes; this tenant may send {max}. Publish a reference to larger content instead"
            )));
        }
        let Some(max) = quotas.max_events_per_day else { return Ok(None) };
        let now = self.engine.clock().now();
        self.load_daily_usage(tenant_id, now).await?;
        let mut known = self.quotas.0.lock();
        let Some(today) = known.get_mut(tenant_id) else { return Ok(None) };
        if today.reserve(max) {
            return Ok(Some(QuotaReservation {
                quotas: &self.quotas,
                tenant_id: tenant_id.clone(),
                position: None,
            }));
        }
        let ends = today.resets_at();
        drop(known);
        let detail = format!(
            "this tenant has reached its quota of {max} events per day; publish again from {ends}, \
             or ask the operator for a higher quota"
        );
        self.engine.quota_reached(tenant_id, "max_events_per_day", &detail, Some(ends));
        Err(AppError::OverQuota { detail, retry_after: ends.duration_since(now).as_secs() + 1 })
    }

    /// Loads today's usage of a tenant, unless it is known.
    async fn load_daily_usage(&self, tenant_id: &TenantId, now: Time) -> Result<(), AppError> {
        if self.quotas.0.lock().get(tenant_id).is_some_and(|today| today.is_same_day(now)) {
            return Ok(());
        }
        let before = self.last_sequence_before(tenant_id, Some(DailyUsage::day_start(now))).await?;
        let today = DailyUsage::new(now, before, self.last_sequence_before(tenant_id, None).await?);
        self.quotas.0.lock().entry(tenant_id.clone()).or_insert(today).roll_over(today);
        Ok(())
    }

    /// Returns the sequence number of a tenant's last event before a time; 0 if there is none.
    async fn last_sequence_before(
        &self,
        tenant_id: &TenantId,
        before: Option<Time>,
    ) -> Result<i64, AppError> {
        let filter = EventFilter { to: before, ..EventFilter::default() };
        let page = PageRequest { after: None, offset: 0, limit: 1 };
        let found = self.store().list_events(tenant_id.clone(), filter, page).await?;
        Ok(found.found.first().map_or(0, |stored| stored.sequence_number))
    }

    /// Returns whether a tenant has at least this many webhooks.
    async fn has_webhooks(&self, tenant_id: &TenantId, count: u32) -> Result<bool, AppError> {
        let Some(offset) = count.checked_sub(1) else { return Ok(true) };
        let page = PageRequest { after: None, offset, limit: 1 };
        Ok(!self.store().list_webhooks(tenant_id.clone(), Visibility::All, page).await?.is_empty())
    }

    /// Rejects a new webhook that would exceed the quota of its tenant or the operator's cap.
    pub(super) async fn check_webhook_quota(&self, tenant_id: &TenantId) -> Result<(), AppError> {
        let Some(found) = self.store().tenant(tenant_id.clone()).await? else {
            return Err(AppError::NotFound("tenant"));
        };
        let cap = self.engine.router().caps().webhooks_per_tenant;
        if let Some(cap) = cap
            && self.has_webhooks(tenant_id, cap).await?
        {
            let detail = format!(
                "this tenant has reached the limit of {cap} webhooks (limits.caps.webhooks_per_tenant); delete one"
            );
            return Err(AppError::conflict(ErrorCode::CapReached, detail));
        }
        let Some(max) = found.rules.quotas.max_webhooks else { return Ok(()) };
        if !self.has_webhooks(tenant_id, max).await? {
            return Ok(());
        }
        let detail = format!(
            "this tenant has reached its quota of {max} webhooks; delete one, or ask the operator for a higher quota"
        );
        self.engine.quota_reached(tenant_id, "max_webhooks", &detail, None);
        Err(AppError::conflict(ErrorCode::QuotaExceeded, detail))
    }
}

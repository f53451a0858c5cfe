//! Reads over all tenants: their filters, and the activity of each tenant.

use std::ops::Deref;

use redrive_core::{TenantId, WebhookId, statistics::traffic::EndedCounts};

use crate::{DeliveryFilter, EventFilter, Tenant};

/// Filter of the deliveries of all tenants. It selects by no field that is indexed only within a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrossTenantFilter(DeliveryFilter);

impl CrossTenantFilter {
    /// Checks a filter. Fails with the name of a field that needs a tenant.
    pub fn new(filter: DeliveryFilter) -> Result<Self, &'static str> {
        match &filter {
            DeliveryFilter { event_id: Some(_), .. } => Err("event_id"),
            DeliveryFilter { idempotency_key: Some(_), .. } => Err("idempotency_key"),
            DeliveryFilter { subject: Some(_), .. } => Err("subject"),
            _ => Ok(Self(filter)),
        }
    }
}

impl Deref for CrossTenantFilter {
    type Target = DeliveryFilter;

    fn deref(&self) -> &DeliveryFilter {
        &self.0
    }
}

/// Filter of the events of all tenants. It selects by no field that is indexed only within a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrossTenantEventFilter(EventFilter);

impl CrossTenantEventFilter {
    /// Checks a filter. Fails with the name of a field that needs a tenant.
    pub fn new(filter: EventFilter) -> Result<Self, &'static str> {
        match &filter {
            EventFilter { id: Some(_), .. } => Err("id"),
            EventFilter { idempotency_key: Some(_), .. } => Err("idempotency_key"),
            EventFilter { subject: Some(_), .. } => Err("subject"),
            _ => Ok(Self(filter)),
        }
    }
}

impl Deref for CrossTenantEventFilter {
    type Target = EventFilter;

    fn deref(&self) -> &EventFilter {
        &self.0
    }
}

/// Limits of one read of the activity of tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivityLimits {
    /// Tenants per read.
    pub tenants: usize,
    /// Dead letters counted per tenant.
    pub dead_letters: usize,
    /// Minute rollups with failures read per tenant, the latest first.
    pub failed_minutes: usize,
}

/// What a tenant's deliveries came to since some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantActivity {
    /// The tenant.
    pub tenant: Tenant,
    /// Attempts.
    pub attempts: u64,
    /// Successful attempts.
    pub successes: u64,
    /// Ended deliveries.
    pub ended: EndedCounts,
    /// Dead letters, up to the limit.
    pub dead_letters: u64,
    /// Failed attempts by webhook, from the latest minutes with a failure up to the limit.
    pub failures: Vec<(WebhookId, u64)>,
    /// Whether there are more minutes with a failure than the limit.
    pub has_more_failures: bool,
}

/// Waiting deliveries of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingCount {
    /// The webhook's tenant.
    pub tenant_id: TenantId,
    /// The webhook.
    pub webhook_id: WebhookId,
    /// Number of deliveries in the store that wait, up to the limit.
    pub count: u64,
}

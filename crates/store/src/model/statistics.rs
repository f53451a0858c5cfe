//! Rollups of webhooks and tenants, counted as deliveries are sent.

pub use redrive_core::statistics::traffic::EndedCounts;
use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::{
        rollup::Rollup,
        traffic::{Resolution, Traffic},
    },
};

/// Counters of one webhook in one minute.
#[derive(Clone, Debug, PartialEq)]
pub struct MinuteRollup {
    /// Its tenant.
    pub tenant_id: TenantId,
    /// The webhook.
    pub webhook_id: WebhookId,
    /// Start of the minute.
    pub minute: Time,
    /// The counters.
    pub rollup: Rollup,
}

/// Counters of a tenant in one minute or hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRollup {
    /// The tenant.
    pub tenant_id: TenantId,
    /// Minute or hour.
    pub resolution: Resolution,
    /// Start of the minute or hour.
    pub start: Time,
    /// Time from which it may be pruned.
    pub expires_at: Time,
    /// The counters.
    pub traffic: Traffic,
}

/// Webhooks of a tenant with failed attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookFailures {
    /// Number of failed attempts by webhook, in no particular order.
    pub by_webhook: Vec<(WebhookId, u64)>,
    /// The earliest minute that was read; `None` if all were.
    pub only_since: Option<Time>,
}

//! Rollups of webhooks and tenants, counted as deliveries are sent.

use std::collections::BTreeMap;

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

/// Id under which the sums of all tenants are stored among the rollups of tenants. No tenant can have it.
pub(crate) const ALL_TENANTS_ROLLUP_ID: &str = "*";

/// Returns the sums of rollups over their tenants. Their tenant has no meaning.
pub(crate) fn sum_over_tenants(rollups: &[TenantRollup]) -> Vec<TenantRollup> {
    let mut sums: BTreeMap<(Resolution, Time), TenantRollup> = BTreeMap::new();
    for one in rollups {
        sums.entry((one.resolution, one.start))
            .and_modify(|sum| sum.traffic.merge(&one.traffic))
            .or_insert_with(|| TenantRollup { tenant_id: TenantId::default(), ..one.clone() });
    }
    sums.into_values().collect()
}

/// Webhooks of a tenant with failed attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookFailures {
    /// Number of failed attempts by webhook, in no particular order.
    pub by_webhook: Vec<(WebhookId, u64)>,
    /// The earliest minute that was read; `None` if all were.
    pub only_since: Option<Time>,
}

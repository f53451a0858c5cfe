//! How webhooks and tenants do, counted as deliveries are sent.

pub use redrive_core::statistics::traffic::Ended;
use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::rollup::Rollup,
    statistics::traffic::{Grain, Traffic},
};

/// What was sent to one webhook in one minute.
#[derive(Clone, Debug, PartialEq)]
pub struct MinuteRollup {
    /// Whose webhook it is.
    pub tenant: TenantId,
    /// The webhook.
    pub webhook: WebhookId,
    /// The beginning of the minute.
    pub minute: Time,
    /// The figures.
    pub rollup: Rollup,
}

/// A tenant's traffic in one minute or hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRollup {
    /// The tenant.
    pub tenant: TenantId,
    /// Whether it is a minute or an hour.
    pub grain: Grain,
    /// Its beginning.
    pub start: Time,
    /// When it may be forgotten.
    pub kept_until: Time,
    /// The figures.
    pub traffic: Traffic,
}

/// Which webhooks of a tenant have attempts that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// How many failed, by webhook, in no particular order.
    pub by_webhook: Vec<(WebhookId, u64)>,
    /// The earliest minute that was looked at, where not all could be.
    pub only_since: Option<Time>,
}

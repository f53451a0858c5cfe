//! What holds webhooks back, and how they do.

use redrive_core::{TenantId, Time, WebhookId, breaker::Counts, breaker::SavedCircuit, health::Rollup};

/// What holds a webhook back, as far as it must be known after a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Runtime {
    /// The webhook.
    pub webhook: WebhookId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Until when the endpoint asked not to be called.
    pub hold_until: Option<Time>,
    /// Its circuit, unless it is closed and nobody has forced it.
    pub circuit: Option<SavedCircuit>,
    /// When the first of an unbroken row of failures was.
    pub failing_since: Option<Time>,
}

/// A time for which a circuit was open.
#[derive(Clone, Debug, PartialEq)]
pub struct Period {
    /// When it opened.
    pub opened_at: Time,
    /// When it stopped being open; none while it is.
    pub ended_at: Option<Time>,
    /// Whether a person had forced it open.
    pub forced: bool,
    /// What was in the window that opened it.
    pub counts: Counts,
}

/// What was sent to one webhook in one minute.
#[derive(Clone, Debug, PartialEq)]
pub struct MinuteRollup {
    /// The webhook.
    pub webhook: WebhookId,
    /// The beginning of the minute.
    pub minute: Time,
    /// The figures.
    pub rollup: Rollup,
}

/// How much waits in the store for one webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Due: they go as soon as nothing holds the webhook back.
    pub due: u64,
    /// Not due yet.
    pub scheduled: u64,
    /// Behind another one of their order, which waits or is on its way.
    pub in_order: u64,
    /// Whether there is more than was counted.
    pub more: bool,
}

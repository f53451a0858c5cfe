//! Runtime state and backlog of webhooks.

use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::lane::{Lane, Priority},
    protection::breaker::{Counts, SavedCircuit},
    webhook::failures::FailureSeries,
};

/// Runtime state of a webhook that must survive a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookRuntime {
    /// The webhook.
    pub webhook_id: WebhookId,
    /// Its tenant.
    pub tenant_id: TenantId,
    /// End of the pause after a 429.
    pub pause_until: Option<Time>,
    /// Its circuit; `None` if it is closed and not forced.
    pub circuit: Option<SavedCircuit>,
    /// Generation of the newest stored circuit, 0 if none was stored. A node continues from it.
    pub generation: u64,
    /// Failures since the last success.
    pub failures: Option<FailureSeries>,
}

/// A period in which a circuit was open.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitPeriod {
    /// Time at which it opened.
    pub opened_at: Time,
    /// Time at which it stopped being open; `None` while it is open.
    pub ended_at: Option<Time>,
    /// Whether it was forced open manually.
    pub forced: bool,
    /// Counts of the window that opened it.
    pub counts: Counts,
}

/// An incident of a webhook: its circuit opened and has not closed since, or until it closed. It has several open periods
/// if a half-open circuit opened again.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// The webhook.
    pub webhook_id: WebhookId,
    /// The time from the first opening until the circuit closed.
    pub period: CircuitPeriod,
}

/// Number of deliveries that wait in the store for one webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Due: they are sent as soon as the webhook is not blocked.
    pub due: u64,
    /// Not due yet.
    pub scheduled: u64,
    /// Behind another delivery of their order that is waiting or leased.
    pub in_order: u64,
    /// All of them by priority, the most urgent first; ordered ones count as normal.
    pub by_priority: [u64; Priority::ALL.len()],
    /// Whether there are more than were counted.
    pub more: bool,
}

impl Backlog {
    /// Returns the number of all counted deliveries.
    pub fn total(&self) -> u64 {
        self.due + self.scheduled + self.in_order
    }
}

/// Raw counts of one webhook, each up to one above the requested maximum.
#[derive(Clone, Debug, Default)]
pub(crate) struct BacklogCounts {
    /// Unordered lanes: due, and not due yet.
    pub(crate) free: Vec<(Lane, u64, u64)>,
    /// Deliveries in ordered lanes.
    pub(crate) ordered: u64,
    /// Firsts of ordered lanes without a lease: all, and due ones.
    pub(crate) firsts: u64,
    pub(crate) firsts_due: u64,
}

impl BacklogCounts {
    /// Converts the counts to a backlog with at most `max` of each kind.
    pub(crate) fn backlog(mut self, max: usize) -> Backlog {
        let max = max as u64;
        self.free.sort_by_key(|(lane, ..)| lane.class() % Priority::ALL.len());
        let mut left = [max; 3];
        let mut by_priority = [0; Priority::ALL.len()];
        let mut counted = [0; 3];
        let mut take = |kind: usize, class: usize, count: u64| {
            let taken = count.min(left[kind]);
            left[kind] -= taken;
            by_priority[class % Priority::ALL.len()] += taken;
            counted[kind] += count;
        };
        for (lane, due, later) in &self.free {
            take(0, lane.class(), *due);
            take(1, lane.class(), *later);
        }
        let normal = Priority::Normal as usize;
        take(0, normal, self.firsts_due);
        take(1, normal, self.firsts.saturating_sub(self.firsts_due));
        take(2, normal, self.ordered.saturating_sub(self.firsts));
        let more = counted[0].max(counted[1]).max(self.ordered) > max;
        let [due, scheduled, in_order] = left.map(|left| max - left);
        Backlog { due, scheduled, in_order, by_priority, more }
    }
}

/// Webhooks of a tenant that have a backlog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackloggedWebhooks {
    /// The webhooks, by id.
    pub webhooks: Vec<WebhookId>,
    /// Whether there may be more, because not everything was read.
    pub more: bool,
}

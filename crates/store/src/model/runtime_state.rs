//! What holds webhooks back, and how they do.

use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::lane::{Lane, Priority},
    protection::breaker::{Counts, SavedCircuit},
};

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
    /// The generation of the newest circuit that was stored, 0 if none was. A node counts on from it.
    pub generation: u64,
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

/// A time for which the circuit of some webhook was open.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// The webhook.
    pub webhook: WebhookId,
    /// The time.
    pub period: Period,
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
    /// The same by priority, the most urgent first; those in an order count as normal.
    pub by_priority: [u64; Priority::ALL.len()],
    /// Whether there is more than was counted.
    pub more: bool,
}

impl Backlog {
    /// All that was counted.
    pub fn total(&self) -> u64 {
        self.due + self.scheduled + self.in_order
    }
}

/// What a store has counted of one webhook, each to no more than one above what was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    /// Outside of orders: due, and not due yet.
    pub(crate) free: Vec<(Lane, u64, u64)>,
    /// In orders.
    pub(crate) ordered: u64,
    /// Those of them that are the first of an order that nobody has one of: all, and due.
    pub(crate) firsts: u64,
    pub(crate) firsts_due: u64,
}

impl Counted {
    /// What it comes to, with no more than `most` of each kind.
    pub(crate) fn backlog(mut self, most: usize) -> Backlog {
        let most = most as u64;
        self.free.sort_by_key(|(lane, ..)| lane.class() % Priority::ALL.len());
        let mut left = [most; 3];
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
        let more = counted[0].max(counted[1]).max(self.ordered) > most;
        let [due, scheduled, in_order] = left.map(|left| most - left);
        Backlog { due, scheduled, in_order, by_priority, more }
    }
}

/// Which webhooks of a tenant something waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlogged {
    /// The webhooks, in the order of their ids.
    pub webhooks: Vec<WebhookId>,
    /// Whether there may be more: not everything was looked at.
    pub more: bool,
}

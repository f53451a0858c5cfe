//! What waits for a tenant's webhooks, and for what: counted as far as it can be while somebody waits.

use std::collections::{BTreeMap, HashMap};

use redrive_core::{TenantId, Time, WebhookId, delivery::lane::Priority};
use redrive_engine::{GateView, Held};
use redrive_store::Backlog;

use super::{App, AppError, TenantView, health::attributed};

/// Webhooks that are looked at for something that waits.
const WEBHOOKS: usize = 5_000;
/// Waiting deliveries of each kind that are counted, of all webhooks together.
const MOST: usize = 10_000;
/// Those that are counted of each, however many webhooks there are.
const LEAST: usize = 10;

/// What waits for a tenant's webhooks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// All of it, as far as it was counted: in the store, and in the memory of this node.
    pub total: u64,
    /// The same by priority, the most urgent first; those in an order count as normal.
    pub by_priority: [u64; Priority::ALL.len()],
    /// How many wait for what; only what occurs.
    pub by_waiting_on: BTreeMap<&'static str, u64>,
    /// How many webhooks they are for.
    pub webhooks: usize,
    /// Whether there is more than was counted.
    pub more: bool,
    /// Requests of this node whose outcome is not stored yet.
    pub in_flight: usize,
}

impl App {
    /// What waits for a tenant's webhooks, and for what.
    pub async fn queue(&self, tenant: &TenantView) -> Result<Queue, AppError> {
        let now = self.engine.clock().now();
        let mut held = self.engine.held(tenant);
        let mut found = self.store().backlogged(tenant.id.clone(), WEBHOOKS).await?;
        let hidden = self.hidden_webhooks(tenant).await?;
        held.queued.retain(|(webhook, _)| !hidden.contains(webhook));
        found.webhooks.retain(|webhook| !hidden.contains(webhook));
        let backlogs = self.backlogs(tenant, found.webhooks, now).await?;
        let concerned = backlogs.iter().map(|(webhook, _)| *webhook);
        let concerned: Vec<_> = concerned.chain(held.queued.iter().map(|(webhook, _)| *webhook)).collect();
        let views = self.engine.gate_views(tenant, &concerned).await?;
        let queue = sum(&backlogs, &held, &views);
        Ok(Queue { more: queue.more || found.more, ..queue })
    }

    /// Counts what waits for each of these: a fair share of each first, and then what is left of the work for those
    /// with more.
    async fn backlogs(
        &self,
        tenant: &TenantId,
        webhooks: Vec<WebhookId>,
        now: Time,
    ) -> Result<Vec<(WebhookId, Backlog)>, AppError> {
        if webhooks.is_empty() {
            return Ok(Vec::new());
        }
        let each = (MOST / webhooks.len()).max(LEAST);
        let mut backlogs = self.store().backlogs(Some(tenant.clone()), webhooks, now, each).await?;
        let more: Vec<_> =
            backlogs.iter().filter(|(_, backlog)| backlog.more).map(|(webhook, _)| *webhook).collect();
        let counted: u64 = backlogs.iter().map(|(_, backlog)| backlog.total()).sum();
        let left = MOST.saturating_sub(usize::try_from(counted).unwrap_or(MOST));
        let Some(further) = left.checked_div(more.len()).map(|left| each + left) else { return Ok(backlogs) };
        if further > each {
            let again = self.store().backlogs(Some(tenant.clone()), more, now, further).await?;
            let again: HashMap<_, _> = again.into_iter().collect();
            for (webhook, backlog) in &mut backlogs {
                *backlog = again.get(webhook).copied().unwrap_or(*backlog);
            }
        }
        Ok(backlogs)
    }
}

/// Adds up what waits in the store and in memory, each by what holds its webhook back.
fn sum(backlogs: &[(WebhookId, Backlog)], held: &Held, views: &HashMap<WebhookId, GateView>) -> Queue {
    let mut queued: HashMap<WebhookId, [u64; Priority::ALL.len()]> = held.queued.iter().copied().collect();
    let mut queue = Queue { in_flight: held.in_flight, ..Queue::default() };
    let mut add = |webhook: WebhookId, backlog: &Backlog, queued: [u64; Priority::ALL.len()]| {
        let waiting = views.get(&webhook).filter(|view| view.state.gets_events());
        let on = waiting.and_then(|view| view.waiting.as_ref()).map(|waiting| waiting.on);
        let seen = attributed(backlog, queued.iter().sum(), on, MOST);
        for (why, count) in seen.by_waiting_on {
            *queue.by_waiting_on.entry(why).or_default() += count;
        }
        for ((sum, stored), queued) in queue.by_priority.iter_mut().zip(backlog.by_priority).zip(queued) {
            *sum += stored + queued;
        }
        queue.total += seen.total;
        queue.webhooks += usize::from(seen.total > 0);
        queue.more |= backlog.more;
    };
    for (webhook, backlog) in backlogs {
        add(*webhook, backlog, queued.remove(webhook).unwrap_or_default());
    }
    for (webhook, queued) in queued {
        add(webhook, &Backlog::default(), queued);
    }
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_adds_up_whatever_it_is_counted_by() {
        let hook = |n: u8| WebhookId::from_bytes([n; 16]);
        let one = Backlog { due: 3, scheduled: 2, in_order: 1, by_priority: [2, 3, 1], more: false };
        let two = Backlog { due: 4, by_priority: [0, 0, 4], more: true, ..Backlog::default() };
        let held = Held { queued: vec![(hook(1), [0, 1, 0]), (hook(3), [5, 0, 0])], in_flight: 7 };
        let queue =
            sum(&[(hook(1), one), (hook(2), two), (hook(4), Backlog::default())], &held, &HashMap::new());
        assert_eq!((queue.total, queue.by_priority), (16, [7, 4, 5]));
        assert_eq!(queue.by_waiting_on, BTreeMap::from([("capacity", 13), ("schedule", 2), ("order", 1)]));
        assert_eq!((queue.webhooks, queue.more, queue.in_flight), (3, true, 7));
    }
}

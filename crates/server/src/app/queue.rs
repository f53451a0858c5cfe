//! Backlog of a tenant by wait reason, counted up to limits that bound the time of a request.

use std::collections::{BTreeMap, HashMap};

use redrive_core::{TenantId, Time, WebhookId, delivery::lane::Priority};
use redrive_engine::{GateStatus, TenantInMemory};
use redrive_store::Backlog;

use super::{App, AppError, TenantView, health::attribute_backlog};

/// Maximum number of webhooks examined.
const MAX_WEBHOOKS: usize = 5_000;
/// Maximum number of waiting deliveries counted per kind, over all webhooks.
const MAX_COUNTED: usize = 10_000;
/// Number counted per webhook at least, regardless of the number of webhooks.
const MIN_PER_WEBHOOK: usize = 10;

/// Backlog of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSummary {
    /// Number of waiting deliveries in the store and in the memory of this node, up to the counting limit.
    pub total: u64,
    /// Number by priority, highest first; ordered deliveries count as normal.
    pub by_priority: [u64; Priority::ALL.len()],
    /// Number by wait reason, without zero counts.
    pub by_waiting_on: BTreeMap<&'static str, u64>,
    /// Number of webhooks with waiting deliveries.
    pub webhooks: usize,
    /// Whether there are more than were counted.
    pub more: bool,
    /// Number of the tenant's unsettled deliveries on this node. They are not part of `total`.
    pub unsettled: usize,
}

impl App {
    /// Returns the backlog of a tenant by wait reason.
    pub async fn queue(&self, tenant: &TenantView) -> Result<QueueSummary, AppError> {
        let now = self.engine.clock().now();
        let mut in_memory = self.engine.in_memory(tenant);
        let mut found = self.store().backlogged(tenant.id.clone(), MAX_WEBHOOKS).await?;
        let hidden = self.hidden_webhooks(tenant).await?;
        in_memory.queued.retain(|(webhook_id, _)| !hidden.contains(webhook_id));
        found.webhooks.retain(|webhook_id| !hidden.contains(webhook_id));
        let backlogs = self.backlogs(tenant, found.webhooks, now).await?;
        let concerned = backlogs.iter().map(|(webhook_id, _)| *webhook_id);
        let concerned: Vec<_> =
            concerned.chain(in_memory.queued.iter().map(|(webhook_id, _)| *webhook_id)).collect();
        let views = self.engine.gate_statuses(Some(tenant), &concerned).await?;
        let queue = sum(&backlogs, &in_memory, &views);
        Ok(QueueSummary { more: queue.more || found.more, ..queue })
    }

    /// Counts the backlog of each of these webhooks: first an equal share of the limit each, then the unused rest for
    /// webhooks with more.
    async fn backlogs(
        &self,
        tenant_id: &TenantId,
        webhooks: Vec<WebhookId>,
        now: Time,
    ) -> Result<Vec<(WebhookId, Backlog)>, AppError> {
        if webhooks.is_empty() {
            return Ok(Vec::new());
        }
        let each = (MAX_COUNTED / webhooks.len()).max(MIN_PER_WEBHOOK);
        let mut backlogs = self.store().backlogs(Some(tenant_id.clone()), webhooks, now, each).await?;
        let more: Vec<_> =
            backlogs.iter().filter(|(_, backlog)| backlog.more).map(|(webhook_id, _)| *webhook_id).collect();
        let counted: u64 = backlogs.iter().map(|(_, backlog)| backlog.total()).sum();
        let left = MAX_COUNTED.saturating_sub(usize::try_from(counted).unwrap_or(MAX_COUNTED));
        let Some(further) = left.checked_div(more.len()).map(|left| each + left) else { return Ok(backlogs) };
        if further > each {
            let again = self.store().backlogs(Some(tenant_id.clone()), more, now, further).await?;
            let again: HashMap<_, _> = again.into_iter().collect();
            for (webhook_id, backlog) in &mut backlogs {
                *backlog = again.get(webhook_id).copied().unwrap_or(*backlog);
            }
        }
        Ok(backlogs)
    }
}

/// Sums the deliveries waiting in the store and in memory, attributed to what blocks their webhook.
fn sum(
    backlogs: &[(WebhookId, Backlog)],
    in_memory: &TenantInMemory,
    views: &HashMap<WebhookId, GateStatus>,
) -> QueueSummary {
    let mut queued: HashMap<WebhookId, [u64; Priority::ALL.len()]> =
        in_memory.queued.iter().copied().collect();
    let mut queue = QueueSummary { unsettled: in_memory.unsettled, ..QueueSummary::default() };
    let mut add = |webhook_id: WebhookId, backlog: &Backlog, queued: [u64; Priority::ALL.len()]| {
        let waiting = views.get(&webhook_id).filter(|view| view.state.receives_events());
        let on = waiting.and_then(|view| view.wait_reason.as_ref()).map(|waiting| waiting.on);
        let breakdown = attribute_backlog(backlog, queued.iter().sum(), on, MAX_COUNTED);
        for (why, count) in breakdown.by_waiting_on {
            *queue.by_waiting_on.entry(why).or_default() += count;
        }
        for ((sum, stored), queued) in queue.by_priority.iter_mut().zip(backlog.by_priority).zip(queued) {
            *sum += stored + queued;
        }
        queue.total += breakdown.total;
        queue.webhooks += usize::from(breakdown.total > 0);
        queue.more |= backlog.more;
    };
    for (webhook_id, backlog) in backlogs {
        add(*webhook_id, backlog, queued.remove(webhook_id).unwrap_or_default());
    }
    for (webhook_id, queued) in queued {
        add(webhook_id, &Backlog::default(), queued);
    }
    queue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_by_priority_and_wait_reason_agree() {
        let webhook = |n: u8| WebhookId::from_bytes([n; 16]);
        let one = Backlog { due: 3, scheduled: 2, in_order: 1, by_priority: [2, 3, 1], more: false };
        let two = Backlog { due: 4, by_priority: [0, 0, 4], more: true, ..Backlog::default() };
        let in_memory =
            TenantInMemory { queued: vec![(webhook(1), [0, 1, 0]), (webhook(3), [5, 0, 0])], unsettled: 7 };
        let queue = sum(
            &[(webhook(1), one), (webhook(2), two), (webhook(4), Backlog::default())],
            &in_memory,
            &HashMap::new(),
        );
        assert_eq!((queue.total, queue.by_priority), (16, [7, 4, 5]));
        assert_eq!(queue.by_waiting_on, BTreeMap::from([("capacity", 13), ("schedule", 2), ("order", 1)]));
        assert_eq!((queue.webhooks, queue.more, queue.unsettled), (3, true, 7));
    }
}

//! Overview of a tenant: traffic, backlog, failures and recent incidents.
//!
//! The cost of each part is bounded, regardless of the amount of history, webhooks and waiting deliveries.

use redrive_core::{
    FailureCategory, Time, WebhookId,
    protection::breaker::{CircuitState, SavedCircuit},
    statistics::traffic::{EndedCounts, Range},
};
use redrive_store::{CircuitPeriod, DeliveryFilter, WebhookRuntime};

use super::{
    App, AppError, TenantSelection, TenantView,
    queue::QueueSummary,
    traffic::TrafficChart,
    webhook_names::WebhookName,
    webhook_summary::{self, LastHour},
};

/// Maximum number of worst webhooks returned.
const MAX_WORST: usize = 10;
/// Maximum number of per-minute rollups with failures read to find them.
const MAX_FAILED_MINUTES: usize = 10_000;
/// Maximum number of incidents returned.
const MAX_INCIDENTS: usize = 20;
/// Maximum number of circuits counted that are not closed.
const MAX_CIRCUITS: usize = 1_000;
/// Maximum number of dead letters counted.
const MAX_DEAD: usize = 50_000;

/// Webhook with many failures in the last hour.
#[derive(Clone, Debug)]
pub struct WorstWebhook {
    /// The webhook.
    pub webhook: WebhookName,
    /// Results of the last hour.
    pub last_hour: LastHour,
    /// Most frequent failure category.
    pub most_frequent: Option<FailureCategory>,
}

/// Webhooks with the most failures in the last hour.
#[derive(Clone, Debug)]
pub struct WorstWebhooks {
    /// Webhooks, most failures first.
    pub webhooks: Vec<WorstWebhook>,
    /// Number of webhooks with failures.
    pub failing: usize,
    /// Start of the counted period: one hour ago, or later if there are too many failures.
    pub since: Time,
}

/// Incident: the circuit of a webhook opened and has not closed since, or until it closed.
#[derive(Clone, Debug)]
pub struct IncidentDetails {
    /// The webhook.
    pub webhook: WebhookName,
    /// From the first opening until the circuit closed, with the counts that opened it.
    pub period: CircuitPeriod,
}

/// Number of circuits that are not closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CircuitCounts {
    /// Open circuits, including those forced open manually.
    pub open: usize,
    /// Half-open circuits.
    pub half_open: usize,
    /// Whether there are more than the counting limit.
    pub more: bool,
}

impl CircuitCounts {
    /// Counts a circuit. Returns `false` if it is closed.
    pub(super) fn add(&mut self, runtime: &WebhookRuntime) -> bool {
        match runtime.circuit.as_ref().map(SavedCircuit::effective_state) {
            None | Some(CircuitState::Closed) => return false,
            Some(CircuitState::HalfOpen) => self.half_open += 1,
            Some(CircuitState::Open) => self.open += 1,
        }
        true
    }
}

/// Number of dead letters, and recently ended deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadSize {
    /// Number of dead letters, up to the counting limit.
    pub size: usize,
    /// Whether there are more.
    pub more: bool,
    /// Deliveries that ended within the last hour, including dead ones.
    pub last_hour: EndedCounts,
    /// Deliveries that ended within the last 24 hours.
    pub last_24_hours: EndedCounts,
}

/// Overview of a tenant.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Traffic and its results.
    pub traffic: TrafficChart,
    /// Backlog of deliveries.
    pub queue: QueueSummary,
    /// Circuits that are not closed.
    pub circuits: CircuitCounts,
    /// Dead letters.
    pub dead: DeadSize,
    /// Webhooks with the most failures.
    pub worst_webhooks: WorstWebhooks,
    /// Recently opened circuits, newest first.
    pub incidents: Vec<IncidentDetails>,
}

impl App {
    /// Returns the overview of a tenant, with its traffic in this range.
    pub async fn overview(&self, tenant: impl Into<TenantView>, range: Range) -> Result<Overview, AppError> {
        let tenant = tenant.into();
        let now = self.engine.clock().now();
        let ((traffic, [last_hour, last_24_hours]), queue, circuits, size, worst, incidents) = tokio::try_join!(
            self.traffic_and_recent_ends(tenant.id.clone(), range, now),
            self.queue(&tenant),
            self.circuits(&tenant),
            self.dead_size(&tenant),
            self.worst_webhooks(&tenant, now),
            self.incidents(&tenant),
        )?;
        let dead = DeadSize { size: size.min(MAX_DEAD), more: size > MAX_DEAD, last_hour, last_24_hours };
        Ok(Overview { traffic, queue, circuits, dead, worst_webhooks: worst, incidents })
    }

    /// Counts the dead letters that the caller may see, up to one more than `MAX_DEAD`.
    async fn dead_size(&self, tenant: &TenantView) -> Result<usize, AppError> {
        if !tenant.tenant_managed_only {
            return Ok(self.store().count_dead_up_to(tenant.id.clone(), MAX_DEAD + 1).await?);
        }
        let filter = tenant.restrict(DeliveryFilter::default());
        let now = self.engine.clock().now();
        let counted = self.store().count_dead(tenant.id.clone(), filter, [now, now], MAX_DEAD).await?;
        let size = counted.groups.iter().map(|group| group.count as usize).sum::<usize>();
        Ok(if counted.more { MAX_DEAD + 1 } else { size })
    }

    /// Counts the circuits of a tenant that are not closed.
    pub async fn circuits(&self, tenant: &TenantView) -> Result<CircuitCounts, AppError> {
        let found = self.store().circuits(tenant.id.clone(), tenant.visibility(), MAX_CIRCUITS + 1).await?;
        let mut counts = CircuitCounts { more: found.len() > MAX_CIRCUITS, ..CircuitCounts::default() };
        for circuit in found.iter().take(MAX_CIRCUITS) {
            counts.add(circuit);
        }
        Ok(counts)
    }

    /// Returns the webhooks of a tenant with the most failures in the last hour.
    pub async fn worst_webhooks(&self, tenant: &TenantView, now: Time) -> Result<WorstWebhooks, AppError> {
        let from = webhook_summary::axis(now).begin();
        let mut found = self.engine.failures(tenant.id.clone(), from, MAX_FAILED_MINUTES).await?;
        if tenant.tenant_managed_only {
            // Deleted webhooks may be among them, so their visibility is read from the store.
            let visible = self
                .webhook_names(tenant, found.by_webhook.iter().map(|(webhook_id, _)| *webhook_id).collect())
                .await?;
            found.by_webhook.retain(|(webhook_id, _)| visible.contains_key(webhook_id));
        }
        let failing = found.by_webhook.len();
        let top = worst_of(found.by_webhook).into_iter().map(|(webhook_id, _)| webhook_id).collect();
        let webhooks = self.describe_worst(&tenant.into(), top, now).await?;
        Ok(WorstWebhooks { webhooks, failing, since: found.only_since.unwrap_or(from) })
    }

    /// Adds names and the results of the last hour to the ids of webhooks with failures, of a tenant or of any.
    pub(super) async fn describe_worst(
        &self,
        tenants: &TenantSelection,
        ids: Vec<WebhookId>,
        now: Time,
    ) -> Result<Vec<WorstWebhook>, AppError> {
        let (mut hours, mut names) = tokio::try_join!(
            self.last_hours(tenants.tenant_id(), ids.clone(), now),
            self.webhook_names(tenants, ids.clone()),
        )?;
        let describe = |webhook_id: WebhookId| {
            let last_hour = hours.remove(&webhook_id)?;
            let webhook = names.remove(&webhook_id)?;
            Some(WorstWebhook { webhook, most_frequent: last_hour.sum.most_frequent(), last_hour })
        };
        Ok(ids.into_iter().filter_map(describe).collect())
    }

    /// Returns the recent incidents of a tenant, newest first.
    pub async fn incidents(&self, tenant: &TenantView) -> Result<Vec<IncidentDetails>, AppError> {
        let found = self.store().incidents(tenant.id.clone(), tenant.visibility(), MAX_INCIDENTS).await?;
        let names =
            self.webhook_names(tenant, found.iter().map(|incident| incident.webhook_id).collect()).await?;
        let incidents = found.into_iter().filter_map(|incident| {
            let webhook = names.get(&incident.webhook_id)?.clone();
            Some(IncidentDetails { webhook, period: incident.period })
        });
        Ok(incidents.collect())
    }
}

/// Returns the webhooks with the most failures, most failures first.
fn worst_of(mut by_webhook: Vec<(WebhookId, u64)>) -> Vec<(WebhookId, u64)> {
    by_webhook.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
    by_webhook.truncate(MAX_WORST);
    by_webhook
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_webhooks_are_sorted_and_limited() {
        let all: Vec<_> = (0..30u8).map(|n| (WebhookId::from_bytes([n; 16]), u64::from(n % 10))).collect();
        let worst = worst_of(all);
        let listed: Vec<_> = worst.iter().map(|(id, failures)| (id.as_bytes()[0], *failures)).collect();
        let first = [(9, 9), (19, 9), (29, 9), (8, 8), (18, 8), (28, 8), (7, 7), (17, 7), (27, 7), (6, 6)];
        assert_eq!(listed, first);
    }
}

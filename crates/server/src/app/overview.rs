//! A tenant at one look: its traffic, what waits, what fails, and what has gone wrong lately.
//!
//! Each figure is of bounded cost, however much history, however many webhooks and however long the queues are.

use redrive_core::{
    FailureCategory, Time, WebhookId,
    protection::breaker::CircuitState,
    statistics::traffic::{Ended, Range},
};
use redrive_store::{DeliveryFilter, Period};

use super::{
    App, AppError, TenantView,
    queue::Queue,
    traffic::TrafficSeen,
    webhook_names::Named,
    webhook_summary::{self, LastHour},
};

/// How many of the worst endpoints are returned.
const WORST: usize = 10;
/// Minutes of failing webhooks that are looked at to find them.
const FAILED_MINUTES: usize = 10_000;
/// How many incidents are returned.
const INCIDENTS: usize = 20;
/// Circuits that are not closed are counted up to here.
const CIRCUITS: usize = 1_000;
/// Dead letters are counted up to here.
const DEAD: usize = 50_000;

/// A webhook with many failures in the last hour.
#[derive(Clone, Debug)]
pub struct Worst {
    /// The webhook.
    pub webhook: Named,
    /// How it did.
    pub last_hour: LastHour,
    /// In what way it failed most.
    pub mostly: Option<FailureCategory>,
}

/// The webhooks with most failures in the last hour.
#[derive(Clone, Debug)]
pub struct WorstSeen {
    /// The worst first.
    pub webhooks: Vec<Worst>,
    /// How many webhooks had any.
    pub failing: usize,
    /// Since when their failures were counted: for an hour, or less if very many fail.
    pub since: Time,
}

/// A time for which a circuit was open.
#[derive(Clone, Debug)]
pub struct IncidentSeen {
    /// The webhook.
    pub webhook: Named,
    /// The time, and what had opened it.
    pub period: Period,
}

/// Circuits that are not closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CircuitsSeen {
    /// Open, by themselves or by hand.
    pub open: usize,
    /// Half open.
    pub half_open: usize,
    /// Whether there are more than were counted.
    pub more: bool,
}

/// How many dead letters there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadSize {
    /// So many, as far as was counted.
    pub size: usize,
    /// Whether there are more.
    pub more: bool,
    /// What ended within the last hour, the dead among it.
    pub last_hour: Ended,
    /// What ended within the last day.
    pub last_24_hours: Ended,
}

/// A tenant at one look.
#[derive(Clone, Debug)]
pub struct Overview {
    /// What was sent, and how it went.
    pub traffic: TrafficSeen,
    /// What waits.
    pub queue: Queue,
    /// Circuits that are not closed.
    pub circuits: CircuitsSeen,
    /// Dead letters.
    pub dead: DeadSize,
    /// The worst endpoints.
    pub worst: WorstSeen,
    /// Circuits that opened lately, the last first.
    pub incidents: Vec<IncidentSeen>,
}

impl App {
    /// A tenant at one look, with its traffic of this range.
    pub async fn overview(&self, tenant: impl Into<TenantView>, range: Range) -> Result<Overview, AppError> {
        let tenant = tenant.into();
        let now = self.engine.clock().now();
        let ((traffic, [last_hour, last_24_hours]), queue, circuits, size, worst, incidents) = tokio::try_join!(
            self.traffic_lately(tenant.id.clone(), range, now),
            self.queue(&tenant),
            self.circuits(&tenant),
            self.dead_size(&tenant),
            self.worst(&tenant, now),
            self.incidents(&tenant),
        )?;
        let dead = DeadSize { size: size.min(DEAD), more: size > DEAD, last_hour, last_24_hours };
        Ok(Overview { traffic, queue, circuits, dead, worst, incidents })
    }

    /// How many dead letters the caller sees, counted up to one more than is returned.
    async fn dead_size(&self, tenant: &TenantView) -> Result<usize, AppError> {
        if !tenant.tenant_managed_only {
            return Ok(self.store().dead_size(tenant.id.clone(), DEAD + 1).await?);
        }
        let filter = tenant.restrict(DeliveryFilter::default());
        let now = self.engine.clock().now();
        let counted = self.store().count_dead(tenant.id.clone(), filter, [now, now], DEAD).await?;
        let size = counted.groups.iter().map(|group| group.count as usize).sum::<usize>();
        Ok(if counted.more { DEAD + 1 } else { size })
    }

    /// How many circuits of a tenant are not closed.
    pub async fn circuits(&self, tenant: &TenantView) -> Result<CircuitsSeen, AppError> {
        let found = self.store().circuits(tenant.id.clone(), tenant.visibility(), CIRCUITS + 1).await?;
        let mut seen = CircuitsSeen { more: found.len() > CIRCUITS, ..CircuitsSeen::default() };
        for circuit in found.iter().take(CIRCUITS).filter_map(|runtime| runtime.circuit.as_ref()) {
            match circuit.in_force() {
                CircuitState::Closed => {}
                CircuitState::HalfOpen => seen.half_open += 1,
                CircuitState::Open => seen.open += 1,
            }
        }
        Ok(seen)
    }

    /// The webhooks of a tenant with most failures in the last hour.
    pub async fn worst(&self, tenant: &TenantView, now: Time) -> Result<WorstSeen, AppError> {
        let from = webhook_summary::axis(now).begin();
        let mut found = self.engine.failures(tenant.id.clone(), from, FAILED_MINUTES).await?;
        if tenant.tenant_managed_only {
            // Webhooks that were deleted since are among them: what they were is asked of the store.
            let seen =
                self.names(tenant, found.by_webhook.iter().map(|(webhook, _)| *webhook).collect()).await?;
            found.by_webhook.retain(|(webhook, _)| seen.contains_key(webhook));
        }
        let failing = found.by_webhook.len();
        let top = worst_of(found.by_webhook);
        let ids: Vec<_> = top.iter().map(|(webhook, _)| *webhook).collect();
        let mut hours = self.last_hours(tenant, ids.clone(), now).await?;
        let mut names = self.names(tenant, ids).await?;
        let worst = |(webhook, _): (WebhookId, u64)| {
            let last_hour = hours.remove(&webhook)?;
            Some(Worst { webhook: names.remove(&webhook)?, mostly: last_hour.sum.worst(), last_hour })
        };
        let webhooks = top.into_iter().filter_map(worst).collect();
        Ok(WorstSeen { webhooks, failing, since: found.only_since.unwrap_or(from) })
    }

    /// The circuits of a tenant that opened lately, the last first.
    pub async fn incidents(&self, tenant: &TenantView) -> Result<Vec<IncidentSeen>, AppError> {
        let found = self.store().incidents(tenant.id.clone(), tenant.visibility(), INCIDENTS).await?;
        let names = self.names(tenant, found.iter().map(|incident| incident.webhook).collect()).await?;
        let seen = found.into_iter().filter_map(|incident| {
            let webhook = names.get(&incident.webhook)?.clone();
            Some(IncidentSeen { webhook, period: incident.period })
        });
        Ok(seen.collect())
    }
}

/// Those with most failures, the worst first.
fn worst_of(mut by_webhook: Vec<(WebhookId, u64)>) -> Vec<(WebhookId, u64)> {
    by_webhook.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
    by_webhook.truncate(WORST);
    by_webhook
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_come_first_and_are_few() {
        let all: Vec<_> = (0..30u8).map(|n| (WebhookId::from_bytes([n; 16]), u64::from(n % 10))).collect();
        let worst = worst_of(all);
        let seen: Vec<_> = worst.iter().map(|(id, failures)| (id.as_bytes()[0], *failures)).collect();
        let first = [(9, 9), (19, 9), (29, 9), (8, 8), (18, 8), (28, 8), (7, 7), (17, 7), (27, 7), (6, 6)];
        assert_eq!(seen, first);
    }
}

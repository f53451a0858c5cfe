//! Summaries of webhooks for one page of a listing.

use std::collections::HashMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    protection::breaker::CircuitView,
    statistics::{
        rollup::Rollup,
        traffic::{Range, TimeBuckets},
    },
    webhook::{Webhook, status::WebhookStatus},
};
use redrive_store::MinuteRollup;

use super::{
    App, AppError, TenantSelection,
    health::{BacklogBreakdown, attribute_backlog},
    webhook_status::status_of,
};

/// Maximum number of waiting deliveries counted per kind and webhook.
const MAX_COUNTED: usize = 1_000;

/// Counts of one minute of a webhook, or of another point of a small chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinuteCounts {
    /// Number of attempts.
    pub attempts: u32,
    /// Number of successful attempts.
    pub successes: u32,
}

/// Results of a webhook in the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastHour {
    /// Sum over the hour.
    pub sum: Rollup,
    /// One entry per minute, oldest first, without gaps.
    pub minutes: Vec<MinuteCounts>,
}

/// Summary of a webhook's health.
#[derive(Clone, Debug)]
pub struct WebhookSummary {
    /// Id of the webhook.
    pub webhook_id: WebhookId,
    /// Results of the last hour.
    pub last_hour: LastHour,
    /// Time of the last successful attempt.
    pub last_success_at: Option<Time>,
    /// Time of the first failure since the last success.
    pub failing_since: Option<Time>,
    /// Status of the webhook.
    pub status: WebhookStatus,
    /// Circuit of the webhook.
    pub circuit: CircuitView,
    /// Number of requests in flight from this node.
    pub in_flight: usize,
    /// Waiting deliveries.
    pub backlog: BacklogBreakdown,
}

impl WebhookSummary {
    /// Returns whether an attempt of the webhook is known.
    pub fn was_called(&self) -> bool {
        self.last_success_at.is_some() || self.failing_since.is_some() || self.last_hour.sum.attempts > 0
    }
}

impl App {
    /// Returns a summary for each of these webhooks of a tenant, or of any tenant, in the same order, without those that were
    /// deleted since they were read. Meant for one page of a listing.
    pub async fn summaries(
        &self,
        tenants: impl Into<TenantSelection>,
        webhooks: &[Webhook],
    ) -> Result<Vec<WebhookSummary>, AppError> {
        let tenants = tenants.into();
        let tenant_id = tenants.tenant_id();
        let (now, rule) = (self.engine.clock().now(), self.engine.failing_rule());
        let ids: Vec<_> = webhooks.iter().map(|webhook| webhook.id).collect();
        let (mut hours, backlogs, views) = tokio::try_join!(
            self.last_hours(tenant_id, ids.clone(), now),
            async { Ok(self.store().backlogs(tenant_id.cloned(), ids.clone(), now, MAX_COUNTED).await?) },
            async { Ok(self.engine.gate_statuses(tenant_id, &ids).await?) },
        )?;
        let took_nothing = |id: &&WebhookId| hours.get(id).is_none_or(|hour| hour.sum.successes == 0);
        let silent: Vec<_> = ids.iter().filter(took_nothing).copied().collect();
        let last = self.engine.last_successes(tenant_id, &silent).await?;
        let backlogs: HashMap<_, _> = backlogs.into_iter().collect();
        let summarize = |webhook: &Webhook| {
            let view = views.get(&webhook.id)?;
            let waiting = view.wait_reason.as_ref().filter(|_| webhook.state.receives_events());
            let backlog = backlogs.get(&webhook.id).copied().unwrap_or_default();
            let last_hour = hours.remove(&webhook.id).unwrap_or_else(|| last_hour(&[], now));
            let status = status_of(webhook, Some(view), &last_hour.sum, &rule, now);
            Some(WebhookSummary {
                status,
                webhook_id: webhook.id,
                last_success_at: last_hour.sum.last_success_at.max(last.get(&webhook.id).copied()),
                last_hour,
                failing_since: view.failures.as_ref().map(|failures| failures.since),
                circuit: view.circuit.clone(),
                in_flight: view.in_flight,
                backlog: attribute_backlog(
                    &backlog,
                    view.queued as u64,
                    waiting.map(|waiting| waiting.on),
                    MAX_COUNTED,
                ),
            })
        };
        Ok(webhooks.iter().filter_map(summarize).collect())
    }

    /// Returns the results of the last hour for each of these webhooks. `for_tenant` is the tenant that asked; `None` for an
    /// admin of all tenants.
    pub(super) async fn last_hours(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: Vec<WebhookId>,
        now: Time,
    ) -> Result<HashMap<WebhookId, LastHour>, AppError> {
        let minutes = self.engine.rollups(for_tenant, webhooks, axis(now).begin()).await?;
        let mut by_webhook: HashMap<WebhookId, Vec<MinuteRollup>> = HashMap::new();
        for minute in minutes {
            by_webhook.entry(minute.webhook_id).or_default().push(minute);
        }
        Ok(by_webhook
            .into_iter()
            .map(|(webhook_id, minutes)| (webhook_id, last_hour(&minutes, now)))
            .collect())
    }
}

/// Returns the webhooks that have a summary, each with its own. Both are in the same order.
pub fn with_summaries(
    webhooks: Vec<Webhook>,
    summaries: Vec<WebhookSummary>,
) -> Vec<(Webhook, WebhookSummary)> {
    let mut webhooks = webhooks.into_iter();
    let pair = |summary: WebhookSummary| {
        let webhook = webhooks.find(|webhook| webhook.id == summary.webhook_id)?;
        Some((webhook, summary))
    };
    summaries.into_iter().filter_map(pair).collect()
}

/// Returns the time buckets of the last hour, one per minute.
pub(super) fn axis(now: Time) -> TimeBuckets {
    Range::Hour.axis(now)
}

fn last_hour(minutes: &[MinuteRollup], now: Time) -> LastHour {
    let axis = axis(now);
    let mut sum = Rollup::default();
    let inside = minutes.iter().filter(|one| axis.index_of(one.minute).is_some());
    inside.for_each(|one| sum.merge(&one.rollup));
    let rollups = minutes.iter().map(|one| (one.minute, &one.rollup));
    let minutes = axis.fold(rollups, |spark: &mut MinuteCounts, rollup| {
        spark.attempts = spark.attempts.saturating_add(rollup.attempts);
        spark.successes = spark.successes.saturating_add(rollup.successes);
    });
    LastHour { sum, minutes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_hour_always_has_sixty_minutes() {
        let now = Time::parse("2026-03-02T10:17:42Z").unwrap();
        let minute = |start: &str, attempts, successes| MinuteRollup {
            tenant_id: TenantId::default(),
            webhook_id: WebhookId::from_bytes([1; 16]),
            minute: Time::parse(start).unwrap(),
            rollup: Rollup { attempts, successes, ..Rollup::default() },
        };
        let hour = last_hour(
            &[
                minute("2026-03-02T09:17:00Z", 100, 100),
                minute("2026-03-02T09:18:00Z", 1, 0),
                minute("2026-03-02T10:17:00Z", 2, 1),
                minute("2026-03-02T10:17:00Z", 4, 4),
            ],
            now,
        );
        assert_eq!((hour.sum.attempts, hour.sum.successes), (7, 5));
        let mut expected = vec![MinuteCounts::default(); 60];
        expected[0] = MinuteCounts { attempts: 1, successes: 0 };
        expected[59] = MinuteCounts { attempts: 6, successes: 5 };
        assert_eq!(hour.minutes, expected);
    }
}

//! How webhooks are doing, a page of a list at a time: what is worth a line each.

use std::collections::HashMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    protection::breaker::CircuitView,
    statistics::rollup::Rollup,
    statistics::traffic::{Axis, Range},
    webhook::Webhook,
};
use redrive_store::MinuteRollup;

use super::{
    App, AppError,
    health::{BacklogSeen, attributed},
};

/// Waiting deliveries of each kind are counted up to here, of each webhook.
const MOST: usize = 1_000;

/// A minute of a webhook, or any other point of a small chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spark {
    /// Attempts.
    pub attempts: u32,
    /// Those that succeeded.
    pub successes: u32,
}

/// How a webhook did in the last hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastHour {
    /// All of it.
    pub sum: Rollup,
    /// Minute by minute, from the oldest on, without a gap.
    pub minutes: Vec<Spark>,
}

/// How a webhook is doing.
#[derive(Clone, Debug)]
pub struct Glance {
    /// The webhook.
    pub webhook: WebhookId,
    /// What came back in the last hour.
    pub last_hour: LastHour,
    /// When it last took a delivery.
    pub last_success_at: Option<Time>,
    /// When the first of an unbroken row of failures was.
    pub failing_since: Option<Time>,
    /// Its circuit.
    pub circuit: CircuitView,
    /// Requests under way from this node.
    pub in_flight: usize,
    /// What waits for it.
    pub backlog: BacklogSeen,
}

impl App {
    /// How these webhooks of a tenant are doing: one for each, in their order. Meant for a page of a list.
    pub async fn glance(&self, tenant: &TenantId, webhooks: &[Webhook]) -> Result<Vec<Glance>, AppError> {
        let now = self.engine.clock().now();
        let ids: Vec<_> = webhooks.iter().map(|webhook| webhook.id).collect();
        let (mut hours, backlogs, views) = tokio::try_join!(
            self.last_hours(tenant, ids.clone(), now),
            async { Ok(self.store().backlogs(Some(tenant.clone()), ids.clone(), now, MOST).await?) },
            async { Ok(self.engine.gate_views(tenant, &ids).await?) },
        )?;
        let took_nothing = |id: &&WebhookId| hours.get(id).is_none_or(|hour| hour.sum.successes == 0);
        let silent: Vec<_> = ids.iter().filter(took_nothing).copied().collect();
        let last = self.engine.last_successes(tenant, &silent).await?;
        let backlogs: HashMap<_, _> = backlogs.into_iter().collect();
        let glance = |webhook: &Webhook| {
            let view = views.get(&webhook.id).ok_or(AppError::NotFound("webhook"))?;
            let waiting = view.waiting.as_ref().filter(|_| webhook.state.gets_events());
            let backlog = backlogs.get(&webhook.id).copied().unwrap_or_default();
            let last_hour = hours.remove(&webhook.id).unwrap_or_else(|| last_hour(&[], now));
            Ok(Glance {
                webhook: webhook.id,
                last_success_at: last_hour.sum.last_success_at.max(last.get(&webhook.id).copied()),
                last_hour,
                failing_since: view.failing_since,
                circuit: view.circuit.clone(),
                in_flight: view.in_flight,
                backlog: attributed(&backlog, view.queued as u64, waiting.map(|waiting| waiting.on), MOST),
            })
        };
        webhooks.iter().map(glance).collect()
    }

    /// How each of these webhooks did in the last hour.
    pub(super) async fn last_hours(
        &self,
        tenant: &TenantId,
        webhooks: Vec<WebhookId>,
        now: Time,
    ) -> Result<HashMap<WebhookId, LastHour>, AppError> {
        let minutes = self.engine.rollups(Some(tenant), webhooks, axis(now).begin()).await?;
        let mut by_webhook: HashMap<WebhookId, Vec<MinuteRollup>> = HashMap::new();
        for minute in minutes {
            by_webhook.entry(minute.webhook).or_default().push(minute);
        }
        Ok(by_webhook.into_iter().map(|(webhook, minutes)| (webhook, last_hour(&minutes, now))).collect())
    }
}

/// The minutes of the last hour.
pub(super) fn axis(now: Time) -> Axis {
    Range::Hour.axis(now)
}

fn last_hour(minutes: &[MinuteRollup], now: Time) -> LastHour {
    let axis = axis(now);
    let mut sum = Rollup::default();
    let inside = minutes.iter().filter(|one| axis.place(one.minute).is_some());
    inside.for_each(|one| sum.merge(&one.rollup));
    let rollups = minutes.iter().map(|one| (one.minute, &one.rollup));
    let minutes = axis.fold(rollups, |spark: &mut Spark, rollup| {
        spark.attempts = spark.attempts.saturating_add(rollup.attempts);
        spark.successes = spark.successes.saturating_add(rollup.successes);
    });
    LastHour { sum, minutes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_sixty_minutes_whatever_was_sent() {
        let now = Time::parse("2026-03-02T10:17:42Z").unwrap();
        let minute = |start: &str, attempts, successes| MinuteRollup {
            tenant: TenantId::default(),
            webhook: WebhookId::from_bytes([1; 16]),
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
        let mut expected = vec![Spark::default(); 60];
        expected[0] = Spark { attempts: 1, successes: 0 };
        expected[59] = Spark { attempts: 6, successes: 5 };
        assert_eq!(hour.minutes, expected);
    }
}

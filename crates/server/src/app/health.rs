//! Health of a webhook: its circuit, recent results and backlog.

use std::{collections::BTreeMap, time::Duration};

use redrive_core::{
    Time, WebhookId,
    dispatch::gate::WaitingOn,
    statistics::{rollup::Rollup, traffic::recent_since},
    webhook::{WebhookState, status::WebhookStatus},
};
use redrive_engine::WaitReason;
use redrive_store::{Backlog, MinuteRollup};

use super::{App, AppError, TenantView, circuit::CircuitDetails, webhook_status::status_of};

/// Maximum number of waiting deliveries counted per kind.
const MAX_COUNTED: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Health of a webhook.
#[derive(Clone, Debug)]
pub struct Health {
    /// State of the webhook.
    pub state: WebhookState,
    /// Circuit of the webhook.
    pub circuit: CircuitDetails,
    /// Results per minute of the last 24 hours, oldest first. A minute may have several entries.
    pub minutes: Vec<MinuteRollup>,
    /// Results of the last five minutes.
    pub last_5_minutes: Rollup,
    /// Results of the last hour.
    pub last_hour: Rollup,
    /// Results of the last 24 hours.
    pub last_24_hours: Rollup,
    /// Time of the last successful attempt.
    pub last_success_at: Option<Time>,
    /// Time of the first failure since the last success.
    pub failing_since: Option<Time>,
    /// Status of the webhook.
    pub status: WebhookStatus,
    /// Number of requests in flight.
    pub in_flight: usize,
    /// Reason why due deliveries wait; `None` if they only wait for a free slot.
    pub waiting: Option<WaitReason>,
    /// Waiting deliveries.
    pub backlog: BacklogBreakdown,
}

/// Backlog of a webhook by wait reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogBreakdown {
    /// Number of waiting deliveries, up to the counting limit.
    pub total: u64,
    /// Number of waiting deliveries by reason, without zero counts.
    pub by_waiting_on: BTreeMap<&'static str, u64>,
    /// Counting limit, if there are more.
    pub counted_up_to: Option<usize>,
}

impl App {
    /// Returns the health of a webhook.
    pub async fn health(&self, tenant: impl Into<TenantView>, id: WebhookId) -> Result<Health, AppError> {
        let view = tenant.into();
        let tenant_id = view.id.clone();
        let webhook = self.webhook(view, id).await?;
        let state = webhook.state.clone();
        let gate = self.engine.gate_status(id).await?.ok_or(AppError::NotFound("webhook"))?;
        let now = self.engine.clock().now();
        // Deliveries of a webhook that receives no events wait for nothing: they are being cancelled.
        let waiting = gate.wait_reason.clone().filter(|_| state.receives_events());
        let backlogs = self.store().backlogs(Some(tenant_id.clone()), vec![id], now, MAX_COUNTED).await?;
        let backlog = backlogs.first().map(|(_, backlog)| *backlog).unwrap_or_default();
        let minutes = self.engine.rollups(Some(&tenant_id), vec![id], now.saturating_sub(DAY)).await?;
        let last_hour = sum(&minutes, recent_since(now, 60 * MINUTE));
        let status = status_of(&webhook, Some(&gate), &last_hour, &self.engine.failing_rule(), now);
        Ok(Health {
            status,
            circuit: self.with_periods(&tenant_id, id, gate.circuit).await?,
            last_5_minutes: sum(&minutes, recent_since(now, 5 * MINUTE)),
            last_hour,
            last_24_hours: sum(&minutes, recent_since(now, DAY)),
            last_success_at: self.engine.last_success(&tenant_id, id).await?,
            failing_since: gate.failures.as_ref().map(|failures| failures.since),
            in_flight: gate.in_flight,
            backlog: attribute_backlog(
                &backlog,
                gate.queued as u64,
                waiting.as_ref().map(|waiting| waiting.on),
                MAX_COUNTED,
            ),
            waiting,
            state,
            minutes,
        })
    }
}

/// Sums the rollups from this minute on.
fn sum(minutes: &[MinuteRollup], from: Time) -> Rollup {
    let mut sum = Rollup::default();
    for minute in minutes.iter().filter(|minute| minute.minute >= from) {
        sum.merge(&minute.rollup);
    }
    sum
}

/// Attributes each kind of waiting delivery to a reason: due deliveries to what blocks the webhook. A pause, or a
/// pool that no worker serves, blocks all of them, due or not. `max` is the counting limit per kind.
pub(super) fn attribute_backlog(
    backlog: &Backlog,
    queued: u64,
    holds_back: Option<WaitingOn>,
    max: usize,
) -> BacklogBreakdown {
    let of_all = holds_back.filter(|why| matches!(why, WaitingOn::Paused | WaitingOn::Pool));
    let kinds = [
        (holds_back.unwrap_or(WaitingOn::Capacity), backlog.due + queued),
        (of_all.unwrap_or(WaitingOn::Schedule), backlog.scheduled),
        (of_all.unwrap_or(WaitingOn::Order), backlog.in_order),
    ];
    let mut by_waiting_on = BTreeMap::new();
    for (why, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
        *by_waiting_on.entry(why.name()).or_default() += count;
    }
    BacklogBreakdown {
        total: backlog.total() + queued,
        by_waiting_on,
        counted_up_to: backlog.more.then_some(max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_includes_minutes_that_start_at_or_after_given_time() {
        let minute = |secs: u32, attempts: u32| MinuteRollup {
            tenant_id: redrive_core::TenantId::default(),
            webhook_id: WebhookId::new(Time::default(), &[0; 10]),
            minute: Time::from_secs(secs),
            rollup: Rollup { attempts, ..Rollup::default() },
        };
        let minutes = [minute(0, 1), minute(60, 2), minute(120, 4)];
        assert_eq!(sum(&minutes, Time::from_secs(0)).attempts, 7);
        assert_eq!(sum(&minutes, Time::from_secs(1)).attempts, 6);
        assert_eq!(sum(&minutes, Time::from_secs(60)).attempts, 6);
        assert_eq!(sum(&minutes, Time::from_secs(121)).attempts, 0);
    }

    #[test]
    fn backlog_is_attributed_to_wait_reasons() {
        let backlog = Backlog { due: 3, scheduled: 2, ..Backlog::default() };
        let held = attribute_backlog(&backlog, 0, Some(WaitingOn::CircuitOpen), MAX_COUNTED);
        assert_eq!((held.total, held.counted_up_to), (5, None));
        assert_eq!(held.by_waiting_on, BTreeMap::from([("circuit_open", 3), ("schedule", 2)]));
        let parked = attribute_backlog(&backlog, 1, Some(WaitingOn::Paused), MAX_COUNTED);
        assert_eq!(parked.by_waiting_on, BTreeMap::from([("paused", 6)]));
        let free = attribute_backlog(&Backlog { in_order: 4, more: true, ..backlog }, 0, None, MAX_COUNTED);
        assert_eq!((free.total, free.counted_up_to), (9, Some(MAX_COUNTED)));
        assert_eq!(free.by_waiting_on, BTreeMap::from([("capacity", 3), ("order", 4), ("schedule", 2)]));
    }
}

//! How a webhook is doing: its circuit, what came back lately, and what waits for it.

use std::{collections::BTreeMap, time::Duration};

use redrive_core::{
    Time, WebhookId, dispatch::gate::WaitingOn, statistics::rollup::Rollup, statistics::traffic::lately,
    webhook::WebhookState,
};
use redrive_engine::Waiting;
use redrive_store::{Backlog, MinuteRollup};

use super::{App, AppError, TenantView, circuit::CircuitSeen};

/// Waiting deliveries of each kind are counted up to here.
const MOST: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How a webhook is doing.
#[derive(Clone, Debug)]
pub struct Health {
    /// Whether it gets events.
    pub state: WebhookState,
    /// Its circuit.
    pub circuit: CircuitSeen,
    /// What came back minute by minute in the last day, oldest first. A minute may be there in several parts.
    pub minutes: Vec<MinuteRollup>,
    /// What came back in the last five minutes.
    pub last_5_minutes: Rollup,
    /// What came back in the last hour.
    pub last_hour: Rollup,
    /// What came back in the last day.
    pub last_24_hours: Rollup,
    /// When it last took a delivery.
    pub last_success_at: Option<Time>,
    /// When the first of an unbroken row of failures was.
    pub failing_since: Option<Time>,
    /// Requests under way.
    pub in_flight: usize,
    /// What its due deliveries wait for; none if they only wait for their turn.
    pub waiting: Option<Waiting>,
    /// What waits for it.
    pub backlog: BacklogSeen,
}

/// What waits for a webhook, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogSeen {
    /// All of it, as far as it was counted.
    pub total: u64,
    /// How many wait for what; only what occurs.
    pub by_waiting_on: BTreeMap<&'static str, u64>,
    /// Where counting stopped, if there is more.
    pub counted_up_to: Option<usize>,
}

impl App {
    /// How a webhook is doing.
    pub async fn health(&self, tenant: impl Into<TenantView>, id: WebhookId) -> Result<Health, AppError> {
        let view = tenant.into();
        let tenant = view.id.clone();
        let state = self.webhook(view, id).await?.state;
        let gate = self.engine.gate_view(id).await?.ok_or(AppError::NotFound("webhook"))?;
        let now = self.engine.clock().now();
        // What is pending for a webhook that is off waits for nothing: it is being called off.
        let waiting = gate.waiting.filter(|_| state.gets_events());
        let backlogs = self.store().backlogs(Some(tenant.clone()), vec![id], now, MOST).await?;
        let backlog = backlogs.first().map(|(_, backlog)| *backlog).unwrap_or_default();
        let minutes = self.engine.rollups(Some(&tenant), vec![id], now.back(DAY)).await?;
        Ok(Health {
            circuit: self.with_periods(&tenant, id, gate.circuit).await?,
            last_5_minutes: sum(&minutes, lately(now, 5 * MINUTE)),
            last_hour: sum(&minutes, lately(now, 60 * MINUTE)),
            last_24_hours: sum(&minutes, lately(now, DAY)),
            last_success_at: self.engine.last_success(&tenant, id).await?,
            failing_since: gate.failing_since,
            in_flight: gate.in_flight,
            backlog: attributed(
                &backlog,
                gate.queued as u64,
                waiting.as_ref().map(|waiting| waiting.on),
                MOST,
            ),
            waiting,
            state,
            minutes,
        })
    }
}

/// Adds up the minutes from this one on.
fn sum(minutes: &[MinuteRollup], from: Time) -> Rollup {
    let mut sum = Rollup::default();
    for minute in minutes.iter().filter(|minute| minute.minute >= from) {
        sum.merge(&minute.rollup);
    }
    sum
}

/// Says of each kind what it waits for; what is due waits for what holds the webhook back.
/// A pause or a pool that nobody serves holds back everything, due or not. `most` of each kind were counted.
pub(super) fn attributed(
    backlog: &Backlog,
    queued: u64,
    holds_back: Option<WaitingOn>,
    most: usize,
) -> BacklogSeen {
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
    BacklogSeen {
        total: backlog.total() + queued,
        by_waiting_on,
        counted_up_to: backlog.more.then_some(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_count_from_their_beginning_on() {
        let minute = |secs: u32, attempts: u32| MinuteRollup {
            tenant: redrive_core::TenantId::default(),
            webhook: WebhookId::new(Time::default(), &[0; 10]),
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
    fn the_backlog_says_what_it_waits_for() {
        let backlog = Backlog { due: 3, scheduled: 2, ..Backlog::default() };
        let held = attributed(&backlog, 0, Some(WaitingOn::CircuitOpen), MOST);
        assert_eq!((held.total, held.counted_up_to), (5, None));
        assert_eq!(held.by_waiting_on, BTreeMap::from([("circuit_open", 3), ("schedule", 2)]));
        let parked = attributed(&backlog, 1, Some(WaitingOn::Paused), MOST);
        assert_eq!(parked.by_waiting_on, BTreeMap::from([("paused", 6)]));
        let free = attributed(&Backlog { in_order: 4, more: true, ..backlog }, 0, None, MOST);
        assert_eq!((free.total, free.counted_up_to), (9, Some(MOST)));
        assert_eq!(free.by_waiting_on, BTreeMap::from([("capacity", 3), ("order", 4), ("schedule", 2)]));
    }
}

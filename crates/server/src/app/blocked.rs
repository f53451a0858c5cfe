//! Periods during which a circuit blocked a delivery, computed from stored attempts and circuit periods. They are
//! never stored per delivery.

use redrive_core::{DeliveryStatus, Time, protection::breaker::Counts};
use redrive_store::{Attempt, CircuitPeriod, Delivery};

/// Period during which an open circuit blocked a delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockedPeriod {
    /// Start: the delivery was due and the circuit open.
    pub since: Time,
    /// End; `None` while the delivery is blocked.
    pub until: Option<Time>,
    /// Time at which the circuit opened.
    pub opened_at: Time,
    /// Whether the circuit was forced open manually.
    pub forced: bool,
    /// Counts of the window that opened the circuit.
    pub counts: Counts,
}

/// Period during which a delivery was due and not sent.
struct WaitPeriod {
    from: Time,
    end: WaitEnd,
}

/// End of a wait.
enum WaitEnd {
    /// The delivery was sent or ended at this time.
    At(Time),
    /// A request is in flight; its start is not stored yet.
    UnderWay,
    /// The delivery is still waiting.
    NotYet,
}

impl WaitPeriod {
    /// Returns whether the open period overlaps this wait.
    fn overlaps(&self, period: &CircuitPeriod, now: Time) -> bool {
        let began_in_time = match self.end {
            WaitEnd::At(end) => period.opened_at < end,
            // Nothing is sent while a circuit is open, so a period that has not ended began after the request was sent.
            WaitEnd::UnderWay => period.ended_at.is_some(),
            WaitEnd::NotYet => period.opened_at < now,
        };
        began_in_time && self.from < period.ended_at.unwrap_or(now)
    }
}

/// Returns the open periods that blocked a delivery, each at most once: those in which the delivery was due and
/// waited. The status of `delivery` must be `InFlight` while a request is in flight. `first_due` is the original
/// due time of its first attempt.
pub(super) fn blocked(
    delivery: &Delivery,
    first_due: Time,
    attempts: &[&Attempt],
    periods: &[CircuitPeriod],
    now: Time,
) -> Vec<BlockedPeriod> {
    let mut waits = Vec::with_capacity(attempts.len() + 1);
    let mut planned = Some(first_due);
    for attempt in attempts {
        waits.push(WaitPeriod {
            from: earlier(planned, attempt.scheduled_at),
            end: WaitEnd::At(attempt.executed_at),
        });
        planned = attempt.next_retry_at;
    }
    waits.extend(last_wait(delivery, planned));
    let to_blocked_period = |period: &CircuitPeriod| {
        let wait = waits.iter().find(|wait| wait.overlaps(period, now))?;
        Some(BlockedPeriod {
            since: wait.from.max(period.opened_at),
            until: match wait.end {
                WaitEnd::At(end) => Some(period.ended_at.map_or(end, |ended| ended.min(end))),
                WaitEnd::UnderWay | WaitEnd::NotYet => period.ended_at,
            },
            opened_at: period.opened_at,
            forced: period.forced,
            counts: period.counts,
        })
    };
    periods.iter().filter_map(to_blocked_period).collect()
}

/// Returns the earlier of the planned and the stored due time: a hold may postpone the due time, a manual retry
/// may bring it forward.
fn earlier(planned: Option<Time>, due: Time) -> Time {
    planned.map_or(due, |planned| planned.min(due))
}

/// Returns the wait after the last attempt, or before the first one.
fn last_wait(delivery: &Delivery, planned: Option<Time>) -> Option<WaitPeriod> {
    let from = match delivery.due {
        Some(due) => earlier(planned, due),
        None => planned?,
    };
    let end = match delivery.status {
        DeliveryStatus::Pending => WaitEnd::NotYet,
        DeliveryStatus::InFlight => WaitEnd::UnderWay,
        DeliveryStatus::Delivered => return None,
        DeliveryStatus::Dead | DeliveryStatus::Cancelled => WaitEnd::At(delivery.ended_at?),
    };
    Some(WaitPeriod { from, end })
}

impl BlockedPeriod {
    /// Describes the period as text.
    pub fn describe(&self) -> String {
        let blocked = match self.until {
            Some(until) => format!("blocked until {until}: the circuit was"),
            None => "blocked: the circuit is".into(),
        };
        let opened_at = self.opened_at;
        if self.forced {
            return format!("{blocked} forced open since {opened_at}");
        }
        let Counts { total, failed, .. } = self.counts;
        let mostly = self
            .counts
            .most_frequent()
            .map_or(String::new(), |category| format!(", mostly with {}", category.name()));
        match total {
            0 => format!("{blocked} open since {opened_at}"),
            _ => format!("{blocked} open since {opened_at}, {failed} of {total} attempts had failed{mostly}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::{
        AttemptId, DeadReason, DeliveryId, EventId, FailureCategory, TenantId, WebhookId,
        delivery::lane::Priority, event::PayloadFormat, protection::breaker::CircuitState,
    };
    use redrive_store::PhaseTimings;

    use redrive_core::delivery::outcome::AttemptStatus;

    use super::*;

    fn at(secs: u32) -> Time {
        Time::from_secs(secs)
    }

    fn delivery(status: DeliveryStatus, created: u32) -> Delivery {
        let created_at = at(created);
        Delivery {
            id: DeliveryId::new(created_at, &[0; 10]),
            tenant_id: TenantId::default(),
            event_id: EventId::new(created_at, &[0; 10]),
            event_type: "a.b".into(),
            webhook_id: WebhookId::new(created_at, &[0; 10]),
            round: 1,
            status,
            attempt_count: 0,
            last_status_code: None,
            failure_category: None,
            last_error: None,
            dead_reason: None,
            cancel_reason: None,
            created_at,
            ended_at: None,
            replay_of: None,
            redriven_as: None,
            purged_at: None,
            format: PayloadFormat::Envelope,
            priority: Priority::Normal,
            due: None,
            predecessor: None,
        }
    }

    fn attempt(number: u32, scheduled: u32, executed: u32, next: Option<u32>) -> Attempt {
        Attempt {
            id: AttemptId::new(at(executed), &[0; 10]),
            number,
            status: if next.is_some() { AttemptStatus::Failed } else { AttemptStatus::Success },
            failure_category: next.map(|_| FailureCategory::ServerError),
            http_status_code: None,
            error_message: None,
            custom_headers: None,
            response_headers: None,
            response_body_sample: None,
            timings: PhaseTimings::default(),
            scheduled_at: at(scheduled),
            executed_at: at(executed),
            next_retry_at: next.map(at),
            circuit: CircuitState::Closed,
            worker: "test#1".into(),
        }
    }

    fn period(opened: u32, ended: Option<u32>) -> CircuitPeriod {
        let counts = Counts { total: 20, failed: 12, ..Counts::default() };
        CircuitPeriod { opened_at: at(opened), ended_at: ended.map(at), forced: false, counts }
    }

    /// Returns start and end of the blocked periods, in seconds.
    fn spans(
        delivery: &Delivery,
        attempts: &[Attempt],
        periods: &[CircuitPeriod],
        now: u32,
    ) -> Vec<(i64, Option<i64>)> {
        let attempts: Vec<_> = attempts.iter().collect();
        let found = blocked(delivery, delivery.created_at, &attempts, periods, at(now));
        found.iter().map(|held| (held.since.secs(), held.until.map(Time::secs))).collect()
    }

    #[test]
    fn attempt_is_blocked_between_due_time_and_send_time() {
        let delivered = delivery(DeliveryStatus::Delivered, 100);
        let attempts = [attempt(1, 100, 100, Some(110)), attempt(2, 110, 150, None)];
        let before_due = period(105, Some(140));
        assert_eq!(spans(&delivered, &attempts, &[before_due], 200), [(110, Some(140))]);
        let after_due = period(120, Some(140));
        assert_eq!(spans(&delivered, &attempts, &[after_due], 200), [(120, Some(140))]);
        let over_before_due = period(101, Some(110));
        let opened_when_sent = period(150, Some(160));
        assert_eq!(spans(&delivered, &attempts, &[over_before_due, opened_when_sent], 200), []);
    }

    #[test]
    fn postponed_delivery_is_blocked_from_original_due_time() {
        let delivered = delivery(DeliveryStatus::Delivered, 100);
        // Blocked, then not chosen as a probe of the half-open circuit: both waits were postponed until the circuit
        // closed.
        let attempts = [attempt(1, 145, 150, Some(160)), attempt(2, 195, 200, None)];
        let periods = [period(90, Some(130)), period(155, Some(190))];
        assert_eq!(spans(&delivered, &attempts, &periods, 300), [(100, Some(130)), (160, Some(190))]);
        let first = attempt(1, 120, 120, None);
        let later = blocked(&delivered, at(120), &[&first], &[period(90, Some(110))], at(300));
        assert_eq!(later, [], "its first attempt was due later");
        let mut pending = delivery(DeliveryStatus::Pending, 100);
        pending.due = Some(at(400));
        assert_eq!(spans(&pending, &[], &[period(90, Some(130))], 300), [(100, Some(130))]);
    }

    #[test]
    fn each_period_is_reported_once() {
        let delivered = delivery(DeliveryStatus::Delivered, 100);
        let attempts = [attempt(1, 100, 130, Some(135)), attempt(2, 135, 170, None)];
        let periods = [period(90, Some(120)), period(121, Some(129)), period(130, Some(160))];
        let expected = [(100, Some(120)), (121, Some(129)), (135, Some(160))];
        assert_eq!(spans(&delivered, &attempts, &periods, 200), expected);
        // A period that spans two waits is reported for the first one only.
        let long = [period(90, Some(160))];
        assert_eq!(spans(&delivered, &attempts, &long, 200), [(100, Some(130))]);
    }

    #[test]
    fn pending_delivery_is_still_blocked() {
        let mut pending = delivery(DeliveryStatus::Pending, 100);
        pending.due = Some(at(100));
        assert_eq!(spans(&pending, &[], &[period(90, None)], 200), [(100, None)]);
        assert_eq!(spans(&pending, &[], &[period(150, None)], 200), [(150, None)]);
        assert_eq!(spans(&pending, &[], &[period(90, Some(120))], 200), [(100, Some(120))]);
        let tried = [attempt(1, 80, 80, Some(300))];
        pending.due = Some(at(300));
        assert_eq!(spans(&pending, &tried, &[period(90, None)], 200), [], "not due yet");
        pending.due = Some(at(150));
        assert_eq!(
            spans(&pending, &tried, &[period(90, None)], 200),
            [(150, None)],
            "a manual retry set it due"
        );
        pending.due = None;
        let failed = [attempt(1, 100, 100, Some(160))];
        assert_eq!(spans(&pending, &failed, &[period(101, None)], 200), [(160, None)], "a node has it");
        assert_eq!(spans(&pending, &failed, &[period(101, Some(160))], 200), []);
    }

    #[test]
    fn in_flight_delivery_is_not_blocked_by_later_period() {
        let in_flight = delivery(DeliveryStatus::InFlight, 100);
        assert_eq!(spans(&in_flight, &[], &[period(150, None)], 200), []);
        assert_eq!(
            spans(&in_flight, &[], &[period(90, Some(140)), period(150, None)], 200),
            [(100, Some(140))]
        );
    }

    #[test]
    fn delivery_ended_without_attempt_is_blocked_until_its_end() {
        let mut cancelled = delivery(DeliveryStatus::Cancelled, 100);
        cancelled.ended_at = Some(at(150));
        assert_eq!(spans(&cancelled, &[], &[period(90, None)], 200), [(100, Some(150))]);
        assert_eq!(spans(&cancelled, &[], &[period(150, None)], 200), [], "it had ended by then");
        let mut expired = delivery(DeliveryStatus::Dead, 100);
        (expired.ended_at, expired.dead_reason) = (Some(at(500)), Some(DeadReason::Expired));
        let failed = [attempt(1, 100, 100, Some(130))];
        let periods = [period(101, Some(200)), period(210, Some(600))];
        assert_eq!(spans(&expired, &failed, &periods, 900), [(130, Some(200)), (210, Some(500))]);
        let exhausted = [attempt(1, 100, 100, None)];
        assert_eq!(spans(&expired, &exhausted, &periods, 900), [], "the attempt ended it");
    }

    #[test]
    fn description_states_reason_and_end() {
        let mut counts = Counts { total: 20, failed: 12, ..Counts::default() };
        counts.by_category[FailureCategory::Timeout as usize] = 12;
        let mut held = BlockedPeriod { since: at(2), until: None, opened_at: at(1), forced: false, counts };
        assert_eq!(
            held.describe(),
            "blocked: the circuit is open since 1970-01-01T00:00:01.000Z, 12 of 20 attempts had failed, mostly \
             with timeout"
        );
        held.until = Some(at(60));
        assert!(held.describe().starts_with("blocked until 1970-01-01T00:01:00.000Z: the circuit was open"));
        (held.forced, held.until) = (true, None);
        assert_eq!(held.describe(), "blocked: the circuit is forced open since 1970-01-01T00:00:01.000Z");
    }
}

//! Bulk operations: their kinds, what they select, their rate limit, and their state transitions.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    delivery::{
        DeadReason, DeliveryStatus, lane::Priority, recovery::Recoverability, response::FailureCategory,
    },
    field_error::FieldError,
    id::WebhookId,
    time::Time,
};

/// Maximum rate of an operation, in deliveries queued per second.
pub const MAX_RATE: u32 = 10_000;
/// Maximum number of active operations of a tenant. A node runs a limited number of operations concurrently, and one
/// tenant must not occupy all of them.
pub const MAX_ACTIVE_PER_TENANT: usize = 8;
/// Maximum number of webhooks, event types or failure categories in a selection.
pub const MAX_FILTER_VALUES: usize = 1_000;

/// What an operation does to each selected object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OperationKind {
    /// Delivers again: a new round for ended deliveries, an immediate attempt for pending ones.
    Retry,
    /// Cancels deliveries.
    Cancel,
    /// Removes deliveries from the list of dead letters.
    Purge,
    /// Delivers past events to a webhook that did not get them.
    Backfill,
}

impl OperationKind {
    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Purge => "purge",
            Self::Backfill => "backfill",
        }
    }

    /// Returns whether the operation sends deliveries, whose results it then reports.
    pub fn sends(self) -> bool {
        matches!(self, Self::Retry | Self::Backfill)
    }
}

/// What an operation scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationTarget {
    /// Dead letters.
    Dead,
    /// All deliveries.
    Deliveries,
    /// Deliveries that have not ended.
    Pending,
    /// Events.
    Events,
}

/// State of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OperationState {
    /// Its start time has not come yet.
    Scheduled,
    /// Processing its selection.
    Running,
    /// Paused by a user.
    Paused,
    /// Everything is queued, and some deliveries have not ended yet.
    Delivering,
    /// Completed.
    Completed,
    /// Cancelled by a user. Deliveries that were queued before are still sent.
    Cancelled,
}

/// What a user may do with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationAction {
    /// Pauses it.
    Pause,
    /// Resumes it.
    Resume,
    /// Cancels it.
    Cancel,
}

impl OperationState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Scheduled, Self::Running, Self::Paused, Self::Delivering, Self::Completed, Self::Cancelled];

    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Delivering => "delivering",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the state with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns whether the operation still has work to do.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Scheduled | Self::Running | Self::Paused)
    }

    /// Returns the state after an action, or why the action is not allowed. An operation that had started continues
    /// immediately when it is resumed.
    pub fn apply(self, action: OperationAction, has_started: bool) -> Result<Self, &'static str> {
        match (self, action) {
            (Self::Scheduled | Self::Running | Self::Paused, OperationAction::Pause) => Ok(Self::Paused),
            (Self::Paused, OperationAction::Resume) if has_started => Ok(Self::Running),
            (Self::Paused | Self::Scheduled, OperationAction::Resume) => Ok(Self::Scheduled),
            (Self::Running, OperationAction::Resume) => Ok(Self::Running),
            (Self::Scheduled | Self::Running | Self::Paused | Self::Cancelled, OperationAction::Cancel) => {
                Ok(Self::Cancelled)
            }
            (Self::Delivering, _) => {
                Err("all its deliveries are queued already; cancel the deliveries instead")
            }
            (Self::Completed, _) => Err("it is completed"),
            (Self::Cancelled, _) => Err("it is cancelled; start a new one"),
        }
    }
}

/// Filter of an operation. Omitted fields match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperationFilter {
    /// Deliveries to one of these webhooks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub webhook_ids: Vec<WebhookId>,
    /// Deliveries of one of these event types.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_types: Vec<String>,
    /// Deliveries whose last failure was of one of these categories.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure_categories: Vec<FailureCategory>,
    /// Deliveries in one of these states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<DeliveryStatus>,
    /// Deliveries that are dead for one of these reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dead_reasons: Vec<DeadReason>,
    /// Dead deliveries that are likely (`true`) or unlikely (`false`) to succeed if sent again unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recoverable: Option<bool>,
    /// Deliveries of events from this time on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
    /// Deliveries of events before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Time>,
    /// Only deliveries to webhooks that the tenant manages; set for portal sessions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tenant_managed_only: bool,
}

impl OperationFilter {
    /// Returns whether the selection has no filter except `tenant_managed_only`, which the caller does not set.
    pub fn is_unfiltered(&self) -> bool {
        *self == Self { tenant_managed_only: self.tenant_managed_only, ..Self::default() }
    }

    /// Returns an error if a list is too long or the time range is empty.
    pub fn check(&self) -> Result<(), FieldError> {
        for (field, count) in [
            ("filter.webhook_ids", self.webhook_ids.len()),
            ("filter.event_types", self.event_types.len()),
            ("filter.failure_categories", self.failure_categories.len()),
            ("filter.statuses", self.statuses.len()),
            ("filter.dead_reasons", self.dead_reasons.len()),
        ] {
            if count > MAX_FILTER_VALUES {
                return Err(FieldError::new(
                    field,
                    format!("has {count} values; at most {MAX_FILTER_VALUES} are allowed"),
                ));
            }
        }
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from >= to
        {
            return Err(FieldError::new("filter.to", "must be later than `from`"));
        }
        Ok(())
    }

    /// Returns whether events of this type are selected.
    pub fn matches_type(&self, event_type: &str) -> bool {
        self.event_types.is_empty() || self.event_types.iter().any(|named| named == event_type)
    }

    fn matches(&self, candidate: &Candidate) -> bool {
        !(self.tenant_managed_only && candidate.is_operator_managed)
            && has(&self.webhook_ids, &candidate.webhook_id)
            && self.matches_type(&candidate.event_type)
            && has(&self.statuses, &candidate.status)
            && (self.failure_categories.is_empty()
                || candidate
                    .failure_category
                    .is_some_and(|category| self.failure_categories.contains(&category)))
            && (self.dead_reasons.is_empty()
                || candidate.dead_reason.is_some_and(|reason| self.dead_reasons.contains(&reason)))
            && self.recoverable.is_none_or(|wanted| {
                let likely = |reason| Recoverability::is_likely(reason, candidate.failure_category) == wanted;
                candidate.dead_reason.is_some_and(likely)
            })
    }
}

fn has<T: PartialEq>(named: &[T], one: &T) -> bool {
    named.is_empty() || named.contains(one)
}

/// A delivery that an operation examines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its webhook.
    pub webhook_id: WebhookId,
    /// Its event type.
    pub event_type: String,
    /// Its status.
    pub status: DeliveryStatus,
    /// Category of its last failure.
    pub failure_category: Option<FailureCategory>,
    /// Its priority.
    pub priority: Priority,
    /// When it was created.
    pub created_at: Time,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// Why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// Whether there is a later round.
    pub is_redriven: bool,
    /// Whether the operator manages its webhook.
    pub is_operator_managed: bool,
}

/// Returns whether an operation that started at `started` selects a delivery. Only deliveries that existed by
/// then, and had ended by then if they have ended, are selected: rounds created later by this or another
/// operation are not.
pub fn selects(
    kind: OperationKind,
    selection: &OperationFilter,
    started: Time,
    candidate: &Candidate,
) -> bool {
    let is_pending = !candidate.status.is_final();
    let existed_at_start =
        candidate.created_at < started && candidate.ended_at.is_none_or(|end| end <= started);
    let fits = match kind {
        // A pending delivery without a failed attempt is about to be sent anyway.
        OperationKind::Retry => {
            !candidate.is_redriven && (!is_pending || candidate.failure_category.is_some())
        }
        OperationKind::Cancel => is_pending,
        OperationKind::Purge => candidate.status == DeliveryStatus::Dead && !candidate.is_redriven,
        OperationKind::Backfill => false,
    };
    existed_at_start && fits && selection.matches(candidate)
}

/// Rate limiter of an operation: a fixed number per second, without a burst for unused time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    rate: Option<u32>,
    from: Time,
    done: u64,
}

impl Pacer {
    /// Starts now with `rate` deliveries queued per second; `None` for no limit.
    pub fn new(rate: Option<u32>, now: Time) -> Self {
        Self { rate, from: now, done: 0 }
    }

    /// Returns how many may be processed now, up to the given maximum.
    pub fn allowed(&self, now: Time, max: usize) -> usize {
        let Some(rate) = self.rate else { return max };
        let elapsed = u128::from(now.duration_since(self.from).as_millis() as u64);
        let due = (elapsed * u128::from(rate) / 1_000) as u64 + 1;
        usize::try_from(due.saturating_sub(self.done)).unwrap_or(usize::MAX).min(max)
    }

    /// Returns when the next one may be processed.
    pub fn next_at(&self) -> Time {
        let Some(rate) = self.rate else { return self.from };
        let millis = (u128::from(self.done) * 1_000).div_ceil(u128::from(rate.max(1)));
        self.from + Duration::from_millis(millis as u64)
    }

    /// Records that `count` were processed. An operation that is behind by more than a second does not catch up.
    pub fn record(&mut self, count: usize, now: Time) {
        self.done += count as u64;
        if let Some(rate) = self.rate
            && self.next_at() + Duration::from_secs(1) < now
        {
            *self = Self::new(Some(rate), now);
        }
    }
}

/// Returns when an operation will be finished at its current rate, or `None` if that is unknown.
pub fn eta(total: Option<u64>, done: u64, per_second: Option<f64>, now: Time) -> Option<Time> {
    let (left, rate) = (total?.saturating_sub(done), per_second.filter(|rate| *rate > 0.0)?);
    Some(now + Duration::try_from_secs_f64(left as f64 / rate).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate() -> Candidate {
        Candidate {
            webhook_id: WebhookId::from_bytes([1; 16]),
            event_type: "a.b".into(),
            status: DeliveryStatus::Dead,
            failure_category: Some(FailureCategory::Timeout),
            priority: Priority::Normal,
            created_at: Time::from_millis(1),
            ended_at: Some(Time::from_millis(5)),
            dead_reason: Some(DeadReason::Exhausted),
            is_redriven: false,
            is_operator_managed: false,
        }
    }

    fn started_at() -> Time {
        Time::from_millis(10)
    }

    #[test]
    fn operation_selects_only_deliveries_from_before_its_start() {
        let all = OperationFilter::default();
        let takes = |kind, one: &Candidate| selects(kind, &all, started_at(), one);
        let (retry, purge) = (OperationKind::Retry, OperationKind::Purge);
        assert!(takes(retry, &candidate()) && takes(purge, &candidate()));
        let hidden = Candidate { is_operator_managed: true, ..candidate() };
        for (tenant_managed_only, candidate, takes) in
            [(false, &hidden, true), (true, &hidden, false), (true, &candidate(), true)]
        {
            let selection = OperationFilter { tenant_managed_only, ..OperationFilter::default() };
            assert!(selection.is_unfiltered());
            assert_eq!(selects(OperationKind::Purge, &selection, started_at(), candidate), takes);
        }
        let redriven = Candidate { is_redriven: true, ..candidate() };
        assert!(!takes(retry, &redriven) && !takes(purge, &redriven));
        let created_later =
            Candidate { created_at: started_at(), ended_at: Some(started_at()), ..candidate() };
        assert!(!takes(retry, &created_later));
        let ended_later = Candidate { ended_at: Some(Time::from_millis(11)), ..candidate() };
        assert!(!takes(retry, &ended_later));
        let pending = Candidate { status: DeliveryStatus::Pending, ended_at: None, ..candidate() };
        assert!(takes(retry, &pending) && takes(OperationKind::Cancel, &pending) && !takes(purge, &pending));
        let unattempted = Candidate { failure_category: None, ..pending };
        assert!(!takes(retry, &unattempted) && takes(OperationKind::Cancel, &unattempted));
        let delivered =
            Candidate { status: DeliveryStatus::Delivered, failure_category: None, ..candidate() };
        assert!(
            takes(retry, &delivered)
                && !takes(OperationKind::Cancel, &delivered)
                && !takes(purge, &delivered)
        );
    }

    #[test]
    fn selection_matches_its_filters() {
        let takes = |selection: OperationFilter| {
            selects(OperationKind::Retry, &selection, started_at(), &candidate())
        };
        assert!(takes(OperationFilter {
            event_types: vec!["x".into(), "a.b".into()],
            ..OperationFilter::default()
        }));
        assert!(!takes(OperationFilter { event_types: vec!["a".into()], ..OperationFilter::default() }));
        assert!(!takes(OperationFilter {
            webhook_ids: vec![WebhookId::from_bytes([2; 16])],
            ..OperationFilter::default()
        }));
        let timeouts = vec![FailureCategory::Timeout];
        assert!(takes(OperationFilter { failure_categories: timeouts, ..OperationFilter::default() }));
        assert!(!takes(OperationFilter {
            failure_categories: vec![FailureCategory::Dns],
            ..OperationFilter::default()
        }));
        assert!(!takes(OperationFilter {
            statuses: vec![DeliveryStatus::Delivered],
            ..OperationFilter::default()
        }));
        let reasons = |reason| OperationFilter { dead_reasons: vec![reason], ..OperationFilter::default() };
        assert!(takes(reasons(DeadReason::Exhausted)) && !takes(reasons(DeadReason::Expired)));
        let recoverable =
            |wanted| OperationFilter { recoverable: Some(wanted), ..OperationFilter::default() };
        assert!(takes(recoverable(true)) && !takes(recoverable(false)));
        let pending = Candidate { status: DeliveryStatus::Pending, dead_reason: None, ..candidate() };
        for wanted in [true, false] {
            let what = recoverable(wanted);
            assert!(
                !selects(OperationKind::Retry, &what, started_at(), &pending),
                "`recoverable` selects dead deliveries only"
            );
        }
    }

    #[test]
    fn selection_with_long_list_or_empty_range_is_rejected() {
        let many = OperationFilter {
            event_types: vec!["a".into(); MAX_FILTER_VALUES + 1],
            ..OperationFilter::default()
        };
        assert_eq!(many.check().unwrap_err().field, "filter.event_types");
        let (from, to) = (Some(Time::from_millis(5)), Some(Time::from_millis(5)));
        assert_eq!(
            OperationFilter { from, to, ..OperationFilter::default() }.check().unwrap_err().field,
            "filter.to"
        );
        assert!(OperationFilter::default().check().is_ok() && OperationFilter::default().is_unfiltered());
    }

    #[test]
    fn operation_actions_follow_state_machine() {
        use OperationState::*;
        let applied = |state: OperationState, action| state.apply(action, true).ok();
        assert_eq!(applied(Scheduled, OperationAction::Pause), Some(Paused));
        assert_eq!(applied(Paused, OperationAction::Resume), Some(Running));
        assert_eq!(
            Paused.apply(OperationAction::Resume, false),
            Ok(Scheduled),
            "its start time may be in the future"
        );
        assert_eq!(applied(Running, OperationAction::Cancel), Some(Cancelled));
        assert_eq!(
            applied(Cancelled, OperationAction::Cancel),
            Some(Cancelled),
            "a second cancel changes nothing"
        );
        for state in [Delivering, Completed, Cancelled] {
            assert_eq!(applied(state, OperationAction::Pause), None, "{}", state.name());
            assert_eq!(applied(state, OperationAction::Resume), None, "{}", state.name());
        }
        for state in OperationState::ALL {
            assert_eq!(OperationState::parse(state.name()), Some(state));
        }
    }

    #[test]
    fn eta_follows_remaining_work_and_rate() {
        let now = Time::from_secs(100);
        assert_eq!(eta(Some(100), 50, Some(10.0), now), Some(Time::from_secs(105)));
        assert_eq!(eta(None, 50, Some(10.0), now), None);
        assert_eq!(eta(Some(100), 0, Some(0.0), now), None);
        assert_eq!(eta(Some(100), 120, Some(1.0), now), Some(now));
    }

    proptest! {
        /// For arbitrary polling intervals: never more than the rate allows in any time span, and none are lost if it is
        /// polled often enough.
        #[test]
        fn pacer_keeps_the_rate(rate in 1u32..=MAX_RATE, waits in proptest::collection::vec(1u64..400, 1..200)) {
            let start = Time::from_secs(1);
            let (mut pacer, mut now, mut sent) = (Pacer::new(Some(rate), start), start, 0u64);
            for wait in waits {
                let go = pacer.allowed(now, usize::MAX);
                prop_assert!(go == 0 || pacer.next_at() <= now, "nothing is allowed before next_at");
                pacer.record(go, now);
                sent += go as u64;
                let elapsed = now.duration_since(start).as_millis() as u64;
                prop_assert_eq!(sent, elapsed * u64::from(rate) / 1_000 + 1);
                prop_assert!(pacer.next_at() > now);
                now = now + Duration::from_millis(wait);
            }
        }

        #[test]
        fn unused_time_gives_no_burst(rate in 1u32..=MAX_RATE, hours in 1u64..100) {
            let start = Time::from_secs(1);
            let mut pacer = Pacer::new(Some(rate), start);
            let later = start + Duration::from_secs(hours * 3_600);
            pacer.record(1, later);
            prop_assert_eq!(pacer.allowed(later, usize::MAX), 1);
        }
    }
}

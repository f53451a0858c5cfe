//! Bulk operations: what one does, what it takes on, how fast it goes, and which ways it may turn.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    delivery::lane::Priority,
    delivery::recovery::Recovery,
    delivery::response::FailureCategory,
    delivery::{DeadReason, DeliveryStatus},
    field_error::Invalid,
    id::WebhookId,
    time::Time,
};

/// The most that an operation can be asked to queue in a second.
pub const MAX_RATE: u32 = 10_000;
/// How many operations a tenant may have that are not through: no tenant takes all the places.
pub const MAX_OF_A_TENANT: usize = 8;
/// The most webhooks, event types or kinds of failure that a selection can name.
pub const MAX_NAMED: usize = 1_000;

/// What is done to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OperationKind {
    /// Delivered again: a new round for what is over, and at once what is pending.
    Retry,
    /// Called off.
    Cancel,
    /// Taken off the list of dead letters.
    Purge,
    /// Delivered to a webhook that has not had it.
    Backfill,
}

impl OperationKind {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Purge => "purge",
            Self::Backfill => "backfill",
        }
    }

    /// Whether something is sent, of which it is then told how it went.
    pub fn sends(self) -> bool {
        matches!(self, Self::Retry | Self::Backfill)
    }
}

/// What is looked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Among {
    /// Dead letters.
    Dead,
    /// All deliveries.
    Deliveries,
    /// Deliveries that are not over.
    Pending,
    /// Events.
    Events,
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OperationState {
    /// Its time has not come.
    Scheduled,
    /// At work.
    Running,
    /// Held by a person.
    Paused,
    /// All is queued, and not everything has ended yet.
    Delivering,
    /// Over.
    Completed,
    /// Ended by a person. What was queued by then is delivered.
    Cancelled,
}

/// What a person may do with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Hold it.
    Pause,
    /// Let it go on.
    Resume,
    /// End it.
    Cancel,
}

impl OperationState {
    /// All there are.
    pub const ALL: [Self; 6] =
        [Self::Scheduled, Self::Running, Self::Paused, Self::Delivering, Self::Completed, Self::Cancelled];

    /// The name used everywhere.
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

    /// The state of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether there is still something to be done.
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Scheduled | Self::Running | Self::Paused)
    }

    /// Where it goes, or why it cannot. One that has begun goes on at once when it is resumed.
    pub fn turned(self, turn: Turn, has_begun: bool) -> Result<Self, &'static str> {
        match (self, turn) {
            (Self::Scheduled | Self::Running | Self::Paused, Turn::Pause) => Ok(Self::Paused),
            (Self::Paused, Turn::Resume) if has_begun => Ok(Self::Running),
            (Self::Paused | Self::Scheduled, Turn::Resume) => Ok(Self::Scheduled),
            (Self::Running, Turn::Resume) => Ok(Self::Running),
            (Self::Scheduled | Self::Running | Self::Paused | Self::Cancelled, Turn::Cancel) => {
                Ok(Self::Cancelled)
            }
            (Self::Delivering, _) => {
                Err("everything is queued already; cancel the deliveries themselves if they are not wanted")
            }
            (Self::Completed, _) => Err("it is completed"),
            (Self::Cancelled, _) => Err("it is cancelled; begin a new one"),
        }
    }
}

/// Which ones are meant. What is left out does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// Those for one of these webhooks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub webhook_ids: Vec<WebhookId>,
    /// Those of one of these event types.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_types: Vec<String>,
    /// Those that failed last in one of these ways.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure_categories: Vec<FailureCategory>,
    /// Those in one of these states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<DeliveryStatus>,
    /// Those that died for one of these reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dead_reasons: Vec<DeadReason>,
    /// Those that are dead, and may well succeed when they are sent again as they are; or that are dead, and may not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recoverable: Option<bool>,
    /// Those of events from this time on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
    /// Those of events before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Time>,
    /// Only those of webhooks that the tenant manages: set for portal sessions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tenant_managed_only: bool,
}

impl Selection {
    /// Whether it leaves nothing out, beside what the caller may not see.
    pub fn is_all(&self) -> bool {
        *self == Self { tenant_managed_only: self.tenant_managed_only, ..Self::default() }
    }

    /// Refuses what names too many, or no time at all.
    pub fn check(&self) -> Result<(), Invalid> {
        for (field, count) in [
            ("filter.webhook_ids", self.webhook_ids.len()),
            ("filter.event_types", self.event_types.len()),
            ("filter.failure_categories", self.failure_categories.len()),
            ("filter.statuses", self.statuses.len()),
            ("filter.dead_reasons", self.dead_reasons.len()),
        ] {
            if count > MAX_NAMED {
                return Err(Invalid::new(field, format!("names {count}; at most {MAX_NAMED} are allowed")));
            }
        }
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from >= to
        {
            return Err(Invalid::new("filter.to", "must be later than `from`"));
        }
        Ok(())
    }

    /// Whether events of this type are meant.
    pub fn names_type(&self, event_type: &str) -> bool {
        self.event_types.is_empty() || self.event_types.iter().any(|named| named == event_type)
    }

    fn names(&self, one: &Candidate) -> bool {
        !(self.tenant_managed_only && one.is_operator_managed)
            && has(&self.webhook_ids, &one.webhook)
            && self.names_type(&one.event_type)
            && has(&self.statuses, &one.status)
            && (self.failure_categories.is_empty()
                || one.failure_category.is_some_and(|category| self.failure_categories.contains(&category)))
            && (self.dead_reasons.is_empty()
                || one.dead_reason.is_some_and(|reason| self.dead_reasons.contains(&reason)))
            && self.recoverable.is_none_or(|wanted| {
                let likely = |reason| Recovery::is_likely(reason, one.failure_category) == wanted;
                one.dead_reason.is_some_and(likely)
            })
    }
}

fn has<T: PartialEq>(named: &[T], one: &T) -> bool {
    named.is_empty() || named.contains(one)
}

/// A delivery that an operation comes upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Whom it is for.
    pub webhook: WebhookId,
    /// The type of its event.
    pub event_type: String,
    /// Where it stands.
    pub status: DeliveryStatus,
    /// How it failed last.
    pub failure_category: Option<FailureCategory>,
    /// How urgent it is.
    pub priority: Priority,
    /// When it was made.
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

/// Whether an operation that began at a time takes a delivery on. It does so only with what was there by then: a
/// round that it made itself, or that another operation made meanwhile, is none of its business.
pub fn takes_on(kind: OperationKind, selection: &Selection, began: Time, one: &Candidate) -> bool {
    let is_pending = !one.status.is_final();
    let there = one.created_at < began && one.ended_at.is_none_or(|end| end <= began);
    let fits = match kind {
        // What has not been tried yet, or waits for its first attempt, is on its way.
        OperationKind::Retry => !one.is_redriven && (!is_pending || one.failure_category.is_some()),
        OperationKind::Cancel => is_pending,
        OperationKind::Purge => one.status == DeliveryStatus::Dead && !one.is_redriven,
        OperationKind::Backfill => false,
    };
    there && fits && selection.names(one)
}

/// A set number in a second, from a time on: never a burst for time that has passed unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    rate: Option<u32>,
    from: Time,
    done: u64,
}

impl Pacer {
    /// So many in a second from now on, or as many as there are.
    pub fn new(rate: Option<u32>, now: Time) -> Self {
        Self { rate, from: now, done: 0 }
    }

    /// How many may go now, `most` at the most.
    pub fn allowed(&self, now: Time, most: usize) -> usize {
        let Some(rate) = self.rate else { return most };
        let elapsed = u128::from(now.since(self.from).as_millis() as u64);
        let due = (elapsed * u128::from(rate) / 1_000) as u64 + 1;
        usize::try_from(due.saturating_sub(self.done)).unwrap_or(usize::MAX).min(most)
    }

    /// When the next one may go.
    pub fn next_at(&self) -> Time {
        let Some(rate) = self.rate else { return self.from };
        let millis = (u128::from(self.done) * 1_000).div_ceil(u128::from(rate.max(1)));
        self.from + Duration::from_millis(millis as u64)
    }

    /// Notes that so many went. Whoever fell behind by more than a second does not catch up.
    pub fn went(&mut self, count: usize, now: Time) {
        self.done += count as u64;
        if let Some(rate) = self.rate
            && self.next_at() + Duration::from_secs(1) < now
        {
            *self = Self::new(Some(rate), now);
        }
    }
}

/// When an operation is through, at the rate it went at so far. None: that cannot be told.
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
            webhook: WebhookId::from_bytes([1; 16]),
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

    fn began() -> Time {
        Time::from_millis(10)
    }

    #[test]
    fn an_operation_takes_on_what_was_there_when_it_began_and_nothing_twice() {
        let all = Selection::default();
        let takes = |kind, one: &Candidate| takes_on(kind, &all, began(), one);
        let (retry, purge) = (OperationKind::Retry, OperationKind::Purge);
        assert!(takes(retry, &candidate()) && takes(purge, &candidate()));
        let hidden = Candidate { is_operator_managed: true, ..candidate() };
        for (tenant_managed_only, candidate, takes) in
            [(false, &hidden, true), (true, &hidden, false), (true, &candidate(), true)]
        {
            let selection = Selection { tenant_managed_only, ..Selection::default() };
            assert!(selection.is_all());
            assert_eq!(takes_on(OperationKind::Purge, &selection, began(), candidate), takes);
        }
        let redriven = Candidate { is_redriven: true, ..candidate() };
        assert!(!takes(retry, &redriven) && !takes(purge, &redriven));
        let made_meanwhile = Candidate { created_at: began(), ended_at: Some(began()), ..candidate() };
        assert!(!takes(retry, &made_meanwhile));
        let died_meanwhile = Candidate { ended_at: Some(Time::from_millis(11)), ..candidate() };
        assert!(!takes(retry, &died_meanwhile));
        let pending = Candidate { status: DeliveryStatus::Pending, ended_at: None, ..candidate() };
        assert!(takes(retry, &pending) && takes(OperationKind::Cancel, &pending) && !takes(purge, &pending));
        let untried = Candidate { failure_category: None, ..pending };
        assert!(!takes(retry, &untried) && takes(OperationKind::Cancel, &untried));
        let delivered =
            Candidate { status: DeliveryStatus::Delivered, failure_category: None, ..candidate() };
        assert!(
            takes(retry, &delivered)
                && !takes(OperationKind::Cancel, &delivered)
                && !takes(purge, &delivered)
        );
    }

    #[test]
    fn a_selection_takes_what_it_names() {
        let takes = |selection: Selection| takes_on(OperationKind::Retry, &selection, began(), &candidate());
        assert!(takes(Selection { event_types: vec!["x".into(), "a.b".into()], ..Selection::default() }));
        assert!(!takes(Selection { event_types: vec!["a".into()], ..Selection::default() }));
        assert!(!takes(Selection {
            webhook_ids: vec![WebhookId::from_bytes([2; 16])],
            ..Selection::default()
        }));
        let timeouts = vec![FailureCategory::Timeout];
        assert!(takes(Selection { failure_categories: timeouts, ..Selection::default() }));
        assert!(!takes(Selection { failure_categories: vec![FailureCategory::Dns], ..Selection::default() }));
        assert!(!takes(Selection { statuses: vec![DeliveryStatus::Delivered], ..Selection::default() }));
        let reasons = |reason| Selection { dead_reasons: vec![reason], ..Selection::default() };
        assert!(takes(reasons(DeadReason::Exhausted)) && !takes(reasons(DeadReason::Expired)));
        let recoverable = |wanted| Selection { recoverable: Some(wanted), ..Selection::default() };
        assert!(takes(recoverable(true)) && !takes(recoverable(false)));
        let pending = Candidate { status: DeliveryStatus::Pending, dead_reason: None, ..candidate() };
        for wanted in [true, false] {
            let what = recoverable(wanted);
            assert!(!takes_on(OperationKind::Retry, &what, began(), &pending), "it is about the dead");
        }
    }

    #[test]
    fn a_selection_with_too_many_names_or_no_time_is_refused() {
        let many = Selection { event_types: vec!["a".into(); MAX_NAMED + 1], ..Selection::default() };
        assert_eq!(many.check().unwrap_err().field, "filter.event_types");
        let (from, to) = (Some(Time::from_millis(5)), Some(Time::from_millis(5)));
        assert_eq!(Selection { from, to, ..Selection::default() }.check().unwrap_err().field, "filter.to");
        assert!(Selection::default().check().is_ok() && Selection::default().is_all());
    }

    #[test]
    fn an_operation_turns_as_it_may() {
        use OperationState::*;
        let turned = |state: OperationState, turn| state.turned(turn, true).ok();
        assert_eq!(turned(Scheduled, Turn::Pause), Some(Paused));
        assert_eq!(turned(Paused, Turn::Resume), Some(Running));
        assert_eq!(Paused.turned(Turn::Resume, false), Ok(Scheduled), "its time may not have come");
        assert_eq!(turned(Running, Turn::Cancel), Some(Cancelled));
        assert_eq!(turned(Cancelled, Turn::Cancel), Some(Cancelled), "twice is once");
        for state in [Delivering, Completed, Cancelled] {
            assert_eq!(turned(state, Turn::Pause), None, "{}", state.name());
            assert_eq!(turned(state, Turn::Resume), None, "{}", state.name());
        }
        for state in OperationState::ALL {
            assert_eq!(OperationState::parse(state.name()), Some(state));
        }
    }

    #[test]
    fn the_end_is_told_from_what_is_left() {
        let now = Time::from_secs(100);
        assert_eq!(eta(Some(100), 50, Some(10.0), now), Some(Time::from_secs(105)));
        assert_eq!(eta(None, 50, Some(10.0), now), None);
        assert_eq!(eta(Some(100), 0, Some(0.0), now), None);
        assert_eq!(eta(Some(100), 120, Some(1.0), now), Some(now));
    }

    proptest! {
        /// However irregularly somebody looks, over any time never more go than the rate allows, and none are lost
        /// by looking often enough.
        #[test]
        fn a_pace_is_kept(rate in 1u32..=MAX_RATE, waits in proptest::collection::vec(1u64..400, 1..200)) {
            let start = Time::from_secs(1);
            let (mut pacer, mut now, mut sent) = (Pacer::new(Some(rate), start), start, 0u64);
            for wait in waits {
                let go = pacer.allowed(now, usize::MAX);
                prop_assert!(go == 0 || pacer.next_at() <= now, "one goes only when its time has come");
                pacer.went(go, now);
                sent += go as u64;
                let elapsed = now.since(start).as_millis() as u64;
                prop_assert_eq!(sent, elapsed * u64::from(rate) / 1_000 + 1);
                prop_assert!(pacer.next_at() > now);
                now = now + Duration::from_millis(wait);
            }
        }

        #[test]
        fn time_that_passed_unused_gives_no_burst(rate in 1u32..=MAX_RATE, hours in 1u64..100) {
            let start = Time::from_secs(1);
            let mut pacer = Pacer::new(Some(rate), start);
            let later = start + Duration::from_secs(hours * 3_600);
            pacer.went(1, later);
            prop_assert_eq!(pacer.allowed(later, usize::MAX), 1);
        }
    }
}

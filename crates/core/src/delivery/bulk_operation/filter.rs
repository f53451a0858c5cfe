//! What a bulk operation selects: its filter, and the deliveries that match it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{MAX_FILTER_VALUES, OperationKind};
use crate::{
    delivery::{
        DeadReason, DeliveryStatus, code_filter::CodeFilter, lane::Priority, recovery::Recoverability,
        response::FailureCategory,
    },
    field_error::FieldError,
    id::{DeliveryId, EventId, WebhookId},
    time::Time,
};

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
    /// Deliveries of one of these events.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub event_ids: Vec<EventId>,
    /// Deliveries of events with one of these idempotency keys; an event without a key has its id as key.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub idempotency_keys: Vec<String>,
    /// Deliveries of events with one of these subjects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
    /// Deliveries whose last failure was of one of these categories.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failure_categories: Vec<FailureCategory>,
    /// Deliveries whose last response had one of these status codes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status_codes: Vec<CodeFilter>,
    /// Deliveries in one of these states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub statuses: Vec<DeliveryStatus>,
    /// Deliveries with a failed attempt that were not delivered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Deliveries that are dead for one of these reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dead_reasons: Vec<DeadReason>,
    /// Dead deliveries whose last failure requires no change before a resend (`true`) or requires one (`false`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recoverable: Option<bool>,
    /// Dead letters that died at this time or later, and pending deliveries with a failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_from: Option<Time>,
    /// Dead letters that died before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_to: Option<Time>,
    /// Deliveries of events from this time on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
    /// Deliveries of events before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<Time>,
    /// These deliveries, named by id. The other filters still apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_ids: Option<Vec<DeliveryId>>,
    /// Only deliveries that were not delivered. `false` in requests that are older than the field, which selected
    /// delivered ones too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undelivered_only: bool,
    /// Only deliveries to webhooks that the tenant manages; set for portal sessions.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tenant_managed_only: bool,
}

impl OperationFilter {
    /// Returns whether the selection has no filter except `undelivered_only` and `tenant_managed_only`, which are no
    /// conditions that the caller names.
    pub fn is_unfiltered(&self) -> bool {
        let unnamed = Self {
            undelivered_only: self.undelivered_only,
            tenant_managed_only: self.tenant_managed_only,
            ..Self::default()
        };
        *self == unnamed
    }

    /// Returns whether only deliveries that are failing now can match: dead letters, and pending deliveries with a
    /// failed attempt.
    pub fn is_failing_only(&self) -> bool {
        self.failed_from.is_some() || self.failed_to.is_some()
    }

    /// Returns an error if a list is too long or the time range is empty.
    pub fn check(&self) -> Result<(), FieldError> {
        for (field, count) in [
            ("filter.webhook_ids", self.webhook_ids.len()),
            ("filter.event_types", self.event_types.len()),
            ("filter.event_ids", self.event_ids.len()),
            ("filter.idempotency_keys", self.idempotency_keys.len()),
            ("filter.subjects", self.subjects.len()),
            ("filter.failure_categories", self.failure_categories.len()),
            ("filter.status_codes", self.status_codes.len()),
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
        for (field, from, to, what) in [
            ("filter.to", self.from, self.to, "must be later than `from`"),
            ("filter.failed_to", self.failed_from, self.failed_to, "must be later than `failed_from`"),
        ] {
            if from.zip(to).is_some_and(|(from, to)| from >= to) {
                return Err(FieldError::new(field, what));
            }
        }
        Ok(())
    }

    /// Returns the range of event times that can match: `from` and `to`, narrowed to the named events.
    pub fn event_times(&self) -> (Option<Time>, Option<Time>) {
        let times = || self.event_ids.iter().map(|id| id.time());
        let after_last = times().max().map(|last| last + Duration::from_millis(1));
        let earliest = self.to.into_iter().chain(after_last).min();
        (self.from.max(times().min()), earliest)
    }

    /// Returns whether events of this type are selected.
    pub fn matches_type(&self, event_type: &str) -> bool {
        self.event_types.is_empty() || self.event_types.iter().any(|named| named == event_type)
    }

    fn matches(&self, candidate: &Candidate) -> bool {
        (!self.tenant_managed_only || !candidate.is_operator_managed)
            && (!self.undelivered_only || candidate.status != DeliveryStatus::Delivered)
            && has(&self.webhook_ids, &candidate.webhook_id)
            && self.matches_type(&candidate.event_type)
            && self.matches_event(candidate)
            && has(&self.statuses, &candidate.status)
            && has_some(&self.failure_categories, candidate.failure_category.as_ref())
            && has_some(&self.dead_reasons, candidate.dead_reason.as_ref())
            && self.matches_failure(candidate)
            && self.recoverable.is_none_or(|wanted| {
                let likely = |reason| Recoverability::is_likely(reason, candidate.failure_category) == wanted;
                candidate.dead_reason.is_some_and(likely)
            })
    }

    fn matches_event(&self, candidate: &Candidate) -> bool {
        let has_key = |wanted: &String| match &candidate.idempotency_key {
            Some(key) => key == wanted,
            None => wanted.parse() == Ok(candidate.event_id),
        };
        has(&self.event_ids, &candidate.event_id)
            && has_some(&self.subjects, candidate.subject.as_ref())
            && (self.idempotency_keys.is_empty() || self.idempotency_keys.iter().any(has_key))
    }

    fn matches_failure(&self, candidate: &Candidate) -> bool {
        let code_matches =
            |filter: &CodeFilter| candidate.status_code.is_some_and(|code| filter.matches(code));
        let is_in_range = |failing: Failing| failing.is_in_range(self.failed_from, self.failed_to);
        (self.status_codes.is_empty() || self.status_codes.iter().any(code_matches))
            && (!self.failed || candidate.has_failed())
            && (!self.is_failing_only() || candidate.failing().is_some_and(is_in_range))
    }
}

/// How a delivery is failing.
#[derive(Clone, Copy)]
enum Failing {
    /// It is pending, and its last attempt failed.
    Retrying,
    /// It is a dead letter.
    DeadSince(Time),
}

impl Failing {
    /// Returns whether the failure is in the time range. That of a pending delivery has no end yet.
    fn is_in_range(self, from: Option<Time>, to: Option<Time>) -> bool {
        match self {
            Self::Retrying => to.is_none(),
            Self::DeadSince(at) => from.is_none_or(|from| at >= from) && to.is_none_or(|to| at < to),
        }
    }
}

fn has<T: PartialEq>(named: &[T], one: &T) -> bool {
    named.is_empty() || named.contains(one)
}

fn has_some<T: PartialEq>(named: &[T], one: Option<&T>) -> bool {
    named.is_empty() || one.is_some_and(|one| named.contains(one))
}

/// A delivery that an operation examines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its event.
    pub event_id: EventId,
    /// Its webhook.
    pub webhook_id: WebhookId,
    /// Its event type.
    pub event_type: String,
    /// Idempotency key of its event, if the publisher gave one.
    pub idempotency_key: Option<String>,
    /// Subject of its event.
    pub subject: Option<String>,
    /// Its status.
    pub status: DeliveryStatus,
    /// Category of its last failure.
    pub failure_category: Option<FailureCategory>,
    /// Status code of its last response.
    pub status_code: Option<u16>,
    /// Its priority.
    pub priority: Priority,
    /// When it was created.
    pub created_at: Time,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// Why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// The next round, if there is one.
    pub redriven_as: Option<DeliveryId>,
    /// Whether it was purged from the dead letters.
    pub is_purged: bool,
    /// Whether the payload of its event was erased.
    pub is_erased: bool,
    /// Whether the operator manages its webhook.
    pub is_operator_managed: bool,
}

impl Candidate {
    /// Returns whether it is a dead letter: dead, neither redriven nor purged.
    pub fn is_dead_letter(&self) -> bool {
        self.status == DeliveryStatus::Dead && self.redriven_as.is_none() && !self.is_purged
    }

    /// Returns whether it has a failed attempt and was not delivered.
    fn has_failed(&self) -> bool {
        self.failure_category.is_some() && self.status != DeliveryStatus::Delivered
    }

    fn failing(&self) -> Option<Failing> {
        match self.ended_at {
            Some(at) if self.is_dead_letter() => Some(Failing::DeadSince(at)),
            None if self.has_failed() => Some(Failing::Retrying),
            _ => None,
        }
    }
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
    let is_named = selection.delivery_ids.is_some();
    let existed_at_start =
        candidate.created_at < started && candidate.ended_at.is_none_or(|end| end <= started);
    let fits = match kind {
        // A pending delivery without a failed attempt is about to be sent anyway, unless it is scheduled: one that is
        // named is made due.
        OperationKind::Retry => {
            candidate.redriven_as.is_none()
                && (!is_pending || is_named || candidate.failure_category.is_some())
        }
        OperationKind::Cancel => is_pending,
        OperationKind::Purge => candidate.is_dead_letter(),
        OperationKind::Backfill => false,
    };
    existed_at_start && fits && selection.matches(candidate)
}

/// Returns whether a delivery is selected, or is left out only because it was delivered already.
pub fn matches_delivered(
    kind: OperationKind,
    selection: &OperationFilter,
    started: Time,
    candidate: &Candidate,
) -> bool {
    if candidate.status != DeliveryStatus::Delivered {
        return false;
    }
    match selection.undelivered_only {
        false => selects(kind, selection, started, candidate),
        true => {
            let with_delivered = OperationFilter { undelivered_only: false, ..selection.clone() };
            selects(kind, &with_delivered, started, candidate)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate() -> Candidate {
        Candidate {
            event_id: EventId::from_bytes([7; 16]),
            webhook_id: WebhookId::from_bytes([1; 16]),
            event_type: "a.b".into(),
            idempotency_key: None,
            subject: Some("order-1".into()),
            status: DeliveryStatus::Dead,
            failure_category: Some(FailureCategory::Timeout),
            status_code: Some(503),
            priority: Priority::Normal,
            created_at: Time::from_millis(1),
            ended_at: Some(Time::from_millis(5)),
            dead_reason: Some(DeadReason::Exhausted),
            redriven_as: None,
            is_purged: false,
            is_erased: false,
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
        let redriven = Candidate { redriven_as: Some(DeliveryId::from_bytes([2; 16])), ..candidate() };
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
    fn selection_matches_event_key_subject_and_status_code() {
        let takes = |selection: OperationFilter, one: &Candidate| {
            selects(OperationKind::Retry, &selection, started_at(), one)
        };
        let none = OperationFilter::default;
        let event_id = candidate().event_id;
        let other = EventId::from_bytes([8; 16]);
        for (selection, expected) in [
            (OperationFilter { event_ids: vec![other, event_id], ..none() }, true),
            (OperationFilter { event_ids: vec![other], ..none() }, false),
            (OperationFilter { subjects: vec!["order-1".into()], ..none() }, true),
            (OperationFilter { subjects: vec!["order-2".into()], ..none() }, false),
            (OperationFilter { idempotency_keys: vec![event_id.to_string()], ..none() }, true),
            (OperationFilter { idempotency_keys: vec!["k".into()], ..none() }, false),
            (OperationFilter { status_codes: vec![CodeFilter::Class(5)], ..none() }, true),
            (OperationFilter { status_codes: vec![CodeFilter::Exactly(500)], ..none() }, false),
            (OperationFilter { failed: true, ..none() }, true),
        ] {
            assert_eq!(takes(selection.clone(), &candidate()), expected, "{selection:?}");
        }
        let keyed = Candidate { idempotency_key: Some("k".into()), ..candidate() };
        assert!(takes(OperationFilter { idempotency_keys: vec!["k".into()], ..none() }, &keyed));
        let by_id = OperationFilter { idempotency_keys: vec![event_id.to_string()], ..none() };
        assert!(!takes(by_id, &keyed), "the id is the key only of an event without one");
        let silent = Candidate { status_code: None, ..candidate() };
        assert!(!takes(OperationFilter { status_codes: vec![CodeFilter::Class(5)], ..none() }, &silent));
    }

    #[test]
    fn delivered_deliveries_are_left_out_and_counted() {
        let delivered = Candidate { status: DeliveryStatus::Delivered, dead_reason: None, ..candidate() };
        let all = OperationFilter::default();
        let undelivered = OperationFilter { undelivered_only: true, ..all.clone() };
        assert!(undelivered.is_unfiltered());
        let retry = OperationKind::Retry;
        assert!(selects(retry, &all, started_at(), &delivered));
        assert!(!selects(retry, &undelivered, started_at(), &delivered));
        assert!(selects(retry, &undelivered, started_at(), &candidate()));
        for selection in [&all, &undelivered] {
            assert!(matches_delivered(retry, selection, started_at(), &delivered));
            assert!(!matches_delivered(retry, selection, started_at(), &candidate()));
        }
        let failed = OperationFilter { failed: true, ..undelivered };
        assert!(!matches_delivered(retry, &failed, started_at(), &delivered), "`failed` excludes it anyway");
    }

    #[test]
    fn failure_time_selects_dead_letters_by_death_and_pending_failures_without_end() {
        let takes = |from: Option<i64>, to: Option<i64>, one: &Candidate| {
            let (failed_from, failed_to) = (from.map(Time::from_millis), to.map(Time::from_millis));
            let selection = OperationFilter { failed_from, failed_to, ..OperationFilter::default() };
            selects(OperationKind::Retry, &selection, started_at(), one)
        };
        let dead = candidate();
        assert!(takes(Some(5), None, &dead) && takes(Some(5), Some(6), &dead) && takes(None, Some(6), &dead));
        assert!(!takes(Some(6), None, &dead) && !takes(None, Some(5), &dead));
        let retrying =
            Candidate { status: DeliveryStatus::Pending, ended_at: None, dead_reason: None, ..candidate() };
        assert!(takes(Some(9), None, &retrying) && !takes(Some(1), Some(9), &retrying));
        let never_failed = [
            Candidate { failure_category: None, ..retrying },
            Candidate { status: DeliveryStatus::Delivered, ..candidate() },
            Candidate { status: DeliveryStatus::Cancelled, ..candidate() },
            Candidate { is_purged: true, ..candidate() },
        ];
        assert!(never_failed.iter().all(|one| !takes(Some(1), None, one)));
    }

    #[test]
    fn named_delivery_without_an_attempt_is_selected() {
        let scheduled = Candidate {
            status: DeliveryStatus::Pending,
            failure_category: None,
            ended_at: None,
            ..candidate()
        };
        let named = OperationFilter { delivery_ids: Some(Vec::new()), ..OperationFilter::default() };
        assert!(selects(OperationKind::Retry, &named, started_at(), &scheduled));
        assert!(!named.is_unfiltered(), "it selects no delivery, not all");
    }

    #[test]
    fn named_events_narrow_the_time_range() {
        let event = |millis: i64| EventId::new(Time::from_millis(millis), &[1; 10]);
        let filter = OperationFilter { event_ids: vec![event(50), event(20)], ..OperationFilter::default() };
        let times = |millis: i64| Some(Time::from_millis(millis));
        assert_eq!(filter.event_times(), (times(20), times(51)));
        let narrow = OperationFilter { from: times(30), to: times(40), ..filter };
        assert_eq!(narrow.event_times(), (times(30), times(40)));
        assert_eq!(OperationFilter::default().event_times(), (None, None));
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
}

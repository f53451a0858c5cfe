//! Grouping of occurrences: the first is sent immediately, those that follow within an interval are sent together
//! after it.
//!
//! Each kind and webhook has a state: the pending occurrences, and until when nothing is sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Notification, NotificationKind, Occurrence, OccurrenceDetails};
use crate::{
    event::event_type,
    id::{DeliveryId, NotificationId, WebhookId},
    tenancy::TenantId,
    time::Time,
};

impl NotificationKind {
    /// Returns whether each occurrence is counted. A lasting condition is not: it is reported again only while it
    /// lasts, since a repetition during the quiet interval adds nothing and may be outdated when the interval ends.
    pub fn counts_repeats(self) -> bool {
        match self {
            Self::CircuitOpened | Self::CircuitRecovered | Self::WebhookDisabled | Self::DeliveryDead => true,
            Self::DnsFailing | Self::SecretRotationDue | Self::QuotaReached => false,
        }
    }

    /// Returns the opposite kind. While both are pending for one webhook they are sent together, once both are due,
    /// the later one last, so that the last notification is the current state.
    pub fn opposite(self) -> Option<Self> {
        match self {
            Self::CircuitOpened => Some(Self::CircuitRecovered),
            Self::CircuitRecovered => Some(Self::CircuitOpened),
            _ => None,
        }
    }
}

/// Minimum intervals between two notifications of one kind about the same webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupIntervals {
    /// For dead deliveries and disabled webhooks.
    pub usual: Duration,
    /// For circuits, opened and recovered.
    pub circuit: Duration,
    /// For lasting conditions: DNS failures, quotas.
    pub repeat_interval: Duration,
    /// For secrets due for rotation.
    pub secret: Duration,
}

impl Default for GroupIntervals {
    fn default() -> Self {
        Self {
            usual: Duration::from_secs(3600),
            circuit: Duration::from_secs(15 * 60),
            repeat_interval: Duration::from_secs(24 * 3600),
            secret: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

impl GroupIntervals {
    /// Returns the interval of a kind.
    pub fn for_kind(&self, kind: NotificationKind) -> Duration {
        match kind {
            NotificationKind::CircuitOpened | NotificationKind::CircuitRecovered => self.circuit,
            NotificationKind::WebhookDisabled | NotificationKind::DeliveryDead => self.usual,
            NotificationKind::DnsFailing | NotificationKind::QuotaReached => self.repeat_interval,
            NotificationKind::SecretRotationDue => self.secret,
        }
    }
}

/// Key of a group: tenant, webhook, kind.
pub type GroupKey = (TenantId, Option<WebhookId>, NotificationKind);

/// Occurrences of one kind about one webhook or tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OccurrenceGroup {
    /// Number of occurrences.
    pub count: u64,
    /// Time of the first occurrence.
    pub first_at: Time,
    /// Time of the last occurrence.
    pub last_at: Time,
    /// Details of the last occurrence.
    pub facts: OccurrenceDetails,
}

impl OccurrenceGroup {
    fn from_occurrence(occurrence: &Occurrence) -> Self {
        let (at, facts) = (occurrence.at, occurrence.facts.clone());
        Self { count: u64::from(occurrence.count), first_at: at, last_at: at, facts }
    }

    fn add(&mut self, kind: NotificationKind, other: Self) {
        self.count = match kind.counts_repeats() {
            true => self.count + other.count,
            false => self.count.max(other.count),
        };
        self.first_at = self.first_at.min(other.first_at);
        if other.last_at >= self.last_at {
            (self.last_at, self.facts) = (other.last_at, other.facts);
        }
    }
}

/// Groups occurrences by key, in the order of their keys.
pub fn merge<'a>(
    occurrences: impl IntoIterator<Item = &'a Occurrence>,
) -> BTreeMap<GroupKey, OccurrenceGroup> {
    let mut merged = BTreeMap::<GroupKey, OccurrenceGroup>::new();
    for occurrence in occurrences {
        let key = (occurrence.tenant_id.clone(), occurrence.webhook_id, occurrence.kind);
        match merged.get_mut(&key) {
            Some(group) => group.add(occurrence.kind, OccurrenceGroup::from_occurrence(occurrence)),
            None => drop(merged.insert(key, OccurrenceGroup::from_occurrence(occurrence))),
        }
    }
    merged
}

/// State of one group. The stores keep it in a row and must implement the same logic.
///
/// ```
/// use redrive_core::{
///     Time,
///     notification::{
///         NotificationKind, OccurrenceDetails,
///         grouping::{GroupIntervals, GroupState, OccurrenceGroup},
///     },
/// };
///
/// let (kind, intervals) = (NotificationKind::DeliveryDead, GroupIntervals::default());
/// let at = Time::from_secs(1_000);
/// let once = || OccurrenceGroup { count: 1, first_at: at, last_at: at, facts: OccurrenceDetails::default() };
/// let mut state = GroupState::default();
/// state.add_occurrences(kind, once());
/// assert_eq!(state.take_due(kind, at, &intervals), Some(once()));
/// // Later occurrences wait for the end of the interval and are sent as one group.
/// state.add_occurrences(kind, once());
/// state.add_occurrences(kind, once());
/// assert_eq!(state.take_due(kind, at, &intervals), None);
/// assert_eq!(state.take_due(kind, at + intervals.usual, &intervals).unwrap().count, 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    /// The pending occurrences, and when they are due.
    pub open: Option<(OccurrenceGroup, Time)>,
    /// Until when nothing more is sent.
    pub suppressed_until: Time,
}

impl GroupState {
    /// Adds occurrences.
    pub fn add_occurrences(&mut self, kind: NotificationKind, occurrences: OccurrenceGroup) {
        if !kind.counts_repeats() && occurrences.last_at < self.suppressed_until {
            return;
        }
        match &mut self.open {
            Some((open, _)) => open.add(kind, occurrences),
            None => {
                let due = occurrences.first_at.max(self.suppressed_until);
                self.open = Some((occurrences, due));
            }
        }
    }

    /// Takes the pending occurrences if they are due.
    pub fn take_due(
        &mut self,
        kind: NotificationKind,
        now: Time,
        intervals: &GroupIntervals,
    ) -> Option<OccurrenceGroup> {
        let (group, _) = self.open.take_if(|(_, due)| *due <= now)?;
        self.suppressed_until = now + intervals.for_kind(kind);
        Some(group)
    }
}

/// Returns an occurrence with the number of these dead deliveries and the last of them, or `None` if there are
/// none. Deliveries of Redrive's own events do not count.
pub fn with_dead_count(occurrence: Occurrence, dead: Vec<(DeliveryId, String)>) -> Option<Occurrence> {
    let ours = |(_, event_type): &(DeliveryId, String)| !event_type::is_reserved(event_type);
    let dead: Vec<_> = dead.into_iter().filter(ours).collect();
    let count = u32::try_from(dead.len()).unwrap_or(u32::MAX);
    let (delivery_id, event_type) = dead.into_iter().max()?;
    let facts = OccurrenceDetails {
        delivery_id: Some(delivery_id),
        event_type: Some(event_type),
        ..occurrence.facts
    };
    Some(Occurrence { count, facts, ..occurrence })
}

/// A group with pending occurrences.
pub struct PendingGroup {
    /// Key of the group.
    pub key: GroupKey,
    /// The pending occurrences.
    pub group: OccurrenceGroup,
    /// When they are due.
    pub due: Time,
}

/// Returns these keys and those of the opposite kinds, in locking order.
pub fn with_opposites(found: Vec<GroupKey>) -> BTreeSet<GroupKey> {
    let counterpart =
        |(tenant_id, webhook_id, kind): &GroupKey| Some((tenant_id.clone(), *webhook_id, kind.opposite()?));
    let others: Vec<_> = found.iter().filter_map(counterpart).collect();
    found.into_iter().chain(others).collect()
}

/// Returns the notifications that are due, without those whose opposite is pending and not due; in the order in
/// which they are to be read.
pub fn due_notifications(
    open: Vec<PendingGroup>,
    now: Time,
    fresh: Vec<NotificationId>,
) -> Vec<Notification> {
    let waits: BTreeSet<GroupKey> =
        open.iter().filter(|one| one.due > now).map(|one| one.key.clone()).collect();
    let is_due = |one: &PendingGroup| {
        let (tenant_id, webhook_id, kind) = &one.key;
        let counterpart = kind.opposite().map(|other| (tenant_id.clone(), *webhook_id, other));
        one.due <= now && counterpart.is_none_or(|other| !waits.contains(&other))
    };
    let mut due: Vec<_> = open.into_iter().filter(is_due).collect();
    due.sort_by_key(|one| (one.group.last_at, one.key.2));
    let mut ids = fresh;
    ids.sort_unstable();
    let notification_id = |(one, id): (PendingGroup, NotificationId)| {
        let (tenant_id, webhook_id, kind) = one.key;
        let OccurrenceGroup { count, first_at, last_at, facts } = one.group;
        Notification { id, tenant_id, webhook_id, kind, count, first_at, last_at, facts }
    };
    due.into_iter().zip(ids).map(notification_id).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(secs: u32) -> Time {
        Time::from_secs(secs)
    }

    fn once(secs: u32) -> OccurrenceGroup {
        let facts = OccurrenceDetails { message: Some(secs.to_string()), ..OccurrenceDetails::default() };
        OccurrenceGroup { count: 1, first_at: at(secs), last_at: at(secs), facts }
    }

    fn cause(kind: NotificationKind, secs: u32, count: u32) -> Occurrence {
        let OccurrenceGroup { facts, .. } = once(secs);
        Occurrence { tenant_id: TenantId::default(), webhook_id: None, kind, at: at(secs), count, facts }
    }

    #[test]
    fn first_occurrence_is_sent_immediately_and_later_ones_together() {
        let (mut state, intervals, kind) =
            (GroupState::default(), GroupIntervals::default(), NotificationKind::DeliveryDead);
        state.add_occurrences(kind, once(1_000));
        assert_eq!(state.take_due(kind, at(999), &intervals), None, "not before it happened");
        assert_eq!(state.take_due(kind, at(1_000), &intervals), Some(once(1_000)));
        for secs in 1_001..1_011 {
            state.add_occurrences(kind, once(secs));
            assert_eq!(state.take_due(kind, at(secs), &intervals), None);
        }
        assert_eq!(state.take_due(kind, at(4_599), &intervals), None);
        let digest = state.take_due(kind, at(4_600), &intervals).unwrap();
        assert_eq!((digest.count, digest.first_at, digest.last_at), (10, at(1_001), at(1_010)));
        assert_eq!(digest.facts.message.as_deref(), Some("1010"), "facts of the last occurrence");
        assert_eq!(
            state.take_due(kind, at(90_000), &intervals),
            None,
            "nothing is sent without an occurrence"
        );
        state.add_occurrences(kind, once(90_000));
        assert!(
            state.take_due(kind, at(90_000), &intervals).is_some(),
            "after the interval an occurrence is the first again"
        );
    }

    #[test]
    fn dead_count_excludes_redrives_own_events() {
        let id = |n: u8| DeliveryId::from_bytes([n; 16]);
        let dead = vec![
            (id(2), "order.paid".to_owned()),
            (id(1), "order.created".into()),
            (id(3), "redrive.x".into()),
        ];
        let counted = with_dead_count(cause(NotificationKind::DeliveryDead, 5, 1), dead).unwrap();
        assert_eq!((counted.count, counted.facts.delivery_id), (2, Some(id(2))), "the last counted delivery");
        assert_eq!(counted.facts.event_type.as_deref(), Some("order.paid"));
        assert_eq!(
            with_dead_count(cause(NotificationKind::DeliveryDead, 5, 1), vec![(id(3), "redrive.x".into())]),
            None
        );
    }

    #[test]
    fn opposite_kinds_are_sent_together_in_order() {
        let webhook_id = WebhookId::from_bytes([1; 16]);
        let open = |kind, secs, due| PendingGroup {
            key: (TenantId::default(), Some(webhook_id), kind),
            group: once(secs),
            due: at(due),
        };
        let ids = || vec![NotificationId::from_bytes([2; 16]), NotificationId::from_bytes([1; 16])];
        let flapping = || {
            vec![
                open(NotificationKind::CircuitRecovered, 9, 10),
                open(NotificationKind::CircuitOpened, 8, 20),
            ]
        };
        assert_eq!(due_notifications(flapping(), at(19), ids()), []);
        let reported = due_notifications(flapping(), at(20), ids());
        let reported: Vec<_> =
            reported.iter().map(|notification| (notification.kind, notification.id.as_bytes()[0])).collect();
        assert_eq!(reported, [(NotificationKind::CircuitOpened, 1), (NotificationKind::CircuitRecovered, 2)]);
        let both = with_opposites(vec![open(NotificationKind::CircuitOpened, 8, 20).key]);
        assert_eq!(
            both.into_iter().map(|(_, _, kind)| kind).collect::<Vec<_>>(),
            [NotificationKind::CircuitOpened, NotificationKind::CircuitRecovered]
        );
    }

    #[test]
    fn lasting_condition_is_sent_again_only_while_it_lasts() {
        let (mut state, intervals, kind) =
            (GroupState::default(), GroupIntervals::default(), NotificationKind::SecretRotationDue);
        state.add_occurrences(kind, once(0));
        state.add_occurrences(kind, once(10));
        assert_eq!(state.take_due(kind, at(10), &intervals).unwrap().count, 1);
        state.add_occurrences(kind, once(7 * 86_400));
        assert_eq!(state.take_due(kind, at(100 * 86_400), &intervals), None, "the condition had ended");
        state.add_occurrences(kind, once(7 * 86_400 + 10));
        assert!(state.take_due(kind, at(7 * 86_400 + 10), &intervals).is_some());
    }

    #[test]
    fn occurrences_are_merged_by_group_key() {
        let mut other = cause(NotificationKind::DeliveryDead, 5, 1);
        other.tenant_id = TenantId::parse("acme").unwrap();
        let occurrences = [
            cause(NotificationKind::DeliveryDead, 7, 2),
            cause(NotificationKind::DeliveryDead, 3, 4),
            cause(NotificationKind::QuotaReached, 7, 1),
            cause(NotificationKind::QuotaReached, 8, 1),
            other.clone(),
        ];
        let merged = merge(&occurrences);
        assert_eq!(merged.len(), 3);
        let dead = &merged[&(TenantId::default(), None, NotificationKind::DeliveryDead)];
        assert_eq!((dead.count, dead.first_at, dead.last_at), (6, at(3), at(7)));
        assert_eq!(dead.facts.message.as_deref(), Some("7"));
        assert_eq!(merged[&(TenantId::default(), None, NotificationKind::QuotaReached)].count, 1);
        assert_eq!(merged[&(other.tenant_id, None, NotificationKind::DeliveryDead)].count, 1);
    }

    /// The two group states of a circuit and what was sent about it, as the stores implement it.
    #[derive(Debug, Default)]
    struct Circuit {
        opened: GroupState,
        recovered: GroupState,
        reported: (u64, u64),
        last_sent: Option<NotificationKind>,
    }

    impl Circuit {
        fn check(&mut self, now: u32) {
            let waits = |state: &GroupState| state.open.as_ref().is_some_and(|(_, due)| *due > at(now));
            if waits(&self.opened) || waits(&self.recovered) {
                return;
            }
            let intervals = GroupIntervals::default();
            let opened = self.opened.take_due(NotificationKind::CircuitOpened, at(now), &intervals);
            let recovered = self.recovered.take_due(NotificationKind::CircuitRecovered, at(now), &intervals);
            self.reported.0 += opened.as_ref().map_or(0, |group| group.count);
            self.reported.1 += recovered.as_ref().map_or(0, |group| group.count);
            let reported =
                [(opened, NotificationKind::CircuitOpened), (recovered, NotificationKind::CircuitRecovered)];
            let last =
                reported.into_iter().filter_map(|(reported, kind)| Some((reported?.facts.message, kind)));
            // At worst, several transitions at the same time are in the order of their kinds.
            self.last_sent = last
                .max_by_key(|(at, _)| at.as_ref().unwrap().parse::<u32>().unwrap())
                .map_or(self.last_sent, |(_, kind)| Some(kind));
        }
    }

    fn any_kind() -> impl Strategy<Value = NotificationKind> {
        prop::sample::select(NotificationKind::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn no_occurrence_is_lost_and_intervals_are_kept(
            kind in any_kind(),
            steps in prop::collection::vec((0..2_000u32, 1..5u32, any::<bool>()), 1..100),
        ) {
            let intervals = GroupIntervals::default();
            let (mut state, mut now, mut caused, mut reported) = (GroupState::default(), 0, 0, Vec::new());
            for (pass, count, check) in steps {
                now += pass;
                state.add_occurrences(kind, OccurrenceGroup { count: count.into(), ..once(now) });
                caused += u64::from(count);
                if reported.is_empty() {
                    prop_assert!(state.open.as_ref().unwrap().1 <= at(now), "the first is due immediately");
                }
                if check {
                    reported.extend(state.take_due(kind, at(now), &intervals).map(|group| (now, group)));
                }
            }
            let end = now + 30 * 86_400;
            reported.extend(state.take_due(kind, at(end), &intervals).map(|group| (end, group)));
            for pair in reported.windows(2) {
                prop_assert!(at(pair[1].0).duration_since(at(pair[0].0)) >= intervals.for_kind(kind));
            }
            if kind.counts_repeats() {
                prop_assert_eq!(reported.iter().map(|(_, group)| group.count).sum::<u64>(), caused);
            }
            prop_assert_eq!(state.open, None);
        }

        #[test]
        fn recovery_is_never_sent_before_its_opening(
            transitions in prop::collection::vec((1..2_000u32, any::<bool>()), 1..100),
        ) {
            let mut circuit = Circuit::default();
            let (mut now, mut is_open) = (0, false);
            for (pass, check) in transitions {
                now += pass;
                is_open = !is_open;
                match is_open {
                    true => circuit.opened.add_occurrences(NotificationKind::CircuitOpened, once(now)),
                    false => circuit.recovered.add_occurrences(NotificationKind::CircuitRecovered, once(now)),
                }
                if check {
                    circuit.check(now);
                    prop_assert!(circuit.reported.1 <= circuit.reported.0, "{circuit:?}");
                }
            }
            circuit.check(now + 86_400);
            prop_assert_eq!(circuit.reported.0 - circuit.reported.1, u64::from(is_open), "the last state was sent");
            let last_sent = if is_open { NotificationKind::CircuitOpened } else { NotificationKind::CircuitRecovered };
            prop_assert_eq!(circuit.last_sent, Some(last_sent));
        }

        #[test]
        fn adding_occurrences_together_or_singly_is_equivalent(
            kind in any_kind(), quiet in 0..100u32,
            causes in prop::collection::vec((0..100u32, 1..5u32), 1..20),
        ) {
            prop_assume!(kind.counts_repeats());
            let mut occurrences: Vec<_> = causes.into_iter().map(|(secs, count)| cause(kind, secs, count)).collect();
            occurrences.sort_by_key(|occurrence| occurrence.at);
            let mut together = GroupState { suppressed_until: at(quiet), ..GroupState::default() };
            let mut apart = together.clone();
            for group in merge(&occurrences).into_values() {
                together.add_occurrences(kind, group);
            }
            for occurrence in &occurrences {
                apart.add_occurrences(kind, OccurrenceGroup::from_occurrence(occurrence));
            }
            prop_assert_eq!(together, apart);
        }
    }
}

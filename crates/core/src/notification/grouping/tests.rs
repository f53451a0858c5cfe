//! Tests of the grouping rules.

use proptest::prelude::*;

use super::*;

fn at(secs: u32) -> Time {
    Time::from_secs(secs)
}

fn once(secs: u32) -> OccurrenceGroup {
    let details = OccurrenceDetails { message: Some(secs.to_string()), ..OccurrenceDetails::default() };
    OccurrenceGroup { count: 1, first_at: at(secs), last_at: at(secs), details }
}

fn cause(kind: NotificationKind, secs: u32, count: u32) -> Occurrence {
    let OccurrenceGroup { details, .. } = once(secs);
    Occurrence { tenant_id: TenantId::default(), webhook_id: None, kind, at: at(secs), count, details }
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
    assert_eq!(digest.details.message.as_deref(), Some("1010"), "details of the last occurrence");
    assert_eq!(state.take_due(kind, at(90_000), &intervals), None, "nothing is sent without an occurrence");
    state.add_occurrences(kind, once(90_000));
    assert!(
        state.take_due(kind, at(90_000), &intervals).is_some(),
        "after the interval an occurrence is the first again"
    );
}

#[test]
fn dead_count_excludes_redrives_own_events() {
    let id = |n: u8| DeliveryId::from_bytes([n; 16]);
    let dead =
        vec![(id(2), "order.paid".to_owned()), (id(1), "order.created".into()), (id(3), "redrive.x".into())];
    let counted = with_dead_count(cause(NotificationKind::DeliveryDead, 5, 1), dead).unwrap();
    assert_eq!((counted.count, counted.details.delivery_id), (2, Some(id(2))), "the last counted delivery");
    assert_eq!(counted.details.event_type.as_deref(), Some("order.paid"));
    assert_eq!(
        with_dead_count(cause(NotificationKind::DeliveryDead, 5, 1), vec![(id(3), "redrive.x".into())]),
        None
    );
}

fn circuit_key(kind: NotificationKind) -> GroupKey {
    (TenantId::default(), Some(WebhookId::from_bytes([1; 16])), kind)
}

fn open(kind: NotificationKind, secs: u32, due: u32) -> (GroupKey, GroupState) {
    (circuit_key(kind), GroupState { open: Some((once(secs), at(due))), ..GroupState::default() })
}

fn ids(count: u8) -> Vec<NotificationId> {
    (1..=count).rev().map(|n| NotificationId::from_bytes([n; 16])).collect()
}

#[test]
fn opposite_kinds_are_sent_together_in_order() {
    let flapping = Groups::from([
        open(NotificationKind::CircuitRecovered, 9, 10),
        open(NotificationKind::CircuitOpened, 8, 20),
    ]);
    let intervals = GroupIntervals::default();
    let early = take_due_groups(flapping.clone(), at(19), &intervals, ids(2));
    assert_eq!(early.notifications, []);
    let waiting = Groups::from([open(NotificationKind::CircuitRecovered, 9, 20)]);
    assert_eq!(early.changed, waiting, "it becomes due with its opposite");
    let due = take_due_groups(flapping, at(20), &intervals, ids(2));
    let sent: Vec<_> = due.notifications.iter().map(|one| (one.kind, one.id.as_bytes()[0])).collect();
    assert_eq!(sent, [(NotificationKind::CircuitOpened, 1), (NotificationKind::CircuitRecovered, 2)]);
    let suppressed = GroupState { open: None, suppressed_until: at(20) + intervals.circuit };
    assert!(due.changed.len() == 2 && due.changed.values().all(|state| *state == suppressed));
    let both = with_opposites(vec![circuit_key(NotificationKind::CircuitOpened)]);
    assert_eq!(
        both.into_iter().map(|(_, _, kind)| kind).collect::<Vec<_>>(),
        [NotificationKind::CircuitOpened, NotificationKind::CircuitRecovered]
    );
}

#[test]
fn due_group_without_an_id_stays_pending() {
    let stored = Groups::from([
        open(NotificationKind::DeliveryDead, 5, 5),
        open(NotificationKind::WebhookDisabled, 4, 4),
        open(NotificationKind::DnsFailing, 9, 9),
    ]);
    let due = take_due_groups(stored, at(8), &GroupIntervals::default(), ids(1));
    assert_eq!(due.notifications.len(), 1);
    assert_eq!(due.notifications[0].kind, NotificationKind::WebhookDisabled, "the earlier occurrence");
    assert_eq!(due.changed.into_keys().collect::<Vec<_>>(), [circuit_key(NotificationKind::WebhookDisabled)]);
}

#[test]
fn only_groups_that_changed_are_stored() {
    let (dead, quota) =
        (cause(NotificationKind::DeliveryDead, 5, 1), cause(NotificationKind::QuotaReached, 5, 1));
    let suppressed = GroupState { open: None, suppressed_until: at(10) };
    let key = |kind| (TenantId::default(), None, kind);
    let stored = Groups::from([(key(NotificationKind::QuotaReached), suppressed)]);
    let changed = add_occurrences(stored, merge([&dead, &quota]));
    let added = GroupState { open: Some((once(5), at(5))), ..GroupState::default() };
    assert_eq!(changed, Groups::from([(key(NotificationKind::DeliveryDead), added)]));
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
    assert_eq!(dead.details.message.as_deref(), Some("7"));
    assert_eq!(merged[&(TenantId::default(), None, NotificationKind::QuotaReached)].count, 1);
    assert_eq!(merged[&(other.tenant_id, None, NotificationKind::DeliveryDead)].count, 1);
}

/// The groups of a circuit and what was sent about it.
#[derive(Debug, Default)]
struct Circuit {
    groups: Groups,
    reported: (u64, u64),
    last_sent: Option<NotificationKind>,
}

impl Circuit {
    fn record(&mut self, now: u32, is_open: bool) {
        let kind = if is_open { NotificationKind::CircuitOpened } else { NotificationKind::CircuitRecovered };
        let occurrences = BTreeMap::from([(circuit_key(kind), once(now))]);
        self.groups.extend(add_occurrences(self.groups.clone(), occurrences));
    }

    /// Returns the kinds that are sent: none if one of them is pending and not due yet.
    fn due_kinds(&self, now: u32) -> Vec<NotificationKind> {
        let pending = || self.groups.iter().filter_map(|(key, state)| Some((key.2, state.open.as_ref()?)));
        match pending().any(|(_, (_, due))| *due > at(now)) {
            true => Vec::new(),
            false => pending().map(|(kind, _)| kind).collect(),
        }
    }

    /// Sends what is due; returns its kinds, sorted.
    fn check(&mut self, now: u32) -> Vec<NotificationKind> {
        let DueGroups { notifications, changed } =
            take_due_groups(self.groups.clone(), at(now), &GroupIntervals::default(), ids(2));
        self.groups.extend(changed);
        for sent in &notifications {
            match sent.kind {
                NotificationKind::CircuitOpened => self.reported.0 += sent.count,
                _ => self.reported.1 += sent.count,
            }
        }
        self.last_sent = notifications.last().map_or(self.last_sent, |sent| Some(sent.kind));
        let mut kinds: Vec<_> = notifications.iter().map(|sent| sent.kind).collect();
        kinds.sort_unstable();
        kinds
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
            circuit.record(now, is_open);
            if check {
                let expected = circuit.due_kinds(now);
                prop_assert_eq!(circuit.check(now), expected);
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

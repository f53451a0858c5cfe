//! Notification groups: a store applies the rules of `core::notification::grouping` to its rows, and counts every
//! occurrence once whatever runs concurrently.

use std::{collections::BTreeMap, sync::Arc};

use redrive_core::{
    TenantId, WebhookId,
    notification::{
        Notification, NotificationKind, Occurrence,
        grouping::{GroupKey, GroupState, OccurrenceGroup, merge},
    },
};

use super::{
    Harness, at,
    notifications::{MINUTE, cause, create, create_up_to, dead, intervals, record, send, send_created},
    together,
};
use crate::{OutcomeRecord, RecordResult};

/// Model of the groups of a store.
#[derive(Default)]
struct Model(BTreeMap<GroupKey, GroupState>);

/// A notification without its id.
type Sent = (TenantId, Option<WebhookId>, NotificationKind, OccurrenceGroup);

impl Model {
    fn record(&mut self, occurrences: &[Occurrence]) {
        for (key, group) in merge(occurrences) {
            let kind = key.2;
            self.0.entry(key).or_default().add_occurrences(kind, group);
        }
    }

    /// Returns whether a group is pending, and due at `now` or not.
    fn is_pending(&self, key: &GroupKey, now: i64, due: bool) -> bool {
        let open = self.0.get(key).and_then(|state| state.open.as_ref());
        open.is_some_and(|(_, due_at)| (*due_at <= at(now)) == due)
    }

    /// Takes the groups that are due, without those whose opposite is pending and not due yet.
    fn take_due(&mut self, now: i64) -> Vec<Sent> {
        let waits = |(tenant_id, webhook_id, kind): &GroupKey| {
            let opposite = kind.opposite().map(|kind| (tenant_id.clone(), *webhook_id, kind));
            opposite.is_some_and(|opposite| self.is_pending(&opposite, now, false))
        };
        let is_due = |key: &&GroupKey| self.is_pending(key, now, true) && !waits(key);
        let due: Vec<GroupKey> = self.0.keys().filter(is_due).cloned().collect();
        let mut sent: Vec<Sent> = Vec::new();
        for key in due {
            let group = self.0.get_mut(&key).unwrap().take_due(key.2, at(now), &intervals()).unwrap();
            sent.push((key.0, key.1, key.2, group));
        }
        sent.sort_by_key(|(_, _, kind, group)| (group.last_at, *kind));
        sent
    }
}

fn without_id(notification: Notification) -> Sent {
    let Notification { tenant_id, webhook_id, kind, count, first_at, last_at, details, .. } = notification;
    (tenant_id, webhook_id, kind, OccurrenceGroup { count, first_at, last_at, details })
}

/// A random number generator with a fixed seed.
struct NumberGenerator(u64);

impl NumberGenerator {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

pub async fn random_sequences_match_the_core_rules(harness: &mut Arc<Harness>) {
    const STEPS: usize = 300;
    const MAX_DELAY: u64 = 30_000;
    let tenants = [harness.tenant_id.clone(), harness.new_tenant("globex").await];
    let webhooks = [Some(harness.webhook_id), Some(harness.webhook_id()), None];
    let (mut model, mut random, mut now) = (Model::default(), NumberGenerator(7), 0);
    for step in 0..STEPS {
        now += random.below(20_000) as i64;
        let occurrences: Vec<_> = (0..random.below(5))
            .map(|_| {
                let kind = NotificationKind::ALL[random.below(7) as usize];
                let time = (now - random.below(MAX_DELAY) as i64).max(0);
                Occurrence {
                    tenant_id: tenants[random.below(2) as usize].clone(),
                    webhook_id: webhooks[random.below(3) as usize],
                    count: 1 + random.below(3) as u32,
                    ..cause(harness, kind, time)
                }
            })
            .collect();
        model.record(&occurrences);
        record(harness, &occurrences).await;
        match random.below(4) {
            0 | 1 => {
                create(harness, now).await;
                let sent: Vec<_> = send_created(harness, now).await.into_iter().map(without_id).collect();
                assert_eq!(sent, model.take_due(now), "step {step}, at {now}");
            }
            // A group whose interval ended before any further occurrence can be pruned without effect.
            2 => {
                let idle = at((now - MAX_DELAY as i64 - 1).max(0));
                harness.store().prune_notifications(idle, 100).await.unwrap();
            }
            _ => {}
        }
        if step == STEPS / 2 {
            Harness::reopen(harness).await;
        }
    }
}

pub async fn occurrences_out_of_order_keep_the_last_details(harness: &Arc<Harness>) {
    let kinds = [NotificationKind::DeliveryDead, NotificationKind::DnsFailing];
    for time in [20, 40, 30] {
        record(harness, &kinds.map(|kind| cause(harness, kind, time))).await;
    }
    let sent = send(harness, 50).await;
    for (kind, count) in [(NotificationKind::DeliveryDead, 3), (NotificationKind::DnsFailing, 1)] {
        let found = sent.iter().find(|sent| sent.notification.kind == kind).unwrap();
        let notification = &found.notification;
        assert_eq!(
            (notification.count, notification.first_at, notification.last_at),
            (count, at(20), at(40))
        );
        assert_eq!(notification.details, cause(harness, kind, 40).details, "{kind:?}");
    }
}

pub async fn suppressed_lasting_condition_leaves_no_trace(harness: &Arc<Harness>) {
    let lasting =
        [NotificationKind::DnsFailing, NotificationKind::SecretRotationDue, NotificationKind::QuotaReached];
    let all = |time| lasting.map(|kind| cause(harness, kind, time));
    let end = 10 + MINUTE;
    record(harness, &all(0)).await;
    create(harness, 10).await;
    assert_eq!(send_created(harness, 10).await.len(), 3);
    record(harness, &all(20)).await;
    record(harness, &all(end - 1)).await;
    assert_eq!(harness.store().next_notification_at().await.unwrap(), None);
    record(harness, &all(end)).await;
    assert_eq!(create(harness, end).await, 3);
    for notification in send_created(harness, end).await {
        let Notification { kind, count, first_at, last_at, details, .. } = notification;
        assert_eq!((count, first_at, last_at), (1, at(end), at(end)), "{kind:?}");
        assert_eq!(details, cause(harness, kind, end).details);
    }
}

pub async fn due_group_waits_for_its_opposite_without_delaying_others(harness: &Arc<Harness>) {
    let webhooks = [harness.webhook_id(), harness.webhook_id(), harness.webhook_id()];
    let all = |kind, time| {
        webhooks.map(|id| Occurrence { webhook_id: Some(id), ..cause(harness, kind, time) }).to_vec()
    };
    for (kind, time) in [(NotificationKind::CircuitOpened, 0), (NotificationKind::CircuitRecovered, 1_000)] {
        record(harness, &all(kind, time)).await;
        create(harness, time).await;
        assert_eq!(send_created(harness, time).await.len(), 3);
    }
    record(harness, &all(NotificationKind::CircuitOpened, 2_000)).await;
    record(harness, &all(NotificationKind::CircuitRecovered, 3_000)).await;
    // The openings are due and wait for their recoveries. Each call may consider two groups only.
    let now = MINUTE + 500;
    record(harness, &[cause(harness, NotificationKind::DeliveryDead, now)]).await;
    assert_eq!(create_up_to(harness, now, 4).await, 1);
    assert_eq!(send_created(harness, now).await[0].kind, NotificationKind::DeliveryDead);
    assert_eq!(create_up_to(harness, now, 4).await, 0);
    let end = MINUTE + 1_000;
    let mut reported = Vec::new();
    while create_up_to(harness, end, 4).await > 0 {
        let sent = send_created(harness, end).await;
        let kinds = |id| -> Vec<_> {
            sent.iter().filter(|one| one.webhook_id == Some(id)).map(|one| one.kind).collect()
        };
        for id in webhooks.into_iter().filter(|id| !kinds(*id).is_empty()) {
            assert_eq!(kinds(id), [NotificationKind::CircuitOpened, NotificationKind::CircuitRecovered]);
            reported.push(id);
        }
    }
    reported.sort_unstable();
    assert_eq!(reported, webhooks);
}

pub async fn concurrent_occurrences_of_new_groups_are_all_counted(harness: &Arc<Harness>) {
    const WRITERS: i64 = 8;
    const ROUNDS: i64 = 10;
    let kinds = [
        NotificationKind::DeliveryDead,
        NotificationKind::CircuitRecovered,
        NotificationKind::CircuitOpened,
        NotificationKind::DnsFailing,
    ];
    let webhooks = [harness.webhook_id(), harness.webhook_id(), harness.webhook_id()];
    let write = |writer: i64| {
        let harness = harness.clone();
        async move {
            for round in 0..ROUNDS {
                let time = round * WRITERS + writer;
                let of_webhook =
                    |id| kinds.map(|kind| Occurrence { webhook_id: Some(id), ..cause(&harness, kind, time) });
                let mut occurrences: Vec<_> = webhooks.into_iter().flat_map(of_webhook).collect();
                if writer % 2 == 0 {
                    occurrences.reverse();
                }
                record(&harness, &occurrences).await;
            }
        }
    };
    together((0..WRITERS).map(write)).await;
    let sent = send(harness, 1_000).await;
    assert_eq!(sent.len(), kinds.len() * webhooks.len());
    for stored in sent {
        let Notification { kind, count, first_at, last_at, details, .. } = stored.notification;
        let total = if kind.counts_repeats() { WRITERS * ROUNDS } else { 1 };
        assert_eq!((count as i64, first_at, last_at), (total, at(0), at(WRITERS * ROUNDS - 1)), "{kind:?}");
        assert_eq!(details, cause(harness, kind, WRITERS * ROUNDS - 1).details);
    }
}

pub async fn occurrences_recorded_while_notifications_are_created_are_counted_once(harness: &Arc<Harness>) {
    const CALLS: i64 = 20;
    const OUTCOMES: i64 = 30;
    let kind = NotificationKind::DeliveryDead;
    let mut leased = Vec::new();
    for time in 0..OUTCOMES {
        leased.push(harness.leased(at(time)).await);
    }
    let replies: Vec<_> = leased
        .into_iter()
        .map(|id| {
            let occurrences = vec![cause(harness, kind, 100)];
            harness.submit_outcome(OutcomeRecord { occurrences, ..harness.outcome(id, 1, dead(), at(100)) })
        })
        .collect();
    let work = |index: i64| {
        let harness = harness.clone();
        async move {
            for time in 0..CALLS {
                match index % 2 {
                    0 => record(&harness, &[cause(&harness, kind, time)]).await,
                    _ => drop(create(&harness, 200).await),
                }
            }
        }
    };
    together((0..4).map(work)).await;
    for reply in replies {
        assert!(matches!(reply.await.unwrap(), Ok(RecordResult::Recorded { .. })));
    }
    let end = 200 + MINUTE;
    create(harness, end).await;
    let sent = send_created(harness, end).await;
    let total: u64 = sent.iter().map(|notification| notification.count).sum();
    assert_eq!(total as i64, 2 * CALLS + OUTCOMES, "{sent:?}");
    assert!(sent.len() <= 2, "{sent:?}");
}

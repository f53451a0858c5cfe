//! Notifications: occurrences recorded with their cause, grouped, and claimed until they are sent.

use redrive_core::delivery::outcome::Outcome;
use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeadReason, NotificationId, TenantId, Time,
    notification::{Notification, NotificationKind, Occurrence, OccurrenceDetails, grouping::GroupIntervals},
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::WebhookState,
};

use super::{Harness, at, closed, page, together};
use crate::{
    Channel, ChannelResult, ChannelStatus, DisableWebhook, OutcomeRecord, PageRequest, RecordResult,
    StoredNotification, UpdateResult, WebhookEffects,
};

pub(super) const MINUTE: i64 = 60_000;

pub(super) fn intervals() -> GroupIntervals {
    let minute = Duration::from_secs(60);
    GroupIntervals { usual: minute, circuit: minute, repeat_interval: minute, secret: minute }
}

pub(super) fn cause(harness: &Harness, kind: NotificationKind, time: i64) -> Occurrence {
    let details = OccurrenceDetails {
        message: Some(format!("at {time} \u{0}\u{1f514}")),
        ..OccurrenceDetails::default()
    };
    let webhook_id = Some(harness.webhook_id);
    Occurrence { tenant_id: harness.tenant_id.clone(), webhook_id, kind, at: at(time), count: 1, details }
}

pub(super) async fn record(harness: &Harness, occurrences: &[Occurrence]) {
    harness.store().record_occurrences(occurrences.to_vec()).await.unwrap();
}

/// Creates the notifications that are due, and claims all that are to be sent by then.
pub(super) async fn send(harness: &Harness, time: i64) -> Vec<StoredNotification> {
    create(harness, time).await;
    harness.store().claim_notifications(at(time), at(time), 1_000).await.unwrap()
}

pub(super) async fn create(harness: &Harness, time: i64) -> usize {
    create_up_to(harness, time, 200).await
}

/// Creates notifications that are due, with this number of ids.
pub(super) async fn create_up_to(harness: &Harness, time: i64, ids: usize) -> usize {
    let fresh = (0..ids).map(|_| NotificationId::new(at(time), &harness.next())).collect();
    harness.store().create_notifications(at(time), intervals(), fresh).await.unwrap()
}

/// Claims all notifications that were created by then, and marks them as sent.
pub(super) async fn send_created(harness: &Harness, time: i64) -> Vec<Notification> {
    let claimed = harness.store().claim_notifications(at(time), at(time), 1_000).await.unwrap();
    for sent in &claimed {
        for channel in [Channel::Webhook, Channel::Email] {
            let done = ChannelResult::Done(ChannelStatus::Sent, None);
            harness.store().record_notification_result(sent.notification.id, channel, done).await.unwrap();
        }
    }
    claimed.into_iter().map(|sent| sent.notification).collect()
}

/// Marks all notifications that are due by then as sent; returns their kinds and counts.
async fn send_due(harness: &Harness, time: i64) -> Vec<(NotificationKind, u64)> {
    create(harness, time).await;
    let sent = send_created(harness, time).await;
    sent.into_iter().map(|notification| (notification.kind, notification.count)).collect()
}

pub async fn first_occurrence_is_sent_immediately_and_later_ones_grouped(harness: &mut Arc<Harness>) {
    assert_eq!(harness.store().next_notification_at().await.unwrap(), None);
    record(harness, &[cause(harness, NotificationKind::DeliveryDead, 1_000)]).await;
    assert_eq!(harness.store().next_notification_at().await.unwrap(), Some(at(1_000)));
    assert_eq!(send(harness, 999).await, []);
    let sent = send(harness, 1_000).await;
    let [one] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(
        (one.webhook_status, one.email_status, one.attempts),
        (ChannelStatus::Pending, ChannelStatus::Pending, 1)
    );
    let notification = one.notification.clone();
    assert_eq!(
        (notification.kind, notification.count, notification.webhook_id),
        (NotificationKind::DeliveryDead, 1, Some(harness.webhook_id))
    );
    assert_eq!((notification.first_at, notification.last_at), (at(1_000), at(1_000)));
    assert_eq!(notification.details, cause(harness, NotificationKind::DeliveryDead, 1_000).details);
    assert_eq!(send_due(harness, 1_000).await, [(NotificationKind::DeliveryDead, 1)]);
    for time in 2_000..2_010 {
        record(harness, &[cause(harness, NotificationKind::DeliveryDead, time)]).await;
    }
    Harness::reopen(harness).await;
    assert_eq!(send_due(harness, 1_000 + MINUTE - 1).await, []);
    assert_eq!(harness.store().next_notification_at().await.unwrap(), Some(at(1_000 + MINUTE)));
    let sent = send(harness, 1_000 + MINUTE).await;
    let digest = &sent[0].notification;
    assert_eq!((digest.count, digest.first_at, digest.last_at), (10, at(2_000), at(2_009)));
    assert_eq!(digest.details, cause(harness, NotificationKind::DeliveryDead, 2_009).details);
}

pub async fn lasting_condition_is_repeated_only_while_it_recurs(harness: &Arc<Harness>) {
    let quota =
        |time| Occurrence { webhook_id: None, ..cause(harness, NotificationKind::QuotaReached, time) };
    record(harness, &[quota(0), quota(5)]).await;
    assert_eq!(send_due(harness, 10).await, [(NotificationKind::QuotaReached, 1)]);
    record(harness, &[quota(20)]).await;
    assert_eq!(send_due(harness, 10 * MINUTE).await, []);
    record(harness, &[quota(10 * MINUTE)]).await;
    assert_eq!(send_due(harness, 10 * MINUTE).await, [(NotificationKind::QuotaReached, 1)]);
}

pub async fn notification_is_claimed_once_and_again_after_its_claim_expires(harness: &Arc<Harness>) {
    record(harness, &[cause(harness, NotificationKind::DeliveryDead, 0)]).await;
    assert_eq!(create(harness, 0).await, 1);
    let store = harness.store();
    let taken = store.claim_notifications(at(0), at(100), 10).await.unwrap();
    let id = taken[0].notification.id;
    assert_eq!(store.claim_notifications(at(99), at(300), 10).await.unwrap(), []);
    assert_eq!(store.next_notification_at().await.unwrap(), Some(at(100)));
    let again = store.claim_notifications(at(100), at(300), 10).await.unwrap();
    assert_eq!((again[0].notification.id, again[0].attempts), (id, 2));
    store
        .record_notification_result(id, Channel::Webhook, ChannelResult::Done(ChannelStatus::Sent, None))
        .await
        .unwrap();
    let later = ChannelResult::RetryAt(at(150), "no route".into());
    store.record_notification_result(id, Channel::Email, later).await.unwrap();
    let again = store.claim_notifications(at(150), at(300), 10).await.unwrap();
    assert_eq!(
        (again[0].webhook_status, again[0].email_status),
        (ChannelStatus::Sent, ChannelStatus::Pending)
    );
    assert_eq!(again[0].error.as_deref(), Some("no route"));
    store
        .record_notification_result(
            id,
            Channel::Email,
            ChannelResult::Done(ChannelStatus::Failed, Some("gone".into())),
        )
        .await
        .unwrap();
    // A late result does not change a channel that is done.
    store
        .record_notification_result(id, Channel::Email, ChannelResult::RetryAt(at(200), "late".into()))
        .await
        .unwrap();
    assert_eq!(store.claim_notifications(at(10_000), at(10_001), 10).await.unwrap(), []);
    assert_eq!(store.next_notification_at().await.unwrap(), None);
    let listed = store.list_notifications(harness.tenant_id.clone(), page(10)).await.unwrap();
    assert_eq!(
        (listed[0].webhook_status, listed[0].email_status, listed[0].next_attempt_at),
        (ChannelStatus::Sent, ChannelStatus::Failed, None)
    );
    assert_eq!(listed[0].error.as_deref(), Some("gone"));
}

pub async fn concurrent_nodes_create_and_claim_each_notification_once(harness: &Arc<Harness>) {
    for _ in 0..40 {
        let webhook_id = Some(harness.webhook_id());
        record(harness, &[Occurrence { webhook_id, ..cause(harness, NotificationKind::DeliveryDead, 0) }])
            .await;
    }
    let work = |_: usize| {
        let harness = harness.clone();
        async move {
            create(&harness, 10).await;
            harness.store().claim_notifications(at(10), at(1_000), 1_000).await.unwrap()
        }
    };
    let mut taken: Vec<_> = together((0..8).map(work)).await.into_iter().flatten().collect();
    taken.extend(harness.store().claim_notifications(at(10), at(1_000), 1_000).await.unwrap());
    let mut webhooks: Vec<_> = taken.iter().map(|taken| taken.notification.webhook_id).collect();
    webhooks.sort_unstable();
    webhooks.dedup();
    assert_eq!((taken.len(), webhooks.len()), (40, 40));
}

pub async fn notifications_are_listed_newest_first_and_pruned_when_old(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    for time in 0..4 {
        let webhook_id = Some(harness.webhook_id());
        record(harness, &[Occurrence { webhook_id, ..cause(harness, NotificationKind::DeliveryDead, time) }])
            .await;
        send_due(harness, time).await;
    }
    let theirs = Occurrence {
        tenant_id: other.clone(),
        webhook_id: None,
        ..cause(harness, NotificationKind::QuotaReached, 4)
    };
    record(harness, &[theirs]).await;
    assert_eq!(send(harness, 4).await.len(), 1);
    let list = |tenant_id: &TenantId, after, limit| {
        harness.store().list_notifications(tenant_id.clone(), PageRequest { after, offset: 0, limit })
    };
    let all = list(&harness.tenant_id, None, 100).await.unwrap();
    let times: Vec<_> = all.iter().map(|stored| stored.notification.first_at).collect();
    assert_eq!(times, [at(3), at(2), at(1), at(0)]);
    assert_eq!(list(&harness.tenant_id, Some(all[1].notification.id), 1).await.unwrap(), [all[2].clone()]);
    assert_eq!(list(&other, None, 100).await.unwrap().len(), 1);
    // A notification that is still pending is kept, however old it is.
    let old = at(10 * MINUTE);
    assert_eq!(harness.store().prune_notifications(old, 3).await.unwrap(), 3);
    harness.store().prune_notifications(old, 3).await.unwrap();
    assert_eq!(harness.store().prune_notifications(old, 3).await.unwrap(), 0);
    assert_eq!(list(&harness.tenant_id, None, 100).await.unwrap(), []);
    assert_eq!(list(&other, None, 100).await.unwrap().len(), 1);
}

fn transition(state: CircuitState, generation: u64, time: i64) -> SavedCircuit {
    let until = (state == CircuitState::Open).then(|| at(time + 1_000));
    SavedCircuit { state, generation, since: at(time), until, ..closed() }
}

pub async fn circuit_occurrence_is_recorded_by_the_stored_transition(harness: &Arc<Harness>) {
    let (tenant_id, webhook_id) = (harness.tenant_id.clone(), harness.webhook_id);
    let set = |state, generation, time, kind| {
        let occurrence = cause(harness, kind, time);
        harness.store().set_circuit(
            tenant_id.clone(),
            webhook_id,
            transition(state, generation, time),
            Some(occurrence),
        )
    };
    set(CircuitState::Open, 5, 10, NotificationKind::CircuitOpened).await.unwrap();
    // The transition is stored again by a node that got no result, and an older one by a node that found out later.
    set(CircuitState::Open, 5, 10, NotificationKind::CircuitOpened).await.unwrap();
    set(CircuitState::Open, 4, 11, NotificationKind::CircuitOpened).await.unwrap();
    assert_eq!(send_due(harness, 20).await, [(NotificationKind::CircuitOpened, 1)]);
    set(CircuitState::HalfOpen, 6, 30, NotificationKind::CircuitRecovered).await.unwrap();
    set(CircuitState::Open, 7, 40, NotificationKind::CircuitOpened).await.unwrap();
    assert_eq!(send_due(harness, 50).await, [], "a failed recovery causes no second notification");
    set(CircuitState::Closed, 8, 60, NotificationKind::CircuitRecovered).await.unwrap();
    set(CircuitState::Closed, 8, 60, NotificationKind::CircuitRecovered).await.unwrap();
    assert_eq!(send_due(harness, 70).await, [(NotificationKind::CircuitRecovered, 1)]);
}

pub async fn flapping_circuit_is_grouped_and_ends_with_its_current_state(harness: &Arc<Harness>) {
    let opened = |time| cause(harness, NotificationKind::CircuitOpened, time);
    let recovered = |time| cause(harness, NotificationKind::CircuitRecovered, time);
    record(harness, &[opened(0)]).await;
    assert_eq!(send_due(harness, 0).await, [(NotificationKind::CircuitOpened, 1)]);
    record(harness, &[recovered(1_000)]).await;
    assert_eq!(send_due(harness, 1_000).await, [(NotificationKind::CircuitRecovered, 1)]);
    record(harness, &[opened(2_000)]).await;
    record(harness, &[recovered(3_000)]).await;
    record(harness, &[opened(4_000)]).await;
    record(harness, &[recovered(5_000)]).await;
    assert_eq!(send_due(harness, MINUTE).await, [], "the recovery is not due yet");
    let reported = send_due(harness, 1_000 + MINUTE).await;
    assert_eq!(reported, [(NotificationKind::CircuitOpened, 2), (NotificationKind::CircuitRecovered, 2)]);
    let later = 10 * MINUTE;
    record(harness, &[recovered(later), opened(later + 1)]).await;
    let reported = send_due(harness, later + 1).await;
    assert_eq!(
        reported,
        [(NotificationKind::CircuitRecovered, 1), (NotificationKind::CircuitOpened, 1)],
        "the last notification is the current state"
    );
}

pub(super) fn dead() -> Outcome {
    Outcome::Dead(DeadReason::Permanent)
}

pub async fn outcome_records_only_occurrences_that_took_place(harness: &Arc<Harness>) {
    let occurrences = || {
        [NotificationKind::DeliveryDead, NotificationKind::CircuitOpened, NotificationKind::WebhookDisabled]
            .map(|kind| cause(harness, kind, 5))
            .to_vec()
    };
    // A retry: none of the occurrences took place.
    let retried = harness.leased(at(1)).await;
    let next = Outcome::Retry { at: at(100) };
    harness
        .record(OutcomeRecord { occurrences: occurrences(), ..harness.outcome(retried, 1, next, at(5)) })
        .await;
    // An outcome from a node without the lease records no occurrence either.
    let epoch = harness.new_epoch().await;
    let fenced =
        OutcomeRecord { epoch, occurrences: occurrences(), ..harness.outcome(retried, 2, dead(), at(5)) };
    assert_eq!(harness.record(fenced).await, RecordResult::NotLeased);
    assert_eq!(send_due(harness, 10).await, []);
    let id = harness.leased(at(2)).await;
    let url = harness.stored_webhook(harness.webhook_id).await.webhook.spec.url;
    let effects = WebhookEffects {
        circuit: Some(Box::new(transition(CircuitState::Open, 5, 5))),
        ..WebhookEffects::default()
    };
    let outcome = OutcomeRecord {
        occurrences: occurrences(),
        effects,
        disable: Some(DisableWebhook { reason: "gone".into(), url }),
        ..harness.outcome(id, 1, dead(), at(5))
    };
    assert!(matches!(harness.record(outcome.clone()).await, RecordResult::Recorded { .. }));
    // A repeated outcome records no further occurrence.
    assert_eq!(harness.record(outcome).await, RecordResult::AlreadyRecorded);
    let reported = send_due(harness, 10).await;
    assert_eq!(
        reported,
        [
            (NotificationKind::CircuitOpened, 1),
            (NotificationKind::WebhookDisabled, 1),
            (NotificationKind::DeliveryDead, 1)
        ]
    );
    harness.leave_undrained();
}

pub async fn concurrent_deaths_are_one_notification(harness: &Arc<Harness>) {
    let mut replies = Vec::new();
    for time in 0..300 {
        let id = harness.leased(at(time)).await;
        let occurrences = vec![cause(harness, NotificationKind::DeliveryDead, time)];
        replies.push(
            harness.submit_outcome(OutcomeRecord { occurrences, ..harness.outcome(id, 1, dead(), at(time)) }),
        );
    }
    for response in replies {
        response.await.unwrap().unwrap();
    }
    assert_eq!(send_due(harness, 1_000).await, [(NotificationKind::DeliveryDead, 300)]);
}

pub async fn expiry_notification_has_the_number_of_deliveries(harness: &Arc<Harness>) {
    let mut last = None;
    for time in 0..5 {
        last = Some(harness.waiting(at(time), at(1_000)).await);
    }
    let expired = Occurrence {
        count: 1,
        details: OccurrenceDetails::default(),
        ..cause(harness, NotificationKind::DeliveryDead, 60)
    };
    harness
        .store()
        .expire_deliveries(harness.webhook_id, at(50), at(60), 10, Some(expired.clone()))
        .await
        .unwrap();
    let sent = send(harness, 100).await;
    let notification = &sent[0].notification;
    assert_eq!((sent.len(), notification.count, notification.details.delivery_id), (1, 5, last));
    assert!(notification.details.event_type.is_some());
    // If no delivery expires, no occurrence is recorded.
    harness.store().expire_deliveries(harness.webhook_id, at(50), at(60), 10, Some(expired)).await.unwrap();
    assert_eq!(create(harness, 10 * MINUTE).await, 0);
}

pub async fn rejected_change_records_no_occurrence(harness: &Arc<Harness>) {
    let found = harness.stored_webhook(harness.webhook_id).await;
    let mut webhook = found.webhook;
    webhook.state = WebhookState::Disabled("expired".into());
    let occurrence = cause(harness, NotificationKind::WebhookDisabled, 5);
    let stale = harness.store().change_webhook(webhook.clone(), found.revision - 1, Some(occurrence.clone()));
    assert_eq!(stale.await.unwrap(), UpdateResult::Stale);
    assert_eq!(send_due(harness, 10).await, []);
    let changed = harness.store().change_webhook(webhook, found.revision, Some(occurrence)).await.unwrap();
    assert!(matches!(changed, UpdateResult::Updated { .. }));
    assert_eq!(send_due(harness, 10).await, [(NotificationKind::WebhookDisabled, 1)]);
}

pub async fn deleted_tenant_gets_no_notifications(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    let theirs = Occurrence {
        tenant_id: other.clone(),
        webhook_id: None,
        ..cause(harness, NotificationKind::QuotaReached, 4)
    };
    record(harness, &[theirs]).await;
    harness.store().delete_tenant(other, at(5)).await.unwrap();
    assert_eq!(send_due(harness, 10).await, []);
    assert_eq!(harness.store().next_notification_at().await.unwrap(), None::<Time>);
}

pub async fn earlier_notifications_about_a_webhook_are_listed_newest_first(harness: &mut Arc<Harness>) {
    let kinds =
        [NotificationKind::WebhookFailing, NotificationKind::CircuitOpened, NotificationKind::DeliveryDead];
    let other = harness.new_webhook().await.id;
    let mut ids = Vec::new();
    for (time, kind) in [1, 3, 5].into_iter().zip(kinds) {
        let of_other = Occurrence { webhook_id: Some(other), ..cause(harness, kind, time) };
        record(harness, &[cause(harness, kind, time), of_other]).await;
        create(harness, time + 1).await;
        let sent = send_created(harness, time + 1).await;
        ids.extend(sent.iter().filter(|one| one.webhook_id == Some(harness.webhook_id)).map(|one| one.id));
    }
    assert_eq!(ids.len(), 3);
    let earlier = async |before, limit| {
        let tenant_id = harness.tenant_id.clone();
        let found = harness.store().earlier_notifications(tenant_id, harness.webhook_id, before, limit).await;
        found.unwrap().iter().map(|one| one.notification.kind).collect::<Vec<_>>()
    };
    let last = NotificationId::from_bytes([0xff; 16]);
    assert_eq!(earlier(last, 9).await, [kinds[2], kinds[1], kinds[0]]);
    assert_eq!(earlier(last, 1).await, [kinds[2]]);
    assert_eq!(earlier(ids[1], 9).await, [kinds[0]]);
    assert_eq!(earlier(ids[0], 9).await, []);
    let globex = harness.new_tenant("globex").await;
    let found = harness.store().earlier_notifications(globex, harness.webhook_id, last, 9).await.unwrap();
    assert_eq!(found, []);
}

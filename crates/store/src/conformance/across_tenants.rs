//! Reads over all tenants: lookups by id, listings, and the activity of each tenant.

use std::{collections::BTreeSet, sync::Arc};

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, Time, WebhookId,
    delivery::code_filter::CodeFilter,
    delivery::outcome::{AttemptStatus, Outcome},
    event::Event,
    notification::{NotificationKind, Occurrence},
    protection::breaker::{CircuitState, SavedCircuit},
    statistics::{
        rollup::Rollup,
        traffic::{EndedCounts, Resolution, Traffic},
    },
    webhook::WebhookState,
};

use super::{Harness, at, closed, history, notifications, page};
use crate::{
    ActivityLimits, AttemptCursor, AttemptFilter, CrossTenantEventFilter, CrossTenantFilter, Delivery,
    DeliveryCursor, DeliveryFilter, EventFilter, InitialState, MinuteRollup, NewEvent, OutcomeRecord,
    PageRequest, StatusFilter, TenantRollup, UpdateResult, Visibility, access_path::MAX_SKIPPED_ROWS,
};

const MINUTE: i64 = 60_000;

/// A second tenant with a webhook.
struct Other {
    tenant_id: TenantId,
    webhook_id: WebhookId,
    version: i64,
}

impl Other {
    async fn new(harness: &Harness, name: &str) -> Self {
        let tenant_id = harness.new_tenant(name).await;
        let webhook = harness.webhook_of(&tenant_id);
        let webhook_id = webhook.id;
        let created = harness.store().create_webhook(webhook).await.unwrap();
        let UpdateResult::Updated { version } = created else { panic!("{created:?}") };
        Self { tenant_id, webhook_id, version }
    }

    /// Publishes an event with one delivery, which ends as given.
    async fn publish(
        &self,
        harness: &Harness,
        time: i64,
        event_type: &str,
        next: Option<Outcome>,
    ) -> (EventId, DeliveryId) {
        let event = Event {
            tenant_id: self.tenant_id.clone(),
            event_type: event_type.into(),
            ..harness.event(at(time))
        };
        let new = harness.fan_out(event, &[(self.webhook_id, InitialState::Leased)]);
        let (event_id, delivery_id) = (new.event.id, new.deliveries[0].id);
        harness.publish_new(NewEvent { config_version: self.version, ..new }).await;
        if let Some(next) = next {
            let outcome = harness.outcome(delivery_id, 1, next, at(time + 1));
            let (tenant_id, webhook_id) = (self.tenant_id.clone(), self.webhook_id);
            harness.record(OutcomeRecord { tenant_id, webhook_id, ..outcome }).await;
        }
        (event_id, delivery_id)
    }
}

/// Publishes events of both tenants in turn, with deliveries in every state.
async fn publish_samples(harness: &Harness) -> Other {
    history::publish_samples(harness).await;
    let other = Other::new(harness, "globex").await;
    for n in 0..12 {
        let next = match n % 4 {
            0 => Some(Outcome::Delivered),
            1 => Some(Outcome::Dead(DeadReason::Permanent)),
            2 => Some(Outcome::Retry { at: at(9_000) }),
            _ => None,
        };
        other.publish(harness, 2 * n + 1, ["order.paid", "invoice.sent"][n as usize % 2], next).await;
    }
    other
}

async fn deliveries_of(harness: &Harness, tenants: &[&TenantId]) -> Vec<Delivery> {
    let mut all = Vec::new();
    for tenant_id in tenants.iter().copied().cloned() {
        let found = harness.store().list_deliveries(tenant_id, DeliveryFilter::default(), page(1_000)).await;
        all.extend(found.unwrap().found);
    }
    all.sort_by_key(|one| std::cmp::Reverse(one.id));
    all
}

fn filters(webhooks: &[WebhookId]) -> Vec<DeliveryFilter> {
    let none = DeliveryFilter::default;
    let mut filters = vec![none()];
    for status in DeliveryStatus::ALL.map(StatusFilter::Exactly).into_iter().chain([StatusFilter::Failed]) {
        filters.push(DeliveryFilter { status: Some(status), ..none() });
    }
    filters.extend([
        DeliveryFilter { failure_categories: vec![FailureCategory::Timeout], ..none() },
        DeliveryFilter {
            failure_categories: vec![FailureCategory::ClientError, FailureCategory::ServerError],
            ..none()
        },
        DeliveryFilter { status_code: Some(CodeFilter::Exactly(503)), ..none() },
        DeliveryFilter { status_code: Some(CodeFilter::Exactly(200)), ..none() },
        DeliveryFilter { status_code: Some(CodeFilter::Class(5)), ..none() },
        DeliveryFilter { event_types: vec!["order.paid".into(), "x\0".into()], ..none() },
        DeliveryFilter { dead_reasons: vec![DeadReason::Permanent], ..none() },
        DeliveryFilter { recoverable: Some(true), ..none() },
        DeliveryFilter { from: Some(at(5)), to: Some(at(20)), ..none() },
    ]);
    let of = |filter: &DeliveryFilter| DeliveryFilter { webhooks: webhooks.to_vec(), ..filter.clone() };
    let of_webhooks: Vec<_> = filters.iter().map(of).collect();
    [filters, of_webhooks].concat()
}

pub async fn delivery_filters_over_all_tenants_match_the_reference(harness: &Arc<Harness>) {
    let other = publish_samples(harness).await;
    let all = deliveries_of(harness, &[&harness.tenant_id, &other.tenant_id]).await;
    assert!(all.iter().any(|one| one.tenant_id == other.tenant_id) && all.len() == 68);
    for filter in filters(&[harness.webhook_id, other.webhook_id]) {
        let across = CrossTenantFilter::new(filter.clone()).unwrap();
        let found =
            harness.store().list_deliveries_of_all_tenants(across.clone(), page(1_000)).await.unwrap().found;
        let expected: Vec<_> =
            all.iter().filter(|one| history::matches_without_event(one, &filter)).cloned().collect();
        assert_eq!(found, expected, "{filter:?}");
        let dead = harness.store().list_dead_of_all_tenants(across, page(1_000)).await.unwrap().found;
        let expected: Vec<_> =
            expected.into_iter().filter(|one| one.status == DeliveryStatus::Dead).collect();
        assert_eq!(dead, expected, "dead {filter:?}");
    }
}

pub async fn filter_that_needs_a_tenant_is_refused(_: &Arc<Harness>) {
    let none = DeliveryFilter::default;
    let event_id = EventId::from_bytes([1; 16]);
    for (filter, field) in [
        (DeliveryFilter { event_id: Some(event_id), ..none() }, "event_id"),
        (DeliveryFilter { idempotency_key: Some("k".into()), ..none() }, "idempotency_key"),
        (DeliveryFilter { subject: Some("s".into()), ..none() }, "subject"),
    ] {
        assert_eq!(CrossTenantFilter::new(filter), Err(field));
    }
    let none = EventFilter::default;
    for (filter, field) in [
        (EventFilter { id: Some(event_id), ..none() }, "id"),
        (EventFilter { idempotency_key: Some("k".into()), ..none() }, "idempotency_key"),
        (EventFilter { subject: Some("s".into()), ..none() }, "subject"),
    ] {
        assert_eq!(CrossTenantEventFilter::new(filter), Err(field));
    }
}

pub async fn paging_over_all_tenants_neither_skips_nor_repeats(harness: &Arc<Harness>) {
    let other = publish_samples(harness).await;
    let all = deliveries_of(harness, &[&harness.tenant_id, &other.tenant_id]).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = PageRequest { after, offset: 0, limit: 7 };
        let filter = CrossTenantFilter::default();
        let found = harness.store().list_deliveries_of_all_tenants(filter, page).await.unwrap().found;
        let Some(last) = found.last() else { break };
        after = Some(DeliveryCursor { event_id: last.event_id, delivery_id: last.id });
        seen.extend(found);
    }
    assert_eq!(seen, all);
    let page = PageRequest { after: None, offset: 5, limit: 3 };
    let skipped = harness.store().list_deliveries_of_all_tenants(CrossTenantFilter::default(), page).await;
    assert_eq!(skipped.unwrap().found, all[5..8]);
}

/// The dead deliveries of all tenants are older and newer than more pending failures than one page may scan.
pub async fn rare_delivery_of_all_tenants_is_found_in_pages_of_bounded_cost(harness: &Arc<Harness>) {
    harness.leave_undrained();
    let rare = harness.dead(at(0)).await;
    let many = MAX_SKIPPED_ROWS as i64 + 500;
    for n in 1..=many {
        let id = harness.leased(at(n)).await;
        let retry = Outcome::Retry { at: at(9_000_000) };
        harness.submit_outcome(harness.outcome(id, 1, retry, at(n)));
    }
    // Outcomes are stored in their order.
    let newest = harness.dead(at(many + 1)).await;
    let filter = DeliveryFilter {
        status: Some(StatusFilter::Exactly(DeliveryStatus::Dead)),
        ..DeliveryFilter::default()
    };
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = PageRequest { after, offset: 0, limit: 10 };
        let filter = CrossTenantFilter::new(filter.clone()).unwrap();
        let listed = harness.store().list_deliveries_of_all_tenants(filter, page).await.unwrap();
        found.extend(listed.found.iter().map(|one| one.id));
        pages += 1;
        match listed.stopped {
            Some(stopped) => after = Some(stopped),
            None => break,
        }
    }
    assert_eq!(found, [newest, rare]);
    assert_eq!(pages, 2, "a page ends with a cursor after a bounded number of rows");
}

pub async fn attempts_of_all_tenants_are_those_of_each(harness: &Arc<Harness>) {
    let other = publish_samples(harness).await;
    let none = AttemptFilter::default;
    for filter in [
        none(),
        AttemptFilter { statuses: vec![AttemptStatus::Success], ..none() },
        AttemptFilter { statuses: vec![AttemptStatus::Failed, AttemptStatus::FinalFailure], ..none() },
        AttemptFilter { failure_categories: vec![FailureCategory::ServerError], ..none() },
        AttemptFilter { status_code: Some(CodeFilter::Class(5)), ..none() },
        AttemptFilter { from: Some(at(5)), to: Some(at(20)), ..none() },
        AttemptFilter { webhook_id: Some(other.webhook_id), ..none() },
        AttemptFilter { tenant_managed_only: true, ..none() },
    ] {
        let mut expected = BTreeSet::new();
        for tenant_id in [&harness.tenant_id, &other.tenant_id] {
            let listed = harness.store().list_attempts(tenant_id.clone(), filter.clone(), page(1_000)).await;
            let key =
                |one: crate::ListedAttempt| (one.tenant_id, one.stored.delivery_id, one.stored.attempt.id);
            expected.extend(listed.unwrap().found.into_iter().map(key));
        }
        let (mut found, mut last) = (BTreeSet::new(), None::<AttemptCursor>);
        loop {
            let page = PageRequest { after: last, offset: 0, limit: 7 };
            let listed = harness.store().list_attempts_of_all_tenants(filter.clone(), page).await.unwrap();
            for one in &listed.found {
                assert!(last.is_none_or(|last| one.cursor < last), "newest first, {filter:?}");
                last = Some(one.cursor);
                let is_new =
                    found.insert((one.tenant_id.clone(), one.stored.delivery_id, one.stored.attempt.id));
                assert!(is_new, "listed twice, {filter:?}");
            }
            if listed.found.len() < 7 {
                break;
            }
        }
        assert_eq!(found, expected, "{filter:?}");
    }
    let all = harness.store().list_attempts_of_all_tenants(none(), page(1_000)).await.unwrap().found;
    let tenants: BTreeSet<_> = all.into_iter().map(|one| one.tenant_id).collect();
    assert_eq!(tenants.len(), 2);
}

pub async fn events_of_all_tenants_are_listed_newest_first(harness: &Arc<Harness>) {
    let other = publish_samples(harness).await;
    let mut all = Vec::new();
    for tenant_id in [&harness.tenant_id, &other.tenant_id] {
        let found = harness.store().list_events(tenant_id.clone(), EventFilter::default(), page(1_000)).await;
        all.extend(found.unwrap().found);
    }
    all.sort_by_key(|one| std::cmp::Reverse(one.event.id));
    let list = async |filter, after, limit| {
        let filter = CrossTenantEventFilter::new(filter).unwrap();
        let page = PageRequest { after, offset: 0, limit };
        harness.store().list_events_of_all_tenants(filter, page).await.unwrap().found
    };
    assert_eq!(list(EventFilter::default(), None, 1_000).await, all);
    assert_eq!(list(EventFilter::default(), Some(all[6].event.id), 5).await, all[7..12]);
    let paid =
        EventFilter { event_types: vec!["order.paid".into()], to: Some(at(9)), ..EventFilter::default() };
    let expected: Vec<_> = all
        .iter()
        .filter(|one| &*one.event.event_type == "order.paid" && one.event.id.time() < at(9))
        .cloned()
        .collect();
    assert!(expected.iter().any(|one| one.event.tenant_id == other.tenant_id));
    assert_eq!(list(paid, None, 1_000).await, expected);
    let from_a = EventFilter { source: Some("a".into()), ..EventFilter::default() };
    let expected: Vec<_> =
        all.iter().filter(|one| one.event.source.as_deref() == Some("a")).cloned().collect();
    assert_eq!(list(from_a, None, 1_000).await, expected);
}

pub async fn tenant_of_an_object_is_found_by_its_id(harness: &Arc<Harness>) {
    let other = Other::new(harness, "globex").await;
    let (event_id, delivery_id) = other.publish(harness, 1, "order.paid", None).await;
    // An event without deliveries is found as well.
    let alone = harness.fan_out(harness.event(at(2)), &[]);
    let own = alone.event.id;
    harness.publish_new(alone).await;
    let store = harness.store();
    assert_eq!(store.tenant_of_event(event_id).await.unwrap().as_ref(), Some(&other.tenant_id));
    assert_eq!(store.tenant_of_event(own).await.unwrap().as_ref(), Some(&harness.tenant_id));
    assert_eq!(store.tenant_of_delivery(delivery_id).await.unwrap().as_ref(), Some(&other.tenant_id));
    assert_eq!(store.tenant_of_webhook(other.webhook_id).await.unwrap().as_ref(), Some(&other.tenant_id));
    let deleted = harness.new_webhook().await.id;
    harness.set_state(deleted, WebhookState::Deleted).await;
    assert_eq!(store.tenant_of_webhook(deleted).await.unwrap().as_ref(), Some(&harness.tenant_id));
    let unknown = [7; 16];
    assert_eq!(store.tenant_of_event(EventId::from_bytes(unknown)).await.unwrap(), None);
    assert_eq!(store.tenant_of_delivery(DeliveryId::from_bytes(unknown)).await.unwrap(), None);
    assert_eq!(store.tenant_of_webhook(WebhookId::from_bytes(unknown)).await.unwrap(), None);
}

pub async fn dead_letters_of_all_tenants_are_counted(harness: &Arc<Harness>) {
    let other = publish_samples(harness).await;
    let count = async |filter, max| {
        let filter = CrossTenantFilter::new(filter).unwrap();
        harness.store().count_dead_of_all_tenants(filter, [at(0), at(0)], max).await.unwrap()
    };
    let all = count(DeliveryFilter::default(), 100).await;
    let by_webhook = |webhook_id| -> u64 {
        all.groups.iter().filter(|group| group.webhook_id == webhook_id).map(|group| group.count).sum()
    };
    assert_eq!((by_webhook(other.webhook_id), by_webhook(harness.webhook_id), all.more), (3, 8, false));
    let theirs = DeliveryFilter { webhooks: vec![other.webhook_id], ..DeliveryFilter::default() };
    assert_eq!(count(theirs, 100).await.groups.iter().map(|group| group.count).sum::<u64>(), 3);
    assert!(count(DeliveryFilter::default(), 5).await.more);
}

pub async fn webhooks_of_all_tenants_are_listed_newest_first(harness: &Arc<Harness>) {
    let other = Other::new(harness, "globex").await;
    let deleted = harness.new_webhook().await.id;
    harness.set_state(deleted, WebhookState::Deleted).await;
    let list = async |after, limit| {
        let page = PageRequest { after, offset: 0, limit };
        harness.store().list_webhooks_of_all_tenants(page).await.unwrap()
    };
    let all = list(None, 100).await;
    assert!(all.is_sorted_by(|newer, older| newer.id > older.id));
    let ids: BTreeSet<_> = all.iter().map(|webhook| (webhook.tenant_id.clone(), webhook.id)).collect();
    let expected =
        [(harness.tenant_id.clone(), harness.webhook_id), (other.tenant_id.clone(), other.webhook_id)];
    assert_eq!(ids, expected.into());
    assert_eq!(list(Some(all[0].id), 1).await, all[1..2]);
    let visibility = Visibility::All;
    let own = harness.store().list_webhooks(harness.tenant_id.clone(), visibility, page(9)).await.unwrap();
    assert!(all.contains(&own[0]), "the secrets are opened");
}

pub async fn notifications_of_all_tenants_are_listed_newest_first(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    for (time, tenant_id) in [(0, &harness.tenant_id), (1, &other), (2, &harness.tenant_id)] {
        let cause = notifications::cause(harness, NotificationKind::QuotaReached, time);
        let webhook_id = Some(harness.webhook_id());
        let occurrence = Occurrence { tenant_id: tenant_id.clone(), webhook_id, ..cause };
        notifications::record(harness, &[occurrence]).await;
        notifications::create(harness, time).await;
    }
    let list = async |after, limit| {
        let page = PageRequest { after, offset: 0, limit };
        harness.store().list_notifications_of_all_tenants(page).await.unwrap()
    };
    let all = list(None, 100).await;
    let tenants: Vec<_> = all.iter().map(|stored| stored.notification.tenant_id.as_str()).collect();
    assert_eq!(tenants, ["acme", "globex", "acme"]);
    assert_eq!(list(Some(all[0].notification.id), 1).await, all[1..2]);
}

/// Returns a rollup of one minute of a webhook, and the same counts as a tenant's.
fn rollup(
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    minute: i64,
    failures: usize,
) -> (MinuteRollup, TenantRollup) {
    let start = at(minute * MINUTE);
    let mut rollup = Rollup::default();
    rollup.add(1_000, None, start);
    (0..failures).for_each(|_| rollup.add(1_000, Some(FailureCategory::Timeout), start));
    let ended = EndedCounts { delivered: 1, dead: failures as u64, cancelled: 0 };
    let traffic = Traffic { sent: rollup.clone(), ended };
    let (tenant, resolution) = (tenant_id.clone(), Resolution::Minute);
    (
        MinuteRollup { tenant_id: tenant.clone(), webhook_id, minute: start, rollup },
        TenantRollup { tenant_id: tenant, resolution, start, expires_at: Time::FAR_FUTURE, traffic },
    )
}

pub async fn activity_of_tenants_is_summed_in_pages(harness: &Arc<Harness>) {
    let other = Other::new(harness, "globex").await;
    let deleted = harness.new_tenant("initech").await;
    assert!(harness.store().delete_tenant(deleted, at(0)).await.unwrap());
    for minute in 0..3 {
        let (own, own_traffic) = rollup(&harness.tenant_id, harness.webhook_id, minute, 0);
        let (theirs, their_traffic) = rollup(&other.tenant_id, other.webhook_id, minute, 2);
        harness.store().add_rollups(vec![own, theirs], vec![own_traffic, their_traffic]).await.unwrap();
    }
    for time in 0..4 {
        let died = Some(Outcome::Dead(DeadReason::Expired));
        other.publish(harness, time, "order.paid", died).await;
    }
    let read = async |after, tenants| {
        let limits = ActivityLimits { tenants, dead_letters: 3, failed_minutes: 10 };
        harness.store().tenant_activity(after, at(MINUTE), limits).await.unwrap()
    };
    let all = read(None, 10).await;
    let names: Vec<_> = all.iter().map(|one| one.tenant.id.as_str()).collect();
    assert_eq!(names, ["acme", "default", "globex"]);
    let [acme, idle, globex] = &all[..] else { panic!("{all:?}") };
    assert_eq!((acme.attempts, acme.successes, acme.ended.delivered, acme.dead_letters), (2, 2, 2, 0));
    assert_eq!((idle.attempts, &idle.failures), (0, &vec![]));
    assert_eq!((globex.attempts, globex.successes, globex.ended.dead), (6, 2, 4));
    assert_eq!(globex.failures, [(other.webhook_id, 4)]);
    assert!(!acme.has_more_failures && !globex.has_more_failures);
    for (failed_minutes, has_more) in [(2, false), (1, true)] {
        let limits = ActivityLimits { tenants: 10, dead_letters: 3, failed_minutes };
        let limited = harness.store().tenant_activity(None, at(MINUTE), limits).await.unwrap();
        assert_eq!(limited[2].has_more_failures, has_more, "{failed_minutes} of 2 minutes");
    }
    assert_eq!(globex.dead_letters, 3, "counted up to the limit");
    assert_eq!(globex.tenant.name.as_deref(), Some("GLOBEX"));
    assert_eq!(read(Some(acme.tenant.id.clone()), 1).await, all[1..2]);
    assert_eq!(read(Some(globex.tenant.id.clone()), 1).await, []);
}

pub async fn traffic_of_all_tenants_is_their_sum(harness: &mut Arc<Harness>) {
    let (globex, webhook_id) = (harness.new_tenant("globex").await, harness.webhook_id);
    for _ in 0..2 {
        let (own, own_traffic) = rollup(&harness.tenant_id, webhook_id, 1, 1);
        let (_, their_traffic) = rollup(&globex, webhook_id, 1, 3);
        let (_, later) = rollup(&globex, webhook_id, 2, 0);
        harness.store().add_rollups(vec![own], vec![own_traffic, their_traffic, later]).await.unwrap();
        Harness::reopen(harness).await;
    }
    let traffic = harness.store().traffic_of_all_tenants(Resolution::Minute, at(0)).await.unwrap();
    let seen: Vec<_> = traffic
        .iter()
        .map(|(start, one)| (*start, one.sent.attempts, one.sent.successes, one.ended.dead))
        .collect();
    assert_eq!(seen, [(at(MINUTE), 12, 4, 8), (at(2 * MINUTE), 2, 2, 0)]);
    assert_eq!(harness.store().traffic_of_all_tenants(Resolution::Hour, at(0)).await.unwrap(), []);
    assert_eq!(
        harness.store().traffic_of_all_tenants(Resolution::Minute, at(2 * MINUTE)).await.unwrap().len(),
        1
    );
}

pub async fn circuits_of_all_tenants_are_listed_by_tenant(harness: &Arc<Harness>) {
    let other = Other::new(harness, "a-first").await;
    let open = SavedCircuit { state: CircuitState::Open, until: Some(at(500)), generation: 1, ..closed() };
    for (tenant_id, webhook_id) in
        [(&harness.tenant_id, harness.webhook_id), (&other.tenant_id, other.webhook_id)]
    {
        let stored = harness.store().set_circuit(tenant_id.clone(), webhook_id, open.clone(), None).await;
        assert!(stored.unwrap());
    }
    let list = async |limit| harness.store().circuits_of_all_tenants(limit).await.unwrap();
    let found: Vec<_> = list(10).await.into_iter().map(|one| (one.tenant_id, one.webhook_id)).collect();
    let expected =
        [(other.tenant_id.clone(), other.webhook_id), (harness.tenant_id.clone(), harness.webhook_id)];
    assert_eq!(found, expected);
    assert_eq!(list(1).await.len(), 1);
}

pub async fn waiting_deliveries_are_counted_by_webhook(harness: &Arc<Harness>) {
    let other = Other::new(harness, "globex").await;
    for n in 0..3 {
        harness.waiting(at(n), at(1_000)).await;
        let event = Event { tenant_id: other.tenant_id.clone(), ..harness.event(at(n)) };
        let new = harness.fan_out(event, &[(other.webhook_id, InitialState::Waiting(at(1_000)))]);
        harness.publish_new(NewEvent { config_version: other.version, ..new }).await;
    }
    harness.waiting(at(9), at(1_000)).await;
    let count = async |after, limit, max_each| {
        let counted = harness.store().waiting_by_webhook(after, limit, max_each).await.unwrap();
        counted.into_iter().map(|one| (one.tenant_id, one.webhook_id, one.count)).collect::<Vec<_>>()
    };
    let mut expected = vec![
        (harness.tenant_id.clone(), harness.webhook_id, 4),
        (other.tenant_id.clone(), other.webhook_id, 3),
    ];
    expected.sort_by_key(|(_, webhook_id, _)| *webhook_id);
    assert_eq!(count(None, 10, 100).await, expected);
    assert_eq!(count(Some(expected[0].1), 10, 100).await, expected[1..]);
    assert_eq!(count(None, 1, 100).await, expected[..1]);
    assert!(count(None, 10, 2).await.iter().all(|(_, _, count)| *count == 2));
}

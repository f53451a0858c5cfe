//! Looking back: every filter, every page, nothing skipped, nothing of somebody else's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, WebhookId, event::Event,
};

use super::{Bench, at, page};
use crate::{
    Birth, Delivery, DeliveryCursor, DeliveryFilter, EventFilter, Next, Outcome, PageRequest, Recorded,
    StatusFilter, StoredAttempt, StoredEvent,
};

/// How many events a scene has, a millisecond apart.
const EVENTS: i64 = 28;
const TYPES: [&str; 2] = ["order.created", "order.paid"];
const SUBJECTS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

/// Events to two webhooks, whose deliveries have gone every way that a delivery can go.
async fn scene(bench: &Bench) -> [WebhookId; 2] {
    let webhooks = [bench.webhook, bench.webhook_id()];
    for n in 0..EVENTS {
        let event = Event {
            event_type: TYPES[n as usize % 2].into(),
            subject: SUBJECTS[n as usize % 3].map(Into::into),
            ..bench.event(at(n))
        };
        let way = |webhook: i64| (n + 3 * webhook) % 7;
        let birth = |webhook| if way(webhook) == 0 { Birth::Waiting(at(5000)) } else { Birth::Leased };
        let new = bench.fan_out(event, &[(webhooks[0], birth(0)), (webhooks[1], birth(1))]);
        bench.publish_new(new.clone()).await;
        for (webhook, delivery) in (0..).zip(&new.deliveries) {
            go(bench, delivery.id, webhooks[webhook as usize], way(webhook)).await;
        }
    }
    webhooks
}

async fn go(bench: &Bench, id: DeliveryId, webhook: WebhookId, way: i64) {
    let (next, category) = match way {
        2 => (Next::Delivered, None),
        3 => (Next::Retry { due: at(9000) }, Some(FailureCategory::Timeout)),
        4 => (Next::Dead { reason: DeadReason::Permanent }, Some(FailureCategory::ClientError)),
        5 => (Next::Dead { reason: DeadReason::Exhausted }, Some(FailureCategory::Timeout)),
        6 => (Next::Cancelled { reason: "enough".into() }, Some(FailureCategory::Network)),
        // Waiting from birth, or on its way.
        _ => return,
    };
    let mut outcome = Outcome { webhook, ..bench.outcome(id, 1, next, at(100)) };
    outcome.attempt.as_mut().unwrap().failure_category = category;
    assert_eq!(bench.record(outcome).await, Recorded::Done { config_version: None });
}

/// What a filter means, in plain words.
pub(super) fn wanted(delivery: &Delivery, filter: &DeliveryFilter) -> bool {
    let status = match filter.status {
        None => true,
        Some(StatusFilter::Is(DeliveryStatus::InFlight)) => {
            delivery.status == DeliveryStatus::Pending && delivery.due.is_none()
        }
        Some(StatusFilter::Is(status)) => delivery.status == status,
        Some(StatusFilter::Failed) => {
            delivery.failure_category.is_some() && delivery.status != DeliveryStatus::Delivered
        }
    };
    status
        && filter.webhook.is_none_or(|webhook| delivery.webhook == webhook)
        && filter.event.is_none_or(|event| delivery.event == event)
        && filter.event_type.as_ref().is_none_or(|event_type| delivery.event_type == *event_type)
        && filter.failure_category.is_none_or(|category| delivery.failure_category == Some(category))
        && filter.from.is_none_or(|from| delivery.event.time() >= from)
        && filter.to.is_none_or(|to| delivery.event.time() < to)
}

/// Filters of every kind, alone and together.
fn filters(webhooks: [WebhookId; 2], event: EventId) -> Vec<DeliveryFilter> {
    let none = DeliveryFilter::default;
    let mut filters = vec![none()];
    for status in DeliveryStatus::ALL.map(StatusFilter::Is).into_iter().chain([StatusFilter::Failed]) {
        filters.push(DeliveryFilter { status: Some(status), ..none() });
    }
    for category in FailureCategory::ALL {
        filters.push(DeliveryFilter { failure_category: Some(category), ..none() });
    }
    for event_type in ["order.created", "order.paid", "order", "order.*"] {
        filters.push(DeliveryFilter { event_type: Some(event_type.into()), ..none() });
    }
    for (from, to) in [(Some(9), None), (None, Some(9)), (Some(5), Some(20)), (Some(20), Some(5))] {
        filters.push(DeliveryFilter { from: from.map(at), to: to.map(at), ..none() });
    }
    filters.push(DeliveryFilter {
        status: Some(StatusFilter::Failed),
        failure_category: Some(FailureCategory::Timeout),
        event_type: Some("order.paid".into()),
        from: Some(at(3)),
        to: Some(at(25)),
        ..none()
    });
    let of_webhook = |webhook| filters.iter().map(move |filter| DeliveryFilter { webhook, ..filter.clone() });
    let filters: Vec<_> =
        [None, Some(webhooks[0]), Some(webhooks[1])].into_iter().flat_map(of_webhook).collect();
    let of_event = |event| filters.iter().map(move |filter| DeliveryFilter { event, ..filter.clone() });
    [None, Some(event)].into_iter().flat_map(of_event).collect()
}

async fn list(bench: &Bench, filter: DeliveryFilter) -> Vec<Delivery> {
    bench.store().list_deliveries(bench.tenant.clone(), filter, page(1000)).await.unwrap()
}

async fn list_dead(bench: &Bench, filter: DeliveryFilter) -> Vec<Delivery> {
    bench.store().list_dead(bench.tenant.clone(), filter, page(1000)).await.unwrap()
}

async fn list_events(bench: &Bench, filter: EventFilter) -> Vec<StoredEvent> {
    bench.store().list_events(bench.tenant.clone(), filter, page(1000)).await.unwrap()
}

fn of(all: &[Delivery], filter: &DeliveryFilter) -> Vec<Delivery> {
    all.iter().filter(|delivery| wanted(delivery, filter)).cloned().collect()
}

pub async fn every_filter_of_deliveries_holds(bench: &Arc<Bench>) {
    let webhooks = scene(bench).await;
    let all = list(bench, DeliveryFilter::default()).await;
    assert_eq!(all.len(), 2 * EVENTS as usize);
    for delivery in &all {
        assert_eq!(*delivery, bench.delivery(delivery.id).await, "listed as it is shown");
    }
    for filter in filters(webhooks, all[10].event) {
        assert_eq!(list(bench, filter.clone()).await, of(&all, &filter), "{filter:?}");
    }
}

pub async fn the_dead_are_filtered_in_the_same_way(bench: &Arc<Bench>) {
    let webhooks = scene(bench).await;
    let dead =
        DeliveryFilter { status: Some(StatusFilter::Is(DeliveryStatus::Dead)), ..DeliveryFilter::default() };
    let all = list(bench, dead).await;
    assert_eq!(all.len(), 16);
    for filter in filters(webhooks, all[3].event) {
        assert_eq!(list_dead(bench, filter.clone()).await, of(&all, &filter), "{filter:?}");
    }
    let gone = &all[3];
    let new_round = bench.delivery_id(gone.event.time());
    bench.retry(gone.id, bench.again(new_round), at(200)).await;
    let left: Vec<_> = all.iter().filter(|delivery| delivery.id != gone.id).cloned().collect();
    assert_eq!(list_dead(bench, DeliveryFilter::default()).await, left);
}

pub async fn every_filter_of_events_holds(bench: &Arc<Bench>) {
    scene(bench).await;
    let all = list_events(bench, EventFilter::default()).await;
    assert_eq!(all.len(), EVENTS as usize);
    assert!(all.is_sorted_by(|newer, older| newer.event.id > older.event.id));
    let texts =
        |texts: &[&'static str]| -> Vec<_> { texts.iter().copied().map(Some).chain([None]).collect() };
    for event_type in texts(&["order.created", "order.paid", "nothing"]) {
        for subject in texts(&["a", "b", "c", ""]) {
            for (from, to) in [(None, None), (Some(9), None), (None, Some(9)), (Some(5), Some(20))] {
                let (from, to) = (from.map(at), to.map(at));
                let matches = |stored: &&StoredEvent| {
                    let event = &stored.event;
                    event_type.is_none_or(|wanted| &*event.event_type == wanted)
                        && subject.is_none_or(|wanted| event.subject.as_deref() == Some(wanted))
                        && from.is_none_or(|from| event.timestamp >= from)
                        && to.is_none_or(|to| event.timestamp < to)
                };
                let expected: Vec<_> = all.iter().filter(matches).cloned().collect();
                let (event_type, subject) = (event_type.map(Into::into), subject.map(Into::into));
                let filter = EventFilter { event_type, subject, from, to };
                assert_eq!(list_events(bench, filter.clone()).await, expected, "{filter:?}");
            }
        }
    }
}

pub async fn other_tenants_see_nothing(bench: &Arc<Bench>) {
    let [webhook, _] = scene(bench).await;
    let all = list(bench, DeliveryFilter::default()).await;
    let (event, delivery) = (all[0].event, all[0].id);
    let other = bench.new_tenant("globex").await;
    for tenant in [other, TenantId::parse("nobody").unwrap()] {
        let store = bench.store();
        assert_eq!(store.event(tenant.clone(), event).await.unwrap(), None);
        assert_eq!(store.delivery(tenant.clone(), delivery).await.unwrap(), None);
        assert_eq!(store.attempts(tenant.clone(), delivery).await.unwrap(), None);
        assert_eq!(store.attempts_of_event(tenant.clone(), event).await.unwrap(), None);
        assert_eq!(store.list_events(tenant.clone(), EventFilter::default(), page(9)).await.unwrap(), []);
        let by_webhook = DeliveryFilter { webhook: Some(webhook), ..DeliveryFilter::default() };
        let by_event = DeliveryFilter { event: Some(event), ..DeliveryFilter::default() };
        let by_both = DeliveryFilter { webhook: Some(webhook), ..by_event.clone() };
        for filter in [DeliveryFilter::default(), by_webhook, by_event, by_both] {
            let listed = store.list_deliveries(tenant.clone(), filter.clone(), page(9)).await.unwrap();
            assert_eq!(listed, [], "{filter:?}");
            let dead = store.list_dead(tenant.clone(), filter.clone(), page(9)).await.unwrap();
            assert_eq!(dead, [], "{filter:?}");
        }
    }
}

pub async fn deliveries_are_paged_newest_event_first(bench: &Arc<Bench>) {
    let [webhook, _] = scene(bench).await;
    let everywhere = DeliveryFilter::default();
    let to_webhook = DeliveryFilter { webhook: Some(webhook), ..everywhere.clone() };
    for filter in [everywhere, to_webhook] {
        let all = list(bench, filter.clone()).await;
        assert!(all.is_sorted_by(|a, b| (a.event, a.id) > (b.event, b.id)));
        let after = all.get(4).map(|one| DeliveryCursor { event: one.event, delivery: one.id });
        for (after, offset, limit, expected) in [
            (None, 0, 5, &all[..5]),
            (None, 7, 5, &all[7..12]),
            (after, 0, 5, &all[5..10]),
            (after, 2, 5, &all[7..12]),
            (None, 1000, 5, &[]),
            (None, 0, 0, &[]),
        ] {
            let page = PageRequest { after, offset, limit };
            let listed = bench.store().list_deliveries(bench.tenant.clone(), filter.clone(), page).await;
            assert_eq!(listed.unwrap(), expected, "{page:?}");
        }
    }
}

/// Keeps adding events before, between and after those that are there, until it is told to end.
struct Noise {
    task: tokio::task::JoinHandle<()>,
    over: Arc<AtomicBool>,
}

impl Noise {
    fn start(bench: &Arc<Bench>) -> Self {
        let (bench, over) = (bench.clone(), Arc::new(AtomicBool::new(false)));
        let is_over = over.clone();
        let task = tokio::spawn(async move {
            for n in 0.. {
                if is_over.load(SeqCst) {
                    return;
                }
                let births = [(bench.webhook, Birth::Leased)];
                let new = bench.fan_out(bench.event(at(n * 13 % 80)), &births);
                let id = new.deliveries[0].id;
                bench.publish_new(new).await;
                bench.ends(id, Next::Dead { reason: DeadReason::Exhausted }, at(100)).await;
            }
        });
        Self { task, over }
    }

    async fn end(self) {
        self.over.store(true, SeqCst);
        self.task.await.unwrap();
    }
}

/// Walks a listing page by page while others write, and expects each of `there` exactly once.
async fn walk<C, K: Ord + std::fmt::Debug>(
    there: BTreeSet<K>,
    next: impl AsyncFn(PageRequest<C>) -> Vec<(K, C)>,
) {
    let mut seen: BTreeMap<K, u32> = BTreeMap::new();
    let mut after = None;
    loop {
        let listed = next(PageRequest { after, offset: 0, limit: 7 }).await;
        let full = listed.len() == 7;
        after = None;
        for (key, cursor) in listed {
            *seen.entry(key).or_default() += 1;
            after = Some(cursor);
        }
        if !full {
            break;
        }
    }
    let repeated: Vec<_> = seen.iter().filter(|(_, times)| **times != 1).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
    let skipped: Vec<_> = there.iter().filter(|key| !seen.contains_key(*key)).collect();
    assert!(skipped.is_empty(), "{skipped:?}");
}

async fn walk_deliveries(bench: &Arc<Bench>, filter: DeliveryFilter) {
    let there = list(bench, filter.clone()).await.iter().map(|delivery| delivery.id).collect();
    let noise = Noise::start(bench);
    walk(there, async |page| {
        let listed = bench.store().list_deliveries(bench.tenant.clone(), filter.clone(), page).await.unwrap();
        let cursor = |one: &Delivery| DeliveryCursor { event: one.event, delivery: one.id };
        listed.iter().map(|delivery| (delivery.id, cursor(delivery))).collect()
    })
    .await;
    noise.end().await;
}

pub async fn walking_deliveries_neither_skips_nor_repeats(bench: &Arc<Bench>) {
    scene(bench).await;
    walk_deliveries(bench, DeliveryFilter::default()).await;
}

pub async fn walking_a_webhooks_deliveries_neither_skips_nor_repeats(bench: &Arc<Bench>) {
    let [webhook, _] = scene(bench).await;
    walk_deliveries(bench, DeliveryFilter { webhook: Some(webhook), ..DeliveryFilter::default() }).await;
}

pub async fn walking_events_neither_skips_nor_repeats(bench: &Arc<Bench>) {
    scene(bench).await;
    let there = list_events(bench, EventFilter::default()).await.iter().map(|one| one.event.id).collect();
    let noise = Noise::start(bench);
    walk(there, async |page| {
        let listed =
            bench.store().list_events(bench.tenant.clone(), EventFilter::default(), page).await.unwrap();
        listed.iter().map(|stored| (stored.event.id, stored.event.id)).collect()
    })
    .await;
    noise.end().await;
}

pub async fn walking_the_dead_neither_skips_nor_repeats(bench: &Arc<Bench>) {
    scene(bench).await;
    let there = bench.dead_list().await.into_iter().collect();
    let noise = Noise::start(bench);
    walk(there, async |page| {
        let listed =
            bench.store().list_dead(bench.tenant.clone(), DeliveryFilter::default(), page).await.unwrap();
        listed.iter().map(|delivery| (delivery.id, delivery.id)).collect()
    })
    .await;
    noise.end().await;
}

fn numbered(attempts: &[StoredAttempt]) -> Vec<(DeliveryId, u32)> {
    attempts.iter().map(|stored| (stored.delivery, stored.attempt.number)).collect()
}

pub async fn attempts_are_listed_first_to_last(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    assert_eq!(bench.attempts(id).await, []);
    for number in 1..=12 {
        let outcome = bench.outcome(id, number, Next::Retry { due: at(0) }, at(1));
        bench.record(outcome).await;
        bench.claim_one(at(0)).await;
    }
    assert_eq!(numbered(&bench.attempts(id).await), (1..=12).map(|number| (id, number)).collect::<Vec<_>>());
    let unknown = bench.delivery_id(at(0));
    assert_eq!(bench.store().attempts(bench.tenant.clone(), unknown).await.unwrap(), None);
}

pub async fn attempts_of_an_event_are_listed_oldest_delivery_first(bench: &Arc<Bench>) {
    let (a, b) = (bench.webhook, bench.webhook_id());
    let new = bench.fan_out(bench.event(at(0)), &[(a, Birth::Leased), (b, Birth::Leased)]);
    bench.publish_new(new.clone()).await;
    let (of_a, of_b) = (new.deliveries[0].id, new.deliveries[1].id);
    let try_it = |webhook, id, number, next| async move {
        bench.record(Outcome { webhook, ..bench.outcome(id, number, next, at(1)) }).await;
    };
    try_it(a, of_a, 1, Next::Retry { due: at(0) }).await;
    bench.claim_one(at(0)).await;
    try_it(a, of_a, 2, Next::Delivered).await;
    let again = bench.delivery_id(at(0));
    bench.retry(of_a, bench.again(again), at(50)).await;
    bench.claim_one(at(50)).await;
    try_it(a, again, 1, Next::Delivered).await;
    try_it(b, of_b, 1, Next::Delivered).await;

    let attempts =
        bench.store().attempts_of_event(bench.tenant.clone(), new.event.id).await.unwrap().unwrap();
    assert_eq!(numbered(&attempts), [(of_a, 1), (of_a, 2), (of_b, 1), (again, 1)]);
    assert!(attempts.iter().all(|stored| stored.event == new.event.id));
    assert_eq!(attempts.iter().map(|stored| stored.webhook).collect::<Vec<_>>(), [a, a, b, a]);
    let unheard_of = bench.event(at(0)).id;
    assert_eq!(bench.store().attempts_of_event(bench.tenant.clone(), unheard_of).await.unwrap(), None);
}

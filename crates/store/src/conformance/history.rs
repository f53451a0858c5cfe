//! Looking back: every filter, every page, nothing skipped, nothing of somebody else's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, WebhookId,
    delivery::recovery::Recovery, event::Event,
};

use super::{Bench, at, page};
use crate::{
    Birth, CodeFilter, Delivery, DeliveryCursor, DeliveryFilter, EventFilter, Listed, Next, Outcome,
    PageRequest, Recorded, StatusFilter, StoreError, StoredAttempt, StoredEvent, access_path::DETOUR,
};

/// How many events a scene has, a millisecond apart.
const EVENTS: i64 = 28;
const TYPES: [&str; 2] = ["order.created", "order.paid"];
const SUBJECTS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

/// The key of the n-th event: most have none, and keys are used again when they have expired.
fn key_of(n: i64) -> Option<&'static str> {
    ["key-1", "key-2", "key-1"].get(n as usize % 10).copied()
}

fn subject_of(event: EventId) -> Option<&'static str> {
    SUBJECTS[place_of(event).unsigned_abs() as usize % 3]
}

/// Which event of a scene this is.
fn place_of(event: EventId) -> i64 {
    event.time().millis() - at(0).millis()
}

/// Events to two webhooks, whose deliveries have gone every way that a delivery can go.
async fn scene(bench: &Bench) -> [WebhookId; 2] {
    let webhooks = [bench.webhook, bench.webhook_id()];
    for n in 0..EVENTS {
        let event = Event {
            event_type: TYPES[n as usize % 2].into(),
            subject: SUBJECTS[n as usize % 3].map(Into::into),
            idempotency_key: key_of(n).map(Into::into),
            source: SUBJECTS[n as usize / 2 % 3].map(Into::into),
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
    let attempt = outcome.attempt.as_mut().unwrap();
    attempt.failure_category = category;
    attempt.http_status_code = match (way, webhook == bench.webhook) {
        (2, true) => Some(200),
        (2, false) => Some(204),
        (4, _) => Some(422),
        (6, true) => Some(503),
        _ => None,
    };
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
    let reason_and_kind = |reason| (reason, delivery.failure_category);
    let recoverable =
        delivery.dead_reason.map(reason_and_kind).map(|(why, kind)| Recovery::is_likely(why, kind));
    status
        && among(&filter.webhooks, Some(&delivery.webhook))
        && filter.event.is_none_or(|event| delivery.event == event)
        && filter.subject.as_deref().is_none_or(|wanted| subject_of(delivery.event) == Some(wanted))
        && filter.idempotency_key.as_deref().is_none_or(|key| {
            key_of(place_of(delivery.event)).map_or(key == delivery.event.to_string(), |own| key == own)
        })
        && among(&filter.event_types, Some(&delivery.event_type))
        && among(&filter.failure_categories, delivery.failure_category.as_ref())
        && among(&filter.dead_reasons, delivery.dead_reason.as_ref())
        && (filter.recoverable.is_none() || recoverable == filter.recoverable)
        && filter.status_code.is_none_or(|code| {
            let (first, last) = code.range();
            delivery.last_status_code.is_some_and(|code| (first..=last).contains(&code))
        })
        && filter.from.is_none_or(|from| delivery.event.time() >= from)
        && filter.to.is_none_or(|to| delivery.event.time() < to)
}

fn among<T: PartialEq>(wanted: &[T], value: Option<&T>) -> bool {
    wanted.is_empty() || value.is_some_and(|value| wanted.contains(value))
}

/// Filters of every kind, alone and together.
fn filters(webhooks: [WebhookId; 2], event: EventId) -> Vec<DeliveryFilter> {
    let none = DeliveryFilter::default;
    let mut filters = vec![none()];
    for status in DeliveryStatus::ALL.map(StatusFilter::Is).into_iter().chain([StatusFilter::Failed]) {
        filters.push(DeliveryFilter { status: Some(status), ..none() });
    }
    for category in FailureCategory::ALL {
        filters.push(DeliveryFilter { failure_categories: vec![category], ..none() });
    }
    filters.push(DeliveryFilter {
        failure_categories: vec![FailureCategory::Network, FailureCategory::Timeout, FailureCategory::Dns],
        ..none()
    });
    for event_types in
        [&["order.created"][..], &["order.paid"], &["order.paid", "order.created"], &["order.paid", "x\0"]]
    {
        let event_types = event_types.iter().copied().map(Into::into).collect();
        filters.push(DeliveryFilter { event_types, ..none() });
    }
    for (from, to) in [(Some(9), None), (None, Some(9)), (Some(5), Some(20)), (Some(20), Some(5))] {
        filters.push(DeliveryFilter { from: from.map(at), to: to.map(at), ..none() });
    }
    for code in [
        CodeFilter::Is(200),
        CodeFilter::Is(422),
        CodeFilter::Is(500),
        CodeFilter::Class(2),
        CodeFilter::Class(5),
    ] {
        filters.push(DeliveryFilter { status_code: Some(code), ..none() });
    }
    for reasons in [
        &[DeadReason::Permanent][..],
        &[DeadReason::Permanent, DeadReason::Exhausted],
        &[DeadReason::Expired],
    ] {
        filters.push(DeliveryFilter { dead_reasons: reasons.to_vec(), ..none() });
    }
    for recoverable in [true, false] {
        filters.push(DeliveryFilter { recoverable: Some(recoverable), ..none() });
    }
    filters.push(DeliveryFilter {
        status: Some(StatusFilter::Failed),
        failure_categories: vec![FailureCategory::Timeout],
        event_types: vec!["order.paid".into()],
        from: Some(at(3)),
        to: Some(at(25)),
        ..none()
    });
    let of_webhooks = |webhooks: &[WebhookId]| -> Vec<_> {
        let of = |filter: &DeliveryFilter| DeliveryFilter { webhooks: webhooks.to_vec(), ..filter.clone() };
        filters.iter().map(of).collect()
    };
    let filters =
        [of_webhooks(&[]), of_webhooks(&webhooks[..1]), of_webhooks(&webhooks[1..]), of_webhooks(&webhooks)]
            .concat();
    let of_events = [
        none(),
        DeliveryFilter { event: Some(event), ..none() },
        DeliveryFilter { subject: Some("b".into()), ..none() },
        DeliveryFilter { idempotency_key: Some("key-1".into()), ..none() },
        // An event without a key is known by its id.
        DeliveryFilter { idempotency_key: Some(event.to_string()), ..none() },
        DeliveryFilter { idempotency_key: Some("key-1".into()), subject: Some("b".into()), ..none() },
    ];
    let with = |of_event: &DeliveryFilter, filter: &DeliveryFilter| DeliveryFilter {
        event: of_event.event,
        subject: of_event.subject.clone(),
        idempotency_key: of_event.idempotency_key.clone(),
        ..filter.clone()
    };
    of_events.iter().flat_map(|of_event| filters.iter().map(|filter| with(of_event, filter))).collect()
}

async fn list(bench: &Bench, filter: DeliveryFilter) -> Vec<Delivery> {
    bench.store().list_deliveries(bench.tenant.clone(), filter, page(1000)).await.unwrap().found
}

async fn list_dead(bench: &Bench, filter: DeliveryFilter) -> Vec<Delivery> {
    bench.store().list_dead(bench.tenant.clone(), filter, page(1000)).await.unwrap().found
}

async fn list_events(bench: &Bench, filter: EventFilter) -> Vec<StoredEvent> {
    bench.store().list_events(bench.tenant.clone(), filter, page(1000)).await.unwrap().found
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
    let texts = |texts: &[&'static str]| -> Vec<Option<String>> {
        texts.iter().map(|text| Some((*text).to_owned())).chain([None]).collect()
    };
    let mut filters = Vec::new();
    for event_types in [&[][..], &["order.created"], &["order.created", "order.paid"], &["nothing"]] {
        for subject in texts(&["a", "b", "c", ""]) {
            for (from, to) in [(None, None), (Some(9), None), (None, Some(9)), (Some(5), Some(20))] {
                filters.push(EventFilter {
                    event_types: event_types.iter().copied().map(Into::into).collect(),
                    subject: subject.clone(),
                    from: from.map(at),
                    to: to.map(at),
                    ..EventFilter::default()
                });
            }
        }
    }
    let mut more = Vec::new();
    let own = [all[3].event.id.to_string(), all[7].event.id.to_string()];
    for idempotency_key in texts(&["key-1", "key-3"]).into_iter().chain(own.map(Some)) {
        for source in texts(&["a", "x"]) {
            for id in [None, Some(all[7].event.id)] {
                let extra = (idempotency_key.clone(), source.clone(), id);
                more.extend(filters.iter().step_by(7).map(|filter| {
                    let (idempotency_key, source, id) = extra.clone();
                    EventFilter { idempotency_key, source, id, ..filter.clone() }
                }));
            }
        }
    }
    filters.extend(more);
    filters.push(EventFilter { subject: Some("a\0".into()), ..EventFilter::default() });
    for filter in filters {
        let expected: Vec<_> =
            all.iter().filter(|stored| event_wanted(&stored.event, &filter)).cloned().collect();
        assert_eq!(list_events(bench, filter.clone()).await, expected, "{filter:?}");
    }
}

fn event_wanted(event: &Event, filter: &EventFilter) -> bool {
    among(&filter.event_types, Some(&event.event_type.to_string()))
        && filter.id.is_none_or(|id| event.id == id)
        && filter.subject.as_deref().is_none_or(|wanted| event.subject.as_deref() == Some(wanted))
        && filter.source.as_deref().is_none_or(|wanted| event.source.as_deref() == Some(wanted))
        && filter.idempotency_key.as_deref().is_none_or(|key| event.key() == key)
        && filter.from.is_none_or(|from| event.timestamp >= from)
        && filter.to.is_none_or(|to| event.timestamp < to)
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
        assert_eq!(
            store.list_events(tenant.clone(), EventFilter::default(), page(9)).await.unwrap().found,
            []
        );
        let by_webhook = DeliveryFilter { webhooks: vec![webhook], ..DeliveryFilter::default() };
        let by_event = DeliveryFilter { event: Some(event), ..DeliveryFilter::default() };
        let by_both = DeliveryFilter { webhooks: vec![webhook], ..by_event.clone() };
        for filter in [DeliveryFilter::default(), by_webhook, by_event, by_both] {
            let nothing = Listed { found: Vec::new(), stopped: None };
            let listed = store.list_deliveries(tenant.clone(), filter.clone(), page(9)).await.unwrap();
            assert_eq!(listed, nothing, "{filter:?}");
            let dead = store.list_dead(tenant.clone(), filter.clone(), page(9)).await.unwrap();
            assert_eq!(dead, nothing, "{filter:?}");
        }
    }
}

pub async fn deliveries_are_paged_newest_event_first(bench: &Arc<Bench>) {
    let [webhook, _] = scene(bench).await;
    let everywhere = DeliveryFilter::default();
    let to_webhook = DeliveryFilter { webhooks: vec![webhook], ..everywhere.clone() };
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
            assert_eq!(listed.unwrap().found, expected, "{page:?}");
        }
    }
}

/// Keeps adding events before, between and after those that are there, until it is told to end. Their deliveries
/// die; some are redriven, and leave the dead letters again; some are called off.
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
                if n % 2 == 0 {
                    let again = bench.delivery_id(id.time());
                    bench.retry(id, bench.again(again), at(200)).await;
                    if n % 4 == 0 {
                        bench.cancel(again, at(300)).await;
                    }
                }
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
async fn walk<C: Copy, K: Ord + std::fmt::Debug>(
    there: BTreeSet<K>,
    next: impl AsyncFn(PageRequest<C>) -> Listed<(K, C), C>,
) {
    let mut seen: BTreeMap<K, u32> = BTreeMap::new();
    let mut after = None;
    loop {
        let listed = next(PageRequest { after, offset: 0, limit: 7 }).await;
        let last = listed.found.last().map(|(_, cursor)| *cursor).filter(|_| listed.found.len() == 7);
        after = listed.stopped.or(last);
        for (key, _) in listed.found {
            *seen.entry(key).or_default() += 1;
        }
        if after.is_none() {
            break;
        }
    }
    let repeated: Vec<_> = seen.iter().filter(|(_, times)| **times != 1).collect();
    assert!(repeated.is_empty(), "{repeated:?}");
    let skipped: Vec<_> = there.iter().filter(|key| !seen.contains_key(*key)).collect();
    assert!(skipped.is_empty(), "{skipped:?}");
}

fn cursor_of(delivery: &Delivery) -> DeliveryCursor {
    DeliveryCursor { event: delivery.event, delivery: delivery.id }
}

async fn walk_deliveries(bench: &Arc<Bench>, filter: DeliveryFilter) {
    let there = list(bench, filter.clone()).await.iter().map(|delivery| delivery.id).collect();
    let noise = Noise::start(bench);
    walk(there, async |page| {
        let listed = bench.store().list_deliveries(bench.tenant.clone(), filter.clone(), page).await.unwrap();
        listed.map(|delivery| (delivery.id, cursor_of(&delivery)))
    })
    .await;
    noise.end().await;
}

async fn walk_dead(bench: &Arc<Bench>, filter: DeliveryFilter) {
    let there = list_dead(bench, filter.clone()).await.iter().map(|delivery| delivery.id).collect();
    let noise = Noise::start(bench);
    walk(there, async |page| {
        let listed = bench.store().list_dead(bench.tenant.clone(), filter.clone(), page).await.unwrap();
        listed.map(|delivery| (delivery.id, cursor_of(&delivery)))
    })
    .await;
    noise.end().await;
}

/// Filters that lead in every way there is to a good part of a scene, and for which nothing of it changes.
fn walked(webhooks: [WebhookId; 2]) -> Vec<DeliveryFilter> {
    let none = DeliveryFilter::default;
    let is = |status| Some(StatusFilter::Is(status));
    vec![
        none(),
        DeliveryFilter { webhooks: webhooks[..1].to_vec(), ..none() },
        DeliveryFilter { webhooks: webhooks.to_vec(), ..none() },
        DeliveryFilter { webhooks: webhooks.to_vec(), status: Some(StatusFilter::Failed), ..none() },
        DeliveryFilter { status: is(DeliveryStatus::Dead), ..none() },
        DeliveryFilter { status: is(DeliveryStatus::Delivered), ..none() },
        DeliveryFilter { status: is(DeliveryStatus::Pending), ..none() },
        DeliveryFilter { failure_categories: FailureCategory::ALL.to_vec(), ..none() },
        DeliveryFilter { event_types: TYPES.map(Into::into).to_vec(), ..none() },
        DeliveryFilter { subject: Some("a".into()), ..none() },
        DeliveryFilter { idempotency_key: Some("key-1".into()), ..none() },
        DeliveryFilter { status_code: Some(CodeFilter::Is(422)), ..none() },
        DeliveryFilter { recoverable: Some(true), from: Some(at(3)), to: Some(at(25)), ..none() },
    ]
}

pub async fn walking_deliveries_neither_skips_nor_repeats(bench: &Arc<Bench>) {
    let webhooks = scene(bench).await;
    for filter in walked(webhooks) {
        walk_deliveries(bench, filter).await;
    }
}

pub async fn walking_the_dead_neither_skips_nor_repeats(bench: &Arc<Bench>) {
    let webhooks = scene(bench).await;
    for filter in walked(webhooks) {
        walk_dead(bench, filter).await;
    }
}

pub async fn walking_events_neither_skips_nor_repeats(bench: &Arc<Bench>) {
    scene(bench).await;
    let none = EventFilter::default;
    for filter in [
        none(),
        EventFilter { event_types: TYPES.map(Into::into).to_vec(), ..none() },
        EventFilter { subject: Some("a".into()), ..none() },
        EventFilter { source: Some("b".into()), ..none() },
    ] {
        let there = list_events(bench, filter.clone()).await.iter().map(|one| one.event.id).collect();
        let noise = Noise::start(bench);
        walk(there, async |page| {
            let listed = bench.store().list_events(bench.tenant.clone(), filter.clone(), page).await.unwrap();
            listed.map(|stored| (stored.event.id, stored.event.id))
        })
        .await;
        noise.end().await;
    }
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

/// More events than a page may cost, of which the very oldest is wanted.
pub async fn what_is_rare_is_found_in_pages_that_end(bench: &Arc<Bench>) {
    bench.leave_undrained();
    let many = 2 * DETOUR as i64 + 500;
    let rare = Event { event_type: "rare".into(), source: Some("nowhere".into()), ..bench.event(at(0)) };
    let rare = bench.fan_out(rare, &[(bench.webhook, Birth::Leased)]);
    let id = rare.deliveries[0].id;
    bench.publish_new(rare).await;
    for start in (1..many).step_by(500) {
        let events = (start..(start + 500).min(many))
            .map(|n| bench.submit(bench.fan_out(bench.event(at(n)), &[(bench.webhook, Birth::Leased)])));
        for answer in events.collect::<Vec<_>>() {
            answer.await.unwrap().unwrap();
        }
    }
    let webhooks = vec![bench.webhook];
    for webhooks in [Vec::new(), webhooks] {
        let filter =
            DeliveryFilter { webhooks, event_types: vec!["rare".into()], ..DeliveryFilter::default() };
        let (mut pages, mut after, mut found) = (0, None, Vec::new());
        loop {
            pages += 1;
            let page = PageRequest { after, offset: 0, limit: 5 };
            let listed =
                bench.store().list_deliveries(bench.tenant.clone(), filter.clone(), page).await.unwrap();
            found.extend(listed.found.iter().map(|one| one.id));
            after = listed.stopped;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((pages, found), (3, vec![id]), "{filter:?}");
        // Nobody knows what to leave out before it was found.
        let page = PageRequest { after: None, offset: 3, limit: 5 };
        let refused = bench.store().list_deliveries(bench.tenant.clone(), filter, page).await;
        assert_eq!(refused.unwrap_err(), StoreError::OffsetTooFar);
    }
    let filter = EventFilter { source: Some("nowhere".into()), ..EventFilter::default() };
    let first = bench.store().list_events(bench.tenant.clone(), filter.clone(), page(5)).await.unwrap();
    assert_eq!((first.found.len(), first.stopped.is_some()), (0, true));
}

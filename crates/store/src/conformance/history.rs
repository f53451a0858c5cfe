//! Listings of events, deliveries and attempts: filters, pages without gaps or repeats, tenant isolation.

use redrive_core::delivery::outcome::Outcome;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, WebhookId,
    delivery::{code_filter::CodeFilter, recovery::Recoverability},
    event::Event,
};

use super::{Harness, at, page};
use crate::{
    Delivery, DeliveryCursor, DeliveryFilter, EventFilter, InitialState, ListingPage, OutcomeRecord,
    PageRequest, RecordResult, StatusFilter, StoreError, StoredAttempt, StoredEvent,
    access_path::MAX_SKIPPED_ROWS,
};

/// Number of events in the sample, one millisecond apart.
const EVENTS: i64 = 28;
const TYPES: [&str; 2] = ["order.created", "order.paid"];
const SUBJECTS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

/// Returns the idempotency key of the n-th event: most have none, and expired keys are reused.
fn key_of(n: i64) -> Option<&'static str> {
    ["key-1", "key-2", "key-1"].get(n as usize % 10).copied()
}

fn subject_of(event_id: EventId) -> Option<&'static str> {
    SUBJECTS[position_of(event_id).unsigned_abs() as usize % 3]
}

/// Returns the index of an event in the sample.
fn position_of(event_id: EventId) -> i64 {
    event_id.time().millis() - at(0).millis()
}

/// Publishes events to two webhooks, with deliveries in every state.
pub(super) async fn publish_samples(harness: &Harness) -> [WebhookId; 2] {
    let webhooks = [harness.webhook_id, harness.webhook_id()];
    for n in 0..EVENTS {
        let event = Event {
            event_type: TYPES[n as usize % 2].into(),
            subject: SUBJECTS[n as usize % 3].map(Into::into),
            idempotency_key: key_of(n).map(Into::into),
            source: SUBJECTS[n as usize / 2 % 3].map(Into::into),
            ..harness.event(at(n))
        };
        let variant = |webhook: i64| (n + 3 * webhook) % 7;
        let initial_state = |webhook| {
            if variant(webhook) == 0 { InitialState::Waiting(at(5000)) } else { InitialState::Leased }
        };
        let new = harness.fan_out(event, &[(webhooks[0], initial_state(0)), (webhooks[1], initial_state(1))]);
        harness.publish_new(new.clone()).await;
        for (webhook, delivery) in (0..).zip(&new.deliveries) {
            apply_outcomes(harness, delivery.id, webhooks[webhook as usize], variant(webhook)).await;
        }
    }
    webhooks
}

async fn apply_outcomes(harness: &Harness, id: DeliveryId, webhook_id: WebhookId, variant: i64) {
    let (next, category) = match variant {
        2 => (Outcome::Delivered, None),
        3 => (Outcome::Retry { at: at(9000) }, Some(FailureCategory::Timeout)),
        4 => (Outcome::Dead(DeadReason::Permanent), Some(FailureCategory::ClientError)),
        5 => (Outcome::Dead(DeadReason::Exhausted), Some(FailureCategory::Timeout)),
        6 => (Outcome::Cancelled("enough".into()), Some(FailureCategory::Network)),
        // Waiting since it was created, or leased.
        _ => return,
    };
    let mut outcome = OutcomeRecord { webhook_id, ..harness.outcome(id, 1, next, at(100)) };
    let attempt = outcome.attempt.as_mut().unwrap();
    attempt.failure_category = category;
    attempt.http_status_code = match (variant, webhook_id == harness.webhook_id) {
        (2, true) => Some(200),
        (2, false) => Some(204),
        (4, _) => Some(422),
        (6, true) => Some(503),
        _ => None,
    };
    assert_eq!(harness.record(outcome).await, RecordResult::Recorded { config_version: None });
}

/// Returns whether a delivery matches a filter: the reference implementation of every filter.
pub(super) fn wanted(delivery: &Delivery, filter: &DeliveryFilter) -> bool {
    matches_without_event(delivery, filter)
        && filter.event_id.is_none_or(|event_id| delivery.event_id == event_id)
        && filter.subject.as_deref().is_none_or(|wanted| subject_of(delivery.event_id) == Some(wanted))
        && filter.idempotency_key.as_deref().is_none_or(|key| {
            key_of(position_of(delivery.event_id))
                .map_or(key == delivery.event_id.to_string(), |own| key == own)
        })
}

/// Returns whether a delivery matches a filter that names no event, key or subject.
pub(super) fn matches_without_event(delivery: &Delivery, filter: &DeliveryFilter) -> bool {
    let status = match filter.status {
        None => true,
        Some(StatusFilter::Exactly(DeliveryStatus::InFlight)) => {
            delivery.status == DeliveryStatus::Pending && delivery.due.is_none()
        }
        Some(StatusFilter::Exactly(status)) => delivery.status == status,
        Some(StatusFilter::Failed) => {
            delivery.failure_category.is_some() && delivery.status != DeliveryStatus::Delivered
        }
    };
    let reason_and_kind = |reason| (reason, delivery.failure_category);
    let recoverable =
        delivery.dead_reason.map(reason_and_kind).map(|(why, kind)| Recoverability::is_likely(why, kind));
    status
        && among(&filter.webhooks, Some(&delivery.webhook_id))
        && among(&filter.event_types, Some(&delivery.event_type))
        && among(&filter.failure_categories, delivery.failure_category.as_ref())
        && among(&filter.dead_reasons, delivery.dead_reason.as_ref())
        && (filter.recoverable.is_none() || recoverable == filter.recoverable)
        && filter.status_code.is_none_or(|code| {
            let (first, last) = code.range();
            delivery.last_status_code.is_some_and(|code| (first..=last).contains(&code))
        })
        && filter.from.is_none_or(|from| delivery.event_id.time() >= from)
        && filter.to.is_none_or(|to| delivery.event_id.time() < to)
}

fn among<T: PartialEq>(wanted: &[T], value: Option<&T>) -> bool {
    wanted.is_empty() || value.is_some_and(|value| wanted.contains(value))
}

/// Returns filters of every kind, alone and combined.
fn filters(webhooks: [WebhookId; 2], event_id: EventId) -> Vec<DeliveryFilter> {
    let none = DeliveryFilter::default;
    let mut filters = vec![none()];
    for status in DeliveryStatus::ALL.map(StatusFilter::Exactly).into_iter().chain([StatusFilter::Failed]) {
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
        CodeFilter::Exactly(200),
        CodeFilter::Exactly(422),
        CodeFilter::Exactly(500),
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
        DeliveryFilter { event_id: Some(event_id), ..none() },
        DeliveryFilter { subject: Some("b".into()), ..none() },
        DeliveryFilter { idempotency_key: Some("key-1".into()), ..none() },
        // The effective key of an event without a key is its id.
        DeliveryFilter { idempotency_key: Some(event_id.to_string()), ..none() },
        DeliveryFilter { idempotency_key: Some("key-1".into()), subject: Some("b".into()), ..none() },
    ];
    let with = |of_event: &DeliveryFilter, filter: &DeliveryFilter| DeliveryFilter {
        event_id: of_event.event_id,
        subject: of_event.subject.clone(),
        idempotency_key: of_event.idempotency_key.clone(),
        ..filter.clone()
    };
    of_events.iter().flat_map(|of_event| filters.iter().map(|filter| with(of_event, filter))).collect()
}

async fn list(harness: &Harness, filter: DeliveryFilter) -> Vec<Delivery> {
    harness.store().list_deliveries(harness.tenant_id.clone(), filter, page(1000)).await.unwrap().found
}

async fn list_dead(harness: &Harness, filter: DeliveryFilter) -> Vec<Delivery> {
    harness.store().list_dead(harness.tenant_id.clone(), filter, page(1000)).await.unwrap().found
}

async fn list_events(harness: &Harness, filter: EventFilter) -> Vec<StoredEvent> {
    harness.store().list_events(harness.tenant_id.clone(), filter, page(1000)).await.unwrap().found
}

fn filtered(all: &[Delivery], filter: &DeliveryFilter) -> Vec<Delivery> {
    all.iter().filter(|delivery| wanted(delivery, filter)).cloned().collect()
}

pub async fn every_delivery_filter_matches_the_reference(harness: &Arc<Harness>) {
    let webhooks = publish_samples(harness).await;
    let all = list(harness, DeliveryFilter::default()).await;
    assert_eq!(all.len(), 2 * EVENTS as usize);
    for delivery in &all {
        assert_eq!(
            *delivery,
            harness.delivery(delivery.id).await,
            "the listing and the lookup return the same delivery"
        );
    }
    for filter in filters(webhooks, all[10].event_id) {
        assert_eq!(list(harness, filter.clone()).await, filtered(&all, &filter), "{filter:?}");
    }
}

pub async fn dead_letter_filters_match_the_reference(harness: &Arc<Harness>) {
    let webhooks = publish_samples(harness).await;
    let dead = DeliveryFilter {
        status: Some(StatusFilter::Exactly(DeliveryStatus::Dead)),
        ..DeliveryFilter::default()
    };
    let all = list(harness, dead).await;
    assert_eq!(all.len(), 16);
    for filter in filters(webhooks, all[3].event_id) {
        assert_eq!(list_dead(harness, filter.clone()).await, filtered(&all, &filter), "{filter:?}");
    }
    let gone = &all[3];
    let new_round = harness.delivery_id(gone.event_id.time());
    harness.retry(gone.id, harness.redrive_options(new_round), at(200)).await;
    let left: Vec<_> = all.iter().filter(|delivery| delivery.id != gone.id).cloned().collect();
    assert_eq!(list_dead(harness, DeliveryFilter::default()).await, left);
}

pub async fn every_event_filter_matches_the_reference(harness: &Arc<Harness>) {
    publish_samples(harness).await;
    let all = list_events(harness, EventFilter::default()).await;
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
        assert_eq!(list_events(harness, filter.clone()).await, expected, "{filter:?}");
    }
}

fn event_wanted(event: &Event, filter: &EventFilter) -> bool {
    among(&filter.event_types, Some(&event.event_type.to_string()))
        && filter.id.is_none_or(|id| event.id == id)
        && filter.subject.as_deref().is_none_or(|wanted| event.subject.as_deref() == Some(wanted))
        && filter.source.as_deref().is_none_or(|wanted| event.source.as_deref() == Some(wanted))
        && filter.idempotency_key.as_deref().is_none_or(|key| event.effective_key() == key)
        && filter.from.is_none_or(|from| event.timestamp >= from)
        && filter.to.is_none_or(|to| event.timestamp < to)
}

pub async fn listings_are_isolated_by_tenant(harness: &Arc<Harness>) {
    let [webhook_id, _] = publish_samples(harness).await;
    let all = list(harness, DeliveryFilter::default()).await;
    let (event_id, delivery_id) = (all[0].event_id, all[0].id);
    let other = harness.new_tenant("globex").await;
    for tenant_id in [other, TenantId::parse("unknown").unwrap()] {
        let store = harness.store();
        assert_eq!(store.event(tenant_id.clone(), event_id).await.unwrap(), None);
        assert_eq!(store.delivery(tenant_id.clone(), delivery_id).await.unwrap(), None);
        assert_eq!(store.attempts(tenant_id.clone(), delivery_id).await.unwrap(), None);
        assert_eq!(store.attempts_of_event(tenant_id.clone(), event_id).await.unwrap(), None);
        assert_eq!(
            store.list_events(tenant_id.clone(), EventFilter::default(), page(9)).await.unwrap().found,
            []
        );
        let by_webhook = DeliveryFilter { webhooks: vec![webhook_id], ..DeliveryFilter::default() };
        let by_event = DeliveryFilter { event_id: Some(event_id), ..DeliveryFilter::default() };
        let by_both = DeliveryFilter { webhooks: vec![webhook_id], ..by_event.clone() };
        for filter in [DeliveryFilter::default(), by_webhook, by_event, by_both] {
            let nothing = ListingPage { found: Vec::new(), stopped: None };
            let listed = store.list_deliveries(tenant_id.clone(), filter.clone(), page(9)).await.unwrap();
            assert_eq!(listed, nothing, "{filter:?}");
            let dead = store.list_dead(tenant_id.clone(), filter.clone(), page(9)).await.unwrap();
            assert_eq!(dead, nothing, "{filter:?}");
        }
    }
}

pub async fn deliveries_are_paged_newest_event_first(harness: &Arc<Harness>) {
    let [webhook_id, _] = publish_samples(harness).await;
    let everywhere = DeliveryFilter::default();
    let to_webhook = DeliveryFilter { webhooks: vec![webhook_id], ..everywhere.clone() };
    for filter in [everywhere, to_webhook] {
        let all = list(harness, filter.clone()).await;
        assert!(all.is_sorted_by(|a, b| (a.event_id, a.id) > (b.event_id, b.id)));
        let after = all.get(4).map(|one| DeliveryCursor { event_id: one.event_id, delivery_id: one.id });
        for (after, offset, limit, expected) in [
            (None, 0, 5, &all[..5]),
            (None, 7, 5, &all[7..12]),
            (after, 0, 5, &all[5..10]),
            (after, 2, 5, &all[7..12]),
            (None, 1000, 5, &[]),
            (None, 0, 0, &[]),
        ] {
            let page = PageRequest { after, offset, limit };
            let listed =
                harness.store().list_deliveries(harness.tenant_id.clone(), filter.clone(), page).await;
            assert_eq!(listed.unwrap().found, expected, "{page:?}");
        }
    }
}

/// A task that adds events before, between and after the existing ones until it is stopped. Their deliveries die;
/// some are redriven, which removes them from the dead letters, and some of those are cancelled.
pub(super) struct Noise {
    task: tokio::task::JoinHandle<()>,
    over: Arc<AtomicBool>,
}

impl Noise {
    pub(super) fn start(harness: &Arc<Harness>) -> Self {
        let (harness, over) = (harness.clone(), Arc::new(AtomicBool::new(false)));
        let is_over = over.clone();
        let task = tokio::spawn(async move {
            for n in 0.. {
                if is_over.load(SeqCst) {
                    return;
                }
                let initial_states = [(harness.webhook_id, InitialState::Leased)];
                let new = harness.fan_out(harness.event(at(n * 13 % 80)), &initial_states);
                let id = new.deliveries[0].id;
                harness.publish_new(new).await;
                harness.ends(id, Outcome::Dead(DeadReason::Exhausted), at(100)).await;
                if n % 2 == 0 {
                    let again = harness.delivery_id(id.time());
                    harness.retry(id, harness.redrive_options(again), at(200)).await;
                    if n % 4 == 0 {
                        harness.cancel(again, at(300)).await;
                    }
                }
            }
        });
        Self { task, over }
    }

    pub(super) async fn end(self) {
        self.over.store(true, SeqCst);
        self.task.await.unwrap();
    }
}

/// Reads a listing page by page during concurrent writes, and expects each of `there` exactly once.
pub(super) async fn walk<C: Copy, K: Ord + std::fmt::Debug>(
    there: BTreeSet<K>,
    next: impl AsyncFn(PageRequest<C>) -> ListingPage<(K, C), C>,
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
    DeliveryCursor { event_id: delivery.event_id, delivery_id: delivery.id }
}

async fn walk_deliveries(harness: &Arc<Harness>, filter: DeliveryFilter) {
    let there = list(harness, filter.clone()).await.iter().map(|delivery| delivery.id).collect();
    let noise = Noise::start(harness);
    walk(there, async |page| {
        let listed =
            harness.store().list_deliveries(harness.tenant_id.clone(), filter.clone(), page).await.unwrap();
        listed.map(|delivery| (delivery.id, cursor_of(&delivery)))
    })
    .await;
    noise.end().await;
}

async fn walk_dead(harness: &Arc<Harness>, filter: DeliveryFilter) {
    let there = list_dead(harness, filter.clone()).await.iter().map(|delivery| delivery.id).collect();
    let noise = Noise::start(harness);
    walk(there, async |page| {
        let listed =
            harness.store().list_dead(harness.tenant_id.clone(), filter.clone(), page).await.unwrap();
        listed.map(|delivery| (delivery.id, cursor_of(&delivery)))
    })
    .await;
    noise.end().await;
}

/// Returns filters that use every access path, match much of the sample, and whose matches in the sample never change.
fn paging_filters(webhooks: [WebhookId; 2]) -> Vec<DeliveryFilter> {
    let none = DeliveryFilter::default;
    let is = |status| Some(StatusFilter::Exactly(status));
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
        DeliveryFilter { status_code: Some(CodeFilter::Exactly(422)), ..none() },
        DeliveryFilter { recoverable: Some(true), from: Some(at(3)), to: Some(at(25)), ..none() },
    ]
}

pub async fn paging_deliveries_neither_skips_nor_repeats(harness: &Arc<Harness>) {
    let webhooks = publish_samples(harness).await;
    for filter in paging_filters(webhooks) {
        walk_deliveries(harness, filter).await;
    }
}

pub async fn paging_dead_letters_neither_skips_nor_repeats(harness: &Arc<Harness>) {
    let webhooks = publish_samples(harness).await;
    for filter in paging_filters(webhooks) {
        walk_dead(harness, filter).await;
    }
}

pub async fn paging_events_neither_skips_nor_repeats(harness: &Arc<Harness>) {
    publish_samples(harness).await;
    let none = EventFilter::default;
    for filter in [
        none(),
        EventFilter { event_types: TYPES.map(Into::into).to_vec(), ..none() },
        EventFilter { subject: Some("a".into()), ..none() },
        EventFilter { source: Some("b".into()), ..none() },
    ] {
        let there = list_events(harness, filter.clone()).await.iter().map(|one| one.event.id).collect();
        let noise = Noise::start(harness);
        walk(there, async |page| {
            let listed =
                harness.store().list_events(harness.tenant_id.clone(), filter.clone(), page).await.unwrap();
            listed.map(|stored| (stored.event.id, stored.event.id))
        })
        .await;
        noise.end().await;
    }
}

fn numbered(attempts: &[StoredAttempt]) -> Vec<(DeliveryId, u32)> {
    attempts.iter().map(|stored| (stored.delivery_id, stored.attempt.number)).collect()
}

pub async fn attempts_are_listed_first_to_last(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    assert_eq!(harness.attempts(id).await, []);
    for number in 1..=12 {
        let outcome = harness.outcome(id, number, Outcome::Retry { at: at(0) }, at(1));
        harness.record(outcome).await;
        harness.claim_one(at(0)).await;
    }
    assert_eq!(
        numbered(&harness.attempts(id).await),
        (1..=12).map(|number| (id, number)).collect::<Vec<_>>()
    );
    let unknown = harness.delivery_id(at(0));
    assert_eq!(harness.store().attempts(harness.tenant_id.clone(), unknown).await.unwrap(), None);
}

pub async fn attempts_of_an_event_are_listed_oldest_delivery_first(harness: &Arc<Harness>) {
    let (a, b) = (harness.webhook_id, harness.webhook_id());
    let new = harness.fan_out(harness.event(at(0)), &[(a, InitialState::Leased), (b, InitialState::Leased)]);
    harness.publish_new(new.clone()).await;
    let (of_a, of_b) = (new.deliveries[0].id, new.deliveries[1].id);
    let try_it = |webhook_id, id, number, next| async move {
        harness.record(OutcomeRecord { webhook_id, ..harness.outcome(id, number, next, at(1)) }).await;
    };
    try_it(a, of_a, 1, Outcome::Retry { at: at(0) }).await;
    harness.claim_one(at(0)).await;
    try_it(a, of_a, 2, Outcome::Delivered).await;
    let again = harness.delivery_id(at(0));
    harness.retry(of_a, harness.redrive_options(again), at(50)).await;
    harness.claim_one(at(50)).await;
    try_it(a, again, 1, Outcome::Delivered).await;
    try_it(b, of_b, 1, Outcome::Delivered).await;

    let attempts =
        harness.store().attempts_of_event(harness.tenant_id.clone(), new.event.id).await.unwrap().unwrap();
    assert_eq!(numbered(&attempts), [(of_a, 1), (of_a, 2), (of_b, 1), (again, 1)]);
    assert!(attempts.iter().all(|stored| stored.event_id == new.event.id));
    assert_eq!(attempts.iter().map(|stored| stored.webhook_id).collect::<Vec<_>>(), [a, a, b, a]);
    let unheard_of = harness.event(at(0)).id;
    assert_eq!(harness.store().attempts_of_event(harness.tenant_id.clone(), unheard_of).await.unwrap(), None);
}

/// The only match is the oldest of more events than one page may scan.
pub async fn rare_match_is_found_in_pages_of_bounded_cost(harness: &Arc<Harness>) {
    harness.leave_undrained();
    let many = 2 * MAX_SKIPPED_ROWS as i64 + 500;
    let rare = Event { event_type: "rare".into(), source: Some("nowhere".into()), ..harness.event(at(0)) };
    let rare = harness.fan_out(rare, &[(harness.webhook_id, InitialState::Leased)]);
    let id = rare.deliveries[0].id;
    harness.publish_new(rare).await;
    for start in (1..many).step_by(500) {
        let events = (start..(start + 500).min(many)).map(|n| {
            harness
                .submit(harness.fan_out(harness.event(at(n)), &[(harness.webhook_id, InitialState::Leased)]))
        });
        for response in events.collect::<Vec<_>>() {
            response.await.unwrap().unwrap();
        }
    }
    let webhooks = vec![harness.webhook_id];
    for webhooks in [Vec::new(), webhooks] {
        let filter =
            DeliveryFilter { webhooks, event_types: vec!["rare".into()], ..DeliveryFilter::default() };
        let (mut pages, mut after, mut found) = (0, None, Vec::new());
        loop {
            pages += 1;
            let page = PageRequest { after, offset: 0, limit: 5 };
            let listed = harness
                .store()
                .list_deliveries(harness.tenant_id.clone(), filter.clone(), page)
                .await
                .unwrap();
            found.extend(listed.found.iter().map(|one| one.id));
            after = listed.stopped;
            if after.is_none() {
                break;
            }
        }
        assert_eq!((pages, found), (3, vec![id]), "{filter:?}");
        // An offset needs the skipped matches to be found first, which exceeds the scan limit of a page.
        let page = PageRequest { after: None, offset: 3, limit: 5 };
        let refused = harness.store().list_deliveries(harness.tenant_id.clone(), filter, page).await;
        assert_eq!(refused.unwrap_err(), StoreError::OffsetTooFar);
    }
    let filter = EventFilter { source: Some("nowhere".into()), ..EventFilter::default() };
    let first =
        harness.store().list_events(harness.tenant_id.clone(), filter.clone(), page(5)).await.unwrap();
    assert_eq!((first.found.len(), first.stopped.is_some()), (0, true));
}

//! Publishing: each event atomically with its deliveries, in sequence, independent of others in its batch.

use redrive_core::delivery::outcome::Outcome;
use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId,
    event::{Event, trace::Trace},
};

use super::{END, Harness, at, page, together};
use crate::{
    Delivery, DeliveryCursor, DeliveryFilter, InitialState, NewEvent, OutcomeRecord, PageRequest,
    PublishResult, PublishSequence, RecordResult, SequencePosition, StoreError, StoredEvent, TicketEntry,
};

/// Longer than any store takes to call back.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(30);

async fn stored(harness: &Harness, id: EventId) -> Option<StoredEvent> {
    harness.store().event(harness.tenant_id.clone(), id).await.unwrap()
}

async fn deliveries_of(harness: &Harness, event_id: EventId) -> Vec<Delivery> {
    let filter = DeliveryFilter { event_id: Some(event_id), ..DeliveryFilter::default() };
    let all: PageRequest<DeliveryCursor> = page(1000);
    harness.store().list_deliveries(harness.tenant_id.clone(), filter, all).await.unwrap().found
}

/// Asserts that no trace of an event is in the store.
async fn assert_absent(harness: &Harness, new: &NewEvent) {
    assert_eq!(stored(harness, new.event.id).await, None);
    for delivery in &new.deliveries {
        assert_eq!(harness.store().delivery(harness.tenant_id.clone(), delivery.id).await.unwrap(), None);
    }
}

pub async fn event_and_its_deliveries_appear_together(harness: &Arc<Harness>) {
    let initial_states = [InitialState::Leased, InitialState::Waiting(at(50)), InitialState::Leased];
    let event = Event {
        subject: Some("order-1".into()),
        source: Some("shop".into()),
        metadata: Some(Bytes::from_static(br#"{"note": 1}"#)),
        idempotency_key: Some("key-1".into()),
        ..harness.event(at(10))
    };
    let new = harness
        .fan_out(event.clone(), &initial_states.map(|initial_state| (harness.webhook_id(), initial_state)));
    assert_absent(harness, &new).await;

    let sequence_number = harness.publish_new(new.clone()).await;
    assert_eq!(
        stored(harness, event.id).await,
        Some(StoredEvent { event, sequence_number, edited_from: None, erased_at: None })
    );
    let mut deliveries = deliveries_of(harness, new.event.id).await;
    deliveries.reverse();
    assert_eq!(deliveries.len(), 3);
    for (delivery, wanted) in deliveries.iter().zip(&new.deliveries) {
        assert_eq!((delivery.id, delivery.webhook_id), (wanted.id, wanted.webhook_id));
        assert_eq!((delivery.round, delivery.attempt_count), (1, 0));
        assert_eq!((delivery.status, delivery.ended_at), (DeliveryStatus::Pending, None));
        assert_eq!((&*delivery.event_type, delivery.created_at), ("order.created", at(10)));
        assert_eq!((delivery.replay_of, delivery.redriven_as), (None, None));
    }
    assert_eq!(
        deliveries.iter().map(|delivery| delivery.due).collect::<Vec<_>>(),
        [None, Some(at(50)), None]
    );
}

pub async fn delivery_created_leased_belongs_to_its_publisher(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    assert_eq!(harness.due_lanes(at(END)).await, []);
    assert!(harness.claim(at(END)).await.is_empty());
    let other = harness.new_epoch().await;
    assert!(harness.store().mark_sending(harness.epoch, id).await.unwrap());
    assert!(!harness.store().mark_sending(other, id).await.unwrap());
}

pub async fn delivery_created_waiting_is_claimed_when_due(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(500)).await;
    assert_eq!(harness.due_lanes(at(499)).await, []);
    assert!(harness.claim(at(499)).await.is_empty());
    assert_eq!(harness.due_lanes(at(500)).await, [harness.lane()]);
    assert_eq!(harness.claim_one(at(500)).await.id, id);
}

pub async fn sequence_numbers_have_no_gaps(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    let version = harness.store().config_changes(other.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let publisher = |n: i64| {
        let (harness, other) = (harness.clone(), other.clone());
        async move {
            let mut own = Vec::new();
            for i in 0..40 {
                own.push(harness.publish_new(harness.new_event(at(n * 40 + i), InitialState::Leased)).await);
                let event = Event { tenant_id: other.clone(), ..harness.event(at(i)) };
                harness
                    .publish_new(NewEvent { config_version: version, ..harness.fan_out(event, &[]) })
                    .await;
            }
            own
        }
    };
    let numbers = together((0..8).map(publisher)).await;
    for own in &numbers {
        assert!(own.is_sorted_by(|a, b| a < b), "the events of one publisher are stored in order");
    }
    let mut all = numbers.concat();
    all.sort_unstable();
    assert_eq!(all, (1..=320).collect::<Vec<_>>());

    let listed = harness.store().list_events(other, Default::default(), page(1000)).await.unwrap().found;
    let mut all: Vec<_> = listed.iter().map(|event| event.sequence_number).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=320).collect::<Vec<_>>(), "each tenant has its own sequence");
}

pub async fn publish_for_unknown_tenant_is_rejected(harness: &Arc<Harness>) {
    let unknown = TenantId::parse("unknown").unwrap();
    let event = Event { tenant_id: unknown.clone(), ..harness.event(at(0)) };
    let new = harness.fan_out(event, &[(harness.webhook_id, InitialState::Leased)]);
    assert_eq!(harness.publish(new.clone()).await, PublishResult::NoTenant);
    assert_eq!(harness.store().event(unknown, new.event.id).await.unwrap(), None);
    assert_absent(harness, &new).await;
}

pub async fn stale_fan_out_is_rejected_and_leaves_nothing(harness: &Arc<Harness>) {
    assert_eq!(harness.publish_new(harness.new_event(at(0), InitialState::Leased)).await, 1);
    let stale = harness.new_event(at(1), InitialState::Waiting(at(1)));
    harness.new_webhook().await;
    assert_eq!(harness.publish(stale.clone()).await, PublishResult::ConfigChanged);
    let early = NewEvent { config_version: harness.version() + 1, ..stale.clone() };
    assert_eq!(harness.publish(early).await, PublishResult::ConfigChanged);
    assert_absent(harness, &stale).await;
    assert_eq!(harness.due_lanes(at(END)).await, []);
    // Fanned out from the current version, the same event is accepted and leaves no gap in the sequence.
    let fresh = NewEvent { config_version: harness.version(), ..stale };
    assert_eq!(harness.publish_new(fresh).await, 2);
}

pub async fn fenced_node_publishes_nothing(harness: &Arc<Harness>) {
    assert_eq!(harness.rescue(harness.epoch, at(0)).await, 0);
    for initial_state in [InitialState::Leased, InitialState::Waiting(at(1))] {
        let new = harness.new_event(at(1), initial_state);
        let response = harness.try_publish(new.clone()).await;
        assert_eq!(response, Ok(PublishResult::Fenced));
        assert_absent(harness, &new).await;
    }
    let epoch = harness.new_epoch().await;
    let new = NewEvent { epoch, ..harness.new_event(at(2), InitialState::Leased) };
    assert_eq!(harness.publish_new(new).await, 1, "fenced events use no sequence number");
}

pub async fn invalid_event_does_not_fail_its_batch(harness: &Arc<Harness>) {
    let first = harness.new_event(at(0), InitialState::Leased);
    harness.publish_new(first.clone()).await;
    let is_bad = |n: i64| n % 40 == 7;
    let items: Vec<_> = (0..200)
        .map(|n| {
            let mut new = harness.new_event(
                at(n),
                if n % 2 == 0 { InitialState::Leased } else { InitialState::Waiting(at(n)) },
            );
            match n % 80 {
                7 => new.deliveries[0].id = first.deliveries[0].id,
                47 => new.event = Arc::new(Event { id: first.event.id, ..(*new.event).clone() }),
                _ => {}
            }
            new
        })
        .collect();
    let replies: Vec<_> = items.iter().map(|new| harness.submit(new.clone())).collect();
    let mut numbers = Vec::new();
    for ((n, new), response) in (0..).zip(&items).zip(replies) {
        match response.await.unwrap() {
            Ok(PublishResult::New { sequence_number }) if !is_bad(n) => numbers.push(sequence_number),
            Err(StoreError::InvalidItem(_)) if is_bad(n) => {}
            other => panic!("item {n}: {other:?}"),
        }
        assert_eq!(deliveries_of(harness, new.event.id).await.len(), usize::from(!is_bad(n) || n % 80 == 47));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (2..=196).collect::<Vec<_>>(), "invalid events use no sequence number");
    assert_eq!(harness.publish_new(harness.new_event(at(999), InitialState::Leased)).await, 197);
    let kept = stored(harness, first.event.id).await.unwrap();
    assert_eq!((kept.sequence_number, kept.event), (1, (*first.event).clone()));
}

pub async fn event_with_two_deliveries_to_one_webhook_is_rejected(harness: &Arc<Harness>) {
    let twice = [(harness.webhook_id, InitialState::Leased), (harness.webhook_id, InitialState::Leased)];
    let new = harness.fan_out(harness.event(at(0)), &twice);
    let response = harness.try_publish(new.clone()).await;
    assert!(matches!(response, Err(StoreError::InvalidItem(_))), "{response:?}");
    assert_absent(harness, &new).await;
}

pub async fn event_without_deliveries_is_stored(harness: &Arc<Harness>) {
    let new = harness.fan_out(harness.event(at(0)), &[]);
    assert_eq!(harness.publish_new(new.clone()).await, 1);
    assert_eq!(stored(harness, new.event.id).await.unwrap().event, *new.event);
    assert_eq!(deliveries_of(harness, new.event.id).await, []);
}

pub async fn payload_bytes_are_stored_unchanged(harness: &Arc<Harness>) {
    let odd = Bytes::from_static(b"\0\"\xff\xfe\x80 {\r\n} \0");
    let event = Event { data: odd.clone(), metadata: Some(odd.clone()), ..harness.event(at(0)) };
    let new = harness.fan_out(event, &[(harness.webhook_id, InitialState::Waiting(at(0)))]);
    harness.publish_new(new.clone()).await;
    assert_eq!(stored(harness, new.event.id).await.unwrap().event, *new.event);
    assert_eq!(harness.claim_one(at(0)).await.event.data, odd);
}

pub async fn publish_of_disconnected_publisher_is_committed(harness: &Arc<Harness>) {
    let new = harness.new_event(at(0), InitialState::Leased);
    drop(harness.submit(new.clone()));
    // A later event of the same caller is committed later, so the first one is stored by then.
    assert_eq!(harness.publish_new(harness.new_event(at(1), InitialState::Leased)).await, 2);
    assert_eq!(stored(harness, new.event.id).await.unwrap().sequence_number, 1);
    assert!(harness.store().mark_sending(harness.epoch, new.deliveries[0].id).await.unwrap());
}

pub async fn published_event_survives_reopening(harness: &mut Arc<Harness>) {
    let new = harness.fan_out(
        harness.event(at(0)),
        &[(harness.webhook_id, InitialState::Waiting(at(5))), (harness.webhook_id(), InitialState::Leased)],
    );
    harness.publish_new(new.clone()).await;
    let before = deliveries_of(harness, new.event.id).await;
    Harness::reopen(harness).await;
    assert_eq!(stored(harness, new.event.id).await.unwrap().event, *new.event);
    assert_eq!(deliveries_of(harness, new.event.id).await, before);
    assert_eq!(harness.claim_one(at(5)).await.id, new.deliveries[0].id);
    let later = harness.fan_out(harness.event(at(9)), &[]);
    assert_eq!(harness.publish_new(later).await, 2, "the sequence continues");
}

pub async fn delivery_keeps_its_format(harness: &Arc<Harness>) {
    use redrive_core::event::PayloadFormat::{Cloudevents, CloudeventsBinary, Data, Envelope};
    for format in [Envelope, Data, Cloudevents, CloudeventsBinary] {
        let mut new = harness.new_event(at(0), InitialState::Waiting(at(0)));
        new.deliveries[0].format = format;
        harness.publish_new(new).await;
        assert_eq!(harness.claim_one(at(0)).await.format, format);
    }
}

pub async fn trace_of_an_event_survives_crashes_and_retries(harness: &Arc<Harness>) {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let caller = Trace::from_headers(parent, "rojo=00f067aa0ba902b7,congo=t61");
    let mut published = HashMap::new();
    // Every way to publish: with and without a key, created leased or waiting, with a caller's, a new or no trace.
    for (n, key) in [true, false, true, false].into_iter().enumerate() {
        let initial_state = if n < 2 { InitialState::Leased } else { InitialState::Waiting(at(20)) };
        let plain = harness.event(at(10));
        for trace in [caller.clone(), Some(Trace::start_sampled(plain.id)), None] {
            let event = Event {
                id: EventId::new(at(10), &harness.next()),
                idempotency_key: key.then(|| harness.delivery_id(at(0)).to_string().into()),
                trace: trace.map(Box::new),
                ..plain.clone()
            };
            let new = harness.fan_out(event.clone(), &[(harness.webhook_id, initial_state)]);
            published.insert(new.deliveries[0].id, event.trace.clone());
            harness.publish_new(new).await;
            assert_eq!(stored(harness, event.id).await.unwrap().event, event);
        }
    }
    // Their node dies, and another one gets them by ticket and by claim.
    harness.rescue(harness.epoch, at(20)).await;
    let epoch = harness.new_epoch().await;
    let mut ids: Vec<_> = published.keys().copied().collect();
    ids.sort_unstable();
    let wanted = |id: &DeliveryId| TicketEntry { key: harness.lane(), delivery_id: *id };
    let by_ticket = ids[..4].iter().map(wanted).collect();
    let mut found =
        harness.store().claim_tickets(epoch, at(20), at(20), by_ticket, usize::MAX).await.unwrap();
    assert_eq!(found.len(), 4);
    found.extend(harness.claim_as(epoch, at(20)).await);
    let found: HashMap<_, _> = found.iter().map(|one| (one.id, one.event.trace.clone())).collect();
    assert_eq!(found, published);
    // The attempts fail, and a third node claims the retries.
    for id in &ids {
        let failed = harness.outcome(*id, 1, Outcome::Retry { at: at(30) }, at(25));
        assert!(matches!(
            harness.record(OutcomeRecord { epoch, ..failed }).await,
            RecordResult::Recorded { .. }
        ));
    }
    let found = harness.claim_as(harness.new_epoch().await, at(30)).await;
    let found: HashMap<_, _> = found.iter().map(|one| (one.id, one.event.trace.clone())).collect();
    assert_eq!(found, published);
}

pub async fn hop_count_of_an_event_survives_node_death(harness: &Arc<Harness>) {
    let mut published = HashMap::new();
    for (hops, keyed, initial_state) in [
        (0, false, InitialState::Leased),
        (1, true, InitialState::Leased),
        (5, false, InitialState::Waiting(at(20))),
        (u8::MAX, true, InitialState::Waiting(at(20))),
    ] {
        let event = Event {
            idempotency_key: keyed.then(|| harness.delivery_id(at(0)).to_string().into()),
            hops,
            ..harness.event(at(10))
        };
        let new = harness.fan_out(event.clone(), &[(harness.webhook_id, initial_state)]);
        published.insert(new.deliveries[0].id, hops);
        harness.publish_new(new).await;
        assert_eq!(stored(harness, event.id).await.unwrap().event, event);
    }
    harness.rescue(harness.epoch, at(20)).await;
    let epoch = harness.new_epoch().await;
    let by_ticket =
        published.keys().take(2).map(|id| TicketEntry { key: harness.lane(), delivery_id: *id }).collect();
    let mut found =
        harness.store().claim_tickets(epoch, at(20), at(20), by_ticket, usize::MAX).await.unwrap();
    found.extend(harness.claim_as(epoch, at(20)).await);
    let found: HashMap<_, _> = found.iter().map(|one| (one.id, one.event.hops)).collect();
    assert_eq!(found, published);
}

pub async fn panic_in_one_callback_does_not_affect_the_others(harness: &Arc<Harness>) {
    let submit_panicking = || {
        let panicking = Box::new(|_| panic!("a callback panics on purpose"));
        harness.store().publish(harness.new_event(at(0), InitialState::Waiting(at(0))), panicking);
    };
    // The first occupies the writer, so that those after it are committed as one batch.
    let occupying = harness.submit(harness.new_event(at(0), InitialState::Waiting(at(0))));
    let before = harness.submit(harness.new_event(at(0), InitialState::Waiting(at(0))));
    submit_panicking();
    let after = harness.submit(harness.new_event(at(0), InitialState::Waiting(at(0))));
    for (index, result) in [occupying, before, after].into_iter().enumerate() {
        let result = tokio::time::timeout(CALLBACK_TIMEOUT, result).await;
        assert!(matches!(result, Ok(Ok(Ok(PublishResult::New { .. })))), "{index}: {result:?}");
    }
    let later = tokio::time::timeout(
        CALLBACK_TIMEOUT,
        harness.publish_new(harness.new_event(at(1), InitialState::Leased)),
    );
    assert_eq!(later.await, Ok(5), "all five are stored");
    let outcomes = panicking_outcome_callback(harness).await;
    assert!(matches!(outcomes, Ok(Ok(Ok(RecordResult::Recorded { .. })))), "{outcomes:?}");
    assert_eq!(harness.store().ping().await, Ok(()));
}

type Waited<T> = Result<Result<T, tokio::sync::oneshot::error::RecvError>, tokio::time::error::Elapsed>;

/// Records two outcomes, the first with a callback that panics. Returns the result of the second.
async fn panicking_outcome_callback(harness: &Arc<Harness>) -> Waited<Result<RecordResult, StoreError>> {
    let (first, second) = (harness.leased(at(2)).await, harness.leased(at(2)).await);
    let delivered = |id| harness.outcome(id, 1, Outcome::Delivered, at(3));
    let panicking = Box::new(|_| panic!("a callback panics on purpose"));
    harness.store().record(Arc::new(delivered(first)), panicking);
    tokio::time::timeout(CALLBACK_TIMEOUT, harness.submit_outcome(delivered(second))).await
}

pub async fn failed_publish_breaks_off_its_order(harness: &Arc<Harness>) {
    let order = Arc::new(PublishSequence::default());
    let ordered = |order: &Arc<PublishSequence>, position: u64, stale: i64| NewEvent {
        config_version: harness.version() + stale,
        position: Some(SequencePosition { sequence: order.clone(), position }),
        ..harness.new_event(at(0), InitialState::Waiting(at(0)))
    };
    let stored = harness.submit(ordered(&order, 0, 0)).await.unwrap();
    assert_eq!(stored, Ok(PublishResult::New { sequence_number: 1 }));
    // All are submitted before the first result is known.
    let submitted =
        [(1, 0), (2, -1), (3, 0), (4, 0)].map(|(at, stale)| harness.submit(ordered(&order, at, stale)));
    let unordered = harness.submit(harness.new_event(at(0), InitialState::Waiting(at(0))));
    let mut results = Vec::new();
    for result in submitted {
        results.push(result.await.unwrap());
    }
    assert!(matches!(results[0], Ok(PublishResult::New { .. })), "{results:?}");
    // It is refused as stale, or because it shares a batch with events of another version.
    assert!(
        matches!(results[1], Ok(PublishResult::ConfigChanged) | Err(StoreError::PrecedingEventFailed)),
        "{results:?}"
    );
    assert_eq!(results[2..], [Err(StoreError::PrecedingEventFailed), Err(StoreError::PrecedingEventFailed)]);
    let unordered = unordered.await.unwrap();
    assert!(matches!(unordered, Ok(PublishResult::New { .. })), "{unordered:?}");
    let refused = harness.submit(ordered(&order, 5, 0)).await.unwrap();
    assert_eq!(refused, Err(StoreError::PrecedingEventFailed), "a broken order stays broken");
    let next = harness.submit(ordered(&Arc::default(), 0, 0)).await.unwrap();
    assert_eq!(next, Ok(PublishResult::New { sequence_number: 4 }), "a new order is stored");
}

pub async fn edited_copy_refers_to_its_original(harness: &Arc<Harness>) {
    let original = harness.event(at(0));
    harness.publish_new(harness.fan_out(original.clone(), &[])).await;
    let mut copies = Vec::new();
    for (time, initial_state) in [(1, InitialState::Leased), (2, InitialState::Waiting(at(900)))] {
        let to = [(harness.webhook_id(), initial_state)];
        let new = harness.fan_out(harness.event(at(time)), &to);
        copies.insert(0, new.event.id);
        harness.publish_new(NewEvent { edited_from: Some(original.id), ..new }).await;
    }
    let stored = async |id| harness.store().event(harness.tenant_id.clone(), id).await.unwrap().unwrap();
    assert_eq!(stored(original.id).await.edited_from, None);
    for copy in &copies {
        assert_eq!(stored(*copy).await.edited_from, Some(original.id));
    }
    let edits =
        |tenant_id: &TenantId, limit| harness.store().edited_copies(tenant_id.clone(), original.id, limit);
    assert_eq!(edits(&harness.tenant_id, 10).await.unwrap(), copies, "newest first");
    assert_eq!(edits(&harness.tenant_id, 1).await.unwrap(), copies[..1]);
    assert_eq!(edits(&harness.new_tenant("globex").await, 10).await.unwrap(), []);
}

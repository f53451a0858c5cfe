//! Taking events in: all of an event or nothing of it, in sequence, whatever its neighbours are like.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use redrive_core::{DeliveryId, DeliveryStatus, EventId, TenantId, event::Event, event::trace::Trace};

use super::{Bench, END, at, page, together};
use crate::{
    Birth, Delivery, DeliveryCursor, DeliveryFilter, NewEvent, Next, OrderedPosition, Outcome, PageRequest,
    PublishOrder, Published, Recorded, StoreError, StoredEvent, Wanted,
};

/// Longer than any store takes to call back.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(30);

async fn stored(bench: &Bench, id: EventId) -> Option<StoredEvent> {
    bench.store().event(bench.tenant.clone(), id).await.unwrap()
}

async fn deliveries_of(bench: &Bench, event: EventId) -> Vec<Delivery> {
    let filter = DeliveryFilter { event: Some(event), ..DeliveryFilter::default() };
    let all: PageRequest<DeliveryCursor> = page(1000);
    bench.store().list_deliveries(bench.tenant.clone(), filter, all).await.unwrap().found
}

/// That not a trace of an event is in the store.
async fn assert_absent(bench: &Bench, new: &NewEvent) {
    assert_eq!(stored(bench, new.event.id).await, None);
    for delivery in &new.deliveries {
        assert_eq!(bench.store().delivery(bench.tenant.clone(), delivery.id).await.unwrap(), None);
    }
}

pub async fn an_event_and_its_deliveries_appear_together(bench: &Arc<Bench>) {
    let births = [Birth::Leased, Birth::Waiting(at(50)), Birth::Leased];
    let event = Event {
        subject: Some("order-1".into()),
        source: Some("shop".into()),
        metadata: Some(Bytes::from_static(br#"{"note": 1}"#)),
        idempotency_key: Some("key-1".into()),
        ..bench.event(at(10))
    };
    let new = bench.fan_out(event.clone(), &births.map(|birth| (bench.webhook_id(), birth)));
    assert_absent(bench, &new).await;

    let sequence_number = bench.publish_new(new.clone()).await;
    assert_eq!(stored(bench, event.id).await, Some(StoredEvent { event, sequence_number, erased_at: None }));
    let mut deliveries = deliveries_of(bench, new.event.id).await;
    deliveries.reverse();
    assert_eq!(deliveries.len(), 3);
    for (delivery, wanted) in deliveries.iter().zip(&new.deliveries) {
        assert_eq!((delivery.id, delivery.webhook), (wanted.id, wanted.webhook));
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

pub async fn what_is_born_leased_belongs_to_its_publisher(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    assert_eq!(bench.due_lanes(at(END)).await, []);
    assert!(bench.claim(at(END)).await.is_empty());
    let other = bench.new_epoch().await;
    assert!(bench.store().mark_sending(bench.epoch, id).await.unwrap());
    assert!(!bench.store().mark_sending(other, id).await.unwrap());
}

pub async fn what_is_born_waiting_is_claimed_when_due(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(500)).await;
    assert_eq!(bench.due_lanes(at(499)).await, []);
    assert!(bench.claim(at(499)).await.is_empty());
    assert_eq!(bench.due_lanes(at(500)).await, [bench.lane()]);
    assert_eq!(bench.claim_one(at(500)).await.id, id);
}

pub async fn sequence_numbers_have_no_gaps(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    let version = bench.store().config_changes(other.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let publisher = |n: i64| {
        let (bench, other) = (bench.clone(), other.clone());
        async move {
            let mut own = Vec::new();
            for i in 0..40 {
                own.push(bench.publish_new(bench.new_event(at(n * 40 + i), Birth::Leased)).await);
                let event = Event { tenant: other.clone(), ..bench.event(at(i)) };
                bench.publish_new(NewEvent { config_version: version, ..bench.fan_out(event, &[]) }).await;
            }
            own
        }
    };
    let numbers = together((0..8).map(publisher)).await;
    for own in &numbers {
        assert!(own.is_sorted_by(|a, b| a < b), "a publisher's own events are in its order");
    }
    let mut all = numbers.concat();
    all.sort_unstable();
    assert_eq!(all, (1..=320).collect::<Vec<_>>());

    let listed = bench.store().list_events(other, Default::default(), page(1000)).await.unwrap().found;
    let mut all: Vec<_> = listed.iter().map(|event| event.sequence_number).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=320).collect::<Vec<_>>(), "each tenant counts for itself");
}

pub async fn an_unknown_tenant_is_refused(bench: &Arc<Bench>) {
    let nobody = TenantId::parse("nobody").unwrap();
    let event = Event { tenant: nobody.clone(), ..bench.event(at(0)) };
    let new = bench.fan_out(event, &[(bench.webhook, Birth::Leased)]);
    assert_eq!(bench.publish(new.clone()).await, Published::NoTenant);
    assert_eq!(bench.store().event(nobody, new.event.id).await.unwrap(), None);
    assert_absent(bench, &new).await;
}

pub async fn a_stale_fan_out_is_refused_and_leaves_nothing(bench: &Arc<Bench>) {
    assert_eq!(bench.publish_new(bench.new_event(at(0), Birth::Leased)).await, 1);
    let stale = bench.new_event(at(1), Birth::Waiting(at(1)));
    bench.new_webhook().await;
    assert_eq!(bench.publish(stale.clone()).await, Published::ConfigChanged);
    let early = NewEvent { config_version: bench.version() + 1, ..stale.clone() };
    assert_eq!(bench.publish(early).await, Published::ConfigChanged);
    assert_absent(bench, &stale).await;
    assert_eq!(bench.due_lanes(at(END)).await, []);
    // Made again from the right version, the same event is taken and leaves no gap.
    let fresh = NewEvent { config_version: bench.version(), ..stale };
    assert_eq!(bench.publish_new(fresh).await, 2);
}

pub async fn a_fenced_node_publishes_nothing(bench: &Arc<Bench>) {
    assert_eq!(bench.rescue(bench.epoch, at(0)).await, 0);
    for birth in [Birth::Leased, Birth::Waiting(at(1))] {
        let new = bench.new_event(at(1), birth);
        let answer = bench.try_publish(new.clone()).await;
        assert_eq!(answer, Ok(Published::Fenced));
        assert_absent(bench, &new).await;
    }
    let epoch = bench.new_epoch().await;
    let new = NewEvent { epoch, ..bench.new_event(at(2), Birth::Leased) };
    assert_eq!(bench.publish_new(new).await, 1, "the fenced ones used up no place in the sequence");
}

pub async fn one_bad_item_never_fails_its_neighbours(bench: &Arc<Bench>) {
    let first = bench.new_event(at(0), Birth::Leased);
    bench.publish_new(first.clone()).await;
    let is_bad = |n: i64| n % 40 == 7;
    let items: Vec<_> = (0..200)
        .map(|n| {
            let mut new =
                bench.new_event(at(n), if n % 2 == 0 { Birth::Leased } else { Birth::Waiting(at(n)) });
            match n % 80 {
                7 => new.deliveries[0].id = first.deliveries[0].id,
                47 => new.event = Arc::new(Event { id: first.event.id, ..(*new.event).clone() }),
                _ => {}
            }
            new
        })
        .collect();
    let answers: Vec<_> = items.iter().map(|new| bench.submit(new.clone())).collect();
    let mut numbers = Vec::new();
    for ((n, new), answer) in (0..).zip(&items).zip(answers) {
        match answer.await.unwrap() {
            Ok(Published::New { sequence_number }) if !is_bad(n) => numbers.push(sequence_number),
            Err(StoreError::Refused(_)) if is_bad(n) => {}
            other => panic!("item {n}: {other:?}"),
        }
        assert_eq!(deliveries_of(bench, new.event.id).await.len(), usize::from(!is_bad(n) || n % 80 == 47));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (2..=196).collect::<Vec<_>>(), "bad items use up no place");
    assert_eq!(bench.publish_new(bench.new_event(at(999), Birth::Leased)).await, 197);
    let kept = stored(bench, first.event.id).await.unwrap();
    assert_eq!((kept.sequence_number, kept.event), (1, (*first.event).clone()));
}

pub async fn one_event_is_owed_to_a_webhook_once(bench: &Arc<Bench>) {
    let twice = [(bench.webhook, Birth::Leased), (bench.webhook, Birth::Leased)];
    let new = bench.fan_out(bench.event(at(0)), &twice);
    let answer = bench.try_publish(new.clone()).await;
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
    assert_absent(bench, &new).await;
}

pub async fn an_event_that_nobody_wants_is_stored(bench: &Arc<Bench>) {
    let new = bench.fan_out(bench.event(at(0)), &[]);
    assert_eq!(bench.publish_new(new.clone()).await, 1);
    assert_eq!(stored(bench, new.event.id).await.unwrap().event, *new.event);
    assert_eq!(deliveries_of(bench, new.event.id).await, []);
}

pub async fn bytes_are_kept_as_they_are(bench: &Arc<Bench>) {
    let odd = Bytes::from_static(b"\0\"\xff\xfe\x80 {\r\n} \0");
    let event = Event { data: odd.clone(), metadata: Some(odd.clone()), ..bench.event(at(0)) };
    let new = bench.fan_out(event, &[(bench.webhook, Birth::Waiting(at(0)))]);
    bench.publish_new(new.clone()).await;
    assert_eq!(stored(bench, new.event.id).await.unwrap().event, *new.event);
    assert_eq!(bench.claim_one(at(0)).await.event.data, odd);
}

pub async fn a_publisher_that_went_away_is_served_all_the_same(bench: &Arc<Bench>) {
    let new = bench.new_event(at(0), Birth::Leased);
    drop(bench.submit(new.clone()));
    // What is handed in later by the same caller is answered later.
    assert_eq!(bench.publish_new(bench.new_event(at(1), Birth::Leased)).await, 2);
    assert_eq!(stored(bench, new.event.id).await.unwrap().sequence_number, 1);
    assert!(bench.store().mark_sending(bench.epoch, new.deliveries[0].id).await.unwrap());
}

pub async fn what_was_published_survives_reopening(bench: &mut Arc<Bench>) {
    let new = bench.fan_out(
        bench.event(at(0)),
        &[(bench.webhook, Birth::Waiting(at(5))), (bench.webhook_id(), Birth::Leased)],
    );
    bench.publish_new(new.clone()).await;
    let before = deliveries_of(bench, new.event.id).await;
    Bench::reopen(bench).await;
    assert_eq!(stored(bench, new.event.id).await.unwrap().event, *new.event);
    assert_eq!(deliveries_of(bench, new.event.id).await, before);
    assert_eq!(bench.claim_one(at(5)).await.id, new.deliveries[0].id);
    let later = bench.fan_out(bench.event(at(9)), &[]);
    assert_eq!(bench.publish_new(later).await, 2, "the sequence goes on");
}

pub async fn a_delivery_keeps_its_format(bench: &Arc<Bench>) {
    use redrive_core::event::PayloadFormat::{Cloudevents, CloudeventsBinary, Data, Envelope};
    for format in [Envelope, Data, Cloudevents, CloudeventsBinary] {
        let mut new = bench.new_event(at(0), Birth::Waiting(at(0)));
        new.deliveries[0].format = format;
        bench.publish_new(new).await;
        assert_eq!(bench.claim_one(at(0)).await.format, format);
    }
}

pub async fn the_trace_of_an_event_stays_with_it_through_crashes_and_retries(bench: &Arc<Bench>) {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let caller = Trace::of_caller(parent, "rojo=00f067aa0ba902b7,congo=t61");
    let mut published = HashMap::new();
    // With a key and without one, born leased and waiting, of a caller, begun here, and none: each way in.
    for (n, key) in [true, false, true, false].into_iter().enumerate() {
        let birth = if n < 2 { Birth::Leased } else { Birth::Waiting(at(20)) };
        let plain = bench.event(at(10));
        for trace in [caller.clone(), Some(Trace::begun(plain.id)), None] {
            let event = Event {
                id: EventId::new(at(10), &bench.next()),
                idempotency_key: key.then(|| bench.delivery_id(at(0)).to_string().into()),
                trace: trace.map(Box::new),
                ..plain.clone()
            };
            let new = bench.fan_out(event.clone(), &[(bench.webhook, birth)]);
            published.insert(new.deliveries[0].id, event.trace.clone());
            bench.publish_new(new).await;
            assert_eq!(stored(bench, event.id).await.unwrap().event, event);
        }
    }
    // Whoever had them dies, and somebody else has them now: each way out.
    bench.rescue(bench.epoch, at(20)).await;
    let epoch = bench.new_epoch().await;
    let mut ids: Vec<_> = published.keys().copied().collect();
    ids.sort_unstable();
    let wanted = |id: &DeliveryId| Wanted { key: bench.lane(), delivery: *id };
    let by_ticket = ids[..4].iter().map(wanted).collect();
    let mut found = bench.store().take(epoch, at(20), at(20), by_ticket, usize::MAX).await.unwrap();
    assert_eq!(found.len(), 4);
    found.extend(bench.claim_as(epoch, at(20)).await);
    let found: HashMap<_, _> = found.iter().map(|one| (one.id, one.event.trace.clone())).collect();
    assert_eq!(found, published);
    // An attempt fails, and the next one is made by yet another node.
    for id in &ids {
        let failed = bench.outcome(*id, 1, Next::Retry { due: at(30) }, at(25));
        assert!(matches!(bench.record(Outcome { epoch, ..failed }).await, Recorded::Done { .. }));
    }
    let found = bench.claim_as(bench.new_epoch().await, at(30)).await;
    let found: HashMap<_, _> = found.iter().map(|one| (one.id, one.event.trace.clone())).collect();
    assert_eq!(found, published);
}

pub async fn hop_count_of_an_event_stays_with_it_through_crashes_and_retries(bench: &Arc<Bench>) {
    let mut published = HashMap::new();
    for (hops, keyed, birth) in [
        (0, false, Birth::Leased),
        (1, true, Birth::Leased),
        (5, false, Birth::Waiting(at(20))),
        (u8::MAX, true, Birth::Waiting(at(20))),
    ] {
        let event = Event {
            idempotency_key: keyed.then(|| bench.delivery_id(at(0)).to_string().into()),
            hops,
            ..bench.event(at(10))
        };
        let new = bench.fan_out(event.clone(), &[(bench.webhook, birth)]);
        published.insert(new.deliveries[0].id, hops);
        bench.publish_new(new).await;
        assert_eq!(stored(bench, event.id).await.unwrap().event, event);
    }
    bench.rescue(bench.epoch, at(20)).await;
    let epoch = bench.new_epoch().await;
    let by_ticket = published.keys().take(2).map(|id| Wanted { key: bench.lane(), delivery: *id }).collect();
    let mut found = bench.store().take(epoch, at(20), at(20), by_ticket, usize::MAX).await.unwrap();
    found.extend(bench.claim_as(epoch, at(20)).await);
    let found: HashMap<_, _> = found.iter().map(|one| (one.id, one.event.hops)).collect();
    assert_eq!(found, published);
}

pub async fn panic_in_one_callback_does_not_affect_the_others(bench: &Arc<Bench>) {
    let submit_panicking = || {
        let panicking = Box::new(|_| panic!("a callback panics on purpose"));
        bench.store().publish(bench.new_event(at(0), Birth::Waiting(at(0))), panicking);
    };
    // The first occupies the writer, so that those after it are committed as one batch.
    let occupying = bench.submit(bench.new_event(at(0), Birth::Waiting(at(0))));
    let before = bench.submit(bench.new_event(at(0), Birth::Waiting(at(0))));
    submit_panicking();
    let after = bench.submit(bench.new_event(at(0), Birth::Waiting(at(0))));
    for (index, result) in [occupying, before, after].into_iter().enumerate() {
        let result = tokio::time::timeout(CALLBACK_TIMEOUT, result).await;
        assert!(matches!(result, Ok(Ok(Ok(Published::New { .. })))), "{index}: {result:?}");
    }
    let later =
        tokio::time::timeout(CALLBACK_TIMEOUT, bench.publish_new(bench.new_event(at(1), Birth::Leased)));
    assert_eq!(later.await, Ok(5), "all five are stored");
    let outcomes = panicking_outcome_callback(bench).await;
    assert!(matches!(outcomes, Ok(Ok(Ok(Recorded::Done { .. })))), "{outcomes:?}");
    assert_eq!(bench.store().ping().await, Ok(()));
}

type Waited<T> = Result<Result<T, tokio::sync::oneshot::error::RecvError>, tokio::time::error::Elapsed>;

/// Records two outcomes, the first with a callback that panics. Returns the result of the second.
async fn panicking_outcome_callback(bench: &Arc<Bench>) -> Waited<Result<Recorded, StoreError>> {
    let (first, second) = (bench.leased(at(2)).await, bench.leased(at(2)).await);
    let delivered = |id| bench.outcome(id, 1, Next::Delivered, at(3));
    let panicking = Box::new(|_| panic!("a callback panics on purpose"));
    bench.store().record(Arc::new(delivered(first)), panicking);
    tokio::time::timeout(CALLBACK_TIMEOUT, bench.submit_outcome(delivered(second))).await
}

pub async fn failed_publish_breaks_off_its_order(bench: &Arc<Bench>) {
    let order = Arc::new(PublishOrder::default());
    let ordered = |order: &Arc<PublishOrder>, position: u64, stale: i64| NewEvent {
        config_version: bench.version() + stale,
        order: Some(OrderedPosition { order: order.clone(), position }),
        ..bench.new_event(at(0), Birth::Waiting(at(0)))
    };
    let stored = bench.submit(ordered(&order, 0, 0)).await.unwrap();
    assert_eq!(stored, Ok(Published::New { sequence_number: 1 }));
    // All are submitted before the first result is known.
    let submitted =
        [(1, 0), (2, -1), (3, 0), (4, 0)].map(|(at, stale)| bench.submit(ordered(&order, at, stale)));
    let unordered = bench.submit(bench.new_event(at(0), Birth::Waiting(at(0))));
    let mut results = Vec::new();
    for result in submitted {
        results.push(result.await.unwrap());
    }
    assert!(matches!(results[0], Ok(Published::New { .. })), "{results:?}");
    // It is refused as stale, or because it shares a batch with events of another version.
    assert!(matches!(results[1], Ok(Published::ConfigChanged) | Err(StoreError::OutOfOrder)), "{results:?}");
    assert_eq!(results[2..], [Err(StoreError::OutOfOrder), Err(StoreError::OutOfOrder)]);
    let unordered = unordered.await.unwrap();
    assert!(matches!(unordered, Ok(Published::New { .. })), "{unordered:?}");
    assert!(order.is_broken());
    let refused = bench.submit(ordered(&order, 5, 0)).await.unwrap();
    assert_eq!(refused, Err(StoreError::OutOfOrder), "a broken order stays broken");
    let next = bench.submit(ordered(&Arc::default(), 0, 0)).await.unwrap();
    assert_eq!(next, Ok(Published::New { sequence_number: 4 }), "a new order is stored");
}

pub async fn failed_publish_does_not_refuse_what_comes_before_it(bench: &Arc<Bench>) {
    let order = Arc::new(PublishOrder::default());
    // A publisher breaks its order off at an event that the store never gets, one over a quota for instance.
    order.break_off(2);
    let results = [0, 1, 3].map(|position| {
        let order = Some(OrderedPosition { order: order.clone(), position });
        bench.submit(NewEvent { order, ..bench.new_event(at(0), Birth::Waiting(at(0))) })
    });
    let [first, second, behind] = results;
    assert_eq!(first.await.unwrap(), Ok(Published::New { sequence_number: 1 }));
    assert_eq!(second.await.unwrap(), Ok(Published::New { sequence_number: 2 }));
    assert_eq!(behind.await.unwrap(), Err(StoreError::OutOfOrder));
}

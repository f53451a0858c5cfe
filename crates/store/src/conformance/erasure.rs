//! Erasing: a payload is gone for good, and so is all that repeats it; its history stays.

use std::sync::Arc;

use bytes::Bytes;
use redrive_core::{DeliveryStatus, EventId, delivery::lane::Lane, event::Event};

use super::{Bench, RETRY, at, page};
use crate::{Birth, Erased, KeyClaim, NewEvent, NewRound, Next, Published, Redriven, Replayed, StoredEvent};

const PAYLOAD: &[u8] = br#"{"email": "ada@example.com"}"#;

/// An event about somebody, with a delivery to the bench's webhook.
fn about(bench: &Bench, subject: &str, time: i64, birth: Birth) -> NewEvent {
    let event = Event {
        subject: Some(subject.into()),
        data: Bytes::from_static(PAYLOAD),
        metadata: Some(Bytes::from_static(br#"{"note": "ada"}"#)),
        ..bench.event(at(time))
    };
    bench.fan_out(event, &[(bench.webhook, birth)])
}

async fn stored(bench: &Bench, event: EventId) -> StoredEvent {
    bench.store().event(bench.tenant.clone(), event).await.unwrap().unwrap()
}

async fn erase(bench: &Bench, event: EventId, time: i64) -> Erased {
    bench.store().erase(bench.tenant.clone(), event, at(time)).await.unwrap()
}

pub async fn a_payload_is_gone_and_its_history_stays(bench: &Arc<Bench>) {
    let new = about(bench, "ada", 0, Birth::Leased);
    let (event, delivery) = (new.event.clone(), new.deliveries[0].id);
    bench.publish_new(new).await;
    bench.ends(delivery, Next::Delivered, at(1)).await;
    assert_eq!(erase(bench, event.id, 5).await, Erased::Now);
    let after = stored(bench, event.id).await;
    assert_eq!(after.erased_at, Some(at(5)));
    assert!(after.event.is_erased());
    let expected = Event { data: Bytes::new(), metadata: None, ..(*event).clone() };
    assert_eq!(after.event, expected, "all else is as it was");
    assert_eq!(bench.status(delivery).await, DeliveryStatus::Delivered);

    let answers = bench.store().erase_answers(bench.tenant.clone(), event.id, 10);
    assert_eq!(answers.await.unwrap(), 1);
    let answers = bench.store().erase_answers(bench.tenant.clone(), event.id, 10);
    assert_eq!(answers.await.unwrap(), 0);
    let attempt = &bench.attempts(delivery).await[0].attempt;
    assert_eq!((attempt.response_body_sample.as_ref(), attempt.http_status_code), (None, Some(200)));
    assert!(attempt.response_headers.is_some());
}

pub async fn erasing_twice_changes_nothing(bench: &Arc<Bench>) {
    let new = about(bench, "ada", 0, Birth::Waiting(at(0)));
    let event = new.event.id;
    bench.publish_new(new).await;
    assert_eq!(erase(bench, event, 5).await, Erased::Now);
    assert_eq!(erase(bench, event, 9).await, Erased::Before(at(5)));
    assert_eq!(stored(bench, event).await.erased_at, Some(at(5)));
    let unknown = EventId::new(at(0), &bench.next());
    assert_eq!(erase(bench, unknown, 9).await, Erased::Missing);
}

pub async fn other_tenants_erase_nothing(bench: &Arc<Bench>) {
    let globex = bench.new_tenant("globex").await;
    let new = about(bench, "ada", 0, Birth::Leased);
    let (event, delivery) = (new.event.id, new.deliveries[0].id);
    bench.publish_new(new).await;
    bench.ends(delivery, Next::Delivered, at(1)).await;
    let store = bench.store();
    assert_eq!(store.erase(globex.clone(), event, at(5)).await.unwrap(), Erased::Missing);
    assert_eq!(store.erase_answers(globex.clone(), event, 10).await.unwrap(), 0);
    assert_eq!(store.events_to_erase(globex, "ada".into(), 10).await.unwrap(), []);
    assert_eq!(&stored(bench, event).await.event.data[..], PAYLOAD);
    assert!(bench.attempts(delivery).await[0].attempt.response_body_sample.is_some());
}

pub async fn what_is_erased_is_sent_no_more(bench: &Arc<Bench>) {
    let over = about(bench, "ada", 0, Birth::Leased);
    let pending = about(bench, "ada", 1, Birth::Waiting(at(100)));
    for new in [&over, &pending] {
        bench.publish_new(new.clone()).await;
        assert_eq!(erase(bench, new.event.id, 5).await, Erased::Now);
    }
    bench.ends(over.deliveries[0].id, Next::Delivered, at(6)).await;
    for new in [over, pending] {
        let again = bench.again(bench.delivery_id(new.event.timestamp));
        assert_eq!(bench.retry(new.deliveries[0].id, again, at(10)).await, Redriven::Erased);
        let round = NewRound {
            id: bench.delivery_id(new.event.timestamp),
            webhook: bench.webhook_id(),
            format: Default::default(),
            lane: Lane::clone(&RETRY),
        };
        let replayed = bench.store().replay(bench.tenant.clone(), new.event.id, vec![round], None, at(10));
        assert_eq!(replayed.await.unwrap(), Replayed::Erased);
    }
}

pub async fn whoever_claims_it_sees_that_it_is_gone(bench: &Arc<Bench>) {
    let new = about(bench, "ada", 0, Birth::Waiting(at(10)));
    bench.publish_new(new.clone()).await;
    erase(bench, new.event.id, 5).await;
    let claimed = bench.claim_one(at(10)).await;
    assert!(claimed.event.is_erased());
    bench.ends(claimed.id, Next::Cancelled { reason: "gone".into() }, at(11)).await;
}

pub async fn its_key_is_still_taken(bench: &Arc<Bench>) {
    let keyed = |time: i64| {
        let new = about(bench, "ada", time, Birth::Leased);
        let event = Arc::new(Event { idempotency_key: Some("k".into()), ..(*new.event).clone() });
        let claim =
            Some(KeyClaim { body_hash: [1; 32], expires_at: at(time + 1_000), confirmed_now: at(time) });
        NewEvent { event, claim, ..new }
    };
    let first = keyed(0);
    bench.publish_new(first.clone()).await;
    erase(bench, first.event.id, 5).await;
    let answer = bench.publish(keyed(10)).await;
    assert_eq!(answer, Published::Duplicate { event: first.event.id });
}

pub async fn all_of_a_subject_is_found_the_oldest_first(bench: &mut Arc<Bench>) {
    let mut of_ada = Vec::new();
    for n in 0..10 {
        let new = about(bench, if n % 2 == 0 { "ada" } else { "bob" }, n, Birth::Waiting(at(0)));
        if n % 2 == 0 {
            of_ada.push(new.event.id);
        }
        bench.publish_new(new).await;
    }
    let of = |bench: &Arc<Bench>, limit| {
        let bench = bench.clone();
        async move { bench.store().events_to_erase(bench.tenant.clone(), "ada".into(), limit).await.unwrap() }
    };
    assert_eq!(of(bench, 3).await, of_ada[..3]);
    erase(bench, of_ada[0], 50).await;
    erase(bench, of_ada[3], 50).await;
    assert_eq!(of(bench, 10).await, [of_ada[1], of_ada[2], of_ada[4]]);
    Bench::reopen(bench).await;
    assert_eq!(of(bench, 10).await.len(), 3);
    let all = bench.store().list_events(bench.tenant.clone(), Default::default(), page(100)).await.unwrap();
    assert_eq!(all.found.iter().filter(|stored| stored.event.is_erased()).count(), 2);
}

pub async fn answers_go_in_bounded_steps(bench: &Arc<Bench>) {
    let to: Vec<_> = (0..7).map(|_| (bench.webhook_id(), Birth::Leased)).collect();
    let new = bench.fan_out(bench.event(at(0)), &to);
    bench.publish_new(new.clone()).await;
    for delivery in &new.deliveries {
        let outcome = bench.outcome(delivery.id, 1, Next::Delivered, at(1));
        bench.record(crate::Outcome { webhook: delivery.webhook, ..outcome }).await;
    }
    for step in [3, 3, 1, 0] {
        let erased = bench.store().erase_answers(bench.tenant.clone(), new.event.id, 3).await.unwrap();
        assert_eq!(erased, step);
    }
    for delivery in &new.deliveries {
        assert_eq!(bench.attempts(delivery.id).await[0].attempt.response_body_sample, None);
    }
}

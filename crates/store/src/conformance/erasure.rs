//! Erasure: the payload and every copy of it are deleted permanently; the history stays.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use bytes::Bytes;
use redrive_core::{DeliveryStatus, EventId, delivery::lane::Lane, event::Event};

use super::{Harness, RETRY, at, page};
use crate::{
    EraseResult, IdempotencyReservation, InitialState, NewEvent, NewRound, PublishResult, RedriveResult,
    ReplayResult, StoredEvent,
};

const PAYLOAD: &[u8] = br#"{"email": "ada@example.com"}"#;

/// Returns an event with a subject and a delivery to the harness's webhook.
fn about(harness: &Harness, subject: &str, time: i64, initial_state: InitialState) -> NewEvent {
    let event = Event {
        subject: Some(subject.into()),
        data: Bytes::from_static(PAYLOAD),
        metadata: Some(Bytes::from_static(br#"{"note": "ada"}"#)),
        ..harness.event(at(time))
    };
    harness.fan_out(event, &[(harness.webhook_id, initial_state)])
}

async fn stored(harness: &Harness, event_id: EventId) -> StoredEvent {
    harness.store().event(harness.tenant_id.clone(), event_id).await.unwrap().unwrap()
}

async fn erase(harness: &Harness, event_id: EventId, time: i64) -> EraseResult {
    harness.store().erase(harness.tenant_id.clone(), event_id, at(time)).await.unwrap()
}

pub async fn erase_deletes_payload_and_keeps_history(harness: &Arc<Harness>) {
    let new = about(harness, "ada", 0, InitialState::Leased);
    let (event, delivery_id) = (new.event.clone(), new.deliveries[0].id);
    harness.publish_new(new).await;
    harness.ends(delivery_id, Outcome::Delivered, at(1)).await;
    assert_eq!(erase(harness, event.id, 5).await, EraseResult::Erased);
    let after = stored(harness, event.id).await;
    assert_eq!(after.erased_at, Some(at(5)));
    assert!(after.event.is_erased());
    let expected = Event { data: Bytes::new(), metadata: None, ..(*event).clone() };
    assert_eq!(after.event, expected, "all other fields are unchanged");
    assert_eq!(harness.status(delivery_id).await, DeliveryStatus::Delivered);

    let responses = harness.store().erase_responses(harness.tenant_id.clone(), event.id, 10);
    assert_eq!(responses.await.unwrap(), 1);
    let responses = harness.store().erase_responses(harness.tenant_id.clone(), event.id, 10);
    assert_eq!(responses.await.unwrap(), 0);
    let attempt = &harness.attempts(delivery_id).await[0].attempt;
    assert_eq!((attempt.response_body_sample.as_ref(), attempt.http_status_code), (None, Some(200)));
    assert!(attempt.response_headers.is_some());
}

pub async fn erasing_twice_changes_nothing(harness: &Arc<Harness>) {
    let new = about(harness, "ada", 0, InitialState::Waiting(at(0)));
    let event_id = new.event.id;
    harness.publish_new(new).await;
    assert_eq!(erase(harness, event_id, 5).await, EraseResult::Erased);
    assert_eq!(erase(harness, event_id, 9).await, EraseResult::AlreadyErased(at(5)));
    assert_eq!(stored(harness, event_id).await.erased_at, Some(at(5)));
    let unknown = EventId::new(at(0), &harness.next());
    assert_eq!(erase(harness, unknown, 9).await, EraseResult::NotFound);
}

pub async fn erase_by_another_tenant_changes_nothing(harness: &Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let new = about(harness, "ada", 0, InitialState::Leased);
    let (event_id, delivery_id) = (new.event.id, new.deliveries[0].id);
    harness.publish_new(new).await;
    harness.ends(delivery_id, Outcome::Delivered, at(1)).await;
    let store = harness.store();
    assert_eq!(store.erase(globex.clone(), event_id, at(5)).await.unwrap(), EraseResult::NotFound);
    assert_eq!(store.erase_responses(globex.clone(), event_id, 10).await.unwrap(), 0);
    assert_eq!(store.events_to_erase(globex, "ada".into(), 10).await.unwrap(), []);
    assert_eq!(&stored(harness, event_id).await.event.data[..], PAYLOAD);
    assert!(harness.attempts(delivery_id).await[0].attempt.response_body_sample.is_some());
}

pub async fn erased_event_cannot_be_retried_or_replayed(harness: &Arc<Harness>) {
    let over = about(harness, "ada", 0, InitialState::Leased);
    let pending = about(harness, "ada", 1, InitialState::Waiting(at(100)));
    for new in [&over, &pending] {
        harness.publish_new(new.clone()).await;
        assert_eq!(erase(harness, new.event.id, 5).await, EraseResult::Erased);
    }
    harness.ends(over.deliveries[0].id, Outcome::Delivered, at(6)).await;
    for new in [over, pending] {
        let options = harness.redrive_options(harness.delivery_id(new.event.timestamp));
        assert_eq!(harness.retry(new.deliveries[0].id, options, at(10)).await, RedriveResult::Erased);
        let round = NewRound {
            id: harness.delivery_id(new.event.timestamp),
            webhook_id: harness.webhook_id(),
            format: Default::default(),
            lane: Lane::clone(&RETRY),
        };
        let replayed =
            harness.store().replay(harness.tenant_id.clone(), new.event.id, vec![round], None, at(10));
        assert_eq!(replayed.await.unwrap(), ReplayResult::Erased);
    }
}

pub async fn claim_of_erased_event_shows_erasure(harness: &Arc<Harness>) {
    let new = about(harness, "ada", 0, InitialState::Waiting(at(10)));
    harness.publish_new(new.clone()).await;
    erase(harness, new.event.id, 5).await;
    let claimed = harness.claim_one(at(10)).await;
    assert!(claimed.event.is_erased());
    harness.ends(claimed.id, Outcome::Cancelled("gone".into()), at(11)).await;
}

pub async fn idempotency_key_of_erased_event_stays_taken(harness: &Arc<Harness>) {
    let keyed = |time: i64| {
        let new = about(harness, "ada", time, InitialState::Leased);
        let event = Arc::new(Event { idempotency_key: Some("k".into()), ..(*new.event).clone() });
        let idempotency = Some(IdempotencyReservation {
            body_hash: [1; 32],
            expires_at: at(time + 1_000),
            confirmed_now: at(time),
        });
        NewEvent { event, idempotency, ..new }
    };
    let first = keyed(0);
    harness.publish_new(first.clone()).await;
    erase(harness, first.event.id, 5).await;
    let response = harness.publish(keyed(10)).await;
    assert_eq!(response, PublishResult::Duplicate { event_id: first.event.id });
}

pub async fn events_of_a_subject_are_found_oldest_first(harness: &mut Arc<Harness>) {
    let mut of_ada = Vec::new();
    for n in 0..10 {
        let new = about(harness, if n % 2 == 0 { "ada" } else { "bob" }, n, InitialState::Waiting(at(0)));
        if n % 2 == 0 {
            of_ada.push(new.event.id);
        }
        harness.publish_new(new).await;
    }
    let of = |harness: &Arc<Harness>, limit| {
        let harness = harness.clone();
        async move {
            harness.store().events_to_erase(harness.tenant_id.clone(), "ada".into(), limit).await.unwrap()
        }
    };
    assert_eq!(of(harness, 3).await, of_ada[..3]);
    erase(harness, of_ada[0], 50).await;
    erase(harness, of_ada[3], 50).await;
    assert_eq!(of(harness, 10).await, [of_ada[1], of_ada[2], of_ada[4]]);
    Harness::reopen(harness).await;
    assert_eq!(of(harness, 10).await.len(), 3);
    let all =
        harness.store().list_events(harness.tenant_id.clone(), Default::default(), page(100)).await.unwrap();
    assert_eq!(all.found.iter().filter(|stored| stored.event.is_erased()).count(), 2);
}

pub async fn responses_are_erased_in_bounded_steps(harness: &Arc<Harness>) {
    let to: Vec<_> = (0..7).map(|_| (harness.webhook_id(), InitialState::Leased)).collect();
    let new = harness.fan_out(harness.event(at(0)), &to);
    harness.publish_new(new.clone()).await;
    for delivery in &new.deliveries {
        let outcome = harness.outcome(delivery.id, 1, Outcome::Delivered, at(1));
        harness.record(crate::OutcomeRecord { webhook_id: delivery.webhook_id, ..outcome }).await;
    }
    for step in [3, 3, 1, 0] {
        let erased =
            harness.store().erase_responses(harness.tenant_id.clone(), new.event.id, 3).await.unwrap();
        assert_eq!(erased, step);
    }
    for delivery in &new.deliveries {
        assert_eq!(harness.attempts(delivery.id).await[0].attempt.response_body_sample, None);
    }
}

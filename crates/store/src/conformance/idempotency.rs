//! Idempotency keys: one event per key until the key expires, for every publisher.

use std::sync::Arc;

use redrive_core::{EventId, event::Event};

use super::{Harness, at, page, together};
use crate::{IdempotencyReservation, InitialState, NewEvent, PublishResult, StoreError};

/// Lifetime of keys in these cases, in milliseconds.
const LIFE: i64 = 1000;

/// Returns an event with a key. `body` stands for the hash of its body.
fn keyed(harness: &Harness, key: &str, body: u8, time: i64) -> NewEvent {
    let event = Event { idempotency_key: Some(key.into()), ..harness.event(at(time)) };
    let idempotency = Some(IdempotencyReservation {
        body_hash: [body; 32],
        expires_at: at(time + LIFE),
        confirmed_now: at(time),
    });
    NewEvent { idempotency, ..harness.fan_out(event, &[(harness.webhook_id, InitialState::Leased)]) }
}

async fn publish_first(harness: &Harness, key: &str) -> EventId {
    let first = keyed(harness, key, 1, 0);
    harness.publish_new(first.clone()).await;
    first.event.id
}

async fn event_count(harness: &Harness) -> usize {
    harness
        .store()
        .list_events(harness.tenant_id.clone(), Default::default(), page(1000))
        .await
        .unwrap()
        .found
        .len()
}

pub async fn same_key_and_body_return_the_first_event(harness: &Arc<Harness>) {
    let event_id = publish_first(harness, "a").await;
    let again = keyed(harness, "a", 1, 1);
    assert_eq!(harness.publish(again.clone()).await, PublishResult::Duplicate { event_id });
    assert_eq!(event_count(harness).await, 1);
    let stray = harness.store().delivery(harness.tenant_id.clone(), again.deliveries[0].id).await.unwrap();
    assert_eq!(stray, None);
    harness.publish_new(keyed(harness, "b", 1, 1)).await;
}

pub async fn same_key_with_another_body_is_rejected(harness: &Arc<Harness>) {
    let event_id = publish_first(harness, "a").await;
    assert_eq!(harness.publish(keyed(harness, "a", 2, 1)).await, PublishResult::KeyReused { event_id });
    assert_eq!(harness.publish(keyed(harness, "a", 1, 2)).await, PublishResult::Duplicate { event_id });
    assert_eq!(event_count(harness).await, 1);
}

pub async fn idempotency_keys_are_separate_per_tenant(harness: &Arc<Harness>) {
    publish_first(harness, "a").await;
    let tenant_id = harness.new_tenant("globex").await;
    let config_version =
        harness.store().config_changes(tenant_id.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let mut theirs = keyed(harness, "a", 2, 1);
    theirs.deliveries[0].webhook_id = harness.webhook_id();
    let event = Arc::new(Event { tenant_id, ..(*theirs.event).clone() });
    harness.publish_new(NewEvent { event, config_version, ..theirs }).await;
}

pub async fn key_expires_to_the_millisecond(harness: &Arc<Harness>) {
    let event_id = publish_first(harness, "a").await;
    assert_eq!(
        harness.publish(keyed(harness, "a", 1, LIFE - 1)).await,
        PublishResult::Duplicate { event_id }
    );
    assert_eq!(
        harness.publish(keyed(harness, "a", 2, LIFE - 1)).await,
        PublishResult::KeyReused { event_id }
    );
    let second = keyed(harness, "a", 2, LIFE);
    harness.publish_new(second.clone()).await;
    // From now on the key belongs to the second event, with a lifetime of its own.
    let event_id = second.event.id;
    assert_eq!(
        harness.publish(keyed(harness, "a", 2, 2 * LIFE - 1)).await,
        PublishResult::Duplicate { event_id }
    );
    harness.publish_new(keyed(harness, "a", 2, 2 * LIFE)).await;
}

pub async fn concurrent_publishers_of_one_key_create_one_event(harness: &Arc<Harness>) {
    let publisher = |n: i64| {
        let harness = harness.clone();
        async move {
            let new = keyed(&harness, "a", 1, n % 10);
            (new.event.id, harness.publish(new).await)
        }
    };
    let responses = together((0..500).map(publisher)).await;
    let new = |(_, response): &&(EventId, PublishResult)| matches!(response, PublishResult::New { .. });
    let first: Vec<_> = responses.iter().filter(new).map(|(event_id, _)| *event_id).collect();
    assert_eq!(first.len(), 1);
    let known =
        responses.iter().filter(|(_, response)| *response == PublishResult::Duplicate { event_id: first[0] });
    assert_eq!(known.count(), 499);
    assert_eq!(event_count(harness).await, 1);
}

pub async fn duplicates_within_one_batch_are_found(harness: &Arc<Harness>) {
    // Submitted without waiting for results; the keys alternate, and every third body differs.
    let keys = ["a", "b", "c", "d"];
    let items: Vec<_> =
        (0..60).map(|n| keyed(harness, keys[n % 4], u8::from(n % 3 == 2), n as i64)).collect();
    let replies: Vec<_> = items.iter().map(|new| harness.submit(new.clone())).collect();
    let mut published = Vec::new();
    for response in replies {
        published.push(response.await.unwrap().unwrap());
    }
    for key in 0..4 {
        let of_key: Vec<usize> = (key..60).step_by(4).collect();
        let is_new = |n: &&usize| matches!(published[**n], PublishResult::New { .. });
        let winners: Vec<_> = of_key.iter().filter(is_new).collect();
        assert_eq!(winners.len(), 1, "{key}");
        let winner = *winners[0];
        let (event_id, body) = (items[winner].event.id, items[winner].idempotency.clone().unwrap().body_hash);
        for n in of_key.into_iter().filter(|n| *n != winner) {
            let same = items[n].idempotency.clone().unwrap().body_hash == body;
            let wanted = if same {
                PublishResult::Duplicate { event_id }
            } else {
                PublishResult::KeyReused { event_id }
            };
            assert_eq!(published[n], wanted);
        }
    }
    assert_eq!(event_count(harness).await, 4);
}

pub async fn expired_keys_are_pruned_in_bounded_steps(harness: &Arc<Harness>) {
    for n in 0..5 {
        harness.publish_new(keyed(harness, &format!("old-{n}"), 1, 0)).await;
    }
    for n in 0..3 {
        harness.publish_new(keyed(harness, &format!("young-{n}"), 1, 1)).await;
    }
    let prune = |limit| harness.store().prune_idempotency_keys(at(LIFE), limit);
    assert_eq!(harness.store().prune_idempotency_keys(at(LIFE - 1), 10).await.unwrap(), 0);
    assert_eq!(prune(2).await.unwrap(), 2);
    assert_eq!(prune(2).await.unwrap(), 2);
    assert_eq!(prune(2).await.unwrap(), 1);
    assert_eq!(prune(2).await.unwrap(), 0);
    for n in 0..5 {
        // By its time this would still be a duplicate, so the key must have been deleted.
        harness.publish_new(keyed(harness, &format!("old-{n}"), 1, 1)).await;
    }
    for n in 0..3 {
        let response = harness.publish(keyed(harness, &format!("young-{n}"), 1, LIFE)).await;
        assert!(matches!(response, PublishResult::Duplicate { .. }), "{response:?}");
    }
}

pub async fn rejected_publish_claims_no_key(harness: &Arc<Harness>) {
    let stale = NewEvent { config_version: harness.version() - 1, ..keyed(harness, "a", 1, 0) };
    assert_eq!(harness.publish(stale).await, PublishResult::ConfigChanged);
    let event_id = publish_first(harness, "a").await;
    assert_eq!(harness.publish(keyed(harness, "a", 1, 1)).await, PublishResult::Duplicate { event_id });

    let mut bad = keyed(harness, "b", 1, 0);
    bad.event = Arc::new(Event { id: event_id, ..(*bad.event).clone() });
    let response = harness.try_publish(bad).await;
    assert!(matches!(response, Err(StoreError::InvalidItem(_))), "{response:?}");
    publish_first(harness, "b").await;
}

pub async fn duplicate_with_stale_config_is_still_detected(harness: &Arc<Harness>) {
    let event_id = publish_first(harness, "a").await;
    let again = keyed(harness, "a", 1, 1);
    harness.new_webhook().await;
    assert_eq!(harness.publish(again).await, PublishResult::Duplicate { event_id });
}

pub async fn keys_survive_reopening(harness: &mut Arc<Harness>) {
    let event_id = publish_first(harness, "a").await;
    Harness::reopen(harness).await;
    assert_eq!(harness.publish(keyed(harness, "a", 1, 1)).await, PublishResult::Duplicate { event_id });
}

pub async fn key_is_held_until_the_confirmed_time_reaches_its_expiry(harness: &Arc<Harness>) {
    let event_id = publish_first(harness, "a").await;
    // The clock jumped ahead, and the jump is not confirmed.
    let reservation = |confirmed| IdempotencyReservation {
        body_hash: [1; 32],
        expires_at: at(9_000_000),
        confirmed_now: at(confirmed),
    };
    let late = |confirmed| NewEvent {
        idempotency: Some(reservation(confirmed)),
        ..keyed(harness, "a", 1, 8_000_000)
    };
    assert_eq!(harness.publish(late(LIFE - 1)).await, PublishResult::Duplicate { event_id });
    harness.publish_new(late(LIFE)).await;
}

//! One key, one event: for as long as the key lives, and whoever asks.

use std::sync::Arc;

use redrive_core::{EventId, event::Event};

use super::{Bench, at, page, together};
use crate::{Birth, KeyClaim, NewEvent, Published, StoreError};

/// How long keys live here, in milliseconds.
const LIFE: i64 = 1000;

/// An event with a key. `body` stands for what its body says.
fn keyed(bench: &Bench, key: &str, body: u8, time: i64) -> NewEvent {
    let event = Event { idempotency_key: Some(key.into()), ..bench.event(at(time)) };
    let claim =
        Some(KeyClaim { body_hash: [body; 32], expires_at: at(time + LIFE), confirmed_now: at(time) });
    NewEvent { claim, ..bench.fan_out(event, &[(bench.webhook, Birth::Leased)]) }
}

async fn publish_first(bench: &Bench, key: &str) -> EventId {
    let first = keyed(bench, key, 1, 0);
    bench.publish_new(first.clone()).await;
    first.event.id
}

async fn event_count(bench: &Bench) -> usize {
    bench.store().list_events(bench.tenant.clone(), Default::default(), page(1000)).await.unwrap().found.len()
}

pub async fn the_same_key_and_body_give_the_first_event(bench: &Arc<Bench>) {
    let event = publish_first(bench, "a").await;
    let again = keyed(bench, "a", 1, 1);
    assert_eq!(bench.publish(again.clone()).await, Published::Duplicate { event });
    assert_eq!(event_count(bench).await, 1);
    let stray = bench.store().delivery(bench.tenant.clone(), again.deliveries[0].id).await.unwrap();
    assert_eq!(stray, None);
    bench.publish_new(keyed(bench, "b", 1, 1)).await;
}

pub async fn the_same_key_with_another_body_is_refused(bench: &Arc<Bench>) {
    let event = publish_first(bench, "a").await;
    assert_eq!(bench.publish(keyed(bench, "a", 2, 1)).await, Published::KeyReused { event });
    assert_eq!(bench.publish(keyed(bench, "a", 1, 2)).await, Published::Duplicate { event });
    assert_eq!(event_count(bench).await, 1);
}

pub async fn tenants_have_their_own_keys(bench: &Arc<Bench>) {
    publish_first(bench, "a").await;
    let tenant = bench.new_tenant("globex").await;
    let config_version =
        bench.store().config_changes(tenant.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let mut theirs = keyed(bench, "a", 2, 1);
    theirs.deliveries[0].webhook = bench.webhook_id();
    let event = Arc::new(Event { tenant, ..(*theirs.event).clone() });
    bench.publish_new(NewEvent { event, config_version, ..theirs }).await;
}

pub async fn a_key_expires_to_the_millisecond(bench: &Arc<Bench>) {
    let event = publish_first(bench, "a").await;
    assert_eq!(bench.publish(keyed(bench, "a", 1, LIFE - 1)).await, Published::Duplicate { event });
    assert_eq!(bench.publish(keyed(bench, "a", 2, LIFE - 1)).await, Published::KeyReused { event });
    let second = keyed(bench, "a", 2, LIFE);
    bench.publish_new(second.clone()).await;
    // From now on the key is the second event's, for a life of its own.
    let event = second.event.id;
    assert_eq!(bench.publish(keyed(bench, "a", 2, 2 * LIFE - 1)).await, Published::Duplicate { event });
    bench.publish_new(keyed(bench, "a", 2, 2 * LIFE)).await;
}

pub async fn many_publishers_of_one_key_make_one_event(bench: &Arc<Bench>) {
    let publisher = |n: i64| {
        let bench = bench.clone();
        async move {
            let new = keyed(&bench, "a", 1, n % 10);
            (new.event.id, bench.publish(new).await)
        }
    };
    let answers = together((0..500).map(publisher)).await;
    let new = |(_, answer): &&(EventId, Published)| matches!(answer, Published::New { .. });
    let first: Vec<_> = answers.iter().filter(new).map(|(event, _)| *event).collect();
    assert_eq!(first.len(), 1);
    let known = answers.iter().filter(|(_, answer)| *answer == Published::Duplicate { event: first[0] });
    assert_eq!(known.count(), 499);
    assert_eq!(event_count(bench).await, 1);
}

pub async fn duplicates_within_one_batch_are_found(bench: &Arc<Bench>) {
    // Handed in without waiting for one another; keys take turns, and each third body differs.
    let keys = ["a", "b", "c", "d"];
    let items: Vec<_> = (0..60).map(|n| keyed(bench, keys[n % 4], u8::from(n % 3 == 2), n as i64)).collect();
    let answers: Vec<_> = items.iter().map(|new| bench.submit(new.clone())).collect();
    let mut published = Vec::new();
    for answer in answers {
        published.push(answer.await.unwrap().unwrap());
    }
    for key in 0..4 {
        let of_key: Vec<usize> = (key..60).step_by(4).collect();
        let is_new = |n: &&usize| matches!(published[**n], Published::New { .. });
        let winners: Vec<_> = of_key.iter().filter(is_new).collect();
        assert_eq!(winners.len(), 1, "{key}");
        let winner = *winners[0];
        let (event, body) = (items[winner].event.id, items[winner].claim.clone().unwrap().body_hash);
        for n in of_key.into_iter().filter(|n| *n != winner) {
            let same = items[n].claim.clone().unwrap().body_hash == body;
            let wanted = if same { Published::Duplicate { event } } else { Published::KeyReused { event } };
            assert_eq!(published[n], wanted);
        }
    }
    assert_eq!(event_count(bench).await, 4);
}

pub async fn expired_keys_are_forgotten_in_bounded_steps(bench: &Arc<Bench>) {
    for n in 0..5 {
        bench.publish_new(keyed(bench, &format!("old-{n}"), 1, 0)).await;
    }
    for n in 0..3 {
        bench.publish_new(keyed(bench, &format!("young-{n}"), 1, 1)).await;
    }
    let forget = |limit| bench.store().forget_keys(at(LIFE), limit);
    assert_eq!(bench.store().forget_keys(at(LIFE - 1), 10).await.unwrap(), 0);
    assert_eq!(forget(2).await.unwrap(), 2);
    assert_eq!(forget(2).await.unwrap(), 2);
    assert_eq!(forget(2).await.unwrap(), 1);
    assert_eq!(forget(2).await.unwrap(), 0);
    for n in 0..5 {
        // By its time this one would still be a duplicate: the key is really gone.
        bench.publish_new(keyed(bench, &format!("old-{n}"), 1, 1)).await;
    }
    for n in 0..3 {
        let answer = bench.publish(keyed(bench, &format!("young-{n}"), 1, LIFE)).await;
        assert!(matches!(answer, Published::Duplicate { .. }), "{answer:?}");
    }
}

pub async fn a_refused_publish_takes_no_key(bench: &Arc<Bench>) {
    let stale = NewEvent { config_version: bench.version() - 1, ..keyed(bench, "a", 1, 0) };
    assert_eq!(bench.publish(stale).await, Published::ConfigChanged);
    let event = publish_first(bench, "a").await;
    assert_eq!(bench.publish(keyed(bench, "a", 1, 1)).await, Published::Duplicate { event });

    let mut bad = keyed(bench, "b", 1, 0);
    bad.event = Arc::new(Event { id: event, ..(*bad.event).clone() });
    let answer = bench.try_publish(bad).await;
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
    publish_first(bench, "b").await;
}

pub async fn a_duplicate_is_known_even_to_a_stale_publisher(bench: &Arc<Bench>) {
    let event = publish_first(bench, "a").await;
    let again = keyed(bench, "a", 1, 1);
    bench.new_webhook().await;
    assert_eq!(bench.publish(again).await, Published::Duplicate { event });
}

pub async fn keys_survive_reopening(bench: &mut Arc<Bench>) {
    let event = publish_first(bench, "a").await;
    Bench::reopen(bench).await;
    assert_eq!(bench.publish(keyed(bench, "a", 1, 1)).await, Published::Duplicate { event });
}

pub async fn key_is_held_until_the_confirmed_time_reaches_its_end(bench: &Arc<Bench>) {
    let event = publish_first(bench, "a").await;
    // The clock jumped by days, and the jump is not confirmed.
    let claim =
        |confirmed| KeyClaim { body_hash: [1; 32], expires_at: at(9_000_000), confirmed_now: at(confirmed) };
    let late = |confirmed| NewEvent { claim: Some(claim(confirmed)), ..keyed(bench, "a", 1, 8_000_000) };
    assert_eq!(bench.publish(late(LIFE - 1)).await, Published::Duplicate { event });
    bench.publish_new(late(LIFE)).await;
}

//! Archive: every pruned row is either in the store or in the archive, exactly once, wherever it is interrupted.

use redrive_core::delivery::outcome::Outcome;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use redrive_core::{
    DeadReason, Time,
    event::{Event, trace::Trace},
};
use serde_json::Value;

use super::{Harness, at, page};
use crate::{InitialState, PruneCounts, PruneRequest, archive};

/// An archive in memory: objects by name.
type Stored = BTreeMap<String, Vec<u8>>;

const DAY: i64 = 24 * 3600 * 1000;

fn lines(bytes: &[u8]) -> Vec<Value> {
    let lines = archive::lines(bytes).unwrap();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

/// Creates an event whose delivery has one of four outcomes. Returns whether the delivery has ended.
async fn publish_event(harness: &Harness, time: Time, index: usize) -> bool {
    let initial_state = if index == 0 { InitialState::Waiting(at(5_000)) } else { InitialState::Leased };
    let new = harness.new_event(time, initial_state);
    let delivery_id = new.deliveries[0].id;
    harness.publish_new(new).await;
    match index {
        1 => harness.ends(delivery_id, Outcome::Delivered, time).await,
        2 => harness.ends(delivery_id, Outcome::Dead(DeadReason::Exhausted), time).await,
        3 => harness.ends(delivery_id, Outcome::Cancelled("enough".into()), time).await,
        _ => {}
    }
    index > 0
}

/// Runs one pruning step; returns `true` if there is nothing more to prune.
async fn prune(harness: &Harness, before: Time, rows: usize) -> bool {
    let dead =
        PruneRequest { tenant_id: harness.tenant_id.clone(), before, after: None, rows, archive: true };
    let dead = harness.store().prune_dead(dead).await.unwrap();
    let request =
        PruneRequest { tenant_id: harness.tenant_id.clone(), before, after: None, rows, archive: true };
    let events = harness.store().prune_events(request).await.unwrap();
    dead.finished && events.finished
}

/// Stores all pending objects.
async fn store_all(harness: &Harness, stored: &mut Stored) {
    while let Some(object) = harness.store().next_object(0, 1_000).await.unwrap() {
        stored.insert(object.name.clone(), object.bytes);
        harness.store().object_stored(object.name).await.unwrap();
    }
}

/// Returns the kind and id of every row in the store.
async fn ids_in_store(harness: &Harness) -> BTreeSet<(String, String)> {
    let mut ids = BTreeSet::new();
    let tenant = || harness.tenant_id.clone();
    for stored in harness.store().list_events(tenant(), Default::default(), page(10_000)).await.unwrap().found
    {
        ids.insert(("event".into(), stored.event.id.to_string()));
    }
    for delivery in
        harness.store().list_deliveries(tenant(), Default::default(), page(10_000)).await.unwrap().found
    {
        for stored in harness.store().attempts(tenant(), delivery.id).await.unwrap().unwrap() {
            ids.insert(("attempt".into(), stored.attempt.id.to_string()));
        }
        ids.insert(("delivery".into(), delivery.id.to_string()));
    }
    ids
}

/// Returns the kind and id of every line in the archive; fails on duplicates.
fn ids_in_archive(stored: &Stored) -> BTreeSet<(String, String)> {
    let mut ids = BTreeSet::new();
    for line in stored.values().flat_map(|bytes| lines(bytes)) {
        let id = (line["kind"].as_str().unwrap().to_owned(), line["id"].as_str().unwrap().to_owned());
        assert!(ids.insert(id.clone()), "{id:?} is in the archive twice");
    }
    ids
}

pub async fn pruned_event_is_archived_completely(harness: &Arc<Harness>) {
    let event = Event {
        data: Bytes::from_static(b"{\n  \"a\": [1,\r\n 2.50]\n}"),
        metadata: Some(Bytes::from_static(br#"{"m": true}"#)),
        subject: Some("ada".into()),
        trace: Trace::from_headers("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
            .map(Box::new),
        hops: 3,
        ..harness.event(at(0))
    };
    let new = harness.fan_out(event, &[(harness.webhook_id, InitialState::Leased)]);
    harness.publish_new(new.clone()).await;
    harness.ends(new.deliveries[0].id, Outcome::Delivered, at(7)).await;
    let kept = harness.new_event(at(1), InitialState::Waiting(at(9)));
    harness.publish_new(kept.clone()).await;
    assert!(prune(harness, at(100), 10).await);

    let object = harness.store().next_object(0, usize::MAX).await.unwrap().unwrap();
    assert_eq!(object.holds, PruneCounts { events: 1, deliveries: 1, attempts: 1 });
    assert!(object.name.starts_with("2023-11-14/"), "{}", object.name);
    let lines = lines(&object.bytes);
    let of = |kind: &str| lines.iter().find(|line| line["kind"] == kind).unwrap();
    let event = of("event");
    assert_eq!(event["id"], new.event.id.to_string());
    assert_eq!(event["tenant_id"], harness.tenant_id.as_str());
    assert_eq!(event["data"], serde_json::json!({"a": [1, 2.5]}));
    assert_eq!(event["metadata"], serde_json::json!({"m": true}));
    assert_eq!(event["subject"], "ada");
    assert_eq!(event["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(event["hops"], 3);
    assert_eq!(of("delivery")["status"], "delivered");
    assert_eq!(of("attempt")["response_body_sample"], "hello");
    assert_eq!(of("attempt")["delivery_id"], new.deliveries[0].id.to_string());
}

pub async fn object_is_unchanged_until_it_is_stored(harness: &mut Arc<Harness>) {
    for n in 0..6 {
        publish_event(harness, at(n), 1).await;
    }
    while !prune(harness, at(3), 1).await {}
    assert_eq!(
        harness.store().next_object(1 << 20, 1 << 20).await.unwrap(),
        None,
        "an object is started only when enough rows wait"
    );
    let first = harness.store().next_object(0, 1 << 20).await.unwrap().unwrap();
    assert_eq!(first.holds.events, 3);
    // More rows are pruned, and the process dies.
    while !prune(harness, at(100), 1).await {}
    Harness::reopen(harness).await;
    assert_eq!(harness.store().next_object(1 << 20, 1 << 20).await.unwrap().as_ref(), Some(&first));
    harness.store().object_stored(first.name.clone()).await.unwrap();
    let second = harness.store().next_object(0, 1 << 20).await.unwrap().unwrap();
    assert_eq!(second.holds.events, 3);
    assert_ne!(second.name, first.name);
    harness.store().object_stored(second.name).await.unwrap();
    assert_eq!(harness.store().next_object(0, 1 << 20).await.unwrap(), None);
}

pub async fn object_covers_one_day_and_is_bounded(harness: &Arc<Harness>) {
    for n in 0..9 {
        publish_event(harness, at(n / 3 * DAY + n), 1).await;
    }
    while !prune(harness, at(30 * DAY), 2).await {}
    let mut names = Vec::new();
    let mut events = 0;
    while let Some(object) = harness.store().next_object(0, 1).await.unwrap() {
        events += object.holds.events;
        for line in lines(&object.bytes).iter().filter(|line| line["kind"] == "event") {
            assert!(line["timestamp"].as_str().unwrap().starts_with(&object.name[..10]));
        }
        names.push(object.name.clone());
        harness.store().object_stored(object.name).await.unwrap();
    }
    assert_eq!(events, 9);
    let days: BTreeSet<_> = names.iter().map(|name| &name[..10]).collect();
    assert_eq!(days.into_iter().collect::<Vec<_>>(), ["2023-11-14", "2023-11-15", "2023-11-16"]);
    assert!(names.len() >= 5, "{names:?}");
}

pub async fn random_interruptions_lose_or_duplicate_nothing(harness: &mut Arc<Harness>) {
    let mut created = 0_i64;
    let mut stored = Stored::new();
    let mut rng = 20_261_115_u64;
    let mut next_random = |sides: u64| {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (rng >> 33) % sides
    };
    let mut all = BTreeSet::new();
    for _ in 0..50 {
        for _ in 0..next_random(6) {
            publish_event(harness, at(created), next_random(4) as usize).await;
            created += 1;
        }
        all.extend(ids_in_store(harness).await);
        let before = at(created - next_random(5) as i64);
        for _ in 0..next_random(6) {
            match next_random(3) {
                0 | 1 => drop(prune(harness, before, 1 + next_random(60) as usize).await),
                _ => {
                    let max = 1 + next_random(3_000) as usize;
                    if let Some(object) = harness.store().next_object(0, max).await.unwrap() {
                        // The process is killed before the object is stored, after that, or after the store has recorded it.
                        let killed = next_random(3);
                        if killed > 0 {
                            stored.insert(object.name.clone(), object.bytes);
                        }
                        if killed > 1 {
                            harness.store().object_stored(object.name).await.unwrap();
                        }
                    }
                }
            }
        }
        Harness::reopen(harness).await;
    }
    store_all(harness, &mut stored).await;
    let (here, there) = (ids_in_store(harness).await, ids_in_archive(&stored));
    assert!(here.is_disjoint(&there), "an event is in both the store and the archive");
    assert_eq!(
        here.union(&there).cloned().collect::<BTreeSet<_>>(),
        all,
        "an event is in neither the store nor the archive"
    );
    assert!(there.len() > 100 && !here.is_empty(), "{} and {}", there.len(), here.len());
}

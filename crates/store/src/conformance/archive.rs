//! The archive: what is pruned is in the store or in the archive, once, whenever it is interrupted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use redrive_core::{DeadReason, Time, event::Event, event::trace::Trace};
use serde_json::Value;

use super::{Bench, at, page};
use crate::{Birth, Left, Next, Old, archive};

/// An archive in memory: what it holds by name.
type Stored = BTreeMap<String, Vec<u8>>;

const DAY: i64 = 24 * 3600 * 1000;

fn lines(bytes: &[u8]) -> Vec<Value> {
    let lines = archive::lines(bytes).unwrap();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

/// Makes an event whose delivery went one of a few ways. Gives whether it is over.
async fn make(bench: &Bench, time: Time, way: usize) -> bool {
    let birth = if way == 0 { Birth::Waiting(at(5_000)) } else { Birth::Leased };
    let new = bench.new_event(time, birth);
    let delivery = new.deliveries[0].id;
    bench.publish_new(new).await;
    match way {
        1 => bench.ends(delivery, Next::Delivered, time).await,
        2 => bench.ends(delivery, Next::Dead { reason: DeadReason::Exhausted }, time).await,
        3 => bench.ends(delivery, Next::Cancelled { reason: "enough".into() }, time).await,
        _ => {}
    }
    way > 0
}

/// One step of pruning; true if there is nothing else to prune.
async fn prune(bench: &Bench, before: Time, rows: usize) -> bool {
    let dead = Old { tenant: bench.tenant.clone(), before, after: None, rows, archive: true };
    let dead = bench.store().prune_dead(dead).await.unwrap();
    let old = Old { tenant: bench.tenant.clone(), before, after: None, rows, archive: true };
    let events = bench.store().prune_events(old).await.unwrap();
    dead.finished && events.finished
}

/// Stores everything that waits.
async fn store_all(bench: &Bench, stored: &mut Stored) {
    while let Some(object) = bench.store().next_object(0, 1_000).await.unwrap() {
        stored.insert(object.name.clone(), object.bytes);
        bench.store().object_stored(object.name).await.unwrap();
    }
}

/// The ids of all that is in the store, each with its kind.
async fn ids_in_store(bench: &Bench) -> BTreeSet<(String, String)> {
    let mut ids = BTreeSet::new();
    let tenant = || bench.tenant.clone();
    for stored in bench.store().list_events(tenant(), Default::default(), page(10_000)).await.unwrap().found {
        ids.insert(("event".into(), stored.event.id.to_string()));
    }
    for delivery in
        bench.store().list_deliveries(tenant(), Default::default(), page(10_000)).await.unwrap().found
    {
        for stored in bench.store().attempts(tenant(), delivery.id).await.unwrap().unwrap() {
            ids.insert(("attempt".into(), stored.attempt.id.to_string()));
        }
        ids.insert(("delivery".into(), delivery.id.to_string()));
    }
    ids
}

/// The ids of all that is in the archive; nothing may be in it twice.
fn ids_in_archive(stored: &Stored) -> BTreeSet<(String, String)> {
    let mut ids = BTreeSet::new();
    for line in stored.values().flat_map(|bytes| lines(bytes)) {
        let id = (line["kind"].as_str().unwrap().to_owned(), line["id"].as_str().unwrap().to_owned());
        assert!(ids.insert(id.clone()), "{id:?} is in the archive twice");
    }
    ids
}

pub async fn what_is_pruned_is_packed_whole(bench: &Arc<Bench>) {
    let event = Event {
        data: Bytes::from_static(b"{\n  \"a\": [1,\r\n 2.50]\n}"),
        metadata: Some(Bytes::from_static(br#"{"m": true}"#)),
        subject: Some("ada".into()),
        trace: Trace::of_caller("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "").map(Box::new),
        hops: 3,
        ..bench.event(at(0))
    };
    let new = bench.fan_out(event, &[(bench.webhook, Birth::Leased)]);
    bench.publish_new(new.clone()).await;
    bench.ends(new.deliveries[0].id, Next::Delivered, at(7)).await;
    let kept = bench.new_event(at(1), Birth::Waiting(at(9)));
    bench.publish_new(kept.clone()).await;
    assert!(prune(bench, at(100), 10).await);

    let object = bench.store().next_object(0, usize::MAX).await.unwrap().unwrap();
    assert_eq!(object.holds, Left { events: 1, deliveries: 1, attempts: 1 });
    assert!(object.name.starts_with("2023-11-14/"), "{}", object.name);
    let lines = lines(&object.bytes);
    let of = |kind: &str| lines.iter().find(|line| line["kind"] == kind).unwrap();
    let event = of("event");
    assert_eq!(event["id"], new.event.id.to_string());
    assert_eq!(event["tenant_id"], bench.tenant.as_str());
    assert_eq!(event["data"], serde_json::json!({"a": [1, 2.5]}));
    assert_eq!(event["metadata"], serde_json::json!({"m": true}));
    assert_eq!(event["subject"], "ada");
    assert_eq!(event["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(event["hops"], 3);
    assert_eq!(of("delivery")["status"], "delivered");
    assert_eq!(of("attempt")["response_body_sample"], "hello");
    assert_eq!(of("attempt")["delivery_id"], new.deliveries[0].id.to_string());
}

pub async fn an_object_stays_the_same_until_it_is_stored(bench: &mut Arc<Bench>) {
    for n in 0..6 {
        make(bench, at(n), 1).await;
    }
    while !prune(bench, at(3), 1).await {}
    assert_eq!(bench.store().next_object(1 << 20, 1 << 20).await.unwrap(), None, "too little to begin with");
    let first = bench.store().next_object(0, 1 << 20).await.unwrap().unwrap();
    assert_eq!(first.holds.events, 3);
    // More comes meanwhile, and the process dies.
    while !prune(bench, at(100), 1).await {}
    Bench::reopen(bench).await;
    assert_eq!(bench.store().next_object(1 << 20, 1 << 20).await.unwrap().as_ref(), Some(&first));
    bench.store().object_stored(first.name.clone()).await.unwrap();
    let second = bench.store().next_object(0, 1 << 20).await.unwrap().unwrap();
    assert_eq!(second.holds.events, 3);
    assert_ne!(second.name, first.name);
    bench.store().object_stored(second.name).await.unwrap();
    assert_eq!(bench.store().next_object(0, 1 << 20).await.unwrap(), None);
}

pub async fn an_object_is_of_one_day_and_bounded(bench: &Arc<Bench>) {
    for n in 0..9 {
        make(bench, at(n / 3 * DAY + n), 1).await;
    }
    while !prune(bench, at(30 * DAY), 2).await {}
    let mut names = Vec::new();
    let mut events = 0;
    while let Some(object) = bench.store().next_object(0, 1).await.unwrap() {
        events += object.holds.events;
        for line in lines(&object.bytes).iter().filter(|line| line["kind"] == "event") {
            assert!(line["timestamp"].as_str().unwrap().starts_with(&object.name[..10]));
        }
        names.push(object.name.clone());
        bench.store().object_stored(object.name).await.unwrap();
    }
    assert_eq!(events, 9);
    let days: BTreeSet<_> = names.iter().map(|name| &name[..10]).collect();
    assert_eq!(days.into_iter().collect::<Vec<_>>(), ["2023-11-14", "2023-11-15", "2023-11-16"]);
    assert!(names.len() >= 5, "{names:?}");
}

pub async fn interrupted_at_random_nothing_is_lost_or_doubled(bench: &mut Arc<Bench>) {
    let mut made = 0_i64;
    let mut stored = Stored::new();
    let mut dice = 20_261_115_u64;
    let mut roll = |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let mut all = BTreeSet::new();
    for _ in 0..50 {
        for _ in 0..roll(6) {
            make(bench, at(made), roll(4) as usize).await;
            made += 1;
        }
        all.extend(ids_in_store(bench).await);
        let before = at(made - roll(5) as i64);
        for _ in 0..roll(6) {
            match roll(3) {
                0 | 1 => drop(prune(bench, before, 1 + roll(60) as usize).await),
                _ => {
                    let most = 1 + roll(3_000) as usize;
                    if let Some(object) = bench.store().next_object(0, most).await.unwrap() {
                        // Killed before it is stored, after it, or after that is noted.
                        let killed = roll(3);
                        if killed > 0 {
                            stored.insert(object.name.clone(), object.bytes);
                        }
                        if killed > 1 {
                            bench.store().object_stored(object.name).await.unwrap();
                        }
                    }
                }
            }
        }
        Bench::reopen(bench).await;
    }
    store_all(bench, &mut stored).await;
    let (here, there) = (ids_in_store(bench).await, ids_in_archive(&stored));
    assert!(here.is_disjoint(&there), "something is in both");
    assert_eq!(here.union(&there).cloned().collect::<BTreeSet<_>>(), all, "each is in one of the two");
    assert!(there.len() > 100 && !here.is_empty(), "{} and {}", there.len(), here.len());
}

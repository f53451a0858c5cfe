//! Order: one after the other, through failures, open circuits, restarts and chance.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::harness;
use crate::harness::{Dice, SECOND, all_are, breaker, broken, draft, numbers, schedule, settings, world};
use redrive_core::{DeliveryStatus, TenantId, delivery::lane::Ordering, protection::breaker::CircuitState};
use redrive_engine::Draft;
use redrive_testkit::{Gate, Receiver, Reply};

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_order_is_kept_through_an_open_circuit() {
    let world = world().await;
    let (receiver, works) = broken().await;
    let hook = world
        .hook(&receiver.url(), |hook| {
            hook.spec.circuit_breaker_config = breaker(2);
            hook.spec.ordering_guarantee = Ordering::Strict;
            hook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    world.publish(0..10).await;
    world
        .eventually("it opens", async || {
            world.clock.advance(SECOND);
            world.circuit(&hook).await.state == CircuitState::Open
        })
        .await;
    let before = receiver.count();
    works.store(true, SeqCst);
    world
        .eventually("all are delivered", async || {
            world.clock.advance(10 * SECOND);
            world.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Delivered)
        })
        .await;
    assert_eq!(numbers(&receiver.arrivals()[before..]), (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_order_holds_through_failures_and_restarts() {
    let mut world = world().await;
    let tries = Arc::new(AtomicUsize::new(0));
    // Every third request fails.
    let receiver = Receiver::with({
        let tries = tries.clone();
        move |_| Reply::status(if tries.fetch_add(1, SeqCst) % 3 == 1 { 503 } else { 200 })
    })
    .await;
    world
        .hook(&receiver.url(), |hook| {
            hook.spec.ordering_guarantee = Ordering::Strict;
            hook.spec.max_in_flight = Some(10);
            hook.spec.circuit_breaker_config.enabled = Some(false);
        })
        .await;
    world.publish(0..30).await;
    for _ in 0..3 {
        world.clock.advance(5 * SECOND);
        world.a_moment().await;
        world = world.restart(settings()).await;
    }
    world
        .eventually("all are delivered", async || {
            world.clock.advance(5 * SECOND);
            world.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Delivered)
        })
        .await;
    let mut order = numbers(&receiver.arrivals());
    order.dedup();
    assert_eq!(order, (0..30).collect::<Vec<_>>(), "each after the one before it was delivered");
    world.assert_settled().await;
}

/// Publishes, fails, cancels, replays, moves the clock and restarts at random; then lets everything end.
async fn live_through(seed: u64) {
    const TYPES: [&str; 3] = ["a.a", "b.b", "c.c"];
    let mut dice = Dice(seed);
    let calls = Arc::new(AtomicUsize::new(seed as usize));
    let receiver = Receiver::with({
        let calls = calls.clone();
        move |_| {
            Reply::status(if calls.fetch_add(1, SeqCst).wrapping_mul(2_654_435_761) % 7 < 2 {
                503
            } else {
                200
            })
        }
    })
    .await;
    let mut world = world().await;
    let hook = world
        .hook(&receiver.url(), |hook| {
            hook.spec.ordering_guarantee = Ordering::PerEventType;
            hook.spec.max_in_flight = Some(10);
            hook.spec.circuit_breaker_config = breaker(8);
            hook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    let mut n = 0;
    for _ in 0..120 {
        match dice.roll(20) {
            0..=9 => {
                let event_type = TYPES[dice.roll(3) as usize].into();
                world.engine.publish(Draft { event_type, ..draft(n) }).await.unwrap();
                n += 1;
            }
            10..=14 => world.clock.advance(Duration::from_millis(dice.roll(1_500))),
            15 | 16 => tokio::time::sleep(Duration::from_millis(dice.roll(10))).await,
            17 => {
                let all = world.deliveries().await;
                if let Some(over) = all.iter().find(|one| one.status.is_final() && one.redriven_as.is_none())
                {
                    world.engine.retry(hook.tenant.clone(), over.id, None).await.unwrap();
                }
            }
            18 => {
                let all = world.deliveries().await;
                if let Some(one) = all.iter().find(|one| one.status == DeliveryStatus::Pending) {
                    let cancel = world.engine.cancel(hook.tenant.clone(), one.id, hook.id, "dice".into());
                    cancel.await.unwrap();
                }
            }
            _ => {
                // What is under way is cut off, as by an impatient shutdown.
                world.engine.drain(Duration::ZERO).await;
                world.engine.stop().await;
                let engine = harness::start(world.store.clone(), world.clock.clone(), settings()).await;
                world = harness::World { engine, ..world };
            }
        }
    }
    world
        .eventually("everything is over", async || {
            world.clock.advance(20 * SECOND);
            world.deliveries().await.iter().all(|one| one.status.is_final())
        })
        .await;
    world.assert_settled().await;

    // At the endpoint: of each type, one delivery after the other, never back to one that was left.
    let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for arrival in receiver.arrivals() {
        let delivery = arrival.header("x-webhook-delivery").unwrap().to_owned();
        let of_type = left.entry(arrival.json()["type"].to_string()).or_default();
        if of_type.last() != Some(&delivery) {
            assert!(!of_type.contains(&delivery), "seed {seed}: {delivery} came back after others");
            of_type.push(delivery);
        }
    }
    // And first rounds came in the order of publishing.
    let rounds: BTreeMap<_, _> =
        world.deliveries().await.into_iter().map(|one| (one.id.to_string(), one.round)).collect();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for arrival in receiver.arrivals() {
        if rounds[arrival.header("x-webhook-delivery").unwrap()] == 1 {
            let n = arrival.json()["data"]["n"].as_u64().unwrap();
            let before = last.insert(arrival.json()["type"].to_string(), n).unwrap_or(0);
            assert!(before <= n, "seed {seed}: {n} after {before}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_no_order_is_broken() {
    for seed in 1..=8 {
        live_through(seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_head_holds_its_own_event_type_alone_and_says_so() {
    let world = world().await;
    let receiver = Receiver::with(|arrival| {
        let fails = arrival.json()["type"] == "order.created" && arrival.json()["data"]["n"] == 0;
        Reply::status(if fails { 503 } else { 200 })
    })
    .await;
    let hook =
        world.hook(&receiver.url(), |hook| hook.spec.ordering_guarantee = Ordering::PerEventType).await;
    world.publish(0..3).await;
    for n in 10..13 {
        world.engine.publish(Draft { event_type: "order.paid".into(), ..draft(n) }).await.unwrap();
    }
    let all = world
        .until("the other type is delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 3
                && all.iter().any(|one| one.attempt_count == 1 && one.status == DeliveryStatus::Pending)
        })
        .await;
    assert_eq!(world.waiting_on().await, BTreeMap::from([("order", 2), ("schedule", 1)]));
    let head =
        all.iter().find(|one| one.status == DeliveryStatus::Pending && one.attempt_count == 1).unwrap();
    let behind = all.iter().find(|one| one.behind.is_some()).unwrap();
    let waiting = world.engine.waiting(behind).await.unwrap().unwrap();
    assert!(waiting.explanation.contains(&head.id.to_string()), "{waiting:?}");
    // Cancelling the head lets the next one go at once.
    world.engine.cancel(hook.tenant.clone(), head.id, hook.id, "no".into()).await.unwrap();
    world
        .until("the rest is delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 5
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_goes_to_the_back_of_its_order() {
    let world = world().await;
    let gate = Gate::closed();
    let receiver = Receiver::start().await;
    world.hook(&receiver.url(), |hook| hook.spec.ordering_guarantee = Ordering::Strict).await;
    world.publish(0..1).await;
    let first = world.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await.remove(0);
    receiver.answer_with({
        let gate = gate.clone();
        move |_| Reply::status(200).held_by(&gate)
    });
    world.publish(1..4).await;
    receiver.wait_for(2).await;
    world.engine.retry(TenantId::default(), first.id, None).await.unwrap();
    gate.open();
    receiver.wait_for(5).await;
    assert_eq!(numbers(&receiver.arrivals()), [0, 1, 2, 3, 0]);
}

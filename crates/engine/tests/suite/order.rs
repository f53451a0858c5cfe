//! Ordered delivery across failures, open circuits, restarts and random events.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::{
    harness,
    harness::{
        SECOND, TestRng, all_are, breaker, draft, failing_receiver, numbers, schedule, settings, world,
    },
};
use redrive_core::{DeliveryStatus, TenantId, delivery::lane::Ordering, protection::breaker::CircuitState};
use redrive_engine::EventDraft;
use redrive_testkit::{Latch, Receiver, Reply};

#[tokio::test(flavor = "multi_thread")]
async fn strict_order_survives_open_circuit() {
    let harness = world().await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.circuit_breaker_config = breaker(2);
            webhook.spec.ordering_guarantee = Ordering::Strict;
            webhook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    harness.publish(0..10).await;
    harness
        .eventually("the circuit opens", async || {
            harness.clock.advance(SECOND);
            harness.circuit(&webhook).await.state == CircuitState::Open
        })
        .await;
    let before = receiver.count();
    works.store(true, SeqCst);
    harness
        .eventually("all are delivered", async || {
            harness.clock.advance(10 * SECOND);
            harness.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Delivered)
        })
        .await;
    assert_eq!(numbers(&receiver.arrivals()[before..]), (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_order_survives_failures_and_restarts() {
    let mut harness = world().await;
    let attempts = Arc::new(AtomicUsize::new(0));
    // Every third request fails.
    let receiver = Receiver::with({
        let attempts = attempts.clone();
        move |_| Reply::status(if attempts.fetch_add(1, SeqCst) % 3 == 1 { 503 } else { 200 })
    })
    .await;
    harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.ordering_guarantee = Ordering::Strict;
            webhook.spec.max_in_flight = Some(10);
            webhook.spec.circuit_breaker_config.enabled = Some(false);
        })
        .await;
    harness.publish(0..30).await;
    for _ in 0..3 {
        harness.clock.advance(5 * SECOND);
        harness.settle_time().await;
        harness = harness.restart(settings()).await;
    }
    harness
        .eventually("all are delivered", async || {
            harness.clock.advance(5 * SECOND);
            harness.deliveries().await.iter().all(|one| one.status == DeliveryStatus::Delivered)
        })
        .await;
    let mut order = numbers(&receiver.arrivals());
    order.dedup();
    assert_eq!(order, (0..30).collect::<Vec<_>>(), "each after the one before it was delivered");
    harness.assert_settled().await;
}

/// Publishes, fails, cancels, replays, advances the clock and restarts at random; then waits until everything
/// ends.
async fn live_through(seed: u64) {
    const TYPES: [&str; 3] = ["a.a", "b.b", "c.c"];
    let mut rng = TestRng(seed);
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
    let mut harness = world().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.ordering_guarantee = Ordering::PerEventType;
            webhook.spec.max_in_flight = Some(10);
            webhook.spec.circuit_breaker_config = breaker(8);
            webhook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    let mut n = 0;
    for _ in 0..120 {
        match rng.random(20) {
            0..=9 => {
                let event_type = TYPES[rng.random(3) as usize].into();
                harness.engine.publish(EventDraft { event_type, ..draft(n) }).await.unwrap();
                n += 1;
            }
            10..=14 => harness.clock.advance(Duration::from_millis(rng.random(1_500))),
            15 | 16 => tokio::time::sleep(Duration::from_millis(rng.random(10))).await,
            17 => {
                let all = harness.deliveries().await;
                if let Some(over) = all.iter().find(|one| one.status.is_final() && one.redriven_as.is_none())
                {
                    harness.engine.retry(webhook.tenant_id.clone(), over.id, None).await.unwrap();
                }
            }
            18 => {
                let all = harness.deliveries().await;
                if let Some(one) = all.iter().find(|one| one.status == DeliveryStatus::Pending) {
                    let cancel =
                        harness.engine.cancel(webhook.tenant_id.clone(), one.id, webhook.id, "test".into());
                    cancel.await.unwrap();
                }
            }
            _ => {
                // Requests in flight are cut, as at a drain deadline of zero.
                harness.engine.drain(Duration::ZERO).await;
                harness.engine.stop().await;
                let engine = harness::start(harness.store.clone(), harness.clock.clone(), settings()).await;
                harness = harness::Harness { engine, ..harness };
            }
        }
    }
    harness
        .eventually("every delivery has ended", async || {
            harness.clock.advance(20 * SECOND);
            harness.deliveries().await.iter().all(|one| one.status.is_final())
        })
        .await;
    harness.assert_settled().await;

    // At the endpoint: per type one delivery after the other, never a delivery again after a later one.
    let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for arrival in receiver.arrivals() {
        let delivery = arrival.header("x-webhook-delivery").unwrap().to_owned();
        let of_type = left.entry(arrival.json()["type"].to_string()).or_default();
        if of_type.last() != Some(&delivery) {
            assert!(!of_type.contains(&delivery), "seed {seed}: {delivery} was sent again after later ones");
            of_type.push(delivery);
        }
    }
    // First rounds arrived in the order of publication.
    let rounds: BTreeMap<_, _> =
        harness.deliveries().await.into_iter().map(|one| (one.id.to_string(), one.round)).collect();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for arrival in receiver.arrivals() {
        if rounds[arrival.header("x-webhook-delivery").unwrap()] == 1 {
            let n = arrival.json()["data"]["n"].as_u64().unwrap();
            let before = last.insert(arrival.json()["type"].to_string(), n).unwrap_or(0);
            assert!(before <= n, "seed {seed}: {n} after {before}");
        }
    }
}

mod slow {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn order_survives_random_events() {
        for seed in 1..=8 {
            live_through(seed).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_delivery_blocks_only_its_event_type_and_is_named() {
    let harness = world().await;
    let receiver = Receiver::with(|arrival| {
        let fails = arrival.json()["type"] == "order.created" && arrival.json()["data"]["n"] == 0;
        Reply::status(if fails { 503 } else { 200 })
    })
    .await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.ordering_guarantee = Ordering::PerEventType)
        .await;
    harness.publish(0..3).await;
    for n in 10..13 {
        harness.engine.publish(EventDraft { event_type: "order.paid".into(), ..draft(n) }).await.unwrap();
    }
    let all = harness
        .until("the other type is delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 3
                && all.iter().any(|one| one.attempt_count == 1 && one.status == DeliveryStatus::Pending)
        })
        .await;
    assert_eq!(harness.waiting_on().await, BTreeMap::from([("order", 2), ("schedule", 1)]));
    let head =
        all.iter().find(|one| one.status == DeliveryStatus::Pending && one.attempt_count == 1).unwrap();
    let successor = all.iter().find(|one| one.predecessor.is_some()).unwrap();
    let waiting = harness.engine.wait_reason(successor).await.unwrap().unwrap();
    assert!(waiting.explanation.contains(&head.id.to_string()), "{waiting:?}");
    // Cancelling the first delivery unblocks the next one immediately.
    harness.engine.cancel(webhook.tenant_id.clone(), head.id, webhook.id, "no".into()).await.unwrap();
    harness
        .until("the rest is delivered", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Delivered).count() == 5
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replayed_delivery_goes_to_end_of_order() {
    let harness = world().await;
    let gate = Latch::closed();
    let receiver = Receiver::start().await;
    harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.ordering_guarantee = Ordering::Strict)
        .await;
    harness.publish(0..1).await;
    let first = harness.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await.remove(0);
    receiver.respond_with({
        let gate = gate.clone();
        move |_| Reply::status(200).latched_by(&gate)
    });
    harness.publish(1..4).await;
    receiver.wait_for(2).await;
    harness.engine.retry(TenantId::default(), first.id, None).await.unwrap();
    gate.open();
    receiver.wait_for(5).await;
    assert_eq!(numbers(&receiver.arrivals()), [0, 1, 2, 3, 0]);
}

//! Chaos test of several nodes on one store: everything ends and no order is broken.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::{
    cluster_harness::{IsolatedNode, On, TestCluster, named, on_every_store},
    harness::{SECOND, TestRng, breaker, draft, schedule},
};
use redrive_core::{
    DeliveryStatus,
    delivery::lane::Ordering,
    protection::limiter::RateLimit,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::EventDraft;
use redrive_testkit::{ReceivedRequest, Receiver, Reply};

on_every_store!(random_events_end_every_delivery_and_keep_order);

const TYPES: [&str; 3] = ["a.a", "b.b", "c.c"];

async fn random_events_end_every_delivery_and_keep_order(on: On) {
    for seed in [1, 2] {
        live_through(on, seed).await;
    }
}

/// Publishes, fails, cancels, replays, pauses, limits, advances the clock, restarts and kills at random; then
/// waits until everything ends.
async fn live_through(on: On, seed: u64) {
    let mut rng = TestRng(seed);
    let calls = Arc::new(AtomicUsize::new(seed as usize));
    let receiver = Receiver::with(move |_| {
        let fails = calls.fetch_add(1, SeqCst).wrapping_mul(2_654_435_761) % 7 < 2;
        Reply::status(if fails { 503 } else { 200 })
    })
    .await;
    let cluster = TestCluster::on(on).await;
    let mut nodes = [cluster.node(named("a")).await, cluster.node(named("b")).await];
    let mut doomed = cluster.isolated_node(named("c")).await;
    let retries = schedule(&[&[0][..], &[1; 40]].concat());
    let ordered = nodes[0]
        .create_webhook(&receiver.url_at("/ordered"), |webhook| {
            webhook.spec.ordering_guarantee = Ordering::PerEventType;
            webhook.spec.circuit_breaker_config = breaker(8);
            webhook.spec.retry_config = retries.clone();
        })
        .await;
    let free = nodes[0]
        .create_webhook(&receiver.url_at("/free"), |webhook| {
            webhook.spec.max_in_flight = Some(6);
            webhook.spec.circuit_breaker_config = breaker(8);
            webhook.spec.retry_config = retries.clone();
        })
        .await;
    let mut n = 0;
    for _ in 0..150 {
        let who = rng.random(3) as usize;
        let harness = nodes.get(who).unwrap_or(&doomed.world);
        let webhook = if rng.random(2) == 0 { &ordered } else { &free };
        match rng.random(24) {
            0..=11 => {
                let event_type = TYPES[rng.random(3) as usize].into();
                harness.engine.publish(EventDraft { event_type, ..draft(n) }).await.unwrap();
                n += 1;
            }
            12..=15 => harness.clock.advance(Duration::from_millis(rng.random(1_500))),
            16 | 17 => tokio::time::sleep(Duration::from_millis(rng.random(100))).await,
            18 => {
                let all = harness.deliveries().await;
                if let Some(over) = all.iter().find(|one| one.status.is_final() && one.redriven_as.is_none())
                {
                    harness.engine.retry(webhook.tenant_id.clone(), over.id, None).await.unwrap();
                }
            }
            19 => {
                let all = harness.deliveries().await;
                if let Some(one) = all.iter().find(|one| one.status == DeliveryStatus::Pending) {
                    let cancel = harness.engine.cancel(
                        webhook.tenant_id.clone(),
                        one.id,
                        one.webhook_id,
                        "test".into(),
                    );
                    cancel.await.unwrap();
                }
            }
            20 => {
                let state = if rng.random(2) == 0 { WebhookState::Paused } else { WebhookState::Active };
                harness.set_state(webhook, state).await;
            }
            21 => {
                let limit = RateLimit { requests_per_minute: 600, burst: Some(3) };
                let limit = (rng.random(2) == 0).then_some(limit);
                let change = |webhook: &mut Webhook| {
                    webhook.spec.rate_limit = limit;
                    Ok::<_, ()>(())
                };
                harness.engine.change_webhook(&free.tenant_id, free.id, change).await.unwrap();
            }
            22 if who < 2 => {
                // Requests in flight are cut, as at a drain deadline of zero.
                nodes[who].engine.drain(Duration::ZERO).await;
                nodes[who].engine.stop().await;
                nodes[who] = cluster.node(named("again")).await;
            }
            23 if rng.random(3) == 0 => doomed = replace(&cluster, doomed).await,
            _ => {}
        }
    }
    for webhook in [&ordered, &free] {
        nodes[1].set_state(webhook, WebhookState::Active).await;
    }
    nodes[0]
        .eventually("every delivery has ended", async || {
            nodes[0].clock.advance(20 * SECOND);
            nodes[0].deliveries().await.iter().all(|one| one.status.is_final())
        })
        .await;
    doomed.world.assert_settled().await;
    for node in &nodes {
        node.assert_settled().await;
        node.engine.stop().await;
    }
    let of_ordered: Vec<_> =
        receiver.arrivals().into_iter().filter(|arrival| arrival.path == "/ordered").collect();
    assert_in_order(seed, &of_ordered);
    doomed.kill();
}

/// Kills a node and starts another.
async fn replace(cluster: &TestCluster, doomed: IsolatedNode) -> IsolatedNode {
    doomed.kill();
    cluster.isolated_node(named("c")).await
}

/// Asserts that per type one delivery came after the other, and none came again after a later one.
fn assert_in_order(seed: u64, arrivals: &[ReceivedRequest]) {
    let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for arrival in arrivals {
        let delivery = arrival.header("x-webhook-delivery").unwrap().to_owned();
        let of_type = left.entry(arrival.json()["type"].to_string()).or_default();
        if of_type.last() != Some(&delivery) {
            assert!(!of_type.contains(&delivery), "seed {seed}: {delivery} was sent again after later ones");
            of_type.push(delivery);
        }
    }
}

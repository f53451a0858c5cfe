//! Many nodes on one store, and chance: whatever happens, everything ends, and no order is broken.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::cluster_harness::{Apart, Fleet, On, named, on_every_store};
use crate::harness::{Dice, SECOND, breaker, draft, schedule};
use redrive_core::{
    DeliveryStatus,
    delivery::lane::Ordering,
    protection::limiter::RateLimit,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::Draft;
use redrive_testkit::{Arrival, Receiver, Reply};

on_every_store!(whatever_happens_everything_ends_and_no_order_is_broken);

const TYPES: [&str; 3] = ["a.a", "b.b", "c.c"];

async fn whatever_happens_everything_ends_and_no_order_is_broken(on: On) {
    for seed in [1, 2] {
        live_through(on, seed).await;
    }
}

/// Publishes, fails, cancels, replays, pauses, limits, moves the clock, restarts and kills at random; then lets
/// everything end.
async fn live_through(on: On, seed: u64) {
    let mut dice = Dice(seed);
    let calls = Arc::new(AtomicUsize::new(seed as usize));
    let receiver = Receiver::with(move |_| {
        let fails = calls.fetch_add(1, SeqCst).wrapping_mul(2_654_435_761) % 7 < 2;
        Reply::status(if fails { 503 } else { 200 })
    })
    .await;
    let fleet = Fleet::on(on).await;
    let mut nodes = [fleet.node(named("a")).await, fleet.node(named("b")).await];
    let mut doomed = fleet.apart(named("c")).await;
    let retries = schedule(&[&[0][..], &[1; 40]].concat());
    let ordered = nodes[0]
        .hook(&receiver.url_at("/ordered"), |hook| {
            hook.spec.ordering_guarantee = Ordering::PerEventType;
            hook.spec.circuit_breaker_config = breaker(8);
            hook.spec.retry_config = retries.clone();
        })
        .await;
    let free = nodes[0]
        .hook(&receiver.url_at("/free"), |hook| {
            hook.spec.max_in_flight = Some(6);
            hook.spec.circuit_breaker_config = breaker(8);
            hook.spec.retry_config = retries.clone();
        })
        .await;
    let mut n = 0;
    for _ in 0..150 {
        let who = dice.roll(3) as usize;
        let world = nodes.get(who).unwrap_or(&doomed.world);
        let hook = if dice.roll(2) == 0 { &ordered } else { &free };
        match dice.roll(24) {
            0..=11 => {
                let event_type = TYPES[dice.roll(3) as usize].into();
                world.engine.publish(Draft { event_type, ..draft(n) }).await.unwrap();
                n += 1;
            }
            12..=15 => world.clock.advance(Duration::from_millis(dice.roll(1_500))),
            16 | 17 => tokio::time::sleep(Duration::from_millis(dice.roll(100))).await,
            18 => {
                let all = world.deliveries().await;
                if let Some(over) = all.iter().find(|one| one.status.is_final() && one.redriven_as.is_none())
                {
                    world.engine.retry(hook.tenant.clone(), over.id, None).await.unwrap();
                }
            }
            19 => {
                let all = world.deliveries().await;
                if let Some(one) = all.iter().find(|one| one.status == DeliveryStatus::Pending) {
                    let cancel = world.engine.cancel(hook.tenant.clone(), one.id, one.webhook, "dice".into());
                    cancel.await.unwrap();
                }
            }
            20 => {
                let state = if dice.roll(2) == 0 { WebhookState::Paused } else { WebhookState::Active };
                world.set_state(hook, state).await;
            }
            21 => {
                let limit = RateLimit { requests_per_minute: 600, burst: Some(3) };
                let limit = (dice.roll(2) == 0).then_some(limit);
                let change = |hook: &mut Webhook| {
                    hook.spec.rate_limit = limit;
                    Ok::<_, ()>(())
                };
                world.engine.change_webhook(&free.tenant, free.id, change).await.unwrap();
            }
            22 if who < 2 => {
                // What is under way is cut off, as by an impatient shutdown.
                nodes[who].engine.drain(Duration::ZERO).await;
                nodes[who].engine.stop().await;
                nodes[who] = fleet.node(named("again")).await;
            }
            23 if dice.roll(3) == 0 => doomed = replace(&fleet, doomed).await,
            _ => {}
        }
    }
    for hook in [&ordered, &free] {
        nodes[1].set_state(hook, WebhookState::Active).await;
    }
    nodes[0]
        .eventually("everything is over", async || {
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

/// Kills a node, and starts another.
async fn replace(fleet: &Fleet, doomed: Apart) -> Apart {
    doomed.kill();
    fleet.apart(named("c")).await
}

/// Of each type, one delivery after the other, never back to one that was left.
fn assert_in_order(seed: u64, arrivals: &[Arrival]) {
    let mut left: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for arrival in arrivals {
        let delivery = arrival.header("x-webhook-delivery").unwrap().to_owned();
        let of_type = left.entry(arrival.json()["type"].to_string()).or_default();
        if of_type.last() != Some(&delivery) {
            assert!(!of_type.contains(&delivery), "seed {seed}: {delivery} came back after others");
            of_type.push(delivery);
        }
    }
}

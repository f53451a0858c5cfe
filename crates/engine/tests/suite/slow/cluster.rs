//! Many nodes on one store: who is dead, who takes over, and who sends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Instant,
};

use crate::cluster_harness::{Fleet, LEASE, On, delivered, holding, named, nodes, on_every_store, workers};
use crate::harness::{SECOND, START, all_are, draft, numbers, schedule};
use redrive_core::{
    DeliveryStatus, Role, TenantId,
    delivery::lane::Ordering,
    tenancy::DEFAULT_POOL,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::Settings;
use redrive_store::{Delivery, LaneRoom, NewNode, Owned};
use redrive_testkit::{Gate, Receiver, Reply};

on_every_store!(
    what_a_dead_node_had_is_sent_by_another_within_a_lease,
    a_node_that_was_taken_for_dead_begins_anew_and_its_late_outcome_is_refused,
    a_frozen_node_sends_nothing_of_what_others_took_over,
    a_node_that_was_frozen_alone_goes_on_with_what_it_has,
    strict_order_holds_whoever_publishes_sends_and_dies,
    an_api_node_publishes_and_a_worker_sends,
    a_home_with_nothing_to_do_is_left,
    a_fenced_410_does_not_disable_the_webhook,
    a_410_from_an_old_url_does_not_disable_the_webhook_on_any_node,
    a_lease_that_memory_does_not_know_is_recovered,
    leases_that_memory_knows_are_left_alone_by_the_auditor,
);

async fn what_a_dead_node_had_is_sent_by_another_within_a_lease(on: On) {
    let fleet = Fleet::on(on).await;
    let world = fleet.node(named("a")).await;
    let doomed = fleet.apart(named("b")).await;
    let (receiver, _gate) = holding(2).await;
    world.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(4)).await;
    tokio::time::sleep(LEASE / 2).await;
    for n in 0..20 {
        doomed.world.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(2).await;
    assert_eq!(world.store.vitals().await.unwrap().leased, 20);
    let why = world.engine.waiting(&world.deliveries().await[0]).await.unwrap().unwrap();
    assert_eq!(why.explanation, "it is on its way on another node");
    doomed.kill();
    let killed = Instant::now();
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    let took = killed.elapsed();
    assert!(took > LEASE / 2 && took < 10 * LEASE, "{took:?}");
    assert_eq!(workers(&world).await, ["a"]);
    assert_eq!(receiver.count(), 22, "two were under way, and nobody knows how they ended");
    world.assert_settled().await;
}

async fn a_node_that_was_taken_for_dead_begins_anew_and_its_late_outcome_is_refused(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = holding(1).await;
    a.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(4)).await;
    a.publish(0..1).await;
    receiver.wait_for(1).await;
    let epoch = a.engine.epoch();
    // What another node does with one that it takes for dead.
    b.store.rescue(epoch, START, 100).await.unwrap();
    // Whoever publishes meanwhile does not hear of it.
    a.publish(1..2).await;
    assert_ne!(a.engine.epoch(), epoch);
    a.until("all are delivered", all_are(DeliveryStatus::Delivered, 2)).await;
    gate.open();
    a.eventually("the late answer is let go of", async || a.engine.load().unsettled == 0).await;
    let first = a.deliveries().await.into_iter().min_by_key(|one| one.created_at).unwrap();
    let attempts = a.store.attempts(TenantId::default(), first.id).await.unwrap().unwrap();
    assert_eq!(attempts.len(), 1, "of two requests one was recorded");
    a.publish(2..20).await;
    a.until("it goes on", all_are(DeliveryStatus::Delivered, 20)).await;
    assert_eq!(receiver.count(), 21);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn a_frozen_node_sends_nothing_of_what_others_took_over(on: On) {
    let fleet = Fleet::on(on).await;
    let world = fleet.node(named("a")).await;
    let frozen = fleet.apart(named("b")).await;
    let (receiver, gate) = holding(2).await;
    world.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(4)).await;
    tokio::time::sleep(LEASE / 2).await;
    for n in 0..20 {
        frozen.world.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(2).await;
    let epoch = frozen.world.engine.epoch();
    let thaw = frozen.freeze();
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    gate.open();
    drop(thaw);
    world.eventually("it has a new epoch", async || frozen.world.engine.epoch() != epoch).await;
    frozen.world.assert_settled().await;
    assert_eq!(receiver.count(), 22);
    for n in 20..30 {
        frozen.world.engine.publish(draft(n)).await.unwrap();
    }
    world.until("it goes on", all_are(DeliveryStatus::Delivered, 30)).await;
    assert_eq!(workers(&world).await, ["a", "b"]);
    frozen.kill();
}

async fn a_node_that_was_frozen_alone_goes_on_with_what_it_has(on: On) {
    let fleet = Fleet::on(on).await;
    let world = fleet.node(named("a")).await;
    world.engine.drain(SECOND).await;
    world.engine.stop().await;
    let frozen = fleet.apart(named("b")).await;
    let (receiver, gate) = holding(1).await;
    frozen.world.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(1)).await;
    for n in 0..10 {
        frozen.world.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(1).await;
    let epoch = frozen.world.engine.epoch();
    let thaw = frozen.freeze();
    tokio::time::sleep(2 * LEASE).await;
    gate.open();
    drop(thaw);
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    assert_eq!((receiver.count(), frozen.world.engine.epoch()), (10, epoch));
    frozen.kill();
}

async fn strict_order_holds_whoever_publishes_sends_and_dies(on: On) {
    let fleet = Fleet::on(on).await;
    let nodes = [fleet.node(named("a")).await, fleet.node(named("b")).await];
    let doomed = fleet.apart(named("c")).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let receiver =
        Receiver::with(move |_| Reply::status(if calls.fetch_add(1, SeqCst) % 7 == 3 { 503 } else { 200 }))
            .await;
    nodes[0]
        .hook(&receiver.url(), |hook| {
            hook.spec.ordering_guarantee = Ordering::Strict;
            hook.spec.circuit_breaker_config.enabled = Some(false);
            hook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1]);
        })
        .await;
    let engines = [&nodes[0].engine, &nodes[1].engine, &doomed.world.engine];
    for n in 0..60 {
        engines[n % 3].publish(draft(n)).await.unwrap();
    }
    nodes[0]
        .eventually("some are delivered", async || {
            nodes[0].clock.advance(SECOND / 2);
            delivered(&nodes[0].deliveries().await) >= 20
        })
        .await;
    doomed.kill();
    for n in 60..90 {
        nodes[n % 2].engine.publish(draft(n)).await.unwrap();
    }
    nodes[0]
        .eventually("all are delivered", async || {
            nodes[0].clock.advance(SECOND / 2);
            delivered(&nodes[0].deliveries().await) == 90
        })
        .await;
    let mut order = numbers(&receiver.arrivals());
    order.dedup();
    assert_eq!(order, (0..90).collect::<Vec<_>>(), "each after the one before it was delivered");
}

async fn an_api_node_publishes_and_a_worker_sends(on: On) {
    let settings = [("api", Role::Api), ("worker", Role::Worker)];
    let nodes = nodes(on, settings.map(|(name, role)| Settings { role, ..named(name) })).await;
    let (api, worker) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = Receiver::held(200).await;
    api.hook(&receiver.url(), |_| {}).await;
    api.publish(0..10).await;
    assert_eq!(api.engine.load().items, 0, "it takes nothing on");
    receiver.wait_for(5).await;
    let unsent = api.deliveries().await.into_iter().find(|one| one.due.is_some());
    if let Some(unsent) = unsent {
        let why = api.engine.waiting(&unsent).await.unwrap().unwrap();
        assert_eq!(why.on.name(), "capacity", "{why:?}");
    }
    gate.open();
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    assert_eq!(workers(api).await, ["worker"]);
    worker.assert_settled().await;
}

async fn a_home_with_nothing_to_do_is_left(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let world = &nodes[0];
    let receiver = Receiver::start().await;
    world
        .hook(&receiver.url(), |hook| {
            hook.spec.ordering_guarantee = Ordering::Strict;
            hook.spec.retry_config = schedule(&[60]);
        })
        .await;
    world.publish(0..1).await;
    world.clock.advance(60 * SECOND);
    world.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await;
    world.publish(1..2).await;
    // Somebody who would like to send what is due in a minute.
    let guest =
        world.store.join(NewNode { name: "guest".into(), ..NewNode::default() }, START).await.unwrap();
    let later = world.clock.now() + 60 * SECOND;
    let may_have = async || {
        let due = world.store.due_lanes(guest, vec![DEFAULT_POOL.into()], later, 10).await.unwrap();
        !due.lanes.is_empty()
    };
    assert!(!may_have().await, "one of the nodes is its home");
    world.eventually("nobody is its home", may_have).await;
}

/// A receiver whose first reply is a 410 that waits for the gate; later replies are 200.
async fn gone_once() -> (Receiver, Gate) {
    let gate = Gate::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |arrival| match arrival.number {
        1 => Reply::status(410).held_by(&held),
        _ => Reply::status(200),
    })
    .await;
    (receiver, gate)
}

async fn a_fenced_410_does_not_disable_the_webhook(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = gone_once().await;
    let webhook = a.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(4)).await;
    a.publish(0..1).await;
    receiver.wait_for(1).await;
    // Another node declares this one dead and delivers the event.
    b.store.rescue(a.engine.epoch(), START, 100).await.unwrap();
    a.until("the event is delivered", all_are(DeliveryStatus::Delivered, 1)).await;
    gate.open();
    a.eventually("the 410 is refused", async || a.engine.load().unsettled == 0).await;
    a.publish(1..51).await;
    a.until("all are delivered", all_are(DeliveryStatus::Delivered, 51)).await;
    let stored = b.store.webhook(TenantId::default(), webhook.id).await.unwrap().unwrap();
    assert_eq!(stored.webhook.state, WebhookState::Active);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn a_410_from_an_old_url_does_not_disable_the_webhook_on_any_node(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (old, gate) = Receiver::held(410).await;
    let new = Receiver::start().await;
    let webhook = nodes[0].hook(&old.url(), |hook| hook.spec.max_in_flight = Some(4)).await;
    nodes[0].publish(0..1).await;
    old.wait_for(1).await;
    let url = new.url();
    let change = |webhook: &mut Webhook| {
        webhook.spec.url = url.clone();
        Ok::<_, ()>(())
    };
    nodes[1].engine.change_webhook(&webhook.tenant, webhook.id, change).await.unwrap();
    gate.open();
    nodes[0].eventually("the 410 is recorded", async || nodes[0].engine.load().unsettled == 0).await;
    for (node, numbers) in nodes.iter().zip([1..26, 26..51]) {
        node.publish(numbers).await;
    }
    let delivered = |all: &[Delivery]| delivered(all) == 50;
    nodes[0].until("all events to the new URL are delivered", delivered).await;
    assert_eq!(old.count(), 1);
}

/// A node that compares leases with memory often.
fn auditing(name: &str) -> Settings {
    Settings { lease_audit_interval: SECOND / 10, ..named(name) }
}

async fn a_lease_that_memory_does_not_know_is_recovered(on: On) {
    let nodes = nodes(on, ["a", "b"].map(auditing)).await;
    let world = &nodes[0];
    let receiver = Receiver::start().await;
    let webhook = world
        .hook(&receiver.url(), |hook| {
            hook.spec.ordering_guarantee = Ordering::Strict;
            hook.spec.retry_config = schedule(&[60]);
        })
        .await;
    world.publish(0..10).await;
    // A claim for this node whose result is lost: it leases the first, holds the lane and is assigned the webhook.
    let later = world.clock.now() + 60 * SECOND;
    let pools = vec![DEFAULT_POOL.into()];
    let due = world.store.due_lanes(world.engine.epoch(), pools, later, 10).await.unwrap();
    assert_eq!(due.lanes[0].webhook, webhook.id);
    let room = LaneRoom { alone: true, ..LaneRoom::new(due.lanes[0].clone(), 1) };
    let claimed = world.store.claim(world.engine.epoch(), later, vec![room], 1 << 20).await.unwrap();
    assert_eq!(claimed[0].deliveries.len(), 1);
    world.clock.advance(60 * SECOND);
    world.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    assert_eq!(numbers(&receiver.arrivals()), (0..10).collect::<Vec<_>>(), "each once, and in order");
    for node in &nodes {
        node.assert_settled().await;
    }
    let owns_nothing = async || {
        let owned = world.store.owned_by(world.engine.epoch(), None, 10).await.unwrap();
        owned == Owned::default()
    };
    world.eventually("the lane and the assignment are left", owns_nothing).await;
}

async fn leases_that_memory_knows_are_left_alone_by_the_auditor(on: On) {
    let nodes = nodes(on, ["a", "b"].map(auditing)).await;
    let (receiver, gate) = Receiver::held(200).await;
    nodes[0].hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(4)).await;
    nodes[0].publish(0..50).await;
    receiver.wait_for(2).await;
    tokio::time::sleep(SECOND).await;
    gate.open();
    nodes[0].until("all are delivered", all_are(DeliveryStatus::Delivered, 50)).await;
    assert_eq!(receiver.count(), 50, "nothing was released and sent twice");
}

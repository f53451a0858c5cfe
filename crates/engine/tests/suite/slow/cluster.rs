//! Several nodes on one store: failure detection, rescue, assignments and roles.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Instant,
};

use crate::{
    cluster_harness::{LEASE, On, TestCluster, delivered, holding, named, nodes, on_every_store, workers},
    harness::{SECOND, START, all_are, draft, numbers, schedule},
};
use redrive_core::{
    DeliveryStatus, Role, TenantId,
    delivery::lane::Ordering,
    tenancy::DEFAULT_POOL,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::Settings;
use redrive_store::{Delivery, LaneCapacity, NewNode, Owned};
use redrive_testkit::{Latch, Receiver, Reply};

on_every_store!(
    leases_of_dead_node_are_rescued_within_one_lease,
    node_declared_dead_rejoins_and_its_late_outcome_is_fenced,
    frozen_node_does_not_send_rescued_deliveries,
    frozen_single_node_continues_with_its_leases,
    strict_order_holds_across_nodes_and_a_kill,
    api_node_publishes_and_worker_sends,
    idle_assignment_is_released,
    fenced_410_does_not_disable_webhook,
    response_410_of_old_url_does_not_disable_webhook_on_any_node,
    unknown_lease_is_recovered,
    known_leases_are_not_released_by_auditor,
);

async fn leases_of_dead_node_are_rescued_within_one_lease(on: On) {
    let cluster = TestCluster::on(on).await;
    let harness = cluster.node(named("a")).await;
    let doomed = cluster.isolated_node(named("b")).await;
    let (receiver, _gate) = holding(2).await;
    harness.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(4)).await;
    tokio::time::sleep(LEASE / 2).await;
    for n in 0..20 {
        doomed.world.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(2).await;
    assert_eq!(harness.store.stats().await.unwrap().leased, 20);
    let why = harness.engine.wait_reason(&harness.deliveries().await[0]).await.unwrap().unwrap();
    assert_eq!(why.explanation, "queued on another node");
    doomed.kill();
    let killed = Instant::now();
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    let took = killed.elapsed();
    assert!(took > LEASE / 2, "{took:?}");
    assert_eq!(workers(&harness).await, ["a"]);
    assert_eq!(receiver.count(), 22, "two were in flight when the node died, so they are sent again");
    harness.assert_settled().await;
}

async fn node_declared_dead_rejoins_and_its_late_outcome_is_fenced(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = holding(1).await;
    a.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(4)).await;
    a.publish(0..1).await;
    receiver.wait_for(1).await;
    let epoch = a.engine.epoch();
    // Another node rescues the leases of this one as if it had declared it dead.
    b.store.rescue(epoch, START, 100).await.unwrap();
    // A concurrent publish succeeds nevertheless.
    a.publish(1..2).await;
    assert_ne!(a.engine.epoch(), epoch);
    a.until("all are delivered", all_are(DeliveryStatus::Delivered, 2)).await;
    gate.open();
    a.eventually("the late result is discarded", async || a.engine.load().unsettled == 0).await;
    let first = a.deliveries().await.into_iter().min_by_key(|one| one.created_at).unwrap();
    let attempts = a.store.attempts(TenantId::default(), first.id).await.unwrap().unwrap();
    assert_eq!(attempts.len(), 1, "of two requests one was recorded");
    a.publish(2..20).await;
    a.until("the node sends again", all_are(DeliveryStatus::Delivered, 20)).await;
    assert_eq!(receiver.count(), 21);
    for node in &nodes {
        node.assert_settled().await;
    }
}

async fn frozen_node_does_not_send_rescued_deliveries(on: On) {
    let cluster = TestCluster::on(on).await;
    let harness = cluster.node(named("a")).await;
    let frozen = cluster.isolated_node(named("b")).await;
    let (receiver, gate) = holding(2).await;
    harness.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(4)).await;
    tokio::time::sleep(LEASE / 2).await;
    for n in 0..20 {
        frozen.world.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(2).await;
    let epoch = frozen.world.engine.epoch();
    let thaw = frozen.freeze();
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 20)).await;
    gate.open();
    drop(thaw);
    harness.eventually("the node has a new epoch", async || frozen.world.engine.epoch() != epoch).await;
    frozen.world.assert_settled().await;
    assert_eq!(receiver.count(), 22);
    for n in 20..30 {
        frozen.world.engine.publish(draft(n)).await.unwrap();
    }
    harness.until("the node sends again", all_are(DeliveryStatus::Delivered, 30)).await;
    assert_eq!(workers(&harness).await, ["a", "b"]);
    frozen.kill();
}

async fn frozen_single_node_continues_with_its_leases(on: On) {
    let cluster = TestCluster::on(on).await;
    let harness = cluster.node(named("a")).await;
    harness.engine.drain(SECOND).await;
    harness.engine.stop().await;
    let frozen = cluster.isolated_node(named("b")).await;
    let (receiver, gate) = holding(1).await;
    frozen.world.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(1)).await;
    for n in 0..10 {
        frozen.world.engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(1).await;
    let epoch = frozen.world.engine.epoch();
    let thaw = frozen.freeze();
    tokio::time::sleep(2 * LEASE).await;
    gate.open();
    drop(thaw);
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    assert_eq!((receiver.count(), frozen.world.engine.epoch()), (10, epoch));
    frozen.kill();
}

async fn strict_order_holds_across_nodes_and_a_kill(on: On) {
    let cluster = TestCluster::on(on).await;
    let nodes = [cluster.node(named("a")).await, cluster.node(named("b")).await];
    let doomed = cluster.isolated_node(named("c")).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let receiver =
        Receiver::with(move |_| Reply::status(if calls.fetch_add(1, SeqCst) % 7 == 3 { 503 } else { 200 }))
            .await;
    nodes[0]
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.ordering_guarantee = Ordering::Strict;
            webhook.spec.circuit_breaker_config.enabled = Some(false);
            webhook.spec.retry_config = schedule(&[0, 1, 1, 1, 1, 1, 1, 1, 1]);
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

async fn api_node_publishes_and_worker_sends(on: On) {
    let settings = [("api", Role::Api), ("worker", Role::Worker)];
    let nodes = nodes(on, settings.map(|(name, role)| Settings { role, ..named(name) })).await;
    let (api, worker) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = Receiver::latched(200).await;
    api.create_webhook(&receiver.url(), |_| {}).await;
    api.publish(0..10).await;
    assert_eq!(api.engine.load().deliveries, 0, "the node claims nothing");
    receiver.wait_for(5).await;
    let unsent = api.deliveries().await.into_iter().find(|one| one.due.is_some());
    if let Some(unsent) = unsent {
        let why = api.engine.wait_reason(&unsent).await.unwrap().unwrap();
        assert_eq!(why.on.name(), "capacity", "{why:?}");
    }
    gate.open();
    api.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    assert_eq!(workers(api).await, ["worker"]);
    worker.assert_settled().await;
}

async fn idle_assignment_is_released(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let harness = &nodes[0];
    let receiver = Receiver::start().await;
    harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.ordering_guarantee = Ordering::Strict;
            webhook.spec.retry_config = schedule(&[60]);
        })
        .await;
    harness.publish(0..1).await;
    harness.clock.advance(60 * SECOND);
    harness.until("it is delivered", all_are(DeliveryStatus::Delivered, 1)).await;
    harness.publish(1..2).await;
    // Another node that would claim the lane when it is due in a minute.
    let guest =
        harness.store.join(NewNode { name: "guest".into(), ..NewNode::default() }, START).await.unwrap();
    let later = harness.clock.now() + 60 * SECOND;
    let may_have = async || {
        let due = harness.store.due_lanes(guest, vec![DEFAULT_POOL.into()], later, 10).await.unwrap();
        !due.lanes.is_empty()
    };
    assert!(!may_have().await, "one node is assigned");
    harness.eventually("no node is assigned", may_have).await;
}

/// Returns a receiver whose first reply is a 410 that waits for the latch; later replies are 200.
async fn gone_once() -> (Receiver, Latch) {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |arrival| match arrival.number {
        1 => Reply::status(410).latched_by(&held),
        _ => Reply::status(200),
    })
    .await;
    (receiver, gate)
}

async fn fenced_410_does_not_disable_webhook(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = gone_once().await;
    let webhook = a.create_webhook(&receiver.url(), |resolved| resolved.spec.max_in_flight = Some(4)).await;
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

async fn response_410_of_old_url_does_not_disable_webhook_on_any_node(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (old, gate) = Receiver::latched(410).await;
    let new = Receiver::start().await;
    let webhook = nodes[0].create_webhook(&old.url(), |resolved| resolved.spec.max_in_flight = Some(4)).await;
    nodes[0].publish(0..1).await;
    old.wait_for(1).await;
    let url = new.url();
    let change = |webhook: &mut Webhook| {
        webhook.spec.url = url.clone();
        Ok::<_, ()>(())
    };
    nodes[1].engine.change_webhook(&webhook.tenant_id, webhook.id, change).await.unwrap();
    gate.open();
    nodes[0].eventually("the 410 is recorded", async || nodes[0].engine.load().unsettled == 0).await;
    for (node, numbers) in nodes.iter().zip([1..26, 26..51]) {
        node.publish(numbers).await;
    }
    let delivered = |all: &[Delivery]| delivered(all) == 50;
    nodes[0].until("all events to the new URL are delivered", delivered).await;
    assert_eq!(old.count(), 1);
}

/// Returns settings of a node that audits its leases often.
fn auditing(name: &str) -> Settings {
    Settings { lease_audit_interval: SECOND / 10, ..named(name) }
}

async fn unknown_lease_is_recovered(on: On) {
    let nodes = nodes(on, ["a", "b"].map(auditing)).await;
    let harness = &nodes[0];
    let receiver = Receiver::start().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |resolved| {
            resolved.spec.ordering_guarantee = Ordering::Strict;
            resolved.spec.retry_config = schedule(&[60]);
        })
        .await;
    harness.publish(0..10).await;
    // A claim for this node whose result is lost: it leases the first, holds the lane and is assigned the webhook.
    let later = harness.clock.now() + 60 * SECOND;
    let pools = vec![DEFAULT_POOL.into()];
    let due = harness.store.due_lanes(harness.engine.epoch(), pools, later, 10).await.unwrap();
    assert_eq!(due.lanes[0].webhook_id, webhook.id);
    let capacity = LaneCapacity { exclusive: true, ..LaneCapacity::new(due.lanes[0].clone(), 1) };
    let claimed = harness.store.claim(harness.engine.epoch(), later, vec![capacity], 1 << 20).await.unwrap();
    assert_eq!(claimed[0].deliveries.len(), 1);
    harness.clock.advance(60 * SECOND);
    harness.until("all are delivered", all_are(DeliveryStatus::Delivered, 10)).await;
    assert_eq!(numbers(&receiver.arrivals()), (0..10).collect::<Vec<_>>(), "each is sent once and in order");
    for node in &nodes {
        node.assert_settled().await;
    }
    let owns_nothing = async || {
        let owned = harness.store.owned_by(harness.engine.epoch(), None, 10).await.unwrap();
        owned == Owned::default()
    };
    harness.eventually("the lane and the assignment are left", owns_nothing).await;
}

async fn known_leases_are_not_released_by_auditor(on: On) {
    let nodes = nodes(on, ["a", "b"].map(auditing)).await;
    let (receiver, gate) = Receiver::latched(200).await;
    nodes[0].create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(4)).await;
    nodes[0].publish(0..50).await;
    receiver.wait_for(2).await;
    tokio::time::sleep(SECOND).await;
    gate.open();
    nodes[0].until("all are delivered", all_are(DeliveryStatus::Delivered, 50)).await;
    assert_eq!(receiver.count(), 50, "nothing was released and sent twice");
}

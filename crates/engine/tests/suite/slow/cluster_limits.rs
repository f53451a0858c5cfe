//! Several nodes on one store: limits, circuits and changes apply to all of them together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::{
    cluster_harness::{On, count, delivered, holding, named, nodes, on_every_store, workers},
    harness::{Harness, SECOND, START, all_are, breaker, draft, failing_receiver},
};
use redrive_core::{
    DeliveryStatus,
    protection::{
        breaker::{BreakerConfig, CircuitState},
        limiter::RateLimit,
    },
    webhook::{Webhook, WebhookState},
};
use redrive_engine::{CircuitAction, Settings};
use redrive_store::ApiKey;
use redrive_testkit::{Latch, Receiver, Reply};

on_every_store!(
    circuit_opened_by_one_node_blocks_the_other,
    probes_of_half_open_circuit_come_from_one_node,
    webhook_rate_limit_applies_to_all_nodes_together,
    concurrency_limit_is_divided_among_live_nodes,
    webhook_with_fewer_slots_than_nodes_is_sent_from_one_node,
    tenant_limits_are_divided_among_nodes,
    webhook_changes_apply_on_other_node,
    delivery_cancelled_on_one_node_is_not_sent_by_other,
    key_changes_on_other_node_call_back,
);

async fn circuit_opened_by_one_node_blocks_the_other(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, works) = failing_receiver().await;
    let webhook =
        a.create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = breaker(5)).await;
    a.publish(0..5).await;
    a.eventually("the circuit opens", async || a.circuit(&webhook).await.state == CircuitState::Open).await;
    b.eventually("the other node knows", async || b.circuit(&webhook).await.state == CircuitState::Open)
        .await;
    assert_eq!(b.circuit(&webhook).await.next_half_open_at, a.circuit(&webhook).await.next_half_open_at);
    b.publish(5..20).await;
    a.publish(20..35).await;
    a.settle_time().await;
    assert_eq!(receiver.count(), 5);
    works.store(true, SeqCst);
    a.clock.advance(30 * SECOND);
    a.until("all are delivered", all_are(DeliveryStatus::Delivered, 35)).await;
    for node in &nodes {
        node.eventually("the circuit is closed", async || {
            node.circuit(&webhook).await.state == CircuitState::Closed
        })
        .await;
        node.assert_settled().await;
    }
    let before = receiver.count();
    b.publish(35..40).await;
    a.publish(40..45).await;
    receiver.wait_for(before + 10).await;
}

async fn probes_of_half_open_circuit_come_from_one_node(on: On) {
    let nodes = nodes(on, ["a", "b", "c"].map(named)).await;
    let receiver = Receiver::responding(500).await;
    let config = BreakerConfig { half_open_max_calls: Some(4), ..breaker(3) };
    let webhook = nodes[0]
        .create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = config)
        .await;
    nodes[0].publish(0..3).await;
    for node in &nodes {
        node.eventually("the circuit opens", async || {
            node.circuit(&webhook).await.state == CircuitState::Open
        })
        .await;
        node.publish(10..30).await;
    }
    let before = receiver.count();
    let gate = Latch::closed();
    receiver.respond_with({
        let gate = gate.clone();
        move |_| Reply::status(500).latched_by(&gate)
    });
    nodes[0].clock.advance(30 * SECOND);
    receiver.wait_for(before + 4).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(receiver.count(), before + 4);
    let sending_nodes = nodes.iter().filter(|node| node.engine.load().unsettled > 0).count();
    assert_eq!(sending_nodes, 1);
    receiver.respond_with(|_| Reply::status(200));
    gate.open();
    for node in &nodes {
        node.eventually("the circuit opens again", async || {
            let circuit = node.circuit(&webhook).await;
            circuit.state == CircuitState::Open && circuit.consecutive_half_open_failures == 1
        })
        .await;
    }
    // A manual reset on one node applies to all.
    let reset = nodes[2].engine.control_circuit(&webhook.tenant_id, webhook.id, CircuitAction::Reset);
    assert!(reset.await.unwrap());
    nodes[0]
        .eventually("all are delivered", async || {
            nodes[0].clock.advance(SECOND);
            delivered(&nodes[0].deliveries().await) == 63
        })
        .await;
}

async fn webhook_rate_limit_applies_to_all_nodes_together(on: On) {
    let nodes = nodes(on, ["a", "b", "c"].map(named)).await;
    let receiver = Receiver::start().await;
    let limit = RateLimit { requests_per_minute: 60, burst: Some(5) };
    nodes[0].create_webhook(&receiver.url(), |webhook| webhook.spec.rate_limit = Some(limit)).await;
    for n in 0..60 {
        nodes[n % 3].engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(5).await;
    tokio::time::sleep(SECOND + SECOND / 2).await;
    assert_eq!(receiver.count(), 5, "all nodes share one burst");
    for second in 1..=20 {
        nodes[0].clock.advance(SECOND);
        receiver.wait_for(5 + second).await;
    }
    nodes[0].settle_time().await;
    assert_eq!(receiver.count(), 25);
}

async fn concurrency_limit_is_divided_among_live_nodes(on: On) {
    let nodes = nodes(on, ["a", "b", "c"].map(named)).await;
    let (receiver, gate) = Receiver::latched(200).await;
    let webhook =
        nodes[0].create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(6)).await;
    for n in 0..60 {
        nodes[n % 3].engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(6).await;
    nodes[0].settle_time().await;
    assert_eq!(receiver.count(), 6);
    let in_flight_count =
        async |node: &Harness| node.engine.gate_status(webhook.id).await.unwrap().unwrap().in_flight;
    for node in &nodes {
        assert_eq!(in_flight_count(node).await, 2);
    }
    // One node leaves, and the others take its share.
    nodes[0].engine.drain(Duration::ZERO).await;
    nodes[0].engine.stop().await;
    for node in &nodes[1..] {
        node.eventually("each node has half", async || in_flight_count(node).await == 3).await;
    }
    gate.open();
    nodes[1]
        .eventually("all are delivered", async || {
            nodes[1].clock.advance(SECOND);
            delivered(&nodes[1].deliveries().await) == 60
        })
        .await;
}

async fn webhook_with_fewer_slots_than_nodes_is_sent_from_one_node(on: On) {
    let nodes = nodes(on, ["a", "b", "c"].map(named)).await;
    let (receiver, gate) = Receiver::latched(200).await;
    nodes[0].create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(2)).await;
    for n in 0..30 {
        nodes[n % 3].engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(2).await;
    tokio::time::sleep(SECOND + SECOND / 2).await;
    assert_eq!(receiver.count(), 2);
    gate.open();
    nodes[0].until("all are delivered", all_are(DeliveryStatus::Delivered, 30)).await;
    assert_eq!(workers(&nodes[0]).await.len(), 1);
}

async fn tenant_limits_are_divided_among_nodes(on: On) {
    let rate = RateLimit { requests_per_minute: 60, burst: Some(6) };
    let with = |name| Settings { tenant_rate_limit: Some(rate), ..named(name) };
    let nodes = nodes(on, ["a", "b", "c"].map(with)).await;
    let receiver = Receiver::start().await;
    nodes[0].create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(30)).await;
    for n in 0..90 {
        nodes[n % 3].engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(6).await;
    nodes[0].settle_time().await;
    assert_eq!(receiver.count(), 6, "each node has two");
    for _ in 0..10 {
        nodes[0].clock.advance(3 * SECOND);
        nodes[0].settle_time().await;
    }
    receiver.wait_for(36).await;
    nodes[0].settle_time().await;
    assert_eq!(receiver.count(), 36, "each node sends one every three seconds");
}

async fn webhook_changes_apply_on_other_node(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = holding(1).await;
    let webhook = a.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(2)).await;
    b.publish(0..10).await;
    receiver.wait_for(1).await;
    a.set_state(&webhook, WebhookState::Paused).await;
    b.until("queued deliveries are released", |all| all.iter().filter(|one| one.due.is_some()).count() == 9)
        .await;
    gate.open();
    b.until("requests in flight finish", |all| delivered(all) == 1).await;
    b.publish(10..12).await;
    b.settle_time().await;
    assert_eq!(receiver.count(), 1);
    let elsewhere = receiver.url_at("/moved");
    let change = |webhook: &mut Webhook| {
        webhook.spec.url.clone_from(&elsewhere);
        webhook.state = WebhookState::Active;
        Ok::<_, ()>(())
    };
    a.engine.change_webhook(&webhook.tenant_id, webhook.id, change).await.unwrap();
    b.until("all are delivered", all_are(DeliveryStatus::Delivered, 12)).await;
    assert!(receiver.arrivals()[1..].iter().all(|one| one.path == "/moved"));
    let (held, gate) = Receiver::latched(500).await;
    let webhook = a.create_webhook(&held.url(), |webhook| webhook.spec.max_in_flight = Some(2)).await;
    b.publish(12..20).await;
    held.wait_for(1).await;
    let delete = |webhook: &mut Webhook| {
        webhook.state = WebhookState::Deleted;
        Ok::<_, ()>(())
    };
    a.engine.change_webhook(&webhook.tenant_id, webhook.id, delete).await.unwrap();
    b.until("the rest is cancelled", |all| count(all, DeliveryStatus::Cancelled) == 7).await;
    gate.open();
    b.assert_settled().await;
    assert_eq!(held.count(), 1);
}

async fn delivery_cancelled_on_one_node_is_not_sent_by_other(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = Receiver::latched(500).await;
    let webhook = a.create_webhook(&receiver.url(), |webhook| webhook.spec.max_in_flight = Some(2)).await;
    b.publish(0..4).await;
    let sent = receiver.wait_for(1).await[0].header("x-webhook-delivery").unwrap().to_owned();
    let all = b.deliveries().await;
    assert!(all.iter().all(|one| one.due.is_none()), "all are leased to b");
    for one in &all {
        a.engine.cancel(webhook.tenant_id.clone(), one.id, webhook.id, "enough".into()).await.unwrap();
    }
    b.until("queued deliveries have ended", |all| count(all, DeliveryStatus::Cancelled) == 3).await;
    assert_eq!(receiver.count(), 1);
    gate.open();
    let all = b.until("all are cancelled", all_are(DeliveryStatus::Cancelled, 4)).await;
    assert!(all.iter().all(|one| one.cancel_reason.as_deref() == Some("enough")));
    let attempted: Vec<_> = all.iter().filter(|one| one.attempt_count == 1).collect();
    assert_eq!(attempted.len(), 1);
    assert_eq!(attempted[0].id.to_string(), sent);
    b.assert_settled().await;
}

async fn key_changes_on_other_node_call_back(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let reported = Arc::new(AtomicUsize::new(0));
    nodes[1].engine.on_keys_changed(Box::new({
        let reported = reported.clone();
        move || {
            reported.fetch_add(1, SeqCst);
        }
    }));
    let key = ApiKey {
        id: redrive_core::KeyId::new(START, &[1; 10]),
        tenant_id: None,
        installation: false,
        name: "a key".into(),
        hash: [1; 32],
        scopes: 1,
        created_at: START,
        session: false,
        networks: Vec::new(),
        expires_at: None,
        last_used_at: None,
        revoked_at: None,
    };
    assert!(nodes[0].store.create_key(key).await.unwrap());
    nodes[1].eventually("the callback is called", async || reported.load(SeqCst) > 0).await;
}

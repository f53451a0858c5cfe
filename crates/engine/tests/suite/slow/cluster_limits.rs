//! Many nodes on one store: limits, circuits and changes hold for all of them together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::cluster_harness::{On, count, delivered, holding, named, nodes, on_every_store, workers};
use crate::harness::{SECOND, START, World, all_are, breaker, broken, draft};
use redrive_core::{
    DeliveryStatus,
    protection::breaker::{BreakerConfig, CircuitState},
    protection::limiter::RateLimit,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::{CircuitAction, Settings};
use redrive_store::ApiKey;
use redrive_testkit::{Gate, Receiver, Reply};

on_every_store!(
    a_circuit_opened_by_one_node_holds_the_other_back_until_it_closes,
    the_probes_of_a_half_open_circuit_come_from_one_node,
    a_webhooks_rate_limit_holds_for_all_nodes_together,
    requests_at_once_are_divided_among_those_that_are_there,
    a_webhook_with_fewer_requests_than_nodes_is_sent_from_one,
    a_tenants_limits_are_divided,
    what_is_changed_on_one_node_holds_on_the_other,
    what_is_called_off_on_one_node_is_not_sent_by_the_other,
    keys_made_elsewhere_are_told,
);

async fn a_circuit_opened_by_one_node_holds_the_other_back_until_it_closes(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, works) = broken().await;
    let hook = a.hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = breaker(5)).await;
    a.publish(0..5).await;
    a.eventually("it opens", async || a.circuit(&hook).await.state == CircuitState::Open).await;
    b.eventually("the other knows", async || b.circuit(&hook).await.state == CircuitState::Open).await;
    assert_eq!(b.circuit(&hook).await.next_half_open_at, a.circuit(&hook).await.next_half_open_at);
    b.publish(5..20).await;
    a.publish(20..35).await;
    a.a_moment().await;
    assert_eq!(receiver.count(), 5);
    works.store(true, SeqCst);
    a.clock.advance(30 * SECOND);
    a.until("all are delivered", all_are(DeliveryStatus::Delivered, 35)).await;
    for node in &nodes {
        node.eventually("it is closed", async || node.circuit(&hook).await.state == CircuitState::Closed)
            .await;
        node.assert_settled().await;
    }
    let before = receiver.count();
    b.publish(35..40).await;
    a.publish(40..45).await;
    receiver.wait_for(before + 10).await;
}

async fn the_probes_of_a_half_open_circuit_come_from_one_node(on: On) {
    let nodes = nodes(on, ["a", "b", "c"].map(named)).await;
    let receiver = Receiver::answering(500).await;
    let config = BreakerConfig { half_open_max_calls: Some(4), ..breaker(3) };
    let hook = nodes[0].hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = config).await;
    nodes[0].publish(0..3).await;
    for node in &nodes {
        node.eventually("it opens", async || node.circuit(&hook).await.state == CircuitState::Open).await;
        node.publish(10..30).await;
    }
    let before = receiver.count();
    let gate = Gate::closed();
    receiver.answer_with({
        let gate = gate.clone();
        move |_| Reply::status(500).held_by(&gate)
    });
    nodes[0].clock.advance(30 * SECOND);
    receiver.wait_for(before + 4).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(receiver.count(), before + 4);
    let senders = nodes.iter().filter(|node| node.engine.load().unsettled > 0).count();
    assert_eq!(senders, 1);
    receiver.answer_with(|_| Reply::status(200));
    gate.open();
    for node in &nodes {
        node.eventually("it opens again", async || {
            let circuit = node.circuit(&hook).await;
            circuit.state == CircuitState::Open && circuit.consecutive_half_open_failures == 1
        })
        .await;
    }
    // A person says on one node what holds for all.
    let reset = nodes[2].engine.act_on_circuit(&hook.tenant, hook.id, CircuitAction::Reset);
    assert!(reset.await.unwrap());
    nodes[0]
        .eventually("all are delivered", async || {
            nodes[0].clock.advance(SECOND);
            delivered(&nodes[0].deliveries().await) == 63
        })
        .await;
}

async fn a_webhooks_rate_limit_holds_for_all_nodes_together(on: On) {
    let nodes = nodes(on, ["a", "b", "c"].map(named)).await;
    let receiver = Receiver::start().await;
    let limit = RateLimit { requests_per_minute: 60, burst: Some(5) };
    nodes[0].hook(&receiver.url(), |hook| hook.spec.rate_limit = Some(limit)).await;
    for n in 0..60 {
        nodes[n % 3].engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(5).await;
    tokio::time::sleep(SECOND + SECOND / 2).await;
    assert_eq!(receiver.count(), 5, "one burst for all");
    for second in 1..=20 {
        nodes[0].clock.advance(SECOND);
        receiver.wait_for(5 + second).await;
    }
    nodes[0].a_moment().await;
    assert_eq!(receiver.count(), 25);
}

async fn requests_at_once_are_divided_among_those_that_are_there(on: On) {
    let nodes = nodes(on, ["a", "b", "c"].map(named)).await;
    let (receiver, gate) = Receiver::held(200).await;
    let hook = nodes[0].hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(6)).await;
    for n in 0..60 {
        nodes[n % 3].engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(6).await;
    nodes[0].a_moment().await;
    assert_eq!(receiver.count(), 6);
    let under_way = async |node: &World| node.engine.gate_view(hook.id).await.unwrap().unwrap().in_flight;
    for node in &nodes {
        assert_eq!(under_way(node).await, 2);
    }
    // One goes, and the others take its part.
    nodes[0].engine.drain(Duration::ZERO).await;
    nodes[0].engine.stop().await;
    for node in &nodes[1..] {
        node.eventually("half each", async || under_way(node).await == 3).await;
    }
    gate.open();
    nodes[1]
        .eventually("all are delivered", async || {
            nodes[1].clock.advance(SECOND);
            delivered(&nodes[1].deliveries().await) == 60
        })
        .await;
}

async fn a_webhook_with_fewer_requests_than_nodes_is_sent_from_one(on: On) {
    let nodes = nodes(on, ["a", "b", "c"].map(named)).await;
    let (receiver, gate) = Receiver::held(200).await;
    nodes[0].hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(2)).await;
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

async fn a_tenants_limits_are_divided(on: On) {
    let rate = RateLimit { requests_per_minute: 60, burst: Some(6) };
    let with = |name| Settings { tenant_rate_limit: Some(rate), ..named(name) };
    let nodes = nodes(on, ["a", "b", "c"].map(with)).await;
    let receiver = Receiver::start().await;
    nodes[0].hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(30)).await;
    for n in 0..90 {
        nodes[n % 3].engine.publish(draft(n)).await.unwrap();
    }
    receiver.wait_for(6).await;
    nodes[0].a_moment().await;
    assert_eq!(receiver.count(), 6, "two each");
    for _ in 0..10 {
        nodes[0].clock.advance(3 * SECOND);
        nodes[0].a_moment().await;
    }
    receiver.wait_for(36).await;
    nodes[0].a_moment().await;
    assert_eq!(receiver.count(), 36, "one each every three seconds");
}

async fn what_is_changed_on_one_node_holds_on_the_other(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = holding(1).await;
    let hook = a.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(2)).await;
    b.publish(0..10).await;
    receiver.wait_for(1).await;
    a.set_state(&hook, WebhookState::Paused).await;
    b.until("what was queued goes back", |all| all.iter().filter(|one| one.due.is_some()).count() == 9).await;
    gate.open();
    b.until("what was under way is let finish", |all| delivered(all) == 1).await;
    b.publish(10..12).await;
    b.a_moment().await;
    assert_eq!(receiver.count(), 1);
    let elsewhere = receiver.url_at("/moved");
    let change = |hook: &mut Webhook| {
        hook.spec.url.clone_from(&elsewhere);
        hook.state = WebhookState::Active;
        Ok::<_, ()>(())
    };
    a.engine.change_webhook(&hook.tenant, hook.id, change).await.unwrap();
    b.until("all are delivered", all_are(DeliveryStatus::Delivered, 12)).await;
    assert!(receiver.arrivals()[1..].iter().all(|one| one.path == "/moved"));
    let (held, gate) = Receiver::held(500).await;
    let hook = a.hook(&held.url(), |hook| hook.spec.max_in_flight = Some(2)).await;
    b.publish(12..20).await;
    held.wait_for(1).await;
    let delete = |hook: &mut Webhook| {
        hook.state = WebhookState::Deleted;
        Ok::<_, ()>(())
    };
    a.engine.change_webhook(&hook.tenant, hook.id, delete).await.unwrap();
    b.until("the rest is cancelled", |all| count(all, DeliveryStatus::Cancelled) == 7).await;
    gate.open();
    b.assert_settled().await;
    assert_eq!(held.count(), 1);
}

async fn what_is_called_off_on_one_node_is_not_sent_by_the_other(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let (a, b) = (&nodes[0], &nodes[1]);
    let (receiver, gate) = Receiver::held(500).await;
    let hook = a.hook(&receiver.url(), |hook| hook.spec.max_in_flight = Some(2)).await;
    b.publish(0..4).await;
    let sent = receiver.wait_for(1).await[0].header("x-webhook-delivery").unwrap().to_owned();
    let all = b.deliveries().await;
    assert!(all.iter().all(|one| one.due.is_none()), "all are leased to b");
    for one in &all {
        a.engine.cancel(hook.tenant.clone(), one.id, hook.id, "enough".into()).await.unwrap();
    }
    b.until("what was queued is over", |all| count(all, DeliveryStatus::Cancelled) == 3).await;
    assert_eq!(receiver.count(), 1);
    gate.open();
    let all = b.until("all are cancelled", all_are(DeliveryStatus::Cancelled, 4)).await;
    assert!(all.iter().all(|one| one.cancel_reason.as_deref() == Some("enough")));
    let attempted: Vec<_> = all.iter().filter(|one| one.attempt_count == 1).collect();
    assert_eq!(attempted.len(), 1);
    assert_eq!(attempted[0].id.to_string(), sent);
    b.assert_settled().await;
}

async fn keys_made_elsewhere_are_told(on: On) {
    let nodes = nodes(on, ["a", "b"].map(named)).await;
    let told = Arc::new(AtomicUsize::new(0));
    nodes[1].engine.on_keys_changed(Box::new({
        let told = told.clone();
        move || {
            told.fetch_add(1, SeqCst);
        }
    }));
    let key = ApiKey {
        id: redrive_core::KeyId::new(START, &[1; 10]),
        tenant: None,
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
    nodes[1].eventually("it is told", async || told.load(SeqCst) > 0).await;
}

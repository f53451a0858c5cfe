//! Forced circuits persist with Redis, without it, and with a Redis that lost its data or has other state.

use redrive_testkit::{Postgres, Proxy, Receiver, Redis};
use redrive_tests::id;
use serde_json::{Value, json};

use super::{shares, start, world};

#[tokio::test(flavor = "multi_thread")]
async fn forced_circuit_survives_redis_outage() {
    let mut fixture = world(&[]).await;
    let webhook = fixture.nodes[0].api().create_webhook(&fixture.receiver.url(), Value::Null).await;
    let (health, act) = (
        format!("/v1/webhooks/{}/health", id(&webhook)),
        format!("/v1/webhooks/{}/circuit-breaker", id(&webhook)),
    );
    let forced = |health: &Value| health["circuit"]["forced"]["open"] == true;
    fixture.nodes[0].api().patch(&act, json!({"action": "force_open"})).await.expect(200);
    for node in &fixture.nodes {
        node.api().wait_until("a circuit that is forced open", &health, forced).await;
    }
    fixture.publish(6).await;
    fixture.redis.stop().await;
    for node in &fixture.nodes {
        shares(node, false).await;
        let seen =
            node.api().wait_until("the circuit stays forced open without Redis", &health, forced).await;
        assert_eq!(seen["circuit"]["fallback"], true);
    }
    fixture.redis.start_again().await;
    for node in &fixture.nodes {
        shares(node, true).await;
        node.api().wait_until("the circuit stays forced open with an empty Redis", &health, forced).await;
    }
    fixture.redis.command(&["FLUSHALL"]).await;
    fixture.publish(3).await;
    for node in &fixture.nodes {
        node.api()
            .wait_until("the circuit stays forced open after Redis lost its state", &health, forced)
            .await;
    }
    assert_eq!(fixture.receiver.count(), 0, "nothing is sent while the circuit is forced open");
    // Reset during the outage; Redis receives the change when it is available again.
    fixture.redis.stop().await;
    for node in &fixture.nodes {
        shares(node, false).await;
    }
    fixture.nodes[1].api().patch(&act, json!({"action": "reset"})).await.expect(200);
    fixture.receiver.wait_for(9).await;
    fixture.redis.start_again().await;
    for node in &fixture.nodes {
        shares(node, true).await;
        let closed =
            |health: &Value| health["circuit"]["forced"].is_null() && health["circuit"]["state"] == "closed";
        node.api().wait_until("a closed circuit", &health, closed).await;
    }
    fixture.publish(3).await;
    fixture.receiver.wait_for(12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn circuit_forced_during_outage_overrides_state_in_redis() {
    let (database, redis) = (Postgres::shared().await, Redis::start().await);
    let proxy = Proxy::to(redis.address()).await;
    let mut nodes = start(&database.url(), &redis.url_through(&proxy), &[]).await;
    let receiver = Receiver::start().await;
    let webhook = nodes[0].api().create_webhook(&receiver.url(), Value::Null).await;
    let (health, act) = (
        format!("/v1/webhooks/{}/health", id(&webhook)),
        format!("/v1/webhooks/{}/circuit-breaker", id(&webhook)),
    );
    // Redis has a circuit with past transitions that is closed.
    for action in ["force_open", "reset"] {
        nodes[0].api().patch(&act, json!({"action": action})).await.expect(200);
    }
    proxy.refuse();
    for node in &nodes {
        shares(node, false).await;
    }
    nodes[1].api().patch(&act, json!({"action": "force_open"})).await.expect(200);
    // The node that forced the circuit is gone when Redis returns; another one knows it only from the store.
    nodes[1].kill();
    nodes[2].restart().await;
    proxy.pass();
    for node in [&nodes[0], &nodes[2]] {
        shares(node, true).await;
        let forced = |health: &Value| health["circuit"]["forced"]["open"] == true;
        node.api().wait_until("a circuit that is forced open", &health, forced).await;
    }
    nodes[2].api().patch(&act, json!({"action": "reset"})).await.expect(200);
    nodes[0].api().publish("fleet.test", json!({})).await;
    receiver.wait_for(1).await;
}

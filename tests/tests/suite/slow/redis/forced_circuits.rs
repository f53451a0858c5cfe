//! What a person decided about a circuit holds with Redis, without it, and in one that has forgotten or knows otherwise.

use redrive_testkit::{Postgres, Proxy, Receiver, Redis};
use redrive_tests::id;
use serde_json::{Value, json};

use super::{shares, start, world};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_decided_outlives_redis() {
    let mut world = world(&[]).await;
    let webhook = world.nodes[0].api().create_webhook(&world.receiver.url(), Value::Null).await;
    let (health, act) = (
        format!("/v1/webhooks/{}/health", id(&webhook)),
        format!("/v1/webhooks/{}/circuit-breaker", id(&webhook)),
    );
    let forced = |health: &Value| health["circuit"]["forced"]["open"] == true;
    world.nodes[0].api().patch(&act, json!({"action": "force_open"})).await.expect(200);
    for node in &world.nodes {
        node.api().eventually("a circuit that is forced open", &health, forced).await;
    }
    world.publish(6).await;
    world.redis.stop().await;
    for node in &world.nodes {
        shares(node, false).await;
        let seen = node.api().eventually("the same without Redis", &health, forced).await;
        assert_eq!(seen["circuit"]["fallback"], true);
    }
    world.redis.start_again().await;
    for node in &world.nodes {
        shares(node, true).await;
        node.api().eventually("the same in an empty Redis", &health, forced).await;
    }
    world.redis.command(&["FLUSHALL"]).await;
    world.publish(3).await;
    for node in &world.nodes {
        node.api().eventually("the same in a Redis that has forgotten it", &health, forced).await;
    }
    assert_eq!(world.receiver.count(), 0, "nothing goes out while somebody forbids it");
    // Without Redis it is reset, and Redis hears of that when it is back.
    world.redis.stop().await;
    for node in &world.nodes {
        shares(node, false).await;
    }
    world.nodes[1].api().patch(&act, json!({"action": "reset"})).await.expect(200);
    world.receiver.wait_for(9).await;
    world.redis.start_again().await;
    for node in &world.nodes {
        shares(node, true).await;
        let closed =
            |health: &Value| health["circuit"]["forced"].is_null() && health["circuit"]["state"] == "closed";
        node.api().eventually("a closed circuit", &health, closed).await;
    }
    world.publish(3).await;
    world.receiver.wait_for(12).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_decided_without_redis_counts_in_one_that_remembers_otherwise() {
    let (database, redis) = (Postgres::shared().await, Redis::start().await);
    let proxy = Proxy::to(redis.address()).await;
    let mut nodes = start(&database.url(), &redis.url_through(&proxy), &[]).await;
    let receiver = Receiver::start().await;
    let webhook = nodes[0].api().create_webhook(&receiver.url(), Value::Null).await;
    let (health, act) = (
        format!("/v1/webhooks/{}/health", id(&webhook)),
        format!("/v1/webhooks/{}/circuit-breaker", id(&webhook)),
    );
    // Redis remembers a circuit that has moved, and is closed.
    for action in ["force_open", "reset"] {
        nodes[0].api().patch(&act, json!({"action": action})).await.expect(200);
    }
    proxy.refuse();
    for node in &nodes {
        shares(node, false).await;
    }
    nodes[1].api().patch(&act, json!({"action": "force_open"})).await.expect(200);
    // Whoever has decided it is gone when Redis is back, and another one has only read of it.
    nodes[1].kill();
    nodes[2].restart().await;
    proxy.pass();
    for node in [&nodes[0], &nodes[2]] {
        shares(node, true).await;
        let forced = |health: &Value| health["circuit"]["forced"]["open"] == true;
        node.api().eventually("a circuit that is forced open", &health, forced).await;
    }
    nodes[2].api().patch(&act, json!({"action": "reset"})).await.expect(200);
    nodes[0].api().publish("fleet.test", json!({})).await;
    receiver.wait_for(1).await;
}

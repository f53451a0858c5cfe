//! Failures of Redis, alone and together with other dependencies: nothing is lost, and all nodes recover by
//! themselves.

use std::time::{Duration, Instant};

use redrive_testkit::{Postgres, Proxy, RabbitMq, Receiver, Redis, Redrive};
use redrive_tests::cluster::{PublishLoad, assert_no_loss, duplicates, node, wait_until_settled};
use serde_json::{Value, json};

use super::{max_within, shares, start, world};

/// What happens to Redis while events are published.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Stopped,
    Killed,
    Frozen,
    Flushed,
}

/// Publishes on all nodes during a fault of Redis. Asserts that nothing is lost or sent twice, that deliveries
/// continue, and that all nodes use Redis again after the fault.
async fn survives(fault: Fault) {
    let mut fixture = world(&[]).await;
    let limit = json!({"rate_limit": {"requests_per_minute": 12_000, "burst": 20}});
    for (path, extra) in [("/plain", json!({"max_in_flight": 8})), ("/limited", limit)] {
        fixture.nodes[0].api().create_webhook(&fixture.receiver.url_at(path), extra).await;
    }
    let load = PublishLoad::start(fixture.apis(), 6, Duration::from_millis(30));
    fixture.receiver.wait_for(100).await;
    match fault {
        Fault::Stopped => fixture.redis.stop().await,
        Fault::Killed => fixture.redis.kill().await,
        Fault::Frozen => fixture.redis.freeze(),
        Fault::Flushed => drop(fixture.redis.command(&["FLUSHALL"]).await),
    }
    if !matches!(fault, Fault::Flushed) {
        for node in &fixture.nodes {
            shares(node, false).await;
        }
    }
    let before = fixture.receiver.count();
    fixture.receiver.wait_for(before + 100).await;
    match fault {
        Fault::Stopped | Fault::Killed => fixture.redis.start_again().await,
        Fault::Frozen => fixture.redis.thaw(),
        Fault::Flushed => {}
    }
    for node in &fixture.nodes {
        shares(node, true).await;
    }
    let before = fixture.receiver.count();
    fixture.receiver.wait_for(before + 100).await;
    let acked = load.finish().await;
    let deliveries = wait_until_settled(&fixture.nodes[1].api()).await;
    let arrivals = fixture.receiver.arrivals();
    assert_no_loss(&acked, &deliveries, &arrivals, 2);
    assert_eq!(duplicates(&deliveries, &arrivals), 0);
    let limited: Vec<_> = arrivals.iter().filter(|arrival| arrival.path == "/limited").cloned().collect();
    let max = max_within(&limited, Duration::from_secs(1));
    // Requests sent in time may be received late, together with later ones.
    assert!(max <= 20 + 200 + 60, "{max} within a second, with and without Redis");
    for node in &fixture.nodes {
        let lines = node.output().lines().filter(|line| line.contains("Redis")).count();
        assert!(lines <= 4, "one log record for the outage and one for the recovery:\n{}", node.output());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_and_emptied_redis_loses_nothing() {
    survives(Fault::Stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_redis_loses_nothing() {
    survives(Fault::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_redis_loses_nothing() {
    survives(Fault::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flushed_redis_loses_nothing() {
    survives(Fault::Flushed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_redis_counts_as_unavailable() {
    let (database, redis) = (Postgres::shared().await, Redis::start().await);
    // A replica without a primary replies to reads and rejects writes.
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let node = Redrive::start_with(node(&database.url(), "a").arg("--redis").arg(redis.url())).await;
    shares(&node, false).await;
    let receiver = Receiver::start().await;
    let limit = json!({"rate_limit": {"requests_per_minute": 6_000, "burst": 10}});
    node.api().create_webhook(&receiver.url(), limit).await;
    for n in 0..20 {
        node.api().publish("fleet.test", json!({"n": n})).await;
    }
    receiver.wait_for(20).await;
    redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    shares(&node, true).await;
    // It becomes read-only again under load.
    let load = PublishLoad::start(vec![node.api()], 4, Duration::from_millis(10));
    receiver.wait_for(60).await;
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    shares(&node, false).await;
    let before = receiver.count();
    receiver.wait_for(before + 40).await;
    load.finish().await;
    let lines = node.output().lines().filter(|line| line.contains("Redis")).count();
    assert!(lines <= 4, "the outage is logged once:\n{}", node.output());
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn outage_of_all_dependencies_loses_nothing_and_recovers() {
        let (mut postgres, mut redis, mut broker) =
            (Postgres::start().await, Redis::start().await, RabbitMq::start().await);
        let start = |name: &'static str, role: &'static str| {
            let setup = node(&postgres.url(), name).role(role).arg("--redis").arg(redis.url());
            Redrive::start_with(setup.arg("--amqp").arg(broker.url()))
        };
        let nodes = [start("api", "api").await, start("a", "worker").await, start("b", "worker").await];
        let receiver = Receiver::start().await;
        let limit = json!({"rate_limit": {"requests_per_minute": 60_000, "burst": 200}});
        for (path, extra) in [("/plain", json!({"max_in_flight": 8})), ("/limited", limit)] {
            nodes[0].api().create_webhook(&receiver.url_at(path), extra).await;
        }
        let load = PublishLoad::start(vec![nodes[0].api()], 6, Duration::from_millis(20));
        receiver.wait_for(200).await;
        // First the optional dependencies fail, then all of them.
        for with_the_store in [false, true] {
            redis.kill().await;
            broker.kill().await;
            if with_the_store {
                postgres.stop().await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                postgres.start_again().await;
            } else {
                let before = receiver.count();
                receiver.wait_for(before + 100).await;
            }
            redis.start_again().await;
            broker.restart_empty().await;
            let back = Instant::now();
            for node in &nodes {
                shares(node, true).await;
            }
            let before = receiver.count();
            receiver.wait_for(before + 100).await;
            println!("all nodes deliver again after {:?}", back.elapsed());
        }
        let acked = load.finish().await;
        let deliveries = wait_until_settled(&nodes[0].api()).await;
        assert_no_loss(&acked, &deliveries, &receiver.arrivals(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn slow_redis_keeps_nodes_connected_and_loses_nothing() {
        let (database, redis) = (Postgres::shared().await, Redis::start().await);
        let proxy = Proxy::to(redis.address()).await;
        let nodes = start(&database.url(), &redis.url_through(&proxy), &[]).await;
        let receiver = Receiver::start().await;
        let limit = json!({"rate_limit": {"requests_per_minute": 6_000, "burst": 100}});
        for (path, extra) in [("/plain", Value::Null), ("/limited", limit)] {
            nodes[0].api().create_webhook(&receiver.url_at(path), extra).await;
        }
        proxy.delay(Duration::from_millis(50));
        let load = PublishLoad::start(nodes.iter().map(Redrive::api).collect(), 6, Duration::from_millis(10));
        receiver.wait_for(400).await;
        let acked = load.finish().await;
        let deliveries = wait_until_settled(&nodes[0].api()).await;
        assert_no_loss(&acked, &deliveries, &receiver.arrivals(), 2);
        assert_eq!(duplicates(&deliveries, &receiver.arrivals()), 0);
        for node in &nodes {
            shares(node, true).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn outage_of_redis_and_store_loses_nothing() {
        let (mut postgres, mut redis) = (Postgres::start().await, Redis::start().await);
        let nodes = start(&postgres.url(), &redis.url(), &[]).await;
        let receiver = Receiver::start().await;
        nodes[0].api().create_webhook(&receiver.url(), json!({"max_in_flight": 8})).await;
        let load = PublishLoad::start(nodes.iter().map(Redrive::api).collect(), 6, Duration::from_millis(20));
        receiver.wait_for(100).await;
        redis.kill().await;
        postgres.stop().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        postgres.start_again().await;
        redis.start_again().await;
        let before = receiver.count();
        receiver.wait_for(before + 100).await;
        for node in &nodes {
            shares(node, true).await;
        }
        let acked = load.finish().await;
        let deliveries = wait_until_settled(&nodes[0].api()).await;
        assert_no_loss(&acked, &deliveries, &receiver.arrivals(), 1);
    }
}

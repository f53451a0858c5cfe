//! Redis goes, alone and with others, in every way there is: nothing is lost, and everything comes back by itself.

use std::time::{Duration, Instant};

use redrive_testkit::{Postgres, Proxy, RabbitMq, Receiver, Redis, Redrive};
use redrive_tests::cluster::{Load, all_over, assert_no_loss, duplicates, node};
use serde_json::{Value, json};

use super::{most_within, shares, start, world};

/// What happens to Redis while events are published, and how long it takes.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Stopped,
    Killed,
    Frozen,
    Flushed,
}

/// Load on all nodes while something happens to Redis. Nothing is lost or sent twice, deliveries go on, and a while
/// after the fault everything is shared again.
async fn survives(fault: Fault) {
    let mut world = world(&[]).await;
    let limit = json!({"rate_limit": {"requests_per_minute": 12_000, "burst": 20}});
    for (path, extra) in [("/plain", json!({"max_in_flight": 8})), ("/limited", limit)] {
        world.nodes[0].api().create_webhook(&world.receiver.url_at(path), extra).await;
    }
    let load = Load::start(world.apis(), 6, Duration::from_millis(30));
    world.receiver.wait_for(100).await;
    match fault {
        Fault::Stopped => world.redis.stop().await,
        Fault::Killed => world.redis.kill().await,
        Fault::Frozen => world.redis.freeze(),
        Fault::Flushed => drop(world.redis.command(&["FLUSHALL"]).await),
    }
    if !matches!(fault, Fault::Flushed) {
        for node in &world.nodes {
            shares(node, false).await;
        }
    }
    let before = world.receiver.count();
    world.receiver.wait_for(before + 100).await;
    match fault {
        Fault::Stopped | Fault::Killed => world.redis.start_again().await,
        Fault::Frozen => world.redis.thaw(),
        Fault::Flushed => {}
    }
    for node in &world.nodes {
        shares(node, true).await;
    }
    let before = world.receiver.count();
    world.receiver.wait_for(before + 100).await;
    let acked = load.finish().await;
    let deliveries = all_over(&world.nodes[1].api()).await;
    let arrivals = world.receiver.arrivals();
    assert_no_loss(&acked, &deliveries, &arrivals, 2);
    assert_eq!(duplicates(&deliveries, &arrivals), 0);
    let limited: Vec<_> = arrivals.iter().filter(|arrival| arrival.path == "/limited").cloned().collect();
    let most = most_within(&limited, Duration::from_secs(1));
    // What left in time may arrive late, and together with what comes after it.
    assert!(most <= 20 + 200 + 60, "{most} within a second, with and without Redis");
    for node in &world.nodes {
        let lines = node.output().lines().filter(|line| line.contains("Redis")).count();
        assert!(lines <= 4, "a line when it goes and one when it is back:\n{}", node.output());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_stopped_and_comes_back_empty_costs_nothing() {
    survives(Fault::Stopped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_killed_costs_nothing() {
    survives(Fault::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_stalls_costs_nothing() {
    survives(Fault::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_everything_costs_nothing() {
    survives(Fault::Flushed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_takes_no_writes_counts_as_away() {
    let (database, redis) = (Postgres::shared().await, Redis::start().await);
    // A replica of nothing answers, and lets nobody write.
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
    // It changes its mind under load.
    let load = Load::start(vec![node.api()], 4, Duration::from_millis(10));
    receiver.wait_for(60).await;
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    shares(&node, false).await;
    let before = receiver.count();
    receiver.wait_for(before + 40).await;
    load.finish().await;
    let lines = node.output().lines().filter(|line| line.contains("Redis")).count();
    assert!(lines <= 4, "it is said once:\n{}", node.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_redis_slows_only_what_asks_it() {
    let (database, redis) = (Postgres::shared().await, Redis::start().await);
    let proxy = Proxy::to(redis.address()).await;
    let nodes = start(&database.url(), &redis.url_through(&proxy), &[]).await;
    let receiver = Receiver::start().await;
    let limit = json!({"rate_limit": {"requests_per_minute": 6_000, "burst": 100}});
    for (path, extra) in [("/plain", Value::Null), ("/limited", limit)] {
        nodes[0].api().create_webhook(&receiver.url_at(path), extra).await;
    }
    proxy.delay(Duration::from_millis(50));
    let load = Load::start(nodes.iter().map(Redrive::api).collect(), 6, Duration::from_millis(10));
    receiver.wait_for(400).await;
    let acked = load.finish().await;
    let deliveries = all_over(&nodes[0].api()).await;
    assert_no_loss(&acked, &deliveries, &receiver.arrivals(), 2);
    assert_eq!(duplicates(&deliveries, &receiver.arrivals()), 0);
    for node in &nodes {
        shares(node, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_and_without_the_store_nothing_is_lost() {
    let (mut postgres, mut redis) = (Postgres::start().await, Redis::start().await);
    let nodes = start(&postgres.url(), &redis.url(), &[]).await;
    let receiver = Receiver::start().await;
    nodes[0].api().create_webhook(&receiver.url(), json!({"max_in_flight": 8})).await;
    let load = Load::start(nodes.iter().map(Redrive::api).collect(), 6, Duration::from_millis(20));
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
    let deliveries = all_over(&nodes[0].api()).await;
    assert_no_loss(&acked, &deliveries, &receiver.arrivals(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_everything_gone_at_once_nothing_is_lost_and_all_of_it_comes_back() {
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
    let load = Load::start(vec![nodes[0].api()], 6, Duration::from_millis(20));
    receiver.wait_for(200).await;
    // First what nodes can do without, then everything.
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
        assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
    }
    let acked = load.finish().await;
    let deliveries = all_over(&nodes[0].api()).await;
    assert_no_loss(&acked, &deliveries, &receiver.arrivals(), 2);
}

//! Three real nodes on one PostgreSQL and one Redis: limits, caps and circuits are exact over all of them, and Redis
//! may vanish at any moment. Judged from outside.

// Tests may read clocks, and a test that cannot go on should panic.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use redrive_testkit::{Api, Arrival, Database, Postgres, Proxy, RabbitMq, Receiver, Redis, Redrive, Reply};
use redrive_tests::{
    attempts_of,
    fleet::{Load, all_over, assert_no_loss, duplicates, node},
    id,
};
use serde_json::{Value, json};

/// A fleet, all of which is gone at the end of its test.
struct World {
    nodes: Vec<Redrive>,
    redis: Redis,
    receiver: Arc<Receiver>,
    _database: Database,
}

async fn world(settings: &[(&str, &str)]) -> World {
    let (database, redis) = (Postgres::shared().await, Redis::start().await);
    let nodes = start(&database.url(), &redis.url(), settings).await;
    World { nodes, redis, receiver: Arc::new(Receiver::start().await), _database: database }
}

async fn start(database: &str, redis: &str, settings: &[(&str, &str)]) -> Vec<Redrive> {
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        let mut setup = node(database, name).arg("--redis").arg(redis);
        for (name, value) in settings {
            setup = setup.env(*name, *value);
        }
        nodes.push(Redrive::start_with(setup).await);
    }
    for node in &nodes {
        shares(node, true).await;
    }
    nodes
}

/// Waits until a node shares limits and circuits through Redis, or goes by itself.
async fn shares(node: &Redrive, through_redis: bool) {
    let (up, alone) = if through_redis { ("1", "0") } else { ("0", "1") };
    let began = Instant::now();
    loop {
        let metrics = String::from_utf8(node.api().get("/metrics").await.body.to_vec()).unwrap();
        let told = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if told("webhook_redis_up ") == Some(up) && told("webhook_redis_fallback_active ") == Some(alone) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "after ten seconds:\n{metrics}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl World {
    fn apis(&self) -> Vec<Api> {
        self.nodes.iter().map(Redrive::api).collect()
    }

    /// Publishes so many events, in turn at all nodes.
    async fn publish(&self, count: usize) {
        for n in 0..count {
            self.nodes[n % 3].api().publish("fleet.test", json!({"n": n})).await;
        }
    }

    /// Which nodes have sent something.
    async fn senders(&self) -> BTreeSet<String> {
        let mut senders = BTreeSet::new();
        for delivery in all_over(&self.nodes[0].api()).await {
            for attempt in attempts_of(&self.nodes[0].api(), id(&delivery)).await {
                senders.extend(
                    attempt["worker"].as_str().map(|worker| worker.split('#').next().unwrap().to_owned()),
                );
            }
        }
        senders
    }
}

/// The most that arrived within any span of this length.
fn most_within(arrivals: &[Arrival], span: Duration) -> usize {
    let times: Vec<Instant> = arrivals.iter().map(|arrival| arrival.at).collect();
    (0..times.len())
        .map(|first| times[first..].iter().take_while(|at| **at - times[first] <= span).count())
        .max()
        .unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_kept_by_all_nodes_together() {
    let world = world(&[]).await;
    let limit = json!({"rate_limit": {"requests_per_minute": 1200, "burst": 4}});
    world.nodes[0].api().create_webhook(&world.receiver.url(), limit).await;
    world.publish(90).await;
    let arrivals = world.receiver.wait_for(90).await;
    // A token comes back every 50 ms. What left in time may arrive late, all of half a second's at once: with a bucket
    // for each node there would be three times as many.
    for millis in [1_000, 2_000] {
        let most = most_within(&arrivals, Duration::from_millis(millis));
        let allowed = 4 + (millis as usize + 500) / 50;
        assert!(most <= allowed, "{most} within {millis} ms, where {allowed} may be");
    }
    let took = arrivals[89].at - arrivals[0].at;
    assert!(took >= Duration::from_millis((90 - 4) * 50 - 500), "all of them within {took:?}");
    assert_eq!(world.senders().await.len(), 3, "all of them send, not a home alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn rates_of_a_tenant_and_of_all_are_kept_by_all_nodes_together() {
    for settings in [
        [("REDRIVE_LIMITS_TENANT_REQUESTS_PER_MINUTE", "1200"), ("REDRIVE_LIMITS_TENANT_BURST", "4")],
        [("REDRIVE_LIMITS_GLOBAL_REQUESTS_PER_SECOND", "20"), ("REDRIVE_LIMITS_GLOBAL_BURST", "4")],
    ] {
        let world = world(&settings).await;
        for path in ["/one", "/two"] {
            world.nodes[0].api().create_webhook(&world.receiver.url_at(path), Value::Null).await;
        }
        world.publish(30).await;
        let arrivals = world.receiver.wait_for(60).await;
        let took = arrivals[59].at - arrivals[0].at;
        assert!(
            took >= Duration::from_millis((60 - 4) * 50 - 500),
            "all of them within {took:?} with {settings:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_the_api_are_counted_by_all_nodes_together() {
    let limits = [("REDRIVE_LIMITS_API_REQUESTS_PER_MINUTE", "600"), ("REDRIVE_LIMITS_API_BURST", "12")];
    let world = world(&limits).await;
    // Until the bucket is full again.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let (mut taken, mut refused, began) = (0, 0, Instant::now());
    for call in 0..40 {
        match world.nodes[call % 3].api().get("/v1/webhooks").await.status {
            200 => taken += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
    }
    let most = 12 + 1 + began.elapsed().as_millis() as usize / 100;
    assert!(taken >= 12 && taken <= most, "{taken} taken where {most} may be, {refused} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_webhook_has_more_requests_under_way_than_it_may() {
    const EACH: Duration = Duration::from_millis(40);
    // With fewer than there are nodes, they go round.
    for cap in [1, 2, 5] {
        let world = world(&[]).await;
        world.receiver.answer_with(|_| Reply::status(200).after(EACH));
        let hook = json!({"max_in_flight": cap, "state": "paused"});
        let webhook = world.nodes[0].api().create_webhook(&world.receiver.url(), hook).await;
        world.publish(60).await;
        let resume = format!("/v1/webhooks/{}/resume", id(&webhook));
        world.nodes[0].api().post(&resume, json!({})).await.expect(200);
        let arrivals = world.receiver.wait_for(60).await;
        let under_way =
            |at: Instant| arrivals.iter().filter(|one| one.at <= at && at < one.at + EACH).count();
        let most = arrivals.iter().map(|arrival| under_way(arrival.at)).max().unwrap();
        assert!(most <= cap, "{most} at once, where {cap} may be");
        assert_eq!(most, cap, "what may be used is used");
        all_over(&world.nodes[0].api()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_one_circuit_and_one_set_of_probes() {
    let world = world(&[]).await;
    let healthy = Arc::new(AtomicBool::new(false));
    let heals = healthy.clone();
    world.receiver.answer_with(move |_| Reply::status(if heals.load(Relaxed) { 200 } else { 500 }));
    let breaker = json!({"minimum_throughput": 6, "sleep_window_ms": 2000, "half_open_max_calls": 2,
        "half_open_success_threshold": 1.0});
    let webhook = world.nodes[0]
        .api()
        .create_webhook(
            &world.receiver.url(),
            json!({"circuit_breaker_config": breaker, "retry_config": {"schedule": [0, 1, 1, 1, 1, 1, 1, 1, 1, 1]}}),
        )
        .await;
    let health = format!("/v1/webhooks/{}/health", id(&webhook));
    let is = |state: &'static str| move |health: &Value| health["circuit"]["state"] == state;
    world.publish(12).await;
    for node in &world.nodes {
        let seen = node.api().eventually("an open circuit", &health, is("open")).await;
        assert_eq!(seen["circuit"]["fallback"], false);
    }
    // Whatever was under way when it opened is over: what follows are probes.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = world.receiver.count();
    assert!(before <= 12 + 6, "{before} requests to a circuit that opens at six failures");
    world.receiver.wait_for(before + 2).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(world.receiver.count(), before + 2, "one set of probes for all three");
    healthy.store(true, Relaxed);
    for node in &world.nodes {
        node.api().eventually("a closed circuit", &health, is("closed")).await;
    }
    let deliveries = all_over(&world.nodes[0].api()).await;
    assert!(deliveries.iter().all(|delivery| delivery["status"] == "delivered"), "{deliveries:#?}");
}

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
async fn a_cap_that_is_lowered_holds_and_a_node_that_stops_leaves_its_slots() {
    const EACH: Duration = Duration::from_millis(100);
    let mut world = world(&[]).await;
    world.receiver.answer_with(|_| Reply::status(200).after(EACH));
    let webhook =
        world.nodes[0].api().create_webhook(&world.receiver.url(), json!({"max_in_flight": 9})).await;
    world.publish(90).await;
    world.receiver.wait_for(30).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    world.nodes[0].api().patch(&path, json!({"max_in_flight": 2})).await.expect(200);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let settled = Instant::now();
    world.nodes[2].signal("TERM");
    world.nodes[2].wait_exit(Duration::from_secs(20)).await;
    let before = world.receiver.count();
    world.receiver.wait_for((before + 20).min(90)).await;
    let arrivals = world.receiver.wait_for(90).await;
    let late: Vec<_> = arrivals.iter().filter(|arrival| arrival.at > settled).collect();
    let under_way = |at: Instant| late.iter().filter(|one| one.at <= at && at < one.at + EACH).count();
    let most = late.iter().map(|arrival| under_way(arrival.at)).max().unwrap_or(0);
    assert!(most <= 2, "{most} at once, where 2 may be");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_with_tls_and_users_is_reached_by_url() {
    let (database, redis) = (Postgres::shared().await, Redis::start_with_tls().await);
    // What docs/operations/redis.md says that it needs.
    let rules = "~redrive:* &redrive:* +@read +@write +@pubsub +@scripting +@connection +time -@dangerous";
    let url = redis.add_user("redrive", "hush-hush", &rules.split(' ').collect::<Vec<_>>()).await;
    let setup = node(&database.url(), "a")
        .arg("--redis")
        .arg(&url)
        .env("REDRIVE_REDIS_CA_FILE", redis.ca_path().to_str().unwrap());
    let node = Redrive::start_with(setup).await;
    shares(&node, true).await;
    assert!(!node.output().contains("hush-hush"), "{}", node.output());
    let receiver = Receiver::start().await;
    node.api().create_webhook(&receiver.url(), Value::Null).await;
    node.api().publish("fleet.test", json!({})).await;
    receiver.wait_for(1).await;
    let keys = redis.command(&["KEYS", "*"]).await;
    assert!(keys.lines().all(|key| key.starts_with("redrive:")), "{keys}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_in_redis_ends_by_itself() {
    let world = world(&[("REDRIVE_LIMITS_TENANT_REQUESTS_PER_MINUTE", "60000")]).await;
    world.receiver.answer_with(|arrival| Reply::status(if arrival.number % 2 == 0 { 500 } else { 200 }));
    world.nodes[0].api().create_webhook(&world.receiver.url(), json!({"max_in_flight": 3})).await;
    world.publish(30).await;
    world.receiver.wait_for(30).await;
    let keys = world.redis.command(&["KEYS", "*"]).await;
    assert!(keys.lines().count() >= 4, "{keys}");
    for key in keys.lines() {
        let left = world.redis.command(&["PTTL", key]).await;
        // It may have ended meanwhile.
        assert_ne!(left.trim(), "-1", "{key} never ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_on_a_single_process_is_refused_with_what_to_do() {
    let output = redrive_testkit::Setup::new().arg("--redis").arg("redis://127.0.0.1:1").run_to_end().await;
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(
        !output.status.success() && said.contains("redis.url") && said.contains("database.url"),
        "{said}"
    );
}

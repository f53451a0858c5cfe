//! Three real nodes on one PostgreSQL and one Redis: limits, caps and circuits are exact across all nodes, and
//! Redis may fail at any time. Checked from outside.

mod faults;
mod forced_circuits;
mod shared_limits;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use redrive_testkit::{Api, Database, Postgres, ReceivedRequest, Receiver, Redis, Redrive, Reply, Setup};
use redrive_tests::{
    attempts_of,
    cluster::{node, wait_until_settled},
    id,
};
use serde_json::{Value, json};

/// A cluster with its own Redis and database, removed at the end of the test.
struct Fixture {
    nodes: Vec<Redrive>,
    redis: Redis,
    receiver: Arc<Receiver>,
    _database: Database,
}

async fn world(settings: &[(&str, &str)]) -> Fixture {
    let (database, redis) = (Postgres::shared().await, Redis::start().await);
    let nodes = start(&database.url(), &redis.url(), settings).await;
    Fixture { nodes, redis, receiver: Arc::new(Receiver::start().await), _database: database }
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

/// Waits until a node coordinates through Redis, or until it is in fallback.
async fn shares(node: &Redrive, through_redis: bool) {
    let (up, alone) = if through_redis { ("1", "0") } else { ("0", "1") };
    let started = Instant::now();
    loop {
        let metrics = String::from_utf8(node.api().get("/metrics").await.body.to_vec()).unwrap();
        let reported = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if reported("webhook_redis_up ") == Some(up)
            && reported("webhook_redis_fallback_active ") == Some(alone)
        {
            return;
        }
        assert!(started.elapsed() < redrive_testkit::WAIT_TIMEOUT, "the state does not change:\n{metrics}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Fixture {
    fn apis(&self) -> Vec<Api> {
        self.nodes.iter().map(Redrive::api).collect()
    }

    /// Publishes `count` events, in turn on all nodes.
    async fn publish(&self, count: usize) {
        for n in 0..count {
            self.nodes[n % 3].api().publish("fleet.test", json!({"n": n})).await;
        }
    }

    /// Returns the names of the nodes that have sent requests.
    async fn senders(&self) -> BTreeSet<String> {
        let mut senders = BTreeSet::new();
        for delivery in wait_until_settled(&self.nodes[0].api()).await {
            for attempt in attempts_of(&self.nodes[0].api(), id(&delivery)).await {
                senders.extend(
                    attempt["worker"].as_str().map(|worker| worker.split('#').next().unwrap().to_owned()),
                );
            }
        }
        senders
    }
}

/// Returns the maximum number of requests received within any interval of this length.
fn max_within(arrivals: &[ReceivedRequest], span: Duration) -> usize {
    let times: Vec<Instant> = arrivals.iter().map(|arrival| arrival.at).collect();
    (0..times.len())
        .map(|first| times[first..].iter().take_while(|at| **at - times[first] <= span).count())
        .max()
        .unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_with_tls_and_acl_users_is_reachable() {
    let (database, redis) = (Postgres::shared().await, Redis::start_with_tls().await);
    // The permissions that docs/operations/redis.md lists.
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
async fn every_redis_key_has_a_ttl() {
    let fixture = world(&[("REDRIVE_LIMITS_TENANT_REQUESTS_PER_MINUTE", "60000")]).await;
    fixture.receiver.respond_with(|arrival| Reply::status(if arrival.number % 2 == 0 { 500 } else { 200 }));
    fixture.nodes[0].api().create_webhook(&fixture.receiver.url(), json!({"max_in_flight": 3})).await;
    fixture.publish(30).await;
    fixture.receiver.wait_for(30).await;
    let keys = fixture.redis.command(&["KEYS", "*"]).await;
    assert!(keys.lines().count() >= 4, "{keys}");
    for key in keys.lines() {
        let left = fixture.redis.command(&["PTTL", key]).await;
        // The key may have expired since it was listed.
        assert_ne!(left.trim(), "-1", "{key} never ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_with_single_process_store_is_refused_with_a_hint() {
    let output = Setup::new().arg("--redis").arg("redis://127.0.0.1:1").run_to_end().await;
    let message =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(
        !output.status.success() && message.contains("redis.url") && message.contains("database.url"),
        "{message}"
    );
}

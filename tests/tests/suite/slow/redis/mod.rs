//! Three real nodes on one PostgreSQL and one Redis: limits, caps and circuits are exact over all of them, and Redis
//! may vanish at any moment. Judged from outside.

mod faults;
mod forced_circuits;
mod shared_limits;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use redrive_testkit::{Api, Arrival, Database, Postgres, Receiver, Redis, Redrive, Reply, Setup};
use redrive_tests::{
    attempts_of,
    cluster::{all_over, node},
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
    let output = Setup::new().arg("--redis").arg("redis://127.0.0.1:1").run_to_end().await;
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(
        !output.status.success() && said.contains("redis.url") && said.contains("database.url"),
        "{said}"
    );
}

//! Nodes that neither die nor respond, and tenants that another transaction has locked: three real nodes on one
//! PostgreSQL, checked by the waiting time of publishers on the healthy nodes.
//!
//! `REDRIVE_STALL_ROUNDS` sets how often a node is frozen and cut off; the acceptance run has 20.

#![allow(clippy::print_stdout)]

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use redrive_testkit::{Api, Database, Postgres, Proxy, ReceivedRequest, Receiver, Redrive, Reply, Setup};
use redrive_tests::{cluster::node, id, text};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// The maximum duration of a publish on a healthy node. The goal is one second; the rest is for a loaded machine.
const MAX_PUBLISH_WAIT: Duration = Duration::from_secs(5);
/// The duration of a freeze or partition. Without a timeout on the server, publishers would wait that long.
const STALL: Duration = Duration::from_secs(6);
const PUBLISHERS_PER_NODE: usize = 3;

fn rounds() -> usize {
    std::env::var("REDRIVE_STALL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(4)
}

/// The observations of one group of publishers.
#[derive(Default)]
struct Observed {
    acknowledged: Vec<String>,
    failures: Vec<String>,
    longest_wait: Duration,
}

/// Publishers with idempotency keys that publish on one node each, without pause, until they are stopped.
struct Publishers {
    stop: Arc<AtomicBool>,
    observed: Arc<Mutex<Observed>>,
    tasks: JoinSet<()>,
}

impl Publishers {
    fn start(apis: &[Api], group: &'static str) -> Self {
        let (stop, details) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Observed::default())));
        let mut tasks = JoinSet::new();
        for (node, api) in apis.iter().enumerate() {
            for publisher in 0..PUBLISHERS_PER_NODE {
                let name = format!("{group}-{node}-{publisher}");
                tasks.spawn(publish(api.clone(), name, stop.clone(), details.clone()));
            }
        }
        Self { stop, observed: details, tasks }
    }

    async fn finish(self) -> Observed {
        self.stop.store(true, Relaxed);
        self.tasks.join_all().await;
        std::mem::take(&mut *self.observed.lock())
    }

    async fn wait_for_progress(&self, events: usize) {
        let until = self.observed.lock().acknowledged.len() + events;
        let progress = async {
            while self.observed.lock().acknowledged.len() < until {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), progress).await.expect("publishing continues");
    }
}

async fn publish(api: Api, name: String, stop: Arc<AtomicBool>, details: Arc<Mutex<Observed>>) {
    for n in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        let key = format!("{name}-{n}");
        let event = json!({"event_type": "stall.test", "idempotency_key": key, "data": {"key": key}});
        let started = Instant::now();
        let result = api.try_post("/v1/events", &event).await;
        let mut details = details.lock();
        details.longest_wait = details.longest_wait.max(started.elapsed());
        match result {
            Ok(response) if response.status == 202 => {
                details.acknowledged.push(id(&response.json()).to_owned())
            }
            Ok(response) => details.failures.push(response.problem()),
            Err(error) => details.failures.push(error),
        }
    }
}

/// How the third node is stalled.
enum Stall {
    Freeze,
    Partition(Proxy),
}

impl Stall {
    fn begin(&self, node: &Redrive) {
        match self {
            Self::Freeze => node.signal("STOP"),
            Self::Partition(proxy) => proxy.stall(),
        }
    }

    fn end(&self, node: &Redrive) {
        match self {
            Self::Freeze => node.signal("CONT"),
            Self::Partition(proxy) => proxy.pass(),
        }
    }

    fn database_url(&self, database: &Database) -> String {
        match self {
            Self::Freeze => database.url(),
            Self::Partition(proxy) => database.url_through(proxy),
        }
    }
}

/// Returns the epoch of the third node.
async fn epoch_of_third(database: &Database) -> String {
    let epochs = database.query("SELECT epoch FROM nodes WHERE name = 'c' ORDER BY epoch DESC LIMIT 1").await;
    epochs[0][0].clone()
}

/// Waits until an epoch has ended and has no leases.
async fn wait_for_take_over(database: &Database, epoch: &str) {
    let started = Instant::now();
    let left = format!(
        "SELECT 1 FROM nodes WHERE epoch = {epoch} UNION ALL (SELECT 1 FROM leased WHERE epoch = {epoch} LIMIT 1)"
    );
    while !database.query(&left).await.is_empty() {
        if started.elapsed() > Duration::from_secs(30) {
            let nodes = database.query("SELECT epoch, name, heartbeats, fence FROM nodes").await;
            let leases =
                database.query(&format!("SELECT *, xmin, xmax FROM leased WHERE epoch = {epoch}")).await;
            let sessions =
                "SELECT pid, state, wait_event, pg_blocking_pids(pid), left(query, 80), query_start
                 FROM pg_stat_activity WHERE state <> 'idle'";
            let sessions = database.query(sessions).await;
            panic!("epoch {epoch} was not taken over: {nodes:?}, {leases:?}, {sessions:#?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Stalls the third of three nodes under load, and checks the observations of publishers on the others.
async fn assert_stalls_are_survived(stall: Stall, database: &Database) {
    let receiver = Receiver::start().await;
    let mut nodes = Vec::new();
    for (name, url) in [("a", database.url()), ("b", database.url()), ("c", stall.database_url(database))] {
        nodes.push(Redrive::start_with(node(&url, name)).await);
    }
    nodes[0].api().create_webhook(&receiver.url(), json!({"max_in_flight": 24})).await;
    let healthy = Publishers::start(&[nodes[0].api(), nodes[1].api()], "healthy");
    let stalled = Publishers::start(&[nodes[2].api()], "stalled");
    let mut slowest_take_over = Duration::ZERO;
    for _ in 0..rounds() {
        healthy.wait_for_progress(50).await;
        stalled.wait_for_progress(20).await;
        let epoch = epoch_of_third(database).await;
        let started = Instant::now();
        stall.begin(&nodes[2]);
        wait_for_take_over(database, &epoch).await;
        slowest_take_over = slowest_take_over.max(started.elapsed());
        tokio::time::sleep(STALL.saturating_sub(started.elapsed())).await;
        stall.end(&nodes[2]);
    }
    let (healthy, stalled) = (healthy.finish().await, stalled.finish().await);
    println!(
        "{} stalls: {} events on healthy nodes, {} failures, longest wait {:?}; take-over after {slowest_take_over:?} at most",
        rounds(),
        healthy.acknowledged.len(),
        healthy.failures.len(),
        healthy.longest_wait,
    );
    assert_eq!(healthy.failures, [] as [String; 0], "publishes on healthy nodes do not fail");
    assert!(healthy.longest_wait <= MAX_PUBLISH_WAIT, "a publish took {:?}", healthy.longest_wait);
    let acknowledged: HashSet<String> =
        healthy.acknowledged.into_iter().chain(stalled.acknowledged).collect();
    let all_arrived = |arrivals: &[ReceivedRequest]| {
        let arrived: HashSet<_> = arrivals.iter().map(ReceivedRequest::webhook_id).collect();
        acknowledged.iter().all(|event| arrived.contains(&**event))
    };
    receiver.wait_until("every acknowledged event arrives", all_arrived).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_node_does_not_block_publishing() {
    let database = Postgres::shared().await;
    assert_stalls_are_survived(Stall::Freeze, &database).await;
}

/// Creates a tenant, and returns a client with its own key.
async fn tenant(api: &Api, name: &str) -> Api {
    api.post("/v1/tenants", json!({"id": name})).await.expect(201);
    let key = api.post(&format!("/v1/tenants/{name}/api-keys"), json!({})).await.expect(201);
    api.with_key(text(&key["key"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_tenant_delays_only_itself() {
    const LOCKED: Duration = Duration::from_secs(8);
    let database = Arc::new(Postgres::shared().await);
    let receiver = Receiver::with(|arrival| match &*arrival.path {
        "/failing" => Reply::status(500),
        _ => Reply::status(200),
    })
    .await;
    let redrive = Redrive::start_with(node(&database.url(), "a")).await;
    let (locked, other) = (tenant(&redrive.api(), "locked").await, tenant(&redrive.api(), "other").await);
    let every_second =
        json!({"retry_config": {"schedule": vec![1; 30]}, "circuit_breaker_config": {"enabled": false}});
    let webhook = locked.create_webhook(&receiver.url_at("/failing"), &every_second).await;
    other.create_webhook(&receiver.url_at("/fine"), Value::Null).await;
    for n in 0..5 {
        locked.publish("before", json!({"n": n})).await;
    }
    receiver.wait_for(5).await;
    let epochs = database.query("SELECT epoch FROM nodes").await;

    let locking = {
        let database = database.clone();
        let lock = format!(
            "BEGIN; SELECT 1 FROM tenants WHERE id = 'locked' FOR UPDATE; SELECT pg_sleep({}); COMMIT",
            LOCKED.as_secs()
        );
        tokio::spawn(async move { database.execute(&lock).await })
    };
    let started = Instant::now();
    let is_locked = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'BEGIN; SELECT 1 FROM tenants%' AND wait_event = 'PgSleep'";
    while database.query(is_locked).await.is_empty() {
        assert!(started.elapsed() < redrive_testkit::WAIT_TIMEOUT, "the tenant's row is not locked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut patches = JoinSet::new();
    for n in 0..10 {
        let (api, path) = (locked.clone(), format!("/v1/webhooks/{}", id(&webhook)));
        patches.spawn(async move { api.patch(&path, json!({"description": format!("change {n}")})).await });
    }
    let blocked = {
        let api = locked.clone();
        tokio::spawn(async move { api.post("/v1/events", json!({"event_type": "during", "data": {}})).await })
    };
    let before = receiver.arrivals().iter().filter(|one| one.path == "/failing").count();
    let mut longest_wait = Duration::ZERO;
    while started.elapsed() < LOCKED - Duration::from_secs(1) {
        let published = Instant::now();
        other.publish("during", json!({})).await;
        longest_wait = longest_wait.max(published.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let retried = receiver.arrivals().iter().filter(|one| one.path == "/failing").count() - before;
    assert_eq!(
        redrive.api().get("/readyz").await.status,
        200,
        "one locked tenant does not make a node unready"
    );
    println!(
        "a tenant locked for {LOCKED:?}: another waited {longest_wait:?} at most, {retried} retries were sent"
    );
    assert!(longest_wait <= MAX_PUBLISH_WAIT, "another tenant's publish took {longest_wait:?}");
    assert!(retried >= 10, "retries that were due were sent: {retried}");
    for response in patches.join_all().await {
        assert_eq!(response.status, 503, "{:?}", response.json());
        assert_eq!(response.json()["code"], "busy", "{:?}", response.json());
        assert!(response.header("retry-after").is_some());
    }
    locking.await.unwrap();
    blocked.await.unwrap().expect(202);
    assert_eq!(database.query("SELECT epoch FROM nodes").await, epochs, "the node kept its epoch");
    let metrics = redrive.api().get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body);
    let fenced = metrics.lines().find(|line| line.starts_with("webhook_outcomes_fenced_total"));
    assert_eq!(fenced.and_then(|line| line.split(' ').next_back()), Some("0"), "no outcome was fenced");
    let arrivals = receiver.arrivals();
    let attempts: HashSet<_> = arrivals
        .iter()
        .map(|one| (one.header("x-webhook-delivery"), one.header("x-webhook-attempt")))
        .collect();
    assert_eq!(attempts.len(), arrivals.len(), "nothing was sent twice");
}

/// Sets the standbys that commits wait for.
async fn set_standbys(postgres: &Postgres, names: &str) {
    postgres.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await;
    postgres.execute("SELECT pg_reload_conf()").await;
}

/// Waits until `/readyz` has this status. Returns the body.
async fn wait_for_readiness(api: &Api, status: u16) -> String {
    let started = Instant::now();
    loop {
        let response = api.get("/readyz").await;
        let body = String::from_utf8_lossy(&response.body).into_owned();
        if response.status == status {
            return body;
        }
        assert!(
            started.elapsed() < redrive_testkit::WAIT_TIMEOUT,
            "/readyz stays {}: {body}",
            response.status
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_of_one_tenant_do_not_occupy_all_connections() {
    let database = Arc::new(Postgres::shared().await);
    let redrive = Redrive::start_with(node(&database.url(), "a")).await;
    let (greedy, other) = (tenant(&redrive.api(), "greedy").await, tenant(&redrive.api(), "other").await);
    greedy.publish("before", json!({})).await;
    let lock = "BEGIN; LOCK TABLE events IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(8); COMMIT";
    let locking = {
        let database = database.clone();
        tokio::spawn(async move { database.execute(lock).await })
    };
    let is_locked = "SELECT 1 FROM pg_locks WHERE relation = 'events'::regclass AND mode = 'AccessExclusiveLock' AND granted";
    let started = Instant::now();
    while database.query(is_locked).await.is_empty() {
        assert!(started.elapsed() < redrive_testkit::WAIT_TIMEOUT, "the table is not locked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut listings = JoinSet::new();
    for _ in 0..20 {
        let api = greedy.clone();
        listings.spawn(async move { api.get("/v1/events").await });
    }
    // These listings read another table and need a free connection.
    let (mut served, mut longest_wait) = (0, Duration::ZERO);
    while started.elapsed() < Duration::from_secs(6) {
        let request = Instant::now();
        other.get("/v1/webhooks").await.expect(200);
        longest_wait = longest_wait.max(request.elapsed());
        served += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("another tenant's {served} listings waited {longest_wait:?} at most");
    assert!(served >= 3, "another tenant waited {longest_wait:?}");
    let responses = listings.join_all().await;
    let busy: Vec<_> = responses.iter().filter(|response| response.status == 503).collect();
    assert!(!busy.is_empty(), "{:?}", responses.iter().map(|response| response.status).collect::<Vec<_>>());
    for response in busy {
        assert!(response.header("retry-after").is_some());
        assert!(
            ["busy", "store_unavailable", "query_too_slow"].contains(&text(&response.json()["code"])),
            "{}",
            response.json()
        );
    }
    assert!(responses.iter().any(|response| response.status == 503 && response.json()["code"] == "busy"));
    locking.await.unwrap();
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn partitioned_node_does_not_block_publishing() {
        let database = Postgres::shared().await;
        let proxy = Proxy::to(database.address()).await;
        assert_stalls_are_survived(Stall::Partition(proxy), &database).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn node_is_not_ready_while_its_commits_wait_for_a_standby() {
        let postgres = Postgres::start().await;
        let redrive = Redrive::start_with(Setup::new().database_url(postgres.url())).await;
        let api = redrive.api();
        let publishers = Publishers::start(std::slice::from_ref(&api), "waiting");
        publishers.wait_for_progress(20).await;
        assert_eq!(api.get("/readyz").await.status, 200);
        set_standbys(&postgres, "missing").await;
        let reason = wait_for_readiness(&api, 503).await;
        assert!(reason.contains("publishing has not progressed"), "{reason}");
        assert!(reason.contains("commits that wait for a standby"), "{reason}");
        set_standbys(&postgres, "").await;
        wait_for_readiness(&api, 200).await;
        publishers.wait_for_progress(20).await;
        let acknowledged: HashSet<String> = publishers.finish().await.acknowledged.into_iter().collect();
        let stored: usize = postgres.query("SELECT count(*) FROM events").await[0][0].parse().unwrap();
        assert!(stored >= acknowledged.len(), "{stored} of {} are stored", acknowledged.len());
    }
}

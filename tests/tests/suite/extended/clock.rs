//! Wrong clocks: a PostgreSQL server, or the host of a node on SQLite, whose clock jumps while Redrive runs.
//!
//! The clocks are moved by libfaketime. Tested from outside: nothing expires, is disabled, pruned or sent twice,
//! and everything is delivered at its configured rate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use redrive_testkit::{Api, MovableClock, Postgres, Receiver, Redrive, Reply, Setup};
use redrive_tests::{cluster::node, delivery_of, id, text, wait_for_status};
use serde_json::{Value, json};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The duration of a jump that is soon undone.
const SHORT_JUMP: Duration = Duration::from_secs(8);
/// How long a forward jump must last before scheduling follows it, with slack.
const FOLLOWED_JUMP: Duration = Duration::from_secs(45);

/// An installation with work of every kind that a wrong clock could destroy.
struct Fixture {
    api: Api,
    clock: MovableClock,
    receiver: Receiver,
    /// Whether the failing endpoints have recovered.
    recovered: Arc<AtomicBool>,
    failing: Value,
    waiting: Vec<Value>,
    keyed: Value,
    // Declared last so that they are dropped last: Redrive, then its database.
    redrive: Redrive,
    postgres: Option<Postgres>,
}

impl Fixture {
    async fn postgres() -> Self {
        let clock = MovableClock::new();
        let postgres = Postgres::start_with_clock(&clock).await;
        let redrive = Redrive::start_with(node(&postgres.url(), "a")).await;
        Self::new(redrive, clock, Some(postgres)).await
    }

    async fn sqlite() -> Self {
        let clock = MovableClock::new();
        let redrive = Redrive::start_with(Setup::new().clock(&clock)).await;
        Self::new(redrive, clock, None).await
    }

    async fn new(redrive: Redrive, clock: MovableClock, postgres: Option<Postgres>) -> Self {
        let recovered = Arc::new(AtomicBool::new(false));
        let is_up = recovered.clone();
        let receiver = Receiver::with(move |arrival| match arrival.path.as_str() {
            "/failing" | "/soon" if !is_up.load(SeqCst) => Reply::status(500),
            _ => Reply::status(200),
        })
        .await;
        let api = redrive.api();
        let breaker = json!({"enabled": false});
        let failing = json!({"retry_config": {"schedule": [0, 7200, 7200, 7200, 7200, 7200]}, "circuit_breaker_config": breaker, "events": ["late"]});
        let failing = api.create_webhook(&receiver.url_at("/failing"), failing).await;
        let soon = json!({"retry_config": {"schedule": vec![3; 50], "jitter": 0}, "circuit_breaker_config": breaker, "events": ["soon"]});
        api.create_webhook(&receiver.url_at("/soon"), soon).await;
        let limit = json!({"rate_limit": {"requests_per_minute": 300, "burst": 1}, "events": ["limited"]});
        api.create_webhook(&receiver.url_at("/limited"), limit).await;
        let mut waiting = Vec::new();
        for n in 0..5 {
            waiting.push(api.publish("late", json!({"n": n})).await);
        }
        receiver.wait_until("the first attempts", |arrivals| count_for(arrivals, "/failing") == 5).await;
        waiting.push(api.publish("soon", json!({})).await);
        let keyed = api.post("/v1/events", keyed()).await.expect(202);
        Self { api, clock, receiver, recovered, failing, waiting, keyed, redrive, postgres }
    }

    /// Moves the clock for some time, then moves it back.
    async fn jump(&self, seconds: i64, duration: Duration) {
        self.clock.set_offset_seconds(seconds);
        tokio::time::sleep(duration).await;
        self.assert_intact().await;
        let jumped = |status: &Value| status["findings"].to_string().contains("clock_jump");
        self.api.wait_until("the jump is reported", "/v1/status", jumped).await;
        self.clock.set_offset_seconds(0);
        let is_over = |status: &Value| !status["findings"].to_string().contains("clock_jump");
        self.api.wait_until("the jump is undone", "/v1/status", is_over).await;
    }

    /// Asserts that nothing is lost, dead, disabled or pruned.
    async fn assert_intact(&self) {
        for event in &self.waiting {
            let delivery = delivery_of(&self.api, event).await;
            assert!(
                ["pending", "in_flight"].contains(&text(&delivery["status"])),
                "{delivery}\n{}",
                self.redrive.output()
            );
        }
        let again = self.api.post("/v1/events", keyed()).await;
        assert_eq!(id(&again.json()), id(&self.keyed), "the key must not be reusable");
        let webhook = self.api.get(&format!("/v1/webhooks/{}", id(&self.failing))).await.expect(200);
        assert_eq!(webhook["state"], "active", "{webhook}");
        let dead = self.api.get("/v1/dlq").await.expect(200);
        assert_eq!(dead["data"], json!([]));
        if let Some(postgres) = &self.postgres {
            let months =
                postgres.query("SELECT count(*) FROM pg_inherits WHERE inhparent = 'events'::regclass").await;
            assert!(months[0][0].parse::<u32>().unwrap() >= 2, "{months:?}");
        }
    }

    /// Asserts that rate limits and retries continue as configured, and that everything is delivered in the end.
    async fn assert_goes_on(&self) {
        self.assert_intact().await;
        let before = count_for(&self.receiver.arrivals(), "/limited");
        for n in 0..10 {
            self.api.publish("limited", json!({"n": n})).await;
        }
        self.receiver
            .wait_until("limited deliveries", |arrivals| count_for(arrivals, "/limited") == before + 10)
            .await;
        let retried = count_for(&self.receiver.arrivals(), "/soon");
        self.receiver.wait_until("retries", |arrivals| count_for(arrivals, "/soon") >= retried + 2).await;
        self.recovered.store(true, SeqCst);
        for event in &self.waiting {
            let delivery = delivery_of(&self.api, event).await;
            if delivery["status"] == "pending" {
                self.api.post(&format!("/v1/deliveries/{}/retry", id(&delivery)), json!({})).await;
            }
            wait_for_status(&self.api, id(&delivery), "delivered").await;
        }
    }
}

fn keyed() -> Value {
    json!({"event_type": "limited", "idempotency_key": "once", "data": {"amount": 1}})
}

fn count_for(arrivals: &[redrive_testkit::ReceivedRequest], path: &str) -> usize {
    arrivals.iter().filter(|arrival| arrival.path == path).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn short_jumps_of_the_database_clock_destroy_nothing() {
    let fixture = Fixture::postgres().await;
    for seconds in [HOUR, -HOUR, 6 * DAY, -6 * DAY, 140 * DAY, -140 * DAY] {
        fixture.jump(seconds, SHORT_JUMP).await;
    }
    // A node cannot tell a jump of the store's clock from a pause of its own: it sends only after the next heartbeat.
    fixture.redrive.wait_output("nothing is sent before the next heartbeat").await;
    let metrics = fixture.api.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains("redrive_clock_jumps_total 6"), "{metrics}");
    assert!(metrics.contains("redrive_clock_jump_seconds 0.0"), "{metrics}");
    fixture.assert_goes_on().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn short_jumps_of_the_host_clock_destroy_nothing() {
    let fixture = Fixture::sqlite().await;
    for seconds in [HOUR, -HOUR, 6 * DAY, -6 * DAY, 140 * DAY, -140 * DAY] {
        fixture.jump(seconds, SHORT_JUMP).await;
    }
    fixture.assert_goes_on().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followed_jump_of_the_database_clock_destroys_nothing() {
    let fixture = Fixture::postgres().await;
    fixture.jump(140 * DAY, FOLLOWED_JUMP).await;
    assert!(fixture.redrive.output().contains("scheduling uses the new time"));
    fixture.assert_goes_on().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followed_jump_of_the_host_clock_destroys_nothing() {
    let fixture = Fixture::sqlite().await;
    fixture.jump(6 * DAY, FOLLOWED_JUMP).await;
    assert!(fixture.redrive.output().contains("scheduling uses the new time"));
    fixture.assert_goes_on().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_clock_at_the_start_destroys_nothing() {
    for seconds in [140 * DAY, -140 * DAY] {
        let mut fixture = Fixture::sqlite().await;
        fixture.redrive.kill();
        fixture.clock.set_offset_seconds(seconds);
        fixture.redrive.restart().await;
        fixture.assert_intact().await;
        let status = fixture.api.get("/v1/status").await.expect(200);
        assert_eq!(status["findings"][0]["code"], "clock_jump", "{status}");
        fixture.assert_goes_on().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_confirms_a_jump_for_all_nodes() {
    let clock = MovableClock::new();
    let postgres = Postgres::start_with_clock(&clock).await;
    let nodes = [
        Redrive::start_with(node(&postgres.url(), "a")).await,
        Redrive::start_with(node(&postgres.url(), "b")).await,
    ];
    clock.set_offset_seconds(6 * DAY);
    for node in &nodes {
        let jumped =
            |clock: &Value| clock["unconfirmed_jump_seconds"].as_f64().is_some_and(|jump| jump > 500_000.0);
        node.api().wait_until("the jump is seen", "/v1/clock", jumped).await;
    }
    let confirmed = nodes[0].api().post("/v1/clock/confirm", json!({})).await.expect(200);
    assert_eq!(confirmed["unconfirmed_jump_seconds"], Value::Null);
    for node in &nodes {
        let is_confirmed = |clock: &Value| clock["unconfirmed_jump_seconds"].is_null();
        node.api().wait_until("the jump is confirmed", "/v1/clock", is_confirmed).await;
    }
    let log = nodes[1].api().get("/v1/audit-log?action=clock.").await.expect(200);
    assert_eq!(log["data"][0]["action"], "clock.confirm");
}

//! One node: each metric matches the traffic, and stored counts survive a restart.

use std::{collections::BTreeMap, net::TcpListener};

use redrive_testkit::{Api, Dns, Prometheus, Receiver, Redrive, Reply, Setup};
use redrive_tests::id;
use serde_json::{Value, json};

use super::{once, publish};

/// The number of failures per category. `rate_limit` has one, because a 429 holds the webhook.
const FAILURES: [(&str, usize); 10] = [
    ("timeout", 2),
    ("server_error", 3),
    ("client_error", 4),
    ("network", 2),
    ("dns", 3),
    ("tls", 2),
    ("rate_limit", 1),
    ("payload_too_large", 2),
    ("redirect", 3),
    ("blocked_address", 2),
];
const SUCCESSES: usize = 7;
const RETRIED: usize = 3;
const OPENS: usize = 5;
const BLOCKED: usize = 4;
const MANY: usize = 1_001;

struct Fixture {
    redrive: Redrive,
    prometheus: Prometheus,
    receiver: Receiver,
    _dns: Dns,
}

impl Fixture {
    async fn new() -> Self {
        let receiver = Receiver::with(respond).await;
        let dns = Dns::start().await;
        let setup = Setup::new()
            .env("REDRIVE_NODE", "one")
            .env("REDRIVE_EGRESS_DNS_SERVERS", format!("[\"{}\"]", dns.address()));
        let redrive = Redrive::start_with(setup).await;
        let prometheus = Prometheus::start(&[("one", redrive.address())], &[]).await;
        Self { redrive, prometheus, receiver, _dns: dns }
    }

    fn api(&self) -> Api {
        self.redrive.api()
    }

    async fn webhook(&self, url: &str, event_type: &str, extra: Value) -> Value {
        let mut fields = json!({"events": [event_type], "retry_config": once()});
        fields.as_object_mut().unwrap().extend(extra.as_object().cloned().unwrap_or_default());
        self.api().create_webhook(url, fields).await
    }

    async fn deliveries_are(&self, status: &str, category: &str, count: usize) {
        let selector =
            format!("webhook_deliveries_total{{status=\"{status}\",failure_category=\"{category}\"}}");
        self.prometheus.wait_for_value(&selector, count as f64).await;
    }

    async fn is(&self, expression: &str, value: usize) {
        self.prometheus.wait_for_value(expression, value as f64).await;
    }
}

/// Returns the status in the path; `/again` fails first and then succeeds.
fn respond(arrival: &redrive_testkit::ReceivedRequest) -> Reply {
    match &arrival.path[1..] {
        "again" if arrival.header("x-webhook-attempt") == Some("1") => Reply::status(500),
        "again" => Reply::status(200),
        "302" => Reply::status(302).header("location", "http://127.0.0.1:1/"),
        status => Reply::status(status.parse().unwrap()),
    }
}

/// Returns a URL whose deliveries fail with this category.
fn failing(fixture: &Fixture, category: &str) -> String {
    let receiver = &fixture.receiver;
    let status = |status: &str| receiver.url_at(status);
    match category {
        "timeout" => status("408"),
        "server_error" => status("500"),
        "client_error" => status("404"),
        "rate_limit" => status("429"),
        "payload_too_large" => status("413"),
        "redirect" => status("302"),
        "tls" => receiver.url().replace("http://", "https://"),
        "dns" => "http://nowhere.test:8000/".into(),
        // The server itself: the only literal address that is refused when sending and not at creation.
        "blocked_address" => format!("http://{}/", fixture.redrive.address()),
        _ => {
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            format!("http://{free}/")
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_match_traffic_across_restart() {
    let mut fixture = Fixture::new().await;
    let mut dead = fixture.fails_in_every_way().await;
    fixture.succeeds().await;
    dead += fixture.opens_a_circuit().await;
    fixture.holds_back().await;
    fixture.is("webhook_dlq_size", dead).await;
    fixture.is("webhook_dlq_entries_total", dead).await;
    fixture.is("webhook_tenants_dlq_over_threshold", 0).await;
    dead += fixture.gives_up_on_many().await;
    fixture.keeps_slots_busy().await;
    fixture.assert_self_metrics().await;
    fixture.restarts(dead).await;
}

impl Fixture {
    /// Causes failures of every category, and returns the number of dead deliveries.
    async fn fails_in_every_way(&self) -> usize {
        for (category, count) in FAILURES {
            let event_type = format!("fail.{category}");
            self.webhook(&failing(self, category), &event_type, json!({})).await;
            publish(&self.api(), &event_type, count).await;
        }
        for (category, count) in FAILURES {
            self.deliveries_are("dead", category, count).await;
            self.deliveries_are("failed", category, 0).await;
        }
        let dead = FAILURES.iter().map(|(_, count)| count).sum();
        self.is("webhook_retry_attempt_number_count{outcome=\"dead\"}", dead).await;
        self.is("webhook_delivery_duration_seconds_count", dead).await;
        dead
    }

    async fn succeeds(&self) {
        let before = self.prometheus.value("webhook_events_published_total").await.unwrap() as usize;
        self.webhook(&self.receiver.url_at("200"), "ok", json!({})).await;
        publish(&self.api(), "ok", SUCCESSES).await;
        let again = json!({"retry_config": {"schedule": [0, 0]}});
        self.webhook(&self.receiver.url_at("again"), "again", again).await;
        publish(&self.api(), "again", RETRIED).await;
        self.deliveries_are("delivered", "", SUCCESSES + RETRIED).await;
        self.deliveries_are("failed", "server_error", RETRIED).await;
        self.is("webhook_retry_attempt_number_count{outcome=\"success\"}", SUCCESSES + RETRIED).await;
        self.is("webhook_retry_attempt_number_sum{outcome=\"success\"}", SUCCESSES + 2 * RETRIED).await;
        self.is("webhook_retry_attempt_number_sum{outcome=\"failed\"}", RETRIED).await;
        self.is("webhook_events_published_total", before + SUCCESSES + RETRIED).await;
        let key = json!({"event_type": "no.subscribers", "data": {}, "idempotency_key": "once"});
        for status in [202, 200, 200] {
            self.api().post("/v1/events", &key).await.expect(status);
        }
        self.is("webhook_idempotency_duplicates_total", 2).await;
        self.is("webhook_events_published_total", before + SUCCESSES + RETRIED + 1).await;
    }

    async fn opens_a_circuit(&self) -> usize {
        let webhooks = self.prometheus.value("redrive_webhooks").await.unwrap() as usize;
        self.is("webhook_circuit_breaker_state{state=\"closed\"}", webhooks).await;
        let breaker = json!({"minimum_throughput": OPENS, "sleep_window_ms": 600_000});
        let extra = json!({"circuit_breaker_config": breaker});
        self.webhook(&self.receiver.url_at("500"), "circuit", extra).await;
        publish(&self.api(), "circuit", OPENS).await;
        self.is("webhook_circuit_breaker_state{state=\"open\"}", 1).await;
        self.is("webhook_circuit_breaker_state{state=\"closed\"}", webhooks).await;
        self.is("webhook_circuit_breaker_transitions_total{from_state=\"closed\",to_state=\"open\"}", 1)
            .await;
        self.is("sum(webhook_circuit_breaker_transitions_total)", 1).await;
        self.is("webhook_circuits_open_over_1h", 0).await;
        publish(&self.api(), "circuit", BLOCKED).await;
        self.is("webhook_circuit_blocked_deliveries", BLOCKED).await;
        OPENS
    }

    async fn holds_back(&self) {
        let limit = json!({"rate_limit": {"requests_per_minute": 600, "burst": 1}});
        self.webhook(&self.receiver.url_at("200"), "limited", limit).await;
        publish(&self.api(), "limited", 4).await;
        self.prometheus.wait_until("webhook_rate_limit_hits_total", |hits| hits >= 1.0).await;
        self.deliveries_are("delivered", "", SUCCESSES + RETRIED + 4).await;
        let paused = self.webhook(&self.receiver.url_at("200"), "paused", json!({})).await;
        self.api().post(&format!("/v1/webhooks/{}/pause", id(&paused)), json!({})).await.expect(200);
        for (priority, count) in [("high", 3), ("normal", 2), ("low", 1)] {
            for _ in 0..count {
                let event = json!({"event_type": "paused", "data": {}, "priority": priority});
                self.api().post("/v1/events", event).await.expect(202);
            }
        }
        self.waits_as_it_should().await;
    }

    /// Asserts the queue depth: deliveries of the paused webhook, and those blocked by the circuit.
    async fn waits_as_it_should(&self) {
        for (priority, count) in [("high", 3), ("normal", 2 + BLOCKED), ("low", 1)] {
            self.is(&format!("webhook_queue_depth{{priority=\"{priority}\"}}"), count).await;
        }
    }

    async fn gives_up_on_many(&self) -> usize {
        let extra = json!({"circuit_breaker_config": {"enabled": false}, "max_in_flight": 64});
        self.webhook(&self.receiver.url_at("404"), "many", extra).await;
        let event = json!({"event_type": "many", "data": {}});
        for part in [100; 10].into_iter().chain([1]) {
            self.api().post("/v1/events/batch", json!({"events": vec![&event; part]})).await;
        }
        self.is("webhook_tenants_dlq_over_threshold", 1).await;
        MANY
    }

    async fn keeps_slots_busy(&self) {
        let (receiver, gate) = Receiver::latched(200).await;
        self.webhook(&receiver.url(), "held", json!({})).await;
        publish(&self.api(), "held", 3).await;
        self.is("webhook_workers{state=\"active\"}", 3).await;
        let slots = self.prometheus.value("sum(webhook_workers)").await.unwrap();
        let used = self.prometheus.value("webhook_worker_pool_utilization{pool=\"default\"}").await.unwrap();
        assert!((used - 3.0 / slots).abs() < 1e-9, "{used} of {slots}");
        self.is("redrive_deliveries_leased", 3).await;
        gate.open();
        self.is("webhook_workers{state=\"active\"}", 0).await;
    }

    async fn assert_self_metrics(&self) {
        let version = env!("CARGO_PKG_VERSION");
        let info =
            format!("redrive_build_info{{version=\"{version}\",node=\"one\",role=\"all\",store=\"sqlite\"}}");
        self.is(&info, 1).await;
        for (expression, value) in [("webhook_store_up", 1), ("webhook_redis_fallback_active", 0)] {
            self.is(expression, value).await;
        }
        self.is("sum(redrive_internal_errors_total)", 0).await;
        assert_eq!(self.prometheus.query("webhook_redis_up").await, [], "there is none");
        for (expression, min, max) in [
            ("process_cpu_seconds_total", 0.01, 600.0),
            ("process_resident_memory_bytes", 1e6, 1e9),
            ("process_threads", 2.0, 200.0),
            ("process_open_fds", 5.0, 1e4),
            ("process_max_fds", 100.0, 1e10),
            ("time() - process_start_time_seconds", 0.0, 600.0),
        ] {
            let value = self.prometheus.value(expression).await.unwrap();
            assert!((min..=max).contains(&value), "{expression} is {value}");
        }
        for phase in ["connect", "ttfb"] {
            let count = format!("webhook_delivery_phase_duration_seconds_count{{phase=\"{phase}\"}}");
            assert!(self.prometheus.value(&count).await.unwrap() > 0.0, "{count}");
        }
        let sent = self.prometheus.value("webhook_delivery_duration_seconds_count").await.unwrap();
        self.is("webhook_dispatch_latency_seconds_count", sent as usize).await;
        let reported: BTreeMap<_, _> =
            self.prometheus.targets().await[0].as_object().unwrap().clone().into_iter().collect();
        assert_eq!(reported["lastError"], "", "{reported:?}");
    }

    async fn restarts(&mut self, dead: usize) {
        self.redrive.restart().await;
        self.is("resets(webhook_deliveries_total{status=\"delivered\"}[5m])", 1).await;
        publish(&self.api(), "ok", 2).await;
        self.deliveries_are("delivered", "", 2).await;
        self.is("webhook_dlq_entries_total", 0).await;
        self.is("webhook_dlq_size", dead).await;
        self.is("webhook_circuit_breaker_state{state=\"open\"}", 1).await;
        self.is("webhook_circuit_breaker_state{state=\"half_open\"}", 0).await;
        let webhooks = self.prometheus.value("redrive_webhooks").await.unwrap() as usize;
        self.is("sum(webhook_circuit_breaker_state)", webhooks).await;
        self.waits_as_it_should().await;
    }
}

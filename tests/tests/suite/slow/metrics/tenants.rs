//! Metrics that name tenants and webhooks: the worst ones, the sums of the others, who may read them, and their cost.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use redrive_testkit::{Api, Postgres, Prometheus, Receiver, Redrive, Reply, Setup, WAIT_TIMEOUT};
use redrive_tests::{cluster::node, entries, id};
use serde_json::{Value, json};

use super::{once, root};

const PAGE: &str = "/metrics/tenants";

async fn samples(api: &Api) -> BTreeMap<String, f64> {
    let page = api.get(PAGE).await;
    assert_eq!(page.status, 200);
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// Waits until a scrape has all of these samples.
async fn wait_for_samples(api: &Api, expected: &[(String, u64)]) {
    let started = Instant::now();
    loop {
        let found = samples(api).await;
        if expected.iter().all(|(name, value)| found.get(name) == Some(&(*value as f64))) {
            return;
        }
        assert!(started.elapsed() < WAIT_TIMEOUT, "{expected:#?} are not in {found:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct Fixture {
    redrive: Redrive,
    receiver: Receiver,
}

impl Fixture {
    async fn new(max_named: &str) -> Self {
        let redrive = Redrive::start_with(Setup::new().env("REDRIVE_METRICS_MAX_NAMED", max_named)).await;
        let receiver = Receiver::with(|arrival| Reply::status(arrival.path[1..].parse().unwrap())).await;
        Self { redrive, receiver }
    }

    fn api(&self) -> Api {
        self.redrive.api()
    }

    async fn tenant(&self, tenant: &str) {
        self.api().post("/v1/tenants", json!({"id": tenant})).await.expect(201);
    }

    /// Creates a webhook whose endpoint responds with this status. Returns its id.
    async fn webhook(&self, tenant: &str, status: &str, breaker: Value) -> String {
        let fields = json!({"tenant_id": tenant, "retry_config": once(), "circuit_breaker_config": breaker});
        id(&self.api().create_webhook(&self.receiver.url_at(status), fields).await).to_owned()
    }

    async fn publish(&self, tenant: &str, count: usize) {
        for n in 0..count {
            let event = json!({"tenant_id": tenant, "event_type": "some.event", "data": n});
            self.api().post("/v1/events", event).await.expect(202);
        }
    }
}

fn of_tenant(metric: &str, tenant: &str, value: u64) -> (String, u64) {
    (format!("redrive_tenant_{metric}{{tenant=\"{tenant}\"}}"), value)
}

fn of_webhook(metric: &str, tenant: &str, webhook: &str, value: u64) -> (String, u64) {
    (format!("redrive_webhook_{metric}{{tenant=\"{tenant}\",webhook=\"{webhook}\"}}"), value)
}

#[tokio::test(flavor = "multi_thread")]
async fn worst_tenants_and_webhooks_are_named_and_the_rest_is_summed() {
    let fixture = Fixture::new("2").await;
    let mut webhooks = Vec::new();
    for (tenant, count) in [("acme", 3), ("globex", 2), ("initech", 1)] {
        fixture.tenant(tenant).await;
        webhooks.push(fixture.webhook(tenant, "404", json!({"enabled": false})).await);
        fixture.webhook(tenant, "200", json!({})).await;
        fixture.publish(tenant, count).await;
        if tenant != "initech" {
            // Otherwise the last one might be named first, and stay named.
            wait_for_samples(&fixture.api(), &[of_tenant("dlq_size", tenant, count as u64)]).await;
        }
    }
    let mut expected = Vec::new();
    for metric in ["dlq_size", "dlq_entries_1h", "failed_attempts_10m"] {
        for (tenant, count) in [("acme", 3), ("globex", 2), ("other", 1)] {
            expected.push(of_tenant(metric, tenant, count));
        }
    }
    for metric in ["dlq_size", "attempts_10m", "failed_attempts_10m"] {
        expected.push(of_webhook(metric, "acme", &webhooks[0], 3));
        expected.push(of_webhook(metric, "globex", &webhooks[1], 2));
    }
    expected.extend([
        of_tenant("attempts_10m", "acme", 6),
        of_tenant("attempts_10m", "other", 2),
        of_webhook("dlq_size", "other", "other", 1),
        // Webhooks without a failed attempt are counted there too.
        of_webhook("attempts_10m", "other", "other", 7),
        of_webhook("failed_attempts_10m", "other", "other", 1),
    ]);
    wait_for_samples(&fixture.api(), &expected).await;
    assert!(samples(&fixture.api()).await["redrive_tenant_metrics_age_seconds"] < 60.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn redriving_removes_dead_letters_and_not_their_inflow() {
    let fixture = Fixture::new("50").await;
    fixture.tenant("acme").await;
    let webhook = fixture.webhook("acme", "404", json!({"enabled": false})).await;
    fixture.publish("acme", 2).await;
    wait_for_samples(
        &fixture.api(),
        &[of_tenant("dlq_size", "acme", 2), of_tenant("dlq_entries_1h", "acme", 2)],
    )
    .await;
    let change = json!({"tenant_id": "acme", "url": fixture.receiver.url_at("200")});
    fixture.api().patch(&format!("/v1/webhooks/{webhook}"), change).await.expect(200);
    let listed = fixture.api().get("/v1/dlq?tenant_id=acme").await.expect(200);
    for letter in entries(&listed) {
        let path = format!("/v1/deliveries/{}/retry?tenant_id=acme", id(&letter));
        let retried = fixture.api().post(&path, json!({})).await;
        assert!(retried.status < 300, "{}", String::from_utf8_lossy(&retried.body));
    }
    let after = [
        of_tenant("dlq_size", "other", 0),
        of_tenant("dlq_entries_1h", "acme", 2),
        of_webhook("attempts_10m", "acme", &webhook, 4),
        of_webhook("failed_attempts_10m", "acme", &webhook, 2),
    ];
    wait_for_samples(&fixture.api(), &after).await;
    assert!(!samples(&fixture.api()).await.contains_key(&of_tenant("dlq_size", "acme", 0).0));
}

#[tokio::test(flavor = "multi_thread")]
async fn circuits_that_are_not_closed_are_named_with_their_first_failure() {
    let fixture = Fixture::new("1").await;
    let breaker = json!({"minimum_throughput": 5, "sleep_window_ms": 600_000});
    let mut webhooks = Vec::new();
    for tenant in ["acme", "globex"] {
        fixture.tenant(tenant).await;
        webhooks.push(fixture.webhook(tenant, "500", breaker.clone()).await);
        fixture.publish(tenant, 5).await;
        let named = format!(
            "redrive_webhook_circuit_state{{tenant=\"acme\",webhook=\"{}\",state=\"open\"}}",
            webhooks[0]
        );
        wait_for_samples(&fixture.api(), &[(named, 1)]).await;
    }
    let other = "redrive_webhook_circuit_state{tenant=\"other\",webhook=\"other\",state=\"open\"}".to_owned();
    wait_for_samples(&fixture.api(), &[(other.clone(), 1)]).await;
    let (opened, _) = of_webhook("circuit_failing_since_timestamp_seconds", "acme", &webhooks[0], 0);
    let opened = samples(&fixture.api()).await[&opened];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((0.0..120.0).contains(&(now - opened)), "{opened} is not before {now}");
    let reset = format!("/v1/webhooks/{}/circuit-breaker?tenant_id=acme", webhooks[0]);
    fixture.api().patch(&reset, json!({"action": "reset"})).await.expect(200);
    let named = format!(
        "redrive_webhook_circuit_state{{tenant=\"globex\",webhook=\"{}\",state=\"open\"}}",
        webhooks[1]
    );
    wait_for_samples(&fixture.api(), &[(named, 1), (other, 0)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_metrics_are_for_the_callers_that_the_setting_names() {
    for (access, anonymous, tenant_key, admin_key) in [
        (None, 401, 403, 200),
        (Some("key"), 401, 403, 200),
        (Some("open"), 200, 200, 200),
        (Some("off"), 404, 404, 404),
    ] {
        let setup = Setup::new();
        let setup =
            if let Some(access) = access { setup.env("REDRIVE_METRICS_TENANTS", access) } else { setup };
        let redrive = Redrive::start_with(setup).await;
        let api = redrive.api();
        let key = json!({"name": "reader", "scopes": ["read"]});
        let key = api.post("/v1/tenants/default/api-keys", key).await.expect(201);
        let key = key["key"].as_str().unwrap().to_owned();
        for (caller, status) in
            [(api.without_key(), anonymous), (api.with_key(&key), tenant_key), (api.clone(), admin_key)]
        {
            let page = caller.get(PAGE).await;
            assert_eq!(page.status, status, "{access:?}: {}", String::from_utf8_lossy(&page.body));
        }
    }
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn alerts_name_the_tenant_and_the_webhook() {
        let fixture = Fixture::new("10").await;
        let rules = root().join("deploy/prometheus/alerts.yml");
        let nodes = [("one", fixture.redrive.address())];
        let prometheus = Prometheus::start_with_tenants(&nodes, &[&rules], fixture.redrive.key()).await;
        fixture.tenant("acme").await;
        fixture.tenant("globex").await;
        let breaker = json!({"minimum_throughput": 5, "sleep_window_ms": 600_000});
        let open = fixture.webhook("acme", "500", breaker).await;
        fixture.publish("acme", 5).await;
        let dying = fixture.webhook("globex", "404", json!({"enabled": false})).await;
        fixture.publish("globex", 101).await;
        let firing = |alert: &str, labels: &str| {
            format!(
                "count(ALERTS{{alertname=\"{alert}\",alertstate=~\"firing|pending\",job=\"redrive\",{labels}}})"
            )
        };
        for (alert, labels) in [
            ("RedriveCircuitOpen", format!("tenant=\"acme\",webhook=\"{open}\"")),
            ("RedriveTenantDeadLetterInflow", "tenant=\"globex\"".to_owned()),
            ("RedriveWebhookSuccessRateLow", format!("tenant=\"globex\",webhook=\"{dying}\"")),
        ] {
            prometheus.wait_for_value(&firing(alert, &labels), 1.0).await;
        }
        let unnamed = "count(ALERTS{alertname=\"RedriveCircuitOpen\"}) - count(ALERTS{alertname=\"RedriveCircuitOpen\",tenant=\"acme\"})";
        prometheus.wait_for_value(unnamed, 0.0).await;
    }

    /// Ten thousand tenants that were active in each minute of the last hour, and a hundred thousand webhooks: all failing in
    /// the last minutes, and with some dead letters.
    const MANY: &str = "
        INSERT INTO tenants (id, created_at) SELECT 't' || n, 0 FROM generate_series(1, 10000) n;
        INSERT INTO rollups (webhook_id, minute, tenant_id, attempts, successes, failed, categories, latencies)
            SELECT ('00000000-0000-0000-0000-' || lpad(to_hex(n), 12, '0'))::uuid, m.minute, 't' || 1 + n % 10000,
                   30, n % 30, true, '', ''
            FROM generate_series(1, 100000) n, (SELECT {now} - k * 60000 AS minute FROM generate_series(0, 2) k) m;
        INSERT INTO tenant_rollups (tenant_id, resolution, start, attempts, successes, categories, latencies,
                                    delivered, dead, cancelled, expires_at)
            SELECT 't' || n, 1, {now} - k * 60000, 300, n % 300, '', '', 10, n % 7, 0, {now} + 86400000
            FROM generate_series(1, 10000) n, generate_series(0, 59) k;
        INSERT INTO dead (delivery_id, tenant_id, webhook_id, event_type, reason, died_at)
            SELECT gen_random_uuid(), 't' || 1 + n % 10000,
                   ('00000000-0000-0000-0000-' || lpad(to_hex(1 + n % 100000), 12, '0'))::uuid, 'some.event', 1, {now}
            FROM generate_series(1, 300000) n;
        ANALYZE";

    #[tokio::test(flavor = "multi_thread")]
    async fn page_is_small_and_quick_with_a_hundred_thousand_failing_webhooks() {
        let database = Postgres::shared().await;
        let redrive = Redrive::start_with(node(&database.url(), "a")).await;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        database.execute(&MANY.replace("{now}", &(now / 60_000 * 60_000).to_string())).await;
        let api = redrive.api();
        let unnamed = "redrive_webhooks_failing_unnamed";
        let started = Instant::now();
        while samples(&api).await.get(unnamed).is_none_or(|count| *count < 50_000.0) {
            assert!(started.elapsed() < 4 * WAIT_TIMEOUT, "{:#?}", samples(&api).await);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            let started = Instant::now();
            let page = api.get(PAGE).await;
            longest = longest.max(started.elapsed());
            assert!(page.body.len() < 200_000, "{} bytes", page.body.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let found = samples(&api).await;
        let computed = found["redrive_tenant_metrics_duration_seconds"];
        println!("{} samples, computed in {computed} s, longest scrape {longest:?}", found.len());
        assert!(computed < 20.0, "computed in {computed} s");
        assert_eq!(found.keys().filter(|name| name.starts_with("redrive_webhook_dlq_size")).count(), 51);
    }
}

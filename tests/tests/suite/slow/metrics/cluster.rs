//! Three nodes with all dependencies: per-node counters add up, store-wide metrics are equal on all nodes, and
//! every alert rule and dashboard query returns data.

use std::{collections::BTreeSet, time::Duration};

use redrive_testkit::{
    Database, Postgres, Prometheus, RabbitMq, Receiver, Redis, Redrive, Reply, Setup, Vhost,
};
use redrive_tests::cluster::{LEASE, node};
use serde_json::json;

use super::{dashboard_queries, names_in, once, publish, read, rendered, root};

const SUCCESSES: usize = 30;
const DEAD: usize = 6;
const OPENS: usize = 5;

struct Fixture {
    /// One API node, and two workers.
    nodes: Vec<Redrive>,
    prometheus: Prometheus,
    receiver: Receiver,
    _vhost: Vhost,
    _redis: Redis,
    _database: Database,
}

fn setup(database: &Database, redis: &Redis, vhost: &Vhost, name: &str, role: &str) -> Setup {
    let source = format!(
        r#"[{{type = "amqp", name = "shop", url = "{}", queue = "events", declare = true}}]"#,
        vhost.url()
    );
    let setup = node(&database.url(), name)
        .role(role)
        .arg("--redis")
        .arg(redis.url())
        .env("REDRIVE_AMQP_URL", vhost.url())
        .env("REDRIVE_METRICS_BY_TENANT", "true")
        .env("REDRIVE_METRICS_BY_WEBHOOK", "true")
        .env("REDRIVE_METRICS_BY_EVENT_TYPE", "true")
        .env("REDRIVE_METRICS_MAX_VALUES", "2");
    if role == "api" { setup.env("REDRIVE_SOURCES", source) } else { setup }
}

impl Fixture {
    async fn new() -> Self {
        let (database, redis, vhost) = tokio::join!(Postgres::shared(), Redis::start(), RabbitMq::shared());
        let mut nodes = Vec::new();
        for (name, role) in [("api", "api"), ("b", "worker"), ("c", "worker")] {
            nodes.push(Redrive::start_with(setup(&database, &redis, &vhost, name, role)).await);
        }
        let targets: Vec<_> =
            ["api", "b", "c"].into_iter().zip(&nodes).map(|(name, node)| (name, node.address())).collect();
        let rules = root().join("deploy/prometheus/alerts.yml");
        let prometheus = Prometheus::start_with_tenants(&targets, &[&rules], nodes[0].key()).await;
        let receiver = Receiver::with(|arrival| Reply::status(arrival.path[1..].parse().unwrap())).await;
        prometheus.wait_for_value("sum(webhook_redis_up)", 3.0).await;
        prometheus.wait_for_value("sum(webhook_amqp_up)", 3.0).await;
        // Time for all nodes to see each other.
        tokio::time::sleep(LEASE).await;
        Self { nodes, prometheus, receiver, _vhost: vhost, _redis: redis, _database: database }
    }

    async fn webhook(&self, status: &str, event_type: &str) {
        let extra = json!({
            "events": [event_type], "retry_config": once(), "max_in_flight": 16,
            "circuit_breaker_config": {
                "enabled": status == "500", "minimum_throughput": OPENS, "sleep_window_ms": 600_000,
            },
        });
        self.nodes[0].api().create_webhook(&self.receiver.url_at(status), extra).await;
    }

    async fn is(&self, expression: &str, value: usize) {
        self.prometheus.wait_for_value(expression, value as f64).await;
    }

    /// Asserts that a store-wide metric has this value on every node.
    async fn all_tell(&self, selector: &str, value: usize) {
        for take in ["min", "max"] {
            self.is(&format!("{take}({selector})"), value).await;
        }
        self.is(&format!("count({selector})"), self.nodes.len()).await;
    }
}

impl Fixture {
    async fn counts_apart_within_the_cap(&self) {
        let delivered = "status=\"delivered\"";
        self.is(
            &format!("sum(redrive_tenant_deliveries_total{{tenant=\"default\",{delivered}}})"),
            SUCCESSES,
        )
        .await;
        for kind in ["tenant", "webhook", "event_type"] {
            let all = format!("sum(redrive_{kind}_deliveries_total)");
            self.is(&all, SUCCESSES + DEAD + OPENS).await;
            let max = format!("max(count by (instance) (redrive_{kind}_deliveries_total))");
            let series = self.prometheus.value(&max).await.unwrap();
            assert!(series <= 3.0 * 4.0, "two of their own and the others, by four statuses: {series}");
        }
    }

    async fn restarts_one(&mut self) {
        let sent = "sum(increase(webhook_deliveries_total{status=\"delivered\"}[10m]))";
        self.nodes[1].restart().await;
        self.is("sum(up)", 4).await;
        self.is("sum(webhook_redis_up)", 3).await;
        self.is("sum(webhook_amqp_up)", 3).await;
        publish(&self.nodes[0].api(), "ok", SUCCESSES).await;
        let about = |found: f64| (found / (2.0 * SUCCESSES as f64) - 1.0).abs() < 0.1;
        // Prometheus extrapolates between scrapes, so `increase` is never exact.
        self.prometheus.wait_until(sent, about).await;
        self.all_tell("webhook_dlq_size", DEAD + OPENS).await;
        self.all_tell("webhook_circuit_breaker_state{state=\"open\"}", 1).await;
    }

    /// Publishes more than a webhook's rate limit allows for the rest of the test.
    async fn waits_for_tokens(&self) {
        let limit = json!({"events": ["limited"], "rate_limit": {"requests_per_minute": 1, "burst": 1}});
        self.nodes[0].api().create_webhook(&self.receiver.url_at("200"), limit).await;
        publish(&self.nodes[0].api(), "limited", 10).await;
        self.is("min(webhook_rate_limit_tokens_available{scope=\"webhook\"})", 0).await;
    }

    async fn every_rule_is_evaluated(&self) {
        let is_firing =
            "count(ALERTS{alertname=\"RedriveCircuitOpen\",alertstate=\"firing\",tenant=\"default\"})";
        self.prometheus.wait_until(is_firing, |count| count == 1.0).await;
        let rules = self.prometheus.rules().await;
        assert!(rules.len() >= 16, "{}", rules.len());
        for rule in rules {
            assert_eq!(rule["health"], "ok", "{rule:#}");
        }
    }

    async fn every_panel_shows_something(&self) {
        // Some queries need two scrapes.
        tokio::time::sleep(Duration::from_secs(2)).await;
        for (panel, query) in dashboard_queries() {
            let found = self.prometheus.query(&query).await;
            assert!(!found.is_empty(), "{panel} shows nothing: {query}");
            assert!(found.iter().any(|sample| !sample.value.is_nan()), "{panel} shows no number: {query}");
        }
    }

    async fn every_metric_is_documented(&self) {
        let mut scraped = BTreeSet::new();
        for node in &self.nodes {
            for path in ["/metrics", "/metrics/tenants"] {
                let page = node.api().get(path).await;
                scraped.extend(rendered(std::str::from_utf8(&page.body).unwrap()));
            }
        }
        let table = read("docs/operations/metrics.md");
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let documented: BTreeSet<_> =
            rows.map(|(name, _)| name.split('{').next().unwrap().to_owned()).collect();
        assert_eq!(scraped, documented, "docs/operations/metrics.md has a row for each metric, and no other");
        let expressions = dashboard_queries().into_iter().map(|(_, query)| query);
        for expression in expressions.chain([read("deploy/prometheus/alerts.yml")]) {
            for name in names_in(&expression) {
                let known = ["_bucket", "_count", "_sum"]
                    .iter()
                    .any(|end| name.strip_suffix(end).is_some_and(|histogram| scraped.contains(histogram)));
                assert!(known || scraped.contains(&name), "no node exports {name}");
            }
        }
    }
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn node_metrics_add_up_and_all_queries_return_data() {
        let mut fixture = Fixture::new().await;
        let api = fixture.nodes[0].api();
        for (status, event_type) in [("200", "ok"), ("404", "dead"), ("500", "circuit")] {
            fixture.webhook(status, event_type).await;
        }
        publish(&api, "ok", SUCCESSES).await;
        publish(&api, "dead", DEAD).await;
        publish(&api, "circuit", OPENS).await;
        fixture.is("sum(webhook_events_published_total)", SUCCESSES + DEAD + OPENS).await;
        fixture.is("sum(webhook_deliveries_total{status=\"delivered\"})", SUCCESSES).await;
        fixture.is("sum(webhook_dlq_entries_total)", DEAD + OPENS).await;
        fixture.is("sum(webhook_delivery_duration_seconds_count)", SUCCESSES + DEAD + OPENS).await;
        fixture.all_tell("webhook_dlq_size", DEAD + OPENS).await;
        fixture.all_tell("webhook_circuit_breaker_state{state=\"open\"}", 1).await;
        fixture.all_tell("webhook_circuit_breaker_state{state=\"closed\"}", 2).await;
        fixture.is("sum(webhook_circuit_breaker_transitions_total{to_state=\"open\"})", 1).await;
        fixture
            .prometheus
            .wait_until("sum(webhook_amqp_tickets_total{outcome=\"claimed\"})", |taken| taken > 0.0)
            .await;
        publish(&api, "circuit", 4).await;
        fixture.all_tell("sum by (instance) (webhook_queue_depth)", 4).await;
        fixture.all_tell("webhook_circuit_blocked_deliveries", 4).await;
        fixture.counts_apart_within_the_cap().await;
        fixture.restarts_one().await;
        fixture.waits_for_tokens().await;
        fixture.every_rule_is_evaluated().await;
        fixture.every_panel_shows_something().await;
        fixture.every_metric_is_documented().await;
    }
}

//! The reference of metrics is what a node with all dependencies exports.

use std::collections::{BTreeMap, BTreeSet};

use redrive_testkit::{Collector, Postgres, RabbitMq, Receiver, Redis, Redrive, Reply, Setup, WAIT_TIMEOUT};
use serde_json::json;

use crate::documentation::check_generated;

/// A metric as a scrape shows it.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    has_sample: bool,
}

/// Endings that a sample's name has after the name of its metric.
const ENDINGS: [&str; 4] = ["", "_bucket", "_sum", "_count"];

fn parse(page: &str) -> BTreeMap<String, Metric> {
    let mut metrics = BTreeMap::<String, Metric>::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            metrics.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            metrics.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let labels = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
            let owner = ENDINGS.iter().find_map(|ending| {
                let name = name.strip_suffix(ending)?;
                metrics.contains_key(name).then(|| name.to_owned())
            });
            let metric = metrics.get_mut(&owner.unwrap_or_else(|| panic!("no type: {line}"))).unwrap();
            metric.has_sample = true;
            let names = labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
            metric.labels.extend(names.filter(|name| name != "le"));
        }
    }
    metrics
}

fn table(metrics: &BTreeMap<String, Metric>) -> String {
    let mut text = "| type | metric | labels | help |\n|---|---|---|---|\n".to_owned();
    for (name, Metric { kind, help, labels, .. }) in metrics {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        text += &format!("| {kind} | `{name}` | {} | {} |\n", labels.join(", "), help.replace('|', "\\|"));
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(target_os = "linux"), ignore = "other systems report less about the process")]
async fn documentation_lists_every_metric() {
    let (database, redis, vhost) = tokio::join!(Postgres::shared(), Redis::start(), RabbitMq::shared());
    let (collector, receiver) = tokio::join!(Collector::start(), Receiver::start());
    let source = format!(
        r#"[{{type = "amqp", name = "shop", url = "{}", queue = "events", declare = true}}]"#,
        vhost.url()
    );
    let setup = Setup::new()
        .database_url(database.url())
        .env("REDRIVE_DATABASE_WRITE_CONNECTIONS", "4")
        .env("REDRIVE_DATABASE_READ_CONNECTIONS", "2")
        .env("REDRIVE_REDIS_URL", redis.url())
        .env("REDRIVE_AMQP_URL", vhost.url())
        .env("REDRIVE_SOURCES", source)
        .env("REDRIVE_TRACING_OTLP_ENDPOINT", collector.url())
        .env("REDRIVE_METRICS_BY_TENANT", "true")
        .env("REDRIVE_METRICS_BY_WEBHOOK", "true")
        .env("REDRIVE_METRICS_BY_EVENT_TYPE", "true");
    let node = Redrive::start_with(setup).await;
    // Deliveries wait for tokens all the time.
    let limit = json!({"rate_limit": {"requests_per_minute": 1, "burst": 1}});
    node.api().create_webhook(&receiver.url(), limit).await;
    // Its circuit opens.
    let breaker = json!({"minimum_throughput": 5, "sleep_window_ms": 600_000});
    let failing = json!({"retry_config": {"schedule": [0]}, "circuit_breaker_config": breaker});
    let broken = Receiver::with(|_| Reply::status(500)).await;
    node.api().create_webhook(&broken.url(), failing).await;
    for order in 0..10 {
        node.api().publish("order.created", json!({"order": order})).await;
    }
    receiver.wait_for(1).await;
    let scrape = async {
        loop {
            let mut metrics = BTreeMap::new();
            for path in ["/metrics", "/metrics/tenants"] {
                metrics.extend(parse(std::str::from_utf8(&node.api().get(path).await.body).unwrap()));
            }
            let missing: Vec<_> = metrics
                .iter()
                .filter(|(_, metric)| !metric.has_sample)
                .map(|(name, _)| name.clone())
                .collect();
            let last = [
                "webhook_dlq_size",
                "webhook_rate_limit_tokens_available",
                "redrive_webhook_circuit_failing_since_timestamp_seconds",
            ];
            if missing.is_empty() && last.iter().all(|name| metrics.contains_key(*name)) {
                return metrics;
            }
            println!("without a sample: {missing:?}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    let metrics = tokio::time::timeout(WAIT_TIMEOUT, scrape).await.expect("a metric has no sample");
    for (name, metric) in &metrics {
        assert!(!metric.kind.is_empty() && metric.help.len() > 10, "{name}: {}", metric.help);
    }
    check_generated("docs/operations/metrics.md", &table(&metrics));
}

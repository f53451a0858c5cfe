//! Metrics as operators see them: a real Prometheus scrapes real servers, and every metric is compared with the
//! traffic. The alert rules and the dashboard are checked by the same Prometheus, and by `promtool`.

mod alert_rules;
mod cluster;
mod exposition;
mod outage;
mod scrape_time;
mod single_node;
mod tenants;
mod workers;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use redrive_testkit::Api;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns a retry schedule with a single attempt.
fn once() -> Value {
    json!({"schedule": [0]})
}

async fn publish(api: &Api, event_type: &str, count: usize) {
    for n in 0..count {
        api.publish(event_type, json!({"n": n})).await;
    }
}

/// Returns the names of all metrics in an expression.
fn names_in(expression: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = expression.split(|c| !is_part(c));
    let ours = |word: &&str| ["webhook_", "redrive_", "process_"].iter().any(|start| word.starts_with(start));
    words.filter(ours).map(str::to_owned).collect()
}

/// Returns every dashboard query with the title of its panel, for all nodes and an interval of minutes.
fn dashboard_queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/redrive.json")).unwrap();
    let mut queries = Vec::new();
    let rows = dashboard["panels"].as_array().unwrap();
    let inside = rows.iter().flat_map(|row| row["panels"].as_array().cloned().unwrap_or_default());
    for panel in rows.iter().cloned().chain(inside) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            let query = query.replace("$job", ".*").replace("$node", ".*");
            assert!(!query.contains('$'), "{query}");
            queries.push((panel["title"].as_str().unwrap().to_owned(), query));
        }
    }
    queries
}

/// Returns the names of all metrics on a page.
fn rendered(page: &str) -> BTreeSet<String> {
    let kinds = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    kinds.map(|(name, _)| name.to_owned()).collect()
}

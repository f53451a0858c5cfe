//! Throwaway Prometheus servers and `promtool`, from the distribution's package.
//!
//! Each scrapes every second and stores its data in a temporary folder; no other server of this machine is ever
//! touched.

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Api, WAIT_TIMEOUT,
    service::{ErrorContext, ProcessGuard, Server, User, blocking, free_port},
};

/// One value of a query result, with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The labels, including the metric name if the query keeps it.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// A private server. Killed and removed when dropped.
pub struct Prometheus {
    keeper: Option<ProcessGuard>,
    folder: TempDir,
    port: u16,
    api: Api,
}

impl Prometheus {
    /// Starts a new server that scrapes these nodes, each with the given `instance` label, and evaluates the rules of
    /// these files. Returns after it has scraped each node.
    pub async fn start(nodes: &[(&str, SocketAddr)], rules: &[&Path]) -> Self {
        Self::start_with(config(nodes, rules), nodes.len()).await
    }

    /// Like [`Prometheus::start`]; also scrapes the metrics of tenants from the first node, with this admin key, as the
    /// example configuration of the repository does.
    pub async fn start_with_tenants(nodes: &[(&str, SocketAddr)], rules: &[&Path], key: &str) -> Self {
        let (instance, address) = nodes[0];
        let job = format!(
            "  - job_name: redrive-tenants\n    metrics_path: /metrics/tenants\n    \
             authorization: {{credentials: '{key}'}}\n    static_configs:\n      \
             - {{targets: ['{address}'], labels: {{instance: '{instance}'}}}}\n    \
             metric_relabel_configs:\n      - {{target_label: job, replacement: redrive}}\n"
        );
        Self::start_with(config(nodes, rules) + &job, nodes.len() + 1).await
    }

    async fn start_with(config: String, targets: usize) -> Self {
        let folder = blocking(|| TempDir::with_prefix("redrive-test-prometheus-")).await;
        let mut server = Self {
            keeper: None,
            folder: folder.expect("no temporary directory"),
            port: 0,
            api: Api::new(SocketAddr::from(([127, 0, 0, 1], 0)), "").without_key(),
        };
        fs::write(server.config(), config).with_context(&server.config());
        // Another process may take a port before the server does.
        for _ in 0..5 {
            server.port = free_port();
            server.api = Api::new(SocketAddr::from(([127, 0, 0, 1], server.port)), "").without_key();
            if server.launch().await {
                server.wait_until("count(up == 1)", |count| count == targets as f64).await;
                return server;
            }
        }
        panic!("Prometheus did not start:\n{}", crate::service::server_log(server.folder.path()));
    }

    /// Evaluates an expression now. Panics with the server's message if the expression is invalid.
    pub async fn query(&self, expression: &str) -> Vec<Sample> {
        let path = format!("/api/v1/query?query={}", encoded(expression));
        let response = self.api.get(&path).await;
        assert_eq!(response.status, 200, "{expression}: {}", String::from_utf8_lossy(&response.body));
        let response = response.json();
        let result = &response["data"]["result"];
        match response["data"]["resultType"].as_str() {
            Some("scalar") => vec![Sample { labels: BTreeMap::new(), value: number(&result[1]) }],
            Some("vector") => result.as_array().expect("a vector is a list").iter().map(sample).collect(),
            other => panic!("{expression}: a result of type {other:?}"),
        }
    }

    /// Returns the only value of an expression, or `None` if it has none. Panics if there are several.
    pub async fn value(&self, expression: &str) -> Option<f64> {
        let found = self.query(expression).await;
        assert!(found.len() < 2, "{expression}: {found:?}");
        found.first().map(|sample| sample.value)
    }

    /// Waits until an expression has a value for which `holds` is true, and returns it.
    pub async fn wait_until(&self, expression: &str, holds: impl Fn(f64) -> bool) -> f64 {
        let started = tokio::time::Instant::now();
        loop {
            let value = self.value(expression).await;
            if let Some(value) = value.filter(|value| holds(*value)) {
                return value;
            }
            assert!(
                started.elapsed() < 2 * WAIT_TIMEOUT,
                "{expression} is {value:?} after {:?}",
                2 * WAIT_TIMEOUT
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until an expression has this value.
    pub async fn wait_for_value(&self, expression: &str, value: f64) {
        self.wait_until(expression, |found| (found - value).abs() < 1e-9).await;
    }

    /// Returns the rules that it evaluates, as its API lists them.
    pub async fn rules(&self) -> Vec<Value> {
        let response = self.api.get("/api/v1/rules").await.expect(200);
        let groups = response["data"]["groups"].as_array().expect("groups of rules").clone();
        groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
    }

    /// Returns its targets, as its API lists them.
    pub async fn targets(&self) -> Vec<Value> {
        let response = self.api.get("/api/v1/targets").await.expect(200);
        response["data"]["activeTargets"].as_array().expect("targets").clone()
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("prometheus.yml")
    }

    async fn launch(&mut self) -> bool {
        let data = self.folder.path().join("data");
        let words = [
            format!("--config.file={}", self.config().display()),
            format!("--storage.tsdb.path={}", data.display()),
            format!("--web.listen-address=127.0.0.1:{}", self.port),
            "--log.level=warn".to_owned(),
        ];
        let server = Server {
            name: "prometheus",
            crash: "KILL",
            folder: self.folder.path().to_owned(),
            user: User::CURRENT_USER,
            words: [program("prometheus").into()].into_iter().chain(words.map(Into::into)).collect(),
            settings: Vec::new(),
            foreign: &["PROMETHEUS"],
        };
        let (keeper, api) = (self.keeper.insert(ProcessGuard::start(&server)), &self.api);
        keeper.is_ready(|| is_ready(api, &data)).await
    }
}

/// Runs `promtool check metrics` on a page of metrics in the text format.
pub fn check_metrics(page: &str) -> Output {
    let mut command = Command::new(program("promtool"));
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool cannot be run");
    // It reads all of its input before it writes.
    let mut input = child.stdin.take().expect("its input is piped");
    input.write_all(page.as_bytes()).expect("promtool reads its input");
    drop(input);
    child.wait_with_output().expect("promtool ends")
}

/// Runs `promtool` with these arguments.
pub fn promtool(words: &[&str]) -> Output {
    let mut command = Command::new(program("promtool"));
    command.args(words).output().expect("promtool cannot be run")
}

/// Returns the path of a program of the package; panics with an installation hint if it is missing.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| {
        panic!("the tests need {name}; install it with: sudo apt-get install prometheus");
    })
}

/// Returns whether the server of this folder is ready, and not another one that took the port first.
async fn is_ready(api: &Api, data: &Path) -> bool {
    let Ok(ready) = api.try_raw("GET", "/-/ready", &[], "").await else { return false };
    let Ok(flags) = api.try_raw("GET", "/api/v1/status/flags", &[], "").await else { return false };
    ready.status == 200 && flags.json()["data"]["storage.tsdb.path"] == data.display().to_string()
}

fn config(nodes: &[(&str, SocketAddr)], rules: &[&Path]) -> String {
    let mut text = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n".to_owned();
    let rules: Vec<_> = rules.iter().map(|path| path.display().to_string()).collect();
    text += &format!("rule_files: {rules:?}\nscrape_configs:\n  - job_name: redrive\n    static_configs:\n");
    for (name, address) in nodes {
        text += &format!("      - {{targets: ['{address}'], labels: {{instance: '{name}'}}}}\n");
    }
    text
}

fn number(value: &Value) -> f64 {
    value.as_str().and_then(|text| text.parse().ok()).expect("a value is a number in a text")
}

fn sample(found: &Value) -> Sample {
    let labels = found["metric"].as_object().expect("a sample has labels");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Sample {
        labels: labels.iter().map(|(name, value)| (name.clone(), text(value))).collect(),
        value: number(&found["value"][1]),
    }
}

/// Percent-encodes a string for a URL.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

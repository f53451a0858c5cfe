//! Throwaway Prometheus servers, from the program that the distribution's package brings, and `promtool` beside it.
//!
//! Each scrapes every second, and keeps what it finds in a folder that goes with it; no other server of this machine
//! is ever touched.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Api, PATIENCE,
    service::{Keeper, Server, Told, User, blocking, free_port},
};

/// One value of an answer, with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its labels, the name among them where the query leaves it there.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// A server of one's own. Killed and removed when dropped.
pub struct Prometheus {
    keeper: Option<Keeper>,
    folder: TempDir,
    port: u16,
    api: Api,
}

impl Prometheus {
    /// A fresh server that scrapes these nodes, each under the name that its `instance` is to be, and evaluates the
    /// rules of these files. Ready once it has scraped each of them.
    pub async fn start(nodes: &[(&str, SocketAddr)], rules: &[&Path]) -> Self {
        let folder = blocking(|| TempDir::with_prefix("redrive-test-prometheus-")).await;
        let mut server = Self {
            keeper: None,
            folder: folder.expect("no temporary directory"),
            port: 0,
            api: Api::new(SocketAddr::from(([127, 0, 0, 1], 0)), "").without_key(),
        };
        fs::write(server.config(), config(nodes, rules)).told(&server.config());
        // Somebody else may take a port before the server does.
        for _ in 0..5 {
            server.port = free_port();
            server.api = Api::new(SocketAddr::from(([127, 0, 0, 1], server.port)), "").without_key();
            if server.launch().await {
                server.eventually("count(up == 1)", |count| count == nodes.len() as f64).await;
                return server;
            }
        }
        panic!("Prometheus did not start:\n{}", crate::service::said(server.folder.path()));
    }

    /// What an expression is now. Panics with what the server says if it is none.
    pub async fn query(&self, expression: &str) -> Vec<Sample> {
        let path = format!("/api/v1/query?query={}", encoded(expression));
        let answer = self.api.get(&path).await;
        assert_eq!(answer.status, 200, "{expression}: {}", String::from_utf8_lossy(&answer.body));
        let answer = answer.json();
        let result = &answer["data"]["result"];
        match answer["data"]["resultType"].as_str() {
            Some("scalar") => vec![Sample { labels: BTreeMap::new(), value: number(&result[1]) }],
            Some("vector") => result.as_array().expect("a vector is a list").iter().map(sample).collect(),
            other => panic!("{expression}: an answer of type {other:?}"),
        }
    }

    /// The one value that an expression has; none if it has none. Panics if there are several.
    pub async fn value(&self, expression: &str) -> Option<f64> {
        let found = self.query(expression).await;
        assert!(found.len() < 2, "{expression}: {found:?}");
        found.first().map(|sample| sample.value)
    }

    /// Waits until an expression has a value for which this holds, and gives it.
    pub async fn eventually(&self, expression: &str, holds: impl Fn(f64) -> bool) -> f64 {
        let began = tokio::time::Instant::now();
        loop {
            let value = self.value(expression).await;
            if let Some(value) = value.filter(|value| holds(*value)) {
                return value;
            }
            assert!(began.elapsed() < 2 * PATIENCE, "{expression} is {value:?} after {:?}", 2 * PATIENCE);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until an expression has this value.
    pub async fn becomes(&self, expression: &str, value: f64) {
        self.eventually(expression, |found| (found - value).abs() < 1e-9).await;
    }

    /// The rules that it evaluates, as its API tells of them.
    pub async fn rules(&self) -> Vec<Value> {
        let answer = self.api.get("/api/v1/rules").await.expect(200);
        let groups = answer["data"]["groups"].as_array().expect("groups of rules").clone();
        groups.iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
    }

    /// Its targets, as its API tells of them.
    pub async fn targets(&self) -> Vec<Value> {
        let answer = self.api.get("/api/v1/targets").await.expect(200);
        answer["data"]["activeTargets"].as_array().expect("targets").clone()
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
            user: User::US,
            words: [program("prometheus").into()].into_iter().chain(words.map(Into::into)).collect(),
            settings: Vec::new(),
            foreign: &["PROMETHEUS"],
        };
        let (keeper, api) = (self.keeper.insert(Keeper::start(&server)), &self.api);
        keeper.is_ready(|| is_ready(api, &data)).await
    }
}

/// Runs `promtool` with these words.
pub fn promtool(words: &[&str]) -> Output {
    let mut command = Command::new(program("promtool"));
    command.args(words).output().expect("promtool cannot be run")
}

/// A program of the package, or the remedy in a panic.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| {
        panic!("the tests need {name}; install it with: sudo apt-get install prometheus");
    })
}

/// Whether the server of this folder, and no other that got the port first, is ready.
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

/// A text as a part of a URL.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

//! `redrive status` as run by a person or a script.

use std::process::{Command, Output};

use redrive_testkit::{Latch, Postgres, Receiver, Redrive, Reply, Setup};
use serde_json::{Value, json};

/// Runs `redrive status` against the server at this address with this key.
async fn run_status(address: &str, key: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("REDRIVE_")) {
        command.env_remove(name);
    }
    command.env("REDRIVE_ADMIN_KEY", key).args(["status", "--listen", address]).args(flags);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn status_json(server: &Redrive) -> (Value, Option<i32>) {
    let output = run_status(&server.address().to_string(), server.key(), &["--json"]).await;
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.is_empty(), "{message}");
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[tokio::test]
async fn fresh_server_reports_ok() {
    let server = Redrive::start().await;
    let output = run_status(&server.address().to_string(), server.key(), &[]).await;
    assert_eq!(output.status.code(), Some(0));
    let lines = lines(&output);
    for expected in
        ["status ok", "redis none", "rabbitmq none", "queue 0 waiting, 0 leased", "dead letters 0"]
    {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:?}");
    }
    assert!(lines.iter().any(|line| line.ends_with("all, sends for default (this node)")), "{lines:?}");
}

#[tokio::test]
async fn status_counts_queue_dead_letters_and_open_circuits() {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |arrival| match &*arrival.path {
        "/gone" => Reply::status(400),
        _ => Reply::status(200).latched_by(&held),
    })
    .await;
    let server = Redrive::start().await;
    let api = server.api();
    api.create_webhook(&receiver.url_at("/gone"), json!({"events": ["die"]})).await;
    let slow = json!({"events": ["wait"], "max_in_flight": 1});
    let slow = api.create_webhook(&receiver.url_at("/slow"), slow).await;
    api.publish("die", json!(1)).await;
    api.publish("wait", json!(1)).await;
    receiver.wait_for(2).await;
    let open = json!({"action": "force_open"});
    let path = format!("/v1/webhooks/{}/circuit-breaker", slow["id"].as_str().unwrap());
    assert_eq!(api.patch(&path, &open).await.status, 200);
    api.wait_until("one dead letter and one in flight", "/v1/status", |status| {
        status["dead_letters"] == 1 && status["circuits"]["open"] == 1 && status["queue"]["leased"] == 1
    })
    .await;
    let (status, code) = status_json(&server).await;
    assert_eq!((status["status"].as_str(), code), (Some("ok"), Some(0)), "{status:#}");
    gate.open();
}

#[test]
fn check_with_invalid_arguments_exits_with_the_code_for_unknown() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["status", "--lisen", "x"][..], &["doctor", "--lisen", "x"], &["doctor", "x"]] {
        let output = crate::process::run(folder.path(), arguments, &[]);
        assert_eq!(
            output.status.code(),
            Some(3),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(crate::process::run(folder.path(), &["serve", "--lisen"], &[]).status.code(), Some(2));
    assert_eq!(crate::process::run(folder.path(), &["doctor", "--help"], &[]).status.code(), Some(0));
}

#[tokio::test]
async fn wrong_key_and_unreachable_server_errors_name_the_fix() {
    let server = Redrive::start().await;
    let address = server.address().to_string();
    let unknown_key = run_status(&address, "0123456789abcdef0123456789abcdef", &[]).await;
    let message = String::from_utf8_lossy(&unknown_key.stderr).into_owned();
    assert_eq!(unknown_key.status.code(), Some(3));
    assert!(message.contains("REDRIVE_ADMIN_KEY is not an admin key of this server"), "{message}");
    drop(server);
    let unknown = run_status(&address, "0123456789abcdef0123456789abcdef", &[]).await;
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(3));
    assert!(message.starts_with(&format!("error: no server responds on {address}")), "{message}");
    assert!(message.contains("--listen"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_status_lists_nodes_and_unserved_pool() {
    // A server of its own with fsync: the shared one runs without and would be reported with a warning.
    let database = Postgres::start().await;
    let node = |name: &str, role: &str| {
        let setup = Setup::new().database_url(database.url()).role(role).env("REDRIVE_NODE", name);
        Redrive::start_with(setup)
    };
    let (api, worker) = tokio::join!(node("front", "api"), node("back", "worker"));
    // A worker serves no API, but still reports its status.
    for request in [&api, &worker] {
        let (status, code) = status_json(request).await;
        assert_eq!(code, Some(0), "{status:#}");
        let mut nodes: Vec<_> = status["nodes"].as_array().unwrap().iter().collect();
        nodes.sort_by_key(|node| node["name"].as_str());
        let listed: Vec<_> =
            nodes.iter().map(|node| (node["name"].as_str(), node["role"].as_str())).collect();
        assert_eq!(listed, [(Some("back"), Some("worker")), (Some("front"), Some("api"))]);
    }
    let receiver = Receiver::start().await;
    let gold = json!({"id": "golden", "pool": "gold"});
    assert_eq!(api.api().post("/v1/tenants", &gold).await.status, 201);
    let webhook = json!({"url": receiver.url_at("/"), "events": ["*"], "tenant_id": "golden"});
    assert_eq!(api.api().post("/v1/webhooks", &webhook).await.status, 201);
    let event = json!({"event_type": "a", "data": 1, "tenant_id": "golden"});
    assert_eq!(api.api().post("/v1/events", &event).await.status, 202);
    let (status, code) = status_json(&api).await;
    assert_eq!((status["status"].as_str(), code), (Some("critical"), Some(2)), "{status:#}");
    assert_eq!(status["findings"][0]["code"], "pool_unserved");
    assert!(status["findings"][0]["message"].as_str().unwrap().contains("--pool gold"), "{status:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_reported_while_the_store_is_unavailable() {
    let mut database = Postgres::start().await;
    let server = Redrive::start_with(Setup::new().database_url(database.url())).await;
    database.stop().await;
    let is_unavailable =
        |status: &Value| status["store"]["state"] == "down" && status["queue"]["depth"].is_null();
    server.api().wait_until("an unavailable store", "/v1/status", is_unavailable).await;
    let (status, code) = status_json(&server).await;
    assert_eq!(
        (status["findings"][0]["code"].as_str(), code),
        (Some("store_unavailable"), Some(2)),
        "{status:#}"
    );
}

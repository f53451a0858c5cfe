//! Schemathesis over the whole API document: no request leads to a 5xx or to an undocumented response.
//!
//! The server has its own database and sends nothing to webhooks, because it serves a pool without tenants.

use std::{path::Path, process::Command};

use redrive_testkit::{Api, Receiver, Redrive, Reply, Setup, python_with};
use redrive_tests::{column, entries, id};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Both are pinned, so that the same seed generates the same requests.
const PACKAGES: [&str; 2] = ["schemathesis==4.32.5", "hypothesis==6.170.15"];
/// The minimum number of requests of an ordinary run.
const CASES: u64 = 3_000;
/// The initial number of webhooks, large enough that deletions during the run leave some.
const WEBHOOKS: usize = 100;
/// An operation that needs SMTP, which the server of this test does not have: it is rejected with 409.
const NEEDS_MAIL: &str = "POST /v1/notification-preferences/confirmations";
/// A tenant that is never deleted.
const TENANT: &str = "stays-there";

#[tokio::test]
async fn every_response_is_documented() {
    let cases = std::env::var("REDRIVE_SCHEMATHESIS_CASES");
    let cases = cases.map_or(CASES, |cases| cases.parse().expect("the number of cases is a number"));
    let data = TempDir::new().unwrap();
    std::fs::write(data.path().join("things.json"), things(data.path()).await.to_string()).unwrap();

    let serve = Setup::new().command("serve").arg("--pool").arg("empty-pool");
    let redrive = Redrive::start_with(serve.data_dir(data.path())).await;
    let (address, key, folder) = (redrive.address(), redrive.key().to_owned(), data.path().to_owned());
    let request =
        tokio::task::spawn_blocking(move || schemathesis(&folder, &format!("http://{address}"), &key, cases));
    let (passed, report) = request.await.unwrap();
    println!("{report}");
    assert!(passed, "Schemathesis reported failures; see above");
    let counts: Value =
        serde_json::from_slice(&std::fs::read(data.path().join("tally.json")).unwrap()).unwrap();
    let (requests, failing) = summarize(&counts);
    println!("{requests} requests to {} operations", counts.as_object().unwrap().len());
    assert!(requests >= cases, "{requests} of {cases} requests were sent");
    assert_eq!(failing, Vec::<String>::new(), "these operations never succeeded: {counts:#}");
    let document = redrive.api().get("/openapi.json").await.expect(200);
    let items = document["paths"].as_object().unwrap().values();
    let operations: usize = items.map(|item| item.as_object().unwrap().len()).sum();
    assert_eq!(counts.as_object().unwrap().len(), operations, "some operations were never called");
    assert_eq!(sent(&redrive.api()).await, 0, "requests were sent to generated URLs");
}

/// Returns the number of requests that this server has sent to webhooks.
async fn sent(api: &Api) -> u64 {
    let metrics = api.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body);
    let count = metrics.lines().find_map(|line| line.strip_prefix("webhook_dispatch_latency_seconds_count "));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count of requests: {metrics}"))
}

/// Returns the number of requests, and the operations without a single success.
fn summarize(counts: &Value) -> (u64, Vec<String>) {
    let (mut requests, mut failing) = (0, Vec::new());
    for (operation, statuses) in counts.as_object().unwrap() {
        let statuses = statuses.as_object().unwrap();
        requests += statuses.values().map(|count| count.as_u64().unwrap()).sum::<u64>();
        if operation != NEEDS_MAIL && !statuses.keys().any(|status| status.starts_with('2')) {
            failing.push(operation.clone());
        }
    }
    (requests, failing)
}

/// Runs Schemathesis, and returns whether it passed and its output.
fn schemathesis(folder: &Path, url: &str, key: &str, cases: u64) -> (bool, String) {
    let python = python_with(&PACKAGES);
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemathesis");
    // Some operations have fewer distinct requests than this, so the others make more.
    let each = cases / 40;
    let output = Command::new(python.with_file_name("schemathesis"))
        .arg("--config-file")
        .arg(files.join("schemathesis.toml"))
        .args(["run", &format!("{url}/openapi.json"), "--no-color"])
        .args(["--max-examples", &each.to_string()])
        .args(["--header", &format!("Authorization: Bearer {key}")])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", &files)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("REDRIVE_THINGS", folder.join("things.json"))
        .env("REDRIVE_TALLY", folder.join("tally.json"))
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("{PACKAGES:?} did not start: {error}"));
    let message = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&message).into_owned())
}

/// Fills a database with objects of every kind, delivered to a local receiver, and returns their ids by kind.
async fn things(folder: &Path) -> Value {
    let redrive = Redrive::start_with(Setup::new().data_dir(folder)).await;
    let api = redrive.api();
    let receiver = Receiver::with(|arrival| match arrival.json()["data"]["fails"] == true {
        true => Reply::status(400).body("refused"),
        false => Reply::status(200),
    })
    .await;
    let mut webhooks = Vec::new();
    for number in 0..WEBHOOKS {
        let paused = if number % 4 == 0 { "paused" } else { "active" };
        let webhook = json!({"events": [format!("order.{number}")], "state": paused});
        webhooks.push(id(&api.create_webhook(&receiver.url(), webhook).await).to_owned());
    }
    for fails in [false, true] {
        let event = |number| json!({"event_type": format!("order.{number}"), "data": {"fails": fails}});
        let events: Vec<_> = (0..WEBHOOKS).map(event).collect();
        api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
    }
    let dead = WEBHOOKS * 3 / 4;
    let all_over = |page: &Value| page["data"].as_array().unwrap().len() == dead;
    api.wait_until("dead deliveries", "/v1/dlq?limit=500", all_over).await;
    assert!(sent(&api).await >= dead as u64, "requests are counted");
    // Not a tenant of the document's examples: the run tries those too, and one of them deletes its tenant.
    api.post("/v1/tenants", json!({"id": TENANT})).await.expect(201);
    let disposable_tenants: Vec<_> = (0..50).map(|number| format!("disposable-{number}")).collect();
    for tenant in &disposable_tenants {
        api.post("/v1/tenants", json!({"id": tenant})).await.expect(201);
    }
    let types: Vec<_> = (0..100).map(|number| format!("registered.{number}")).collect();
    for name in &types {
        api.post("/v1/event-types", json!({"name": name})).await.expect(201);
    }
    let deliveries = entries(&api.get("/v1/deliveries?limit=500").await.expect(200));
    let pair = |delivery: &Value| json!([delivery["webhook_id"], delivery["id"]]);
    let (mut disposable_webhooks, mut erasable) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let unknown = json!({"events": ["never.published"]});
        disposable_webhooks.push(id(&api.create_webhook(&receiver.url(), unknown).await).to_owned());
        erasable.push(api.publish("no.subscribers", json!(1)).await["id"].clone());
    }
    let mut operations = Vec::new();
    for _ in 0..20 {
        let later = json!({"start_at": "2100-01-01T00:00:00Z"});
        operations.push(api.post("/v1/dlq/retry-batch", later).await.expect(202)["id"].clone());
    }
    json!({
        "webhooks": webhooks,
        "dlq": operations,
        "disposable-webhooks": disposable_webhooks,
        "erasable": erasable,
        "events": column(&deliveries, "event_id"),
        "deliveries": column(&deliveries, "id"),
        "pairs": deliveries.iter().map(pair).collect::<Vec<_>>(),
        "event-types": types,
        "tenants": [TENANT],
        "disposable-tenants": disposable_tenants,
        "keys": keys(&api, &format!("/v1/tenants/{TENANT}/api-keys"), json!({})).await,
        "admin-keys": keys(&api, "/v1/admin-keys", json!({})).await,
        "portal-sessions": keys(&api, "/v1/portal-sessions", json!({"tenant_id": "default"})).await,
    })
}

async fn keys(api: &Api, path: &str, body: Value) -> Vec<String> {
    let mut keys = Vec::new();
    for _ in 0..50 {
        keys.push(id(&api.post(path, &body).await.expect(201)).to_owned());
    }
    keys
}

//! The functions of `docs/receiving.md` that verify signatures without the official library, with requests
//! that Redrive has sent, and its statement for deduplication.

use std::{fs, process::Command};

use redrive_testkit::{Postgres, ReceivedRequest, Receiver, Redrive, python_with};
use redrive_tests::text;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Program, block, blocks};

/// Calls a function of a program with each argument list, and prints whether it accepted.
const DRIVER: &str = "
import json, sys
from importlib import import_module
for module, function, secret, given, body in json.load(open('calls.json')):
    try:
        result = getattr(import_module(module), function)(secret, given, body.encode())
        # One of the functions raises an exception instead of returning false.
        print(result is None or result)
    except Exception as error:
        print(type(error).__name__)
";

fn page() -> Vec<(String, String)> {
    blocks("docs/receiving.md", "receiving", &["header.py", "public_key.py", "deduplicate"])
}

fn body(arrival: &ReceivedRequest) -> String {
    String::from_utf8(arrival.body.to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_verify_requests() {
    let (receiver, redrive) = (Receiver::start().await, Redrive::start().await);
    let api = redrive.api();
    let mut webhooks = Vec::new();
    for (path, extra) in [
        ("timestamped", json!({})),
        ("sha256", json!({"signature": {"header_format": "sha256"}})),
        ("ed25519", json!({"signature": {"scheme": "standard-ed25519"}})),
    ] {
        let created = api.create_webhook(&receiver.url_at(path), extra).await;
        webhooks.push((format!("/{path}"), created));
    }
    // Two secrets sign the first: one valid signature is enough.
    let rotate = format!("/v1/webhooks/{}/rotate-secret", text(&webhooks[0].1["id"]));
    let rotated = api.post(&rotate, json!({})).await.expect(200);
    api.publish("order.created", json!({"name": "Zoë ☃"})).await;
    let arrivals = receiver.wait_for(3).await;
    let arrival = |path: &str| arrivals.iter().find(|arrival| arrival.path == path).unwrap();
    let header = |path: &str| arrival(path).header("x-webhook-signature").unwrap().to_owned();
    let [timestamped, sha256, ed25519] = ["/timestamped", "/sha256", "/ed25519"].map(arrival);
    let (old, new) = (text(&webhooks[0].1["secret"]), text(&rotated["secret"]));
    let other = text(&webhooks[1].1["secret"]);
    let public_key = text(&webhooks[2].1["secrets"][0]["public_key"]);
    let headers: Value =
        ed25519.headers.iter().cloned().map(|(name, value)| (name, Value::from(value))).collect();
    let stale = header("/timestamped").replacen("t=", "t=1", 1);

    let (verify_t, verify_s) = (("header", "verify_timestamped"), ("header", "verify_sha256"));
    let verify_k = ("public_key", "verify");
    let calls = [
        (verify_t, old, json!(header("/timestamped")), body(timestamped), "True"),
        (verify_t, new, json!(header("/timestamped")), body(timestamped), "True"),
        (verify_t, other, json!(header("/timestamped")), body(timestamped), "False"),
        (verify_t, old, json!(header("/timestamped")), body(timestamped) + " ", "False"),
        (verify_t, old, json!(stale), body(timestamped), "False"),
        (verify_s, other, json!(header("/sha256")), body(sha256), "True"),
        (verify_s, old, json!(header("/sha256")), body(sha256), "False"),
        (verify_s, other, json!(header("/sha256")), body(sha256) + " ", "False"),
        (verify_k, public_key, headers.clone(), body(ed25519), "True"),
        (verify_k, public_key, headers, body(ed25519) + " ", "InvalidSignature"),
    ];
    let folder = TempDir::new().unwrap();
    for (name, text) in page().iter().filter(|(name, _)| name.ends_with(".py")) {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let arguments = calls
        .iter()
        .map(|((module, function), secret, given, body, _)| json!([module, function, secret, given, body]));
    fs::write(folder.path().join("calls.json"), Value::from_iter(arguments).to_string()).unwrap();
    fs::write(folder.path().join("driver.py"), DRIVER).unwrap();
    let mut command = Command::new(python_with(&["cryptography"]));
    let lines = Program::start(command.arg("driver.py").current_dir(folder.path())).finish();
    assert_eq!(lines, calls.map(|call| call.4));
}

#[tokio::test(flavor = "multi_thread")]
async fn statement_inserts_an_id_once() {
    let database = Postgres::shared().await;
    database.execute("CREATE TABLE seen_webhooks (id text PRIMARY KEY)").await;
    let page = page();
    let statement = block(&page, "deduplicate").replace("$1", "'evt_1'");
    assert_eq!(database.execute(&statement).await, 1);
    assert_eq!(database.execute(&statement).await, 0, "done before");
}

//! Secrets stay secret: at rest, in pages and responses, in logs, and while the master key is rotated.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use redrive_core::security::vault::MasterKey;
use redrive_testkit::{Api, Collector, Postgres, Receiver, Redrive, Reply, Setup, python_with};
use redrive_tests::{entries, id, text, wait_for_event_status};
use serde_json::{Value, json};

/// Secret values that must never appear in any output.
const PLANTED: [&str; 6] = [
    "planted-header-value",
    "planted-password",
    "planted-token",
    "whsec_cGxhbnRlZC1zZWNyZXQtcGxhbnRlZC1zZWNyZXQtIQ==",
    "cGxhbnRlZC1zZWNyZXQt",
    // The base64 form of basic authentication with the planted password.
    "bWU6cGxhbnRlZC1wYXNzd29yZA",
];

/// Creates webhooks with secrets of every kind.
async fn confide(api: &Api, url: &str) -> Vec<Value> {
    let basic = json!({
        "secret": PLANTED[3],
        "headers": {"x-api-key": PLANTED[0]},
        "auth": {"type": "basic", "username": "me", "password": PLANTED[1]},
    });
    let bearer = json!({"auth": {"type": "bearer", "token": PLANTED[2]}});
    vec![api.create_webhook(url, basic).await, api.create_webhook(url, bearer).await]
}

fn everything_in(folder: &Path) -> String {
    let mut all = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            all += &String::from_utf8_lossy(&fs::read(path).unwrap());
        }
    }
    all
}

fn assert_hidden(location: &str, shown: &str) {
    for planted in PLANTED {
        assert!(!shown.contains(planted), "{planted} is in {location}");
    }
}

#[tokio::test]
async fn credentials_are_sent_only_to_their_endpoint() {
    credentials_stay_hidden("text").await;
}

#[tokio::test]
async fn json_log_contains_no_credentials() {
    credentials_stay_hidden("json").await;
}

/// Asserts that credentials stay hidden with a trace-level log of this format, and with spans for a collector.
async fn credentials_stay_hidden(log_format: &str) {
    let (receiver, collector) = (Receiver::start().await, Collector::start().await);
    let setup = Setup::new()
        .env("REDRIVE_LOG_LEVEL", "trace")
        .env("REDRIVE_LOG_FORMAT", log_format)
        .env("REDRIVE_TRACING_OTLP_ENDPOINT", collector.url())
        .env("REDRIVE_TRACING_SAMPLE_RATIO", "1");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    let webhooks = confide(&api, &receiver.url()).await;
    let event = api.publish("order.created", json!({"n": 1})).await;
    let arrivals = receiver.wait_for(2).await;
    let mut sent: Vec<_> = arrivals.iter().map(|one| one.header("authorization").unwrap()).collect();
    sent.sort_unstable();
    assert_eq!(sent, ["Basic bWU6cGxhbnRlZC1wYXNzd29yZA==", "Bearer planted-token"]);
    assert!(arrivals.iter().any(|one| one.header("x-api-key") == Some(PLANTED[0])));

    // Every response that shows the webhook, and every change of it.
    let path = format!("/v1/webhooks/{}", id(&webhooks[0]));
    let mut shown = api.get(&path).await.expect(200).to_string();
    assert!(shown.contains(r#""auth":{"password":"[redacted]","type":"basic","username":"me"}"#), "{shown}");
    shown += &api.get("/v1/webhooks").await.expect(200).to_string();
    let back = json!({"auth": {"type": "basic", "username": "you", "password": "[redacted]"}});
    shown += &api.patch(&path, back).await.expect(200).to_string();
    let unknown = json!({"auth": {"type": "bearer", "token": "[redacted]"}});
    shown += &api.patch(&path, unknown).await.expect(400).to_string();
    for path in ["/v1/audit-log", "/metrics", "/v1/deliveries"] {
        shown += &String::from_utf8_lossy(&api.get(path).await.body);
    }
    for attempts in entries(&api.get(&format!("/v1/events/{}/attempts", id(&event))).await.expect(200)) {
        shown += &attempts.to_string();
    }
    let both = json!({"headers": {"authorization": "x"}});
    shown += &api.patch(&path, both).await.expect(400).to_string();
    shown += &api
        .post(
            "/v1/webhooks",
            json!({"url": "https://x.example", "events": ["*"], "secret": "whsec_cGxhbnRlZC1zZWNyZXQt"}),
        )
        .await
        .expect(400)
        .to_string();
    assert_hidden("an API response", &shown);
    api.publish("order.created", json!({"n": 2})).await;
    let arrivals = receiver.wait_for(4).await;
    assert!(
        arrivals.iter().any(|one| one.header("authorization") == Some("Basic eW91OnBsYW50ZWQtcGFzc3dvcmQ=")),
        "a password sent back as redacted is unchanged"
    );
    assert_hidden("the log", &redrive.output());
    collector
        .wait_until("spans of every attempt", |spans| {
            spans.iter().filter(|span| span.name == "attempt").count() == 4
        })
        .await;
    for arrival in collector.receiver().arrivals() {
        assert_hidden("a span", &String::from_utf8_lossy(&arrival.body));
    }
    assert_hidden("the files", &everything_in(redrive.data_dir()));
}

#[tokio::test]
async fn secrets_are_sealed_and_master_key_rotates_without_downtime() {
    let (database, receiver) = (Postgres::shared().await, Receiver::start().await);
    let folder = tempfile::tempdir().unwrap();
    let new_key = |name: &str, byte: u8| {
        let path = folder.path().join(name);
        fs::write(&path, &**MasterKey::from_bytes([byte; 32]).reveal()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let (old, new) = (new_key("old", 1), new_key("new", 2));
    let on = |current: &str, former: &[&str]| {
        Setup::new()
            .database_url(database.url())
            .without_env("REDRIVE_SECRETS_MASTER_KEY")
            .env("REDRIVE_SECRETS_MASTER_KEY_FILE", current)
            .env("REDRIVE_SECRETS_ADDITIONAL_MASTER_KEY_FILES", json!(former).to_string())
    };
    let first = Redrive::start_with(on(&old, &[])).await;
    confide(&first.api(), &receiver.url()).await;
    let rows = database.query("SELECT spec || state || encode(sealed, 'escape') FROM webhooks").await;
    assert_eq!(rows.len(), 2);
    assert_hidden("the database", &rows.concat().concat());

    // A node with only the new key does not start, and prints a hint.
    let refused = on(&new, &[]).run_to_end().await;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("secrets.additional_master_key_files"), "{message}");
    drop(first);
    // First all nodes get the new key for unsealing, then one after the other seals with it.
    let still_old = Redrive::start_with(on(&old, &[&new])).await;
    let second = Redrive::start_with(on(&new, &[&old])).await;
    let created = second.api().create_webhook(&receiver.url(), json!({"events": ["other"]})).await;
    still_old.api().get(&format!("/v1/webhooks/{}", id(&created))).await.expect(200);
    still_old.api().publish("no.subscribers", json!({})).await;
    let response = second.api().post("/v1/secrets/rotate-master-key", json!({})).await.expect(200);
    assert_eq!(response["rewrapped"], 2);
    drop(second);
    let third = Redrive::start_with(on(&new, &[])).await;
    third.api().publish("order.created", json!({})).await;
    let arrivals = receiver.wait_for(2).await;
    assert!(arrivals.iter().any(|one| one.header("authorization") == Some("Bearer planted-token")));
    let again = third.api().post("/v1/secrets/rotate-master-key", json!({})).await.expect(200);
    assert_eq!(again["rewrapped"], 0);
}

/// Verifies `v1a` with the public key only, with another implementation of Ed25519.
const ED25519: &str = "
import base64, json, sys
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.exceptions import InvalidSignature
for request in json.load(sys.stdin):
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(request['key'].removeprefix('whpk_')))
    body, headers = request['body'].encode(), request['headers']
    message = headers['webhook-id'].encode() + b'.' + headers['webhook-timestamp'].encode() + b'.' + body
    good = 0
    for signature in headers['webhook-signature'].split(' '):
        version, signature = signature.split(',')
        assert version == 'v1a'
        try:
            key.verify(base64.b64decode(signature), message)
            good += 1
        except InvalidSignature:
            pass
    print(good)
";

fn verified(requests: &Value) -> Vec<String> {
    use std::{io::Write, process::Stdio};
    let mut child = std::process::Command::new(python_with(&["cryptography"]))
        .args(["-c", ED25519])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(requests.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the Python program failed");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn endpoint_must_echo_challenge_before_receiving_events() {
    let receiver = Receiver::responding(200).await;
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", "20")).await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"verify_url": true})).await;
    assert_eq!(webhook["state"], "pending_verification");
    let path = format!("/v1/webhooks/{}", id(&webhook));
    let event = api.publish("order.created", json!({})).await;
    assert_eq!(event["deliveries"], 0, "the webhook gets no events yet");
    let request = receiver.wait_for(2).await;
    for challenge in &request {
        assert_eq!(challenge.json()["type"], "redrive.challenge");
        assert!(challenge.header("webhook-signature").unwrap().starts_with("v1,"), "the challenge is signed");
    }
    assert_ne!(request[0].json()["challenge"], request[1].json()["challenge"], "each challenge is new");
    for switch in ["pause", "resume", "test"] {
        let response = api.post(&format!("{path}/{switch}"), json!({})).await;
        assert_eq!(response.status, 409, "{switch}: {response:?}");
    }
    // Disabling and enabling the webhook does not skip the verification.
    let disabled = api.post(&format!("{path}/disable"), json!({})).await.expect(200);
    assert_eq!(disabled["state"], "disabled");
    let enabled = api.post(&format!("{path}/enable"), json!({})).await.expect(200);
    assert_eq!(enabled["state"], "pending_verification");

    receiver.respond_with(|arrival| {
        Reply::status(200).body(arrival.json()["challenge"].as_str().unwrap_or("").to_owned())
    });
    api.wait_until("the webhook is verified", &path, |webhook| webhook["state"] == "active").await;
    let event = api.publish("order.created", json!({})).await;
    wait_for_event_status(&api, &event, "delivered").await;

    // A new URL must echo as well; events published before that wait for it.
    let silent = Receiver::responding(200).await;
    let changed = api.patch(&path, json!({"url": silent.url()})).await.expect(200);
    assert_eq!(changed["state"], "pending_verification");
    let event = api.publish("order.created", json!({})).await;
    assert_eq!(event["deliveries"], 1);
    silent.wait_for(1).await;
    silent.respond_with(|arrival| {
        let echo = json!({"challenge": arrival.json()["challenge"]});
        Reply::status(200).body(echo.to_string())
    });
    wait_for_event_status(&api, &event, "delivered").await;
    let got = silent.arrivals();
    let last = got.last().unwrap().json();
    assert_eq!(last["type"], "order.created", "only challenges were sent before the first event: {last}");
    assert!(got[..got.len() - 1].iter().all(|one| one.json()["type"] == "redrive.challenge"));
}

#[tokio::test]
async fn only_worker_nodes_send_challenges() {
    let (database, receiver) = (Postgres::shared().await, Receiver::responding(200).await);
    let front = Redrive::start_with(Setup::new().database_url(database.url()).role("api")).await;
    let api = front.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"verify_url": true})).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    assert_eq!(receiver.count(), 0, "a node of this role sends nothing");
    let worker = Redrive::start_with(Setup::new().database_url(database.url()).role("worker")).await;
    receiver.wait_for(1).await;
    let reported = |webhook: &Value| webhook["verification"]["last_error"].is_string();
    api.wait_until("the webhook has an error", &path, reported).await;
    assert_eq!(
        api.post(&format!("{path}/verify"), json!({})).await.status,
        409,
        "the challenge is not repeated"
    );

    // A new URL is a new endpoint: its challenge is sent immediately.
    let echoing = Receiver::with(|arrival| {
        Reply::status(200).body(arrival.json()["challenge"].as_str().unwrap_or("").to_owned())
    })
    .await;
    api.patch(&path, json!({"url": echoing.url()})).await.expect(200);
    api.wait_until("the webhook is verified", &path, |webhook| webhook["state"] == "active").await;
    api.post(&format!("{path}/pause"), json!({})).await.expect(200);
    let paused = api.post(&format!("{path}/verify"), json!({})).await;
    assert_eq!((paused.status, paused.problem().as_str()), (409, "webhook_paused"));
    drop(worker);
}

#[tokio::test]
async fn endpoint_that_never_echoes_is_disabled_after_a_day() {
    let receiver = Receiver::responding(200).await;
    let redrive = Redrive::start_with(Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", "20000")).await;
    let api = redrive.api();
    let webhook = api.create_webhook(&receiver.url(), json!({"verify_url": true})).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    let over =
        api.wait_until("the webhook is disabled", &path, |webhook| webhook["state"] == "disabled").await;
    assert_eq!(over["disabled_reason"], "the endpoint did not echo the challenge in time");
    assert!(receiver.count() > 5, "the endpoint was called {} times", receiver.count());
    assert!(receiver.arrivals().iter().all(|one| one.json()["type"] == "redrive.challenge"));
}

mod extended {
    use super::*;

    #[tokio::test]
    async fn receivers_verify_ed25519_with_only_the_public_key() {
        let (redrive, receiver) = (Redrive::start().await, Receiver::start().await);
        let api = redrive.api();
        let scheme = json!({"signature": {"scheme": "standard-ed25519"}});
        let webhook = api.create_webhook(&receiver.url(), scheme).await;
        let path = format!("/v1/webhooks/{}", id(&webhook));
        let key = |webhook: &Value, nth: usize| text(&webhook["secrets"][nth]["public_key"]).to_owned();
        let first = key(&webhook, 0);
        let event = api.publish("order.created", json!({"letters": "äß\u{1f511}"})).await;
        wait_for_event_status(&api, &event, "delivered").await;
        let rotated = api.post(&format!("{path}/rotate-secret"), json!({})).await.expect(200);
        let second = key(&rotated, 0);
        assert_eq!(key(&rotated, 1), first, "the old key is shown while it signs");
        let event = api.publish("order.created", json!({})).await;
        wait_for_event_status(&api, &event, "delivered").await;
        let arrivals = receiver.wait_for(2).await;
        let request = |key: &str, nth: usize, body: Option<&str>| {
            let headers: serde_json::Map<_, _> =
                arrivals[nth].headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            let sent = std::str::from_utf8(&arrivals[nth].body).unwrap();
            json!({"key": key, "headers": headers, "body": body.unwrap_or(sent)})
        };
        let requests = json!([
            request(&first, 0, None),
            request(&first, 1, None),
            request(&second, 1, None),
            request(&second, 0, None),
            request(&first, 0, Some("{}")),
        ]);
        assert_eq!(verified(&requests), ["1", "1", "1", "0", "0"]);
    }
}

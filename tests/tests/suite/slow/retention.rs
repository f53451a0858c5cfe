//! Retention with the real binary: pruning, erasure and the archive.

use std::{collections::BTreeSet, time::Duration};

use redrive_testkit::{Api, Latch, Receiver, Redrive, Reply, Setup};
use redrive_tests::{delivery_of, id, wait_for_status};
use serde_json::{Value, json};

/// Waits until a path returns 404.
async fn gone(api: &Api, path: &str) {
    for _ in 0..400 {
        if api.get(path).await.status == 404 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_pruned_after_their_retention() {
    // A day passes in a second.
    let setup = Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", "86400").env("REDRIVE_RETENTION_EVENTS", "3d");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    let receiver = Receiver::start().await;
    api.post("/v1/tenants", json!({"id": "keeper", "quotas": {"retention_days": 0}})).await.expect(201);
    api.create_webhook(&receiver.url(), json!({})).await;
    let retained = json!({"tenant_id": "keeper", "event_type": "order.created", "data": {}});
    let retained = api.post("/v1/events", retained).await.expect(202);
    let event = api.publish("order.created", json!({"n": 1})).await;
    receiver.wait_for(1).await;
    let path = format!("/v1/events/{}", id(&event));
    api.get(&path).await.expect(200);
    gone(&api, &path).await;
    assert_eq!(api.get("/v1/deliveries").await.expect(200)["data"], json!([]));
    api.post(&format!("{path}/replay"), json!({})).await.expect(404);
    api.get(&format!("/v1/events/{}?tenant_id=keeper", id(&retained))).await.expect(200);
    let metrics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("redrive_pruned_rows_total{kind=\"event\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn erased_payload_is_deleted_and_its_history_kept() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    // The receiver echoes the request body.
    let receiver = Receiver::with(|arrival| Reply::status(200).body(arrival.body.clone())).await;
    let webhook = api.create_webhook(&receiver.url(), json!({})).await;
    let event = api.publish("order.created", json!({"email": "ada@example.com"})).await;
    let delivery = delivery_of(&api, &event).await;
    wait_for_status(&api, id(&delivery), "delivered").await;
    api.post(&format!("/v1/webhooks/{}/pause", id(&webhook)), json!({})).await.expect(200);
    let later = api.publish("order.created", json!({"email": "ada@example.com"})).await;
    let parked = delivery_of(&api, &later).await;

    for event in [&event, &later] {
        let path = format!("/v1/events/{}", id(event));
        let erased = api.post(&format!("{path}/erase"), json!({})).await.expect(200);
        assert_eq!((&erased["data"], &erased["metadata"]), (&json!(null), &json!(null)));
        assert!(erased["erased_at"].is_string());
        assert_eq!(
            api.post(&format!("{path}/erase"), json!({})).await.expect(200),
            erased,
            "a repeated erasure changes nothing"
        );
        let refused = api.post(&format!("{path}/replay"), json!({})).await;
        assert_eq!(refused.expect(409)["code"], "payload_erased");
    }
    let called_off = wait_for_status(&api, id(&parked), "cancelled").await;
    assert_eq!(called_off["cancel_reason"], "the payload was erased");
    for delivery in [&delivery, &parked] {
        let refused = api.post(&format!("/v1/deliveries/{}/retry", id(delivery)), json!({})).await;
        assert_eq!(refused.expect(409)["code"], "payload_erased");
    }
    let attempts = api.get(&format!("/v1/deliveries/{}/attempts", id(&delivery))).await.expect(200);
    assert_eq!(attempts["data"][0]["http_status_code"], 200);
    assert_eq!(attempts["data"][0]["response_body_sample"], json!(null));
    let log = api.get("/v1/audit-log?action=event.erase").await.expect(200);
    assert_eq!(log["data"].as_array().unwrap().len(), 4, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_in_flight_at_erasure_finishes_without_stored_response() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let gate = Latch::closed();
    let opened = gate.clone();
    let receiver =
        Receiver::with(move |arrival| Reply::status(200).body(arrival.body.clone()).latched_by(&opened))
            .await;
    api.create_webhook(&receiver.url(), json!({})).await;
    let event = api.publish("order.created", json!({"email": "ada@example.com"})).await;
    receiver.wait_for(1).await;
    api.post(&format!("/v1/events/{}/erase", id(&event)), json!({})).await.expect(200);
    gate.open();
    let delivery = delivery_of(&api, &event).await;
    wait_for_status(&api, id(&delivery), "delivered").await;
    let attempts = api.get(&format!("/v1/deliveries/{}/attempts", id(&delivery))).await.expect(200);
    assert_eq!(attempts["data"][0]["response_body_sample"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_payloads_of_a_subject_are_erased() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    for n in 0..30 {
        let subject = if n % 3 == 0 { "ada" } else { "bob" };
        let event = json!({"event_type": "order.created", "data": {"n": n}, "subject": subject});
        api.post("/v1/events", event).await.expect(202);
    }
    let erase = async |subject: &str| api.post("/v1/events/erase", json!({"subject": subject})).await;
    assert_eq!(erase("ada").await.expect(200), json!({"erased": 10, "finished": true}));
    assert_eq!(erase("ada").await.expect(200), json!({"erased": 0, "finished": true}));
    erase("").await.expect(400);
    let left = api.get("/v1/events?limit=100").await.expect(200);
    let erased = |event: &&serde_json::Value| event["data"].is_null() && event["subject"] == "ada";
    assert_eq!(left["data"].as_array().unwrap().iter().filter(erased).count(), 10);
}

/// Runs `redrive archive` and returns its output.
fn archive(folder: &std::path::Path, args: &[&str]) -> String {
    let mut command = std::process::Command::new(redrive_testkit::binary());
    let output = command.arg("archive").args(args).env("REDRIVE_ARCHIVE_URL", folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An S3-compatible server, stopped when dropped.
struct Bucket {
    server: std::process::Child,
    endpoint: String,
}

impl Bucket {
    async fn start(name: &str) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = std::process::Command::new(redrive_testkit::python_with(&["moto[server]"]))
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let bucket = Self { server, endpoint: format!("http://127.0.0.1:{port}") };
        let api = Api::new(([127, 0, 0, 1], port).into(), "unused-key");
        for _ in 0..400 {
            if api
                .try_raw("PUT", &format!("/{name}"), &[], "")
                .await
                .is_ok_and(|response| response.status == 200)
            {
                return bucket;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("moto does not respond");
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn archive_can_be_an_s3_bucket() {
        let bucket = Bucket::start("events").await;
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "hush-hush\n").unwrap();
        let settings = [
            ("REDRIVE_ARCHIVE_URL", "s3://events/redrive/prod"),
            ("REDRIVE_ARCHIVE_ENDPOINT", &bucket.endpoint),
            ("REDRIVE_ARCHIVE_REGION", "us-east-1"),
            ("REDRIVE_ARCHIVE_ACCESS_KEY_ID", "key"),
            ("REDRIVE_ARCHIVE_SECRET_ACCESS_KEY_FILE", secret.path().to_str().unwrap()),
        ];
        let fast = Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", "86400").env("REDRIVE_RETENTION_EVENTS", "1d");
        let setup = settings.iter().fold(fast, |setup, (name, value)| setup.env(*name, *value));
        let redrive = Redrive::start_with(setup).await;
        let event = redrive.api().publish("order.created", json!({"n": 1})).await;
        redrive.wait_output("archive object stored").await;
        let mut command = std::process::Command::new(redrive_testkit::binary());
        let output = command.args(["archive", "cat"]).envs(settings).output().unwrap();
        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((id(&line), &line["data"]), (id(&event), &json!({"n": 1})));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn pruned_events_are_archived_once_despite_kills() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive");
        // A day passes in a second.
        let setup = Setup::new()
            .env("REDRIVE_DEV_CLOCK_SPEED", "86400")
            .env("REDRIVE_RETENTION_EVENTS", "1d")
            .env("REDRIVE_ARCHIVE_URL", path.display().to_string());
        let mut redrive = Redrive::start_with(setup).await;
        let receiver = Receiver::start().await;
        redrive.api().create_webhook(&receiver.url(), json!({"headers": {"X-Token": "hush-hush"}})).await;
        let mut published = BTreeSet::new();
        for turn in 0..4_u64 {
            for n in 0..15 {
                let event = redrive.api().publish("order.created", json!({"turn": turn, "n": n})).await;
                published.insert(id(&event).to_owned());
            }
            receiver.wait_for(published.len()).await;
            // Kills at different points between publishing, pruning and archiving.
            tokio::time::sleep(Duration::from_millis(1_100 + turn * 1_700)).await;
            redrive.kill();
            redrive.restart().await;
        }
        let api = redrive.api();
        let mut lines = String::new();
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            lines = archive(&path, &["cat"]);
            if lines.lines().filter(|line| line.contains("\"kind\":\"event\"")).count() >= published.len() {
                break;
            }
        }
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for kind in ["event", "delivery", "attempt"] {
            let of: Vec<_> = lines.iter().filter(|line| line["kind"] == kind).collect();
            let ids: BTreeSet<_> = of.iter().map(|line| id(line).to_owned()).collect();
            assert_eq!(ids.len(), of.len(), "a {kind} is archived twice");
            assert!(ids.len() >= published.len(), "{kind}: {} of {}", ids.len(), published.len());
            if kind == "event" {
                assert_eq!(ids, published);
            }
        }
        assert!(
            lines.iter().all(|line| !line.to_string().contains("hush-hush")),
            "the archive contains a secret"
        );
        assert_eq!(api.get("/v1/events").await.expect(200)["data"], json!([]));

        let name = archive(&path, &["list"]).split_whitespace().next().unwrap().to_owned();
        let one = archive(&path, &["cat", &name]);
        assert!(!one.is_empty() && one.lines().count() <= lines.len());
        assert_eq!(archive(&path, &["cat", "--tenant", "unknown"]), "");
        assert_eq!(archive(&path, &["cat", "--to", "2020-01-01T00:00:00Z"]), "");
        let since = archive(&path, &["cat", "--from", "2020-01-01T00:00:00Z", "--tenant", "default"]);
        assert_eq!(since.lines().count(), lines.len());
    }
}

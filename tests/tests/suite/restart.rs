//! State that must survive a restart, and behaviour with a full disk.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    process::Command,
};

use redrive_testkit::{Api, Latch, Receiver, Redrive, Reply, Setup};
use redrive_tests::{
    attempts_of, attempts_when, column, delivery_of, entries, id, millis, text, wait_for_event_status,
    wait_for_status,
};
use serde_json::{Value, json};
use tempfile::TempDir;

#[tokio::test]
async fn scheduled_retries_survive_a_kill() {
    let receiver = Receiver::responding(500).await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    let policy = json!({"schedule": [0, 1.5, 3600], "jitter": 0});
    api.create_webhook(&receiver.url(), json!({"retry_config": policy})).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(&api, &event).await;
    attempts_when(&api, id(&delivery), 1).await;
    redrive.restart().await;
    let api = redrive.api();
    let waiting = wait_for_status(&api, id(&delivery), "pending").await;
    assert_eq!((&waiting["waiting_on"], &waiting["attempt_count"]), (&json!("schedule"), &json!(1)));
    assert_eq!(receiver.count(), 1, "not before its time");
    receiver.respond_with(|_| Reply::status(200));
    wait_for_status(&api, id(&delivery), "delivered").await;
    let attempts = attempts_of(&api, id(&delivery)).await;
    assert_eq!(column(&attempts, "number"), [1, 2]);
    assert!(millis(&attempts[1]["executed_at"]) >= millis(&attempts[0]["next_retry_at"]));
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn requests_in_flight_at_a_kill_are_sent_again() {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |_| Reply::status(200).latched_by(&held)).await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"max_in_flight": 2})).await;
    let mut events = Vec::new();
    for n in 0..4 {
        events.push(api.publish("order.created", json!(n)).await);
    }
    let under_way: HashSet<String> =
        receiver.wait_for(2).await.iter().map(|arrival| arrival.webhook_id().to_owned()).collect();
    redrive.kill();
    gate.open();
    redrive.restart().await;
    let api = redrive.api();
    for event in &events {
        let delivery = wait_for_event_status(&api, event, "delivered").await;
        let attempts = attempts_of(&api, id(&delivery)).await;
        assert_eq!(column(&attempts, "number"), [1], "a request interrupted by a kill is not recorded");
        let sent: Vec<_> =
            receiver.arrivals().into_iter().filter(|arrival| arrival.webhook_id() == id(event)).collect();
        assert_eq!(sent.len(), if under_way.contains(id(event)) { 2 } else { 1 });
        for arrival in &sent {
            assert_eq!(arrival.body, sent[0].body, "the same bytes both times");
            assert_eq!(arrival.header("x-webhook-attempt"), Some("1"));
        }
    }
}

#[tokio::test]
async fn configuration_survives_a_restart() {
    let receiver = Receiver::start().await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    let active = api.create_webhook(&receiver.url_at("on"), json!({"headers": {"x-own": "v"}})).await;
    let disabled = api.create_webhook(&receiver.url_at("off"), json!({})).await;
    api.post(&format!("/v1/webhooks/{}/disable", id(&disabled)), json!({})).await.expect(200);
    let deleted = api.create_webhook(&receiver.url_at("gone"), json!({})).await;
    api.delete(&format!("/v1/webhooks/{}", id(&deleted))).await.expect(204);
    let before = api.get("/v1/webhooks").await.expect(200);
    redrive.restart().await;
    let api = redrive.api();
    assert_eq!(api.get("/v1/webhooks").await.expect(200), before);
    assert_eq!(api.get(&format!("/v1/webhooks/{}", id(&deleted))).await.status, 404);
    let event = api.publish("order.created", json!({})).await;
    assert_eq!(event["deliveries"], 1);
    let delivery = wait_for_event_status(&api, &event, "delivered").await;
    assert_eq!(delivery["webhook_id"], active["id"]);
    let arrivals = receiver.arrivals();
    assert_eq!((arrivals.len(), &*arrivals[0].path), (1, "/on"));
    assert_eq!(arrivals[0].header("x-own"), Some("v"));
}

#[tokio::test]
async fn keys_survive_a_restart_and_revoked_ones_stay_rejected() {
    let mut redrive = Redrive::start().await;
    let admin = redrive.api();
    admin.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let mut keys = Vec::new();
    for name in ["kept", "revoked"] {
        keys.push(admin.post("/v1/tenants/acme/api-keys", json!({"name": name})).await.expect(201));
    }
    let second_admin = admin.post("/v1/admin-keys", json!({"name": "ops"})).await.expect(201);
    let allowed = |api: &Api, key: &Value| {
        let api = api.with_key(text(&key["key"]));
        async move { api.get("/v1/webhooks").await.status }
    };
    assert_eq!((allowed(&admin, &keys[0]).await, allowed(&admin, &keys[1]).await), (200, 200));
    let path = format!("/v1/tenants/acme/api-keys/{}", id(&keys[1]));
    admin.delete(&path).await.expect(204);
    assert_eq!(allowed(&admin, &keys[1]).await, 401, "a revocation applies immediately");
    assert_eq!(admin.delete(&path).await.status, 404);

    redrive.restart().await;
    let admin = redrive.api();
    assert_eq!((allowed(&admin, &keys[0]).await, allowed(&admin, &keys[1]).await), (200, 401));
    assert_eq!(admin.with_key(text(&second_admin["key"])).get("/v1/tenants/acme").await.status, 200);
    let listed = admin.get("/v1/tenants/acme/api-keys").await;
    assert!(!String::from_utf8_lossy(&listed.body).contains("rdk_"), "keys are shown once");
    let revoked: Vec<_> =
        entries(&listed.expect(200)).iter().map(|key| !key["revoked_at"].is_null()).collect();
    assert_eq!(revoked, [true, false], "newest first");
}

#[tokio::test]
async fn second_process_on_the_same_database_is_refused() {
    let redrive = Redrive::start().await;
    let ended = Setup::new().data_dir(redrive.data_dir()).run_to_end().await;
    let message = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{message}");
    assert!(
        message.contains("in use by another redrive process") && message.contains("--database-url"),
        "{message}"
    );
    assert_eq!(redrive.api().get("/readyz").await.status, 200, "the first process is not affected");
}

/// A small file system, unmounted when dropped.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let options = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "redrive-test"])
            .arg(folder.path())
            .output();
        let mount = mount.expect("no `mount` command here");
        assert!(
            mount.status.success(),
            "a small disk cannot be mounted here, so what a full one does cannot be tested; run this as root \
             (in a container: with --privileged or --cap-add SYS_ADMIN): {}",
            String::from_utf8_lossy(&mount.stderr)
        );
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Occupies this many bytes until the file is removed.
    fn ballast(&self, bytes: usize) -> PathBuf {
        let path = self.path().join("ballast");
        std::fs::write(&path, vec![1; bytes]).unwrap();
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, because the process using it may have only just been killed.
        Command::new("umount").arg("-l").arg(self.folder.path()).status().ok();
    }
}

#[tokio::test]
async fn full_disk_rejects_publishes_and_recovers_by_itself() {
    let disk = SmallDisk::mount("6m");
    let receiver = Receiver::start().await;
    let redrive = Redrive::start_with(Setup::new().data_dir(disk.path())).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let ballast = disk.ballast(3 << 20);

    let mut acked = Vec::new();
    let (mut refused, mut unready) = (0, 0);
    for n in 0..5_000 {
        let event = json!({"event_type": "disk.full", "data": {"n": n, "pad": "x".repeat(4_000)}});
        let response = api.post("/v1/events", event).await;
        match response.status {
            202 => acked.push(id(&response.json()).to_owned()),
            _ => {
                assert_eq!(
                    (response.status, &*response.problem()),
                    (503, "store_unavailable"),
                    "{response:?}"
                );
                assert!(response.header("retry-after").is_some());
                refused += 1;
                // A last small write may still succeed where a larger one does not.
                let ready = api.get("/readyz").await;
                unready += usize::from(ready.status == 503 && ready.problem() == "store_unavailable");
            }
        }
        if refused >= 20 && unready >= 3 {
            break;
        }
    }
    assert!(refused >= 20, "the disk was never full: {} events were accepted", acked.len());
    assert!(unready >= 3, "ready although {refused} publishes in a row were refused");
    assert!(!acked.is_empty());
    assert_eq!(api.get("/healthz").await.status, 200, "alive");
    assert!(api.get("/v1/events").await.status < 500, "stored data can still be read");

    std::fs::remove_file(ballast).unwrap();
    let started = std::time::Instant::now();
    while api.get("/readyz").await.status != 200 {
        assert!(started.elapsed() < redrive_testkit::WAIT_TIMEOUT, "the server does not recover");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let after = api.publish("disk.healed", json!({})).await;
    acked.push(id(&after).to_owned());
    for event in &acked {
        wait_for_event_status(&api, &json!({"id": event}), "delivered").await;
    }
    // No rejected event was delivered, and no acknowledged one is missing.
    let arrived: HashSet<_> =
        receiver.arrivals().iter().map(|arrival| arrival.webhook_id().to_owned()).collect();
    assert_eq!(arrived, acked.iter().cloned().collect());
    assert_eq!(receiver.count(), acked.len(), "outcomes that could not be stored were kept, not sent again");
    println!("disk full: {} acknowledged and delivered, {refused} refused", acked.len());
}

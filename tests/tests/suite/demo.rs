//! `redrive demo`, started as a new user would, and tested from outside.

use std::path::Path;

use redrive_testkit::{Api, Redrive, Setup};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Starts the demo with this home, which also contains its temporary folders; returns a client with the key of its
/// link.
async fn start(folder: &Path, arguments: &[&str]) -> (Redrive, Api) {
    let temporary = folder.join("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut setup = Setup::new().command("demo").without_database_url().data_dir(folder);
    for argument in arguments {
        setup = setup.arg(*argument);
    }
    // Settings of a real installation, which the demo ignores.
    let setup = setup
        .env("REDRIVE_DATABASE_URL", "sqlite:redrive-data/redrive.db")
        .env("REDRIVE_ARCHIVE_URL", "archive")
        .env("REDRIVE_NO_SUCH_SETTING", "1");
    let redrive = Redrive::start_with(setup.env("TMPDIR", temporary.to_str().unwrap())).await;
    redrive.wait_output("Dashboard: ").await;
    let key = key_in(&redrive.output(), &redrive);
    let api = redrive.api().with_key(&key);
    (redrive, api)
}

#[tokio::test]
async fn demo_uses_settings_of_the_environment_that_concern_no_real_installation() {
    let folder = TempDir::new().unwrap();
    let demo = || Setup::new().command("demo").without_database_url().data_dir(folder.path());
    let setup = demo()
        .env("REDRIVE_EVENTS_MAX_PAYLOAD_BYTES", "4096")
        .env("REDRIVE_EGRESS_ALLOW_HTTP", "false")
        .env("REDRIVE_DATABASE_URL", "sqlite:real/redrive.db");
    let redrive = Redrive::start_with(setup).await;
    redrive.wait_output("Dashboard: ").await;
    let output = redrive.output();
    assert!(output.contains("Settings from the environment: REDRIVE_EVENTS_MAX_PAYLOAD_BYTES\n"), "{output}");
    let ignored = output.lines().find(|line| line.starts_with("Ignored by the demo: ")).unwrap();
    for name in ["REDRIVE_ADMIN_KEY", "REDRIVE_DATABASE_URL", "REDRIVE_EGRESS_ALLOW_HTTP"] {
        assert!(ignored.contains(name), "{ignored}");
    }
    let api = redrive.api().with_key(&key_in(&output, &redrive));
    let event = |bytes: usize| json!({"event_type": "order.created", "data": {"note": "x".repeat(bytes)}, "tenant_id": "globex"});
    assert_eq!(api.post("/v1/events", event(5_000)).await.status, 413);
    at_least(&api, 1, "/v1/deliveries?status=delivered").await;
    assert!(!folder.path().join("real").exists());

    let invalid = demo().env("REDRIVE_EVENTS_MAX_PAYLOAD_BYTES", "many").run_to_end().await;
    let message = String::from_utf8_lossy(&invalid.stderr);
    assert!(!invalid.status.success() && message.contains("events.max_payload_bytes: "), "{message}");
}

/// Returns the key in the link that the latest start printed last.
fn key_in(output: &str, redrive: &Redrive) -> String {
    let start = format!("Dashboard: http://{}/dashboard/login#", redrive.address());
    let key = output.lines().last().unwrap().strip_prefix(&start);
    key.unwrap_or_else(|| panic!("{output}")).to_owned()
}

fn entries(page: &Value) -> &[Value] {
    page["data"].as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string"))
}

/// Returns a tenant's webhook by name.
async fn webhook(api: &Api, tenant: &str, name: &str) -> Value {
    let page = api.get(&format!("/v1/webhooks?tenant_id={tenant}")).await.expect(200);
    let found = entries(&page).iter().find(|webhook| webhook["metadata"]["demo"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {page}")).clone()
}

/// Waits until a listing has at least `count` entries, and returns it.
async fn at_least(api: &Api, count: usize, path: &str) -> Value {
    api.wait_until(path, path, |page| entries(page).len() >= count).await
}

fn folders(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("tmp")).unwrap().count()
}

#[tokio::test]
async fn demo_has_traffic_within_seconds() {
    let folder = TempDir::new().unwrap();
    let (mut redrive, api) = start(folder.path(), &[]).await;
    let output = redrive.output();
    assert!(output.contains("This is a demo"), "{output}");
    assert_eq!(folders(folder.path()), 1);
    assert!(!folder.path().join("redrive-data").exists() && !folder.path().join("archive").exists());
    assert_eq!(redrive.api().get("/v1/webhooks").await.status, 401, "the key is the demo's own");

    for tenant in ["default", "acme", "globex"] {
        at_least(&api, 5, &format!("/v1/deliveries?tenant_id={tenant}&status=delivered")).await;
        at_least(&api, 1, &format!("/v1/deliveries?tenant_id={tenant}&status=failed")).await;
        let types = api.get(&format!("/v1/event-types?tenant_id={tenant}")).await.expect(200);
        assert!(entries(&types).len() >= 2, "{types}");
        for known in entries(&types) {
            assert!(known["schema"].is_object() && known["example"].is_object(), "{known}");
        }
    }
    at_least(&api, 1, "/v1/deliveries?status=pending").await;
    at_least(&api, 1, "/v1/deliveries?failure_category=rate_limit").await;
    at_least(&api, 1, "/v1/deliveries?failure_category=network").await;
    // The warehouse is down at first: events published then are dead after three attempts.
    let warehouse = webhook(&api, "acme", "acme-warehouse").await;
    at_least(&api, 3, &format!("/v1/dlq?tenant_id=acme&webhook_id={}", text(&warehouse["id"]))).await;
    let legacy = webhook(&api, "default", "legacy-erp").await;
    let health = format!("/v1/webhooks/{}/health", text(&legacy["id"]));
    api.wait_until("an open circuit", &health, |health| health["circuit"]["state"] == "open").await;
    let staging = webhook(&api, "acme", "acme-staging").await;
    assert_eq!(staging["state"], "paused", "{staging}");
    let limited = webhook(&api, "default", "partner-api").await;
    assert!(text(&limited["url"]).starts_with("http://127.0.0.1:"), "{limited}");

    // The responses of the hostile endpoint are stored unchanged.
    let hostile = webhook(&api, "default", "chat-bot").await;
    let dead = at_least(&api, 1, &format!("/v1/dlq?webhook_id={}", text(&hostile["id"]))).await;
    let attempts = format!("/v1/deliveries/{}/attempts", text(&entries(&dead)[0]["id"]));
    let attempts = api.get(&attempts).await.expect(200).to_string();
    assert!(attempts.contains("<script>") && attempts.contains("x-note"), "{attempts}");

    // Publishing continues after the initial events, which are eight of each type.
    at_least(&api, 2 * 8 + 1, "/v1/events?tenant_id=globex&limit=100").await;
    redrive.signal("INT");
    let status = redrive.wait_exit(redrive_testkit::WAIT_TIMEOUT).await;
    assert!(status.success(), "{status}");
    assert_eq!(folders(folder.path()), 0, "nothing is left behind");
    let output = redrive.output();
    assert!(!output.contains("WARN") && !output.contains("ERROR"), "{output}");
}

#[tokio::test]
async fn demo_starts_empty_unless_a_folder_is_given() {
    let folder = TempDir::new().unwrap();
    let (one, api) = start(folder.path(), &["--rate", "1"]).await;
    let (other, others) = start(folder.path(), &["--rate", "1"]).await;
    assert_eq!(folders(folder.path()), 2, "each demo has its own data");
    assert_eq!(one.api().with_key(&key_in(&other.output(), &other)).get("/v1/webhooks").await.status, 401);
    let ids = [webhook(&api, "default", "crm").await, webhook(&others, "default", "crm").await];
    assert_ne!(ids[0]["id"], ids[1]["id"]);
    drop((one, other));

    let (mut kept, api) = start(folder.path(), &["--rate", "1", "--data", "kept"]).await;
    kept.wait_output("kept for the next demo").await;
    let first = webhook(&api, "acme", "acme-erp").await;
    let event = at_least(&api, 1, "/v1/events?tenant_id=acme").await;
    let event = format!("/v1/events/{}?tenant_id=acme", text(&entries(&event)[0]["id"]));
    kept.signal("TERM");
    assert!(kept.wait_exit(redrive_testkit::WAIT_TIMEOUT).await.success());
    let (_again, again) = start(folder.path(), &["--rate", "1", "--data", "kept"]).await;
    let second = webhook(&again, "acme", "acme-erp").await;
    assert_eq!(first["id"], second["id"], "the demo continues with the stored data");
    assert_ne!(first["url"], second["url"], "the receivers are elsewhere");
    assert_eq!(again.get(&event).await.status, 200, "{event}");
    let all = again.get("/v1/webhooks?tenant_id=acme").await.expect(200);
    assert_eq!(entries(&all).len(), 3, "{all}");
    let acme = format!("/v1/deliveries?tenant_id=acme&webhook_id={}&status=delivered", text(&second["id"]));
    at_least(&again, 1, &acme).await;
}

#[tokio::test]
async fn demo_does_not_touch_other_data() {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("redrive-data")).unwrap();
    std::fs::write(folder.path().join("redrive-data/redrive.db"), "mine").unwrap();
    let refused = async |arguments: [&str; 2]| {
        let mut setup = Setup::new().command("demo").without_database_url().data_dir(folder.path());
        if arguments[0] == "--listen" {
            setup = setup.listen(arguments[1]);
        } else {
            setup = setup.arg(arguments[0]).arg(arguments[1]);
        }
        let output = setup.run_to_end().await;
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let message = refused(["--data", "redrive-data"]).await;
    assert!(message.contains("name a new folder"), "{message}");
    assert_eq!(std::fs::read_dir(folder.path().join("redrive-data")).unwrap().count(), 1);
    assert!(refused(["--listen", "0.0.0.0:0"]).await.contains("loopback"));
    assert!(refused(["--rate", "0"]).await.contains("--rate"));
}

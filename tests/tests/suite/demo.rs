//! `redrive demo`, started as a curious person would, and looked at from outside.

use std::{path::Path, time::Duration};

use redrive_testkit::{Api, Redrive, Setup};
use serde_json::Value;
use tempfile::TempDir;

/// The demo in this home, whose temporary folders are below it, and a client with the key of its link.
async fn start(home: &Path, arguments: &[&str]) -> (Redrive, Api) {
    let temporary = home.join("tmp");
    std::fs::create_dir_all(&temporary).unwrap();
    let mut setup = Setup::new().command("demo").own_database().data_dir(home);
    for argument in arguments {
        setup = setup.arg(*argument);
    }
    // Settings of a real installation, none of which may count.
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

/// The key in the link that the output of the latest start ends with.
fn key_in(output: &str, redrive: &Redrive) -> String {
    let start = format!("Dashboard: http://{}/dashboard/login#", redrive.address());
    let key = output.lines().last().unwrap().strip_prefix(&start);
    key.unwrap_or_else(|| panic!("{output}")).to_owned()
}

fn entries(page: &Value) -> &[Value] {
    page["data"].as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// The webhook of this name of a tenant.
async fn webhook(api: &Api, tenant: &str, name: &str) -> Value {
    let page = api.get(&format!("/v1/webhooks?tenant_id={tenant}")).await.expect(200);
    let found = entries(&page).iter().find(|webhook| webhook["metadata"]["demo"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {page}")).clone()
}

/// Waits until a listing has at least so many entries, and gives it.
async fn at_least(api: &Api, count: usize, path: &str) -> Value {
    api.eventually(path, path, |page| entries(page).len() >= count).await
}

fn folders(home: &Path) -> usize {
    std::fs::read_dir(home.join("tmp")).unwrap().count()
}

#[tokio::test]
async fn a_demo_is_alive_within_seconds() {
    let home = TempDir::new().unwrap();
    let (mut redrive, api) = start(home.path(), &[]).await;
    let output = redrive.output();
    assert!(output.contains("This is a demo"), "{output}");
    assert_eq!(folders(home.path()), 1);
    assert!(!home.path().join("redrive-data").exists() && !home.path().join("archive").exists());
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
    // The warehouse is down at first: what was published then dies after three attempts.
    let warehouse = webhook(&api, "acme", "acme-warehouse").await;
    at_least(&api, 3, &format!("/v1/dlq?tenant_id=acme&webhook_id={}", text(&warehouse["id"]))).await;
    let legacy = webhook(&api, "default", "legacy-erp").await;
    let health = format!("/v1/webhooks/{}/health", text(&legacy["id"]));
    api.eventually("an open circuit", &health, |health| health["circuit"]["state"] == "open").await;
    let staging = webhook(&api, "acme", "acme-staging").await;
    assert_eq!(staging["state"], "paused", "{staging}");
    let limited = webhook(&api, "default", "partner-api").await;
    assert!(text(&limited["url"]).starts_with("http://127.0.0.1:"), "{limited}");

    // What the hostile one answered is kept as it is.
    let hostile = webhook(&api, "default", "chat-bot").await;
    let dead = at_least(&api, 1, &format!("/v1/dlq?webhook_id={}", text(&hostile["id"]))).await;
    let attempts = format!("/v1/deliveries/{}/attempts", text(&entries(&dead)[0]["id"]));
    let attempts = api.get(&attempts).await.expect(200).to_string();
    assert!(attempts.contains("<script>") && attempts.contains("x-note"), "{attempts}");

    // The stream goes on after the opening, which is eight of each kind.
    at_least(&api, 2 * 8 + 1, "/v1/events?tenant_id=globex&limit=100").await;
    redrive.signal("INT");
    let status = redrive.wait_exit(Duration::from_secs(10)).await;
    assert!(status.success(), "{status}");
    assert_eq!(folders(home.path()), 0, "nothing is left behind");
    let output = redrive.output();
    assert!(!output.contains("WARN") && !output.contains("ERROR"), "{output}");
}

#[tokio::test]
async fn a_demo_is_fresh_each_time_unless_its_folder_is_named() {
    let home = TempDir::new().unwrap();
    let (one, api) = start(home.path(), &["--rate", "1"]).await;
    let (other, others) = start(home.path(), &["--rate", "1"]).await;
    assert_eq!(folders(home.path()), 2, "each has its own");
    assert_eq!(one.api().with_key(&key_in(&other.output(), &other)).get("/v1/webhooks").await.status, 401);
    let ids = [webhook(&api, "default", "crm").await, webhook(&others, "default", "crm").await];
    assert_ne!(ids[0]["id"], ids[1]["id"]);
    drop((one, other));

    let (mut kept, api) = start(home.path(), &["--rate", "1", "--data", "kept"]).await;
    kept.wait_output("is kept in ").await;
    let first = webhook(&api, "acme", "acme-erp").await;
    let event = at_least(&api, 1, "/v1/events?tenant_id=acme").await;
    let event = format!("/v1/events/{}?tenant_id=acme", text(&entries(&event)[0]["id"]));
    kept.signal("TERM");
    assert!(kept.wait_exit(Duration::from_secs(10)).await.success());
    let (_again, again) = start(home.path(), &["--rate", "1", "--data", "kept"]).await;
    let second = webhook(&again, "acme", "acme-erp").await;
    assert_eq!(first["id"], second["id"], "it goes on with what is there");
    assert_ne!(first["url"], second["url"], "the receivers are elsewhere");
    assert_eq!(again.get(&event).await.status, 200, "{event}");
    let all = again.get("/v1/webhooks?tenant_id=acme").await.expect(200);
    assert_eq!(entries(&all).len(), 3, "{all}");
    let acme = format!("/v1/deliveries?tenant_id=acme&webhook_id={}&status=delivered", text(&second["id"]));
    at_least(&again, 1, &acme).await;
}

#[tokio::test]
async fn a_demo_leaves_the_data_of_others_alone() {
    let home = TempDir::new().unwrap();
    std::fs::create_dir(home.path().join("redrive-data")).unwrap();
    std::fs::write(home.path().join("redrive-data/redrive.db"), "mine").unwrap();
    let refused = async |arguments: [&str; 2]| {
        let mut setup = Setup::new().command("demo").own_database().data_dir(home.path());
        if arguments[0] == "--listen" {
            setup = setup.listen(arguments[1]);
        } else {
            setup = setup.arg(arguments[0]).arg(arguments[1]);
        }
        let output = setup.run_to_end().await;
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(["--data", "redrive-data"]).await;
    assert!(said.contains("name a new folder"), "{said}");
    assert_eq!(std::fs::read_dir(home.path().join("redrive-data")).unwrap().count(), 1);
    assert!(refused(["--listen", "0.0.0.0:0"]).await.contains("loopback"));
    assert!(refused(["--rate", "0"]).await.contains("--rate"));
}

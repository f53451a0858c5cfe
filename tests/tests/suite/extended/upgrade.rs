//! Upgrades: the databases of every released version are opened, migrated and used by this version.
//!
//! `tests/fixtures/VERSION` has the databases of a release, made by its own binary. `WRITE_FIXTURE=1` lets
//! [`databases_of_this_version_are_kept`] write those of this version, once, when it is released.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redrive_testkit::{Api, MovableClock, Postgres, ReceivedRequest, Receiver, Redrive, Reply, Setup};
use redrive_tests::{entries, id, text, wait_for_status};
use serde_json::{Value, json};

/// Set to write the databases of this version.
const WRITE: &str = "WRITE_FIXTURE";
/// How long a server may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);
const STORES: [&str; 2] = ["sqlite", "postgres"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn fixture_of(version: &str, store: &str) -> PathBuf {
    fixtures().join(version).join(store)
}

/// Runs a program with these files as its input and output. Panics if it fails.
fn pipe(program: &str, args: &[&str], input: Option<&Path>, output: Option<&Path>) {
    let mut command = Command::new(program);
    command.args(args);
    if let Some(path) = input {
        command.stdin(fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    }
    match output {
        Some(path) => command.stdout(fs::File::create(path).unwrap()),
        None => command.stdout(Stdio::null()),
    };
    assert!(
        command.status().unwrap_or_else(|error| panic!("{program}: {error}")).success(),
        "{program} failed"
    );
}

fn unix_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().try_into().unwrap()
}

/// Returns whether the request has the signature of the official library. Its check of the time would fail, since the time is
/// that of the fixture.
fn is_signed(secret: &str, arrival: &ReceivedRequest) -> bool {
    let timestamp = arrival.header("webhook-timestamp").unwrap().parse().unwrap();
    let webhook = standardwebhooks::Webhook::new(secret).unwrap();
    let expected = webhook.sign(arrival.webhook_id(), timestamp, &arrival.body).unwrap();
    arrival.header("webhook-signature") == Some(&expected)
}

/// Fills a new installation with objects of the kinds that a later version must keep, and returns what it has to find.
async fn fill(admin: &Api) -> Value {
    let receiver = Receiver::with(|arrival| match arrival.path.as_str() {
        "/gone" => Reply::status(404),
        "/failing" => Reply::status(500),
        _ => Reply::status(200),
    })
    .await;
    admin.post("/v1/tenants", json!({"id": "acme", "name": "Acme"})).await.expect(201);
    let key = admin.post("/v1/tenants/acme/api-keys", json!({"scopes": ["publish", "read", "manage"]})).await;
    let key = key.expect(201);
    let api = admin.with_key(text(&key["key"]));
    let schema =
        json!({"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}});
    api.post("/v1/event-types", json!({"name": "order.created", "schema": schema})).await.expect(201);

    let webhook = async |name: &str, extra: Value| {
        let mut body = json!({"description": name, "events": ["order.*"]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        api.create_webhook(&receiver.url_at(&format!("/{name}")), body).await
    };
    let slow_retry = json!({"schedule": [0, 3600]});
    let webhooks = json!({
        "healthy": webhook("healthy", json!({"metadata": {"team": "a"}, "headers": {"x-team": "a"},
            "filter": {"path": "/order", "gte": 0}})).await,
        "gone": webhook("gone", json!({})).await,
        "failing": webhook("failing", json!({"retry_config": slow_retry})).await,
        "paused": webhook("paused", json!({"ordering_guarantee": "strict"})).await,
    });
    api.post(&format!("/v1/webhooks/{}/pause", id(&webhooks["paused"])), json!({})).await.expect(200);
    let mut events = Vec::new();
    for order in 0..3 {
        let body = json!({"event_type": "order.created", "data": {"order": order}, "subject": "order-1",
            "idempotency_key": format!("key-{order}")});
        events.push(api.post("/v1/events", body).await.expect(202));
    }
    // Each event: one delivery is delivered, one dead, one waits for a retry, one for the paused webhook.
    let statuses = ["dead", "delivered", "pending", "pending"];
    for event in &events {
        let path = format!("/v1/events/{}/deliveries", id(event));
        api.wait_until("all but two have ended", &path, |page| {
            let mut found: Vec<_> = entries(page).iter().map(|one| text(&one["status"]).to_owned()).collect();
            found.sort();
            found == statuses
                && entries(page).iter().all(|one| one["waiting_on"] == "paused" || one["attempt_count"] == 1)
        })
        .await;
    }
    // It matches no delivery, so it ends immediately.
    let selection = json!({"filter": {"event_types": ["order.unknown"]}});
    let operation = api.post("/v1/dlq/retry-batch", selection).await.expect(202);
    let path = format!("/v1/dlq/batch-operations/{}", id(&operation));
    api.wait_until("the operation has ended", &path, |operation| operation["status"] == "completed").await;
    let preferences = json!({"muted_kinds": ["dns.failing"], "language": "de"});
    api.patch("/v1/notification-preferences", preferences).await.expect(200);
    let session = json!({"tenant_id": "acme", "expires_in": 86_400});
    let session = admin.post("/v1/portal-sessions", session).await.expect(201);
    json!({"key": key["key"], "session": session["token"], "operation": operation["id"], "webhooks": webhooks, "events": events, "unix_seconds": unix_seconds()})
}

/// Checks that a later version has everything that [`fill`] made, and that it delivers what waited.
async fn check(api: &Api, expected: &Value) {
    let receiver = Receiver::start().await;
    assert_eq!(entries(&api.get("/v1/webhooks").await.expect(200)).len(), 4);
    let events = entries(&api.get("/v1/events?subject=order-1").await.expect(200));
    assert_eq!(events.len(), 3);
    let dead = entries(&api.get("/v1/dlq").await.expect(200));
    assert_eq!(dead.len(), 3, "{dead:?}");
    let event = &expected["events"][0];
    let attempts = entries(&api.get(&format!("/v1/events/{}/attempts", id(event))).await.expect(200));
    assert_eq!(attempts.len(), 3, "delivered, dead and failed once");
    let operation = format!("/v1/dlq/batch-operations/{}", text(&expected["operation"]));
    assert_eq!(api.get(&operation).await.expect(200)["status"], "completed");
    let preferences = api.get("/v1/notification-preferences").await.expect(200);
    assert_eq!(preferences["muted_kinds"], json!(["dns.failing"]));
    assert_eq!(preferences["language"], "de");
    let portal = api.with_key(text(&expected["session"]));
    assert_eq!(entries(&portal.get("/v1/webhooks").await.expect(200)).len(), 4, "the session is valid");
    // The idempotency window and the schema of the event type are still in force.
    let body = json!({"event_type": "order.created", "data": {"order": 0}, "subject": "order-1", "idempotency_key": "key-0"});
    let repeated = api.post("/v1/events", body).await.expect(200);
    assert_eq!((&repeated["id"], &repeated["duplicate"]), (&event["id"], &json!(true)));
    let invalid = json!({"event_type": "order.created", "data": {"order": "one"}});
    assert_eq!(api.post("/v1/events", invalid).await.status, 400);

    let webhooks = &expected["webhooks"];
    for (name, webhook) in webhooks.as_object().unwrap() {
        let mut change = json!({"url": receiver.url_at(&format!("/{name}"))});
        // Custom headers must be given again with another address.
        if name == "healthy" {
            change["headers"] = json!({"x-team": "b"});
        }
        api.patch(&format!("/v1/webhooks/{}", id(webhook)), change).await.expect(200);
    }
    api.post(&format!("/v1/webhooks/{}/resume", id(&webhooks["paused"])), json!({})).await.expect(200);
    for letter in &dead {
        api.post(&format!("/v1/deliveries/{}/retry", id(letter)), json!({})).await.expect(202);
    }
    let failing = format!("/v1/webhooks/{}/deliveries", id(&webhooks["failing"]));
    for delivery in entries(&api.get(&failing).await.expect(200)) {
        api.post(&format!("/v1/deliveries/{}/retry", id(&delivery)), json!({})).await.expect(202);
        wait_for_status(api, id(&delivery), "delivered").await;
    }
    // Three events to the paused, the failing and the gone webhook.
    let arrivals = receiver.wait_for(9).await;
    for arrival in &arrivals {
        let secret = text(&webhooks[arrival.path.trim_start_matches('/')]["secret"]);
        assert!(is_signed(secret, arrival), "{arrival:?}");
    }
    let in_order: Vec<_> =
        arrivals.iter().filter(|one| one.path == "/paused").map(|one| one.webhook_id()).collect();
    let published: Vec<_> = expected["events"].as_array().unwrap().iter().map(id).collect();
    assert_eq!(in_order, published, "the order of a strict webhook is kept");
    api.wait_until("no dead letter is left", "/v1/dlq", |page| entries(page).is_empty()).await;

    // New events go to all four webhooks, except those that a filter refuses.
    let event = api.publish("order.created", json!({"order": -1})).await;
    assert_eq!(event["deliveries"], 3);
    let event = api.publish("order.created", json!({"order": 4})).await;
    assert_eq!(event["deliveries"], 4);
    receiver.wait_for(16).await;
}

/// Starts a server on a database that `clock` is right for.
async fn start(clock: &MovableClock, postgres: Option<&Postgres>, folder: &Path) -> Redrive {
    // The databases do not contain the name of the machine that wrote them.
    let setup = Setup::new().data_dir(folder).clock(clock).env("REDRIVE_NODE", "node");
    Redrive::start_with(match postgres {
        Some(postgres) => setup.database_url(postgres.url()),
        None => setup,
    })
    .await
}

async fn open_fixture(version: &str, store: &str) {
    let source = fixture_of(version, store);
    let expected: Value =
        serde_json::from_str(&fs::read_to_string(source.with_extension("json")).unwrap()).unwrap();
    // A minute later than the database was made, whatever the time is now.
    let clock = MovableClock::new();
    clock.set_offset_seconds(expected["unix_seconds"].as_i64().unwrap() + 60 - unix_seconds());
    let folder = tempfile::tempdir().unwrap();
    let packed = source.with_extension("gz");
    let postgres = match store {
        "sqlite" => {
            pipe("gzip", &["-dc"], Some(&packed), Some(&folder.path().join("redrive.db")));
            None
        }
        _ => {
            let postgres = Postgres::start_with_clock(&clock).await;
            let dump = folder.path().join("dump.sql");
            pipe("gzip", &["-dc"], Some(&packed), Some(&dump));
            let url = postgres.url();
            let args = ["--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--dbname", &url];
            pipe("psql", &args, Some(&dump), None);
            Some(postgres)
        }
    };
    let redrive = start(&clock, postgres.as_ref(), folder.path()).await;
    check(&redrive.api().with_key(text(&expected["key"])), &expected).await;
    drop(redrive);
}

/// Writes the database of this version, if it was asked for, and its description.
async fn write_fixture(version: &str, store: &str) {
    let (clock, folder) = (MovableClock::new(), tempfile::tempdir().unwrap());
    let postgres = match store {
        "sqlite" => None,
        _ => Some(Postgres::start_with_clock(&clock).await),
    };
    let mut redrive = start(&clock, postgres.as_ref(), folder.path()).await;
    let expected = fill(&redrive.api()).await;
    redrive.signal("TERM");
    assert!(redrive.wait_exit(EXIT_TIMEOUT).await.success(), "{}", redrive.output());
    let plain = folder.path().join("plain");
    match &postgres {
        None => {
            let url = format!("sqlite:{}", folder.path().join("redrive.db").display());
            let binary = redrive_testkit::binary();
            let target = plain.display().to_string();
            pipe(binary.to_str().unwrap(), &["backup", &target, "--database-url", &url], None, None);
        }
        Some(postgres) => {
            pipe(
                "pg_dump",
                &["--no-owner", "--no-privileges", "--dbname", &postgres.url()],
                None,
                Some(&plain),
            );
            // Commands of the newest clients, which older ones do not know.
            let dump = fs::read_to_string(&plain).unwrap();
            let is_portable =
                |line: &&str| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict");
            let lines: Vec<_> = dump.lines().filter(is_portable).collect();
            fs::write(&plain, lines.join("\n") + "\n").unwrap();
        }
    }
    let target = fixture_of(version, store);
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    pipe("gzip", &["-9n"], Some(&plain), Some(&target.with_extension("gz")));
    fs::write(target.with_extension("json"), format!("{expected:#}\n")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_of_this_version_are_kept() {
    let version = env!("CARGO_PKG_VERSION");
    for store in STORES {
        if std::env::var_os(WRITE).is_some() {
            write_fixture(version, store).await;
        }
        let path = fixture_of(version, store).with_extension("gz");
        assert!(
            path.exists(),
            "{} does not exist; run this test with {WRITE}=1 before the release",
            path.display()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn databases_of_all_released_versions_are_migrated_and_used() {
    // Beside the folders of the versions are files of other tests.
    let entries = fs::read_dir(fixtures()).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut versions: Vec<_> = folders.map(|entry| entry.file_name()).collect();
    versions.sort();
    assert!(!versions.is_empty());
    for version in versions {
        for store in STORES {
            open_fixture(version.to_str().unwrap(), store).await;
        }
    }
}

//! Acknowledged events survive: with a database server that is configured not to wait for its disk, and with a
//! database file that is removed or replaced while in use.

use std::{collections::BTreeSet, fs, path::Path, time::Instant};

use redrive_testkit::{Api, Postgres, Receiver, Redrive, Setup, WAIT_TIMEOUT};
use redrive_tests::{entries, text};
use serde_json::json;

/// Returns the setup of a server on PostgreSQL that refuses a database without durability.
fn strict(url: String) -> Setup {
    Setup::new().database_url(url).env("REDRIVE_DATABASE_ALLOW_UNSAFE_DURABILITY", "false")
}

#[tokio::test(flavor = "multi_thread")]
async fn events_survive_a_kill_of_a_server_with_asynchronous_commits() {
    let mut postgres = Postgres::start().await;
    postgres.execute("ALTER ROLE redrive SET synchronous_commit = off").await;
    // Asynchronous commits stay in memory for this long, so that a killed server certainly loses them.
    postgres.execute("ALTER SYSTEM SET wal_writer_delay = '10s'").await;
    postgres.restart().await;
    assert_eq!(postgres.query("SHOW synchronous_commit").await, [["off"]]);
    let redrive = Redrive::start_with(strict(postgres.url())).await;
    let mut acknowledged = BTreeSet::new();
    for n in 0..50 {
        let event = redrive.api().publish("order.created", json!({"n": n})).await;
        acknowledged.insert(text(&event["id"]).to_owned());
    }
    postgres.kill().await;
    postgres.start_again().await;
    redrive
        .api()
        .wait_until("the store is available again", "/v1/status", |status| status["store"]["state"] == "up")
        .await;
    let stored = postgres.query("SELECT count(*) FROM events").await;
    assert_eq!(stored, [[acknowledged.len().to_string()]]);
    let status = redrive.api().get("/v1/status").await.expect(200);
    let expected = json!({"synchronous_commit": "on", "fsync": true, "full_page_writes": true});
    assert_eq!(status["store"]["durability"], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_fsync_is_refused_unless_allowed() {
    let postgres = Postgres::start().await;
    postgres.execute("ALTER SYSTEM SET fsync = off").await;
    postgres.execute("SELECT pg_reload_conf()").await;
    let started = Instant::now();
    while postgres.query("SHOW fsync").await != [["off"]] {
        assert!(started.elapsed() < WAIT_TIMEOUT, "the server does not reload its settings");
    }
    let ended = strict(postgres.url()).run_to_end().await;
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{error}");
    for part in ["fsync is off", "ALTER SYSTEM SET fsync = on", "database.allow_unsafe_durability = true"] {
        assert!(error.contains(part), "{error}");
    }
    let allowed = strict(postgres.url()).env("REDRIVE_DATABASE_ALLOW_UNSAFE_DURABILITY", "true");
    let redrive = Redrive::start_with(allowed).await;
    let status = redrive.api().get("/v1/status").await.expect(200);
    let codes: Vec<_> =
        status["findings"].as_array().unwrap().iter().map(|finding| finding["code"].clone()).collect();
    assert!(codes.contains(&json!("unsafe_durability")), "{status}");
}

/// Publishes until a publish is rejected; panics after `WAIT_TIMEOUT`. Returns the ids acknowledged before.
async fn publish_until_refused(api: &Api) -> (BTreeSet<String>, String) {
    let (mut acknowledged, started) = (BTreeSet::new(), Instant::now());
    loop {
        let response = api.post("/v1/events", json!({"event_type": "order.created", "data": {}})).await;
        match response.status {
            202 => drop(acknowledged.insert(text(&response.json()["id"]).to_owned())),
            status => {
                assert_eq!(status, 503, "{}", response.json());
                return (acknowledged, response.problem());
            }
        }
        assert!(started.elapsed() < WAIT_TIMEOUT, "publishing is not refused");
    }
}

/// Runs a server, damages its database file, and asserts that nothing is acknowledged from then on.
async fn nothing_is_acknowledged_after(what_happens: fn(&Path), expected: &str) {
    let (mut redrive, receiver) = (Redrive::start().await, Receiver::start().await);
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({})).await;
    api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    let path = redrive.data_dir().join("redrive.db");
    what_happens(&path);
    let (acknowledged, problem) = publish_until_refused(&api).await;
    assert_eq!((acknowledged.len(), &*problem), (0, "store_unavailable"), "{acknowledged:?}");
    let ready = api.get("/readyz").await;
    let detail = text(&ready.json()["detail"]).to_owned();
    assert_eq!(ready.status, 503, "{detail}");
    for part in ["redrive.db", expected, "restart redrive"] {
        assert!(detail.contains(part), "{detail}");
    }
    redrive.wait_output("publishing and sending are stopped").await;
    assert_eq!(receiver.arrivals().len(), 1, "nothing more is sent");
    // The server does not recover by itself: its memory no longer matches the file.
    assert_eq!(api.post("/v1/events", json!({"event_type": "a.b", "data": {}})).await.status, 503);
    redrive.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_database_file_stops_publishing() {
    nothing_is_acknowledged_after(|path| fs::remove_file(path).unwrap(), "was removed or moved").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_database_file_stops_publishing() {
    let replace = |path: &Path| {
        let other = path.with_extension("other");
        fs::copy(path, &other).unwrap();
        fs::rename(&other, path).unwrap();
    };
    nothing_is_acknowledged_after(replace, "was replaced by another file").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_write_ahead_log_stops_publishing() {
    let remove = |path: &Path| fs::remove_file(path.with_file_name("redrive.db-wal")).unwrap();
    nothing_is_acknowledged_after(remove, "was removed or moved").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_database_file_has_all_acknowledged_events() {
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    let mut acknowledged = BTreeSet::new();
    for n in 0..20 {
        acknowledged.insert(text(&api.publish("order.created", json!({"n": n})).await["id"]).to_owned());
    }
    let (path, aside) = (redrive.data_dir().join("redrive.db"), redrive.data_dir().join("aside.db"));
    fs::rename(&path, &aside).unwrap();
    let (more, _) = publish_until_refused(&api).await;
    assert_eq!(more, BTreeSet::new());
    redrive.kill();
    fs::rename(&aside, &path).unwrap();
    redrive.restart().await;
    let events = entries(&redrive.api().get("/v1/events?limit=100").await.expect(200));
    let stored: BTreeSet<_> = events.iter().map(|event| text(&event["id"]).to_owned()).collect();
    assert!(stored.is_superset(&acknowledged), "acknowledged events are missing");
}

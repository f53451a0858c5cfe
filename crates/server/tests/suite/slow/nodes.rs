//! Nodes on a PostgreSQL database from the operator's side: settings, schema, roles, keys, outages.

use std::{
    process::{Command, Output},
    time::Duration,
};

use redrive_testkit::{Api, Database, Postgres, Proxy, Receiver, Redrive, Setup};
use serde_json::{Value, json};

/// Runs a command with only these settings and returns its output.
async fn redrive(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("REDRIVE_")) {
        command.env_remove(name);
    }
    // The PostgreSQL server shared by the tests runs without fsync.
    command.env("REDRIVE_DATABASE_ALLOW_UNSAFE_DURABILITY", "true");
    command.args(arguments).envs(environment.iter().copied()).current_dir(std::env::temp_dir());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the error output of a command that must fail.
async fn run_failing(arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = redrive(arguments, environment).await;
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    stderr(&output)
}

/// Returns the setup of a node on this database, with few connections because many tests run concurrently.
fn setup_on(database: &Database) -> Setup {
    Setup::new()
        .database_url(database.url())
        .env("REDRIVE_DATABASE_WRITE_CONNECTIONS", "4")
        .env("REDRIVE_DATABASE_READ_CONNECTIONS", "2")
}

/// Waits until a call returns this status.
async fn eventually(api: &Api, path: &str, status: u16, within: Duration) {
    let wait = async {
        while api.get(path).await.status != status {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(within, wait).await;
    assert!(waited.is_ok(), "{path} did not return {status} within {within:?}");
}

#[tokio::test]
async fn invalid_settings_errors_name_the_valid_values() {
    let check = ["config", "check"];
    for (url, mentions) in [
        ("mysql://me:hunter2@db/x", "database.url: must be sqlite:PATH or postgres://"),
        ("postgres://me:hunter2@db/x?sslmode=often", "use disable, prefer, require, verify-ca, verify-full"),
        ("postgres://me:hun/ter2@db/x", "%2F for /"),
    ] {
        let message = run_failing(&check, &[("REDRIVE_DATABASE_URL", url)]).await;
        assert!(message.contains(mentions) && !message.contains("ter2"), "{message}");
    }
    let postgres = ("REDRIVE_DATABASE_URL", "postgres://me@db/x");
    let message =
        run_failing(&check, &[postgres, ("REDRIVE_DATABASE_PASSWORD_FILE", "/nowhere/password")]).await;
    assert!(message.contains("database.password_file: /nowhere/password cannot be read"), "{message}");
    let message = run_failing(&["serve", "--role", "worker", "--database-url", "sqlite:no.db"], &[]).await;
    assert!(
        message.contains("role: is worker, but a SQLite database supports one process only"),
        "{message}"
    );
    let message = run_failing(&check, &[postgres, ("REDRIVE_ROLE", "boss")]).await;
    assert!(message.contains("write all, api or worker"), "{message}");
    let flag = redrive(&["serve", "--role", "boss"], &[]).await;
    assert!(stderr(&flag).contains("possible values: all, api, worker"), "{}", stderr(&flag));
    let message = run_failing(&check, &[postgres, ("REDRIVE_CLUSTER_LEASE", "0.5")]).await;
    assert!(message.contains("cluster.lease: must be from 1s to 5m"), "{message}");
    let message = run_failing(&check, &[postgres, ("REDRIVE_DEV_CLOCK_SKEW", "-5s")]).await;
    assert!(message.contains("dev.clock_skew: must be 0 outside `redrive dev`"), "{message}");
}

#[tokio::test]
async fn settings_are_shown_without_passwords() {
    let environment = [
        ("REDRIVE_DATABASE_URL", "postgres://me:hunter2@db:5433/x?sslmode=require"),
        ("REDRIVE_DATABASE_PASSWORD", "hunter2"),
        ("REDRIVE_NODE", "42"),
    ];
    let shown = stdout(&redrive(&["config", "show", "--role", "worker"], &environment).await);
    assert!(shown.contains("url = \"postgres://me:[redacted]@db:5433/x?sslmode=require\""), "{shown}");
    assert!(shown.contains("role = \"worker\"\nnode = \"42\"\n"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[tokio::test]
async fn schema_is_created_by_command_when_auto_migrate_is_off() {
    let database = Postgres::shared().await;
    let url = database.url();
    let manual = ("REDRIVE_DATABASE_AUTO_MIGRATE", "false");
    let too_early = setup_on(&database).env(manual.0, manual.1).run_to_end().await;
    assert_eq!(too_early.status.code(), Some(1));
    assert!(stderr(&too_early).contains("run: redrive migrate"), "{}", stderr(&too_early));
    let no_keys = run_failing(&["keys", "list", "--database-url", &url], &[]).await;
    assert!(no_keys.contains("run: redrive migrate"), "a read does not migrate: {no_keys}");

    let migrate = ["migrate", "--database-url", &url];
    let output = redrive(&migrate, &[manual]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let migrated = stdout(&output);
    let version = migrated.strip_prefix("The schema was migrated from version 0 to ");
    let version: u32 = version.and_then(|rest| rest.strip_suffix(".\n")).unwrap().parse().unwrap();
    let again = stdout(&redrive(&migrate, &[]).await);
    assert_eq!(again, format!("The schema is already at version {version}.\n"));
    let node = Redrive::start_with(setup_on(&database).env(manual.0, manual.1)).await;
    assert_eq!(node.api().get("/readyz").await.status, 200);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redrive.db").display().to_string();
    let output = redrive(&["migrate", "--database-url", &format!("sqlite:{file}")], &[]).await;
    assert_eq!(stdout(&output), format!("The schema of {file} is up to date.\n"), "{}", stderr(&output));
}

#[tokio::test]
async fn command_that_creates_tables_says_so_first() {
    let database = Postgres::shared().await;
    let url = database.url();
    let list = ["keys", "list", "--admin", "--database-url", &url];
    let refused = run_failing(&list, &[]).await;
    assert!(refused.contains("run: redrive migrate"), "a read creates no tables: {refused}");
    let create = ["keys", "create", "--admin", "--database-url", &url];
    let output = redrive(&create, &[]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let (told, created) = (stderr(&output), stdout(&output));
    let first = told.lines().next().unwrap_or_default();
    assert!(first.starts_with("The database at 127.0.0.1:"), "{told}");
    assert!(first.ends_with(" has no tables of Redrive: creating them."), "{told}");
    assert!(created.starts_with("rdk_") && created.lines().count() == 1, "{created}");
    let again = redrive(&create, &[]).await;
    assert!(again.status.success() && !stderr(&again).contains("creating"), "{}", stderr(&again));
    assert!(stdout(&redrive(&list, &[]).await).contains("active"));
}

#[tokio::test]
async fn single_node_publishes_and_delivers() {
    let (database, receiver) = (Postgres::shared().await, Receiver::start().await);
    let setup = setup_on(&database).env("REDRIVE_NODE", "solo").without_env("REDRIVE_ADMIN_KEY");
    let redrive = Redrive::start_with(setup).await;
    let key_file = redrive.data_dir().join("redrive-data/admin.key");
    let key =
        std::fs::read_to_string(&key_file).unwrap_or_else(|error| panic!("{}: {error}", key_file.display()));
    let api = redrive.api().with_key(key.trim());
    redrive.wait_output("Admin key: rdk_").await;

    api.create_webhook(&receiver.url(), Value::Null).await;
    let event = api.publish("order.created", json!({"order": 42})).await;
    assert_eq!(receiver.wait_for(1).await[0].json()["data"], json!({"order": 42}));
    let path = format!("/v1/events/{}/deliveries", event["id"].as_str().unwrap());
    let delivered = |page: &Value| page["data"][0]["status"] == "delivered";
    let page = api.wait_until("an ended delivery", &path, delivered).await;
    let path = format!("/v1/deliveries/{}/attempts", page["data"][0]["id"].as_str().unwrap());
    let attempts = api.get(&path).await.expect(200);
    let worker = attempts["data"][0]["worker"].as_str().unwrap_or_default().to_owned();
    assert!(worker.starts_with("solo#"), "{attempts}");
    let statistics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
    let statements = statistics.lines().find_map(|line| line.strip_prefix("redrive_store_statements_total "));
    assert!(statements.unwrap().parse::<f64>().unwrap() > 0.0, "{statistics}");
}

#[tokio::test]
async fn api_node_publishes_and_worker_node_delivers() {
    let (database, receiver) = (Postgres::shared().await, Receiver::start().await);
    let api_node = Redrive::start_with(setup_on(&database).role("api").env("REDRIVE_NODE", "front")).await;
    let api = api_node.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    api.publish("a.b", json!(1)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(receiver.count(), 0, "a node of this role sends nothing");

    let worker = Redrive::start_with(setup_on(&database).role("worker").env("REDRIVE_NODE", "back")).await;
    receiver.wait_for(1).await;
    api.publish("a.b", json!(2)).await;
    receiver.wait_for(2).await;
    worker.wait_output("This is node back with role worker on PostgreSQL.\n").await;

    let worker = worker.api();
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(worker.without_key().get(path).await.status, 200, "{path}");
    }
    for path in ["/", "/docs/", "/openapi.json", "/v1/events", "/v1/webhooks"] {
        let response = worker.get(path).await;
        assert_eq!((response.status, response.problem().as_str()), (404, "api_not_served_here"), "{path}");
        assert!(response.json()["detail"].as_str().unwrap().contains("--role api or all"), "{path}");
    }
    let publish = worker.post("/v1/events", json!({"event_type": "a.b", "data": 3})).await;
    assert_eq!((publish.status, publish.problem().as_str()), (404, "api_not_served_here"));
}

#[tokio::test]
async fn keys_take_effect_on_every_node() {
    let database = Postgres::shared().await;
    let url = database.url();
    let (one, other) =
        (Redrive::start_with(setup_on(&database)).await, Redrive::start_with(setup_on(&database)).await);
    let soon = Duration::from_secs(3);
    let created = one.api().post("/v1/tenants/default/api-keys", json!({"name": "till"})).await.expect(201);
    let key = created["key"].as_str().unwrap();
    assert_eq!(
        one.api().with_key(key).get("/v1/events").await.status,
        200,
        "the node that created it accepts it immediately"
    );
    eventually(&other.api().with_key(key), "/v1/events", 200, soon).await;
    let path = format!("/v1/tenants/default/api-keys/{}", created["id"].as_str().unwrap());
    assert_eq!(other.api().delete(&path).await.status, 204);
    assert_eq!(
        other.api().with_key(key).get("/v1/events").await.status,
        401,
        "the node that revoked it rejects it immediately"
    );
    eventually(&one.api().with_key(key), "/v1/events", 401, soon).await;

    let output = redrive(&["keys", "create", "--name", "cli", "--database-url", &url], &[]).await;
    let key = stdout(&output).trim().to_owned();
    assert!(key.starts_with("rdk_"), "{}", stderr(&output));
    for node in [&one, &other] {
        eventually(&node.api().with_key(&key), "/v1/events", 200, soon).await;
    }
    let listed = stdout(&redrive(&["keys", "list", "--database-url", &url], &[]).await);
    let id =
        listed.lines().find(|line| line.ends_with("cli")).and_then(|line| line.split(' ').next()).unwrap();
    let revoked = redrive(&["keys", "revoke", id, "--database-url", &url], &[]).await;
    assert!(revoked.status.success(), "{}", stderr(&revoked));
    for node in [&one, &other] {
        eventually(&node.api().with_key(&key), "/v1/events", 401, soon).await;
    }
}

#[tokio::test]
async fn serve_on_postgres_requires_an_admin_key_except_for_workers() {
    let database = Postgres::shared().await;
    let url = database.url();
    let bare = |role: &str| setup_on(&database).command("serve").role(role).without_env("REDRIVE_ADMIN_KEY");
    let unknown = bare("api").run_to_end().await;
    assert!(stderr(&unknown).contains("no key can administer this server"), "{}", stderr(&unknown));
    let worker = Redrive::start_with(bare("worker")).await;
    assert_eq!(worker.api().get("/readyz").await.status, 200);
    let output = redrive(&["keys", "create", "--admin", "--database-url", &url], &[]).await;
    let node = Redrive::start_with(bare("all").env("REDRIVE_NODE", "first")).await;
    node.wait_output("This is node first with role all on PostgreSQL.").await;
    assert_eq!(node.api().with_key(stdout(&output).trim()).get("/v1/tenants").await.status, 200);
}

#[tokio::test]
async fn skewed_node_clock_is_corrected_by_the_database() {
    let database = Postgres::shared().await;
    let early = Redrive::start_with(setup_on(&database).env("REDRIVE_DEV_CLOCK_SKEW", "-2h")).await;
    let late = Redrive::start_with(setup_on(&database).env("REDRIVE_DEV_CLOCK_SKEW", "2h")).await;
    let mut times = Vec::new();
    for node in [&early, &late, &early] {
        let created = node.api().create_webhook("http://127.0.0.1:2/", Value::Null).await;
        let at: redrive_core::Time = serde_json::from_value(created["created_at"].clone()).unwrap();
        times.push(at.millis());
    }
    // The error of each clock is bounded by the round-trip time to the database.
    let apart = times.iter().max().unwrap() - times.iter().min().unwrap();
    assert!(apart < 60_000, "{times:?}");
}

#[tokio::test]
async fn node_is_unready_during_database_outage_and_recovers() {
    let mut server = Postgres::start().await;
    let redrive = Redrive::start_with(Setup::new().database_url(server.url())).await;
    let api = redrive.api();
    assert_eq!(api.get("/readyz").await.status, 200);
    server.stop().await;
    eventually(&api, "/readyz", 503, Duration::from_secs(10)).await;
    let unready = api.get("/readyz").await;
    assert_eq!(unready.problem(), "store_unavailable");
    let detail = unready.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("PostgreSQL"), "{detail}");
    assert_eq!(api.get("/healthz").await.status, 200, "the process is alive");
    assert_eq!(api.get("/metrics").await.status, 200);
    server.start_again().await;
    eventually(&api, "/readyz", 200, redrive_testkit::WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn unreachable_database_fails_startup_without_leaking_the_password() {
    // A port that was free a moment ago, so nothing listens on it.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://me:hunter2@127.0.0.1:{port}/nowhere");
    let output = Setup::new().database_url(&url).env("REDRIVE_LOG_LEVEL", "debug").run_to_end().await;
    let message = format!("{}{}", stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains(&format!("the database at 127.0.0.1:{port}/nowhere cannot be used")),
        "{message}"
    );
    assert!(message.contains("check database.url and that the server runs"), "{message}");
    for arguments in
        [["migrate", "--database-url", &url].as_slice(), &["keys", "list", "--database-url", &url]]
    {
        let message = run_failing(arguments, &[]).await;
        assert!(message.contains("cannot be used") && !message.contains("hunter2"), "{message}");
    }
    assert!(!message.contains("hunter2"), "{message}");
}

#[tokio::test]
async fn hanging_database_fails_startup() {
    let database = Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let setup = || {
        setup_on(&database)
            .database_url(database.url_through(&proxy))
            .env("REDRIVE_DATABASE_CONNECT_TIMEOUT", "500ms")
            .env("REDRIVE_DATABASE_STATEMENT_TIMEOUT", "1s")
    };
    proxy.stall();
    let output = setup().run_to_end().await;
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains(&format!("@{}/redrive cannot be used: no response within 2s", proxy.address())),
        "{message}"
    );

    proxy.pass();
    let redrive = Redrive::start_with(setup()).await;
    proxy.stall();
    eventually(&redrive.api(), "/readyz", 503, Duration::from_secs(10)).await;
    assert_eq!(redrive.api().get("/metrics").await.status, 200, "the node reports its own state");
    proxy.pass();
    eventually(&redrive.api(), "/readyz", 200, redrive_testkit::WAIT_TIMEOUT).await;
}

#[tokio::test]
async fn database_certificate_is_verified_with_verify_full() {
    let server = Postgres::start_with_tls().await;
    let url = format!("{}?sslmode=verify-full", server.url());
    let message = run_failing(&["migrate", "--database-url", &url], &[]).await;
    assert!(message.contains("certificate"), "its issuer is not trusted: {message}");
    let url = format!("{url}&sslrootcert={}", server.ca_path().display());
    let output = redrive(&["migrate", "--database-url", &url], &[]).await;
    assert!(output.status.success(), "{}", stderr(&output));
}

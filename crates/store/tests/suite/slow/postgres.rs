//! The shared store: the whole conformance suite, and tests specific to PostgreSQL.

use std::sync::Arc;

use redrive_core::delivery::outcome::Outcome;
use redrive_core::{
    DeadReason,
    notification::{NotificationKind, Occurrence, OccurrenceDetails},
};
use redrive_store::{
    InitialState, OpenError, OutcomeRecord, Store,
    conformance::{Harness, Opened, Reopening, at},
    conformance_suite,
    postgres::{self, Options, Postgres},
};
use redrive_testkit::Database;

/// Few connections, since very many tests run concurrently. The server does not end transactions of this process when
/// the machine stalls; other suites test that it does.
fn options(database: &Database) -> Options {
    let url = format!("{}%20-cidle_in_transaction_session_timeout%3D60000", database.url());
    Options {
        writers: 4,
        readers: 2,
        allow_unsafe_durability: true,
        ..Options::at(url).with_vault(redrive_testkit::vault())
    }
}

async fn open() -> Opened {
    opened(redrive_testkit::Postgres::shared().await).await
}

async fn opened(database: Database) -> Opened {
    let options = options(&database);
    let open = move || -> Reopening {
        let options = options.clone();
        Box::pin(async move { Arc::new(Postgres::open(&options).await.unwrap()) as Arc<dyn Store> })
    };
    Opened { store: open().await, keep: Box::new(database), reopen: Box::new(open) }
}

conformance_suite!(open);

/// Returns PostgreSQL's plan of a statement, with the planner settings of a store's connection.
async fn plan(client: &tokio_postgres::Client, statement: &str) -> String {
    client.batch_execute(&format!("PREPARE planned AS {statement}")).await.unwrap_or_else(|error| {
        panic!(
            "{statement}\n{}",
            error.as_db_error().map_or(error.to_string(), |db_error| db_error.message().to_owned())
        )
    });
    let values = statement
        .split('$')
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok())
        .max()
        .unwrap_or(0);
    let nulls = vec!["NULL"; values].join(", ");
    let call = if values == 0 { "planned".to_owned() } else { format!("planned({nulls})") };
    let rows = client.query(&format!("EXPLAIN EXECUTE {call}"), &[]).await.unwrap();
    client.batch_execute("DEALLOCATE planned").await.unwrap();
    rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
}

/// Tables that may grow without bound, or that every delivery accesses.
const LARGE: [&str; 12] = [
    "events",
    "deliveries",
    "undelivered",
    "attempts",
    "attempt_index",
    "leased",
    "waiting",
    "lanes",
    "idempotency_keys",
    "rollups",
    "tenant_rollups",
    "circuit_periods",
];

/// Allowed sort keys: of rows that were requested by key, of the leases of one ordered lane, and of the bounded
/// number of rows that one step of a listing reads (`c`).
const SORTED: [&str; 5] = [
    "Sort Key: c.id DESC",
    "Sort Key: l.webhook_id, l.lane",
    "Sort Key: k.webhook_id, k.lane",
    "Sort Key: k_2.webhook_id, k_2.lane",
    "Sort Key: webhook_runtime.webhook_id",
];

/// Returns the lines of a plan that read a large table from end to end, or sort what could be large.
fn faults<'a>(name: &str, plan: &'a str) -> Vec<&'a str> {
    let lines: Vec<_> =
        plan.lines().map(|line| line.trim_start().trim_start_matches("->").trim_start()).collect();
    let scans = |line: &str| {
        let table = line.strip_prefix("Seq Scan on ");
        table.is_some_and(|table| LARGE.iter().any(|large| table.starts_with(large)))
    };
    // Pending deliveries are found by scanning `waiting` and `leased`.
    let among_pending =
        ["deliveries that are pending", "deliveries in flight", "scan pending deliveries"].contains(&name);
    let sorts = |at: usize| {
        !among_pending
            && lines[at].starts_with("Sort  ")
            && !lines.get(at + 1).is_some_and(|key| SORTED.iter().any(|allowed| key.starts_with(allowed)))
            && !lines
                .get(at + 2)
                .is_some_and(|of| of.starts_with("CTE Scan on c") || of.starts_with("Limit  "))
            // A bounded number of rows per key.
            && !lines.iter().skip(at + 2).take(4).any(|of| of.starts_with("Function Scan on unnest leg"))
    };
    // A scan of a whole index is as bad.
    let walks = |at: usize| {
        let index = lines[at].starts_with("Index Scan") || lines[at].starts_with("Index Only Scan");
        let large = || {
            let table = lines[at].split(" on ").nth(1).unwrap_or_default();
            let is_pending = table.starts_with("waiting") || table.starts_with("leased");
            LARGE.iter().any(|large| table.starts_with(large)) && !(among_pending && is_pending)
        };
        index && large() && !lines.get(at + 1).is_some_and(|next| next.starts_with("Index Cond"))
    };
    let joins = |line: &str| line.starts_with("Hash Join") || line.starts_with("Merge Join");
    (0..lines.len())
        .filter(|at| scans(lines[*at]) || joins(lines[*at]) || sorts(*at) || walks(*at))
        .map(|at| lines[at])
        .collect()
}

async fn assert_plans(database: &Database) {
    let (client, connection) =
        tokio_postgres::connect(&postgres::planning_url(&options(database)), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    for (name, statement) in postgres::planned_statements() {
        let plan = plan(&client, &statement).await;
        // A delivery must be found by its id. In a young table a plan that uses the lane index costs no more, and later
        // scans everything that waits in the lane.
        let by_id = name != "deliveries of tickets" || plan.contains("waiting_pkey");
        assert!(by_id, "{name}\n{plan}");
        assert_eq!(faults(&name, &plan), [] as [&str; 0], "{name}\n{statement}\n{plan}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_use_indexes_on_empty_and_on_full_tables() {
    let database = redrive_testkit::Postgres::shared().await;
    let harness = Harness::new(opened(redrive_testkit::Postgres::shared().await).await).await;
    drop(harness);
    let store: Arc<dyn Store> = Arc::new(Postgres::open(&options(&database)).await.unwrap());
    store.ensure_partitions(redrive_store::conformance::at(0)).await.unwrap();
    assert_plans(&database).await;
    // Many more rows than the planner would guess, and never analysed manually.
    database
        .execute(
            "INSERT INTO waiting SELECT gen_random_uuid(), gen_random_uuid(), 'nf', n, n, n, n, 0, 0
             FROM generate_series(1, 20000) n;
             INSERT INTO leased SELECT 1, gen_random_uuid(), gen_random_uuid(), 'nf', n FROM generate_series(1, 20000) n;
             INSERT INTO lanes SELECT gen_random_uuid(), 'nf', n, NULL, 'default' FROM generate_series(1, 20000) n",
        )
        .await;
    assert_plans(&database).await;
    // Analyse only the test's own tables: a plain ANALYZE also locks those of other tests, and fails when they are
    // dropped.
    let analyze = "DO $$ DECLARE t record; BEGIN
             FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() LOOP
                 EXECUTE format('ANALYZE %I', t.tablename);
             END LOOP;
         END $$";
    database.execute(analyze).await;
    assert_plans(&database).await;
    // A table whose rows come and go may be empty when it is vacuumed, and the planner then believes so for a while.
    let emptied = "UPDATE pg_class SET reltuples = 0 WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace";
    database.execute(emptied).await;
    assert_plans(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn occurrences_of_a_batch_take_two_statements() {
    let harness = Harness::new(open().await).await;
    let statements = async || harness.store().stats().await.unwrap().statements;
    let before = statements().await;
    // The statistics are read by statements, too.
    let of_stats = statements().await - before;
    let record = async |next: Outcome, groups: usize| {
        let id = harness.leased(at(1)).await;
        let occurrence = |_| Occurrence {
            tenant_id: harness.tenant_id.clone(),
            webhook_id: Some(harness.webhook_id()),
            kind: NotificationKind::DeliveryDead,
            at: at(2),
            count: 1,
            details: OccurrenceDetails::default(),
        };
        let occurrences = (0..groups).map(occurrence).collect();
        let before = statements().await;
        harness.record(OutcomeRecord { occurrences, ..harness.outcome(id, 1, next, at(2)) }).await;
        statements().await - before - of_stats
    };
    assert_eq!(record(Outcome::Delivered, 0).await, 1, "a plain success");
    let dead = || Outcome::Dead(DeadReason::Permanent);
    let without = record(dead(), 0).await;
    assert_eq!(record(dead(), 1).await, without + 2);
    assert_eq!(record(dead(), 50).await, without + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrently_started_nodes_create_one_schema() {
    let database = redrive_testkit::Postgres::shared().await;
    let starts: Vec<_> = (0..4)
        .map(|_| {
            let options = options(&database);
            tokio::spawn(async move { Postgres::open(&options).await.map(drop) })
        })
        .collect();
    for start in starts {
        start.await.unwrap().unwrap();
    }
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/postgres/migrations")).unwrap();
    let migrations = files.count().to_string();
    assert_eq!(database.query("SELECT count(*) FROM refinery_schema_history").await, [[migrations]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_schema_is_refused() {
    let database = redrive_testkit::Postgres::shared().await;
    Postgres::migrate(&options(&database)).await.unwrap();
    database
        .execute("INSERT INTO refinery_schema_history VALUES (999, 'from_the_future', '2030-01-01T00:00:00Z', '1')")
        .await;
    let error = Postgres::open(&options(&database)).await.err().unwrap();
    assert!(matches!(error, OpenError::NewerSchema { found: 999, known: 1.., .. }), "{error:?}");
    assert!(error.to_string().contains("start the newer redrive"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn older_schema_is_refused_without_migration() {
    let database = redrive_testkit::Postgres::shared().await;
    let options = Options { migrate: false, ..options(&database) };
    let error = Postgres::open(&options).await.err().unwrap();
    assert!(matches!(error, OpenError::OlderSchema { found: 0, .. }), "{error:?}");
    assert!(error.to_string().contains("run: redrive migrate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_another_application_are_not_changed() {
    let database = redrive_testkit::Postgres::shared().await;
    database.execute("CREATE TABLE theirs (x integer)").await;
    let error = Postgres::open(&options(&database)).await.err().unwrap().to_string();
    assert!(error.contains("tables of another program (such as theirs)"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_writers_are_reported_by_ping_and_fail_publishes() {
    let database = redrive_testkit::Postgres::shared().await;
    let store = Arc::new(Postgres::open(&options(&database)).await.unwrap());
    let never = Box::new(|| -> Reopening { panic!("this test does not reopen the store") });
    let harness =
        Harness::new(Opened { store: store.clone(), keep: Box::new(database), reopen: never }).await;
    assert_eq!(harness.store().ping().await, Ok(()));
    store.end_writers();
    let started = tokio::time::Instant::now();
    // Both writers end, in any order. The first of them is reported once it has ended.
    let expected =
        redrive_store::StoreError::WriterEnded("the store's writer of publishes has ended by a panic".into());
    while harness.store().ping().await != Err(expected.clone()) {
        assert!(started.elapsed() < redrive_testkit::WAIT_TIMEOUT, "ping still succeeds");
    }
    let refused =
        harness.try_publish(harness.new_event(at(0), InitialState::Leased)).await.unwrap_err().to_string();
    assert!(refused.contains("the store's writer has ended; restart redrive"), "{refused}");
}

/// Returns the value of `synchronous_commit` of a store that is opened by this URL.
async fn synchronous_commit(url: String) -> String {
    let options = Options { writers: 2, readers: 1, ..Options::at(url).with_vault(redrive_testkit::vault()) };
    let store = Postgres::open(&options).await.unwrap();
    let durability = redrive_store::Health::durability(&store).await.unwrap().unwrap();
    assert_eq!(durability.risk(), None);
    durability.synchronous_commit
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_are_synchronous_despite_role_and_url_settings() {
    let server = redrive_testkit::Postgres::start().await;
    assert_eq!(synchronous_commit(server.url()).await, "on");
    let weak = ["off", "local", "remote_write"];
    for value in weak {
        let url = format!("{}?options=-csynchronous_commit%3D{value}", server.url());
        assert_eq!(synchronous_commit(url).await, "on", "{value} in the URL");
    }
    for value in weak {
        server.execute(&format!("ALTER ROLE redrive SET synchronous_commit = {value}")).await;
        assert_eq!(synchronous_commit(server.url()).await, "on", "{value} of the role");
    }
    server.execute("ALTER ROLE redrive SET synchronous_commit = remote_apply").await;
    assert_eq!(synchronous_commit(server.url()).await, "remote_apply", "stronger values are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_fsync_is_refused() {
    let server = redrive_testkit::Postgres::start().await;
    let strict =
        Options { writers: 2, readers: 1, ..Options::at(server.url()).with_vault(redrive_testkit::vault()) };
    let running = Postgres::open(&strict).await.unwrap();
    let running: &dyn Store = &running;
    assert_eq!(running.ping().await, Ok(()));
    for setting in ["fsync", "full_page_writes"] {
        server.execute(&format!("ALTER SYSTEM SET {setting} = off")).await;
        server.execute("SELECT pg_reload_conf()").await;
        wait_for_setting(&server, setting, "off").await;
        let error = match Postgres::open(&strict).await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("a server with {setting} = off was opened"),
        };
        for part in [setting, "ALTER SYSTEM SET", "database.allow_unsafe_durability = true"] {
            assert!(error.contains(part), "{error}");
        }
        let noticed = running.ping().await.unwrap_err().to_string();
        assert!(noticed.contains(&format!("{setting} is off")), "{noticed}");
        let allowed = Options { allow_unsafe_durability: true, ..strict.clone() };
        let store = Postgres::open(&allowed).await.unwrap();
        let risk = redrive_store::Health::durability(&store).await.unwrap().unwrap().risk();
        assert!(risk.is_some_and(|risk| risk.starts_with(setting)));
        server.execute(&format!("ALTER SYSTEM RESET {setting}")).await;
        server.execute("SELECT pg_reload_conf()").await;
        wait_for_setting(&server, setting, "on").await;
    }
    assert_eq!(running.ping().await, Ok(()));
}

async fn wait_for_setting(server: &redrive_testkit::Postgres, setting: &str, value: &str) {
    let started = tokio::time::Instant::now();
    while server.query(&format!("SHOW {setting}")).await != [[value]] {
        assert!(started.elapsed() < std::time::Duration::from_secs(30), "{setting} does not become {value}");
    }
}

//! The embedded store: the conformance suite, and tests specific to SQLite.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use bytes::Bytes;
use redrive_core::delivery::outcome::Outcome;
use redrive_core::{
    event::Event,
    webhook::confidential::{EndpointAuth, SecretString},
};
use redrive_store::{
    DisableWebhook, EraseResult, InitialState, NewEvent, OpenError, OutcomeRecord, PruneRequest,
    PublishResult, RecordResult, Store, StoreError,
    conformance::{Harness, Opened, Reopening, at, page},
    conformance_suite,
    sqlite::{self, Options, Sqlite},
};
use tempfile::TempDir;

async fn open() -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    open_at(&path, folder)
}

/// Opens a store with its database at `path`, and keeps `folder` while the store is used.
fn open_at(path: &Path, folder: TempDir) -> Opened {
    let options = Options::at(path).with_vault(redrive_testkit::vault());
    let open = move || -> Arc<dyn Store> { Arc::new(Sqlite::open(&options).unwrap()) };
    let store = open();
    let reopen = Box::new(move || -> Reopening {
        let store = open();
        Box::pin(async { store })
    });
    Opened { store, keep: Box::new(folder), reopen }
}

conformance_suite!(open);

/// Creates a harness, and returns the path of its database.
async fn bench() -> (Arc<Harness>, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    (Harness::new(open_at(&path, folder)).await, path)
}

fn refused(path: &Path) -> OpenError {
    match Sqlite::open(&Options::at(path).with_vault(redrive_testkit::vault())) {
        Err(error) => error,
        Ok(_) => panic!("{} was opened", path.display()),
    }
}

#[test]
fn newer_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    drop(Sqlite::open(&Options::at(&path).with_vault(redrive_testkit::vault())).unwrap());
    let newer =
        "INSERT INTO refinery_schema_history VALUES (999, 'from_the_future', '2030-01-01T00:00:00Z', '1')";
    rusqlite::Connection::open(&path).unwrap().execute(newer, ()).unwrap();
    let error = refused(&path);
    assert!(matches!(error, OpenError::NewerSchema { found: 999, known: 1.., .. }), "{error:?}");
    let message = error.to_string();
    for part in [&*path.to_string_lossy(), "schema version 999", "start the newer redrive"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn file_that_is_not_a_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.txt");
    let letter = "Dear database, ".repeat(1000);
    fs::write(&path, &letter).unwrap();
    let message = refused(&path).to_string();
    assert!(
        message.contains("letter.txt cannot be opened: ") && message.contains("not a database"),
        "{message}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), letter, "the file is unchanged");
    let message = refused(folder.path()).to_string();
    assert!(message.contains("cannot be opened: "), "{message}");
}

#[test]
fn second_open_of_same_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let first = Sqlite::open(&Options::at(&path).with_vault(redrive_testkit::vault())).unwrap();
    let error = refused(&path);
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("redrive.db is in use by another redrive process"), "{error}");
    drop(first);
    drop(Sqlite::open(&Options::at(&path).with_vault(redrive_testkit::vault())).unwrap());
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn files_are_accessible_to_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("new").join("folder");
    let harness = Harness::new(open_at(&inside.join("redrive.db"), folder)).await;
    harness.publish_new(harness.new_event(at(0), InitialState::Leased)).await;
    assert_eq!(mode(&inside), 0o700);
    let files: Vec<_> = fs::read_dir(&inside).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.iter().any(|file| file.ends_with("redrive.db-wal")), "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// Returns an event without deliveries, with a payload of `size` bytes.
fn large(harness: &Harness, time: i64, size: usize) -> NewEvent {
    let event = Event { data: Bytes::from(vec![b'7'; size]), ..harness.event(at(time)) };
    harness.fan_out(event, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn write_ahead_log_stays_bounded_under_load() {
    const LIMIT: u64 = 64 << 20;
    let (harness, path) = bench().await;
    let wal = path.with_file_name("redrive.db-wal");
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let harness = harness.clone();
            tokio::spawn(async move {
                loop {
                    harness
                        .store()
                        .list_events(harness.tenant_id.clone(), Default::default(), page(200))
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    let mut largest = 0;
    for batch in 0..200 {
        let replies: Vec<_> = (0..64).map(|_| harness.submit(large(&harness, batch, 8 << 10))).collect();
        for response in replies {
            assert!(matches!(response.await.unwrap(), Ok(PublishResult::New { .. })));
        }
        largest = largest.max(fs::metadata(&wal).unwrap().len());
    }
    readers.iter().for_each(|reader| reader.abort());
    eprintln!("the log had at most {} MiB for 100 MiB written", largest >> 20);
    assert!(largest <= LIMIT, "{largest}");
}

/// Returns SQLite's query plan of a statement, step by step.
fn plan(connection: &rusqlite::Connection, statement: &str) -> Vec<String> {
    let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
    explain.raw_query().mapped(|row| row.get("detail")).map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn due_deliveries_are_found_by_index_only() {
    let (_bench, path) = bench().await;
    let connection = rusqlite::Connection::open(path).unwrap();
    for statement in sqlite::hot_statements() {
        let steps = plan(&connection, statement);
        // No scan and no sorting.
        let searches = |step: &String| {
            step.starts_with("CORRELATED ") || step.starts_with("SEARCH ") && step.contains(" USING ")
        };
        assert!(!steps.is_empty() && steps.iter().all(searches), "{statement}\n{steps:#?}");
    }
    let taken = sqlite::hot_statements().iter().find(|statement| statement.contains("FROM leased")).unwrap();
    let steps = plan(&connection, taken);
    assert!(steps[0].ends_with("leased_in_order (webhook_id=? AND lane=?)"), "{steps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bounded_statements_scan_no_whole_table() {
    let (_bench, path) = bench().await;
    let connection = rusqlite::Connection::open(path).unwrap();
    for statement in sqlite::bounded_statements() {
        let steps = plan(&connection, statement);
        // The result of a subquery may be scanned, since the subquery itself is bounded.
        let is_made = |what: &str| steps.iter().any(|step| step.strip_prefix("CO-ROUTINE ") == Some(what));
        let allowed = |step: &String| match step.strip_prefix("SCAN ") {
            Some(what) => what.starts_with('(') || what.starts_with("CONSTANT") || is_made(what),
            None => {
                !step.contains("TEMP B-TREE") && (!step.starts_with("SEARCH ") || step.contains(" USING "))
            }
        };
        assert!(!steps.is_empty() && steps.iter().all(allowed), "{statement}\n{steps:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_over_queue_limit_is_refused_as_overload() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let mut opened = open_at(&path, folder);
    let few = Options {
        max_queued_bytes: 100 << 10,
        max_queued_publishes: 100,
        ..Options::at(&path).with_vault(redrive_testkit::vault())
    };
    drop(opened.store);
    opened.store = Arc::new(Sqlite::open(&few).unwrap());
    let harness = Harness::new(opened).await;
    assert_eq!(harness.try_publish(large(&harness, 0, 101 << 10)).await, Err(StoreError::Overloaded));
    // A refused publish releases its queue capacity: any number of publishes is accepted one after the other.
    for n in 0..200 {
        harness.publish_new(large(&harness, n, 90 << 10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_finishes_queued_writes() {
    let (mut harness, _path) = bench().await;
    let replies: Vec<_> =
        (0..300).map(|n| harness.submit(harness.new_event(at(n), InitialState::Waiting(at(n))))).collect();
    Harness::reopen(&mut harness).await;
    for response in replies {
        assert!(matches!(response.await.unwrap(), Ok(PublishResult::New { .. })));
    }
    assert_eq!(harness.store().stats().await.unwrap().waiting, [0, 300, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_events_survive_a_crash() {
    let (harness, path) = bench().await;
    for n in 0..50 {
        harness.publish_new(harness.new_event(at(n), InitialState::Waiting(at(n)))).await;
    }
    // Copy the files as a crash at this point would leave them.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["redrive.db", "redrive.db-wal"] {
        fs::copy(path.with_file_name(name), crashed.path().join(name)).unwrap();
    }
    let store =
        Sqlite::open(&Options::at(crashed.path().join("redrive.db")).with_vault(redrive_testkit::vault()))
            .unwrap();
    let store: &dyn Store = &store;
    assert_eq!(store.stats().await.unwrap().waiting, [0, 50, 0]);
    let events =
        store.list_events(harness.tenant_id.clone(), Default::default(), page(100)).await.unwrap().found;
    let numbers: BTreeSet<_> = events.iter().map(|stored| stored.sequence_number).collect();
    assert_eq!(numbers, (1..=50).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_row_fails_only_outcomes_that_need_it() {
    let (harness, path) = bench().await;
    let other = harness.new_webhook().await.id;
    let damage = rusqlite::Connection::open(path).unwrap();
    let damaged =
        damage.execute("UPDATE webhooks SET spec = '{' WHERE id = ?", [harness.webhook_id.as_bytes()]);
    assert_eq!(damaged, Ok(1));
    let mut responses = Vec::new();
    for n in 0..20 {
        let webhook_id = if n == 10 { harness.webhook_id } else { other };
        let new = harness.fan_out(harness.event(at(n)), &[(webhook_id, InitialState::Leased)]);
        let id = new.deliveries[0].id;
        harness.publish_new(new).await;
        let disable = (n == 10).then(|| "410 Gone".to_owned());
        let outcome = harness.outcome(id, 1, Outcome::Delivered, at(n));
        responses.push((
            n,
            OutcomeRecord {
                webhook_id,
                disable: disable.map(|reason| DisableWebhook { reason, url: String::new() }),
                ..outcome
            },
        ));
    }
    let replies: Vec<_> =
        responses.into_iter().map(|(n, outcome)| (n, harness.submit_outcome(outcome))).collect();
    for (n, response) in replies {
        let response = response.await.unwrap();
        assert_eq!(matches!(response, Err(StoreError::InvalidItem(_))), n == 10, "{n}: {response:?}");
        assert_eq!(matches!(response, Ok(RecordResult::Recorded { .. })), n != 10, "{n}: {response:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn dropped_reads_leave_no_connection_open() {
    // Reads run on one blocking thread, which the test occupies.
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(1).enable_all().build();
    runtime.unwrap().block_on(drop_reads());
}

#[cfg(target_os = "linux")]
async fn drop_reads() {
    let (harness, path) = bench().await;
    for n in 0..500 {
        harness.publish_new(large(&harness, n, 1 << 10)).await;
    }
    for n in 0..100 {
        let (release, occupied) = std::sync::mpsc::channel::<()>();
        let occupying = tokio::task::spawn_blocking(move || occupied.recv().is_err());
        let mut listing =
            harness.store().list_events(harness.tenant_id.clone(), Default::default(), page(500));
        let polled = std::future::poll_fn(|context| std::task::Poll::Ready(listing.as_mut().poll(context)));
        assert!(polled.await.is_pending(), "read {n} cannot have run");
        drop(listing);
        // The read runs now, although its caller has stopped waiting.
        drop(release);
        assert!(occupying.await.unwrap());
    }
    harness.store().ping().await.unwrap();
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let opened =
        files.filter_map(|file| fs::read_link(file.unwrap().path()).ok()).filter(|file| *file == path);
    let opened = opened.count();
    assert!(opened <= 1 + Options::at(&path).readers, "{opened}");
}

/// Environment variable with the folder for a process whose file size is limited.
const FULL_DISK: &str = "REDRIVE_TEST_FULL_DISK";

/// A limit on the file size simulates a full disk: it needs no mount, but a separate process.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn full_disk_refuses_publishes_and_loses_nothing() {
    if let Ok(folder) = std::env::var(FULL_DISK) {
        return fill_the_disk(Path::new(&folder)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let limited = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" \"$@\"";
    let child = Command::new("sh")
        .args(["-c", limited])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &redrive_testkit::test_name(module_path!(), "full_disk_refuses_publishes_and_loses_nothing"),
        ])
        .arg("--nocapture")
        .env(FULL_DISK, folder.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));

    let acknowledged = fs::read_to_string(folder.path().join("acknowledged")).unwrap();
    assert!(acknowledged.lines().count() > 10);
    let store =
        Sqlite::open(&Options::at(folder.path().join("redrive.db")).with_vault(redrive_testkit::vault()))
            .unwrap();
    let store: &dyn Store = &store;
    let tenant_id = redrive_core::TenantId::parse("acme").unwrap();
    let events = store.list_events(tenant_id, Default::default(), page(10_000)).await.unwrap().found;
    let stored: BTreeSet<_> = events.iter().map(|stored| stored.event.id.to_string()).collect();
    assert_eq!(stored, acknowledged.lines().map(str::to_owned).collect());
    assert_eq!(store.ping().await, Ok(()), "the store recovers when space is freed");
}

#[cfg(unix)]
async fn fill_the_disk(folder: &Path) {
    let harness = Harness::new(open_at(&folder.join("redrive.db"), tempfile::tempdir().unwrap())).await;
    let mut acknowledged = Vec::new();
    let refused = loop {
        let new = large(&harness, acknowledged.len() as i64, 40 << 10);
        let id = new.event.id;
        match harness.try_publish(new).await {
            Ok(_) => acknowledged.push(id),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    // Pings are writes and use up the remaining space soon.
    let mut requests = 0;
    while harness.store().ping().await.is_ok() {
        requests += 1;
        assert!(requests < 100, "a full disk is reported");
    }
    let again = harness.try_publish(large(&harness, 0, 1)).await;
    assert!(matches!(again, Err(StoreError::Unavailable(_))), "{again:?}");
    for id in &acknowledged {
        assert!(
            harness.store().event(harness.tenant_id.clone(), *id).await.unwrap().is_some(),
            "reads still succeed"
        );
    }
    let list: String = acknowledged.iter().map(|id| format!("{id}\n")).collect();
    fs::write(folder.join("acknowledged"), list).unwrap();
}

#[test]
fn database_of_another_application_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let error =
        Sqlite::open(&Options::at(&path).with_vault(redrive_testkit::vault())).err().unwrap().to_string();
    assert!(error.contains("another program"), "{error}");
    let tables: i64 = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM sqlite_master", (), |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1);
}

/// Returns the contents of the files of a database, including its write-ahead log.
fn files_of(path: &Path) -> Vec<u8> {
    let wal = format!("{}-wal", path.display());
    [fs::read(path).unwrap(), fs::read(wal).unwrap_or_default()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_stored_encrypted_and_master_key_can_be_rotated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let open =
        |vault| Arc::new(Sqlite::open(&Options::at(&path).with_vault(vault)).unwrap()) as Arc<dyn Store>;
    let never = Box::new(|| -> Reopening { panic!("this test does not reopen the store") });
    let opened = Opened { store: open(redrive_testkit::vault_of(1, &[])), keep: Box::new(()), reopen: never };
    let harness = Harness::new(opened).await;
    let mut webhook = harness.webhook_of(&harness.tenant_id);
    webhook.spec.headers.insert("x-key".into(), SecretString::new("planted-in-a-header"));
    webhook.spec.auth = Some(EndpointAuth::Bearer { token: SecretString::new("planted-as-a-token") });
    harness.store().create_webhook(webhook.clone()).await.unwrap();
    let planted = ["planted-in-a-header", "planted-as-a-token", &webhook.secrets[0].secret.reveal()];
    let found = |files: &[u8], text: &str| files.windows(text.len()).any(|part| part == text.as_bytes());
    let files = files_of(&path);
    assert!(found(&files, &webhook.spec.url), "the unencrypted fields are in the files");
    for planted in planted {
        assert!(!found(&files, planted), "{planted} is in the files");
    }
    let (tenant_id, id, both) = (harness.tenant_id.clone(), webhook.id, harness.webhook_id);
    drop(harness);

    let with_other_key = open(redrive_testkit::vault_of(2, &[]));
    let error = with_other_key.webhook(tenant_id.clone(), id).await.unwrap_err().to_string();
    assert!(error.contains("which is not configured"), "{error}");
    drop(with_other_key);
    let store = open(redrive_testkit::vault_of(2, &[1]));
    assert_eq!(store.webhook(tenant_id.clone(), id).await.unwrap().unwrap().webhook, webhook);
    let done = store.rewrap(None, 10).await.unwrap();
    assert_eq!((done.changed, done.last), (2, Some(id.max(both))));
    assert_eq!(store.encryption_keys().await.unwrap(), [redrive_testkit::vault_of(2, &[]).current()]);
    drop(store);
    let store = open(redrive_testkit::vault_of(2, &[]));
    assert_eq!(store.webhook(tenant_id, id).await.unwrap().unwrap().webhook, webhook);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_log_entry_cannot_be_changed() {
    let (harness, path) = bench().await;
    harness.store().ping().await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute("INSERT INTO audit (id, actor, action, result) VALUES (x'01', 'a', 'b', 'done')", ())
        .unwrap();
    let error = other.execute("UPDATE audit SET actor = 'c'", ()).unwrap_err().to_string();
    assert!(error.contains("immutable"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn space_is_reclaimed_after_pruning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let harness = Harness::new(open_at(&path, tempfile::tempdir().unwrap())).await;
    for n in 0..400 {
        harness.publish_new(NewEvent { deliveries: Vec::new(), ..large(&harness, n, 50 << 10) }).await;
    }
    let size =
        || fs::metadata(&path).unwrap().len() + fs::metadata(path.with_extension("db-wal")).unwrap().len();
    let full = size();
    assert!(full > 18 << 20, "{full}");
    let request = PruneRequest {
        tenant_id: harness.tenant_id.clone(),
        before: at(1_000),
        after: None,
        rows: 1_000,
        archive: false,
    };
    let pruned = harness.store().prune_events(request).await.unwrap();
    assert_eq!(pruned.left.events, 400);
    let mut steps = 0;
    while harness.store().reclaim_space(256 << 10).await.unwrap() > 0 {
        steps += 1;
    }
    assert!(steps > 10, "in small steps: {steps}");
    drop(harness);
    let left = fs::metadata(&path).unwrap().len();
    assert!(left < full / 20, "{left} of {full} bytes are left");
    println!("{full} bytes became {left} in {steps} steps");
}

#[tokio::test(flavor = "multi_thread")]
async fn erased_payloads_are_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let harness = Harness::new(open_at(&path, tempfile::tempdir().unwrap())).await;
    let holds = |text: &str| {
        let files = fs::read_dir(folder.path()).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
        files.filter(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes())).count() > 0
    };
    let mut events = Vec::new();
    // A small payload shares its page with others; a large one has its own pages.
    for (n, size) in [20, 30_000, 20, 20, 9_000].into_iter().enumerate() {
        let data = Bytes::from(format!("\"{}-secret-{n}\"", "x".repeat(size)));
        let metadata = Some(Bytes::from(format!("{{\"k\":\"meta-{n}\"}}")));
        let event = Event { data, metadata, ..harness.event(at(n as i64)) };
        events.push(event.id);
        harness.publish_new(harness.fan_out(event, &[])).await;
    }
    for n in [0, 1, 4] {
        let erased = harness.store().erase(harness.tenant_id.clone(), events[n], at(50)).await.unwrap();
        assert_eq!(erased, EraseResult::Erased);
    }
    drop(harness);
    for n in 0..5 {
        let erased = [0, 1, 4].contains(&n);
        assert_eq!(holds(&format!("secret-{n}")), !erased, "{n}");
        assert_eq!(holds(&format!("meta-{n}")), !erased, "{n}");
    }
}

/// Returns the lines of a plan that read a whole table, or sort what could be large.
fn faults(plan: &[String]) -> Vec<&String> {
    // `waiting` and `leased` are scanned by primary key, newest first.
    let may_walk = |line: &str| ["waiting", "leased"].iter().any(|table| line.contains(table));
    let is_fault = |line: &&String| {
        line.starts_with("SCAN") && !may_walk(line)
            || line.contains("TEMP B-TREE")
            || line.contains("AUTOMATIC")
    };
    plan.iter().filter(is_fault).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_use_indexes_and_sort_nothing() {
    let (_bench, path) = bench().await;
    let connection = rusqlite::Connection::open(&path).unwrap();
    for (name, statement) in sqlite::planned_statements() {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
        let values = vec![rusqlite::types::Null; explain.parameter_count()];
        let plan =
            explain.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).unwrap();
        let plan: Vec<_> = plan.collect::<Result<_, _>>().unwrap();
        let faults = faults(&plan);
        // The deliveries of one event are bounded by its fan-out.
        let of_event = plan.iter().any(|line| line.contains("deliveries_by_event"));
        let only_sorts = faults.iter().all(|line| line.contains("TEMP B-TREE FOR ORDER BY"));
        assert!(faults.is_empty() || (of_event && only_sorts), "{name}\n{statement}\n{plan:#?}");
    }
}

fn count_changes(path: &Path) -> i64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.query_row("SELECT count(*) FROM change_log", (), |row| row.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_events_leave_no_rows_in_the_change_feed() {
    let (harness, path) = bench().await;
    for n in 0..20 {
        let id = harness.leased(at(n)).await;
        let failing = redrive_store::WebhookEffects {
            failing: Some(redrive_store::FailingChange::Failed {
                since: at(n),
                category: redrive_core::FailureCategory::Timeout,
                rule: redrive_core::webhook::failures::FailingRule::default(),
            }),
            pause_until: Some(at(n + 1_000)),
            ..Default::default()
        };
        let outcome = harness.outcome(id, 1, Outcome::Retry { at: at(n + 500) }, at(n));
        let recorded = harness.record(OutcomeRecord { effects: failing, ..outcome }).await;
        assert!(matches!(recorded, RecordResult::Recorded { .. }), "{recorded:?}");
    }
    assert_eq!(count_changes(&path), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_success_writes_no_row_to_the_attempt_index() {
    let (harness, path) = bench().await;
    for n in 0..20 {
        let id = harness.leased(at(n)).await;
        harness.ends(id, Outcome::Delivered, at(n + 59_999)).await;
    }
    let rows = || {
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.query_row("SELECT count(*) FROM attempt_index", (), |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(rows(), 0);
    harness.dead(at(100)).await;
    assert_eq!(rows(), 1);
}

#[test]
fn change_feed_of_an_older_version_is_emptied_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::at(folder.path().join("redrive.db")).with_vault(redrive_testkit::vault());
    drop(Sqlite::open(&options).unwrap());
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
                INSERT INTO change_log (kind) SELECT 3 FROM n";
    rusqlite::Connection::open(&options.path).unwrap().execute(rows, ()).unwrap();
    assert_eq!(count_changes(&options.path), 10_000);
    drop(Sqlite::open(&options).unwrap());
    assert_eq!(count_changes(&options.path), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_store_reports_changes() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::at(folder.path().join("redrive.db")).with_vault(redrive_testkit::vault());
    let store = Arc::new(Sqlite::open(&Options { shared: true, ..options }).unwrap());
    let never = Box::new(|| -> Reopening { panic!("this test does not reopen the store") });
    let harness = Harness::new(Opened { store, keep: Box::new(folder), reopen: never }).await;
    redrive_store::conformance::nodes::changes_are_returned_since_a_cursor(&harness).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_writer_is_reported_by_ping_and_fails_publishes() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::at(folder.path().join("redrive.db")).with_vault(redrive_testkit::vault());
    let store = Arc::new(Sqlite::open(&options).unwrap());
    let never = Box::new(|| -> Reopening { panic!("this test does not reopen the store") });
    let opened = Opened { store: store.clone(), keep: Box::new(folder), reopen: never };
    let harness = Harness::new(opened).await;
    assert_eq!(harness.store().ping().await, Ok(()));
    store.end_writer();
    // A write that was submitted before the thread has ended also fails, for another reason.
    let expected = "the store's writer has ended; restart redrive";
    let started = tokio::time::Instant::now();
    while !harness.store().ping().await.unwrap_err().to_string().contains(expected) {
        assert!(started.elapsed() < std::time::Duration::from_secs(30), "the writer does not end");
    }
    let refused = harness.try_publish(large(&harness, 0, 1)).await.unwrap_err().to_string();
    assert!(refused.contains(expected), "{refused}");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn publish_fails_after_database_file_is_removed_or_replaced() {
    for name in ["redrive.db", "redrive.db-wal"] {
        for is_replaced in [false, true] {
            let (harness, path) = bench().await;
            harness.publish_new(large(&harness, 0, 100)).await;
            let target = path.with_file_name(name);
            match is_replaced {
                false => fs::remove_file(&target).unwrap(),
                true => {
                    fs::write(path.with_file_name("other"), "another file").unwrap();
                    fs::rename(path.with_file_name("other"), &target).unwrap();
                }
            }
            // The next commit is refused, and so are all later ones.
            for n in 1..4 {
                let refused = harness.try_publish(large(&harness, n, 100)).await.unwrap_err().to_string();
                assert!(refused.contains(name) && refused.contains("while in use"), "{refused}");
            }
            let ping = harness.store().ping().await.unwrap_err().to_string();
            assert!(ping.contains("Restore the file, then restart redrive"), "{ping}");
        }
    }
}

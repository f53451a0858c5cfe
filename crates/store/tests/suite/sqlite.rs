//! The embedded store: the suite of every store, and what holds for SQLite alone.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use bytes::Bytes;
use redrive_core::{
    event::Event,
    webhook::confidential::{EndpointAuth, Hidden},
};
use redrive_store::{
    Birth, Disable, Erased, NewEvent, Next, Old, OpenError, Outcome, Published, Recorded, Store, StoreError,
    conformance::{Bench, Opened, Reopening, at, page},
    conformance_suite,
    sqlite::{self, Options, Sqlite},
};
use tempfile::TempDir;

async fn open() -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    open_at(&path, folder)
}

/// A store whose database is at `path`; `folder` is kept as long as it is used.
fn open_at(path: &Path, folder: TempDir) -> Opened {
    let options = Options::at(path).sealed_by(redrive_testkit::vault());
    let open = move || -> Arc<dyn Store> { Arc::new(Sqlite::open(&options).unwrap()) };
    let store = open();
    let reopen = Box::new(move || -> Reopening {
        let store = open();
        Box::pin(async { store })
    });
    Opened { store, keep: Box::new(folder), reopen }
}

conformance_suite!(open);

/// A bench on a database whose path is known.
async fn bench() -> (Arc<Bench>, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    (Bench::new(open_at(&path, folder)).await, path)
}

fn refused(path: &Path) -> OpenError {
    match Sqlite::open(&Options::at(path).sealed_by(redrive_testkit::vault())) {
        Err(error) => error,
        Ok(_) => panic!("{} was opened", path.display()),
    }
}

#[test]
fn a_newer_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    drop(Sqlite::open(&Options::at(&path).sealed_by(redrive_testkit::vault())).unwrap());
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
fn what_is_no_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter.txt");
    let letter = "Dear database, ".repeat(1000);
    fs::write(&path, &letter).unwrap();
    let message = refused(&path).to_string();
    assert!(
        message.contains("letter.txt cannot be opened: ") && message.contains("not a database"),
        "{message}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), letter, "and left as it was");
    let message = refused(folder.path()).to_string();
    assert!(message.contains("cannot be opened: "), "{message}");
}

#[test]
fn one_store_has_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let first = Sqlite::open(&Options::at(&path).sealed_by(redrive_testkit::vault())).unwrap();
    let error = refused(&path);
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("redrive.db is in use by another redrive process"), "{error}");
    drop(first);
    drop(Sqlite::open(&Options::at(&path).sealed_by(redrive_testkit::vault())).unwrap());
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("made").join("for-it");
    let bench = Bench::new(open_at(&inside.join("redrive.db"), folder)).await;
    bench.publish_new(bench.new_event(at(0), Birth::Leased)).await;
    assert_eq!(mode(&inside), 0o700);
    let files: Vec<_> = fs::read_dir(&inside).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(files.iter().any(|file| file.ends_with("redrive.db-wal")), "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// An event that nobody is subscribed to, with so many bytes of payload.
fn large(bench: &Bench, time: i64, size: usize) -> NewEvent {
    let event = Event { data: Bytes::from(vec![b'7'; size]), ..bench.event(at(time)) };
    bench.fan_out(event, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_write_ahead_log_stays_bounded_under_load() {
    const LIMIT: u64 = 64 << 20;
    let (bench, path) = bench().await;
    let wal = path.with_file_name("redrive.db-wal");
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let bench = bench.clone();
            tokio::spawn(async move {
                loop {
                    bench
                        .store()
                        .list_events(bench.tenant.clone(), Default::default(), page(200))
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    let mut largest = 0;
    for batch in 0..200 {
        let answers: Vec<_> = (0..64).map(|_| bench.submit(large(&bench, batch, 8 << 10))).collect();
        for answer in answers {
            assert!(matches!(answer.await.unwrap(), Ok(Published::New { .. })));
        }
        largest = largest.max(fs::metadata(&wal).unwrap().len());
    }
    readers.iter().for_each(|reader| reader.abort());
    eprintln!("the log had at most {} MiB for 100 MiB written", largest >> 20);
    assert!(largest <= LIMIT, "{largest}");
}

/// How SQLite goes about a statement, step by step.
fn plan(connection: &rusqlite::Connection, statement: &str) -> Vec<String> {
    let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
    explain.raw_query().mapped(|row| row.get("detail")).map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_work_is_found_by_index_alone() {
    let (_bench, path) = bench().await;
    let connection = rusqlite::Connection::open(path).unwrap();
    for statement in sqlite::hot_statements() {
        let steps = plan(&connection, statement);
        // No scan, and no sorting of what was found either.
        let searches = |step: &String| {
            step.starts_with("CORRELATED ") || step.starts_with("SEARCH ") && step.contains(" USING ")
        };
        assert!(!steps.is_empty() && steps.iter().all(searches), "{statement}\n{steps:#?}");
    }
    let taken = sqlite::hot_statements().iter().find(|statement| statement.contains("FROM leased")).unwrap();
    let steps = plan(&connection, taken);
    assert!(steps[0].ends_with("leased_in_order (webhook=? AND lane=?)"), "{steps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_bounded_reads_no_table_to_its_end() {
    let (_bench, path) = bench().await;
    let connection = rusqlite::Connection::open(path).unwrap();
    for statement in sqlite::bounded_statements() {
        let steps = plan(&connection, statement);
        // What a subquery found may be gone through; it is bounded itself.
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
async fn more_than_may_wait_is_refused_as_overload() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let mut opened = open_at(&path, folder);
    let few = Options {
        max_waiting_bytes: 100 << 10,
        max_waiting: 100,
        ..Options::at(&path).sealed_by(redrive_testkit::vault())
    };
    drop(opened.store);
    opened.store = Arc::new(Sqlite::open(&few).unwrap());
    let bench = Bench::new(opened).await;
    assert_eq!(bench.try_publish(large(&bench, 0, 101 << 10)).await, Err(StoreError::Overloaded));
    // Whatever was refused left room behind: one after the other, any number is taken.
    for n in 0..200 {
        bench.publish_new(large(&bench, n, 90 << 10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_finishes_what_waits() {
    let (mut bench, _path) = bench().await;
    let answers: Vec<_> =
        (0..300).map(|n| bench.submit(bench.new_event(at(n), Birth::Waiting(at(n))))).collect();
    Bench::reopen(&mut bench).await;
    for answer in answers {
        assert!(matches!(answer.await.unwrap(), Ok(Published::New { .. })));
    }
    assert_eq!(bench.store().vitals().await.unwrap().waiting, [0, 300, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_in_the_files() {
    let (bench, path) = bench().await;
    for n in 0..50 {
        bench.publish_new(bench.new_event(at(n), Birth::Waiting(at(n)))).await;
    }
    // The files as a crash at this moment would leave them.
    let crashed = tempfile::tempdir().unwrap();
    for name in ["redrive.db", "redrive.db-wal"] {
        fs::copy(path.with_file_name(name), crashed.path().join(name)).unwrap();
    }
    let store =
        Sqlite::open(&Options::at(crashed.path().join("redrive.db")).sealed_by(redrive_testkit::vault()))
            .unwrap();
    let store: &dyn Store = &store;
    assert_eq!(store.vitals().await.unwrap().waiting, [0, 50, 0]);
    let events = store.list_events(bench.tenant.clone(), Default::default(), page(100)).await.unwrap().found;
    let numbers: BTreeSet<_> = events.iter().map(|stored| stored.sequence_number).collect();
    assert_eq!(numbers, (1..=50).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_fails_only_what_needs_it() {
    let (bench, path) = bench().await;
    let other = bench.new_webhook().await.id;
    let damage = rusqlite::Connection::open(path).unwrap();
    let damaged = damage.execute("UPDATE webhooks SET spec = '{' WHERE id = ?", [bench.webhook.as_bytes()]);
    assert_eq!(damaged, Ok(1));
    let mut answers = Vec::new();
    for n in 0..20 {
        let webhook = if n == 10 { bench.webhook } else { other };
        let new = bench.fan_out(bench.event(at(n)), &[(webhook, Birth::Leased)]);
        let id = new.deliveries[0].id;
        bench.publish_new(new).await;
        let disable = (n == 10).then(|| "410 Gone".to_owned());
        let outcome = bench.outcome(id, 1, Next::Delivered, at(n));
        answers.push((
            n,
            Outcome {
                webhook,
                disable: disable.map(|reason| Disable { reason, url: String::new() }),
                ..outcome
            },
        ));
    }
    let answers: Vec<_> =
        answers.into_iter().map(|(n, outcome)| (n, bench.submit_outcome(outcome))).collect();
    for (n, answer) in answers {
        let answer = answer.await.unwrap();
        assert_eq!(matches!(answer, Err(StoreError::Refused(_))), n == 10, "{n}: {answer:?}");
        assert_eq!(matches!(answer, Ok(Recorded::Done { .. })), n != 10, "{n}: {answer:?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn readers_that_went_away_leave_nothing_open() {
    let (bench, path) = bench().await;
    for n in 0..500 {
        bench.publish_new(large(&bench, n, 1 << 10)).await;
    }
    for _ in 0..100 {
        let mut listing = bench.store().list_events(bench.tenant.clone(), Default::default(), page(500));
        let polled = std::future::poll_fn(|context| std::task::Poll::Ready(listing.as_mut().poll(context)));
        assert!(polled.await.is_pending());
    }
    bench.store().ping().await.unwrap();
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let opened =
        files.filter_map(|file| fs::read_link(file.unwrap().path()).ok()).filter(|file| *file == path);
    let opened = opened.count();
    assert!(opened <= 1 + Options::at(&path).readers, "{opened}");
}

/// Names the folder of a process that may not write large files.
const FULL_DISK: &str = "REDRIVE_TEST_FULL_DISK";

/// A limit on the size of files stands for a full disk: it needs no mount, but a process of its own.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_and_loses_nothing() {
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
            &redrive_testkit::test_name(module_path!(), "a_full_disk_refuses_and_loses_nothing"),
        ])
        .arg("--nocapture")
        .env(FULL_DISK, folder.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));

    let acknowledged = fs::read_to_string(folder.path().join("acknowledged")).unwrap();
    assert!(acknowledged.lines().count() > 10);
    let store =
        Sqlite::open(&Options::at(folder.path().join("redrive.db")).sealed_by(redrive_testkit::vault()))
            .unwrap();
    let store: &dyn Store = &store;
    let tenant = redrive_core::TenantId::parse("acme").unwrap();
    let events = store.list_events(tenant, Default::default(), page(10_000)).await.unwrap().found;
    let stored: BTreeSet<_> = events.iter().map(|stored| stored.event.id.to_string()).collect();
    assert_eq!(stored, acknowledged.lines().map(str::to_owned).collect());
    assert_eq!(store.ping().await, Ok(()), "with room again, it works again");
}

#[cfg(unix)]
async fn fill_the_disk(folder: &Path) {
    let bench = Bench::new(open_at(&folder.join("redrive.db"), tempfile::tempdir().unwrap())).await;
    let mut acknowledged = Vec::new();
    let refused = loop {
        let new = large(&bench, acknowledged.len() as i64, 40 << 10);
        let id = new.event.id;
        match bench.try_publish(new).await {
            Ok(_) => acknowledged.push(id),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    // What little room is left is soon used up by asking whether there is any.
    let mut asked = 0;
    while bench.store().ping().await.is_ok() {
        asked += 1;
        assert!(asked < 100, "a full disk is noticed");
    }
    let again = bench.try_publish(large(&bench, 0, 1)).await;
    assert!(matches!(again, Err(StoreError::Unavailable(_))), "{again:?}");
    for id in &acknowledged {
        assert!(bench.store().event(bench.tenant.clone(), *id).await.unwrap().is_some(), "reading goes on");
    }
    let list: String = acknowledged.iter().map(|id| format!("{id}\n")).collect();
    fs::write(folder.join("acknowledged"), list).unwrap();
}

#[test]
fn the_database_of_another_program_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let error =
        Sqlite::open(&Options::at(&path).sealed_by(redrive_testkit::vault())).err().unwrap().to_string();
    assert!(error.contains("another program"), "{error}");
    let tables: i64 = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM sqlite_master", (), |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1);
}

/// Everything in the files of a database, its write-ahead log included.
fn files_of(path: &Path) -> Vec<u8> {
    let wal = format!("{}-wal", path.display());
    [fs::read(path).unwrap(), fs::read(wal).unwrap_or_default()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_file_and_a_new_master_key_takes_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let open =
        |vault| Arc::new(Sqlite::open(&Options::at(&path).sealed_by(vault)).unwrap()) as Arc<dyn Store>;
    let never = Box::new(|| -> Reopening { panic!("nobody opens it again") });
    let opened = Opened { store: open(redrive_testkit::vault_of(1, &[])), keep: Box::new(()), reopen: never };
    let bench = Bench::new(opened).await;
    let mut webhook = bench.webhook_of(&bench.tenant);
    webhook.spec.headers.insert("x-key".into(), Hidden::new("planted-in-a-header"));
    webhook.spec.auth = Some(EndpointAuth::Bearer { token: Hidden::new("planted-as-a-token") });
    bench.store().create_webhook(webhook.clone()).await.unwrap();
    let planted = ["planted-in-a-header", "planted-as-a-token", &webhook.secrets[0].secret.reveal()];
    let found = |files: &[u8], text: &str| files.windows(text.len()).any(|part| part == text.as_bytes());
    let files = files_of(&path);
    assert!(found(&files, &webhook.spec.url), "what is no secret is there");
    for planted in planted {
        assert!(!found(&files, planted), "{planted} is in the files");
    }
    let (tenant, id, both) = (bench.tenant.clone(), webhook.id, bench.webhook);
    drop(bench);

    let stranger = open(redrive_testkit::vault_of(2, &[]));
    let error = stranger.webhook(tenant.clone(), id).await.unwrap_err().to_string();
    assert!(error.contains("which is not configured"), "{error}");
    drop(stranger);
    let store = open(redrive_testkit::vault_of(2, &[1]));
    assert_eq!(store.webhook(tenant.clone(), id).await.unwrap().unwrap().webhook, webhook);
    let done = store.rewrap(None, 10).await.unwrap();
    assert_eq!((done.changed, done.last), (2, Some(id.max(both))));
    assert_eq!(store.sealed_with().await.unwrap(), [redrive_testkit::vault_of(2, &[]).current()]);
    drop(store);
    let store = open(redrive_testkit::vault_of(2, &[]));
    assert_eq!(store.webhook(tenant, id).await.unwrap().unwrap().webhook, webhook);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_the_audit_log_cannot_be_changed() {
    let (bench, path) = bench().await;
    bench.store().ping().await.unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute("INSERT INTO audit (id, actor, action, result) VALUES (x'01', 'a', 'b', 'done')", ())
        .unwrap();
    let error = other.execute("UPDATE audit SET actor = 'c'", ()).unwrap_err().to_string();
    assert!(error.contains("never changed"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn space_is_given_back_when_old_events_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let bench = Bench::new(open_at(&path, tempfile::tempdir().unwrap())).await;
    for n in 0..400 {
        bench.publish_new(NewEvent { deliveries: Vec::new(), ..large(&bench, n, 50 << 10) }).await;
    }
    let size =
        || fs::metadata(&path).unwrap().len() + fs::metadata(path.with_extension("db-wal")).unwrap().len();
    let full = size();
    assert!(full > 18 << 20, "{full}");
    let old =
        Old { tenant: bench.tenant.clone(), before: at(1_000), after: None, rows: 1_000, archive: false };
    let pruned = bench.store().prune_events(old).await.unwrap();
    assert_eq!(pruned.left.events, 400);
    let mut steps = 0;
    while bench.store().give_space_back(256 << 10).await.unwrap() > 0 {
        steps += 1;
    }
    assert!(steps > 10, "in small steps: {steps}");
    drop(bench);
    let left = fs::metadata(&path).unwrap().len();
    assert!(left < full / 20, "{left} of {full} are left");
    println!("{full} bytes became {left} in {steps} steps");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_erased_is_in_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redrive.db");
    let bench = Bench::new(open_at(&path, tempfile::tempdir().unwrap())).await;
    let holds = |text: &str| {
        let files = fs::read_dir(folder.path()).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
        files.filter(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes())).count() > 0
    };
    let mut events = Vec::new();
    // A small one shares its page with others; a large one has pages of its own.
    for (n, size) in [20, 30_000, 20, 20, 9_000].into_iter().enumerate() {
        let data = Bytes::from(format!("\"{}-secret-{n}\"", "x".repeat(size)));
        let metadata = Some(Bytes::from(format!("{{\"k\":\"meta-{n}\"}}")));
        let event = Event { data, metadata, ..bench.event(at(n as i64)) };
        events.push(event.id);
        bench.publish_new(bench.fan_out(event, &[])).await;
    }
    for n in [0, 1, 4] {
        let erased = bench.store().erase(bench.tenant.clone(), events[n], at(50)).await.unwrap();
        assert_eq!(erased, Erased::Now);
    }
    drop(bench);
    for n in 0..5 {
        let erased = [0, 1, 4].contains(&n);
        assert_eq!(holds(&format!("secret-{n}")), !erased, "{n}");
        assert_eq!(holds(&format!("meta-{n}")), !erased, "{n}");
    }
}

/// Where a plan reads a whole table or sorts what could be much.
fn faults(plan: &[String]) -> Vec<&String> {
    // What waits and what nodes have is walked from the newest on, by its key.
    let may_walk = |line: &str| ["waiting", "leased"].iter().any(|table| line.contains(table));
    let is_fault = |line: &&String| {
        line.starts_with("SCAN") && !may_walk(line)
            || line.contains("TEMP B-TREE")
            || line.contains("AUTOMATIC")
    };
    plan.iter().filter(is_fault).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_go_by_index_and_sort_nothing() {
    let (_bench, path) = bench().await;
    let connection = rusqlite::Connection::open(&path).unwrap();
    for (name, statement) in sqlite::planned_statements() {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
        let values = vec![rusqlite::types::Null; explain.parameter_count()];
        let plan =
            explain.query_map(rusqlite::params_from_iter(values), |row| row.get::<_, String>(3)).unwrap();
        let plan: Vec<_> = plan.collect::<Result<_, _>>().unwrap();
        let faults = faults(&plan);
        // One event's deliveries are as many as it fans out to.
        let of_event = plan.iter().any(|line| line.contains("deliveries_by_event"));
        let only_sorts = faults.iter().all(|line| line.contains("TEMP B-TREE FOR ORDER BY"));
        assert!(faults.is_empty() || (of_event && only_sorts), "{name}\n{statement}\n{plan:#?}");
    }
}

fn count_changes(path: &Path) -> i64 {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.query_row("SELECT count(*) FROM changes", (), |row| row.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_events_leave_no_rows_in_the_change_feed() {
    let (bench, path) = bench().await;
    for n in 0..20 {
        let id = bench.leased(at(n)).await;
        let failing = redrive_store::Effects {
            failing: Some(redrive_store::Failing::Since(at(n))),
            hold_until: Some(at(n + 1_000)),
            ..Default::default()
        };
        let outcome = bench.outcome(id, 1, Next::Retry { due: at(n + 500) }, at(n));
        let recorded = bench.record(Outcome { effects: failing, ..outcome }).await;
        assert!(matches!(recorded, Recorded::Done { .. }), "{recorded:?}");
    }
    assert_eq!(count_changes(&path), 0);
}

#[test]
fn change_feed_of_an_older_version_is_emptied_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::at(folder.path().join("redrive.db")).sealed_by(redrive_testkit::vault());
    drop(Sqlite::open(&options).unwrap());
    let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
                INSERT INTO changes (kind) SELECT 3 FROM n";
    rusqlite::Connection::open(&options.path).unwrap().execute(rows, ()).unwrap();
    assert_eq!(count_changes(&options.path), 10_000);
    drop(Sqlite::open(&options).unwrap());
    assert_eq!(count_changes(&options.path), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_store_reports_changes() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::at(folder.path().join("redrive.db")).sealed_by(redrive_testkit::vault());
    let store = Arc::new(Sqlite::open(&Options { shared: true, ..options }).unwrap());
    let never = Box::new(|| -> Reopening { panic!("this test does not reopen the store") });
    let bench = Bench::new(Opened { store, keep: Box::new(folder), reopen: never }).await;
    redrive_store::conformance::nodes::changes_are_told_from_a_mark_on(&bench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_writer_is_reported_by_ping_and_fails_publishes() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options::at(folder.path().join("redrive.db")).sealed_by(redrive_testkit::vault());
    let store = Arc::new(Sqlite::open(&options).unwrap());
    let never = Box::new(|| -> Reopening { panic!("this test does not reopen the store") });
    let opened = Opened { store: store.clone(), keep: Box::new(folder), reopen: never };
    let bench = Bench::new(opened).await;
    assert_eq!(bench.store().ping().await, Ok(()));
    store.end_writer();
    // A change that was submitted before the thread has ended fails as well, for another reason.
    let expected = "the store's writer has ended; restart redrive";
    let began = tokio::time::Instant::now();
    while !bench.store().ping().await.unwrap_err().to_string().contains(expected) {
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "the writer does not end");
    }
    let refused = bench.try_publish(large(&bench, 0, 1)).await.unwrap_err().to_string();
    assert!(refused.contains(expected), "{refused}");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_acknowledged_after_the_database_file_was_removed_or_replaced() {
    for name in ["redrive.db", "redrive.db-wal"] {
        for is_replaced in [false, true] {
            let (bench, path) = bench().await;
            bench.publish_new(large(&bench, 0, 100)).await;
            let target = path.with_file_name(name);
            match is_replaced {
                false => fs::remove_file(&target).unwrap(),
                true => {
                    fs::write(path.with_file_name("other"), "another file").unwrap();
                    fs::rename(path.with_file_name("other"), &target).unwrap();
                }
            }
            // The very next commit is refused, and so are all after it, put back or not.
            for n in 1..4 {
                let refused = bench.try_publish(large(&bench, n, 100)).await.unwrap_err().to_string();
                assert!(refused.contains(name) && refused.contains("while in use"), "{refused}");
            }
            let ping = bench.store().ping().await.unwrap_err().to_string();
            assert!(ping.contains("Restore the file, then restart redrive"), "{ping}");
        }
    }
}

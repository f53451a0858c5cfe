//! Copying the embedded store to PostgreSQL: everything is copied, whenever the copy is interrupted.

// Tests fail by panicking on errors.

mod sample_data;
mod snapshot;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use redrive_core::{Time, event::Event};
use redrive_store::{
    InitialState, Nodes, OpenError, Publish, PublishResult, Store,
    conformance::{at, page},
    copy::{CopyError, Progress, Report, Start, copy, copy_in_chunks},
    postgres::{self, Postgres},
    sqlite::{self, Sqlite},
};
use redrive_testkit::Database;
use tempfile::TempDir;

/// Source and empty target of a copy.
struct Both {
    folder: TempDir,
    database: Database,
    /// Positions that copies have reported.
    reported: Arc<Mutex<BTreeSet<(&'static str, u64)>>>,
}

impl Both {
    async fn empty() -> Self {
        let database = redrive_testkit::Postgres::shared().await;
        Self { folder: tempfile::tempdir().unwrap(), database, reported: Arc::default() }
    }

    /// Creates a source that contains rows of every kind.
    async fn full() -> Self {
        let both = Self::empty().await;
        sample_data::create(&both.path()).await;
        both
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("redrive.db")
    }

    fn from(&self) -> sqlite::Options {
        sqlite::Options::at(self.path()).with_vault(redrive_testkit::vault())
    }

    fn to(&self) -> postgres::Options {
        postgres::Options {
            writers: 2,
            readers: 1,
            allow_unsafe_durability: true,
            ..postgres::Options::at(self.database.url()).with_vault(redrive_testkit::vault())
        }
    }

    async fn copy(&self) -> Result<Report, CopyError> {
        copy(&self.from(), &self.to(), |_| {}).await
    }

    /// Copies in small chunks and stops after the given number of new chunks. Returns `true` if the copy finished
    /// before.
    async fn copy_some(&self, chunks: usize) -> bool {
        let (from, to, reported) = (self.from(), self.to(), self.reported.clone());
        let left = AtomicUsize::new(chunks);
        let stop = move |progress| {
            if let Progress::Rows { table, done, .. } = progress
                && reported.lock().unwrap().insert((table, done))
                && left.fetch_sub(1, SeqCst) == 1
            {
                std::panic::resume_unwind(Box::new("stopped"));
            }
        };
        tokio::spawn(async move { copy_in_chunks(&from, &to, 3, stop).await.unwrap() }).await.is_ok()
    }

    async fn count(&self, table: &str) -> u64 {
        self.database.query(&format!("SELECT count(*) FROM {table}")).await[0][0].parse().unwrap()
    }

    /// Asserts that the target contains the same as the source, and that all of it can be delivered.
    async fn assert_same(&self) {
        assert_eq!(self.count("copy_progress").await, 0);
        let target = Postgres::open(&self.to()).await.unwrap();
        let source = Sqlite::open(&self.from()).unwrap();
        // Rescue the leases of the source as the copy did, with the same due time.
        let now = self.database.query("SELECT max(due) FROM waiting WHERE abnormal_releases > 0").await;
        let now = Time::from_millis(now[0][0].parse().unwrap());
        let rescuer = source.join(Default::default(), now).await.unwrap();
        for dead in source.other_epochs(rescuer).await.unwrap() {
            assert!(source.rescue(dead, now, 1000).await.unwrap().finished);
        }
        let (expected, found) =
            (snapshot::take_snapshot(&source).await, snapshot::take_snapshot(&target).await);
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected, found);
        }
        assert_eq!(expected.len(), found.len());
        let elsewhere = tempfile::tempdir().unwrap();
        let harness = sample_data::bench_at(&elsewhere.path().join("bench.db")).await;
        let waiting = self.count("waiting").await as usize;
        let (expected, found) =
            (snapshot::deliver_all(&source, &harness).await, snapshot::deliver_all(&target, &harness).await);
        assert_eq!(found.len(), waiting);
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected, found);
        }
    }
}

fn refusal(result: Result<Report, CopyError>) -> String {
    result.err().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_contains_everything() {
    let both = Both::full().await;
    let before = fs::read(both.path()).unwrap();
    let reported = Mutex::new(Vec::new());
    let report =
        copy(&both.from(), &both.to(), |progress| reported.lock().unwrap().push(progress)).await.unwrap();
    assert_eq!(fs::read(both.path()).unwrap(), before, "the source is unchanged");
    let reported = reported.into_inner().unwrap();
    assert_eq!(reported[..2], [Progress::Begun(Start::New), Progress::Counting]);
    assert_eq!(reported.last(), Some(&Progress::Checking));
    assert_eq!((report.start, report.altered), (Start::New, 0));
    assert_eq!((report.rescued, report.cancelled), (3, 2));
    for table in &report.tables {
        let (waits, leased) = (table.table == "waiting", table.table == "leased");
        let target = table.source + if waits { 3 } else { 0 } - if leased { table.source } else { 0 };
        assert_eq!(table.target, target, "{table:?}");
        assert!(table.source > 0, "{table:?}");
        let of = if leased { 3 } else { table.source };
        assert!(reported.contains(&Progress::Rows { table: table.table, done: of, total: of }), "{table:?}");
        assert_eq!(both.count(table.table).await, table.target);
    }
    both.assert_same().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_keys_and_sequences_continue_after_copy() {
    let both = Both::full().await;
    both.copy().await.unwrap();
    let target = Postgres::open(&both.to()).await.unwrap();
    let epoch = target.join(Default::default(), at(0)).await.unwrap();
    let harness = sample_data::bench_at(&both.folder.path().join("bench.db")).await;
    let changes = {
        use redrive_store::{Config, History};
        let last =
            target.list_events(harness.tenant_id.clone(), Default::default(), page(1000)).await.unwrap();
        let last = last.found.iter().map(|event| event.sequence_number).max().unwrap();
        (target.config_changes(harness.tenant_id.clone(), 0, 1000).await.unwrap().unwrap().version, last)
    };
    for (key, body, expected) in
        [("a", 7, "Duplicate"), ("b", 8, "KeyReused"), ("c", 7, "New { sequence_number:")]
    {
        let event = Event { idempotency_key: Some(key.into()), ..harness.event(at(4)) };
        let reservation = redrive_store::IdempotencyReservation {
            body_hash: [body; 32],
            expires_at: at(9_000),
            confirmed_now: at(0),
        };
        let mut new = harness.fan_out(event, &[(harness.webhook_id, InitialState::Leased)]);
        (new.idempotency, new.config_version, new.epoch) = (Some(reservation), changes.0, epoch);
        let (sender, reply) = tokio::sync::oneshot::channel();
        target.publish(new, Box::new(move |result| drop(sender.send(result))));
        let published = reply.await.unwrap().unwrap();
        assert!(format!("{published:?}").starts_with(expected), "{key}: {published:?}");
        if let PublishResult::New { sequence_number } = published {
            assert_eq!(sequence_number, changes.1 + 1);
        }
    }
}

/// The copy is interrupted at any point, also inside a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn copy_dropped_at_any_point_is_resumed() {
    let both = Both::full().await;
    let mut timeout = Duration::from_millis(2);
    let report = loop {
        let (from, to) = (both.from(), both.to());
        match tokio::time::timeout(timeout, copy_in_chunks(&from, &to, 2, |_| {})).await {
            Ok(report) => break report.unwrap(),
            Err(_) => timeout += Duration::from_millis(3),
        }
    };
    assert_eq!(report.start, Start::Resumed);
    both.assert_same().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn source_used_since_interruption_is_copied_from_start() {
    let both = Both::full().await;
    assert!(!both.copy_some(30).await);
    let source = Sqlite::open(&both.from()).unwrap();
    source.join(Default::default(), at(0)).await.unwrap();
    drop(source);
    assert_eq!(both.copy().await.unwrap().start, Start::Restarted);
    both.assert_same().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_copy_resumes_after_source_file_is_moved() {
    let both = Both::full().await;
    assert!(!both.copy_some(20).await);
    let changed = both.folder.path().join("moved.db");
    for end in ["", "-wal", "-shm"] {
        let name = |path: &Path| PathBuf::from(format!("{}{end}", path.display()));
        if name(&both.path()).exists() {
            fs::rename(name(&both.path()), name(&changed)).unwrap();
        }
    }
    let report =
        copy(&sqlite::Options::at(&changed).with_vault(redrive_testkit::vault()), &both.to(), |_| {})
            .await
            .unwrap();
    assert_eq!(report.start, Start::Resumed);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_source_is_read_with_its_write_ahead_log() {
    let both = Both::empty().await;
    let harness = sample_data::bench_at(&both.path()).await;
    harness.waiting(at(0), at(0)).await;
    let left = tempfile::tempdir().unwrap();
    for name in ["redrive.db", "redrive.db-wal"] {
        fs::copy(both.folder.path().join(name), left.path().join(name)).unwrap();
    }
    let from = sqlite::Options::at(left.path().join("redrive.db")).with_vault(redrive_testkit::vault());
    copy(&from, &both.to(), |_| {}).await.unwrap();
    assert_eq!(both.count("waiting").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn target_in_use_is_refused() {
    let both = Both::full().await;
    both.copy().await.unwrap();
    let error = refusal(both.copy().await);
    assert!(error.contains("is not empty: it has events"), "{error}");

    let both = Both::full().await;
    let target = Postgres::open(&both.to()).await.unwrap();
    let epoch = target.join(Default::default(), at(0)).await.unwrap();
    let error = refusal(both.copy().await);
    assert!(error.contains("it has a running server"), "{error}");
    assert!(target.rescue(epoch, at(0), 10).await.unwrap().finished);
    both.copy().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_copy_of_another_source_is_not_changed() {
    let both = Both::full().await;
    assert!(!both.copy_some(20).await);
    let another = both.folder.path().join("another.db");
    drop(sample_data::bench_at(&another).await);
    let error =
        copy(&sqlite::Options::at(&another).with_vault(redrive_testkit::vault()), &both.to(), |_| {}).await;
    let error = refusal(error);
    assert!(error.contains("unfinished copy of another source") && error.contains("redrive.db"), "{error}");
    assert_eq!(both.copy().await.unwrap().start, Start::Resumed);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_invalid_or_used_source_is_refused() {
    let both = Both::empty().await;
    let error = refusal(both.copy().await);
    assert!(error.contains("the file does not exist"), "{error}");
    fs::write(both.path(), "Dear database, ".repeat(1000)).unwrap();
    let error = refusal(both.copy().await);
    assert!(error.contains("cannot be copied"), "{error}");
    fs::remove_file(both.path()).unwrap();
    let server: Arc<dyn Store> = Arc::new(Sqlite::open(&both.from()).unwrap());
    let error = refusal(both.copy().await);
    assert!(error.contains("in use by another redrive process; stop it first"), "{error}");
    drop(server);
    assert_eq!(both.copy().await.unwrap().tables[0].target, 1, "an empty database is accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn unstorable_text_is_replaced_and_reported() {
    let both = Both::full().await;
    let source = rusqlite::Connection::open(both.path()).unwrap();
    source.execute("UPDATE events SET subject = 'a' || char(0) || 'b' WHERE seq = 1", ()).unwrap();
    source.execute("UPDATE deliveries SET round = 5000000000 WHERE round = 2", ()).unwrap();
    drop(source);
    let error = refusal(both.copy().await);
    assert!(error.starts_with("deliveries ") && error.contains("round: 5000000000 does not fit"), "{error}");
    let source = rusqlite::Connection::open(both.path()).unwrap();
    source.execute("UPDATE deliveries SET round = 2 WHERE round > 2", ()).unwrap();
    drop(source);
    let report = both.copy().await.unwrap();
    assert_eq!((report.start, report.altered), (Start::Resumed, 2), "the first event of each tenant");
    assert!(report.altered_values.iter().all(|value| value.ends_with(": subject")), "{report:?}");
    let replaced = "SELECT count(*) FROM events WHERE subject = 'a\u{fffd}b'";
    assert_eq!(both.database.query(replaced).await, [["2"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_with_differences_is_refused() {
    let both = Both::full().await;
    assert!(!both.copy_some(20).await);
    both.database.execute("DELETE FROM api_keys WHERE revoked_at IS NOT NULL").await;
    let error = refusal(both.copy().await);
    assert!(
        error.contains("rows of api_keys: 2 instead of 3;") && error.contains("do not use it"),
        "{error}"
    );
    assert!(Postgres::open(&both.to()).await.is_err());
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn stopped_copy_is_resumed() {
        for chunks in [1, 4, 13] {
            let both = Both::full().await;
            let mut runs = 0;
            while !both.copy_some(chunks).await {
                runs += 1;
                let error = Postgres::open(&both.to()).await.err().unwrap();
                assert!(matches!(error, OpenError::UnfinishedCopy { .. }), "{error:?}");
                assert!(error.to_string().contains("run redrive store copy again"), "{error}");
            }
            assert!(runs * chunks > 40, "{runs} runs");
            both.assert_same().await;
        }
    }
}

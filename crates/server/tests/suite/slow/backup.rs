//! Backups that are restored: of SQLite while the server is under load, and of PostgreSQL by the printed commands.

use std::{
    path::Path,
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use redrive_testkit::{Api, Postgres, Receiver, Redrive, Setup, WAIT_TIMEOUT};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::process::{message, run, stderr, stdout};

/// Publishers that run until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    /// Ids of acknowledged events.
    acknowledged: Arc<Mutex<Vec<String>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(api: &Api, publishers: usize) -> Self {
        let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<String>>>::default());
        let payload = json!({"text": "x".repeat(8_000)});
        let publish = |_| {
            let (api, stop, acknowledged, payload) =
                (api.clone(), stop.clone(), acknowledged.clone(), payload.clone());
            tokio::spawn(async move {
                while !stop.load(Relaxed) {
                    let event = api.publish("order.created", &payload).await;
                    acknowledged.lock().unwrap().push(event["id"].as_str().unwrap().to_owned());
                }
            })
        };
        let tasks = (0..publishers).map(publish).collect();
        Self { stop, acknowledged, tasks }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    async fn wait_for(&self, count: usize) {
        let wait = async {
            while self.count() < count {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, wait).await.expect("too few events are published");
    }

    /// Stops the publishers; a publish that failed is a panic here.
    async fn stop(self) {
        self.stop.store(true, Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

async fn assert_found(api: &Api, ids: &[String]) {
    for id in ids {
        let response = api.get(&format!("/v1/events/{id}")).await;
        assert_eq!(response.status, 200, "{id} was acknowledged before the backup began and is not in it");
    }
}

/// Runs `redrive backup` as another process of the same user.
async fn back_up(folder: &Path, file: &str, database: String) -> Output {
    let (folder, file) = (folder.to_owned(), file.to_owned());
    spawn_blocking(move || run(&folder, &["backup", &file, "--database-url", &database], &[])).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_under_load_has_every_event_acknowledged_before_it_began() {
    let (receiver, folder) = (Receiver::start().await, tempfile::tempdir().unwrap());
    let server = Redrive::start().await;
    let webhook = server.api().create_webhook(&receiver.url(), Value::Null).await;
    let load = Load::start(&server.api(), 8);
    load.wait_for(1_500).await;
    let database = format!("sqlite:{}", server.data_dir().join("redrive.db").display());
    for round in 1..=2 {
        let before = load.acknowledged.lock().unwrap().clone();
        let file = format!("copy{round}.db");
        let output = back_up(folder.path(), &file, database.clone()).await;
        let during = load.count() - before.len();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(stdout(&output).contains("The copy was checked and is complete."), "{}", stdout(&output));
        assert!(during > 0, "the server publishes while the copy is made");
        println!("{} events before, {during} during: {}", before.len(), stdout(&output));

        let restored_to = folder.path().join(format!("restored{round}"));
        std::fs::create_dir(&restored_to).unwrap();
        std::fs::rename(folder.path().join(&file), restored_to.join("redrive.db")).unwrap();
        let restored = Redrive::start_with(Setup::new().data_dir(&restored_to)).await;
        assert_found(&restored.api(), &before).await;
        let kept = restored.api().get(&format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap())).await;
        assert_eq!(kept.expect(200)["url"], webhook["url"], "its secret can be read with the master key");
        let event = restored.api().publish("order.created", json!({"round": round})).await;
        receiver
            .wait_until("an event of the restored server", |arrivals| {
                arrivals.iter().any(|arrival| arrival.webhook_id() == event["id"].as_str().unwrap())
            })
            .await;
    }
    load.stop().await;
    assert_eq!(server.api().get("/readyz").await.status, 200);
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "only the restored folders are left: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_file_and_folder_are_refused() {
    let server = Redrive::start().await;
    let database = format!("sqlite:{}", server.data_dir().join("redrive.db").display());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine"), "mine").unwrap();
    for (file, expected) in [
        ("mine", "name a new file"),
        (".", "name a file in it"),
        ("none/copy.db", "No such file or directory"),
    ] {
        let output = back_up(folder.path(), file, database.clone()).await;
        assert_eq!(output.status.code(), Some(1), "{file}");
        assert!(message(&stderr(&output)).contains(expected), "{file}: {}", stderr(&output));
    }
    assert_eq!(std::fs::read(folder.path().join("mine")).unwrap(), b"mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_that_cannot_be_written_to_its_end_is_deleted() {
    let server = Redrive::start().await;
    let database = server.data_dir().join("redrive.db");
    let folder = tempfile::tempdir().unwrap();
    // Writes beyond 32 KiB fail, as on a full disk; the ignored signal would end the process.
    let script = "ulimit -f 32; trap '' XFSZ; exec \"$0\" backup copy.db --database-url \"$1\"";
    let output = Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_redrive"), &format!("sqlite:{}", database.display())])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}{}", stdout(&output), stderr(&output));
    let message = message(&stderr(&output));
    assert!(message.starts_with("copying ") && message.contains("redrive.db failed"), "{message}");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "neither the copy nor copy.db.partial is left");
}

/// Runs a printed command as it is, with the tools of the newest PostgreSQL first in the path.
fn run_line(line: &str, folder: &Path) {
    let mut folders: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.map(|entry| entry.unwrap().path().join("bin")).collect())
        .unwrap_or_default();
    folders.sort();
    folders.reverse();
    let own = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&own))).unwrap();
    let output =
        Command::new("sh").args(["-c", line]).env("PATH", path).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{line}: {}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_commands_back_up_and_restore_postgres() {
    let (postgres, folder) = (Postgres::start().await, tempfile::tempdir().unwrap());
    let node = |url: String| Setup::new().database_url(url);
    let server = Redrive::start_with(node(postgres.url())).await;
    let load = Load::start(&server.api(), 4);
    load.wait_for(200).await;
    let before = load.acknowledged.lock().unwrap().clone();
    let output = back_up(folder.path(), "my copy.dump", postgres.url()).await;
    assert_eq!(output.status.code(), Some(1), "a script must not take this for a backup");
    assert!(message(&stderr(&output)).contains("nothing was copied"), "{}", stderr(&output));
    let printed = stdout(&output);
    let lines: Vec<_> = printed.lines().filter(|line| !line.starts_with('#')).collect();
    let [dump, create, restore] = lines[..] else { panic!("{printed}") };
    for (line, tool) in [(dump, "pg_dump "), (create, "createdb "), (restore, "pg_restore ")] {
        assert!(line.starts_with(tool), "{printed}");
        run_line(line, folder.path());
    }
    load.stop().await;
    drop(server);
    let (_, target) = restore.split_once("--dbname=").unwrap();
    let target = target.split_whitespace().next().unwrap().trim_matches('\'').to_owned();
    assert_ne!(target, postgres.url());
    let restored = Redrive::start_with(node(target)).await;
    assert_found(&restored.api(), &before).await;
}

//! The quickstart: runs the commands of the README and those that `redrive dev` prints.

use std::{
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
};

use redrive_testkit::{Receiver, Redrive, Setup, python_with};
use serde_json::Value;
use tempfile::TempDir;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");

/// Returns the fenced blocks of the README whose info string is `<language> quickstart:<name>`, in order.
fn blocks() -> Vec<(String, String)> {
    let readme = std::fs::read_to_string(README).unwrap_or_else(|error| panic!("{README}: {error}"));
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in readme.lines() {
        match &mut open {
            Some(_) if line.starts_with("```") => blocks.extend(open.take()),
            Some((_, text)) => *text += &format!("{line}\n"),
            None => {
                let name = line.strip_prefix("```").and_then(|info| info.split_once(" quickstart:"));
                // Other blocks are tracked too; otherwise their end would be mistaken for a start.
                open = match name {
                    Some((_, name)) => Some((name.trim().to_owned(), String::new())),
                    None => line.starts_with("```").then(Default::default),
                };
            }
        }
    }
    blocks.retain(|(name, _)| !name.is_empty());
    blocks
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts `redrive dev` as a new user does: no key, no settings, data in the current directory.
async fn newcomer(folder: &Path) -> Redrive {
    let setup = Setup::new().data_dir(folder).database_url("sqlite:redrive-data/redrive.db");
    Redrive::start_with(setup.without_env("REDRIVE_ADMIN_KEY")).await
}

/// Runs a script and returns its output; panics with all of it if it fails.
async fn bash(folder: &Path, script: String) -> String {
    let mut command = Command::new("bash");
    command.arg("-c").arg(script).current_dir(folder).env_remove("REDRIVE_ADMIN_KEY").stdin(Stdio::null());
    let Output { status, stdout, stderr } =
        tokio::task::spawn_blocking(move || command.output().expect("no `bash` here")).await.unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{status}:\n{stdout}\n{stderr}");
    stdout.into_owned()
}

#[tokio::test]
async fn commands_printed_by_dev_work() {
    let folder = TempDir::new().unwrap();
    let receiver = Receiver::start().await;
    let redrive = newcomer(folder.path()).await;
    redrive.wait_output("/v1/deliveries").await;
    let output = redrive.output();
    let lines: Vec<_> = output.lines().map(str::trim).filter(|line| line.starts_with("curl ")).collect();
    assert_eq!(lines.len(), 3, "{output}");
    let key = std::fs::read_to_string(folder.path().join("redrive-data/admin.key")).unwrap();
    assert!(output.contains(key.trim()), "the key is shown");

    let ours = |line: &str| line.replace("http://127.0.0.1:9000/", &receiver.url());
    let webhook: Value = serde_json::from_str(&bash(folder.path(), ours(lines[0])).await).unwrap();
    assert!(webhook["secret"].as_str().unwrap().starts_with("whsec_"), "{webhook}");
    let event: Value = serde_json::from_str(&bash(folder.path(), ours(lines[1])).await).unwrap();
    assert_eq!(event["deliveries"], 1, "{event}");
    let arrival = receiver.wait_for(1).await.remove(0);
    assert_eq!(
        (arrival.webhook_id(), &arrival.json()["data"]["order"]),
        (event["id"].as_str().unwrap(), &42.into())
    );
    let deliveries: Value = serde_json::from_str(&bash(folder.path(), ours(lines[2])).await).unwrap();
    assert_eq!(deliveries["data"][0]["event_id"], event["id"]);

    // The key is stored: a second start prints the same one.
    drop(redrive);
    let again = newcomer(folder.path()).await;
    again.wait_output("Admin key: ").await;
    assert!(again.output().contains(key.trim()));
    let mode = std::fs::metadata(folder.path().join("redrive-data/admin.key")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}

mod extended {
    use super::*;

    #[tokio::test]
    async fn readme_quickstart_works() {
        let blocks = blocks();
        let names: Vec<_> = blocks.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["setup", "receiver.py", "register", "receive", "publish", "look"]);

        let folder = TempDir::new().unwrap();
        // The packages that the setup block would download are already installed; the block still runs.
        let python = python_with(&["standardwebhooks"]);
        let environment = python.ancestors().nth(2).unwrap();
        let copied = Command::new("cp").arg("-a").arg(environment).arg(folder.path().join(".venv")).status();
        assert!(copied.unwrap().success());

        let redrive = newcomer(folder.path()).await;
        let receiver_port = free_port().to_string();
        let placed = |text: &str| {
            text.replace("127.0.0.1:8080", &redrive.address().to_string()).replace("9000", &receiver_port)
        };
        let mut script = "set -e\ntrap 'kill $(jobs -p)' EXIT\n".to_owned();
        for (name, text) in &blocks {
            if name == "receiver.py" {
                std::fs::write(folder.path().join(name), placed(text)).unwrap();
            } else {
                // All blocks run in one session, each with its own output file; the receiver keeps printing to `receive`.
                script += &format!("{{\n{}\n}} > {name}.out\n", placed(text));
            }
        }
        bash(folder.path(), script).await;
        let printed =
            |block: &str| std::fs::read_to_string(folder.path().join(format!("{block}.out"))).unwrap();
        let line = "verified: order.created {'order': 42}";
        assert_eq!(printed("receive").trim(), line);
        let look = printed("look");
        let deliveries: Value = serde_json::from_str(&look).unwrap_or_else(|error| panic!("{error}: {look}"));
        let deliveries = deliveries["data"].as_array().unwrap();
        assert_eq!(deliveries.len(), 1);
        assert_eq!(
            (&deliveries[0]["status"], &deliveries[0]["attempt_count"]),
            (&"delivered".into(), &1.into())
        );
        let readme = std::fs::read_to_string(README).unwrap();
        assert!(readme.contains(line), "the README quotes the receiver's output");
    }
}

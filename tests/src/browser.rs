//! Scenarios that run in a real browser, in `browser/`: each is a Node.js script with its own server, and its exit
//! status is the result.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use redrive_testkit::{Redrive, binary};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

use crate::packages::node_modules;

/// The packages of the scripts, with exact versions.
const PACKAGES: &str = include_str!("../browser/package.json");
/// The prefix of an output line by which a script requests an action.
const REQUEST_PREFIX: &str = ">> ";

/// Runs a scenario on this server; panics with its output if it fails.
pub async fn play(story: &str, redrive: &mut Redrive) {
    let context = json!({
        "url": format!("http://{}", redrive.address()),
        "key": redrive.key(),
        "pictures": pictures(),
    });
    let modules = tokio::task::spawn_blocking(|| node_modules(PACKAGES)).await.expect("npm did not panic");
    let mut child = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("browser").join(format!("{story}.js")))
        .env("NODE_PATH", modules)
        .env("REDRIVE_FIXTURE", context.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("node did not start: {error}; on Debian: apt-get install nodejs npm"));
    let mut responses = child.stdin.take().expect("stdin is piped");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let mut message = String::new();
    while let Some(line) = lines.next_line().await.expect("the output of a story is UTF-8") {
        let Some(request) = line.strip_prefix(REQUEST_PREFIX) else {
            message += &format!("{line}\n");
            continue;
        };
        match request {
            "stop" => redrive.kill(),
            "start" => redrive.restart().await,
            // The process stops running, and its connections stay open.
            "freeze" => redrive.signal("STOP"),
            "thaw" => redrive.signal("CONT"),
            other => panic!("{story} requests {other:?}, which is unknown"),
        }
        // The script may have ended already; its exit status then has the result.
        responses.write_all(b"done\n").await.ok();
    }
    let status = child.wait().await.expect("cannot wait for node");
    assert!(status.success(), "{story} failed ({status}):\n{message}");
}

/// Returns the folder for screenshots of failures, next to the binary.
fn pictures() -> PathBuf {
    binary().with_file_name("browser-pictures")
}

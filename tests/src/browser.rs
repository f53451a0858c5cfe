//! Stories that are played in a real browser, in `browser/`: each is a script for Node.js that has a server of
//! its own, and says by its end whether all went well.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use redrive_testkit::{Redrive, binary, node_with};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
};

/// What the scripts need, with exact versions.
const PACKAGES: &str = include_str!("../browser/package.json");
/// How a script begins a line that asks for something.
const ASKS: &str = ">> ";

/// Plays a story on this server; panics if it does not go well. What it printed is shown then.
pub async fn play(story: &str, redrive: &mut Redrive) {
    let stage = json!({
        "url": format!("http://{}", redrive.address()),
        "key": redrive.key(),
        "pictures": pictures(),
    });
    let modules = tokio::task::spawn_blocking(modules).await.expect("npm did not panic");
    let mut child = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("browser").join(format!("{story}.js")))
        .env("NODE_PATH", modules)
        .env("REDRIVE_STAGE", stage.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("node did not start: {error}; on Debian: apt-get install nodejs npm"));
    let mut answers = child.stdin.take().expect("stdin is piped");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let mut said = String::new();
    while let Some(line) = lines.next_line().await.expect("stories print text") {
        let Some(asked) = line.strip_prefix(ASKS) else {
            said += &format!("{line}\n");
            continue;
        };
        match asked {
            "stop" => redrive.kill(),
            "start" => redrive.restart().await,
            other => panic!("{story} asks for {other:?}, which nobody knows"),
        }
        // A story that has ended meanwhile says so by its status.
        answers.write_all(b"done\n").await.ok();
    }
    let status = child.wait().await.expect("node can be waited for");
    assert!(status.success(), "{story} did not go well ({status}):\n{said}");
}

/// Where the scripts' packages are.
fn modules() -> PathBuf {
    let package: Value = serde_json::from_str(PACKAGES).expect("package.json is JSON");
    let wanted = package["dependencies"].as_object().expect("package.json has dependencies");
    let wanted: Vec<_> =
        wanted.iter().map(|(name, version)| format!("{name}@{}", crate::text(version))).collect();
    node_with(&wanted.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Where pictures of what went wrong go: beside the binary.
fn pictures() -> PathBuf {
    binary().with_file_name("browser-pictures")
}

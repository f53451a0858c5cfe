//! The quickstart: runs the commands of the README and those that `redrive dev` prints.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use redrive_testkit::Receiver;
use serde_json::Value;
use tempfile::TempDir;

use crate::extended::documentation::newcomer;

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
    let (redrive, key) = newcomer(folder.path()).await;
    redrive.wait_output("/v1/deliveries").await;
    let output = redrive.output();
    let lines: Vec<_> = output.lines().map(str::trim).filter(|line| line.starts_with("curl ")).collect();
    assert_eq!(lines.len(), 3, "{output}");
    assert!(output.contains(&key), "the key is shown");

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
    let (again, _) = newcomer(folder.path()).await;
    again.wait_output("Admin key: ").await;
    assert!(again.output().contains(&key));
    let mode = std::fs::metadata(folder.path().join("redrive-data/admin.key")).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}

mod extended {
    use std::{collections::BTreeSet, fs};

    use redrive_tests::wait_for_event_status;

    use super::*;
    use crate::extended::documentation::{
        Shell, block, blocks, free_port, install_python, parse, text_of, wait_listening,
    };

    const NAMES: [&str; 8] =
        ["setup", "receiver.py", "register", "receive", "publish", "look", "crash", "again"];
    /// The number of events of the crash test.
    const CRASH_EVENTS: usize = 1_000;

    #[tokio::test(flavor = "multi_thread")]
    async fn readme_quickstart_and_crash_test_work() {
        let blocks = blocks("README.md", "quickstart", &NAMES);
        let folder = TempDir::new().unwrap();
        install_python(folder.path(), &["standardwebhooks"]);
        let (mut redrive, key) = newcomer(folder.path()).await;
        let (address, api, port) = (redrive.address().to_string(), redrive.api().with_key(&key), free_port());
        let placed = |name: &str| {
            block(&blocks, name).replace("127.0.0.1:8080", &address).replace("9000", &port.to_string())
        };
        fs::write(folder.path().join("receiver.py"), placed("receiver.py")).unwrap();
        // All blocks run in one session, as in a terminal.
        let mut shell = Shell::start(folder.path());
        for name in ["setup", "register", "receive"] {
            shell.run(&placed(name));
        }
        wait_listening(port, true);
        let published = shell.run(&placed("publish"));
        let line = "verified: order.created {'order': 42}";
        assert!(text_of("README.md").contains(line), "the README quotes the receiver's output");
        shell.wait_line(line);
        wait_for_event_status(&api, &parse(&published), "delivered").await;
        let deliveries = parse(&shell.run(&placed("look")));
        let deliveries = deliveries["data"].as_array().unwrap();
        assert_eq!(deliveries.len(), 1);
        assert_eq!(
            (&deliveries[0]["status"], &deliveries[0]["attempt_count"]),
            (&"delivered".into(), &1.into())
        );

        // Only this test's server is killed, not those of other tests.
        let crash = placed("crash");
        assert!(crash.contains("$(pgrep -nx redrive)"), "{crash}");
        let output = shell.run(&crash.replace("$(pgrep -nx redrive)", &redrive.pid().to_string()));
        // The receiver writes to the same terminal, perhaps in the middle of a line of curl.
        let others = output.split("verified: order.paid {'order': ").enumerate();
        let others = others
            .map(|(n, text)| if n == 0 { text } else { text.split_once('}').map_or("", |(_, rest)| rest) });
        assert!(others.collect::<String>().contains("202"), "the batch was acknowledged: {output}");
        assert_eq!(
            block(&blocks, "again"),
            "cargo run --release -- dev\n",
            "the test starts the server again"
        );
        redrive.restart().await;
        for number in 0..CRASH_EVENTS {
            shell.wait_line(&format!("verified: order.paid {{'order': {number}}}"));
        }
        let lines = shell.lines();
        let paid: Vec<_> = lines.iter().filter(|line| line.starts_with("verified: order.paid")).collect();
        assert_eq!(paid.len(), CRASH_EVENTS, "each once");
        assert_eq!(paid.iter().collect::<BTreeSet<_>>().len(), CRASH_EVENTS);
    }
}

//! The quickstarts: every command and program of the pages, in a folder of its own, against `redrive dev`.

use std::{fs, path::Path, process::Command};

use redrive_testkit::{Proxy, Redrive, Setup, python_with};
use redrive_tests::{attempts_of, delivery_of, entries, text, wait_for_event_status, wait_for_status};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Program, Shell, block, blocks, free_port, require, text_of, wait_listening};

/// Starts `redrive dev` as a new user does: no key, no settings, data in the current directory. Returns it
/// with its key.
pub(crate) async fn newcomer(folder: &Path) -> (Redrive, String) {
    let setup = Setup::new().data_dir(folder).database_url("sqlite:redrive-data/redrive.db");
    let redrive = Redrive::start_with(setup.without_env("REDRIVE_ADMIN_KEY")).await;
    let key = fs::read_to_string(folder.join("redrive-data/admin.key")).unwrap();
    (redrive, key.trim().to_owned())
}

/// Copies an environment with the packages, so that a setup block finds them installed; the block still runs.
pub(crate) fn install_python(folder: &Path, packages: &[&str]) {
    let python = python_with(packages);
    let environment = python.ancestors().nth(2).unwrap();
    let copied = Command::new("cp").arg("-a").arg(environment).arg(folder.join(".venv")).status();
    assert!(copied.unwrap().success());
}

/// Parses the response, which begins a line and ends without a line break. The receiver in the background writes too: lines of
/// its own, and the rest of that line.
pub(crate) fn parse(output: &str) -> Value {
    let line =
        output.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no JSON: {output}"));
    let mut values = serde_json::Deserializer::from_str(line).into_iter();
    values.next().expect("a value").unwrap_or_else(|error| panic!("{error}: {output}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_quickstart_works() {
    let page = "docs/quickstart/curl.md";
    let names = [
        "server",
        "register",
        "receive",
        "publish",
        "stop",
        "fail",
        "deliveries",
        "restart",
        "retry",
        "attempts",
    ];
    let blocks = blocks(page, "quickstart", &names);
    assert_eq!(block(&blocks, "server"), "redrive dev\n", "the test starts the server as this block does");
    let folder = TempDir::new().unwrap();
    let (redrive, key) = newcomer(folder.path()).await;
    redrive.wait_output("Dashboard: http").await;
    let last = redrive.output().lines().last().unwrap_or_default().to_owned();
    assert!(last.contains("Dashboard: http"), "the last line is the link: {last}");
    let api = redrive.api().with_key(&key);
    install_python(folder.path(), &["standardwebhooks"]);
    let receiver = super::blocks("docs/receiving/python.md", "receiving", &["receiver.py"]);
    let port = free_port();
    let placed = |text: &str| {
        text.replace("127.0.0.1:8080", &redrive.address().to_string()).replace("9000", &port.to_string())
    };
    fs::write(folder.path().join("receiver.py"), placed(block(&receiver, "receiver.py"))).unwrap();
    let mut shell = Shell::start(folder.path());
    let step = |shell: &mut Shell, name: &str| shell.run(&placed(block(&blocks, name)));

    step(&mut shell, "register");
    step(&mut shell, "receive");
    wait_listening(port, true);
    let published = step(&mut shell, "publish");
    shell.wait_line("verified: order.created");
    let event = parse(&published);
    assert_eq!(event["duplicate"], false, "{event}");
    wait_for_event_status(&api, &event, "delivered").await;
    let again = parse(&step(&mut shell, "publish"));
    assert_eq!((&again["id"], &again["duplicate"]), (&event["id"], &json!(true)));

    step(&mut shell, "stop");
    wait_listening(port, false);
    let failing =
        json!({"id": step(&mut shell, "fail").lines().find(|line| line.starts_with("evt_")).unwrap()});
    let delivery = delivery_of(&api, &failing).await;
    let delivery = text(&delivery["id"]);
    redrive_tests::attempts_when(&api, delivery, 1).await;
    let shown = parse(&step(&mut shell, "deliveries"));
    let waiting = &entries(&shown)[0];
    assert_eq!(
        (&waiting["status"], &waiting["failure_category"]),
        (&json!("pending"), &json!("network")),
        "{waiting}"
    );
    assert!(waiting["next_attempt_at"].is_string(), "{waiting}");

    step(&mut shell, "restart");
    wait_listening(port, true);
    step(&mut shell, "retry");
    shell.wait_line("verified: order.paid");
    wait_for_status(&api, delivery, "delivered").await;
    let attempts = parse(&step(&mut shell, "attempts"));
    let first = &entries(&attempts)[0];
    assert_eq!(
        (&first["status"], &first["failure_category"]),
        (&json!("failed"), &json!("network")),
        "{first}"
    );
    assert_eq!(attempts_of(&api, delivery).await, entries(&attempts));
    assert_eq!(
        shell.lines().iter().filter(|line| line.starts_with("verified: ")).count(),
        2,
        "{:#?}",
        shell.lines()
    );
}

/// Runs the program of a page: its setup block, its file, its run block.
async fn run_program(
    page: &str,
    folder: &Path,
    redrive: &Redrive,
    names: [&str; 4],
) -> (Shell, Vec<(String, String)>) {
    let blocks = blocks(page, "quickstart", &names);
    for name in [names[1], names[3]] {
        fs::write(folder.join(name), block(&blocks, name)).unwrap();
    }
    let mut shell = Shell::start(folder);
    shell.run(&format!("export API=http://{} PORT={}", redrive.address(), free_port()));
    shell.run(block(&blocks, "setup"));
    let output = shell.run(block(&blocks, "run"));
    // npm may add warnings, and the request may arrive before the response of the publish.
    let line = |start: &str| {
        output.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{output}"))
    };
    assert!(line("published: evt_").ends_with(" for 1 webhook"), "{output}");
    assert!(line("verified: order.created {").contains("42}"), "{output}");
    assert!(line("delivery: dlv_").ends_with(" delivered"), "{output}");
    (shell, blocks)
}

/// Runs a program that publishes with the function of the page, through a proxy that loses the response to
/// the first publish. It must print the id of the only event, and then the 409 for the same key with other
/// data.
async fn check_publish_function(redrive: &Redrive, key: &str, folder: &Path, command: &mut Command) {
    let api = redrive.api().with_key(key);
    let stored =
        |page: &Value| entries(page).iter().filter(|event| event["event_type"] == "order.sent").count();
    let proxy = Proxy::to(redrive.address()).await;
    proxy.lose_reply_to(b"order.sent");
    command.current_dir(folder).env("API", format!("http://{}", proxy.address())).env("API_KEY", key);
    let lines = tokio::task::block_in_place(|| Program::start(command).finish());
    let events = api.get("/v1/events").await.expect(200);
    assert_eq!(stored(&events), 1, "{events:#}");
    let event = entries(&events).into_iter().find(|event| event["event_type"] == "order.sent").unwrap();
    assert_eq!(lines[0], text(&event["id"]), "{lines:#?}");
    assert!(lines[1].starts_with("publish: 409 ") && lines[1].contains("idempotency"), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_quickstart_works() {
    let folder = TempDir::new().unwrap();
    let (redrive, key) = newcomer(folder.path()).await;
    install_python(folder.path(), &["standardwebhooks"]);
    let names = ["setup", "quickstart.py", "run", "publish.py"];
    run_program("docs/quickstart/python.md", folder.path(), &redrive, names).await;
    let program = "import os\n\
                   from publish import publish\n\
                   target = os.environ['API'], os.environ['API_KEY']\n\
                   print(publish(*target, 'order.sent', {'order': 1}, 'sent-1'))\n\
                   try:\n    publish(*target, 'order.sent', {'order': 2}, 'sent-1')\n\
                   except RuntimeError as error:\n    print(error)\n";
    fs::write(folder.path().join("driver.py"), program).unwrap();
    let mut command = Command::new("python3");
    check_publish_function(&redrive, &key, folder.path(), command.arg("driver.py")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn typescript_quickstart_works() {
    require("npm", "--version", "nodejs npm");
    let folder = TempDir::new().unwrap();
    let (redrive, key) = newcomer(folder.path()).await;
    let names = ["setup", "quickstart.mts", "run", "publish.mts"];
    let (mut shell, _) = run_program("docs/quickstart/typescript.md", folder.path(), &redrive, names).await;
    // tsx removes types without checking them, and so would not find a wrong one.
    shell.run("npm install --no-audit --no-fund --loglevel=error typescript@5 @types/node@20");
    let check = "npx tsc --strict --noEmit --target es2022 --module nodenext --moduleResolution nodenext";
    shell.run(&format!("{check} quickstart.mts publish.mts"));
    let program = "import { publish } from './publish.mts';\n\
                   const { API, API_KEY } = process.env;\n\
                   console.log(await publish(API!, API_KEY!, 'order.sent', { order: 1 }, 'sent-1'));\n\
                   await publish(API!, API_KEY!, 'order.sent', { order: 2 }, 'sent-1').catch((error) => console.log(error.message));\n";
    fs::write(folder.path().join("driver.mts"), program).unwrap();
    let mut command = Command::new("npx");
    check_publish_function(&redrive, &key, folder.path(), command.args(["tsx", "driver.mts"])).await;
}

#[test]
fn quickstarts_quote_what_the_programs_print() {
    for (page, quoted) in [
        ("docs/quickstart/curl.md", "prints `verified: order.created`"),
        ("docs/quickstart/curl.md", "prints `verified: order.paid`"),
    ] {
        assert!(text_of(page).contains(quoted), "{page}: {quoted}");
    }
}

//! The receivers of the pages in `docs/receiving`: each runs as a process and gets requests of a real
//! webhook, the same requests with a wrong signature, an old time or twice, and the challenge.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use redrive_testkit::{Api, ReceivedRequest, Receiver, Redrive, WAIT_TIMEOUT, node_with, python_with};
use redrive_tests::{attempts_of, deliveries_of, id, text, wait_for_status};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tempfile::TempDir;

use super::{Program, blocks, free_port, require, wait_listening};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// How the receiver of a page is started.
struct Language {
    page: &'static str,
    files: &'static [&'static str],
    /// Returns the command, for the folder with the files and the port.
    command: fn(&Path, u16) -> Command,
}

fn unix_time() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}

/// A receiver under test, and the clients of the test.
struct Fixture {
    redrive: Redrive,
    address: SocketAddr,
    program: Program,
    /// What the receiver must have printed so far.
    expected: Vec<String>,
}

impl Fixture {
    async fn start(language: &Language, folder: &Path) -> Self {
        for (name, content) in
            blocks(&format!("docs/receiving/{}.md", language.page), "receiving", language.files)
        {
            fs::write(folder.join(name), content).unwrap();
        }
        let port = free_port();
        let mut command = (language.command)(folder, port);
        command.current_dir(folder).env("WEBHOOK_SECRET", SECRET).env("PORT", port.to_string());
        let program = Program::start(&mut command);
        let redrive = Redrive::start().await;
        wait_listening(port, true);
        Self { redrive, address: ([127, 0, 0, 1], port).into(), program, expected: Vec::new() }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Sends a request to the receiver and returns the status of the response.
    async fn send(&self, headers: &[(String, String)], body: &[u8]) -> u16 {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let receiver = Api::new(self.address, "").without_key();
        receiver.raw("POST", "/", &headers, body.to_vec()).await.status
    }

    /// Sends a request with this id and time, signed with this secret.
    async fn send_signed(&self, id: &str, age_seconds: i64, secret: &str, before: &str) -> u16 {
        // The members are in the order in which Redrive sends them.
        let body = format!(r#"{{"id":"{id}","type":"signed.by.test","data":{{"name":"Zoë ☃"}}}}"#);
        let sent_at = unix_time() - age_seconds;
        let signature = Webhook::new(secret).unwrap().sign(id, sent_at, body.as_bytes()).unwrap();
        let headers = [
            ("content-type", "application/json".to_owned()),
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", sent_at.to_string()),
            ("webhook-signature", format!("{before}{signature}")),
        ];
        self.send(&headers.map(|(name, value)| (name.to_owned(), value)), body.as_bytes()).await
    }

    /// Waits until the receiver has printed all expected lines, and asserts that it has printed nothing else.
    fn assert_work(&mut self, event_type: &str) {
        self.expected.push(format!("verified: {event_type}"));
        self.program
            .wait_for(WAIT_TIMEOUT, event_type, |lines| (lines.len() >= self.expected.len()).then_some(()));
        assert_eq!(self.program.lines(), self.expected);
    }
}

/// Waits until each delivery of an event has this status.
async fn wait_deliveries(api: &Api, event: &Value, count: usize, status: &str) -> Vec<Value> {
    let deliveries = deliveries_of(api, event).await;
    assert_eq!(deliveries.len(), count, "{deliveries:#?}");
    for delivery in &deliveries {
        wait_for_status(api, id(delivery), status).await;
    }
    deliveries
}

async fn check(language: &Language) {
    let folder = TempDir::new().unwrap();
    let mut fixture = Fixture::start(language, folder.path()).await;
    let api = fixture.redrive.api();

    // A real request. The second webhook has the same secret and records what Redrive sends.
    let recorder = Receiver::start().await;
    for url in [fixture.url(), recorder.url()] {
        api.create_webhook(&url, json!({"secret": SECRET, "events": ["order.*"]})).await;
    }
    let event = api.publish("order.created", json!({"name": "Zoë ☃", "order": 42})).await;
    wait_deliveries(&api, &event, 2, "delivered").await;
    let recorded = recorder.wait_for(1).await.remove(0);
    assert_eq!(recorded.webhook_id(), id(&event));
    fixture.assert_work("order.created");

    check_duplicates(&mut fixture, &event, &recorded).await;
    check_signatures(&mut fixture, &recorded).await;
    check_other_secret(&fixture).await;
    check_challenge(&fixture).await;

    // Whatever a request above has started would have been printed before this.
    api.publish("order.paid", json!({})).await;
    fixture.assert_work("order.paid");
}

/// Sends an event that the receiver has processed again.
async fn check_duplicates(fixture: &mut Fixture, event: &Value, recorded: &ReceivedRequest) {
    assert_eq!(fixture.send(&recorded.headers, &recorded.body).await, 204, "the same request");
    let api = fixture.redrive.api();
    api.post(&format!("/v1/events/{}/replay", id(event)), json!({})).await.expect(202);
    wait_deliveries(&api, event, 4, "delivered").await;
}

/// Sends requests with signatures and times that must be accepted or rejected.
async fn check_signatures(fixture: &mut Fixture, recorded: &ReceivedRequest) {
    // The recorded request with another id, another body, another time, and without signature.
    let change = |name: &str, value: &str| {
        let mut headers = recorded.headers.clone();
        headers.iter_mut().find(|(its_name, _)| its_name == name).unwrap().1 = value.to_owned();
        headers
    };
    let next_second = (unix_time() + 1).to_string();
    let unsigned: Vec<_> =
        recorded.headers.iter().filter(|(name, _)| name != "webhook-signature").cloned().collect();
    let other_body = String::from_utf8(recorded.body.to_vec()).unwrap().replace("42", "43");
    assert_ne!(other_body.as_bytes(), &*recorded.body);
    for (headers, body, what) in [
        (change("webhook-id", "evt_other"), &*recorded.body, "another id"),
        (recorded.headers.clone(), other_body.as_bytes(), "another body"),
        (change("webhook-timestamp", &next_second), &*recorded.body, "another time"),
        (change("webhook-signature", "v1,AAAA"), &*recorded.body, "another signature"),
        (change("webhook-signature", "v1"), &*recorded.body, "half a signature"),
        (change("webhook-timestamp", "soon"), &*recorded.body, "a time that is no number"),
        (unsigned, &*recorded.body, "no signature"),
    ] {
        assert_eq!(fixture.send(&headers, body).await, 400, "{what}");
    }
    assert_eq!(fixture.send_signed("evt_old", 360, SECRET, "").await, 400, "six minutes old");
    assert_eq!(fixture.send_signed("evt_early", -360, SECRET, "").await, 400, "six minutes ahead");
    assert_eq!(fixture.send_signed("evt_wrong", 0, OTHER_SECRET, "").await, 400, "another secret");
    // These prove that the rejections above have the reason that they name.
    assert_eq!(fixture.send_signed("evt_late", 240, SECRET, "").await, 204, "four minutes old");
    fixture.assert_work("signed.by.test");
    assert_eq!(
        fixture.send_signed("evt_rotated", 0, SECRET, "v1,AAAA ").await,
        204,
        "the second of two signatures"
    );
    fixture.assert_work("signed.by.test");
}

/// A webhook whose secret the receiver does not know.
async fn check_other_secret(fixture: &Fixture) {
    let api = fixture.redrive.api();
    api.create_webhook(&fixture.url(), json!({"secret": OTHER_SECRET, "events": ["other.secret"]})).await;
    let event = api.publish("other.secret", json!({})).await;
    let deliveries = wait_deliveries(&api, &event, 1, "dead").await;
    let attempts = attempts_of(&api, id(&deliveries[0])).await;
    assert_eq!((attempts.len(), &attempts[0]["http_status_code"]), (1, &json!(400)), "{attempts:#?}");
}

/// A webhook whose URL is verified first.
async fn check_challenge(fixture: &Fixture) {
    let api = fixture.redrive.api();
    let verified = json!({"secret": SECRET, "events": ["never.published"], "verify_url": true});
    let webhook = api.create_webhook(&fixture.url(), verified).await;
    let path = format!("/v1/webhooks/{}", text(&webhook["id"]));
    api.wait_until("the challenge to be echoed", &path, |webhook| webhook["state"] == "active").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_receiver_works() {
    fn command(_: &Path, _: u16) -> Command {
        let mut command = Command::new(python_with(&["standardwebhooks"]));
        command.arg("receiver.py");
        command
    }
    check(&Language { page: "python", files: &["receiver.py"], command }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_receiver_works() {
    fn command(folder: &Path, _: u16) -> Command {
        require("node", "--version", "nodejs npm");
        symlink(node_with(&["standardwebhooks"]), folder.join("node_modules")).unwrap();
        let mut command = Command::new("node");
        command.arg("receiver.mjs");
        command
    }
    check(&Language { page: "node", files: &["receiver.mjs"], command }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rust_receiver_works() {
    fn command(folder: &Path, _: u16) -> Command {
        // Its dependencies are compiled once per target directory of the tests.
        let test = std::env::current_exe().unwrap();
        let target: PathBuf = test.ancestors().nth(3).unwrap().join("test-receiver");
        let mut build = Command::new("cargo");
        build.args(["build", "--quiet", "--target-dir"]).arg(&target).current_dir(folder);
        Program::start(&mut build).finish();
        Command::new(target.join("debug/receiver"))
    }
    check(&Language { page: "rust", files: &["Cargo.toml", "main.rs"], command }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go_receiver_works() {
    fn command(_: &Path, _: u16) -> Command {
        require("go", "version", "golang-go");
        let mut command = Command::new("go");
        command.args(["run", "main.go"]);
        command
    }
    check(&Language { page: "go", files: &["main.go"], command }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ruby_receiver_works() {
    fn command(_: &Path, _: u16) -> Command {
        require("ruby", "--version", "ruby");
        let mut command = Command::new("ruby");
        command.arg("receiver.rb");
        command
    }
    check(&Language { page: "ruby", files: &["receiver.rb"], command }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn php_receiver_works() {
    fn command(_: &Path, port: u16) -> Command {
        require("php", "--version", "php-cli");
        let mut command = Command::new("php");
        command.args(["-S", &format!("127.0.0.1:{port}"), "receiver.php"]);
        command
    }
    check(&Language { page: "php", files: &["receiver.php"], command }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn java_receiver_works() {
    fn command(_: &Path, _: u16) -> Command {
        require("java", "-version", "default-jdk-headless");
        let mut command = Command::new("java");
        command.arg("Receiver.java");
        command
    }
    check(&Language { page: "java", files: &["Receiver.java"], command }).await;
}

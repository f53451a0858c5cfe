//! The committed OpenAPI document, as API users read it: linters accept it, and generated clients work against a server.
//! The files are in `tests/clients/`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use redrive_testkit::{Receiver, Redrive, WAIT_TIMEOUT};
use redrive_tests::packages;
use tempfile::TempDir;
use tokio::process::Command;

const NODE_PACKAGES: &str = include_str!("../../../clients/package.json");
const PYTHON_PACKAGES: &str = include_str!("../../../clients/requirements.txt");

/// Files of `tests/clients/` and the document, in a folder of their own.
fn folder_with(files: &[&str]) -> TempDir {
    let folder = TempDir::new().unwrap();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::copy(tests.join("../docs/openapi.json"), folder.path().join("openapi.json")).unwrap();
    for file in files {
        fs::copy(tests.join("clients").join(file), folder.path().join(file)).unwrap();
    }
    folder
}

/// Runs a command to its end, and panics with its output if it fails.
async fn run(command: &mut Command) -> String {
    let line = format!("{:?}", command.as_std());
    let output = tokio::time::timeout(WAIT_TIMEOUT, command.kill_on_drop(true).output()).await;
    let output = output.unwrap_or_else(|_| panic!("{line} did not end"));
    let output = output.unwrap_or_else(|error| panic!("{line} did not start: {error}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{line} failed:\n{text}");
    text
}

/// Programs of the Node.js packages, run in a folder that has the packages too.
struct NodeTools {
    modules: PathBuf,
    folder: PathBuf,
}

impl NodeTools {
    async fn new(folder: &TempDir) -> Self {
        let modules = tokio::task::spawn_blocking(|| packages::node_modules(NODE_PACKAGES)).await.unwrap();
        let folder = folder.path().to_path_buf();
        std::os::unix::fs::symlink(&modules, folder.join("node_modules")).unwrap();
        Self { modules, folder }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new("node");
        command.arg(self.modules.join(".bin").join(name)).current_dir(&self.folder);
        // Redocly reports its use and looks for updates otherwise.
        command.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
        command
    }

    fn lint(&self) -> Command {
        let mut command = self.command("redocly");
        command.args(["lint", "--config", "redocly.yaml", "openapi.json"]);
        command
    }
}

async fn python() -> PathBuf {
    tokio::task::spawn_blocking(|| packages::python(PYTHON_PACKAGES)).await.unwrap()
}

/// Runs a client on its own server, and checks that the endpoint received the event and its resend.
async fn run_client(command: &mut Command) {
    let (redrive, receiver) = tokio::join!(Redrive::start(), Receiver::start());
    command
        .env("REDRIVE_URL", format!("http://{}", redrive.address()))
        .env("REDRIVE_KEY", redrive.key())
        .env("RECEIVER_URL", receiver.url());
    run(command).await;
    let requests = receiver.wait_for(2).await;
    assert!(requests.iter().all(|request| request.json()["data"]["order"] == 42));
}

#[tokio::test]
async fn linters_accept_the_document() {
    let folder = folder_with(&["redocly.yaml", ".redocly.lint-ignore.yaml"]);
    run(&mut NodeTools::new(&folder).await.lint()).await;
    let validator = python().await.with_file_name("openapi-spec-validator");
    run(Command::new(validator).arg(folder.path().join("openapi.json"))).await;
}

#[tokio::test]
async fn linters_reject_a_wrong_document() {
    let folder = folder_with(&["redocly.yaml", ".redocly.lint-ignore.yaml"]);
    let path = folder.path().join("openapi.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("\"operationId\": \"createWebhook\"", "\"operationId\": \"listWebhooks\"", 1),
    )
    .unwrap();
    let output = NodeTools::new(&folder).await.lint().output().await.unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("unique `operationId`"), "{output:?}");
}

#[tokio::test]
async fn generated_typescript_clients_create_publish_list_and_resend() {
    let folder = folder_with(&["openapi_fetch.ts", "hey_api.ts", "harness.ts", "tsconfig.json"]);
    let tools = NodeTools::new(&folder).await;
    let (mut types, mut client) = (tools.command("openapi-typescript"), tools.command("openapi-ts"));
    types.args(["openapi.json", "-o", "schema.d.ts"]);
    client.args(["-i", "openapi.json", "-o", "generated", "-c", "@hey-api/client-fetch", "--no-log-file"]);
    tokio::join!(run(&mut types), run(&mut client));
    run(tools.command("tsc").args(["--strict", "-p", "."])).await;
    for client in ["openapi_fetch", "hey_api"] {
        let script = folder.path().join("out").join(format!("{client}.js"));
        run_client(Command::new("node").arg(script).current_dir(folder.path())).await;
    }
}

#[tokio::test]
async fn generated_python_client_creates_publishes_lists_and_resends() {
    let folder = folder_with(&["python.yaml", "python_client.py"]);
    let python = python().await;
    let generator = python.with_file_name("openapi-python-client");
    run(Command::new(generator)
        .args(["generate", "--path", "openapi.json", "--output-path", "generated", "--meta", "none"])
        .args(["--config", "python.yaml", "--fail-on-warning"])
        .current_dir(folder.path()))
    .await;
    run_client(Command::new(python).arg("python_client.py").current_dir(folder.path())).await;
}

//! The identity provider `oidc-provider` from npm, started by a script in `oidc/`. Its accounts are jane (group
//! `platform`), oscar (`support`), vera (`readers`) and eve (no group that is named in the settings).

use std::{path::Path, process::Stdio};

use redrive_testkit::{Redrive, Setup, node_with};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// The packages of the script, with exact versions.
const PACKAGES: &str = include_str!("../oidc/package.json");

/// A running provider.
pub struct OidcProvider {
    process: Child,
    requests: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl OidcProvider {
    /// Starts the provider, and a server whose users log in there.
    pub async fn start() -> (Self, Redrive) {
        let modules = tokio::task::spawn_blocking(|| {
            let package: Value = serde_json::from_str(PACKAGES).expect("package.json is JSON");
            let wanted = package["dependencies"].as_object().expect("package.json has dependencies");
            let named: Vec<_> =
                wanted.iter().map(|(name, version)| format!("{name}@{}", crate::text(version))).collect();
            node_with(&named.iter().map(String::as_str).collect::<Vec<_>>())
        });
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("oidc/provider.js");
        let mut process = Command::new("node")
            .arg(script)
            .env("NODE_PATH", modules.await.expect("npm did not panic"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("node did not start: {error}; on Debian: apt-get install nodejs"));
        let requests = process.stdin.take().expect("stdin is piped");
        let lines = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
        let mut provider = Self { process, requests, lines };
        let issuer = provider.next_line().await;
        let setup = Setup::new()
            .env("REDRIVE_OIDC_ISSUER", issuer)
            .env("REDRIVE_OIDC_CLIENT_ID", "redrive")
            .env("REDRIVE_OIDC_CLIENT_SECRET", "a-secret-of-the-tests-0123456789")
            .env("REDRIVE_OIDC_DISPLAY_NAME", "Example ID")
            .env("REDRIVE_OIDC_SCOPES", r#"["openid", "profile", "groups"]"#)
            .env("REDRIVE_OIDC_VIEWER_GROUPS", r#"["readers"]"#)
            .env("REDRIVE_OIDC_OPERATOR_GROUPS", r#"["support"]"#)
            .env("REDRIVE_OIDC_ADMIN_GROUPS", r#"["platform"]"#);
        let redrive = Redrive::start_with(setup).await;
        let redirect_uri = format!("http://{}/dashboard/login/oidc/callback", redrive.address());
        provider.request(&redirect_uri).await;
        (provider, redrive)
    }

    /// Replaces the signing keys.
    pub async fn rotate_keys(&mut self) {
        self.request("rotate").await;
    }

    /// Stops the provider.
    pub async fn stop(&mut self) {
        self.process.kill().await.expect("the provider is running");
    }

    /// Sends a request to the script and waits until it is done.
    async fn request(&mut self, request: &str) {
        self.requests.write_all(format!("{request}\n").as_bytes()).await.expect("the provider is running");
        assert_eq!(self.next_line().await, "done");
    }

    async fn next_line(&mut self) -> String {
        self.lines.next_line().await.expect("UTF-8").expect("the provider ended; see its messages above")
    }
}

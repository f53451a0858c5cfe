//! Unsafe settings are refused at startup, and unsafe webhooks at creation, each with a hint how to fix it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use redrive_testkit::{Canary, Redrive, Setup};
use redrive_tests::text;
use serde_json::json;

#[tokio::test]
async fn plain_http_is_refused_in_production_unless_allowed() {
    let redrive = Redrive::start_with(Setup::new().command("serve")).await;
    let api = redrive.api();
    let response = api.post("/v1/webhooks", json!({"url": "http://example.com/", "events": ["*"]})).await;
    assert_eq!((response.status, &*response.problem()), (400, "invalid_field"));
    let problem = response.json();
    assert_eq!(problem["field"], "url");
    let detail = text(&problem["detail"]);
    assert!(detail.contains("https://") && detail.contains("egress.allow_http"), "{detail}");
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    for url in
        ["https://user:pass@example.com/", "https://example.com/#x", "ftp://example.com/", "https://a\\b/"]
    {
        let response = api.post("/v1/webhooks", json!({"url": url, "events": ["*"]})).await;
        assert_eq!((response.status, response.json()["field"].clone()), (400, json!("url")), "{url}");
    }
    // A private address is refused over https as well.
    let canary = Canary::everywhere().await;
    let url = format!("https://127.0.0.1:{}/", canary.port());
    let problem = api.post("/v1/webhooks", json!({"url": url, "events": ["*"]})).await.expect(400);
    assert!(text(&problem["detail"]).contains("(loopback)"), "{problem}");
    canary.assert_untouched().await;
}

/// Starts a server that should refuse to start, and returns its error output.
async fn refuses_to_start(setup: Setup) -> String {
    let ended = setup.run_to_end().await;
    let message = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{message}");
    assert!(
        !String::from_utf8_lossy(&ended.stdout).contains("listening"),
        "the server listened before it refused"
    );
    message
}

#[tokio::test]
async fn unsafe_settings_are_refused_at_startup_with_a_hint() {
    let message = refuses_to_start(Setup::new().command("serve").without_env("REDRIVE_ADMIN_KEY")).await;
    assert!(message.contains("REDRIVE_ADMIN_KEY") && message.contains("openssl rand -hex 32"), "{message}");
    assert!(message.contains("redrive keys create --admin"), "{message}");

    let message = refuses_to_start(Setup::new().listen("0.0.0.0:0")).await;
    assert!(message.contains("loopback") && message.contains("redrive serve"), "{message}");

    let message = refuses_to_start(Setup::new().command("serve").env("REDRIVE_ADMIN_KEY", "short")).await;
    assert!(message.contains("32 characters"), "{message}");

    let fast = Setup::new().command("serve").env("REDRIVE_DEV_CLOCK_SPEED", "10");
    assert!(refuses_to_start(fast).await.contains("dev.clock_speed"));

    let everything = Setup::new().command("serve").env("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"0.0.0.0/0\"]");
    assert!(refuses_to_start(everything).await.contains("whole internet"));

    let typo = Setup::new().env("REDRIVE_SERVER_LISTENS", "x");
    assert!(refuses_to_start(typo).await.contains("did you mean REDRIVE_SERVER_LISTEN"));
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn key_files_readable_by_others_are_refused_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let (master, admin) = (folder.path().join("master.key"), folder.path().join("admin.key"));
    fs::write(&master, "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n").unwrap();
    fs::write(&admin, "rdk_test_0123456789abcdef0123456789abcdef\n").unwrap();
    // The layout in which Kubernetes mounts secrets: a link to a link to the file.
    std::os::unix::fs::symlink(".", folder.path().join("..data")).unwrap();
    let mounted = folder.path().join("mounted.key");
    std::os::unix::fs::symlink("..data/master.key", &mounted).unwrap();
    let setup = |command: &str, master: &Path| {
        Setup::new()
            .command(command)
            .without_env("REDRIVE_ADMIN_KEY")
            .without_env("REDRIVE_SECRETS_MASTER_KEY")
            .env("REDRIVE_SECRETS_MASTER_KEY_FILE", master.display().to_string())
            .env("REDRIVE_AUTH_ADMIN_KEY_FILE", admin.display().to_string())
    };
    for (open, mode, setting) in
        [(&master, 0o644, "secrets.master_key_file"), (&admin, 0o640, "auth.admin_key_file")]
    {
        chmod(&master, 0o600);
        chmod(&admin, 0o600);
        chmod(open, mode);
        let message = refuses_to_start(setup("serve", &master)).await;
        assert!(message.contains(&format!("{setting}: ")), "{message}");
        assert!(message.contains(&format!("run: chmod 600 {}", open.display())), "{message}");
        // The development server only logs a warning.
        let dev = Redrive::start_with(setup("dev", &master)).await;
        dev.wait_output("secret file is accessible to other users").await;
    }
    chmod(&admin, 0o600);
    chmod(&master, 0o604);
    assert!(refuses_to_start(setup("serve", &mounted)).await.contains("chmod 600"));
    chmod(&master, 0o400);
    let redrive = Redrive::start_with(setup("serve", &mounted)).await;
    // A running server keeps running if a file becomes readable by others later.
    chmod(&master, 0o644);
    redrive.signal("HUP");
    redrive.wait_output("secret file is accessible to other users").await;
    redrive.wait_output("egress rules reloaded").await;
    redrive.api().get("/v1/webhooks").await.expect(200);
}

//! What is unsafe is refused at the start or at the door, with a remedy.

// Tests may read clocks, and a test that cannot go on should panic.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use redrive_testkit::{Canary, Redrive, Setup};
use redrive_tests::text;
use serde_json::json;

#[tokio::test]
async fn plain_http_is_refused_in_production_unless_allowed() {
    let redrive = Redrive::start_with(Setup::new().command("serve")).await;
    let api = redrive.api();
    let answer = api.post("/v1/webhooks", json!({"url": "http://example.com/", "events": ["*"]})).await;
    assert_eq!((answer.status, &*answer.problem()), (400, "invalid_field"));
    let problem = answer.json();
    assert_eq!(problem["field"], "url");
    let detail = text(&problem["detail"]);
    assert!(detail.contains("https://") && detail.contains("egress.allow_http"), "{detail}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    for url in
        ["https://user:pass@example.com/", "https://example.com/#x", "ftp://example.com/", "https://a\\b/"]
    {
        let answer = api.post("/v1/webhooks", json!({"url": url, "events": ["*"]})).await;
        assert_eq!((answer.status, answer.json()["field"].clone()), (400, json!("url")), "{url}");
    }
    // An address inside is refused over https as well.
    let canary = Canary::everywhere().await;
    let url = format!("https://127.0.0.1:{}/", canary.port());
    let problem = api.post("/v1/webhooks", json!({"url": url, "events": ["*"]})).await.expect(400);
    assert!(text(&problem["detail"]).contains("(loopback)"), "{problem}");
    canary.assert_untouched().await;
}

/// Starts a server that should refuse to start, and gives what it said.
async fn refuses_to_start(setup: Setup) -> String {
    let ended = setup.run_to_end().await;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(!String::from_utf8_lossy(&ended.stdout).contains("listening"), "it listened first");
    said
}

#[tokio::test]
async fn unsafe_starts_are_refused_with_a_remedy() {
    let said = refuses_to_start(Setup::new().command("serve").without_env("REDRIVE_ADMIN_KEY")).await;
    assert!(said.contains("REDRIVE_ADMIN_KEY") && said.contains("openssl rand -hex 32"), "{said}");
    assert!(said.contains("redrive keys create --admin"), "{said}");

    let said = refuses_to_start(Setup::new().listen("0.0.0.0:0")).await;
    assert!(said.contains("loopback") && said.contains("redrive serve"), "{said}");

    let said = refuses_to_start(Setup::new().command("serve").env("REDRIVE_ADMIN_KEY", "short")).await;
    assert!(said.contains("32 characters"), "{said}");

    let fast = Setup::new().command("serve").env("REDRIVE_DEV_CLOCK_SPEED", "10");
    assert!(refuses_to_start(fast).await.contains("dev.clock_speed"));

    let everything = Setup::new().command("serve").env("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"0.0.0.0/0\"]");
    assert!(refuses_to_start(everything).await.contains("whole internet"));

    let typo = Setup::new().env("REDRIVE_SERVER_LISTENS", "x");
    assert!(refuses_to_start(typo).await.contains("did you mean REDRIVE_SERVER_LISTEN"));
}

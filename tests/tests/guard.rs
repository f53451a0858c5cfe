//! Where requests must not go, they do not go: judged by canaries that must see no connection.

// Tests may read clocks, and a test that cannot go on should panic.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use redrive_testkit::{Api, Receiver, Redrive, Setup};
use redrive_tests::{attempts_of, column, delivery_is, delivery_of, event_is, id, text};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// The one thing that a tenant is told, whatever is or is not at the address.
const REFUSED: &str = "the URL's host is, or resolves to, an address that requests may not go to";

/// A listener at every address of this machine, v4 and v6, that counts who connects.
struct Canary {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Canary {
    async fn start() -> Self {
        let connections = Arc::new(AtomicUsize::new(0));
        // One that takes both families; without IPv6 there is nothing of it to reach.
        let listener = match TcpListener::bind("[::]:0").await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind("0.0.0.0:0").await.unwrap(),
        };
        let port = listener.local_addr().unwrap().port();
        let counted = connections.clone();
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counted.fetch_add(1, SeqCst);
            }
        });
        Self { port, connections }
    }

    fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }
}

/// The production profile; http so that the address alone is what is refused.
async fn production() -> Redrive {
    Redrive::start_with(Setup::new().command("serve").env("REDRIVE_EGRESS_ALLOW_HTTP", "true")).await
}

/// A webhook that retries at once, in the production profile too.
fn at_once(host: &str, port: u16) -> Value {
    let schedule = [0.0, 0.0, 0.0, 0.0, 0.0];
    json!({"url": format!("http://{host}:{port}/hook"), "events": ["*"], "retry_config": {"schedule": schedule}})
}

/// Publishes to one webhook alone and checks that it is refused three times and then dead.
async fn is_refused(api: &Api, host: &str, port: u16) {
    let answer = api.post("/v1/webhooks", at_once(host, port)).await;
    if answer.status == 400 {
        assert_eq!(answer.json()["field"], "url", "{host}: {answer:?}");
        return;
    }
    let webhook = answer.expect(201);
    let event = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(api, &event).await;
    let over = |delivery: &Value| delivery["status"] != "pending" && delivery["status"] != "in_flight";
    let delivery = redrive_tests::delivery_when(api, id(&delivery), host, over).await;
    let told = (&delivery["status"], &delivery["dead_reason"], &delivery["attempt_count"]);
    assert_eq!(told, (&json!("dead"), &json!("blocked_address"), &json!(3)), "{host}: {delivery:#}");
    assert_eq!(delivery["likely_recoverable"], false, "{host}");
    let attempts = attempts_of(api, id(&delivery)).await;
    assert_eq!(column(&attempts, "status"), ["failed", "failed", "exhausted"], "{host}");
    for attempt in &attempts {
        assert_eq!(attempt["failure_category"], "blocked_address", "{host}");
        assert_eq!(attempt["error_message"], REFUSED, "{host}: the same words for all");
        assert_eq!(attempt["http_status_code"], Value::Null, "{host}");
        assert_eq!(attempt["connect_ms"], Value::Null, "{host}: nothing was dialled");
    }
    api.delete(&format!("/v1/webhooks/{}", id(&webhook))).await.expect(204);
}

#[tokio::test]
async fn every_spelling_of_loopback_is_refused() {
    let canary = Canary::start().await;
    let redrive = production().await;
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.255.255.254",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "0177.0.0.1",
        "0",
        "0.0.0.0",
        "\u{ff11}\u{ff12}\u{ff17}.\u{ff10}.\u{ff10}.\u{ff11}",
        "127\u{3002}0\u{3002}0\u{3002}1",
        "127.0.0.%31",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b:1::127.0.0.1]",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
        "[2001:db8::5efe:127.0.0.1]",
    ] {
        is_refused(&redrive.api(), host, canary.port).await;
    }
    assert_eq!(canary.connections(), 0, "a canary was reached");
}

#[tokio::test]
async fn addresses_inside_are_refused() {
    let redrive = production().await;
    for host in [
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.1.1",
        "169.254.169.254",
        "168.63.129.16",
        "192.0.0.192",
        "100.100.100.200",
        "198.18.0.1",
        "192.0.2.1",
        "224.0.0.1",
        "255.255.255.255",
        "[fe80::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
        "[2001:db8::1]",
        "[::ffff:10.0.0.1]",
        "[::ffff:169.254.169.254]",
    ] {
        is_refused(&redrive.api(), host, 80).await;
    }
}

#[tokio::test]
async fn an_open_port_is_not_told_from_a_closed_one() {
    let open = Receiver::start().await;
    let redrive = production().await;
    let api = redrive.api();
    let port = |url: &str| url.rsplit(':').next().unwrap().trim_end_matches("/hook").parse::<u16>().unwrap();
    let closed = port(&Receiver::start().await.url());
    is_refused(&api, "127.0.0.1", port(&open.url())).await;
    is_refused(&api, "127.0.0.1", closed).await;
    assert_eq!(open.count(), 0);
}

#[tokio::test]
async fn a_network_that_the_operator_allows_is_reached() {
    let receiver = Receiver::start().await;
    let setup = Setup::new()
        .command("serve")
        .env("REDRIVE_EGRESS_ALLOW_HTTP", "true")
        .env("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"127.0.0.1/32\"]");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let event = api.publish("order.created", json!({})).await;
    event_is(&api, &event, "delivered").await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn redrive_never_calls_itself() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    // Loopback is allowed here; the own listener is not, under whatever name.
    for host in ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"] {
        is_refused(&api, host, redrive.address().port()).await;
    }
}

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
    // https inside is refused just the same.
    let canary = Canary::start().await;
    let url = format!("https://127.0.0.1:{}/", canary.port);
    api.create_webhook(&url, json!({"retry_config": {"schedule": [0]}})).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(&api, &event).await;
    let delivery = delivery_is(&api, id(&delivery), "dead").await;
    assert_eq!(delivery["failure_category"], "blocked_address");
    assert_eq!(canary.connections(), 0);
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

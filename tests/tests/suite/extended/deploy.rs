//! The files of `deploy`: each check that they come with passes, the cluster of the Compose file delivers, and the files of
//! a release lead to a first verified delivery.

use std::{
    collections::BTreeSet,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use redrive_testkit::{Api, Postgres, RabbitMq, Receiver, Redis, Redrive, Setup};
use redrive_tests::{
    attempts_of,
    cluster::{PublishLoad, assert_no_loss, wait_until_settled},
    id, text,
};
use serde_json::Value;
use tempfile::TempDir;

const PASSWORD: &str = "f2c5a7d8e1b94c60";
/// How long a node may take to exit: its `drain_timeout` and a margin.
const EXIT_TIMEOUT: Duration = Duration::from_secs(40);

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").canonicalize().unwrap()
}

/// Runs a script of `deploy`, and returns its output. Panics if it fails; the script names what is missing.
fn run(script: &str, args: &[&str]) -> String {
    let output = Command::new(deploy().join(script)).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "deploy/{script} failed with {}:\n{text}", output.status);
    text
}

#[test]
fn unit_is_known_to_systemd_and_its_sandbox_is_tight() {
    assert!(run("systemd/check", &[]).contains("exposure score"));
}

#[test]
fn compose_files_are_valid() {
    assert!(run("compose/check", &[]).contains("3 Compose files valid"));
}

#[test]
fn kubernetes_manifests_and_chart_are_valid() {
    let report = run("kubernetes/validate", &[]);
    assert!(
        report.contains("manifests valid against") && report.contains("chart: rendered by Helm"),
        "{report}"
    );
}

/// Builds the release of this machine, which takes a quarter of an hour the first time.
#[test]
fn release_files_lead_to_a_verified_delivery() {
    run("release", &[]);
    let report = run("accept", &[]);
    for stage in ["archive", "package", "image"] {
        assert!(report.contains(&format!("{stage}: first verified delivery after")), "{report}");
    }
}

#[test]
fn tag_of_another_version_is_rejected() {
    let version = env!("CARGO_PKG_VERSION");
    run("release", &["--check-version", &format!("v{version}")]);
    for check in ["--check-version", "--check-tag"] {
        let other = Command::new(deploy().join("release")).args([check, "v99.0.0"]).output().unwrap();
        assert!(!other.status.success());
        let message = String::from_utf8_lossy(&other.stderr);
        assert!(
            message.contains(&format!("the tag is v99.0.0, and Cargo.toml has version {version}")),
            "{message}"
        );
    }
}

/// The settings of `compose/cluster.toml` and the permissions of `compose/cluster.yml`, with other addresses and another
/// folder for the keys.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_the_compose_cluster_share_the_work() {
    let compose = std::fs::read_to_string(deploy().join("compose/cluster.yml")).unwrap();
    let database = Postgres::shared().await;
    let redis = Redis::start().await;
    let rules = text_between(&compose, "user redrive on >$$redis ", "\n");
    redis.add_user("redrive", PASSWORD, &rules.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(redis.command(&["ACL", "SETUSER", "default", "off"]).await, "OK");
    let rabbitmq = rabbitmq_of(&compose).await;
    let folder = TempDir::new().unwrap();
    let config = cluster_toml(folder.path(), &redis, &rabbitmq);

    let node = |name: &str, role: &str| {
        Setup::new()
            .command("serve")
            .arg("--config")
            .arg(&config)
            .role(role)
            .database_url(database.url())
            .env("REDRIVE_NODE", name)
            .env("REDRIVE_EGRESS_ALLOW_HTTP", "true")
            // Thousands of events go to each webhook, more than the limit of production lets through in a minute.
            .env("REDRIVE_LIMITS_WEBHOOK_REQUESTS_PER_MINUTE", "0")
            .env("REDRIVE_EGRESS_ALLOW_NETWORKS", "[\"127.0.0.0/8\"]")
            .without_env("REDRIVE_ADMIN_KEY")
            .without_env("REDRIVE_SECRETS_MASTER_KEY")
    };
    let mut nodes = Vec::new();
    for name in ["api-a", "api-b", "worker-a", "worker-b"] {
        assert!(compose.contains(&format!("REDRIVE_NODE: {name}")), "{name} is not in cluster.yml");
        let role = name.split('-').next().unwrap();
        nodes.push(Redrive::start_with(node(name, role)).await);
    }
    for node in &nodes {
        let connected = |status: &Value| status["redis"] == "up" && status["rabbitmq"] == "up";
        node.api().wait_until("Redis and RabbitMQ are connected", "/v1/status", connected).await;
    }

    let receiver = Receiver::start().await;
    for n in 0..4 {
        nodes[n % 2].api().create_webhook(&receiver.url_at(&format!("/{n}")), Value::Null).await;
    }
    let publishers: Vec<Api> = nodes[..2].iter().map(Redrive::api).collect();
    let load = PublishLoad::start(publishers, 4, Duration::from_millis(5));
    receiver.wait_for(800).await;
    let acked = load.finish().await;
    let deliveries = wait_until_settled(&nodes[0].api()).await;
    assert_no_loss(&acked, &deliveries, &receiver.arrivals(), 4);
    let mut workers = BTreeSet::new();
    for delivery in deliveries.iter().step_by(10) {
        let attempts = attempts_of(&nodes[1].api(), id(delivery)).await;
        workers.insert(text(&attempts[0]["worker"]).split('#').next().unwrap().to_owned());
    }
    assert_eq!(
        workers,
        BTreeSet::from(["worker-a".to_owned(), "worker-b".to_owned()]),
        "API nodes send nothing"
    );
    for node in &mut nodes {
        node.signal("TERM");
        assert!(node.wait_exit(EXIT_TIMEOUT).await.success(), "{}", node.output());
    }
}

/// Starts RabbitMQ with the virtual host, the user and the permissions that `cluster.yml` configures.
async fn rabbitmq_of(compose: &str) -> RabbitMq {
    let setting = |name: &str| text_between(compose, &format!("{name} = "), "\n").to_owned();
    let rabbitmq = RabbitMq::start().await;
    let (vhost, user) = (setting("default_vhost"), setting("default_user"));
    rabbitmq.ctl(&["add_vhost", &vhost]).await;
    rabbitmq.ctl(&["add_user", &user, PASSWORD]).await;
    let permissions =
        ["configure", "write", "read"].map(|kind| setting(&format!("default_permissions.{kind}")));
    let [configure, write, read] = permissions.each_ref().map(String::as_str);
    rabbitmq.ctl(&["set_permissions", "-p", &vhost, &user, configure, write, read]).await;
    rabbitmq
}

/// Writes `cluster.toml` with the addresses of these servers and new keys, and returns its path.
fn cluster_toml(folder: &Path, redis: &Redis, rabbitmq: &RabbitMq) -> String {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for name in ["database.password", "redis.password", "amqp.password"] {
        write(name, PASSWORD);
    }
    write("master.key", "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
    write("admin.key", "rdk_test_0123456789abcdef0123456789abcdef");
    let mut settings = std::fs::read_to_string(deploy().join("compose/cluster.toml")).unwrap();
    for (old, new) in [
        ("@redis:6379", format!("@{}", redis.address())),
        ("@rabbitmq:5672", format!("@{}", rabbitmq.address())),
        ("/run/keys", folder.to_str().unwrap().to_owned()),
    ] {
        assert!(settings.contains(old), "cluster.toml does not name {old}");
        settings = settings.replace(old, &new);
    }
    write("redrive.toml", &settings)
}

fn text_between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text.split_once(start).unwrap_or_else(|| panic!("{start:?} is missing"));
    rest.split_once(end).unwrap_or_else(|| panic!("{end:?} is missing")).0.trim()
}

//! Tests of RabbitMQ servers for tests: shared ones that stop by themselves, and private ones to stop, kill and
//! freeze.

use std::{
    fs::{self, Permissions},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redrive_testkit::{
    Proxy, RabbitMq, WAIT_TIMEOUT,
    lapin::{
        BasicProperties, Connection, ConnectionProperties,
        types::{AMQPValue, FieldTable},
    },
};

/// Set in a child process that runs the same test: the file to write its result to.
const SECOND_SELF: &str = "TESTKIT_SECOND_SELF";

/// Runs this test in a child process that keeps its temporary files in `temp`.
fn second_self(test: &str, temp: &Path, found: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &redrive_testkit::test_name(module_path!(), test), "--nocapture"])
        .env(SECOND_SELF, found)
        .env("TMPDIR", temp);
    command.stdout(Stdio::null()).spawn().unwrap()
}

fn wait_until(what: &str, within: Duration, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < within, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Creates a temporary directory that other users can pass through.
fn open_dir() -> tempfile::TempDir {
    let dir = tempfile::TempDir::new().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
    dir
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

/// Returns whether the environment of any process of this machine contains the text.
fn is_consumed(text: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut environments = processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
    environments.any(|environment| String::from_utf8_lossy(&environment).contains(text))
}

fn plain() -> BasicProperties {
    BasicProperties::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn virtual_hosts_are_isolated() {
    let (one, two) = tokio::join!(RabbitMq::shared(), RabbitMq::shared());
    assert_eq!(one.address(), two.address());
    assert_ne!(one.name(), two.name());
    one.declare("q").await;
    two.declare("q").await;
    let mut headers = FieldTable::default();
    headers.insert("why".into(), AMQPValue::LongString("because".into()));
    let properties = plain().with_message_id("m1".into()).with_headers(headers);
    one.publish_all("q", vec![(properties, b"first".to_vec()), (plain(), b"second".to_vec())]).await;
    assert_eq!((one.depth("q").await, two.depth("q").await), (2, 0));
    let message = one.get("q").await.unwrap();
    assert_eq!((&*message.body, message.header("why").as_deref()), (&b"first"[..], Some("because")));
    assert_eq!(message.properties.message_id().as_ref().unwrap().as_str(), "m1");
    assert_eq!(one.get("q").await.unwrap().body, b"second");
    assert!(one.get("q").await.is_none());
    two.publish("q", plain(), b"x").await;
    assert_eq!(two.messages("q").await, 1);
    assert!(two.ctl(&["list_queues", "name", "messages"]).await.contains("q\t1"));
}

#[tokio::test(flavor = "multi_thread")]
#[should_panic(expected = "the queue does not exist")]
async fn publish_to_missing_queue_panics() {
    RabbitMq::shared().await.publish("nowhere", plain(), b"x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn private_server_does_not_outlive_its_test() {
    if let Some(found) = std::env::var_os(SECOND_SELF) {
        let rabbitmq = RabbitMq::start().await;
        fs::write(found, rabbitmq.address().port().to_string()).unwrap();
        std::future::pending::<()>().await;
    }
    let (temp, found) = (open_dir(), tempfile::TempDir::new().unwrap());
    let path = found.path().join("port");
    let mut child = second_self("private_server_does_not_outlive_its_test", temp.path(), &path);
    wait_until("the server is ready", 3 * WAIT_TIMEOUT, || {
        fs::read(&path).is_ok_and(|port| !port.is_empty())
    });
    let mark = temp.path().join("redrive-test-rabbitmq");
    assert!(is_consumed(mark.to_str().unwrap()));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the folder is removed", WAIT_TIMEOUT, || is_empty(temp.path()));
    let port = fs::read_to_string(&path).unwrap().parse().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    wait_until("its last process has ended", WAIT_TIMEOUT, || !is_consumed(mark.to_str().unwrap()));
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn private_server_restarts_with_or_without_its_messages() {
        let mut rabbitmq = RabbitMq::start().await;
        let address = rabbitmq.address();
        rabbitmq.declare("q").await;
        rabbitmq.publish("q", plain(), b"kept").await;
        rabbitmq.stop().await;
        assert!(TcpStream::connect(address).is_err());
        rabbitmq.start_again().await;
        assert_eq!(rabbitmq.depth("q").await, 1);
        rabbitmq.freeze();
        let mut ask = Box::pin(rabbitmq.depth("q"));
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut ask).await.is_err());
        drop(ask);
        rabbitmq.thaw();
        assert_eq!(rabbitmq.messages("q").await, 1);
        rabbitmq.kill().await;
        rabbitmq.start_again().await;
        assert_eq!(rabbitmq.get("q").await.unwrap().body, b"kept");
        rabbitmq.restart_empty().await;
        assert_eq!(rabbitmq.address(), address);
        assert_eq!(rabbitmq.ctl(&["list_queues", "name"]).await.trim(), "");
        assert_eq!(rabbitmq.evaluate("1 + 1.").await, "2");
        drop(rabbitmq);
        assert!(TcpStream::connect(address).is_err());
    }

    /// Several processes concurrently find no server: one starts it, all use it, and it stops.
    #[tokio::test(flavor = "multi_thread")]
    async fn shared_server_is_started_once_and_stops_when_unused() {
        if let Some(found) = std::env::var_os(SECOND_SELF) {
            let vhost = RabbitMq::shared().await;
            vhost.declare("q").await;
            return fs::write(found, vhost.address().port().to_string()).unwrap();
        }
        let (temp, found) = (open_dir(), tempfile::TempDir::new().unwrap());
        let paths: Vec<_> = (0..3).map(|n| found.path().join(n.to_string())).collect();
        let test = "extended::shared_server_is_started_once_and_stops_when_unused";
        let selves: Vec<_> = paths.iter().map(|path| second_self(test, temp.path(), path)).collect();
        selves.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
        let mut ports: Vec<_> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        ports.dedup();
        assert_eq!(ports.len(), 1, "{ports:?}");
        wait_until("the folder is removed", WAIT_TIMEOUT, || is_empty(temp.path()));
        assert!(TcpStream::connect(("127.0.0.1", ports[0].parse().unwrap())).is_err());
        let mark = temp.path().join("redrive-test-rabbitmq");
        wait_until("its last process has ended", WAIT_TIMEOUT, || !is_consumed(mark.to_str().unwrap()));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tls_server_has_a_trusted_certificate() {
        let rabbitmq = RabbitMq::start_with_tls().await;
        assert!(rabbitmq.url().starts_with("amqps://"));
        let ask = |ca: &Path| {
            let address = rabbitmq.address().to_string();
            let command =
                ["s_client", "-connect", &address, "-verify_return_error", "-verify_ip", "127.0.0.1"];
            let ca = ["-CAfile", ca.to_str().unwrap(), "-no-CApath"];
            let mut command = Command::new("openssl")
                .args(command)
                .args(ca)
                .stdin(Stdio::null())
                .output()
                .expect("no `openssl`");
            command.stdout.append(&mut command.stderr);
            command
        };
        assert!(ask(&rabbitmq.ca_path()).status.success(), "{:?}", ask(&rabbitmq.ca_path()));
        assert!(!ask(Path::new("/etc/ssl/certs/ca-certificates.crt")).status.success());
        rabbitmq.declare("q").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dropped_virtual_host_is_removed() {
        let vhost = RabbitMq::shared().await;
        let proxy = Proxy::to(vhost.address()).await;
        let url = vhost.url_through(&proxy);
        let connect = || Connection::connect(&url, ConnectionProperties::default());
        connect().await.unwrap().close(200, "".into()).await.unwrap();
        drop(vhost);
        assert!(connect().await.is_err());
    }
}

//! Tests of private Redis servers for tests, to stop, kill and freeze.

use std::{
    fs,
    net::TcpStream,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use redrive_testkit::{Proxy, Redis, WAIT_TIMEOUT};

/// Set in a child process that runs the same test: the file to write its result to.
const SECOND_SELF: &str = "TESTKIT_SECOND_SELF";

/// Runs `redis-cli` and returns its output.
fn client(url: &str, more: &[&str]) -> Output {
    Command::new("redis-cli").args(["-u", url]).args(more).output().expect("no `redis-cli` command here")
}

#[tokio::test]
async fn server_restarts_empty_on_its_port() {
    let mut redis = Redis::start().await;
    let address = redis.address();
    assert_eq!(redis.command(&["SET", "a", "one"]).await, "OK");
    assert_eq!(redis.command(&["GET", "a"]).await, "one");
    assert_eq!(redis.command(&["KEYS", "*"]).await, "a");
    redis.stop().await;
    assert!(TcpStream::connect(address).is_err());
    redis.stop().await;
    redis.start_again().await;
    assert_eq!(redis.address(), address);
    assert_eq!(redis.command(&["GET", "a"]).await, "");
    redis.kill().await;
    assert!(TcpStream::connect(address).is_err());
    redis.start_again().await;
    assert_eq!(redis.command(&["DBSIZE"]).await, "0");
    drop(redis);
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test]
#[should_panic(expected = "unknown command")]
async fn failed_command_panics_with_its_reason() {
    Redis::start().await.command(&["NONSENSE"]).await;
}

#[tokio::test]
async fn frozen_server_replies_after_thaw() {
    let mut redis = Redis::start().await;
    redis.freeze();
    // The guard process sends the signal, so the first commands may still be served.
    let stops_responding = async {
        while tokio::time::timeout(Duration::from_millis(300), redis.command(&["PING"])).await.is_ok() {}
    };
    tokio::time::timeout(WAIT_TIMEOUT, stops_responding).await.expect("the frozen server still responds");
    redis.thaw();
    assert_eq!(redis.command(&["PING"]).await, "PONG");
    // A frozen server can still be stopped and killed.
    redis.freeze();
    redis.stop().await;
    redis.start_again().await;
    redis.freeze();
    redis.kill().await;
}

#[tokio::test]
async fn server_is_reachable_through_a_proxy() {
    let redis = Redis::start().await;
    let proxy = Proxy::to(redis.address()).await;
    let url = redis.url_through(&proxy);
    let ask = || {
        let url = url.clone();
        tokio::task::spawn_blocking(move || client(&url, &["PING"]))
    };
    assert_eq!(ask().await.unwrap().stdout, b"PONG\n");
    proxy.refuse();
    assert!(!ask().await.unwrap().status.success());
}

#[tokio::test]
async fn acl_users_survive_a_restart() {
    let mut redis = Redis::start().await;
    let url = redis.add_user("small", "secret", &["~own:*", "+get", "+set"]).await;
    for _ in 0..2 {
        assert_eq!(client(&url, &["SET", "own:a", "1"]).stdout, b"OK\n");
        let refused = client(&url, &["SET", "other", "1"]);
        assert!(String::from_utf8_lossy(&refused.stdout).contains("NOPERM"), "{refused:?}");
        let wrong = client(&url.replace("secret", "wrong"), &["GET", "own:a"]);
        assert!(String::from_utf8_lossy(&wrong.stderr).contains("WRONGPASS"), "{wrong:?}");
        redis.stop().await;
        redis.start_again().await;
    }
}

#[tokio::test]
async fn tls_server_has_a_trusted_certificate() {
    let redis = Redis::start_with_tls().await;
    let ca = redis.ca_path();
    let ping = |ca: &Path| client(&redis.url(), &["--cacert", ca.to_str().unwrap(), "PING"]);
    assert_eq!(ping(&ca).stdout, b"PONG\n");
    assert!(!ping(Path::new("/etc/ssl/certs/ca-certificates.crt")).status.success());
    assert_eq!(redis.command(&["PING"]).await, "PONG");
}

#[tokio::test]
async fn server_does_not_outlive_its_test() {
    if let Some(found) = std::env::var_os(SECOND_SELF) {
        let redis = Redis::start().await;
        fs::write(found, redis.address().port().to_string()).unwrap();
        std::future::pending::<()>().await;
    }
    let (temp, found) = (tempfile::TempDir::new().unwrap(), tempfile::TempDir::new().unwrap());
    let path = found.path().join("port");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &redrive_testkit::test_name(module_path!(), "server_does_not_outlive_its_test")])
        .arg("--nocapture")
        .env(SECOND_SELF, &path)
        .env("TMPDIR", temp.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let wait_until = |what: &str, condition: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !condition() {
            assert!(started.elapsed() < WAIT_TIMEOUT, "not within the timeout: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait_until("the server is ready", &|| fs::read(&path).is_ok_and(|port| !port.is_empty()));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the folder is removed", &|| fs::read_dir(temp.path()).unwrap().next().is_none());
    let port = fs::read_to_string(&path).unwrap().parse().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

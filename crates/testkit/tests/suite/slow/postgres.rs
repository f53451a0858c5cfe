//! Tests of PostgreSQL servers for tests: shared ones that stop by themselves, and private ones to stop and kill.

use std::{
    fs::{self, Permissions},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redrive_testkit::{Postgres, Proxy, WAIT_TIMEOUT};

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

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn databases_are_isolated() {
    let (one, two) = tokio::join!(Postgres::shared(), Postgres::shared());
    assert_eq!(one.port(), two.port());
    assert_ne!(one.schema(), two.schema());
    one.execute("CREATE TABLE t (n int, x text); INSERT INTO t VALUES (1, 'one')").await;
    two.execute("CREATE TABLE t (n int, x text)").await;
    assert_eq!(two.execute("INSERT INTO t VALUES (2, 'two'), (3, NULL)").await, 2);
    assert_eq!(one.query("SELECT * FROM t").await, [["1", "one"]]);
    assert_eq!(two.query("SELECT * FROM t ORDER BY n").await, [["2", "two"], ["3", "NULL"]]);
    assert_eq!(two.query("SELECT current_schema()").await, [[two.schema()]]);
}

#[tokio::test]
async fn dropped_database_is_removed_while_in_use() {
    let (one, two) = tokio::join!(Postgres::shared(), Postgres::shared());
    one.execute("CREATE TABLE t (n int)").await;
    let (client, connection) = tokio_postgres::connect(&one.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    let schema = one.schema().to_owned();
    let started = Instant::now();
    drop(one);
    assert!(started.elapsed() < WAIT_TIMEOUT, "{:?}", started.elapsed());
    let left = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'");
    assert_eq!(two.query(&left).await, [["0"]]);
    assert!(client.batch_execute("COMMIT").await.is_err());
}

#[tokio::test]
#[should_panic(expected = "SELECT nothing: db error: ERROR: column \"nothing\" does not exist")]
async fn failed_query_panics_with_its_reason() {
    Postgres::shared().await.query("SELECT nothing").await;
}

#[tokio::test]
async fn database_is_reachable_through_a_proxy() {
    let database = Postgres::shared().await;
    let proxy = Proxy::to(database.address()).await;
    let connect = || async {
        let (client, connection) =
            tokio_postgres::connect(&database.url_through(&proxy), tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client.query_one("SELECT current_schema()", &[]).await.map(|row| row.get::<_, String>(0))
    };
    assert_eq!(connect().await.unwrap(), database.schema());
    proxy.refuse();
    assert!(connect().await.is_err());
    assert_eq!(proxy.connection_count(), 2);
}

/// Several processes concurrently find only the remains of a server: one starts a new one, all use it, and it
/// stops.
#[tokio::test]
async fn shared_server_is_started_once_and_stops_when_unused() {
    if let Some(found) = std::env::var_os(SECOND_SELF) {
        let database = Postgres::shared().await;
        database.execute("CREATE TABLE t (n int)").await;
        return fs::write(found, database.port().to_string()).unwrap();
    }
    let (temp, found) = (open_dir(), tempfile::TempDir::new().unwrap());
    let folder = temp.path().join(format!("redrive-test-postgres-{}", rustix::process::geteuid().as_raw()));
    fs::create_dir_all(folder.join("data/base")).unwrap();
    fs::write(folder.join("data/postmaster.pid"), "1\n").unwrap();
    fs::write(folder.join("port"), "1").unwrap();

    let run = |round: &str, count: usize| {
        let paths: Vec<_> = (0..count).map(|n| found.path().join(format!("{round}-{n}"))).collect();
        let test = "shared_server_is_started_once_and_stops_when_unused";
        let selves: Vec<_> = paths.iter().map(|path| second_self(test, temp.path(), path)).collect();
        selves.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
        let mut ports: Vec<_> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
        ports.dedup();
        assert_eq!(ports.len(), 1, "{ports:?}");
        ports.remove(0)
    };
    let port = run("first", 4);
    assert_eq!(run("second", 2), port, "the server runs for some seconds without use");

    // A killed server is replaced.
    let pid = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
    let pid = pid.lines().next().unwrap();
    assert!(Command::new("kill").args(["-s", "QUIT", pid]).status().unwrap().success());
    let port = run("third", 2).parse().unwrap();

    wait_until("the folder is removed", WAIT_TIMEOUT, || entries(temp.path()).is_empty());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[tokio::test]
async fn private_server_keeps_its_data_across_restarts() {
    let mut postgres = Postgres::start().await;
    let port = postgres.port();
    postgres.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await;
    assert_eq!(postgres.query("SHOW fsync").await, [["on"]]);
    postgres.restart().await;
    postgres.execute("INSERT INTO t VALUES (2)").await;
    postgres.kill().await;
    assert!(TcpStream::connect(postgres.address()).is_err());
    postgres.start_again().await;
    postgres.stop().await;
    assert!(TcpStream::connect(postgres.address()).is_err());
    postgres.stop().await;
    postgres.start_again().await;
    assert_eq!(postgres.port(), port);
    assert_eq!(postgres.query("SELECT n FROM t ORDER BY n").await, [["1"], ["2"]]);
    drop(postgres);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[tokio::test]
async fn private_server_does_not_outlive_its_test() {
    if let Some(found) = std::env::var_os(SECOND_SELF) {
        let postgres = Postgres::start().await;
        fs::write(found, postgres.port().to_string()).unwrap();
        std::future::pending::<()>().await;
    }
    let (temp, found) = (open_dir(), tempfile::TempDir::new().unwrap());
    let path = found.path().join("port");
    let mut child = second_self("private_server_does_not_outlive_its_test", temp.path(), &path);
    wait_until("the server is ready", 3 * WAIT_TIMEOUT, || {
        fs::read(&path).is_ok_and(|port| !port.is_empty())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the folder is removed", WAIT_TIMEOUT, || entries(temp.path()).is_empty());
    let port = fs::read_to_string(&path).unwrap().parse().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[tokio::test]
async fn tls_server_has_a_trusted_certificate() {
    let postgres = Postgres::start_with_tls().await;
    let ask = |ca: &Path, host: &str| {
        let settings = format!(
            "host={host} hostaddr=127.0.0.1 port={} user=redrive dbname=redrive sslmode=verify-full sslrootcert={}",
            postgres.port(),
            ca.display()
        );
        let ssl = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        Command::new("psql")
            .args(["--no-psqlrc", "-At", "-c", ssl, &settings])
            .output()
            .expect("no `psql` command here")
    };
    for host in ["localhost", "127.0.0.1"] {
        let output = ask(&postgres.ca_path(), host);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "t\n", "{output:?}");
    }
    assert!(!ask(&postgres.ca_path(), "elsewhere").status.success());
    assert!(!ask(Path::new("/etc/ssl/certs/ca-certificates.crt"), "localhost").status.success());
    assert_eq!(postgres.query("SELECT 1").await, [["1"]], "plain connections work too");
}

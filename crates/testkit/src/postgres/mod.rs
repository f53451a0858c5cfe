//! Throwaway PostgreSQL servers, from the programs of the distribution's package.
//!
//! Most tests use a [`Database`] in the shared server: [`Postgres::shared`]. A test that stops and kills its
//! server starts its own: [`Postgres::start`]. Servers listen on a free port of 127.0.0.1 and accept every local
//! connection; no other server of this machine is ever touched.

mod database;
mod programs;
mod session;
mod shared;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use tempfile::TempDir;

pub use self::database::Database;
use self::programs::Programs;
use crate::{
    MovableClock, Proxy, WAIT_TIMEOUT,
    service::{ProcessGuard, blocking, free_port, make_certificates},
};

/// Small limits, because several such servers may run in parallel.
const SETTINGS: [&str; 2] = ["shared_buffers=16MB", "max_connections=100"];

/// PostgreSQL's default file names, stated explicitly.
const TLS: [&str; 3] = ["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key"];

/// A private server to stop, kill and start again. Killed and removed when dropped, and shortly after the test
/// process ends for any reason.
pub struct Postgres {
    /// `None` while the server is stopped.
    keeper: Option<ProcessGuard>,
    programs: Programs,
    /// The certificate authority, the log, and the data.
    folder: TempDir,
    port: u16,
    settings: Vec<&'static str>,
    environment: Vec<(&'static str, OsString)>,
    tls: bool,
}

impl Postgres {
    /// Returns a private database in the server that all test processes share. The server is started if it does not
    /// run, and stops after a few seconds without use.
    ///
    /// That server does not flush to disk: it is fast, and a power failure would lose its data.
    pub async fn shared() -> Database {
        Database::create(blocking(shared::port).await).await
    }

    /// Starts a new private server with PostgreSQL's default durability.
    pub async fn start() -> Self {
        Self::start_server(false, Vec::new()).await
    }

    /// Starts a new server whose wall clock the test can move.
    pub async fn start_with_clock(clock: &MovableClock) -> Self {
        Self::start_server(false, clock.environment()).await
    }

    /// Starts a new server that also supports TLS, with a certificate for 127.0.0.1 and localhost from its own
    /// certificate authority.
    pub async fn start_with_tls() -> Self {
        Self::start_server(true, Vec::new()).await
    }

    /// Starts a streaming replica of this server that receives everything through a proxy in front of
    /// [`address`](Self::address). It replicates asynchronously unless the server is configured otherwise.
    pub async fn start_replica(&self, link: &Proxy) -> Self {
        let port = link.address().port();
        let mut replica = blocking(move || {
            let programs = Programs::find();
            let folder = TempDir::with_prefix("redrive-test-replica-").expect("no temporary directory");
            programs.copy_cluster(folder.path(), port);
            Self {
                keeper: None,
                programs,
                folder,
                port: 0,
                settings: SETTINGS.to_vec(),
                environment: Vec::new(),
                tls: false,
            }
        })
        .await;
        for _ in 0..5 {
            replica.port = free_port();
            if replica.launch().await {
                return replica;
            }
        }
        panic!("the replica did not start");
    }

    /// Promotes a replica to primary, and waits until it accepts writes.
    pub async fn promote(&self) {
        // The statement does not wait for the end of the recovery, which may cancel a statement that takes long.
        self.query("SELECT pg_promote(wait => false)").await;
        let started = Instant::now();
        while self.query("SELECT pg_is_in_recovery()").await[0][0] != "f" {
            assert!(started.elapsed() < 2 * WAIT_TIMEOUT, "the replica is not promoted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns a URL that connects to whichever of these two servers accepts writes.
    pub fn url_of_either(&self, other: &Self) -> String {
        let (one, other) = (self.port, other.port);
        format!(
            "postgres://redrive@127.0.0.1:{one},127.0.0.1:{other}/redrive?target_session_attrs=read-write"
        )
    }

    /// Returns the URL of an empty database.
    pub fn url(&self) -> String {
        session::url(self.port, "redrive")
    }

    /// Returns the URL through a proxy in front of [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        session::url(proxy.address().port(), "redrive")
    }

    /// Returns the address, which does not change across restarts.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Returns the port, which does not change across restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path of the CA certificate to trust; panics for a server without TLS.
    pub fn ca_path(&self) -> PathBuf {
        assert!(self.tls, "this server has no certificate; start it with Postgres::start_with_tls");
        self.folder.path().join("ca.pem")
    }

    /// Runs one query and returns its rows, every value as text and null as `NULL`. Panics if it fails.
    pub async fn query(&self, sql: &str) -> Vec<Vec<String>> {
        session::query(&self.url(), sql).await
    }

    /// Runs one or more statements and returns the number of rows affected or returned. Panics if one fails.
    pub async fn execute(&self, sql: &str) -> u64 {
        session::execute(&self.url(), sql).await
    }

    /// Returns the server's log since it was created.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Shuts the server down cleanly without waiting for its clients, and waits until it has ended.
    pub async fn stop(&mut self) {
        self.end("INT").await;
    }

    /// Ends the server as a crash would, without a clean shutdown, and waits until it has ended.
    pub async fn kill(&mut self) {
        self.end("QUIT").await;
    }

    /// Starts it again on the same data and port, and waits until it accepts connections; panics if it still runs.
    pub async fn start_again(&mut self) {
        let ended = self.keeper.as_mut().is_none_or(ProcessGuard::has_ended);
        assert!(ended, "the server still runs; stop or kill it first");
        assert!(self.launch().await, "the server did not start again");
    }

    /// Shuts it down cleanly and starts it again.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    async fn start_server(tls: bool, environment: Vec<(&'static str, OsString)>) -> Self {
        let mut postgres = blocking(move || {
            let programs = Programs::find();
            let folder = TempDir::with_prefix("redrive-test-postgres-").expect("no temporary directory");
            programs.make_cluster(folder.path(), Stdio::null());
            let mut settings = SETTINGS.to_vec();
            if tls {
                make_certificates(programs.user, folder.path(), &folder.path().join("data"));
                settings.extend(TLS);
            }
            Self { keeper: None, programs, folder, port: 0, settings, environment, tls }
        })
        .await;
        // Another process may take the port before the server does.
        for _ in 0..5 {
            postgres.port = free_port();
            if postgres.launch().await {
                return postgres;
            }
        }
        panic!("the server did not start");
    }

    /// Starts it and waits until it accepts connections. Returns `false` if it has ended instead.
    async fn launch(&mut self) -> bool {
        let mut server = self.programs.server("QUIT", self.folder.path(), self.port, &self.settings);
        server.settings.clone_from(&self.environment);
        let keeper = self.keeper.insert(ProcessGuard::start(&server));
        keeper.is_ready(|| session::is_ready(self.port, self.folder.path())).await
    }

    async fn end(&mut self, signal: &str) {
        if let Some(keeper) = self.keeper.take() {
            keeper.end(signal).await;
        }
    }
}

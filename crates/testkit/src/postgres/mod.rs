//! Throwaway PostgreSQL servers, from the programs that the distribution's package brings.
//!
//! Most tests need no server but a [`Database`] in the one that all tests share: [`Postgres::shared`]. A test
//! that stops and kills its server starts one of its own: [`Postgres::start`]. Servers listen on a free port
//! of 127.0.0.1 and trust who connects; no other server of this machine is ever touched.

mod database;
mod programs;
mod session;
mod shared;

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, process::Stdio};

use tempfile::TempDir;

pub use self::database::Database;
use self::programs::Programs;
use crate::{
    MovableClock, Proxy,
    service::{Keeper, blocking, free_port, make_certificates},
};

/// Little of everything, since tests with such servers may run side by side.
const SETTINGS: [&str; 2] = ["shared_buffers=16MB", "max_connections=100"];

/// Where PostgreSQL looks by itself, said for the reader.
const TLS: [&str; 3] = ["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key"];

/// A server of one's own, to stop, kill and start again. Killed and removed when dropped, and soon after the
/// test's process is gone, however it went.
pub struct Postgres {
    /// While it runs.
    keeper: Option<Keeper>,
    programs: Programs,
    /// The certificate authority, the log, and the data.
    folder: TempDir,
    port: u16,
    settings: Vec<&'static str>,
    environment: Vec<(&'static str, OsString)>,
    tls: bool,
}

impl Postgres {
    /// A database of one's own in the server that all test processes share, which is started when there is
    /// none and goes when nobody has used it for a few seconds.
    ///
    /// That server would lose everything in a power cut, and is quick.
    pub async fn shared() -> Database {
        Database::make(blocking(shared::port).await).await
    }

    /// A fresh server of one's own, as careful with its data as the defaults are.
    pub async fn start() -> Self {
        Self::make(false, Vec::new()).await
    }

    /// A fresh server with a wall clock that the test moves.
    pub async fn start_with_clock(clock: &MovableClock) -> Self {
        Self::make(false, clock.environment()).await
    }

    /// A fresh server that speaks TLS too, with a certificate for 127.0.0.1 and localhost of an authority of
    /// its own.
    pub async fn start_with_tls() -> Self {
        Self::make(true, Vec::new()).await
    }

    /// A streaming replica of this server, which receives everything through a proxy that stands before
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

    /// Makes a replica a primary, and waits until it takes writes.
    pub async fn promote(&self) {
        self.query("SELECT pg_promote()").await;
    }

    /// How to connect to whichever of these servers takes writes.
    pub fn url_of_either(&self, other: &Self) -> String {
        let (one, other) = (self.port, other.port);
        format!(
            "postgres://redrive@127.0.0.1:{one},127.0.0.1:{other}/redrive?target_session_attrs=read-write"
        )
    }

    /// How to connect, to an empty database.
    pub fn url(&self) -> String {
        session::url(self.port, "redrive")
    }

    /// How to connect through a proxy that stands before [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        session::url(proxy.address().port(), "redrive")
    }

    /// Where it listens, over all restarts.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The port where it listens, over all restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate of the authority to trust; panics for a server without TLS.
    pub fn ca_path(&self) -> PathBuf {
        assert!(self.tls, "this server has no certificate; start it with Postgres::start_with_tls");
        self.folder.path().join("ca.pem")
    }

    /// The rows of one query, every value as text; what is null reads `NULL`. Panics when it fails.
    pub async fn query(&self, sql: &str) -> Vec<Vec<String>> {
        session::query(&self.url(), sql).await
    }

    /// Runs one statement or several; gives how many rows they changed or found. Panics when one fails.
    pub async fn execute(&self, sql: &str) -> u64 {
        session::execute(&self.url(), sql).await
    }

    /// What the server has logged since it was created.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Stops it in good order, though without waiting for its clients, and waits until it is gone.
    pub async fn stop(&mut self) {
        self.end("INT").await;
    }

    /// Ends it as a crash would, with its last work unfinished, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.end("QUIT").await;
    }

    /// Starts it again on the same data and port, ready for connections; panics when it still runs.
    pub async fn start_again(&mut self) {
        let ended = self.keeper.as_mut().is_none_or(Keeper::has_ended);
        assert!(ended, "the server still runs; stop or kill it first");
        assert!(self.launch().await, "the server did not start again");
    }

    /// Stops it in good order and starts it again.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    async fn make(tls: bool, environment: Vec<(&'static str, OsString)>) -> Self {
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
        // Somebody else may take the port before the server does.
        for _ in 0..5 {
            postgres.port = free_port();
            if postgres.launch().await {
                return postgres;
            }
        }
        panic!("the server did not start");
    }

    /// Starts it and waits until it takes connections; false when it has ended instead.
    async fn launch(&mut self) -> bool {
        let mut server = self.programs.server("QUIT", self.folder.path(), self.port, &self.settings);
        server.settings.clone_from(&self.environment);
        let keeper = self.keeper.insert(Keeper::start(&server));
        keeper.is_ready(|| session::is_ready(self.port, self.folder.path())).await
    }

    async fn end(&mut self, signal: &str) {
        if let Some(keeper) = self.keeper.take() {
            keeper.end(signal).await;
        }
    }
}

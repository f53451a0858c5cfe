//! Throwaway PostgreSQL servers, from the programs that the distribution's package brings.
//!
//! Most tests need no server but a [`Database`] in the one that all tests share: [`Postgres::shared`]. A test
//! that stops and kills its server starts one of its own: [`Postgres::start`]. Servers listen on a free port
//! of 127.0.0.1 and trust who connects; no other server of this machine is ever touched.

mod database;
mod programs;
mod session;
mod shared;
mod tls;

use std::{
    io::Write,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use tokio::time::Instant;

pub use self::database::Database;
use self::programs::{Programs, free_port, said};
use crate::{PATIENCE, Proxy};

/// Little of everything, since tests with such servers may run side by side.
const SETTINGS: [&str; 2] = ["shared_buffers=16MB", "max_connections=100"];

/// Runs the server until it ends. A line from the test names a signal for it; when there is no test any more,
/// the server and its folder go too.
const KEEPER: &str = r#"
folder=$1
shift
exec 3<&0
"$@" 3<&- </dev/null &
server=$!
{
    if read -r signal <&3; then
        kill -s "$signal" $server
    else
        kill -s QUIT $server
        while kill -0 $server; do sleep 0.1; done
        rm -rf "$folder"
    fi
} 2>/dev/null &
exec 3<&- </dev/null
wait $server
"#;

/// A server of one's own, to stop, kill and start again. Killed and removed when dropped, and soon after the
/// test's process is gone, however it went.
pub struct Postgres {
    programs: Programs,
    /// The certificate authority, the log, and the data.
    folder: TempDir,
    port: u16,
    settings: Vec<&'static str>,
    tls: bool,
    /// The shell that runs the server, while it runs.
    keeper: Option<Child>,
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
        Self::make(false).await
    }

    /// A fresh server that speaks TLS too, with a certificate for 127.0.0.1 and localhost of an authority of
    /// its own.
    pub async fn start_with_tls() -> Self {
        Self::make(true).await
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
        assert!(self.has_ended(), "the server still runs; stop or kill it first");
        self.end("0").await;
        self.launch();
        assert!(self.is_ready().await, "the server did not start again");
    }

    /// Stops it in good order and starts it again.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.start_again().await;
    }

    async fn make(tls: bool) -> Self {
        let mut postgres = blocking(move || {
            let programs = Programs::find();
            let folder = TempDir::with_prefix("redrive-test-postgres-").expect("no temporary directory");
            programs.make_cluster(folder.path(), Stdio::null());
            let mut settings = SETTINGS.to_vec();
            if tls {
                settings.extend(tls::make_certificates(&programs, folder.path()));
            }
            Self { programs, folder, port: 0, settings, tls, keeper: None }
        })
        .await;
        // Somebody else may take the port before the server does.
        for _ in 0..5 {
            postgres.port = free_port();
            postgres.launch();
            if postgres.is_ready().await {
                return postgres;
            }
        }
        panic!("the server did not start");
    }

    fn launch(&mut self) {
        let mut keeper = self.programs.keeper(&[], KEEPER, self.folder.path(), self.port, &self.settings);
        self.keeper = Some(keeper.stdin(Stdio::piped()).spawn().expect("no `setsid` command here"));
    }

    /// Waits until it takes connections; false when it has ended instead.
    async fn is_ready(&mut self) -> bool {
        let started = Instant::now();
        while !session::is_ready(self.port, self.folder.path()).await {
            if self.has_ended() {
                self.end("0").await;
                return false;
            }
            assert!(started.elapsed() < PATIENCE, "the server is not ready after {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    fn has_ended(&mut self) -> bool {
        self.keeper.as_mut().is_none_or(|keeper| keeper.try_wait().expect("cannot wait for it").is_some())
    }

    async fn end(&mut self, signal: &str) {
        self.order(signal);
        let started = Instant::now();
        while !self.has_ended() {
            assert!(started.elapsed() < PATIENCE, "the server still runs after {PATIENCE:?}");
            // The end of another process wakes nobody here.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.keeper = None;
    }

    /// Has the keeper send a signal to the server, where 0 is none; a keeper without orders would take the
    /// test for gone.
    fn order(&mut self, signal: &str) {
        if let Some(mut orders) = self.keeper.as_mut().and_then(|keeper| keeper.stdin.take()) {
            writeln!(orders, "{signal}").ok();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Gone already is fine, and a panic here would hide the first one.
        self.order("QUIT");
        if let Some(mut keeper) = self.keeper.take() {
            keeper.wait().ok();
        }
        if std::thread::panicking() {
            eprintln!("--- output of postgres ---\n{}--- end of output ---", said(self.folder.path()));
        }
    }
}

/// Does slow work where it holds up no other futures; panics as it does.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))
}

//! A place for one test in the server that all tests share.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::session;
use crate::{Proxy, service::block_on};

/// How long the end of a test waits for its tables to go.
const FAREWELL: Duration = Duration::from_secs(5);

/// A schema of one's own in the server that all tests share, dropped with everything in it when this is.
///
/// Tables, types and functions are one's own. What belongs to the whole database is not: advisory locks,
/// the channels of `NOTIFY`, and views of the system such as `pg_stat_activity`.
pub struct Database {
    port: u16,
    schema: String,
}

impl Database {
    pub(super) async fn make(port: u16) -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_micros();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let schema = format!("t_{}_{number}_{now}", std::process::id());
        session::execute(&session::url(port, "redrive"), &format!("CREATE SCHEMA {schema}")).await;
        Self { port, schema }
    }

    /// How to connect; what is made by its bare name then is in the schema.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// How to connect through a proxy that stands before [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.address())
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The name of the schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The rows of one query, every value as text; what is null reads `NULL`. Panics when it fails.
    pub async fn query(&self, sql: &str) -> Vec<Vec<String>> {
        session::query(&self.url(), sql).await
    }

    /// Runs one statement or several; gives how many rows they changed or found. Panics when one fails.
    pub async fn execute(&self, sql: &str) -> u64 {
        session::execute(&self.url(), sql).await
    }

    fn url_at(&self, address: SocketAddr) -> String {
        let schema = &self.schema;
        format!("postgres://redrive@{address}/redrive?options=-csearch_path%3D{schema}")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Who still holds a lock in there would be in the way.
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
             WHERE relnamespace = '{schema}'::regnamespace AND pid <> pg_backend_pid();
             DROP SCHEMA {schema} CASCADE",
            schema = self.schema
        );
        let url = session::url(self.port, "redrive");
        let goodbye = async move { session::connect(&url).await?.simple_query(&sql).await };
        // A thread of its own, for this one may be running futures. A schema that stays does no harm.
        let thread =
            std::thread::spawn(|| block_on(async { tokio::time::timeout(FAREWELL, goodbye).await.is_ok() }));
        thread.join().ok();
    }
}

//! A schema for one test in the PostgreSQL server that all tests share.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::session;
use crate::{Proxy, service::block_on};

/// The timeout for dropping the schema when a test ends.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// A private schema in the shared server. It is dropped, with everything in it, when this value is dropped.
///
/// Tables, types and functions are private. Database-wide state is not: advisory locks, `NOTIFY` channels, and
/// system views such as `pg_stat_activity`.
pub struct Database {
    port: u16,
    schema: String,
}

impl Database {
    pub(super) async fn create(port: u16) -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_micros();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let schema = format!("t_{}_{number}_{now}", std::process::id());
        session::execute(&session::url(port, "redrive"), &format!("CREATE SCHEMA {schema}")).await;
        Self { port, schema }
    }

    /// Returns the URL; objects created with unqualified names are in the schema.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns the URL through a proxy in front of [`address`](Self::address).
    pub fn url_through(&self, proxy: &Proxy) -> String {
        self.url_at(proxy.address())
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the name of the schema.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// Runs one query and returns its rows, every value as text and null as `NULL`. Panics if it fails.
    pub async fn query(&self, sql: &str) -> Vec<Vec<String>> {
        session::query(&self.url(), sql).await
    }

    /// Runs one or more statements and returns the number of rows affected or returned. Panics if one fails.
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
        // A backend that still holds a lock in the schema would block the drop, so it is terminated first.
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
             WHERE relnamespace = '{schema}'::regnamespace AND pid <> pg_backend_pid();
             DROP SCHEMA {schema} CASCADE",
            schema = self.schema
        );
        let url = session::url(self.port, "redrive");
        let goodbye = async move { session::connect(&url).await?.simple_query(&sql).await };
        // On its own thread, because this one may be running an async runtime. A schema that is left behind does no harm.
        let thread = std::thread::spawn(|| {
            block_on(async { tokio::time::timeout(DROP_TIMEOUT, goodbye).await.is_ok() })
        });
        thread.join().ok();
    }
}

//! What the tests of Redrive share: receivers that answer as told or behave badly on purpose, the real
//! binary as a process, a small client for its API, PostgreSQL, Redis, RabbitMQ and Prometheus servers, a proxy that
//! breaks connections, a scripted name server, a mail server, a collector of traces, canaries that nobody may reach, Python for the
//! official verifiers, and Node.js for
//! browsers.
//!
//! For tests alone: everything here panics with a helpful message where a service would return an error.

// Tests may read clocks, and a test that cannot go on should panic.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

pub mod api;
pub mod browser;
mod canary;
pub mod collector;
pub mod dns;
pub mod hostile;
mod install_once;
pub mod movable_clock;
pub mod node;
pub mod postgres;
pub mod prometheus;
pub mod proxy;
pub mod python;
pub mod rabbitmq;
pub mod receiver;
pub mod redis;
pub mod redrive;
mod server;
mod service;
pub mod smtp;
mod sse;
mod watch_cell;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use lapin;
use redrive_core::security::vault::{MasterKey, Vault};

pub use api::{Answer, Api};
pub use browser::{Browser, FORM};
pub use canary::Canary;
pub use collector::{Collector, Seen};
pub use dns::{Dns, Say};
pub use hostile::{Hostile, Hostility};
pub use movable_clock::MovableClock;
pub use node::node_with;
pub use postgres::{Database, Postgres};
pub use prometheus::{Prometheus, promtool};
pub use proxy::Proxy;
pub use python::python_with;
pub use rabbitmq::{Message, RabbitMq, Vhost};
pub use receiver::{Arrival, Gate, Receiver, Reply};
pub use redis::Redis;
pub use redrive::{Redrive, Setup, binary};
pub use smtp::{Arrived, Protection, Smtp};
pub use sse::{Events, sse};

/// The name by which a test binary runs one of its tests: `module` is `module_path!()`, whose first part is the binary.
pub fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// How long a test waits for something before it fails. Long enough for a machine that does other work as well.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A vault with a master key that everybody knows, and numbers that only look random.
pub fn vault() -> Vault {
    vault_of(1, &[])
}

/// A vault that seals with one such key, and opens what some others have sealed.
pub fn vault_of(current: u8, old: &[u8]) -> Vault {
    fn counting() -> [u8; 32] {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut bytes = [0x5a; 32];
        bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Relaxed).to_be_bytes());
        bytes
    }
    let key = |n: u8| MasterKey::from_bytes([n; 32]);
    let old: Vec<_> = old.iter().map(|n| key(*n)).collect();
    Vault::new(&key(current), &old, counting)
}

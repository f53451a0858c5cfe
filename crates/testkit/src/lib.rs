//! Shared test tools: receivers that respond as scripted or misbehave on purpose, the real binary as a process, a
//! client for its API, PostgreSQL, Redis, RabbitMQ and Prometheus servers, a fault-injecting TCP proxy, a scripted
//! name server, an SMTP server, an identity provider, a trace collector, canary listeners, Python for the official verifiers, and
//! Node.js for browsers.
//!
//! For tests only: everything here panics with a helpful message where a service would return an error.

// Tests may read clocks, and should panic if they cannot continue.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

pub mod api;
pub mod browser;
mod canary;
pub mod collector;
pub mod dns;
pub mod hostile;
pub mod identity_provider;
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

pub use api::{Api, ApiResponse};
pub use browser::{Browser, FORM};
pub use canary::Canary;
pub use collector::{Collector, ReceivedSpan};
pub use dns::{Dns, DnsReply};
pub use hostile::{MisbehavingReceiver, Misbehavior};
pub use identity_provider::{Fault, IdentityProvider};
pub use movable_clock::MovableClock;
pub use node::node_with;
pub use postgres::{Database, Postgres};
pub use prometheus::{Prometheus, check_metrics, promtool};
pub use proxy::Proxy;
pub use python::python_with;
pub use rabbitmq::{Message, RabbitMq, Vhost};
pub use receiver::{Latch, ReceivedRequest, Receiver, Reply};
pub use redis::Redis;
pub use redrive::{Redrive, Setup, binary};
pub use smtp::{Protection, ReceivedMail, Smtp};
pub use sse::{Events, sse};

/// Returns the name by which a test binary runs one of its tests. `module` is `module_path!()`, whose first
/// segment is the binary.
pub fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// The timeout of every wait in a test, long enough for a machine under load.
pub const WAIT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Returns a vault with a fixed, public master key and a counter instead of random bytes.
pub fn vault() -> Vault {
    vault_of(1, &[])
}

/// Returns a vault that seals with one such key and can also unseal with some old ones.
pub fn vault_of(current: u8, old: &[u8]) -> Vault {
    fn counting_random() -> [u8; 32] {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut bytes = [0x5a; 32];
        bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Relaxed).to_be_bytes());
        bytes
    }
    let key = |n: u8| MasterKey::from_bytes([n; 32]);
    let old: Vec<_> = old.iter().map(|n| key(*n)).collect();
    Vault::new(&key(current), &old, counting_random)
}

//! What the tests of Redrive share: receivers that answer as told or behave badly on purpose, the real
//! binary as a process, a small client for its API, PostgreSQL servers, a proxy that breaks connections,
//! a scripted name server, canaries that nobody may reach, and Python for the official verifiers.
//!
//! For tests alone: everything here panics with a helpful message where a service would return an error.

// Tests may read clocks, and a test that cannot go on should panic.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

pub mod api;
pub mod canary;
pub mod dns;
pub mod hostile;
pub mod postgres;
pub mod proxy;
pub mod python;
pub mod receiver;
pub mod redrive;
mod server;
mod watched;

pub use api::{Answer, Api};
pub use canary::Canary;
pub use dns::{Dns, Say};
pub use hostile::{Hostile, Hostility};
pub use postgres::{Database, Postgres};
pub use proxy::Proxy;
pub use python::python_with;
pub use receiver::{Arrival, Gate, Receiver, Reply};
pub use redrive::{Redrive, Setup};

/// How long a test waits for something before it fails.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

//! Tests of the guarded HTTP client against real sockets.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a failed test says where, and tests read the clock"
)]

mod common;
mod guard;
mod receivers;
mod tls;

//! The guarded HTTP client against real sockets.

mod common;
mod guard;
mod receivers;
mod tls;

//! The engine against real stores, servers and receivers. Suites in `slow` wait, kill and restart; suites in
//! `extended` take minutes or need unusual tools.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a failed test says where, and tests read the clock"
)]

mod broker;
mod circuits;
mod cluster_harness;
mod data_path;
mod flow_control;
mod harness;
mod order;
mod retention;
mod slow;
mod verification;

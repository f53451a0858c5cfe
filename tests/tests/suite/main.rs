//! Whole-system tests: the binary with real servers and real receivers. Suites in `slow` wait, kill and restart;
//! suites in `extended` take minutes or need unusual tools.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a failed assertion shows its place, and tests read the clock"
)]

mod architecture;
mod delivery;
mod demo;
mod drain;
mod event_types;
mod extended;
mod filters;
mod flow_control;
mod idempotency;
mod logs;
mod openapi_changes;
mod outcomes;
mod restart;
mod safe_start;
mod slow;
mod vocabulary;
mod webhook_rules;

//! Store tests: the conformance suite, and tests specific to each store. Suites in `slow` wait, kill and restart;
//! suites in `extended` take minutes or need unusual tools.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a failed assertion shows its place, and tests read the clock"
)]

mod extended;
mod slow;
mod sqlite;

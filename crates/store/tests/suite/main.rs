//! The stores: the conformance suite and what is particular to each. Suites in `slow` wait, kill and restart; suites in `extended` take minutes or need unusual tools.

mod extended;
mod slow;
mod sqlite;

//! Tests of the server and its command line from the user's side. Suites in `slow` wait, kill and restart; suites
//! in `extended` take minutes or need unusual tools.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a failed test says where, and tests read the clock"
)]

mod all_tenants;
mod attempts;
mod bad_input;
mod command_line;
mod creation;
mod dashboard;
mod dashboard_admin;
mod dashboard_history;
mod dashboard_webhooks;
#[path = "../../src/documentation.rs"]
mod documentation;
mod environment;
mod flow_control;
mod http_edge;
mod invalid_fields;
mod openapi;
mod overview;
mod process;
mod requests;
mod search;
mod sessions;
mod slow;
mod status;

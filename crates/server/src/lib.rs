//! The outside of Redrive: the command line, the settings, the HTTP API and the dashboard over the use cases in `app`.

pub mod api;
pub mod app;
pub mod archive;
pub mod cli;
pub mod config;
pub mod dashboard;
mod files;
pub mod http;
mod store;
mod telemetry;
mod vault;

//! The outside of Redrive: the command line, the settings, and the HTTP API over the use cases in `app`.

pub mod api;
pub mod app;
pub mod archive;
pub mod cli;
pub mod config;
mod files;
pub mod http;
mod store;
mod telemetry;
mod vault;

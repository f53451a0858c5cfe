//! The outside of Redrive: the command line, the settings, the HTTP API, the dashboard and sources of events over the use cases in `app`.

pub mod api;
pub mod app;
pub mod archive;
pub mod cli;
pub mod config;
pub mod dashboard;
mod files;
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
pub mod mail;
mod otlp;
pub mod sources;
mod store;
mod telemetry;
mod upstream;
mod vault;

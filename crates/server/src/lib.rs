//! The outer layer of Redrive: command line, settings, HTTP API, dashboard and event sources, over the use cases
//! in `app`.

pub mod api;
pub mod app;
pub mod archive;
pub mod cli;
pub mod config;
pub mod dashboard;
#[cfg(test)]
mod documentation;
mod files;
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
pub mod mail;
mod oidc;
mod otlp;
mod problem;
mod request;
mod shell;
pub mod sources;
mod store;
mod telemetry;
mod upstream;
mod vault;

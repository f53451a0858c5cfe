//! Suites that take minutes or need unusual tools.

mod clock;
mod deploy;
pub(crate) mod documentation;
mod payload_search;
mod schemathesis;
mod upgrade;
mod walk;

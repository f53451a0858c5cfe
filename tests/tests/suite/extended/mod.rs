//! Suites that take minutes or need unusual tools.

mod clock;
mod schemathesis;
mod walk;

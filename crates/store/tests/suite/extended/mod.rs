//! Suites that take minutes or need unusual tools.

mod postgres_locks;

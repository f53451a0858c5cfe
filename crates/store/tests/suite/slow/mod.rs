//! Suites that wait, kill and restart.

mod copy;
mod postgres;
mod postgres_cluster;

//! Suites that wait, kill and restart.

mod cluster;
mod cluster_chaos;
mod cluster_limits;
mod failover;
mod notifications;
mod queue;
mod services;
mod tickets;

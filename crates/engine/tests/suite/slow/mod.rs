//! Suites that wait, kill and restart.

mod crowd;
mod failover;
mod fleet;
mod notices;
mod queue;
mod tickets;
mod together;

//! Suites that wait, kill and restart.

mod browser;
mod bulk;
mod cloudevents;
mod cost;
mod crash;
mod durability;
mod fleet;
mod guard;
mod guard_names;
mod history;
mod hostile;
mod keeping;
mod mail;
mod matrix;
mod metrics;
mod notices;
mod quickstart;
mod redis;
mod retry_timing;
mod secrets;
mod signature;
mod sources;
mod stalls;
mod tenancy;
mod tickets;
mod traces;

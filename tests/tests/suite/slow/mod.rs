//! Suites that wait, kill and restart.

mod authorization;
mod browser;
mod bulk;
mod cloudevents;
mod cluster;
mod cost;
mod crash;
mod durability;
mod guard;
mod guard_dns;
mod history;
mod hostile;
mod mail;
mod metrics;
mod notifications;
mod quickstart;
mod redis;
mod retention;
mod retry_timing;
mod secrets;
mod signature;
mod sources;
mod stalls;
mod tenancy;
mod tickets;
mod traces;

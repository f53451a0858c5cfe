//! Rules of background work: retention, backoff after outages, log throttling, durability of the store's server.

pub mod backoff;
pub mod durability;
pub mod log_throttle;
pub mod restart;
pub mod retention;

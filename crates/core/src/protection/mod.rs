//! Rules that protect endpoints: circuit breaker and rate limits.

pub mod breaker;
pub mod limiter;

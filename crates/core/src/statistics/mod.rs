//! Counters of traffic and attempts, and the findings about an installation that follow from them.

pub mod ranking;
pub mod rollup;
pub mod status;
pub mod tenant_health;
pub mod traffic;

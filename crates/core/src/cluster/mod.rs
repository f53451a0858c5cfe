//! Rules for nodes of a cluster: roles, failure detection, time, assignments and shares of limits.

pub mod assignment;
pub mod clock_discipline;
pub mod limit_share;
pub mod liveness;
pub mod node;
pub mod ticket;
pub mod worker_health;

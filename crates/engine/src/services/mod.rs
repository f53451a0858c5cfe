//! Background services of a node that the data path does not wait for. `assemble` starts them under supervision.

pub(crate) mod cancellation;
pub(crate) mod expiry;
pub(crate) mod gate_timer;
pub(crate) mod lease_auditor;
pub(crate) mod maintenance;
pub(crate) mod notify;
pub(crate) mod operations;
pub(crate) mod pruner;
pub(crate) mod redis_sync;
pub(crate) mod statistics;
pub(crate) mod verification;

//! Rules of sending: the gate before a request, fairness between tenants, how many retries run beside fresh traffic.

pub mod fairness;
pub mod gate;
pub mod retry_concurrency;

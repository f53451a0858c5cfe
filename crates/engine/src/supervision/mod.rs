//! Supervision of background services, and the panics that tests cause in them.

#[cfg(feature = "fault_injection")]
mod fault_injection;
mod fault_point;
mod supervisor;

#[cfg(feature = "fault_injection")]
pub use fault_injection::FaultInjection;
pub use fault_point::FaultPoint;
pub(crate) use fault_point::Faults;
pub use supervisor::{EngineFailure, Service, ServiceKind, ServiceName, ServiceStatus};
pub(crate) use supervisor::{ServiceMetrics, Supervisor};

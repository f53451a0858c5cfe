//! Background services of a node, and the supervisor that restarts them.

#[cfg(feature = "fault_injection")]
mod fault_injection;
mod fault_point;
mod supervisor;

#[cfg(feature = "fault_injection")]
pub use fault_injection::FaultInjection;
pub use fault_point::FaultPoint;
pub use supervisor::{EngineFailure, Service, ServiceKind, ServiceName, ServiceStatus};
pub(crate) use supervisor::{ServiceMetrics, Supervisor};

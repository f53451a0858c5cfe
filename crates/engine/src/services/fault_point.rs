//! Steps of a delivery at which tests cause panics.

use crate::Inner;

/// A step of a delivery at which a test can cause a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultPoint {
    /// The commit of an event is reported.
    Committed,
    /// Deliveries were claimed from the store.
    Claimed,
    /// Deliveries were claimed by their tickets.
    TicketsClaimed,
    /// An admitted delivery is checked.
    Check,
    /// Its request is about to be sent.
    Send,
    /// Its response is classified.
    Classify,
    /// Its outcome is about to be recorded.
    Record,
    /// The recording of its outcome is reported.
    Recorded,
}

impl Inner {
    /// Panics if a test asked for it. Does nothing in production builds.
    #[inline]
    pub(crate) fn inject_fault(&self, point: FaultPoint) {
        #[cfg(feature = "fault_injection")]
        self.supervisor.fault_injection.panic_if_requested(point);
        #[cfg(not(feature = "fault_injection"))]
        let _ = point;
    }
}

//! Steps of a delivery at which tests cause panics.

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

/// Causes the panics that tests request. Empty in production builds.
#[derive(Clone)]
pub(crate) struct Faults {
    #[cfg(feature = "fault_injection")]
    pub(crate) injection: super::FaultInjection,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(feature = "fault_injection")]
            injection: super::FaultInjection::from_environment(),
        }
    }

    /// Panics if a test asked for it. Does nothing in production builds.
    #[inline]
    pub(crate) fn inject(&self, point: FaultPoint) {
        #[cfg(feature = "fault_injection")]
        self.injection.panic_if_requested(point);
        #[cfg(not(feature = "fault_injection"))]
        let _ = point;
    }
}

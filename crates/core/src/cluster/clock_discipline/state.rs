//! Input and output types of the clock discipline.

use std::time::Duration;

use super::to_millis;
use crate::time::Time;

/// One reading of a clock that can be wrong.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// The monotonic clock at the reading; the middle of the round trip if a remote clock was read.
    pub monotonic: Duration,
    /// The time that the clock showed.
    pub time: Time,
    /// How long the reading took; its error is up to half of this.
    pub round_trip: Duration,
}

impl ClockReading {
    /// Returns a reading that was requested at `sent` and received at `received`, both by the monotonic clock.
    pub fn between(sent: Duration, received: Duration, time: Time) -> Self {
        let round_trip = received.saturating_sub(sent);
        Self { monotonic: sent + round_trip / 2, time, round_trip }
    }

    pub(super) fn at(&self) -> i64 {
        to_millis(self.monotonic)
    }

    pub(super) fn offset(&self) -> i64 {
        self.time.millis() - self.at()
    }
}

/// A change of the clock's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockEvent {
    /// Kind of change.
    pub kind: ClockEventKind,
    /// The clock minus the prediction, in milliseconds.
    pub jump_ms: i64,
    /// Set if scheduling time went back: times planned by it must be shifted.
    pub clock_step: Option<ClockStep>,
}

/// Kinds of changes of a clock's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEventKind {
    /// The clock shows a time other than the predicted one; nothing uses it yet.
    Detected,
    /// Scheduling uses the new time; nothing may be deleted by it.
    Followed,
    /// The new time is used for everything.
    Confirmed,
    /// The jump ended: the predicted time is used again.
    Undone,
}

/// A step back of the scheduling time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// Times from this one on may have been computed from the clock that is no longer followed.
    pub from: Time,
    /// How far the time went back.
    pub by: Duration,
}

impl ClockStep {
    /// Shifts a planned time by the step back. Returns it unchanged if it was not computed from the wrong clock.
    pub fn apply(&self, planned: Time) -> Time {
        if planned >= self.from && planned < Time::FAR_FUTURE {
            planned.saturating_sub(self.by)
        } else {
            planned
        }
    }
}

//! What a clock discipline takes in, and what it reports.

use std::time::Duration;

use super::to_millis;
use crate::time::Time;

/// One reading of a clock that can be wrong.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    /// The monotonic clock at the reading; in the middle of the round trip if it was read elsewhere.
    pub monotonic: Duration,
    /// What the clock showed.
    pub time: Time,
    /// How long the reading took: it is inexact by half of this.
    pub round_trip: Duration,
}

impl ClockReading {
    /// A reading that was asked for at `sent` and received at `received`, both by the monotonic clock.
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

/// Something that happened to the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockEvent {
    /// What happened.
    pub kind: ClockEventKind,
    /// The clock minus the prediction, in milliseconds.
    pub jump_ms: i64,
    /// Scheduling time went back: what was planned by it must be moved.
    pub set_back: Option<SetBack>,
}

/// What can happen to a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEventKind {
    /// The clock shows another time than predicted; nothing uses it yet.
    Seen,
    /// Scheduling uses the new time; nothing may be destroyed by it.
    Followed,
    /// The new time counts for everything.
    Confirmed,
    /// The clock shows the predicted time again, and that is the time.
    Undone,
}

/// Scheduling time went back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetBack {
    /// Times from this one on may have been computed from the time that is no longer used.
    pub from: Time,
    /// By how much time went back.
    pub by: Duration,
}

impl SetBack {
    /// A planned time, moved as far as time went back; unchanged if it was not computed from the wrong time.
    pub fn moved(&self, planned: Time) -> Time {
        if planned >= self.from && planned < Time::FOREVER { planned.back(self.by) } else { planned }
    }
}

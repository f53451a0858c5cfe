//! Decides which time to trust: readings of a wall clock, which can be wrong, are checked against the monotonic
//! clock, which cannot.
//!
//! A small difference between a reading and the monotonic prediction is slewed. A larger difference is a *jump*:
//! - forward, it is used for scheduling once consecutive readings have agreed for [`AGREEMENT_DURATION`];
//! - backward, it is not used before it is confirmed, since the prediction is right for every duration;
//! - in both directions it is *confirmed* after it has held for [`CONFIRMATION_DURATION`] of monotonic time, or
//!   when an operator confirms it. Only confirmed time may be used to delete anything;
//! - it is *undone* when readings return to the prediction.

use std::time::Duration;

use crate::time::Time;

mod state;

pub use state::{ClockEvent, ClockEventKind, ClockReading, ClockStep};

/// A difference up to this is slewed; a larger one is a jump.
pub const MAX_SLEW_DIFFERENCE: Duration = Duration::from_secs(2);
/// Maximum correction per elapsed time: one part in this many.
const SLEW_RATE_DIVISOR: i64 = 200;
/// Maximum time between two readings that counts for slewing.
const MAX_SLEW_INTERVAL_MS: i64 = 60_000;
/// Readings that took longer than this do not correct small differences.
const MAX_SLEW_ROUND_TRIP: Duration = Duration::from_millis(500);
/// How long consecutive readings must agree on a forward jump before scheduling follows it.
pub const AGREEMENT_DURATION: Duration = Duration::from_secs(30);
/// How many consecutive readings must agree, regardless of the duration.
pub const MIN_AGREEING_READINGS: u32 = 5;
/// How long a jump must hold, by the monotonic clock, before it is confirmed.
pub const CONFIRMATION_DURATION: Duration = Duration::from_secs(3600);
/// How many readings of the predicted time undo a jump that scheduling had followed.
const MIN_RETURN_READINGS: u32 = 2;
/// Number of readings after which a jump is reported.
const MIN_REPORTED_READINGS: u32 = 2;
/// How far behind the last stored heartbeat a clock may be at the start.
pub const MAX_START_LAG: Duration = Duration::from_secs(60);
/// How far ahead of the last stored heartbeat a clock may be at the start.
pub const MAX_START_LEAD: Duration = Duration::from_secs(24 * 3600);

/// A time that readings show and that is not confirmed yet.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    offset: i64,
    /// The monotonic time of the first of the consecutive readings that agree.
    since: i64,
    readings: u32,
}

/// A forward jump that scheduling uses.
#[derive(Clone, Copy, Debug)]
struct Followed {
    offset: i64,
    /// The first time read from the followed clock: everything scheduled since is at or after it.
    first_time: Time,
}

/// The state of one node's clock. All offsets are milliseconds between the monotonic clock and a time.
///
/// ```
/// use std::time::Duration;
///
/// use redrive_core::{
///     Time,
///     cluster::clock_discipline::{ClockDiscipline, ClockReading},
/// };
///
/// let reading = |at: u64, jump: u64| ClockReading {
///     monotonic: Duration::from_secs(at),
///     time: Time::from_secs(1_700_000_000) + Duration::from_secs(at + jump),
///     round_trip: Duration::ZERO,
/// };
/// let (mut clock, _) = ClockDiscipline::start(reading(0, 0), None);
/// let before = clock.confirmed_offset();
/// // The clock jumps a day ahead. After half a minute scheduling follows; what deletes data does not.
/// for at in 1..=31 {
///     clock.observe(reading(at, 86_400));
/// }
/// assert_eq!((clock.scheduling_offset(), clock.confirmed_offset()), (before + 86_400_000, before));
/// // The jump has held for an hour: it is confirmed.
/// for at in 32..=3_601 {
///     clock.observe(reading(at, 86_400));
/// }
/// assert_eq!(clock.confirmed_offset(), before + 86_400_000);
/// ```
#[derive(Clone, Debug)]
pub struct ClockDiscipline {
    confirmed: i64,
    /// Whether `confirmed` is only a lower bound, taken from a heartbeat stored before this start.
    is_lower_bound: bool,
    followed: Option<Followed>,
    suspect: Option<Suspect>,
    /// Consecutive readings that agree with the prediction although another time is followed.
    returns: u32,
    last_read: i64,
}

impl ClockDiscipline {
    /// Starts with a first reading and the time of the last heartbeat stored before, if any.
    ///
    /// A plausible clock is confirmed immediately. One that is too far ahead is followed without being confirmed;
    /// one that is behind is not followed, and time continues from the stored heartbeat.
    pub fn start(reading: ClockReading, last_heartbeat: Option<Time>) -> (Self, Option<ClockEvent>) {
        let (at, offset) = (reading.at(), reading.offset());
        let mut discipline = Self {
            confirmed: offset,
            is_lower_bound: false,
            followed: None,
            suspect: None,
            returns: 0,
            last_read: at,
        };
        let Some(last) = last_heartbeat.map(|last| last.millis() - at) else { return (discipline, None) };
        if offset >= last - millis(MAX_START_LAG) && offset <= last + millis(MAX_START_LEAD) {
            return (discipline, None);
        }
        discipline.confirmed = last;
        discipline.is_lower_bound = true;
        discipline.suspect = Some(Suspect { offset, since: at, readings: MIN_REPORTED_READINGS });
        if offset > last {
            discipline.followed = Some(Followed { offset, first_time: reading.time });
        }
        let event = ClockEvent { kind: ClockEventKind::Detected, jump_ms: offset - last, clock_step: None };
        (discipline, Some(event))
    }

    /// Processes a reading. Returns the change, to be logged and acted on.
    pub fn observe(&mut self, reading: ClockReading) -> Option<ClockEvent> {
        let (at, offset) = (reading.at(), reading.offset());
        let tolerance = millis(MAX_SLEW_DIFFERENCE + reading.round_trip / 2);
        let correction = match reading.round_trip <= MAX_SLEW_ROUND_TRIP {
            true => (at - self.last_read).clamp(0, MAX_SLEW_INTERVAL_MS) / SLEW_RATE_DIVISOR,
            false => 0,
        };
        self.last_read = self.last_read.max(at);
        if !self.is_lower_bound && (offset - self.confirmed).abs() <= tolerance {
            let event = self.return_to_prediction(at);
            self.confirmed += (offset - self.confirmed).clamp(-correction, correction);
            return event;
        }
        self.returns = 0;
        let suspect = match self.suspect.filter(|suspect| (offset - suspect.offset).abs() <= tolerance) {
            Some(mut suspect) => {
                let change = (offset - suspect.offset).clamp(-correction, correction);
                if let Some(followed) = &mut self.followed
                    && followed.offset == suspect.offset
                {
                    followed.offset += change;
                }
                suspect.offset += change;
                suspect.readings = suspect.readings.saturating_add(1);
                suspect
            }
            None => Suspect { offset, since: at, readings: 1 },
        };
        self.suspect = Some(suspect);
        self.evaluate(suspect, at)
    }

    /// Records that an operator confirmed the time that the clock shows now. Returns `None` if there was no jump.
    pub fn confirm(&mut self, monotonic: Duration) -> Option<ClockEvent> {
        let at = to_millis(monotonic);
        let offset =
            self.suspect.map(|suspect| suspect.offset).or(self.followed.map(|followed| followed.offset));
        offset.map(|offset| self.accept(offset, at))
    }

    /// Returns the offset from the monotonic clock to the time used for scheduling.
    pub fn scheduling_offset(&self) -> i64 {
        self.followed.map_or(self.confirmed, |followed| followed.offset)
    }

    /// Returns the offset from the monotonic clock to the time used for deletion. Never more than
    /// [`ClockDiscipline::scheduling_offset`].
    pub fn confirmed_offset(&self) -> i64 {
        self.confirmed.min(self.scheduling_offset())
    }

    /// Returns the unconfirmed difference between the clock and the prediction, in milliseconds.
    pub fn unconfirmed_jump_ms(&self) -> Option<i64> {
        let reported =
            self.suspect.filter(|suspect| self.is_lower_bound || suspect.readings >= MIN_REPORTED_READINGS);
        let followed = self.followed.map(|followed| followed.offset);
        reported.map(|suspect| suspect.offset).or(followed).map(|offset| offset - self.confirmed)
    }

    /// Handles a reading that agrees with the prediction: ends a jump that was not followed immediately, a followed
    /// one after [`MIN_RETURN_READINGS`] such readings.
    fn return_to_prediction(&mut self, at: i64) -> Option<ClockEvent> {
        let suspect = self.suspect.take();
        let Some(followed) = self.followed else {
            let over = suspect.filter(|suspect| suspect.readings >= MIN_REPORTED_READINGS)?;
            return Some(ClockEvent {
                kind: ClockEventKind::Undone,
                jump_ms: over.offset - self.confirmed,
                clock_step: None,
            });
        };
        self.returns += 1;
        if self.returns < MIN_RETURN_READINGS {
            return None;
        }
        self.returns = 0;
        Some(self.unfollow(followed, at))
    }

    /// Returns scheduling to the prediction.
    fn unfollow(&mut self, followed: Followed, at: i64) -> ClockEvent {
        self.followed = None;
        let jump_ms = followed.offset - self.confirmed;
        let clock_step = ClockStep {
            // Times before the jump was followed were not computed from the wrong clock.
            from: followed.first_time.max(Time::from_millis(at + self.confirmed)),
            by: Duration::from_millis(jump_ms.unsigned_abs()),
        };
        ClockEvent { kind: ClockEventKind::Undone, jump_ms, clock_step: Some(clock_step) }
    }

    fn evaluate(&mut self, suspect: Suspect, at: i64) -> Option<ClockEvent> {
        let held = at - suspect.since;
        let agreed = held >= millis(AGREEMENT_DURATION) && suspect.readings >= MIN_AGREEING_READINGS;
        let ahead = suspect.offset - self.confirmed;
        let is_plausible =
            self.is_lower_bound && (-millis(MAX_START_LAG)..=millis(MAX_START_LEAD)).contains(&ahead);
        if agreed && (is_plausible || held >= millis(CONFIRMATION_DURATION)) {
            return Some(self.accept(suspect.offset, at));
        }
        if agreed && ahead > 0 && self.followed.is_none_or(|followed| followed.offset != suspect.offset) {
            return Some(self.follow(suspect, at));
        }
        if let (true, false, Some(followed)) = (agreed, ahead > 0, self.followed) {
            // The clock shows neither the followed time nor a time ahead of the prediction.
            return Some(self.unfollow(followed, at));
        }
        let is_new = suspect.readings == MIN_REPORTED_READINGS
            && self.followed.is_none_or(|f| f.offset != suspect.offset);
        is_new.then_some(ClockEvent { kind: ClockEventKind::Detected, jump_ms: ahead, clock_step: None })
    }

    fn follow(&mut self, suspect: Suspect, at: i64) -> ClockEvent {
        let before = self.scheduling_offset();
        let (offset, time) = (suspect.offset, |offset: i64| Time::from_millis(at + offset));
        let first_time = self.followed.map_or(time(offset), |followed| followed.first_time.min(time(offset)));
        let clock_step = (offset < before).then(|| ClockStep {
            from: self.followed.map_or(time(offset), |followed| followed.first_time).max(time(offset)),
            by: Duration::from_millis((before - offset).unsigned_abs()),
        });
        self.followed = Some(Followed { offset, first_time });
        ClockEvent { kind: ClockEventKind::Followed, jump_ms: offset - self.confirmed, clock_step }
    }

    fn accept(&mut self, offset: i64, at: i64) -> ClockEvent {
        let before = self.scheduling_offset();
        let jump_ms = offset - self.confirmed;
        let now = Time::from_millis(at + offset);
        // Without a followed time, everything was planned by the prediction, which turned out to be ahead.
        let from = self.followed.map_or(now, |followed| followed.first_time.max(now));
        self.confirmed = offset;
        (self.is_lower_bound, self.followed, self.suspect, self.returns) = (false, None, None, 0);
        let by = Duration::from_millis((before - offset).unsigned_abs());
        let clock_step = (offset < before).then_some(ClockStep { from, by });
        ClockEvent { kind: ClockEventKind::Confirmed, jump_ms, clock_step }
    }
}

fn to_millis(monotonic: Duration) -> i64 {
    i64::try_from(monotonic.as_millis()).unwrap_or(i64::MAX / 4)
}

fn millis(duration: Duration) -> i64 {
    to_millis(duration)
}

#[cfg(test)]
mod tests;

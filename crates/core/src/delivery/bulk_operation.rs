//! Bulk operations: their kinds, what they select, their rate limit, and their state transitions.

mod filter;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::filter::{Candidate, OperationFilter, matches_delivered, selects};
use crate::time::Time;

/// Maximum rate of an operation, in deliveries queued per second.
pub const MAX_RATE: u32 = 10_000;
/// Maximum number of active operations of a tenant. A node runs a limited number of operations concurrently, and one
/// tenant must not occupy all of them.
pub const MAX_ACTIVE_PER_TENANT: usize = 8;
/// Maximum number of values of one filter in a selection, such as webhooks or event types.
pub const MAX_FILTER_VALUES: usize = 1_000;
/// Maximum number of deliveries that a request may name by id.
pub const MAX_DELIVERY_IDS: usize = 1_000;

/// What an operation does to each selected object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OperationKind {
    /// Delivers again: a new round for ended deliveries, an immediate attempt for pending ones.
    Retry,
    /// Cancels deliveries.
    Cancel,
    /// Removes deliveries from the list of dead letters.
    Purge,
    /// Delivers past events to a webhook that did not get them.
    Backfill,
}

impl OperationKind {
    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Purge => "purge",
            Self::Backfill => "backfill",
        }
    }

    /// Returns whether the operation sends deliveries, whose results it then reports.
    pub fn sends(self) -> bool {
        matches!(self, Self::Retry | Self::Backfill)
    }
}

/// What an operation scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationTarget {
    /// Dead letters.
    Dead,
    /// All deliveries.
    Deliveries,
    /// Deliveries that have not ended.
    Pending,
    /// Events.
    Events,
}

/// State of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OperationState {
    /// Its start time has not come yet.
    Scheduled,
    /// Processing its selection.
    Running,
    /// Paused by a user.
    Paused,
    /// Everything is queued, and some deliveries have not ended yet.
    Delivering,
    /// Completed.
    Completed,
    /// Cancelled by a user. Deliveries that were queued before are still sent.
    Cancelled,
}

/// What a user may do with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationAction {
    /// Pauses it.
    Pause,
    /// Resumes it.
    Resume,
    /// Cancels it.
    Cancel,
}

impl OperationState {
    /// Every state.
    pub const ALL: [Self; 6] =
        [Self::Scheduled, Self::Running, Self::Paused, Self::Delivering, Self::Completed, Self::Cancelled];

    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Delivering => "delivering",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the state with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns whether the operation still has work to do.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Scheduled | Self::Running | Self::Paused)
    }

    /// Returns the state after an action, or why the action is not allowed. An operation that had started continues
    /// immediately when it is resumed.
    pub fn apply(self, action: OperationAction, has_started: bool) -> Result<Self, &'static str> {
        match (self, action) {
            (Self::Scheduled | Self::Running | Self::Paused, OperationAction::Pause) => Ok(Self::Paused),
            (Self::Paused, OperationAction::Resume) if has_started => Ok(Self::Running),
            (Self::Paused | Self::Scheduled, OperationAction::Resume) => Ok(Self::Scheduled),
            (Self::Running, OperationAction::Resume) => Ok(Self::Running),
            (Self::Scheduled | Self::Running | Self::Paused | Self::Cancelled, OperationAction::Cancel) => {
                Ok(Self::Cancelled)
            }
            (Self::Delivering, _) => {
                Err("all its deliveries are queued already; cancel the deliveries instead")
            }
            (Self::Completed, _) => Err("it is completed"),
            (Self::Cancelled, _) => Err("it is cancelled; start a new one"),
        }
    }
}

/// Rate limiter of an operation: a fixed number per second, without a burst for unused time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    rate: Option<u32>,
    from: Time,
    done: u64,
}

impl Pacer {
    /// Starts now with `rate` deliveries queued per second; `None` for no limit.
    pub fn new(rate: Option<u32>, now: Time) -> Self {
        Self { rate, from: now, done: 0 }
    }

    /// Returns how many may be processed now, up to the given maximum.
    pub fn allowed(&self, now: Time, max: usize) -> usize {
        let Some(rate) = self.rate else { return max };
        let elapsed = u128::from(now.duration_since(self.from).as_millis() as u64);
        let due = (elapsed * u128::from(rate) / 1_000) as u64 + 1;
        usize::try_from(due.saturating_sub(self.done)).unwrap_or(usize::MAX).min(max)
    }

    /// Returns when the next one may be processed.
    pub fn next_at(&self) -> Time {
        let Some(rate) = self.rate else { return self.from };
        let millis = (u128::from(self.done) * 1_000).div_ceil(u128::from(rate.max(1)));
        self.from + Duration::from_millis(millis as u64)
    }

    /// Records that `count` were processed. An operation that is behind by more than a second does not catch up.
    pub fn record(&mut self, count: usize, now: Time) {
        self.done += count as u64;
        if let Some(rate) = self.rate
            && self.next_at() + Duration::from_secs(1) < now
        {
            *self = Self::new(Some(rate), now);
        }
    }
}

/// Returns when an operation will be finished at its current rate, or `None` if that is unknown.
pub fn eta(total: Option<u64>, done: u64, per_second: Option<f64>, now: Time) -> Option<Time> {
    let (left, rate) = (total?.saturating_sub(done), per_second.filter(|rate| *rate > 0.0)?);
    Some(now + Duration::try_from_secs_f64(left as f64 / rate).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn operation_actions_follow_state_machine() {
        use OperationState::*;
        let applied = |state: OperationState, action| state.apply(action, true).ok();
        assert_eq!(applied(Scheduled, OperationAction::Pause), Some(Paused));
        assert_eq!(applied(Paused, OperationAction::Resume), Some(Running));
        assert_eq!(
            Paused.apply(OperationAction::Resume, false),
            Ok(Scheduled),
            "its start time may be in the future"
        );
        assert_eq!(applied(Running, OperationAction::Cancel), Some(Cancelled));
        assert_eq!(
            applied(Cancelled, OperationAction::Cancel),
            Some(Cancelled),
            "a second cancel changes nothing"
        );
        for state in [Delivering, Completed, Cancelled] {
            assert_eq!(applied(state, OperationAction::Pause), None, "{}", state.name());
            assert_eq!(applied(state, OperationAction::Resume), None, "{}", state.name());
        }
        for state in OperationState::ALL {
            assert_eq!(OperationState::parse(state.name()), Some(state));
        }
    }

    #[test]
    fn eta_follows_remaining_work_and_rate() {
        let now = Time::from_secs(100);
        assert_eq!(eta(Some(100), 50, Some(10.0), now), Some(Time::from_secs(105)));
        assert_eq!(eta(None, 50, Some(10.0), now), None);
        assert_eq!(eta(Some(100), 0, Some(0.0), now), None);
        assert_eq!(eta(Some(100), 120, Some(1.0), now), Some(now));
    }

    proptest! {
        /// For arbitrary polling intervals: never more than the rate allows in any time span, and none are lost if it is
        /// polled often enough.
        #[test]
        fn pacer_keeps_the_rate(rate in 1u32..=MAX_RATE, waits in proptest::collection::vec(1u64..400, 1..200)) {
            let start = Time::from_secs(1);
            let (mut pacer, mut now, mut sent) = (Pacer::new(Some(rate), start), start, 0u64);
            for wait in waits {
                let go = pacer.allowed(now, usize::MAX);
                prop_assert!(go == 0 || pacer.next_at() <= now, "nothing is allowed before next_at");
                pacer.record(go, now);
                sent += go as u64;
                let elapsed = now.duration_since(start).as_millis() as u64;
                prop_assert_eq!(sent, elapsed * u64::from(rate) / 1_000 + 1);
                prop_assert!(pacer.next_at() > now);
                now = now + Duration::from_millis(wait);
            }
        }

        #[test]
        fn unused_time_gives_no_burst(rate in 1u32..=MAX_RATE, hours in 1u64..100) {
            let start = Time::from_secs(1);
            let mut pacer = Pacer::new(Some(rate), start);
            let later = start + Duration::from_secs(hours * 3_600);
            pacer.record(1, later);
            prop_assert_eq!(pacer.allowed(later, usize::MAX), 1);
        }
    }
}

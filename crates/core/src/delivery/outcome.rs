//! What becomes of a delivery.

use std::time::Duration;

use super::{DeadReason, DeliveryStatus};
use crate::{id::DeliveryId, time::Time};

/// Time after an event within which a success at the first attempt is prompt.
pub const PROMPT_SUCCESS_WINDOW: Duration = Duration::from_secs(60);

/// What becomes of a delivery: decided once, and then recorded, counted and shown as it is.
///
/// ```
/// use redrive_core::{
///     DeliveryStatus, Time,
///     delivery::outcome::{AttemptStatus, Outcome},
/// };
///
/// let retry = Outcome::Retry { at: Time::from_secs(60) };
/// assert_eq!(retry.status(), DeliveryStatus::Pending);
/// assert_eq!(retry.attempt_status(), AttemptStatus::Failed);
/// assert!(retry.is_retry());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Delivered,
    /// It is attempted again.
    Retry {
        /// Time of the next attempt.
        at: Time,
    },
    /// It is dead.
    Dead(DeadReason),
    /// It was cancelled, for this reason.
    Cancelled(String),
}

impl Outcome {
    /// Labels of all outcomes in metrics, by [`Outcome::index`].
    pub const LABELS: [&'static str; 4] = ["delivered", "failed", "dead", "cancelled"];

    /// Returns the state of the delivery afterwards.
    pub fn status(&self) -> DeliveryStatus {
        match self {
            Self::Delivered => DeliveryStatus::Delivered,
            Self::Retry { .. } => DeliveryStatus::Pending,
            Self::Dead(_) => DeliveryStatus::Dead,
            Self::Cancelled(_) => DeliveryStatus::Cancelled,
        }
    }

    /// Returns whether another attempt follows.
    pub fn is_retry(&self) -> bool {
        matches!(self, Self::Retry { .. })
    }

    /// Returns the time of the next attempt, if one follows.
    pub fn next_attempt_at(&self) -> Option<Time> {
        match self {
            Self::Retry { at } => Some(*at),
            _ => None,
        }
    }

    /// Returns the status of the attempt that led to this outcome.
    pub fn attempt_status(&self) -> AttemptStatus {
        match self {
            Self::Delivered => AttemptStatus::Success,
            // `exhausted`: the attempt after which the delivery is dead, whatever its `dead_reason`.
            Self::Dead(_) => AttemptStatus::FinalFailure,
            Self::Retry { .. } | Self::Cancelled(_) => AttemptStatus::Failed,
        }
    }

    /// Returns the position of its label in [`Outcome::LABELS`].
    pub fn index(&self) -> usize {
        match self {
            Self::Delivered => 0,
            Self::Retry { .. } => 1,
            Self::Dead(_) => 2,
            Self::Cancelled(_) => 3,
        }
    }
}

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptStatus {
    /// 2xx response.
    Success,
    /// Failed; the delivery is retried, or was cancelled.
    Failed,
    /// Failed; the attempt after which the delivery is dead, whatever its `dead_reason`. The API calls it `exhausted`.
    FinalFailure,
}

impl AttemptStatus {
    /// Every status.
    pub const ALL: [Self; 3] = [Self::Success, Self::Failed, Self::FinalFailure];

    /// Returns whether an attempt with this status is a prompt success: the first attempt, within a minute of the event.
    /// Listings find prompt successes through their deliveries, and all other attempts in an index of their own, which
    /// nearly no attempt of a healthy endpoint has to be written to.
    pub fn is_prompt_success(self, number: u32, delivery_id: DeliveryId, executed_at: Time) -> bool {
        let event_at = delivery_id.time();
        self == Self::Success
            && number == 1
            && executed_at >= event_at
            && executed_at.duration_since(event_at) < PROMPT_SUCCESS_WINDOW
    }

    /// Returns the name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::FinalFailure => "exhausted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_success_is_the_first_attempt_within_a_minute() {
        let event_at = Time::from_secs(1_700_000_000);
        let id = DeliveryId::new(event_at, &[1; 10]);
        let after = |millis| Time::from_millis(event_at.millis() + millis);
        for (status, number, millis, is_prompt) in [
            (AttemptStatus::Success, 1, 0, true),
            (AttemptStatus::Success, 1, 59_999, true),
            (AttemptStatus::Success, 1, 60_000, false),
            (AttemptStatus::Success, 1, -1, false),
            (AttemptStatus::Success, 2, 5, false),
            (AttemptStatus::Failed, 1, 5, false),
            (AttemptStatus::FinalFailure, 1, 5, false),
        ] {
            assert_eq!(status.is_prompt_success(number, id, after(millis)), is_prompt, "{status:?} {millis}");
        }
    }
}

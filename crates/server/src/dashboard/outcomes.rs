//! What became of things, in the few words that fit into a table.

use redrive_core::{gate::WaitingOn, operation::OperationState, recovery::Recovery};
use redrive_engine::Waiting;
use redrive_store::Delivery;

use super::words;

/// What a pending delivery waits for, in few words.
pub(super) fn waits_for(waiting: &Waiting) -> &'static str {
    match waiting.on {
        WaitingOn::Schedule => "next attempt",
        WaitingOn::CircuitOpen => "circuit open",
        WaitingOn::RateLimit => "rate limit",
        WaitingOn::InFlightLimit => "endpoint busy",
        WaitingOn::Order => "behind another in order",
        WaitingOn::Paused => "webhook paused",
        WaitingOn::Capacity => "its turn",
        WaitingOn::Pool => "no worker for its pool",
    }
}

/// What the endpoint last answered, or what went wrong instead.
pub(super) fn last_answer(delivery: &Delivery) -> String {
    match (delivery.last_status_code, &delivery.last_error, delivery.failure_category) {
        (Some(code), _, Some(category)) => format!("{code} · {}", words::category(category)),
        (Some(code), ..) => code.to_string(),
        (None, _, Some(category)) => words::category(category),
        (None, Some(error), None) => words::shortened(error, 60),
        (None, None, None) => "–".to_owned(),
    }
}

/// Whether a dead delivery is worth sending again, and why, in words.
pub(super) fn recovery(delivery: &Delivery) -> Option<Recovery> {
    let reason = delivery.dead_reason?;
    Some(Recovery::of(reason, delivery.failure_category, delivery.last_status_code))
}

/// The colour of a bulk operation's state.
pub(super) fn operation_tone(state: &OperationState) -> &'static str {
    match state {
        OperationState::Completed => "good",
        OperationState::Running | OperationState::Delivering => "busy",
        OperationState::Scheduled | OperationState::Paused => "waiting",
        OperationState::Cancelled => "off",
    }
}

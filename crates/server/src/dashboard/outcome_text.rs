//! What became of things, in the few words that fit into a table.

use redrive_core::{
    delivery::bulk_operation::OperationState, delivery::recovery::Recovery, dispatch::gate::WaitingOn,
};
use redrive_engine::Waiting;
use redrive_store::Delivery;

use super::format;

/// What a pending delivery waits for, in few words.
pub(super) fn waits_for(waiting: &Waiting) -> &'static str {
    match waiting.on {
        WaitingOn::Schedule => "next attempt",
        WaitingOn::CircuitOpen => "circuit open",
        WaitingOn::RateLimit => "rate limit",
        WaitingOn::InFlightLimit => "endpoint busy",
        WaitingOn::Order => "behind another in order",
        WaitingOn::Paused => "webhook paused, or not verified yet",
        WaitingOn::Capacity => "its turn",
        WaitingOn::Pool => "no worker for its pool",
    }
}

/// An explanation with its times as people read them.
pub(super) fn readable(explanation: &str) -> String {
    let mut text = String::with_capacity(explanation.len());
    let mut rest = explanation;
    while let Some(char) = rest.chars().next() {
        // No time has fewer characters, and none of them has more bytes.
        match rest.get(..TIME.len()).filter(|part| is_time(part)) {
            Some(time) => {
                text += &format::stamp(time);
                rest = &rest[TIME.len()..];
            }
            None => {
                text.push(char);
                rest = &rest[char.len_utf8()..];
            }
        }
    }
    text
}

/// What a time looks like in an explanation: a digit stands for any.
const TIME: &str = "0000-00-00T00:00:00.000Z";

fn is_time(text: &str) -> bool {
    let alike =
        |(known, found): (u8, u8)| if known == b'0' { found.is_ascii_digit() } else { known == found };
    text.len() == TIME.len() && TIME.bytes().zip(text.bytes()).all(alike)
}

/// What the endpoint last answered, or what went wrong instead.
pub(super) fn last_answer(delivery: &Delivery) -> String {
    match (delivery.last_status_code, &delivery.last_error, delivery.failure_category) {
        (Some(code), _, Some(category)) => format!("{code} · {}", format::category(category)),
        (Some(code), ..) => code.to_string(),
        (None, _, Some(category)) => format::category(category),
        (None, Some(error), None) => format::shortened(error, 60),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_an_explanation_are_put_as_people_read_them() {
        let text = "open since 2026-11-15T19:46:13.171Z, größer; next probe at 2026-11-15T19:54:13.171Z";
        let shown = "open since 2026-11-15 19:46:13 UTC, größer; next probe at 2026-11-15 19:54:13 UTC";
        assert_eq!(readable(text), shown);
        assert_eq!(readable("ü"), "ü");
    }
}

//! Short descriptions of outcomes, for tables.

use redrive_core::delivery::{bulk_operation::OperationState, recovery::Recoverability};
use redrive_store::Delivery;

use super::format;
use crate::app::deliveries::DeliveryDetails;

/// Returns an explanation with its timestamps reformatted for people.
pub(super) fn format_times(explanation: &str) -> String {
    let mut text = String::with_capacity(explanation.len());
    let mut rest = explanation;
    while let Some(char) = rest.chars().next() {
        // A timestamp is exactly `TIME.len()` ASCII bytes; `get` returns `None` at the end or inside a character.
        match rest.get(..TIME.len()).filter(|part| is_time(part)) {
            Some(time) => {
                text += &format::format_time(time);
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

/// Pattern of a timestamp in an explanation: each 0 matches any digit.
const TIME: &str = "0000-00-00T00:00:00.000Z";

fn is_time(text: &str) -> bool {
    let matches =
        |(known, found): (u8, u8)| if known == b'0' { found.is_ascii_digit() } else { known == found };
    text.len() == TIME.len() && TIME.bytes().zip(text.bytes()).all(matches)
}

/// Describes the last response, or the last failure without one.
pub(super) fn last_response(delivery: &Delivery) -> String {
    match (delivery.last_status_code, &delivery.last_error, delivery.failure_category) {
        (Some(code), _, Some(category)) => format!("{code} · {}", format::category(category)),
        (Some(code), ..) => code.to_string(),
        (None, _, Some(category)) => format::category(category),
        (None, Some(error), None) => format::shortened(error, 60),
        (None, None, None) => "–".to_owned(),
    }
}

/// Returns whether a dead delivery requires a change before a resend, and why. Returns `None` if it is not dead.
pub(super) fn recovery(delivery: &Delivery) -> Option<Recoverability> {
    let reason = delivery.dead_reason?;
    Some(Recoverability::assess(reason, delivery.failure_category, delivery.last_status_code))
}

/// What the endpoint of a dead delivery did since the delivery failed.
pub(super) struct SuccessFact {
    pub(super) tone: &'static str,
    pub(super) text: String,
}

impl SuccessFact {
    /// Returns the fact as a sentence.
    pub(super) fn sentence(&self) -> String {
        let mut chars = self.text.chars();
        let first = chars.next().map(|char| char.to_uppercase().to_string()).unwrap_or_default();
        format!("{first}{}.", chars.as_str())
    }
}

/// Describes what the endpoint of a dead delivery did since the delivery failed. Returns `None` if it was not counted.
pub(super) fn successes_since(details: &DeliveryDetails) -> Option<SuccessFact> {
    let successes = details.endpoint_successes?;
    let since = if successes.is_older { "in the last 24 hours" } else { "since this failed" };
    Some(match successes.count {
        0 => SuccessFact { tone: "waiting", text: format!("no success {since}") },
        1 => SuccessFact { tone: "good", text: format!("endpoint accepted 1 request {since}") },
        count => {
            let count = format::number(count);
            SuccessFact { tone: "good", text: format!("endpoint accepted {count} requests {since}") }
        }
    })
}

/// Describes why a dead delivery requires a change before a resend.
pub(super) fn rejection(delivery: &Delivery) -> String {
    match (delivery.last_status_code, delivery.failure_category) {
        (Some(code), _) => format!("not retryable as is: rejected with {code}"),
        (None, Some(category)) => format!("not retryable as is: {}", format::category(category)),
        (None, None) => "not retryable as is".to_owned(),
    }
}

/// Returns the color of a bulk operation's state.
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
    fn timestamps_in_explanations_are_reformatted() {
        let text = "open since 2026-11-15T19:46:13.171Z, größer; next probe at 2026-11-15T19:54:13.171Z";
        let expected = "open since 2026-11-15 19:46:13 UTC, größer; next probe at 2026-11-15 19:54:13 UTC";
        assert_eq!(format_times(text), expected);
        assert_eq!(format_times("ü"), "ü");
    }
}

//! Assesses from its last failure whether a dead delivery can be resent unchanged, with an explanation.

use crate::delivery::{DeadReason, response::FailureCategory};

/// Hint for a delivery that was refused before a connection. A host name whose addresses are refused is a failure of
/// the category `dns` instead.
const BLOCKED_ADDRESS: &str = "the egress rules refuse the URL's scheme, port or IP address; change the URL, or have \
                               the operator allow it, then resend";

/// Whether a dead delivery requires a change before it is resent, judged from its last failure alone. It does not
/// predict the result of a resend, which depends on the endpoint's present state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recoverability {
    /// Whether the last failure requires no change: the endpoint was unreachable or failing, and did not reject it.
    pub likely: bool,
    /// Why, and what to fix first if it cannot be resent unchanged.
    pub hint: String,
}

impl Recoverability {
    /// Assesses a dead delivery by its dead reason, its last failure category and the status code of the last
    /// response.
    pub fn assess(reason: DeadReason, category: Option<FailureCategory>, status_code: Option<u16>) -> Self {
        let why = match reason {
            DeadReason::Permanent => permanent(category, status_code),
            DeadReason::TlsLimit => {
                "the TLS handshake failed at the third attempt or later; fix the endpoint's certificate, then resend"
                    .into()
            }
            DeadReason::BlockedAddress => BLOCKED_ADDRESS.into(),
            DeadReason::Exhausted => {
                format!("all attempts were used, and {}", last_failure(category, status_code))
            }
            DeadReason::Expired => match category {
                None => "it expired before its first attempt; resend it unchanged".into(),
                Some(_) => format!("it expired, and {}", last_failure(category, status_code)),
            },
        };
        Self { likely: Self::is_likely(reason, category), hint: why }
    }

    /// Returns whether the last failure requires no change: the endpoint was unreachable or failing, and has not
    /// rejected the delivery.
    pub fn is_likely(reason: DeadReason, category: Option<FailureCategory>) -> bool {
        use FailureCategory::{Dns, Network, RateLimit, ServerError, Timeout};
        matches!(reason, DeadReason::Exhausted | DeadReason::Expired)
            && matches!(category, None | Some(Timeout | ServerError | Network | Dns | RateLimit))
    }
}

fn permanent(category: Option<FailureCategory>, status_code: Option<u16>) -> String {
    let remedy = match (status_code, category) {
        (Some(401 | 403), _) => "fix the webhook's credentials (auth or headers)",
        (Some(404), _) => "check the webhook's URL",
        (Some(410), _) => "the endpoint is gone: change the webhook's URL and enable it",
        (Some(413), _) | (_, Some(FailureCategory::PayloadTooLarge)) => {
            "let the endpoint accept larger bodies"
        }
        _ => "fix the endpoint",
    };
    match status_code {
        Some(code) => format!("the endpoint rejected it with {code} (not retried); {remedy}, then resend"),
        None => format!("it was rejected and is not retried; {remedy}, then resend"),
    }
}

/// Describes the last failure and what it means.
fn last_failure(category: Option<FailureCategory>, status_code: Option<u16>) -> String {
    let response = status_code.map_or("failed".into(), |code| format!("returned {code}"));
    let (failure, advice): (String, &str) = match category {
        None => ("the result of its last attempt is unknown".into(), "resend it"),
        Some(FailureCategory::Timeout) => (
            "the last attempt got no complete response in time".into(),
            "the delivery may succeed once the endpoint responds in time",
        ),
        Some(FailureCategory::ServerError) => (
            format!("the endpoint last {response}"),
            "the delivery may succeed once the endpoint has recovered",
        ),
        Some(FailureCategory::Network) => (
            "the last attempt failed without a valid HTTP response".into(),
            "the delivery may succeed once the endpoint responds",
        ),
        Some(FailureCategory::Dns) => (
            "the endpoint's host could not be resolved or is not allowed".into(),
            "the delivery may succeed once the host resolves to an allowed address",
        ),
        Some(FailureCategory::RateLimit) => {
            ("the endpoint last returned 429".into(), "the delivery may succeed at a lower rate")
        }
        Some(FailureCategory::ClientError) => {
            (format!("the endpoint last {response}, rejecting the request"), "fix the endpoint, then resend")
        }
        Some(FailureCategory::PayloadTooLarge) => (
            "the endpoint rejected its body as too large".into(),
            "let the endpoint accept larger bodies, then resend",
        ),
        Some(FailureCategory::Redirect) => (
            format!("the endpoint last {response}, and redirects are never followed"),
            "change the webhook's URL, then resend",
        ),
        Some(FailureCategory::Tls) => {
            ("the last TLS handshake failed".into(), "fix the endpoint's certificate, then resend")
        }
        Some(FailureCategory::BlockedAddress) => return BLOCKED_ADDRESS.into(),
    };
    format!("{failure}; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(reason: DeadReason, category: Option<FailureCategory>, code: Option<u16>) -> (bool, String) {
        let recovery = Recoverability::assess(reason, category, code);
        (recovery.likely, recovery.hint)
    }

    #[test]
    fn rejected_delivery_is_not_recoverable_and_failed_one_is() {
        use FailureCategory::{ClientError, Network, Redirect, ServerError};
        for (reason, category, code, likely, says) in [
            (DeadReason::Exhausted, Some(ServerError), Some(503), true, "last returned 503"),
            (DeadReason::Exhausted, Some(Network), None, true, "without a valid HTTP response"),
            (DeadReason::Exhausted, Some(ClientError), Some(422), false, "returned 422, rejecting"),
            (DeadReason::Exhausted, Some(Redirect), Some(302), false, "change the webhook's URL"),
            (DeadReason::Expired, None, None, true, "before its first attempt"),
            (DeadReason::Expired, Some(ServerError), Some(500), true, "it expired, and the endpoint last"),
            (DeadReason::Permanent, Some(ClientError), Some(401), false, "credentials"),
            (DeadReason::Permanent, Some(ClientError), Some(410), false, "endpoint is gone"),
            (DeadReason::TlsLimit, Some(FailureCategory::Tls), None, false, "certificate"),
            (DeadReason::BlockedAddress, Some(FailureCategory::BlockedAddress), None, false, "egress rules"),
        ] {
            let (is_likely, words) = hint(reason, category, code);
            assert_eq!(is_likely, likely, "{reason:?} {category:?}");
            assert!(words.contains(says), "{reason:?} {category:?}: {words}");
        }
    }

    #[test]
    fn every_dead_reason_has_a_matching_hint() {
        for reason in DeadReason::ALL {
            for category in FailureCategory::ALL.into_iter().map(Some).chain([None]) {
                for code in [None, Some(200), Some(404), Some(500)] {
                    let (likely, words) = hint(reason, category, code);
                    assert!(!words.is_empty() && !words.ends_with('.'), "{words}");
                    // A delivery that cannot succeed unchanged has a hint about what to fix first.
                    assert_eq!(words.contains("then resend"), !likely, "{reason:?} {category:?}: {words}");
                }
            }
        }
    }
}

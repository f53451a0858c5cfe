//! Assesses whether a dead delivery is worth sending again unchanged, with an explanation.

use crate::delivery::{DeadReason, response::FailureCategory};

/// Prospects of sending a dead delivery again with nothing else changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recoverability {
    /// Whether it is likely to succeed.
    pub likely: bool,
    /// Why, and what to fix first if it is not likely.
    pub hint: String,
}

impl Recoverability {
    /// Assesses a dead delivery by its dead reason, its last failure category and the status code of the last
    /// response.
    pub fn assess(reason: DeadReason, category: Option<FailureCategory>, status_code: Option<u16>) -> Self {
        let why = match reason {
            DeadReason::Permanent => permanent(category, status_code),
            DeadReason::TlsLimit => "the TLS handshake failed three times; have the endpoint's certificate \
                                     mended, then send it again"
                .into(),
            DeadReason::BlockedAddress => {
                "its URL leads to an address that may not be called; change the URL, or \
                                           have the address allowed, then send it again"
                    .into()
            }
            DeadReason::Exhausted => {
                format!("every attempt was used, and {}", last_failure(category, status_code))
            }
            DeadReason::Expired => match category {
                None => "it was held back until it expired and never failed; it can be sent as it is".into(),
                Some(_) => format!("it expired, and {}", last_failure(category, status_code)),
            },
        };
        Self { likely: Self::is_likely(reason, category), hint: why }
    }

    /// Returns whether it is likely to succeed: the endpoint was unreachable or failing, and has not rejected the
    /// delivery.
    pub fn is_likely(reason: DeadReason, category: Option<FailureCategory>) -> bool {
        use FailureCategory::{Dns, Network, RateLimit, ServerError, Timeout};
        matches!(reason, DeadReason::Exhausted | DeadReason::Expired)
            && matches!(category, None | Some(Timeout | ServerError | Network | Dns | RateLimit))
    }
}

fn permanent(category: Option<FailureCategory>, status_code: Option<u16>) -> String {
    let remedy = match (status_code, category) {
        (Some(401 | 403), _) => "mend the endpoint's credentials",
        (Some(404), _) => "check the webhook's URL",
        (Some(410), _) => "the endpoint is gone for good: change the webhook's URL and enable it",
        (Some(413), _) | (_, Some(FailureCategory::PayloadTooLarge)) => {
            "have the endpoint take larger bodies"
        }
        _ => "mend the endpoint",
    };
    match status_code {
        Some(code) => format!("the endpoint refused it for good with {code}; {remedy}, then send it again"),
        None => format!("it was refused for good; {remedy}, then send it again"),
    }
}

/// Describes the last failure and what it means.
fn last_failure(category: Option<FailureCategory>, status_code: Option<u16>) -> String {
    let response = status_code.map_or("failed".into(), |code| format!("answered {code}"));
    match category {
        None => "nothing is known of its last attempt; try it again".into(),
        Some(FailureCategory::Timeout) => {
            "the last one timed out; it may succeed once the endpoint is fast".into()
        }
        Some(FailureCategory::ServerError) => {
            format!("the endpoint last {response}; it may succeed once the endpoint has recovered")
        }
        Some(FailureCategory::Network) => {
            "the endpoint could not be reached; it may succeed once it is up".into()
        }
        Some(FailureCategory::Dns) => {
            "the endpoint's name could not be looked up; it may succeed once that works".into()
        }
        Some(FailureCategory::RateLimit) => {
            "the endpoint last asked for fewer requests; it may succeed at a lower rate".into()
        }
        Some(FailureCategory::ClientError) => {
            format!(
                "the endpoint last {response}, refusing what it got; mend the endpoint, then send it again"
            )
        }
        Some(FailureCategory::PayloadTooLarge) => {
            "the endpoint found its body too large; have it take larger ones, then send it again".into()
        }
        Some(FailureCategory::Redirect) => format!(
            "the endpoint last {response}, a redirect, which is never followed; change the webhook's URL, then \
             send it again"
        ),
        Some(FailureCategory::Tls) => {
            "the TLS handshake failed last; have the endpoint's certificate mended, then send it again".into()
        }
        Some(FailureCategory::BlockedAddress) => {
            "its URL last led to an address that may not be called; change the URL, then send it again".into()
        }
    }
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
            (DeadReason::Exhausted, Some(ServerError), Some(503), true, "last answered 503"),
            (DeadReason::Exhausted, Some(Network), None, true, "could not be reached"),
            (DeadReason::Exhausted, Some(ClientError), Some(422), false, "answered 422, refusing"),
            (DeadReason::Exhausted, Some(Redirect), Some(302), false, "change the webhook's URL"),
            (DeadReason::Expired, None, None, true, "never failed"),
            (DeadReason::Expired, Some(ServerError), Some(500), true, "it expired, and the endpoint last"),
            (DeadReason::Permanent, Some(ClientError), Some(401), false, "credentials"),
            (DeadReason::Permanent, Some(ClientError), Some(410), false, "gone for good"),
            (DeadReason::TlsLimit, Some(FailureCategory::Tls), None, false, "certificate"),
            (
                DeadReason::BlockedAddress,
                Some(FailureCategory::BlockedAddress),
                None,
                false,
                "may not be called",
            ),
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
                    assert_eq!(
                        words.contains("then send it again"),
                        !likely,
                        "{reason:?} {category:?}: {words}"
                    );
                }
            }
        }
    }
}

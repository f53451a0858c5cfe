//! Verification of URL ownership: an endpoint has to echo a challenge before it receives any event.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::time::Time;

/// Event type of the challenge request.
pub const CHALLENGE_EVENT_TYPE: &str = "redrive.challenge";
/// Reason for disabling a webhook whose endpoint did not echo in time.
pub const REASON_NOT_VERIFIED: &str = "the endpoint did not echo the challenge in time";
/// Time after which an endpoint that did not echo is no longer challenged.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Minimum time between manual restarts of a verification, and between two challenges.
const MIN_RESTART_INTERVAL: Duration = Duration::from_secs(30);
/// Delays in seconds after each failed challenge; the last one repeats.
const RETRY_DELAYS: [u64; 6] = [5, 30, 120, 600, 1800, 3600];

/// Progress of the verification of a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Start time.
    pub started_at: Time,
    /// Number of challenges sent.
    pub attempts: u32,
    /// Time of the next challenge.
    pub next: Time,
    /// Whether events become deliveries that wait for the verification, as for a webhook that was verified before.
    pub keeps_events: bool,
    /// Result of the last challenge, in words for the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Webhooks for which the operator requires URL verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequireVerification {
    /// All webhooks.
    Always,
    /// Webhooks that portal sessions create or whose URL they change.
    #[default]
    Portal,
    /// Only webhooks whose owner requests it.
    Never,
}

impl RequireVerification {
    /// Returns whether verification is required for a webhook that this kind of caller creates or changes.
    pub fn applies_to(self, portal_session: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Portal => portal_session,
            Self::Never => false,
        }
    }
}

impl Verification {
    /// Starts a verification now.
    pub fn begin(now: Time, keeps_events: bool) -> Self {
        Self { started_at: now, attempts: 0, next: now, keeps_events, last_error: None }
    }

    /// Starts a verification now for an endpoint that may have been challenged before: the minimum interval between
    /// two challenges is kept.
    pub fn begin_after(challenged_at: Option<Time>, now: Time, keeps_events: bool) -> Self {
        let next = challenged_at.map_or(now, |at| now.max(at + MIN_RESTART_INTERVAL));
        Self { next, ..Self::begin(now, keeps_events) }
    }

    /// Undoes a challenge that was not sent because no connection to the address was free: it does not count as an
    /// attempt, and the next one is due at `next`.
    pub fn with_unsent_challenge(&self, next: Time) -> Self {
        let next = next.min(self.started_at + GIVE_UP_AFTER);
        Self { attempts: self.attempts.saturating_sub(1), next, ..self.clone() }
    }

    /// Returns whether it may be restarted manually. The minimum interval prevents flooding an endpoint with
    /// challenges.
    pub fn may_restart(&self, now: Time) -> bool {
        now >= self.started_at + MIN_RESTART_INTERVAL
    }

    /// Returns the state after sending a challenge, assuming that it fails, or `None` if the time limit has passed.
    pub fn after_challenge(&self, now: Time) -> Option<Self> {
        if now >= self.started_at + GIVE_UP_AFTER {
            return None;
        }
        let wait = RETRY_DELAYS[(self.attempts as usize).min(RETRY_DELAYS.len() - 1)];
        let next = (now + Duration::from_secs(wait)).min(self.started_at + GIVE_UP_AFTER);
        Some(Self { attempts: self.attempts.saturating_add(1), next, ..self.clone() })
    }
}

/// Returns the request body of a challenge.
pub fn challenge_body(challenge: &str) -> Bytes {
    let body = serde_json::json!({"type": CHALLENGE_EVENT_TYPE, "challenge": challenge});
    Bytes::from(body.to_string())
}

/// Returns whether a response echoes a challenge, either verbatim or as the member `challenge` of a JSON object.
/// Compares in constant time.
pub fn is_echo(challenge: &str, status: u16, body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Echo {
        challenge: String,
    }
    if !(200..300).contains(&status) {
        return false;
    }
    let same = |given: &[u8]| bool::from(given.ct_eq(challenge.as_bytes()));
    same(body.trim_ascii())
        || serde_json::from_slice::<Echo>(body).is_ok_and(|echo| same(echo.challenge.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn challenges_back_off_for_a_day() {
        let begin = Time::from_secs(1_000);
        let mut verification = Verification::begin(begin, false);
        let mut requests = Vec::new();
        while let Some(next) = verification.after_challenge(verification.next) {
            requests.push(verification.next.duration_since(begin).as_secs());
            verification = next;
        }
        assert_eq!(requests[..6], [0, 5, 35, 155, 755, 2555]);
        assert!(requests.is_sorted() && requests.len() < 40);
        assert_eq!(verification.next, begin + GIVE_UP_AFTER, "verification ends after the last challenge");
        assert_eq!(verification.after_challenge(begin + GIVE_UP_AFTER), None);
    }

    #[test]
    fn manual_restart_requires_minimum_interval() {
        let verification = Verification::begin(Time::from_secs(1_000), false);
        assert!(!verification.may_restart(Time::from_secs(1_029)));
        assert!(verification.may_restart(Time::from_secs(1_030)));
    }

    #[test]
    fn restarted_verification_keeps_challenge_interval() {
        let now = Time::from_secs(1_000);
        assert_eq!(Verification::begin_after(None, now, true), Verification::begin(now, true));
        let next =
            |challenged_at| Verification::begin_after(Some(Time::from_secs(challenged_at)), now, true).next;
        assert_eq!(next(990), Time::from_secs(1_020));
        assert_eq!(next(970), now);
        assert_eq!(next(5), now);
    }

    #[test]
    fn unsent_challenge_does_not_count_as_attempt() {
        let begin = Time::from_secs(1_000);
        let request = Verification::begin(begin, false).after_challenge(begin).unwrap();
        let soon = Time::from_secs(1_001);
        assert_eq!(
            request.with_unsent_challenge(soon),
            Verification { next: soon, ..Verification::begin(begin, false) }
        );
        assert_eq!(request.with_unsent_challenge(Time::FAR_FUTURE).next, begin + GIVE_UP_AFTER);
    }

    #[test]
    fn only_echo_verifies() {
        assert!(is_echo("abc", 200, b"abc"));
        assert!(is_echo("abc", 204, b" abc\r\n"));
        assert!(is_echo("abc", 200, br#"{"ok": true, "challenge": "abc"}"#));
        for (status, body) in [
            (200, &b""[..]),
            (200, b"ab"),
            (200, b"abcd"),
            (200, br#""abc""#),
            (200, br#"{"challenge": "abd"}"#),
            (200, br#"{"challenge": ["abc"]}"#),
            (200, br#"<p>abc</p>"#),
            (302, b"abc"),
            (404, b"abc"),
        ] {
            assert!(!is_echo("abc", status, body), "{status} {body:?}");
        }
        // An endpoint that echoes every request does not understand the challenge, but it is listening.
        assert!(is_echo("abc", 200, &challenge_body("abc")));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_echo(body: Vec<u8>) {
            prop_assert!(!is_echo("0123456789abcdef0123456789abcdef", 200, &body));
        }
    }
}

//! Whether a URL belongs to whoever named it: its endpoint has to echo a challenge before it gets any event.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

use crate::time::Time;

/// The type of the challenge, where events have theirs.
pub const CHALLENGE: &str = "redrive.challenge";
/// Why a webhook is disabled whose endpoint did not echo in time.
pub const NOT_VERIFIED: &str = "the endpoint did not echo the challenge in time";
/// For how long an endpoint is asked.
pub const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// How long it takes until it may begin anew by hand.
const BETWEEN: Duration = Duration::from_secs(30);
/// How long to wait after each failed try; after the last of these, always so long.
const WAITS: [u64; 6] = [5, 30, 120, 600, 1800, 3600];

/// How far the verification of a URL has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// When it began.
    pub since: Time,
    /// How often the endpoint was asked.
    pub tries: u32,
    /// When it is asked next.
    pub next: Time,
    /// Whether events become deliveries that wait for it, as for a webhook that was verified before.
    pub keeps_events: bool,
    /// What came of the last time it was asked, in words for its owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// For whose webhooks the operator requires that the URL is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequireVerification {
    /// For all.
    Always,
    /// For those that portal sessions create, and those whose URL they change.
    #[default]
    Portal,
    /// For none but those whose owner asks for it.
    Never,
}

impl RequireVerification {
    /// Whether it is required of a webhook that such a caller creates or changes.
    pub fn applies_to(self, portal_session: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Portal => portal_session,
            Self::Never => false,
        }
    }
}

impl Verification {
    /// One that begins now.
    pub fn begin(now: Time, keeps_events: bool) -> Self {
        Self { since: now, tries: 0, next: now, keeps_events, last_error: None }
    }

    /// One that begins now, for an endpoint that was sent a challenge before: the pause between two challenges holds.
    pub fn begin_after(challenged_at: Option<Time>, now: Time, keeps_events: bool) -> Self {
        let next = challenged_at.map_or(now, |at| now.max(at + BETWEEN));
        Self { next, ..Self::begin(now, keeps_events) }
    }

    /// The same for an endpoint that was not asked after all, since no connection to its address was free: the try
    /// does not count, and another one follows at `next`.
    pub fn not_asked(&self, next: Time) -> Self {
        let next = next.min(self.since + PATIENCE);
        Self { tries: self.tries.saturating_sub(1), next, ..self.clone() }
    }

    /// Whether it may begin anew by hand: nobody may have an endpoint asked again and again.
    pub fn may_begin_anew(&self, now: Time) -> bool {
        now >= self.since + BETWEEN
    }

    /// The same once the endpoint is being asked, as if that failed. None: its time is over.
    pub fn asked(&self, now: Time) -> Option<Self> {
        if now >= self.since + PATIENCE {
            return None;
        }
        let wait = WAITS[(self.tries as usize).min(WAITS.len() - 1)];
        let next = (now + Duration::from_secs(wait)).min(self.since + PATIENCE);
        Some(Self { tries: self.tries.saturating_add(1), next, ..self.clone() })
    }
}

/// The body that asks an endpoint to echo.
pub fn challenge_body(challenge: &str) -> Bytes {
    let body = serde_json::json!({"type": CHALLENGE, "challenge": challenge});
    Bytes::from(body.to_string())
}

/// Whether an answer echoes a challenge: as it is, or as the member `challenge` of a JSON object. How long the
/// comparison takes tells nothing.
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
    fn an_endpoint_is_asked_less_and_less_often_for_a_day() {
        let begin = Time::from_secs(1_000);
        let mut verification = Verification::begin(begin, false);
        let mut asked = Vec::new();
        while let Some(next) = verification.asked(verification.next) {
            asked.push(verification.next.since(begin).as_secs());
            verification = next;
        }
        assert_eq!(asked[..6], [0, 5, 35, 155, 755, 2555]);
        assert!(asked.is_sorted() && asked.len() < 40);
        assert_eq!(verification.next, begin + PATIENCE, "and then it is over");
        assert_eq!(verification.asked(begin + PATIENCE), None);
    }

    #[test]
    fn it_begins_anew_by_hand_only_after_a_while() {
        let verification = Verification::begin(Time::from_secs(1_000), false);
        assert!(!verification.may_begin_anew(Time::from_secs(1_029)));
        assert!(verification.may_begin_anew(Time::from_secs(1_030)));
    }

    #[test]
    fn pause_between_challenges_holds_when_a_verification_begins_again() {
        let now = Time::from_secs(1_000);
        assert_eq!(Verification::begin_after(None, now, true), Verification::begin(now, true));
        let next =
            |challenged_at| Verification::begin_after(Some(Time::from_secs(challenged_at)), now, true).next;
        assert_eq!(next(990), Time::from_secs(1_020));
        assert_eq!(next(970), now);
        assert_eq!(next(5), now);
    }

    #[test]
    fn endpoint_that_was_not_asked_keeps_its_tries() {
        let begin = Time::from_secs(1_000);
        let asked = Verification::begin(begin, false).asked(begin).unwrap();
        let soon = Time::from_secs(1_001);
        assert_eq!(asked.not_asked(soon), Verification { next: soon, ..Verification::begin(begin, false) });
        assert_eq!(asked.not_asked(Time::FOREVER).next, begin + PATIENCE);
    }

    #[test]
    fn only_an_echo_counts() {
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
        // An endpoint that sends everything back does not understand what it is asked, but it is listening.
        assert!(is_echo("abc", 200, &challenge_body("abc")));
    }

    proptest! {
        #[test]
        fn garbage_is_no_echo(body: Vec<u8>) {
            prop_assert!(!is_echo("0123456789abcdef0123456789abcdef", 200, &body));
        }
    }
}

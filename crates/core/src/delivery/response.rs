//! What an attempt's answer means: success, or a failure of some category, for now or for good.
//!
//! Every possible answer has a meaning here; nothing an endpoint sends is unexpected.

use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{
    delivery::retry::{RetryOn, RetryPolicy},
    time::{Span, Time},
};

/// In what way an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FailureCategory {
    /// No complete answer came in time.
    Timeout,
    /// The endpoint answered 5xx.
    ServerError,
    /// The endpoint answered 4xx.
    ClientError,
    /// The endpoint could not be reached, or the connection broke.
    Network,
    /// The endpoint's name could not be resolved.
    Dns,
    /// The TLS handshake failed, a bad certificate included.
    Tls,
    /// The endpoint answered 429.
    RateLimit,
    /// The endpoint answered 413.
    PayloadTooLarge,
    /// The endpoint answered 3xx; redirects are never followed.
    Redirect,
    /// The endpoint's address is one that must not be called.
    BlockedAddress,
}

impl FailureCategory {
    /// Every category.
    pub const ALL: [Self; 10] = [
        Self::Timeout,
        Self::ServerError,
        Self::ClientError,
        Self::Network,
        Self::Dns,
        Self::Tls,
        Self::RateLimit,
        Self::PayloadTooLarge,
        Self::Redirect,
        Self::BlockedAddress,
    ];

    /// The name used everywhere: API, metrics, logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::ServerError => "server_error",
            Self::ClientError => "client_error",
            Self::Network => "network",
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::RateLimit => "rate_limit",
            Self::PayloadTooLarge => "payload_too_large",
            Self::Redirect => "redirect",
            Self::BlockedAddress => "blocked_address",
        }
    }
}

/// Why no complete answer came back, as the sender reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendFailure {
    /// The attempt's time was up.
    Timeout,
    /// The answer ended midway.
    CutOff,
    /// The name could not be resolved.
    Dns,
    /// The connection could not be made.
    Connect,
    /// The connection broke before an answer began.
    Reset,
    /// What came back was not HTTP, or broke its rules.
    Protocol,
    /// The TLS handshake failed.
    Tls,
    /// The address is one that must not be called.
    BlockedAddress,
    /// The installation has as many connections to the address as it may have. No request was made, and none is
    /// recorded: the delivery waits for its turn again.
    HostBusy,
    /// We cut the request ourselves, at the end of a shutdown's patience.
    Drained,
    /// The sending process died again and again while this was in flight.
    SenderDied,
}

impl SendFailure {
    /// The category that this counts as.
    pub fn category(self) -> FailureCategory {
        match self {
            // In all three the endpoint may have done its work: we merely did not hear about it.
            Self::Timeout | Self::CutOff | Self::Drained => FailureCategory::Timeout,
            Self::Dns => FailureCategory::Dns,
            Self::Connect | Self::Reset | Self::Protocol | Self::SenderDied | Self::HostBusy => {
                FailureCategory::Network
            }
            Self::Tls => FailureCategory::Tls,
            Self::BlockedAddress => FailureCategory::BlockedAddress,
        }
    }
}

/// What came of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The endpoint answered.
    Status {
        /// The status code, whatever it is.
        code: u16,
        /// The `Retry-After` header, as it was sent.
        retry_after: Option<&'a str>,
    },
    /// No complete answer came back.
    Failed(SendFailure),
}

/// What is known about a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// In what way it failed.
    pub category: FailureCategory,
    /// Whether more attempts would not change the answer.
    pub permanent: bool,
    /// How long the endpoint asked us to stay away, where it may ask.
    pub retry_after: Option<Duration>,
    /// Whether the endpoint said that it is gone for good (410), which disables the webhook.
    pub gone: bool,
}

/// What an attempt's answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The endpoint took the event.
    Success,
    /// It did not.
    Failed(Failure),
}

/// Judges one answer under a webhook's policy. `now` turns a `Retry-After` date into a wait.
pub fn classify(answer: &Answer<'_>, policy: &RetryPolicy, now: Time) -> Verdict {
    match *answer {
        Answer::Status { code: 200..=299, .. } => Verdict::Success,
        Answer::Status { code, retry_after } => Verdict::Failed(Failure {
            category: category_of(code),
            permanent: policy.retry_on == RetryOn::Default && policy.permanent_status_codes.contains(&code),
            // Only these two say by the header when they will take requests again.
            retry_after: retry_after
                .filter(|_| matches!(code, 429 | 503))
                .and_then(|value| parse_retry_after(value, now)),
            gone: code == 410,
        }),
        Answer::Failed(failure) => Verdict::Failed(Failure {
            category: failure.category(),
            permanent: false,
            retry_after: None,
            gone: false,
        }),
    }
}

fn category_of(code: u16) -> FailureCategory {
    match code {
        300..=399 => FailureCategory::Redirect,
        408 => FailureCategory::Timeout,
        413 => FailureCategory::PayloadTooLarge,
        429 => FailureCategory::RateLimit,
        400..=499 => FailureCategory::ClientError,
        500.. => FailureCategory::ServerError,
        // An interim answer in place of a final one: the other side does not speak HTTP properly.
        _ => FailureCategory::Network,
    }
}

/// Reads a `Retry-After` header: a number of seconds or an HTTP date. A date that has passed is no wait at
/// all, a wait of more than a year is a year, and anything else is nothing.
pub fn parse_retry_after(value: &str, now: Time) -> Option<Duration> {
    let value = value.trim();
    let most = Span::MAX.get();
    if !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit()) {
        // Digits that do not fit a number are a very long wait all the same.
        return Some(value.parse().map_or(most, Duration::from_secs).min(most));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    // Dates before 1970 have passed, whenever now is.
    let since_epoch = date.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some((Time::default() + since_epoch).since(now).min(most))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{FailureCategory::*, *};

    const NOW: i64 = 1_700_000_000_000; // Tue, 14 Nov 2023 22:13:20 GMT

    fn now() -> Time {
        Time::from_millis(NOW)
    }

    fn judge(code: u16, retry_after: Option<&str>) -> Option<Failure> {
        match classify(&Answer::Status { code, retry_after }, &RetryPolicy::default(), now()) {
            Verdict::Success => None,
            Verdict::Failed(failure) => Some(failure),
        }
    }

    #[test]
    fn status_codes_have_their_categories() {
        for (code, category, permanent) in [
            (0, Network, false),
            (101, Network, false),
            (199, Network, false),
            (300, Redirect, false),
            (301, Redirect, false),
            (399, Redirect, false),
            (400, ClientError, true),
            (401, ClientError, true),
            (403, ClientError, true),
            (404, ClientError, true),
            (408, Timeout, false),
            (409, ClientError, false),
            (410, ClientError, true),
            (413, PayloadTooLarge, true),
            (414, ClientError, true),
            (415, ClientError, true),
            (422, ClientError, false),
            (429, RateLimit, false),
            (451, ClientError, true),
            (499, ClientError, false),
            (500, ServerError, false),
            (503, ServerError, false),
            (600, ServerError, false),
            (u16::MAX, ServerError, false),
        ] {
            let expected = Failure { category, permanent, retry_after: None, gone: code == 410 };
            assert_eq!(judge(code, None), Some(expected), "{code}");
        }
        assert!((200..300).all(|code| judge(code, Some("5")).is_none()));
    }

    #[test]
    fn the_policy_says_what_is_permanent() {
        let judge = |policy: &RetryPolicy, code| match classify(
            &Answer::Status { code, retry_after: None },
            policy,
            now(),
        ) {
            Verdict::Success => panic!("{code} is no success"),
            Verdict::Failed(failure) => (failure.permanent, failure.gone),
        };
        let all = RetryPolicy { retry_on: RetryOn::All, ..RetryPolicy::default() };
        assert_eq!(judge(&all, 404), (false, false));
        assert_eq!(judge(&all, 410), (false, true), "gone is gone, whatever is retried");
        let own = RetryPolicy { permanent_status_codes: vec![302, 500], ..RetryPolicy::default() };
        let judged = [302, 500, 404, 410].map(|code| judge(&own, code));
        assert_eq!(judged, [(true, false), (true, false), (false, false), (false, true)]);
    }

    #[test]
    fn failures_without_an_answer_are_never_permanent() {
        use SendFailure as F;
        for (failure, category) in [
            (F::Timeout, Timeout),
            (F::CutOff, Timeout),
            (F::Drained, Timeout),
            (F::Dns, Dns),
            (F::Connect, Network),
            (F::Reset, Network),
            (F::Protocol, Network),
            (F::SenderDied, Network),
            (F::Tls, Tls),
            (F::BlockedAddress, BlockedAddress),
        ] {
            let expected = Failure { category, permanent: false, retry_after: None, gone: false };
            let verdict = classify(&Answer::Failed(failure), &RetryPolicy::default(), now());
            assert_eq!(verdict, Verdict::Failed(expected), "{failure:?}");
        }
    }

    #[test]
    fn only_429_and_503_may_ask_for_a_wait() {
        let asked = |code| judge(code, Some("120")).and_then(|failure| failure.retry_after);
        let heard: Vec<u16> = (0..=u16::MAX).filter(|code| asked(*code).is_some()).collect();
        assert_eq!(heard, [429, 503]);
        assert_eq!(asked(429), Some(Duration::from_secs(120)));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let read = |value: &str| parse_retry_after(value, now()).map(|wait| wait.as_secs());
        let year = 365 * 86_400;
        for (value, expected) in [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("00007", Some(7)),
            ("999999999", Some(year)),
            ("99999999999999999999999999999999", Some(year)),
            ("Tue, 14 Nov 2023 22:14:20 GMT", Some(60)),
            ("Tuesday, 14-Nov-23 22:14:20 GMT", Some(60)),
            ("Tue Nov 14 22:14:20 2023", Some(60)),
            ("Tue, 14 Nov 2023 22:13:19 GMT", Some(0)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(year)),
            ("", None),
            ("-5", None),
            ("+5", None),
            ("1.5", None),
            ("1e3", None),
            ("120s", None),
            ("soon", None),
            ("٣", None),
            ("2023-11-14T22:14:20Z", None),
        ] {
            assert_eq!(read(value), expected, "{value:?}");
        }
    }

    #[test]
    fn names_are_those_on_the_wire() {
        for category in FailureCategory::ALL {
            let json = serde_json::to_string(&category).unwrap();
            assert_eq!(json, format!("\"{}\"", category.name()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn every_answer_has_a_meaning(code in any::<u16>(), value in "\\PC*", millis in any::<i64>()) {
            let answer = Answer::Status { code, retry_after: Some(&value) };
            let verdict = classify(&answer, &RetryPolicy::default(), Time::from_millis(millis));
            prop_assert_eq!(verdict == Verdict::Success, (200..300).contains(&code));
        }

        #[test]
        fn nobody_can_ask_for_more_than_a_year(
            value in prop_oneof![
                "[0-9]{1,40}",
                "(Mon|Tue|Sun), [0-3][0-9] (Jan|Feb|Dec) [0-9]{4} [0-2][0-9]:[0-6][0-9]:[0-6][0-9] GMT",
                "(Monday|Friday), [0-3][0-9]-(Mar|Nov)-[0-9]{2} [0-2][0-9]:[0-6][0-9]:[0-6][0-9] GMT",
                any::<String>(),
            ],
            millis: i64,
        ) {
            let wait = parse_retry_after(&value, Time::from_millis(millis));
            prop_assert!(wait.is_none_or(|wait| wait <= Span::MAX.get()), "{:?}", wait);
            let digits = !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit());
            prop_assert!(wait.is_some() || !digits, "a number is always a wait");
        }

        #[test]
        fn a_date_is_as_far_away_as_it_says(seconds in 0u64..400_000_000, now in 0i64..2_000_000_000) {
            let date = UNIX_EPOCH + Duration::from_secs(now.unsigned_abs() + seconds);
            let wait = parse_retry_after(&httpdate::fmt_http_date(date), Time::from_millis(now * 1000));
            prop_assert_eq!(wait, Some(Duration::from_secs(seconds).min(Span::MAX.get())));
        }
    }
}

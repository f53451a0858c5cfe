//! Classification of an attempt's response: success, or a failure of a category, temporary or permanent.
//!
//! Every status code and every failure to get one maps to a category.

use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::{
    delivery::retry::{RetryOn, RetryPolicy},
    time::{HumanDuration, Time},
};

/// Category of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FailureCategory {
    /// No complete response arrived in time.
    Timeout,
    /// The endpoint responded 5xx.
    ServerError,
    /// The endpoint responded 4xx.
    ClientError,
    /// The endpoint could not be reached, or the connection broke.
    Network,
    /// The endpoint's host could not be resolved.
    Dns,
    /// The TLS handshake failed, for example because of a bad certificate. `ssl` is accepted as another name of it.
    #[serde(alias = "ssl")]
    Tls,
    /// The endpoint responded 429.
    RateLimit,
    /// The endpoint responded 413.
    PayloadTooLarge,
    /// The endpoint responded 3xx; redirects are never followed.
    Redirect,
    /// The endpoint's address must not be called.
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

    /// Returns the name used in the API, metrics and logs.
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

/// Why no complete response arrived, as reported by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendFailure {
    /// The attempt timed out.
    Timeout,
    /// The response was truncated.
    Truncated,
    /// The host could not be resolved.
    Dns,
    /// The connection could not be established.
    Connect,
    /// The connection broke before a response began.
    Reset,
    /// The response was not HTTP, or violated the protocol.
    Protocol,
    /// The TLS handshake failed.
    Tls,
    /// The address must not be called.
    BlockedAddress,
    /// This node has reached its maximum number of connections to the address. No request was made, and no attempt is
    /// recorded: the delivery is released.
    ConnectionLimit,
    /// The node cut the request at the drain deadline of its shutdown.
    DrainDeadline,
    /// Redrive crashed repeatedly while sending this delivery: its node died, its task panicked, or its outcome could not
    /// be stored.
    Crashed,
}

impl SendFailure {
    /// Returns the failure category.
    pub fn category(self) -> FailureCategory {
        match self {
            // In all three cases the endpoint may have processed the request without its response reaching us.
            Self::Timeout | Self::Truncated | Self::DrainDeadline => FailureCategory::Timeout,
            Self::Dns => FailureCategory::Dns,
            Self::Connect | Self::Reset | Self::Protocol | Self::Crashed | Self::ConnectionLimit => {
                FailureCategory::Network
            }
            Self::Tls => FailureCategory::Tls,
            Self::BlockedAddress => FailureCategory::BlockedAddress,
        }
    }
}

/// Result of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResponse<'a> {
    /// The endpoint responded.
    Status {
        /// The status code; any value.
        code: u16,
        /// The `Retry-After` header, as it was sent.
        retry_after: Option<&'a str>,
    },
    /// No complete response arrived.
    Failed(SendFailure),
}

/// Properties of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Category of the failure.
    pub category: FailureCategory,
    /// Whether further attempts would get the same response.
    pub permanent: bool,
    /// The delay that the endpoint requested, for status codes that may request one.
    pub retry_after: Option<Duration>,
    /// Whether the endpoint is permanently gone (410), which disables the webhook.
    pub gone: bool,
}

/// Classification of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseClass {
    /// The endpoint accepted the event.
    Success,
    /// The attempt failed.
    Failed(Failure),
}

/// Classifies a response under a webhook's policy. `now` is used to convert a `Retry-After` date into a delay.
///
/// ```
/// use std::time::Duration;
///
/// use redrive_core::{
///     Time,
///     delivery::{
///         response::{AttemptResponse, ResponseClass, classify},
///         retry::RetryPolicy,
///     },
/// };
///
/// let policy = RetryPolicy::default();
/// let failure = |code| {
///     let response = AttemptResponse::Status { code, retry_after: Some("120") };
///     match classify(&response, &policy, Time::from_secs(1_000)) {
///         ResponseClass::Success => panic!("{code} is a success"),
///         ResponseClass::Failed(failure) => failure,
///     }
/// };
/// // `Retry-After` counts for 429 and 503 only.
/// assert_eq!(failure(503).retry_after, Some(Duration::from_secs(120)));
/// assert_eq!(failure(500).retry_after, None);
/// // 404 is permanent by default; 410 also disables the webhook. Redirects are failures and are not followed.
/// assert!(failure(404).permanent && !failure(404).gone && failure(410).gone);
/// assert!(!failure(302).permanent);
/// ```
pub fn classify(response: &AttemptResponse<'_>, policy: &RetryPolicy, now: Time) -> ResponseClass {
    match *response {
        AttemptResponse::Status { code: 200..=299, .. } => ResponseClass::Success,
        AttemptResponse::Status { code, retry_after } => ResponseClass::Failed(Failure {
            category: category_of(code),
            permanent: policy.retry_on == RetryOn::Default && policy.permanent_status_codes.contains(&code),
            // Only for these two status codes does the header say when requests are accepted again.
            retry_after: retry_after
                .filter(|_| matches!(code, 429 | 503))
                .and_then(|value| parse_retry_after(value, now)),
            gone: code == 410,
        }),
        AttemptResponse::Failed(failure) => ResponseClass::Failed(Failure {
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
        // An interim response instead of a final one: the endpoint violates HTTP.
        _ => FailureCategory::Network,
    }
}

/// Parses a `Retry-After` header: a number of seconds or an HTTP date. A date in the past is a delay of zero, a
/// delay of more than a year becomes a year, and anything else is `None`.
pub fn parse_retry_after(value: &str, now: Time) -> Option<Duration> {
    let value = value.trim();
    let max = HumanDuration::MAX.as_duration();
    if !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit()) {
        // Digits that overflow the number mean the maximum delay.
        return Some(value.parse().map_or(max, Duration::from_secs).min(max));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    // Dates before 1970 are always in the past.
    let since_epoch = date.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some((Time::default() + since_epoch).duration_since(now).min(max))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{FailureCategory::*, *};

    const NOW: i64 = 1_700_000_000_000; // Tue, 14 Nov 2023 22:13:20 GMT

    fn now() -> Time {
        Time::from_millis(NOW)
    }

    fn failure_class(code: u16, retry_after: Option<&str>) -> Option<Failure> {
        match classify(&AttemptResponse::Status { code, retry_after }, &RetryPolicy::default(), now()) {
            ResponseClass::Success => None,
            ResponseClass::Failed(failure) => Some(failure),
        }
    }

    #[test]
    fn category_is_parsed_from_its_name_and_tls_from_ssl() {
        let read = |text: &str| serde_json::from_value::<FailureCategory>(serde_json::json!(text)).ok();
        for category in FailureCategory::ALL {
            assert_eq!(read(category.name()), Some(category));
            assert_eq!(serde_json::to_value(category).unwrap(), category.name());
        }
        assert_eq!(read("ssl"), Some(FailureCategory::Tls));
        for unknown in ["SSL", "Tls", "ssl ", ""] {
            assert_eq!(read(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn status_codes_map_to_categories() {
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
            assert_eq!(failure_class(code, None), Some(expected), "{code}");
        }
        assert!((200..300).all(|code| failure_class(code, Some("5")).is_none()));
    }

    #[test]
    fn policy_decides_which_failures_are_permanent() {
        let permanent_and_gone = |policy: &RetryPolicy, code| match classify(
            &AttemptResponse::Status { code, retry_after: None },
            policy,
            now(),
        ) {
            ResponseClass::Success => panic!("{code} is not a success"),
            ResponseClass::Failed(failure) => (failure.permanent, failure.gone),
        };
        let all = RetryPolicy { retry_on: RetryOn::All, ..RetryPolicy::default() };
        assert_eq!(permanent_and_gone(&all, 404), (false, false));
        assert_eq!(permanent_and_gone(&all, 410), (false, true), "410 means gone regardless of retry_on");
        let own = RetryPolicy { permanent_status_codes: vec![302, 500], ..RetryPolicy::default() };
        let classified = [302, 500, 404, 410].map(|code| permanent_and_gone(&own, code));
        assert_eq!(classified, [(true, false), (true, false), (false, false), (false, true)]);
    }

    #[test]
    fn failures_without_response_are_never_permanent() {
        use SendFailure as F;
        for (failure, category) in [
            (F::Timeout, Timeout),
            (F::Truncated, Timeout),
            (F::DrainDeadline, Timeout),
            (F::Dns, Dns),
            (F::Connect, Network),
            (F::Reset, Network),
            (F::Protocol, Network),
            (F::Crashed, Network),
            (F::Tls, Tls),
            (F::BlockedAddress, BlockedAddress),
        ] {
            let expected = Failure { category, permanent: false, retry_after: None, gone: false };
            let class = classify(&AttemptResponse::Failed(failure), &RetryPolicy::default(), now());
            assert_eq!(class, ResponseClass::Failed(expected), "{failure:?}");
        }
    }

    #[test]
    fn only_429_and_503_may_request_a_delay() {
        let request = |code| failure_class(code, Some("120")).and_then(|failure| failure.retry_after);
        let with_delay: Vec<u16> = (0..=u16::MAX).filter(|code| request(*code).is_some()).collect();
        assert_eq!(with_delay, [429, 503]);
        assert_eq!(request(429), Some(Duration::from_secs(120)));
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
    fn category_names_match_serialization() {
        for category in FailureCategory::ALL {
            let json = serde_json::to_string(&category).unwrap();
            assert_eq!(json, format!("\"{}\"", category.name()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn every_response_is_classified(code in any::<u16>(), value in "\\PC*", millis in any::<i64>()) {
            let response = AttemptResponse::Status { code, retry_after: Some(&value) };
            let class = classify(&response, &RetryPolicy::default(), Time::from_millis(millis));
            prop_assert_eq!(class == ResponseClass::Success, (200..300).contains(&code));
        }

        #[test]
        fn retry_after_is_at_most_a_year(
            value in prop_oneof![
                "[0-9]{1,40}",
                "(Mon|Tue|Sun), [0-3][0-9] (Jan|Feb|Dec) [0-9]{4} [0-2][0-9]:[0-6][0-9]:[0-6][0-9] GMT",
                "(Monday|Friday), [0-3][0-9]-(Mar|Nov)-[0-9]{2} [0-2][0-9]:[0-6][0-9]:[0-6][0-9] GMT",
                any::<String>(),
            ],
            millis: i64,
        ) {
            let wait = parse_retry_after(&value, Time::from_millis(millis));
            prop_assert!(wait.is_none_or(|wait| wait <= HumanDuration::MAX.as_duration()), "{:?}", wait);
            let digits = !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit());
            prop_assert!(wait.is_some() || !digits, "a number is always a delay");
        }

        #[test]
        fn retry_after_date_becomes_exact_delay(seconds in 0u64..400_000_000, now in 0i64..2_000_000_000) {
            let date = UNIX_EPOCH + Duration::from_secs(now.unsigned_abs() + seconds);
            let wait = parse_retry_after(&httpdate::fmt_http_date(date), Time::from_millis(now * 1000));
            prop_assert_eq!(wait, Some(Duration::from_secs(seconds).min(HumanDuration::MAX.as_duration())));
        }
    }
}

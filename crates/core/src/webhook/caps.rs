//! Caps: the operator's upper bounds on the settings of a webhook.
//!
//! A value beyond a cap is rejected when it is written. A stored value beyond a cap that was lowered later is
//! reduced to the cap when the webhook is prepared for sending.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    delivery::retry::{Backoff, MAX_ATTEMPTS, MAX_GROWN_TIMEOUT_MS, RetryConfig, RetryPolicy},
    field_error::{FieldError, check_range},
    protection::limiter::{BURST_RANGE, REQUESTS_PER_MINUTE_RANGE, RateLimit},
    time::HumanDuration,
    webhook::{MAX_IN_FLIGHT_RANGE, WebhookSpec},
};

/// Configuration section of the caps.
const SECTION: &str = "limits.caps";

/// The operator's upper bounds on webhooks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caps {
    /// Maximum concurrent requests to one webhook.
    pub max_in_flight: u32,
    /// Maximum requests per minute to one webhook; `None` for no cap. A webhook without a rate limit gets this rate.
    pub requests_per_minute: Option<u32>,
    /// Maximum burst of requests to one webhook; `None` for no cap.
    pub burst: Option<u32>,
    /// Maximum attempts of one delivery.
    pub max_attempts: u32,
    /// Minimum delay between two attempts of a delivery.
    pub min_retry_delay: HumanDuration,
    /// Maximum timeout of an attempt in milliseconds, including its growth.
    pub timeout_ms: u64,
    /// Maximum webhooks of one tenant, regardless of its quota; `None` for no cap.
    pub webhooks_per_tenant: Option<u32>,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            max_in_flight: *MAX_IN_FLIGHT_RANGE.end(),
            requests_per_minute: None,
            burst: None,
            max_attempts: MAX_ATTEMPTS,
            min_retry_delay: HumanDuration::millis(0),
            timeout_ms: MAX_GROWN_TIMEOUT_MS,
            webhooks_per_tenant: Some(10_000),
        }
    }
}

impl Caps {
    /// Returns an error for a cap that is out of range.
    pub fn validate(&self) -> Result<(), FieldError> {
        let field = |name: &str| format!("{SECTION}.{name}");
        check_range(field("max_in_flight"), self.max_in_flight, MAX_IN_FLIGHT_RANGE)?;
        check_range(
            field("requests_per_minute"),
            self.requests_per_minute.unwrap_or(1),
            REQUESTS_PER_MINUTE_RANGE,
        )?;
        check_range(field("burst"), self.burst.unwrap_or(1), BURST_RANGE)?;
        check_range(field("max_attempts"), self.max_attempts, 1..=MAX_ATTEMPTS)?;
        check_range(field("timeout_ms"), self.timeout_ms, 100..=MAX_GROWN_TIMEOUT_MS)?;
        check_range(field("webhooks_per_tenant"), self.webhooks_per_tenant.unwrap_or(1), 1..=1_000_000)?;
        match self.min_retry_delay <= HumanDuration::secs(3600) {
            true => Ok(()),
            false => Err(FieldError::new(field("min_retry_delay"), "must be at most 1h")),
        }
    }

    /// Returns an error for a setting beyond the caps. Settings unchanged from `old` are not checked, so that a
    /// webhook beyond a lowered cap can still be changed in other respects.
    pub fn check(&self, spec: &WebhookSpec, old: Option<&WebhookSpec>) -> Result<(), FieldError> {
        if old.is_none_or(|old| old.max_in_flight != spec.max_in_flight) {
            at_most("max_in_flight", spec.max_in_flight, Some(self.max_in_flight), "max_in_flight")?;
        }
        if let Some(rate) = &spec.rate_limit
            && old.is_none_or(|old| old.rate_limit != spec.rate_limit)
        {
            let rpm = Some(rate.requests_per_minute);
            at_most("rate_limit.requests_per_minute", rpm, self.requests_per_minute, "requests_per_minute")?;
            at_most("rate_limit.burst", rate.burst, self.burst, "burst")?;
        }
        match old.is_none_or(|old| old.retry_config != spec.retry_config) {
            true => self.check_retry(&spec.retry_config),
            false => Ok(()),
        }
    }

    fn check_retry(&self, config: &RetryConfig) -> Result<(), FieldError> {
        let length = config.schedule.as_ref().map(|schedule| schedule.len() as u64);
        let attempts = u64::from(self.max_attempts);
        let written = config.max_attempts.map(u64::from);
        at_most("retry_config.max_attempts", written, Some(attempts), "max_attempts")?;
        at_most("retry_config.schedule", length, Some(attempts), "max_attempts")?;
        at_most("retry_config.timeout_ms", config.timeout_ms, Some(self.timeout_ms), "timeout_ms")?;
        let too_short = |delay: Duration| delay < self.min_retry_delay.as_duration();
        let refuse = |field: &'static str, what: &str| {
            let min = self.min_retry_delay.as_duration();
            Err(FieldError::new(
                field,
                format!("{what} at least {min:?}, the operator's {SECTION}.min_retry_delay"),
            ))
        };
        if config.base_delay_ms.is_some_and(|delay| too_short(Duration::from_millis(delay))) {
            return refuse("retry_config.base_delay_ms", "must be");
        }
        // The first entry is the delay before the first attempt, which is not a retry.
        if config
            .schedule
            .iter()
            .flat_map(|schedule| schedule.iter().skip(1))
            .any(|delay| too_short(delay.as_duration()))
        {
            return refuse("retry_config.schedule", "must have delays between attempts of");
        }
        Ok(())
    }

    /// Returns the effective maximum of concurrent requests for this setting.
    pub fn capped_in_flight(&self, max_in_flight: u32) -> u32 {
        max_in_flight.min(self.max_in_flight)
    }

    /// Returns the effective rate limit for this setting.
    pub fn capped_rate(&self, rate: Option<RateLimit>) -> Option<RateLimit> {
        let Some(rate) = rate else {
            let burst = self.burst;
            return self
                .requests_per_minute
                .map(|requests_per_minute| RateLimit { requests_per_minute, burst });
        };
        let max = self.requests_per_minute.unwrap_or(u32::MAX);
        let burst = self.burst.filter(|max| *max < rate.burst()).or(rate.burst);
        Some(RateLimit { requests_per_minute: rate.requests_per_minute.min(max), burst })
    }

    /// Returns the effective retry policy for this setting.
    pub fn capped_policy(&self, policy: &RetryPolicy) -> RetryPolicy {
        let mut capped = policy.clone();
        match &mut capped.backoff {
            Backoff::Schedule(schedule) => schedule.truncate(self.max_attempts as usize),
            Backoff::Exponential { max_attempts, .. } => {
                *max_attempts = (*max_attempts).min(self.max_attempts)
            }
        }
        capped.min_delay_ms = capped.min_delay_ms.max(self.min_retry_delay.as_duration().as_millis() as u64);
        capped.timeout_ms = capped.timeout_ms.min(self.timeout_ms);
        capped.max_timeout_ms = capped.max_timeout_ms.min(self.timeout_ms);
        capped
    }
}

fn at_most<T: PartialOrd + std::fmt::Display>(
    field: &'static str,
    value: Option<T>,
    cap: Option<T>,
    setting: &str,
) -> Result<(), FieldError> {
    match (value, cap) {
        (Some(value), Some(cap)) if value > cap => {
            let message = format!("is {value}; it must be at most {cap}, the operator's {SECTION}.{setting}");
            Err(FieldError::new(field, message))
        }
        _ => Ok(()),
    }
}

/// The effective limits of a webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectiveLimits {
    /// Maximum concurrent requests.
    pub max_in_flight: u32,
    /// Rate limit; `None` for no limit.
    pub rate_limit: Option<RateLimit>,
    /// Retry policy.
    pub retry: RetryPolicy,
}

impl EffectiveLimits {
    /// Returns the first field in which these limits allow more than both `old` and `default`.
    pub fn raised_above(&self, old: &Self, default: &Self) -> Option<&'static str> {
        let rate = |limits: &Self| limits.rate_limit.map_or(u32::MAX, |rate| rate.requests_per_minute);
        let burst = |limits: &Self| limits.rate_limit.map_or(u32::MAX, |rate| rate.burst());
        let raises = |value: &dyn Fn(&Self) -> u64| value(self) > value(old).max(value(default));
        let shortest = |limits: &Self| limits.retry.shortest_delay_ms();
        [
            ("max_in_flight", raises(&|limits| limits.max_in_flight.into())),
            ("rate_limit.requests_per_minute", raises(&|limits| rate(limits).into())),
            ("rate_limit.burst", raises(&|limits| burst(limits).into())),
            ("retry_config.max_attempts", raises(&|limits| limits.retry.max_attempts().into())),
            ("retry_config.timeout_ms", raises(&|limits| limits.retry.longest_timeout_ms())),
            ("retry_config", shortest(self) < shortest(old).min(shortest(default))),
        ]
        .into_iter()
        .find_map(|(field, is_raised)| is_raised.then_some(field))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn caps() -> Caps {
        Caps {
            max_in_flight: 10,
            requests_per_minute: Some(600),
            burst: Some(20),
            max_attempts: 3,
            min_retry_delay: HumanDuration::secs(5),
            timeout_ms: 10_000,
            webhooks_per_tenant: Some(5),
        }
    }

    fn spec(json: &str) -> WebhookSpec {
        #[derive(Deserialize)]
        struct Written {
            max_in_flight: Option<u32>,
            rate_limit: Option<RateLimit>,
            #[serde(default)]
            retry_config: RetryConfig,
        }
        let Written { max_in_flight, rate_limit, retry_config } = serde_json::from_str(json).unwrap();
        WebhookSpec { max_in_flight, rate_limit, retry_config, ..WebhookSpec::default() }
    }

    #[test]
    fn value_beyond_cap_is_rejected_with_cap_and_setting() {
        for (json, field, setting) in [
            (r#"{"max_in_flight": 11}"#, "max_in_flight", "10, the operator's limits.caps.max_in_flight"),
            (
                r#"{"rate_limit": {"requests_per_minute": 601}}"#,
                "rate_limit.requests_per_minute",
                "600, the operator's limits.caps.requests_per_minute",
            ),
            (
                r#"{"rate_limit": {"requests_per_minute": 1, "burst": 21}}"#,
                "rate_limit.burst",
                "20, the operator's limits.caps.burst",
            ),
            (
                r#"{"retry_config": {"max_attempts": 4}}"#,
                "retry_config.max_attempts",
                "3, the operator's limits.caps.max_attempts",
            ),
            (
                r#"{"retry_config": {"schedule": [0, 5, 5, 5]}}"#,
                "retry_config.schedule",
                "3, the operator's limits.caps.max_attempts",
            ),
            (
                r#"{"retry_config": {"timeout_ms": 10001}}"#,
                "retry_config.timeout_ms",
                "10000, the operator's limits.caps.timeout_ms",
            ),
            (
                r#"{"retry_config": {"base_delay_ms": 4999}}"#,
                "retry_config.base_delay_ms",
                "5s, the operator's limits.caps.min_retry_delay",
            ),
            (
                r#"{"retry_config": {"schedule": [0, 4]}}"#,
                "retry_config.schedule",
                "5s, the operator's limits.caps.min_retry_delay",
            ),
        ] {
            let refused = caps().check(&spec(json), None).unwrap_err();
            assert_eq!(refused.field, field, "{json}");
            assert!(refused.message.contains(setting), "{json}: {}", refused.message);
            // The webhook was stored before the cap was lowered.
            assert_eq!(caps().check(&spec(json), Some(&spec(json))), Ok(()), "{json}");
            assert_eq!(Caps::default().check(&spec(json), None), Ok(()), "{json}");
        }
        let within = r#"{"max_in_flight": 10, "rate_limit": {"requests_per_minute": 600, "burst": 20},
                         "retry_config": {"schedule": [0, 5, "5s"], "timeout_ms": 10000}}"#;
        assert_eq!(caps().check(&spec(within), None), Ok(()));
        assert_eq!(caps().check(&spec("{}"), None), Ok(()));
    }

    #[test]
    fn default_caps_change_nothing() {
        let caps = Caps::default();
        caps.validate().unwrap();
        assert_eq!(caps.capped_in_flight(1000), 1000);
        assert_eq!(caps.capped_rate(None), None);
        let rate = Some(RateLimit { requests_per_minute: 6_000_000, burst: Some(1_000_000) });
        assert_eq!(caps.capped_rate(rate), rate);
        let config = RetryConfig {
            timeout_ms: Some(120_000),
            timeout_growth_factor: Some(3.0),
            max_attempts: Some(50),
            base_delay_ms: Some(1),
            ..RetryConfig::default()
        };
        for policy in [RetryPolicy::default(), config.resolve(&RetryPolicy::default()).unwrap()] {
            assert_eq!(caps.capped_policy(&policy), policy);
        }
    }

    #[test]
    fn webhook_without_rate_limit_gets_the_cap() {
        let capped = caps().capped_rate(None).unwrap();
        assert_eq!((capped.requests_per_minute, capped.burst()), (600, 20));
        let capped = caps().capped_rate(Some(RateLimit::per_minute(60_000))).unwrap();
        assert_eq!((capped.requests_per_minute, capped.burst()), (600, 20));
        let slow = Some(RateLimit { requests_per_minute: 60, burst: Some(3) });
        assert_eq!(caps().capped_rate(slow), slow);
    }

    #[test]
    fn raised_above_names_the_raised_field() {
        let limits = |max_in_flight, rpm: Option<u32>, retry: &str| EffectiveLimits {
            max_in_flight,
            rate_limit: rpm.map(RateLimit::per_minute),
            retry: serde_json::from_str::<RetryConfig>(retry)
                .unwrap()
                .resolve(&RetryPolicy::default())
                .unwrap(),
        };
        let default = limits(10, Some(60), "{}");
        let raised = |new: &EffectiveLimits, old: &EffectiveLimits| new.raised_above(old, &default);
        assert_eq!(raised(&default, &default), None);
        let old = limits(20, None, r#"{"timeout_ms": 60000, "max_attempts": 20, "base_delay_ms": 1000}"#);
        assert_eq!(raised(&old, &old), None, "a value that an operator allowed stays allowed");
        assert_eq!(raised(&default, &old), None, "the default is always allowed");
        assert_eq!(raised(&old, &default), Some("max_in_flight"));
        assert_eq!(raised(&limits(10, None, "{}"), &default), Some("rate_limit.requests_per_minute"));
        assert_eq!(raised(&limits(10, Some(61), "{}"), &default), Some("rate_limit.requests_per_minute"));
        let attempts = r#"{"schedule": [0,9,9,9,9,9,9,9,9,9,9]}"#;
        assert_eq!(raised(&limits(1, Some(1), attempts), &default), Some("retry_config.max_attempts"));
        let timeout = r#"{"timeout_ms": 30000, "timeout_growth_factor": 2}"#;
        assert_eq!(raised(&limits(1, Some(1), timeout), &default), Some("retry_config.timeout_ms"));
        let quick = r#"{"schedule": [0, "1s"]}"#;
        assert_eq!(raised(&limits(1, Some(1), quick), &default), Some("retry_config"));
        assert_eq!(raised(&limits(1, Some(1), r#"{"schedule": [0, 60]}"#), &default), None);
    }

    proptest! {
        #[test]
        fn capped_policy_is_within_every_cap(
            schedule in prop::collection::vec(0..10_000u64, 1..50), exponential: bool, base in 1..100_000u64,
            timeout_ms in 100..=120_000u64, growth in 1.0..=3.0f64, attempt in 1..60u32, random in 0.0..1.0f64,
        ) {
            let exponent = RetryConfig { base_delay_ms: Some(base), max_attempts: Some(40), ..RetryConfig::default() };
            let listed = RetryConfig {
                schedule: Some(schedule.into_iter().map(HumanDuration::millis).collect()), ..RetryConfig::default()
            };
            let config = if exponential { exponent } else { listed };
            let config =
                RetryConfig { timeout_ms: Some(timeout_ms), timeout_growth_factor: Some(growth), ..config };
            let policy = caps().capped_policy(&config.resolve(&RetryPolicy::default()).unwrap());
            prop_assert!(policy.max_attempts() <= 3);
            prop_assert!(policy.timeout(attempt) <= Duration::from_secs(10));
            let category = crate::delivery::response::FailureCategory::ServerError;
            prop_assert!(policy.delay(attempt, category, None, random) >= Duration::from_secs(5));
            prop_assert_eq!(caps().capped_policy(&policy), policy);
        }
    }
}

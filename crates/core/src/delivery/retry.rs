//! The retry policy of a webhook, and the delays and timeouts that follow from it.
//!
//! The random value is passed in as `random`. Whether to retry at all is decided in [`crate::delivery::decide`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    delivery::response::FailureCategory,
    field_error::{FieldError, check_range},
    time::HumanDuration,
};

const DAY_MS: u64 = 24 * 3600 * 1000;
const WEEK_MS: u64 = 7 * DAY_MS;
/// Maximum number of attempts of a policy.
pub const MAX_ATTEMPTS: u32 = 50;
/// Maximum growth of a timeout, as a multiple of its first value.
const MAX_TIMEOUT_GROWTH: f64 = 3.0;
/// Maximum timeout of a first attempt, in milliseconds.
const MAX_TIMEOUT_MS: u64 = 120_000;
/// Maximum that a timeout can grow to, in milliseconds.
pub const MAX_GROWN_TIMEOUT_MS: u64 = 3 * MAX_TIMEOUT_MS;

/// Which failures are retried. A 410 disables the webhook in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RetryOn {
    /// All but the status codes in `permanent_status_codes`.
    #[default]
    Default,
    /// All: everything but 2xx is retried. A 410 still disables the webhook, which cancels its deliveries.
    All,
}

/// Growth of the delays between attempts.
#[derive(Clone, Debug, PartialEq)]
pub enum Backoff {
    /// The delay before each attempt, including the first; as many attempts as there are entries.
    Schedule(Vec<HumanDuration>),
    /// The delay before each retry is a multiple of the previous one.
    Exponential {
        /// Delay before the first retry.
        base_delay_ms: u64,
        /// Factor of each further delay.
        backoff_multiplier: f64,
        /// Total number of attempts.
        max_attempts: u32,
    },
}

/// The resolved retry policy of one webhook: every value is set and validated.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Growth of the delays, and number of attempts.
    pub backoff: Backoff,
    /// Maximum of exponential delays and of `Retry-After`.
    pub max_delay_ms: u64,
    /// Fraction of a delay by which it is randomly lengthened or shortened.
    pub jitter: f64,
    /// Timeout of the first attempt.
    pub timeout_ms: u64,
    /// Factor of the timeout from one attempt to the next.
    pub timeout_growth_factor: f64,
    /// Maximum that a timeout may grow to, in milliseconds: the operator's cap.
    pub max_timeout_ms: u64,
    /// Minimum delay between two attempts, in milliseconds: the operator's minimum.
    pub min_delay_ms: u64,
    /// Which failures are retried.
    pub retry_on: RetryOn,
    /// Status codes that end a delivery immediately, in ascending order.
    pub permanent_status_codes: Vec<u16>,
    /// How long after its creation a delivery expires.
    pub give_up_after: HumanDuration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        const HOUR: u64 = 3600;
        let seconds = [0, 5, 300, 1800, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR];
        Self {
            backoff: Backoff::Schedule(seconds.map(HumanDuration::secs).to_vec()),
            max_delay_ms: DAY_MS,
            jitter: 0.1,
            timeout_ms: 30_000,
            timeout_growth_factor: 1.0,
            max_timeout_ms: MAX_GROWN_TIMEOUT_MS,
            min_delay_ms: 0,
            retry_on: RetryOn::Default,
            permanent_status_codes: vec![400, 401, 403, 404, 410, 413, 414, 415, 451],
            give_up_after: HumanDuration::secs(5 * 24 * HOUR),
        }
    }
}

/// Returns the minimum delay after a failure of this category, regardless of the policy.
pub fn minimum_delay(category: FailureCategory) -> Duration {
    match category {
        FailureCategory::RateLimit => Duration::from_secs(60),
        FailureCategory::Dns => Duration::from_secs(5),
        FailureCategory::Timeout => Duration::from_secs(2),
        _ => Duration::ZERO,
    }
}

impl RetryPolicy {
    /// Returns the total number of attempts.
    pub fn max_attempts(&self) -> u32 {
        match &self.backoff {
            Backoff::Schedule(schedule) => u32::try_from(schedule.len()).unwrap_or(u32::MAX),
            Backoff::Exponential { max_attempts, .. } => *max_attempts,
        }
    }

    /// Returns the delay before the first attempt.
    pub fn first_delay(&self) -> Duration {
        match &self.backoff {
            Backoff::Schedule(schedule) => schedule.first().map_or(Duration::ZERO, |span| span.as_duration()),
            Backoff::Exponential { .. } => Duration::ZERO,
        }
    }

    /// Returns the timeout of the attempt with this number (the first is 1).
    pub fn timeout(&self, attempt: u32) -> Duration {
        let growth = growth_factor(self.timeout_growth_factor, attempt).min(MAX_TIMEOUT_GROWTH);
        duration((self.timeout_ms as f64 * growth).min(self.max_timeout_ms as f64))
    }

    /// Returns the longest timeout of all attempts, in milliseconds.
    pub fn longest_timeout_ms(&self) -> u64 {
        self.timeout(self.max_attempts()).as_millis() as u64
    }

    /// Returns the shortest delay between two attempts, in milliseconds, without jitter.
    pub fn shortest_delay_ms(&self) -> u64 {
        let shortest = (1..self.max_attempts().max(2)).map(|attempt| self.backoff_after(attempt));
        (shortest.fold(f64::INFINITY, f64::min) as u64).max(self.min_delay_ms)
    }

    /// Returns the delay between the failed attempt with this number (the first is 1) and the next one.
    ///
    /// `retry_after` is the delay that the endpoint requested, if it may request one; `random` is uniform in [0, 1).
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use redrive_core::{FailureCategory, delivery::retry::RetryPolicy};
    ///
    /// let policy = RetryPolicy::default();
    /// let delay = |category, retry_after| policy.delay(1, category, retry_after, 0.5);
    /// // The schedule says 5 s after the first attempt, but after a 429 the delay is at least a minute.
    /// assert_eq!(delay(FailureCategory::ServerError, None), Duration::from_secs(5));
    /// assert!(delay(FailureCategory::RateLimit, None) >= Duration::from_secs(60));
    /// // `Retry-After` lengthens a delay and never shortens it.
    /// let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    /// assert!(delay(FailureCategory::ServerError, Some(hour)) >= hour);
    /// assert_eq!(delay(FailureCategory::ServerError, Some(second)), Duration::from_secs(5));
    /// ```
    pub fn delay(
        &self,
        attempt: u32,
        category: FailureCategory,
        retry_after: Option<Duration>,
        random: f64,
    ) -> Duration {
        let requested_delay = retry_after.unwrap_or_default().min(Duration::from_millis(self.max_delay_ms));
        let min = Duration::from_millis(self.min_delay_ms);
        let floor = millis(minimum_delay(category).max(requested_delay).max(min));
        let wait = self.backoff_after(attempt).max(floor);
        // Jitter never reduces the delay below the minimum, so at the minimum it only lengthens it.
        let shortest = (wait * (1.0 - self.jitter)).max(floor);
        let longest = wait * (1.0 + self.jitter);
        duration(shortest + random * (longest - shortest))
    }

    /// Returns the delay of the policy alone after this attempt, in milliseconds.
    fn backoff_after(&self, attempt: u32) -> f64 {
        match &self.backoff {
            // Entry 0 precedes attempt 1, so entry n follows attempt n.
            Backoff::Schedule(schedule) => {
                let entry = schedule.get(attempt as usize).or(schedule.last());
                entry.map_or(0.0, |span| millis(span.as_duration()))
            }
            Backoff::Exponential { base_delay_ms, backoff_multiplier, .. } => {
                let wait = *base_delay_ms as f64 * growth_factor(*backoff_multiplier, attempt);
                wait.min(self.max_delay_ms as f64)
            }
        }
    }
}

/// Returns `factor` to the power of the number of attempts before this one. May be infinite; every use is capped.
fn growth_factor(factor: f64, attempt: u32) -> f64 {
    factor.powi(i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX))
}

fn millis(duration: Duration) -> f64 {
    duration.as_millis() as f64
}

fn duration(millis: f64) -> Duration {
    Duration::from_millis(millis.round() as u64)
}

/// Retry settings as configured; omitted fields use the server's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetryConfig {
    /// The delay before each attempt, including the first, each in seconds or as a string with a unit
    /// (`250ms`, `30s`, `5m`, `2h`, `5d`). Its length is the number of attempts. Cannot be combined with
    /// `base_delay_ms`, `backoff_multiplier` or `max_attempts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 50))]
    pub schedule: Option<Vec<HumanDuration>>,
    /// Exponential backoff: delay before the first retry, in milliseconds; at most `max_delay_ms` if both are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86400000))]
    pub base_delay_ms: Option<u64>,
    /// Exponential backoff: factor of each further delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1.0, maximum = 10.0))]
    pub backoff_multiplier: Option<f64>,
    /// Exponential backoff: total number of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 50))]
    pub max_attempts: Option<u32>,
    /// Maximum of exponential delays and of `Retry-After`, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 604800000))]
    pub max_delay_ms: Option<u64>,
    /// Fraction of a delay by which it is randomly lengthened or shortened, such as 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.0, maximum = 0.5))]
    pub jitter: Option<f64>,
    /// Timeout of the first attempt, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 100, maximum = 120000))]
    pub timeout_ms: Option<u64>,
    /// Factor of the timeout from one attempt to the next; it grows to at most three times its first value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1.0, maximum = 3.0))]
    pub timeout_growth_factor: Option<f64>,
    /// `all` retries everything but 2xx; `default` does not retry `permanent_status_codes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_on: Option<RetryOn>,
    /// Status codes that end a delivery immediately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permanent_status_codes: Option<Vec<u16>>,
    /// How long after its creation a delivery expires, in seconds or as a string with a unit (`5d`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub give_up_after: Option<HumanDuration>,
}

impl RetryConfig {
    /// Rejects a combination of fields that contradict one another. Called for settings that are written; stored
    /// settings are only resolved, which caps each delay.
    pub fn check_combination(&self) -> Result<(), FieldError> {
        match (self.base_delay_ms, self.max_delay_ms) {
            (Some(base), Some(max)) if base > max => {
                let message = format!(
                    "is {base}, but max_delay_ms is {max}; the first delay must not exceed the longest one"
                );
                Err(FieldError::new("retry_config.base_delay_ms", message))
            }
            _ => Ok(()),
        }
    }

    /// Returns the resolved policy, with `defaults` for omitted fields, or an error if a value is out of range.
    pub fn resolve(&self, defaults: &RetryPolicy) -> Result<RetryPolicy, FieldError> {
        let max_delay_ms = self.max_delay_ms.unwrap_or(defaults.max_delay_ms);
        let timeout_ms = self.timeout_ms.unwrap_or(defaults.timeout_ms);
        let growth = self.timeout_growth_factor.unwrap_or(defaults.timeout_growth_factor);
        Ok(RetryPolicy {
            backoff: self.resolve_backoff(&defaults.backoff)?,
            max_delay_ms: check_range("retry_config.max_delay_ms", max_delay_ms, 1..=WEEK_MS)?,
            jitter: check_range("retry_config.jitter", self.jitter.unwrap_or(defaults.jitter), 0.0..=0.5)?,
            timeout_ms: check_range("retry_config.timeout_ms", timeout_ms, 100..=MAX_TIMEOUT_MS)?,
            timeout_growth_factor: check_range("retry_config.timeout_growth_factor", growth, 1.0..=3.0)?,
            max_timeout_ms: defaults.max_timeout_ms,
            min_delay_ms: defaults.min_delay_ms,
            retry_on: self.retry_on.unwrap_or(defaults.retry_on),
            permanent_status_codes: match &self.permanent_status_codes {
                Some(codes) => check_codes(codes)?,
                None => defaults.permanent_status_codes.clone(),
            },
            give_up_after: check_give_up_after(self.give_up_after.unwrap_or(defaults.give_up_after))?,
        })
    }

    fn resolve_backoff(&self, defaults: &Backoff) -> Result<Backoff, FieldError> {
        let exponential =
            self.base_delay_ms.is_some() || self.backoff_multiplier.is_some() || self.max_attempts.is_some();
        match &self.schedule {
            Some(_) if exponential => Err(FieldError::new(
                "retry_config.schedule",
                "cannot be combined with base_delay_ms, backoff_multiplier or max_attempts; \
                 remove the schedule, or remove those (the length of a schedule is its number of attempts)",
            )),
            Some(schedule) => check_schedule(schedule),
            None if exponential => self.resolve_exponential(defaults),
            None => Ok(defaults.clone()),
        }
    }

    fn resolve_exponential(&self, defaults: &Backoff) -> Result<Backoff, FieldError> {
        let (base, multiplier, attempts) = match defaults {
            Backoff::Exponential { base_delay_ms, backoff_multiplier, max_attempts } => {
                (*base_delay_ms, *backoff_multiplier, *max_attempts)
            }
            Backoff::Schedule(_) => (30_000, 2.0, 10),
        };
        let base = self.base_delay_ms.unwrap_or(base);
        let multiplier = self.backoff_multiplier.unwrap_or(multiplier);
        let attempts = self.max_attempts.unwrap_or(attempts);
        Ok(Backoff::Exponential {
            base_delay_ms: check_range("retry_config.base_delay_ms", base, 1..=DAY_MS)?,
            backoff_multiplier: check_range("retry_config.backoff_multiplier", multiplier, 1.0..=10.0)?,
            max_attempts: check_range("retry_config.max_attempts", attempts, 1..=MAX_ATTEMPTS)?,
        })
    }
}

fn check_schedule(schedule: &[HumanDuration]) -> Result<Backoff, FieldError> {
    const FIELD: &str = "retry_config.schedule";
    if schedule.is_empty() || schedule.len() > MAX_ATTEMPTS as usize {
        let message = format!("has {} entries; it must have 1 to {MAX_ATTEMPTS}", schedule.len());
        return Err(FieldError::new(FIELD, message));
    }
    if let Some(index) = schedule.iter().position(|span| *span > HumanDuration::millis(WEEK_MS)) {
        let message = format!("entry {} is longer than 7 days, the maximum delay", index + 1);
        return Err(FieldError::new(FIELD, message));
    }
    Ok(Backoff::Schedule(schedule.to_vec()))
}

fn check_codes(codes: &[u16]) -> Result<Vec<u16>, FieldError> {
    if let Some(code) = codes.iter().find(|code| !(300..=599).contains(*code)) {
        let message = format!("{code} cannot be permanent; only codes from 300 to 599 can");
        return Err(FieldError::new("retry_config.permanent_status_codes", message));
    }
    let mut codes = codes.to_vec();
    codes.sort_unstable();
    codes.dedup();
    Ok(codes)
}

fn check_give_up_after(span: HumanDuration) -> Result<HumanDuration, FieldError> {
    if (HumanDuration::secs(1)..=HumanDuration::millis(30 * DAY_MS)).contains(&span) {
        return Ok(span);
    }
    Err(FieldError::new("retry_config.give_up_after", "must be from 1 second to 30 days"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::delivery::response::FailureCategory::*;

    fn resolve(json: &str) -> Result<RetryPolicy, FieldError> {
        serde_json::from_str::<RetryConfig>(json).unwrap().resolve(&RetryPolicy::default())
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn empty_config_is_the_default() {
        let policy = RetryConfig::default().resolve(&RetryPolicy::default()).unwrap();
        assert_eq!(policy, RetryPolicy::default());
        assert_eq!(policy.max_attempts(), 10);
        assert_eq!(policy.first_delay(), Duration::ZERO);
        let waits: Vec<_> = (1..10).map(|n| policy.delay(n, ServerError, None, 0.5).as_secs()).collect();
        assert_eq!(waits, [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]);
        assert_eq!(serde_json::to_string(&RetryConfig::default()).unwrap(), "{}");
    }

    #[test]
    fn any_exponential_value_selects_exponential_backoff() {
        let policy = resolve(r#"{"max_attempts": 20}"#).unwrap();
        assert_eq!((policy.max_attempts(), policy.first_delay()), (20, Duration::ZERO));
        let waits = [1, 2, 3, 12, 13, 19].map(|n| policy.delay(n, ServerError, None, 0.5).as_secs());
        assert_eq!(waits, [30, 60, 120, 61_440, 86_400, 86_400]);
        let slower = RetryConfig { backoff_multiplier: Some(3.0), ..RetryConfig::default() };
        let expected =
            Backoff::Exponential { base_delay_ms: 30_000, backoff_multiplier: 3.0, max_attempts: 20 };
        assert_eq!(slower.resolve(&policy).unwrap().backoff, expected, "other values come from the defaults");
        assert_eq!(resolve(r#"{"schedule": [1, "2m"]}"#).unwrap().max_attempts(), 2);
    }

    #[test]
    fn exponential_fields_alone_replace_the_default_schedule() {
        let json = r#"{"max_attempts": 5, "base_delay_ms": 1000, "max_delay_ms": 300000}"#;
        let policy = resolve(json).unwrap();
        assert_eq!((policy.max_attempts(), policy.first_delay()), (5, Duration::ZERO));
        let waits: Vec<_> = (1..5).map(|n| policy.delay(n, ServerError, None, 0.5).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8]);
        assert_eq!(policy.delay(10, ServerError, None, 0.5), secs(300), "the longest delay is 5 minutes");
        // A null schedule is an omitted one.
        let null = json.replacen('{', r#"{"schedule": null, "#, 1);
        assert_eq!(resolve(&null).unwrap(), policy);
        // `max_delay_ms` alone also bounds `Retry-After`, so it does not replace the schedule.
        assert_eq!(resolve(r#"{"max_delay_ms": 300000}"#).unwrap().max_attempts(), 10);
    }

    #[test]
    fn first_delay_above_longest_delay_is_contradictory() {
        let check = |json: &str| serde_json::from_str::<RetryConfig>(json).unwrap().check_combination();
        let refused = check(r#"{"base_delay_ms": 5000, "max_delay_ms": 4999}"#).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "retry_config.base_delay_ms: is 5000, but max_delay_ms is 4999; the first delay must not exceed the \
             longest one"
        );
        for json in [
            r#"{"base_delay_ms": 5000, "max_delay_ms": 5000}"#,
            r#"{"base_delay_ms": 5000}"#,
            r#"{"max_delay_ms": 1}"#,
        ] {
            assert_eq!(check(json), Ok(()), "{json}");
        }
    }

    #[test]
    fn jitter_never_reduces_delay_below_minimum() {
        let policy = resolve(r#"{"schedule": [3, 10, 100, 63], "jitter": 0.2}"#).unwrap();
        assert_eq!(policy.first_delay(), secs(3));
        assert_eq!(policy.delay(1, Network, None, 0.0), secs(8));
        assert_eq!(policy.delay(1, Network, None, 1.0), secs(12));
        assert_eq!(policy.delay(1, RateLimit, None, 0.0), secs(60));
        assert_eq!(policy.delay(1, RateLimit, None, 1.0), secs(72));
        assert_eq!(policy.delay(2, RateLimit, None, 0.0), secs(80), "the delay is above the minimum");
        assert_eq!(policy.delay(3, RateLimit, None, 0.0), secs(60), "63 s less 20 % is below the minimum");
    }

    #[test]
    fn minimum_delay_overrides_cap_and_retry_after_does_not() {
        let policy = resolve(r#"{"base_delay_ms": 1, "max_delay_ms": 1000, "jitter": 0}"#).unwrap();
        let waits = [RateLimit, Dns, Timeout, Tls].map(|category| policy.delay(9, category, None, 0.9));
        assert_eq!(waits, [secs(60), secs(5), secs(2), Duration::from_millis(256)]);
        assert_eq!(policy.delay(1, ServerError, Some(secs(3600)), 0.0), secs(1));
        assert_eq!(policy.delay(1, RateLimit, Some(Duration::MAX), 0.0), secs(60));
        let default = RetryPolicy::default();
        assert_eq!(default.delay(1, RateLimit, Some(secs(120)), 0.0), secs(120));
        assert_eq!(default.delay(1, RateLimit, Some(Duration::MAX), 0.0), secs(86_400));
        assert_eq!(
            default.delay(1, ServerError, Some(secs(1)), 0.5),
            secs(5),
            "Retry-After never shortens a delay"
        );
    }

    #[test]
    fn timeout_grows_to_at_most_three_times() {
        let policy = resolve(r#"{"timeout_ms": 1000, "timeout_growth_factor": 1.5}"#).unwrap();
        let timeouts = [1, 2, 3, 4, u32::MAX].map(|n| policy.timeout(n).as_millis());
        assert_eq!(timeouts, [1000, 1500, 2250, 3000, 3000]);
        assert_eq!(RetryPolicy::default().timeout(9), secs(30));
    }

    #[test]
    fn invalid_values_are_rejected_by_field() {
        let long = format!(r#"{{"schedule": [{}0]}}"#, "1,".repeat(50));
        for (json, field) in [
            (r#"{"schedule": []}"#, "schedule"),
            (long.as_str(), "schedule"),
            (r#"{"schedule": [0, "8d"]}"#, "schedule"),
            (r#"{"schedule": [0], "max_attempts": 1}"#, "schedule"),
            (r#"{"base_delay_ms": 0}"#, "base_delay_ms"),
            (r#"{"base_delay_ms": 86400001}"#, "base_delay_ms"),
            (r#"{"backoff_multiplier": 0.9}"#, "backoff_multiplier"),
            (r#"{"backoff_multiplier": 10.1}"#, "backoff_multiplier"),
            (r#"{"max_attempts": 0}"#, "max_attempts"),
            (r#"{"max_attempts": 51}"#, "max_attempts"),
            (r#"{"max_delay_ms": 0}"#, "max_delay_ms"),
            (r#"{"max_delay_ms": 604800001}"#, "max_delay_ms"),
            (r#"{"jitter": -0.1}"#, "jitter"),
            (r#"{"jitter": 0.51}"#, "jitter"),
            (r#"{"timeout_ms": 99}"#, "timeout_ms"),
            (r#"{"timeout_ms": 120001}"#, "timeout_ms"),
            (r#"{"timeout_growth_factor": 3.1}"#, "timeout_growth_factor"),
            (r#"{"permanent_status_codes": [404, 204]}"#, "permanent_status_codes"),
            (r#"{"permanent_status_codes": [600]}"#, "permanent_status_codes"),
            (r#"{"give_up_after": 0.5}"#, "give_up_after"),
            (r#"{"give_up_after": "31d"}"#, "give_up_after"),
        ] {
            assert_eq!(resolve(json).unwrap_err().field, format!("retry_config.{field}"), "{json}");
        }
        let nan = RetryConfig { jitter: Some(f64::NAN), ..RetryConfig::default() };
        assert!(nan.resolve(&RetryPolicy::default()).is_err());
        assert!(serde_json::from_str::<RetryConfig>(r#"{"attempts": 3}"#).is_err());
        let message = resolve(r#"{"jitter": 2}"#).unwrap_err().to_string();
        assert_eq!(message, "retry_config.jitter: is 2; it must be from 0 to 0.5");
    }

    #[test]
    fn status_codes_are_sorted_and_bounds_are_inclusive() {
        let policy =
            resolve(r#"{"permanent_status_codes": [404, 300, 599, 404], "retry_on": "all"}"#).unwrap();
        assert_eq!(policy.permanent_status_codes, [300, 404, 599]);
        assert_eq!(policy.retry_on, RetryOn::All);
        let widest = r#"{"base_delay_ms": 86400000, "backoff_multiplier": 10, "max_attempts": 50,
            "max_delay_ms": 604800000, "jitter": 0.5, "timeout_ms": 120000, "timeout_growth_factor": 3,
            "give_up_after": "30d"}"#;
        assert!(resolve(widest).is_ok());
    }

    prop_compose! {
        fn any_backoff()(
            schedule in proptest::option::of(proptest::collection::vec(0..=WEEK_MS, 1..=50)),
            base in 1..=DAY_MS, multiplier in 1.0..=10.0f64, attempts in 1..=50u32,
        ) -> RetryConfig {
            let exponential = schedule.is_none();
            RetryConfig {
                schedule: schedule.map(|delays| delays.into_iter().map(HumanDuration::millis).collect()),
                base_delay_ms: exponential.then_some(base),
                backoff_multiplier: exponential.then_some(multiplier),
                max_attempts: exponential.then_some(attempts),
                ..RetryConfig::default()
            }
        }
    }

    prop_compose! {
        fn any_policy()(
            backoff in any_backoff(), max_delay in 1..=WEEK_MS, jitter in 0.0..=0.5f64,
            timeout in 100..=120_000u64, growth in 1.0..=3.0f64,
        ) -> RetryPolicy {
            let config = RetryConfig {
                max_delay_ms: Some(max_delay),
                jitter: Some(jitter),
                timeout_ms: Some(timeout),
                timeout_growth_factor: Some(growth),
                ..backoff
            };
            config.resolve(&RetryPolicy::default()).unwrap()
        }
    }

    proptest! {
        #[test]
        fn every_delay_is_within_the_policy(
            policy in any_policy(), attempt in prop_oneof![1..60u32, any::<u32>()],
            category in proptest::sample::select(&FailureCategory::ALL),
            requests in proptest::option::of(any::<u32>()), random in 0.0..1.0f64,
        ) {
            let request = requests.map(|millis| Duration::from_millis(millis.into()));
            let wait = policy.delay(attempt, category, request, random);
            let honoured = request.unwrap_or_default().min(Duration::from_millis(policy.max_delay_ms));
            let plain = RetryPolicy { jitter: 0.0, ..policy.clone() }.delay(attempt, category, request, random);
            prop_assert!(wait >= minimum_delay(category).max(honoured));
            prop_assert!(millis(wait) >= millis(plain) * (1.0 - policy.jitter) - 1.0);
            prop_assert!(millis(wait) <= millis(plain) * (1.0 + policy.jitter) + 1.0);
            prop_assert!(wait <= policy.delay(attempt, category, request, 1.0));
        }

        #[test]
        fn exponential_delays_never_shrink_without_jitter(
            policy in any_policy().prop_filter("exponential", |policy| {
                matches!(policy.backoff, Backoff::Exponential { .. })
            }),
            attempt in 1..60u32,
        ) {
            let policy = RetryPolicy { jitter: 0.0, ..policy };
            let wait = |attempt| policy.delay(attempt, ServerError, None, 0.0);
            prop_assert!(wait(attempt) <= wait(attempt + 1));
            prop_assert!(wait(attempt) <= Duration::from_millis(policy.max_delay_ms));
        }

        #[test]
        fn timeout_stays_between_one_and_three_times_the_first(policy in any_policy(), attempt in any::<u32>()) {
            let first = Duration::from_millis(policy.timeout_ms);
            prop_assert!(policy.timeout(attempt) >= first && policy.timeout(attempt) <= first * 3);
        }

        #[test]
        fn config_round_trips_through_json(config in any_backoff()) {
            let json = serde_json::to_string(&config).unwrap();
            let read: RetryConfig = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(read.schedule, config.schedule);
            prop_assert_eq!(read.max_attempts, config.max_attempts);
        }
    }
}

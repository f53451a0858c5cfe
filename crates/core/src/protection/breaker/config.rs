//! Circuit breaker settings: the configured form and the resolved policy.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MAX_SLEEP_WINDOW;
use crate::field_error::{FieldError, check_range};

/// The resolved policy of one circuit: every value is set and validated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerPolicy {
    /// Whether the circuit ever opens by itself.
    pub enabled: bool,
    /// Length of the rolling window of calls.
    pub window: Duration,
    /// Minimum number of calls in the window for the circuit to open.
    pub minimum_throughput: u32,
    /// The circuit opens when at least this percentage of the calls in the window failed.
    pub error_threshold_percentage: f64,
    /// How long the circuit stays open the first time; doubled at each failed recovery.
    pub sleep_window: Duration,
    /// Number of probes that a half-open circuit lets through.
    pub half_open_max_calls: u32,
    /// Share of probes that must succeed for the circuit to close.
    pub half_open_success_threshold: f64,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            window: Duration::from_secs(60),
            minimum_throughput: 20,
            error_threshold_percentage: 60.0,
            sleep_window: Duration::from_secs(30),
            half_open_max_calls: 5,
            half_open_success_threshold: 0.6,
        }
    }
}

/// Tolerance for rounding errors of products such as 0.07 × 100, which is slightly more than 7.
const ROUNDING: f64 = 1e-9;

impl BreakerPolicy {
    /// Returns whether `failed` of `total` calls in the window open the circuit.
    pub(super) fn opens_at(&self, total: u32, failed: u32) -> bool {
        let tolerated = f64::from(total) * self.error_threshold_percentage;
        total >= self.minimum_throughput && f64::from(failed) * 100.0 + ROUNDING >= tolerated
    }

    /// Returns whether `successes` of `probes` probes reach the success threshold.
    pub(super) fn is_recovered(&self, probes: u32, successes: u32) -> bool {
        f64::from(successes) + ROUNDING >= f64::from(probes) * self.half_open_success_threshold
    }

    /// Returns how many of the maximum number of probes must succeed for the circuit to close.
    pub fn successes_needed(&self) -> u32 {
        let wanted = f64::from(self.half_open_max_calls) * self.half_open_success_threshold;
        ((wanted - ROUNDING).ceil() as u32).clamp(1, self.half_open_max_calls.max(1))
    }

    /// Returns how long the circuit stays open after `failures` failed recoveries in a row.
    pub(super) fn sleep_after(&self, failures: u32) -> Duration {
        self.sleep_window.saturating_mul(2u32.saturating_pow(failures)).min(MAX_SLEEP_WINDOW)
    }
}

/// Circuit breaker settings as configured; omitted fields use the server's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BreakerConfig {
    /// Whether the circuit opens by itself when the endpoint fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false))]
    pub enabled: Option<bool>,
    /// Length of the rolling window of calls, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false, minimum = 1000, maximum = 3600000))]
    pub window_size_ms: Option<u64>,
    /// Minimum number of calls in the window for the circuit to open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false, minimum = 1, maximum = 10000))]
    pub minimum_throughput: Option<u32>,
    /// The circuit opens when at least this percentage of the calls in the window failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false, minimum = 1.0, maximum = 100.0))]
    pub error_threshold_percentage: Option<f64>,
    /// How long the circuit stays open, in milliseconds; doubled at each failed recovery, up to 24 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false, minimum = 1000, maximum = 86400000))]
    pub sleep_window_ms: Option<u64>,
    /// Number of probes that a half-open circuit lets through.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false, minimum = 1, maximum = 100))]
    pub half_open_max_calls: Option<u32>,
    /// Share of probes that must succeed for the circuit to close, such as 0.6.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(nullable = false, exclusive_minimum = 0.0, maximum = 1.0))]
    pub half_open_success_threshold: Option<f64>,
}

impl BreakerConfig {
    /// Returns the resolved policy, with `defaults` for omitted fields, or an error if a value is out of range.
    pub fn resolve(&self, defaults: &BreakerPolicy) -> Result<BreakerPolicy, FieldError> {
        let window = self.window_size_ms.unwrap_or(millis(defaults.window));
        let throughput = self.minimum_throughput.unwrap_or(defaults.minimum_throughput);
        let errors = self.error_threshold_percentage.unwrap_or(defaults.error_threshold_percentage);
        let sleep = self.sleep_window_ms.unwrap_or(millis(defaults.sleep_window));
        let calls = self.half_open_max_calls.unwrap_or(defaults.half_open_max_calls);
        let successes = self.half_open_success_threshold.unwrap_or(defaults.half_open_success_threshold);
        let window = check_range("circuit_breaker_config.window_size_ms", window, 1_000..=3_600_000)?;
        let sleep =
            check_range("circuit_breaker_config.sleep_window_ms", sleep, 1_000..=millis(MAX_SLEEP_WINDOW))?;
        Ok(BreakerPolicy {
            enabled: self.enabled.unwrap_or(defaults.enabled),
            window: Duration::from_millis(window),
            minimum_throughput: check_range(
                "circuit_breaker_config.minimum_throughput",
                throughput,
                1..=10_000,
            )?,
            error_threshold_percentage: check_range(
                "circuit_breaker_config.error_threshold_percentage",
                errors,
                1.0..=100.0,
            )?,
            sleep_window: Duration::from_millis(sleep),
            half_open_max_calls: check_range("circuit_breaker_config.half_open_max_calls", calls, 1..=100)?,
            half_open_success_threshold: checked_share(successes)?,
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn checked_share(share: f64) -> Result<f64, FieldError> {
    if share > 0.0 && share <= 1.0 {
        return Ok(share);
    }
    let message = format!("is {share}; it must be above 0 and at most 1");
    Err(FieldError::new("circuit_breaker_config.half_open_success_threshold", message))
}

//! Status of a webhook: one word for whether its deliveries arrive, the same everywhere it is shown.

use serde::{Deserialize, Serialize};

use crate::{
    protection::breaker::{CircuitState, CircuitView},
    statistics::rollup::Rollup,
    time::Time,
    webhook::{
        WebhookState,
        failures::{FailingRule, FailureSeries},
    },
};

/// Share of successful attempts in the last hour below which a webhook is degraded.
const MIN_SUCCESS_RATE: f64 = 0.9;

/// Whether the deliveries of a webhook arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WebhookStatus {
    /// No problem is known. Also of a webhook that was never called.
    Healthy,
    /// The last attempt failed, less than 90 % of the attempts of the last hour succeeded, its circuit is half-open, or
    /// its endpoint asked for a pause (429).
    Degraded,
    /// Only failures since the last success, several or for a while, or its circuit is open.
    Failing,
    /// Nothing is sent to it for now: paused, pending verification, or its circuit was forced open.
    Paused,
    /// It gets no events: disabled on request or by Redrive, or expired.
    Disabled,
}

/// What the status of a webhook depends on.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// State of the webhook.
    pub state: &'a WebhookState,
    /// Its circuit.
    pub circuit: &'a CircuitView,
    /// End of the pause after a 429, if it has not passed.
    pub paused_by_429_until: Option<Time>,
    /// Failures since its last success.
    pub failures: Option<&'a FailureSeries>,
    /// When failures make it failing.
    pub failing_rule: &'a FailingRule,
    /// Results of the last hour.
    pub last_hour: &'a Rollup,
}

impl WebhookStatus {
    /// Every status, the best first.
    pub const ALL: [Self; 5] = [Self::Healthy, Self::Degraded, Self::Failing, Self::Paused, Self::Disabled];

    /// Returns the name used in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Failing => "failing",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
        }
    }

    /// Returns the status of a webhook.
    pub fn from_input(input: &StatusInput<'_>, now: Time) -> Self {
        match input.state {
            WebhookState::Disabled(_) | WebhookState::Deleted => return Self::Disabled,
            WebhookState::Paused | WebhookState::PendingVerification(_) => return Self::Paused,
            WebhookState::Active => {}
        }
        let forced_open = input.circuit.forced.as_ref().map(|forced| forced.open);
        match (forced_open, input.circuit.state) {
            (Some(true), _) => return Self::Paused,
            (None, CircuitState::Open) => return Self::Failing,
            _ => {}
        }
        if input.failures.is_some_and(|failures| failures.is_failing(input.failing_rule, now)) {
            return Self::Failing;
        }
        let is_degraded = input.failures.is_some()
            || input.paused_by_429_until.is_some()
            || forced_open.is_none() && input.circuit.state == CircuitState::HalfOpen
            || input.last_hour.success_rate().is_some_and(|rate| rate < MIN_SUCCESS_RATE);
        if is_degraded { Self::Degraded } else { Self::Healthy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        delivery::response::FailureCategory,
        protection::breaker::{Counts, Forced},
        webhook::verification::Verification,
    };

    const NOW: Time = Time::from_secs(100_000);

    fn circuit(state: CircuitState, forced_open: Option<bool>) -> CircuitView {
        let forced = forced_open.map(|open| Forced { open, until: None, by: "jane".into() });
        CircuitView {
            state,
            forced,
            counts: Counts::default(),
            error_percentage: 0.0,
            window_start: NOW,
            state_transition_at: NOW,
            next_half_open_at: None,
            half_open_attempts: 0,
            half_open_successes: 0,
            consecutive_half_open_failures: 0,
        }
    }

    fn failures(count: u32) -> Option<FailureSeries> {
        let mut series = FailureSeries::starting_at(NOW);
        (0..count).for_each(|_| series.add(FailureCategory::Timeout));
        (count > 0).then_some(series)
    }

    fn hour(attempts: u32, successes: u32) -> Rollup {
        Rollup { attempts, successes, ..Rollup::default() }
    }

    fn status(
        state: &WebhookState,
        circuit: &CircuitView,
        failed: u32,
        pause: Option<Time>,
        hour: &Rollup,
    ) -> WebhookStatus {
        let (failures, rule) = (failures(failed), FailingRule::default());
        let input = StatusInput {
            state,
            circuit,
            paused_by_429_until: pause,
            failures: failures.as_ref(),
            failing_rule: &rule,
            last_hour: hour,
        };
        WebhookStatus::from_input(&input, NOW)
    }

    fn active(circuit: &CircuitView, failed: u32, hour: &Rollup) -> WebhookStatus {
        status(&WebhookState::Active, circuit, failed, None, hour)
    }

    #[test]
    fn state_wins_over_results() {
        let open = circuit(CircuitState::Open, None);
        for (state, expected) in [
            (WebhookState::Disabled("gone".into()), WebhookStatus::Disabled),
            (WebhookState::Deleted, WebhookStatus::Disabled),
            (WebhookState::Paused, WebhookStatus::Paused),
            (WebhookState::PendingVerification(Verification::begin(NOW, true)), WebhookStatus::Paused),
        ] {
            assert_eq!(status(&state, &open, 9, None, &hour(9, 0)), expected, "{state:?}");
        }
    }

    #[test]
    fn webhook_without_problem_or_without_attempt_is_healthy() {
        let closed = circuit(CircuitState::Closed, None);
        assert_eq!(active(&closed, 0, &hour(0, 0)), WebhookStatus::Healthy, "never called");
        assert_eq!(active(&closed, 0, &hour(100, 90)), WebhookStatus::Healthy);
        assert_eq!(
            active(&circuit(CircuitState::Closed, Some(false)), 0, &hour(5, 5)),
            WebhookStatus::Healthy
        );
    }

    #[test]
    fn some_failures_or_a_429_pause_degrade() {
        let closed = circuit(CircuitState::Closed, None);
        assert_eq!(active(&closed, 1, &hour(100, 99)), WebhookStatus::Degraded, "the last attempt failed");
        assert_eq!(active(&closed, 0, &hour(100, 89)), WebhookStatus::Degraded);
        assert_eq!(active(&circuit(CircuitState::HalfOpen, None), 0, &hour(0, 0)), WebhookStatus::Degraded);
        let pause = Some(NOW);
        assert_eq!(status(&WebhookState::Active, &closed, 0, pause, &hour(0, 0)), WebhookStatus::Degraded);
    }

    #[test]
    fn series_of_failures_or_open_circuit_is_failing() {
        assert_eq!(active(&circuit(CircuitState::Closed, None), 4, &hour(9, 5)), WebhookStatus::Degraded);
        assert_eq!(active(&circuit(CircuitState::Closed, None), 5, &hour(9, 4)), WebhookStatus::Failing);
        assert_eq!(active(&circuit(CircuitState::Open, None), 0, &hour(0, 0)), WebhookStatus::Failing);
        assert_eq!(active(&circuit(CircuitState::HalfOpen, None), 5, &hour(0, 0)), WebhookStatus::Failing);
        assert_eq!(
            active(&circuit(CircuitState::Closed, Some(false)), 5, &hour(5, 0)),
            WebhookStatus::Failing
        );
    }

    #[test]
    fn circuit_forced_open_is_paused() {
        assert_eq!(active(&circuit(CircuitState::Open, Some(true)), 9, &hour(9, 0)), WebhookStatus::Paused);
    }

    #[test]
    fn status_name_matches_serialization() {
        for status in WebhookStatus::ALL {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
    }
}

//! State and counts of a circuit, and its stored and displayed forms.

use serde::{Deserialize, Serialize};

use crate::{cluster::clock_discipline::ClockStep, delivery::response::FailureCategory, time::Time};

/// State of a circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum CircuitState {
    /// All calls go through.
    #[default]
    Closed,
    /// No calls go through: the endpoint failed too often.
    Open,
    /// A few probes go through, to detect whether the endpoint has recovered.
    HalfOpen,
}

impl CircuitState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Numbers of calls and of failed calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Counts {
    /// All counted calls.
    pub total: u32,
    /// Failed calls.
    pub failed: u32,
    /// Failed calls by category, in the order of [`FailureCategory::ALL`]. Serialized as an object with the names of
    /// the categories that occurred.
    #[serde(with = "by_name")]
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, u32>))]
    pub by_category: [u32; FailureCategory::ALL.len()],
}

impl Counts {
    /// Returns the percentage of failed calls; 0 if there were no calls.
    pub fn error_percentage(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        f64::from(self.failed) * 100.0 / f64::from(self.total)
    }

    /// Returns the most frequent failure category.
    pub fn most_frequent(&self) -> Option<FailureCategory> {
        crate::statistics::rollup::most_frequent(&self.by_category)
    }
}

/// Serializes counts by category name, so that stored counts stay valid when a category is added.
mod by_name {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use crate::delivery::response::FailureCategory;

    type Array = [u32; FailureCategory::ALL.len()];

    pub(super) fn serialize<S: Serializer>(counts: &Array, serializer: S) -> Result<S::Ok, S::Error> {
        let named = FailureCategory::ALL.iter().zip(counts).filter(|(_, count)| **count > 0);
        serializer.collect_map(named.map(|(category, count)| (category.name(), count)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Array, D::Error> {
        let named = BTreeMap::<String, u32>::deserialize(deserializer)?;
        Ok(FailureCategory::ALL.map(|category| named.get(category.name()).copied().unwrap_or(0)))
    }
}

/// A circuit state forced by an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Forced {
    /// Whether the circuit is forced open (nothing goes through) or closed (everything goes through).
    pub open: bool,
    /// When the forced state ends; `None` if it lasts until it is changed.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub until: Option<Time>,
    /// Who forced it.
    pub by: String,
}

/// The stored form of a circuit, restored after a restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedCircuit {
    /// State.
    pub state: CircuitState,
    /// Version, raised by every transition: of two records the one with the higher generation is newer.
    pub generation: u64,
    /// Time of the last transition.
    pub since: Time,
    /// When the circuit becomes half-open; set while it is open and not forced.
    pub until: Option<Time>,
    /// How long the circuit stays open, or stayed open before it became half-open.
    pub sleep_ms: u64,
    /// Number of failed recoveries in a row.
    pub consecutive_half_open_failures: u32,
    /// State forced by an operator, if any.
    pub forced: Option<Forced>,
    /// Calls in the window that opened the circuit.
    pub counts: Counts,
}

impl SavedCircuit {
    /// Returns whether the circuit need not be stored: closed and not forced.
    pub fn is_default(&self) -> bool {
        self.state == CircuitState::Closed && self.forced.is_none()
    }

    /// Shifts planned times after the clock was set back. The end of a forced state is kept.
    pub fn adjust_for_clock_step(&mut self, clock_step: &ClockStep) {
        self.since = clock_step.apply(self.since);
        self.until = self.until.map(|until| clock_step.apply(until));
    }

    /// Returns whether the circuit is half-open and not forced, so that probes are sent.
    pub fn is_half_open(&self) -> bool {
        self.state == CircuitState::HalfOpen && self.forced.is_none()
    }

    /// Returns the effective state: the forced state if there is one, otherwise the circuit's own.
    pub fn effective_state(&self) -> CircuitState {
        match &self.forced {
            Some(forced) if forced.open => CircuitState::Open,
            Some(_) => CircuitState::Closed,
            None => self.state,
        }
    }

    /// Returns until when nothing may go through: [`Time::FAR_FUTURE`] if forced open without an end, `None` if
    /// calls or probes may go through.
    pub fn blocked_until(&self) -> Option<Time> {
        match &self.forced {
            Some(forced) if forced.open => Some(forced.until.unwrap_or(Time::FAR_FUTURE)),
            None if self.state == CircuitState::Open => self.until,
            _ => None,
        }
    }
}

/// A circuit as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CircuitView {
    /// State.
    pub state: CircuitState,
    /// State forced by an operator, if any.
    pub forced: Option<Forced>,
    /// Calls in the current window; while the circuit is not closed, those in the window that opened it.
    pub counts: Counts,
    /// Percentage of these calls that failed.
    pub error_percentage: f64,
    /// Start of the current window; while the circuit is not closed, of the window before it opened.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub window_start: Time,
    /// Time of the last transition.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub state_transition_at: Time,
    /// When the circuit becomes half-open.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub next_half_open_at: Option<Time>,
    /// Number of probes sent in the current half-open period, including those in flight.
    pub half_open_attempts: u32,
    /// Number of these probes that succeeded.
    pub half_open_successes: u32,
    /// Number of failed recoveries in a row.
    pub consecutive_half_open_failures: u32,
}

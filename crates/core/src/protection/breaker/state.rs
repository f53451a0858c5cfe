//! What a circuit says of itself: its state, its counts, and what is stored and shown of it.

use serde::{Deserialize, Serialize};

use crate::{cluster::clock_discipline::SetBack, delivery::response::FailureCategory, time::Time};

/// Whether calls go through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum CircuitState {
    /// They do.
    #[default]
    Closed,
    /// They do not: the endpoint failed too often.
    Open,
    /// A few do, to find out whether the endpoint has recovered.
    HalfOpen,
}

impl CircuitState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// How many calls there were, and how many failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Counts {
    /// All that count.
    pub total: u32,
    /// Those that failed.
    pub failed: u32,
    /// In what ways they failed, in the order of [`FailureCategory::ALL`]. Written as an object that names
    /// the categories that occurred.
    #[serde(with = "by_name")]
    #[cfg_attr(feature = "openapi", schema(value_type = std::collections::BTreeMap<String, u32>))]
    pub by_category: [u32; FailureCategory::ALL.len()],
}

impl Counts {
    /// The share that failed, in percent; 0 if there were none.
    pub fn error_percentage(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        f64::from(self.failed) * 100.0 / f64::from(self.total)
    }

    /// In what way most of them failed.
    pub fn worst(&self) -> Option<FailureCategory> {
        crate::statistics::rollup::worst(&self.by_category)
    }
}

/// Counts by category with their names, so that what is stored outlives a new category.
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

/// That a person has decided what a circuit does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Forced {
    /// Whether it is held open, so that nothing goes through, or held closed, so that everything does.
    pub open: bool,
    /// Until when; none for until somebody says otherwise.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub until: Option<Time>,
    /// Who decided it.
    pub by: String,
}

/// What is stored of a circuit, so that a restart remembers it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedCircuit {
    /// Its state.
    pub state: CircuitState,
    /// How many moves it has made: of two records the one with more is the newer.
    pub generation: u64,
    /// Since when it has been in this state.
    pub since: Time,
    /// When it becomes half-open, while it is open and nobody forced it.
    pub until: Option<Time>,
    /// How long it stays open, or was before it became half-open.
    pub sleep_ms: u64,
    /// How many recoveries in a row have failed.
    pub consecutive_half_open_failures: u32,
    /// What a person has decided about it.
    pub forced: Option<Forced>,
    /// The calls of the window that opened it.
    pub counts: Counts,
}

impl SavedCircuit {
    /// Whether there is nothing to remember: closed, and not by force.
    pub fn is_default(&self) -> bool {
        self.state == CircuitState::Closed && self.forced.is_none()
    }

    /// Time went back: moves what was planned by the time that is no longer used. What an operator forced stays.
    pub fn set_back(&mut self, set_back: &SetBack) {
        self.since = set_back.moved(self.since);
        self.until = self.until.map(|until| set_back.moved(until));
    }

    /// Whether probes find out how the endpoint is.
    pub fn is_on_trial(&self) -> bool {
        self.state == CircuitState::HalfOpen && self.forced.is_none()
    }

    /// What it does: what a person has decided comes first.
    pub fn in_force(&self) -> CircuitState {
        match &self.forced {
            Some(forced) if forced.open => CircuitState::Open,
            Some(_) => CircuitState::Closed,
            None => self.state,
        }
    }

    /// Until when nothing may go through; [`Time::FOREVER`] if nobody knows, none if something may.
    pub fn blocked_until(&self) -> Option<Time> {
        match &self.forced {
            Some(forced) if forced.open => Some(forced.until.unwrap_or(Time::FOREVER)),
            None if self.state == CircuitState::Open => self.until,
            _ => None,
        }
    }
}

/// A circuit as it is shown to people.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CircuitView {
    /// Its state.
    pub state: CircuitState,
    /// What a person has decided about it.
    pub forced: Option<Forced>,
    /// The calls in the window now; while it is not closed, those of the window that opened it.
    pub counts: Counts,
    /// The share of them that failed, in percent.
    pub error_percentage: f64,
    /// When the window begins; while it is not closed, when the one before this state did.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub window_start: Time,
    /// Since when it has been in this state.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub state_transition_at: Time,
    /// When it becomes half-open.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub next_half_open_at: Option<Time>,
    /// How many probes went out while it is half-open, those still under way included.
    pub half_open_attempts: u32,
    /// How many of them succeeded.
    pub half_open_successes: u32,
    /// How many recoveries in a row have failed.
    pub consecutive_half_open_failures: u32,
}

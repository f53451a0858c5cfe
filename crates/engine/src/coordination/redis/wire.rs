//! What is written to the script and read from it: see `gate.lua`.

use redrive_core::{
    EventId, FailureCategory, Time, WebhookId,
    protection::breaker::{BreakerPolicy, CircuitState, Counts, Forced, SavedCircuit},
    protection::limiter::RateLimit,
};
use serde::{Deserialize, Serialize};

/// Everything that one round trip carries.
#[derive(Debug, Default, Serialize)]
pub(super) struct Batch {
    /// Nobody knows what was taken from buckets before now.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) drain: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) work: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) change: bool,
    pub(super) categories: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) webhooks: Vec<Section>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tokens: Vec<Limit>,
}

/// What is said and asked about one webhook.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    pub(super) id: WebhookId,
    /// The generation of its circuit as it is known here.
    pub(super) knows: u64,
    /// None if only its slots are talked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<Policy>,
    /// Its circuit as it is known here, unless there is nothing about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) saved: Option<Saved>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) succeeded: u32,
    /// The categories of calls that failed, from 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failed: Vec<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) probes: Vec<Probe>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) reset: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) force: Option<ForcedTo>,
    /// How many requests it may have under way, if slots are asked for or given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cap: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold: Option<u32>,
    /// How many of those that it holds are in use.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) used: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) need: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) asks: Vec<AskFor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) own: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) global: Option<Limit>,
    /// Its counts are wanted too.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) look: bool,
}

impl Section {
    pub(super) fn new(id: WebhookId) -> Self {
        Self {
            id,
            knows: 0,
            policy: None,
            saved: None,
            succeeded: 0,
            failed: Vec::new(),
            probes: Vec::new(),
            reset: false,
            force: None,
            cap: None,
            hold: None,
            used: 0,
            need: None,
            asks: Vec::new(),
            own: None,
            tenant: None,
            global: None,
            look: false,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An event, how long its answer may take in milliseconds, and whether it has a slot.
#[derive(Debug, Serialize)]
pub(super) struct AskFor(pub(super) EventId, pub(super) u64, pub(super) bool);

/// Generation and number of a probe; 1, 0 or -1 for how it went; its category from 1.
#[derive(Debug, Serialize)]
pub(super) struct Probe(pub(super) u64, pub(super) u64, pub(super) i8, pub(super) usize);

/// Requests a minute, burst, and the name of the bucket.
#[derive(Debug, Serialize)]
pub(super) struct Limit(u32, u32, String);

impl Limit {
    pub(super) fn new(limit: RateLimit, name: String) -> Self {
        Self(limit.requests_per_minute, limit.burst(), name)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Policy {
    enabled: bool,
    window: u64,
    least: u32,
    errors: f64,
    sleep: u64,
    probes: u32,
    need: u32,
    recovered: f64,
}

impl From<&BreakerPolicy> for Policy {
    fn from(policy: &BreakerPolicy) -> Self {
        Self {
            enabled: policy.enabled,
            window: policy.window.as_millis() as u64,
            least: policy.minimum_throughput,
            errors: policy.error_threshold_percentage,
            sleep: policy.sleep_window.as_millis() as u64,
            probes: policy.half_open_max_calls,
            need: policy.successes_needed(),
            recovered: policy.half_open_success_threshold,
        }
    }
}

/// A circuit that was set by hand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ForcedTo {
    open: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<i64>,
    by: String,
}

impl From<&Forced> for ForcedTo {
    fn from(forced: &Forced) -> Self {
        Self { open: forced.open, until: forced.until.map(Time::millis), by: forced.by.clone() }
    }
}

/// A circuit as it is kept for the day that Redis is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    state: CircuitState,
    generation: u64,
    since: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<i64>,
    sleep: u64,
    failures: u32,
    /// All, failed, and by category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    counts: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forced: Option<ForcedTo>,
}

impl From<&SavedCircuit> for Saved {
    fn from(saved: &SavedCircuit) -> Self {
        let counts = [saved.counts.total, saved.counts.failed].into_iter().chain(saved.counts.by_category);
        Self {
            state: saved.state,
            generation: saved.generation,
            since: saved.since.millis(),
            until: saved.until.map(Time::millis),
            sleep: saved.sleep_ms,
            failures: saved.consecutive_half_open_failures,
            counts: Some(counts.collect()),
            forced: saved.forced.as_ref().map(ForcedTo::from),
        }
    }
}

impl From<Saved> for SavedCircuit {
    fn from(saved: Saved) -> Self {
        Self {
            state: saved.state,
            generation: saved.generation,
            since: Time::from_millis(saved.since),
            until: saved.until.map(Time::from_millis),
            sleep_ms: saved.sleep,
            consecutive_half_open_failures: saved.failures,
            forced: saved.forced.map(|forced| Forced {
                open: forced.open,
                until: forced.until.map(Time::from_millis),
                by: forced.by,
            }),
            counts: saved.counts.as_deref().map_or(Counts::default(), counts),
        }
    }
}

/// All, failed and by category, as the script counts them.
pub(super) fn counts(counted: &[u32]) -> Counts {
    let count = |index: usize| counted.get(index).copied().unwrap_or(0);
    let mut counts = Counts { total: count(0), failed: count(1), ..Counts::default() };
    for (index, category) in counts.by_category.iter_mut().enumerate() {
        *category = count(2 + index);
    }
    counts
}

/// The place of a category, from 1.
pub(super) fn place(category: FailureCategory) -> usize {
    category as usize + 1
}

/// What the script answers.
#[derive(Debug, Deserialize)]
pub(super) struct Answered {
    pub(super) now: i64,
    /// When Redis began to remember.
    pub(super) began: i64,
    #[serde(default)]
    pub(super) webhooks: Vec<About>,
    /// When each token is due, 0 if it was taken, and how many are left.
    #[serde(default)]
    pub(super) tokens: Vec<(i64, u32)>,
}

/// What it says about one webhook.
#[derive(Debug, Deserialize)]
pub(super) struct About {
    /// Nothing was asked about its circuit if there is none.
    #[serde(default)]
    pub(super) generation: Option<u64>,
    /// It has moved, from this state.
    #[serde(default)]
    pub(super) from: Option<CircuitState>,
    #[serde(default)]
    pub(super) saved: Option<Saved>,
    #[serde(default)]
    pub(super) counts: Option<Vec<u32>>,
    /// Of a trial: under way, left, answered, successes.
    #[serde(default)]
    pub(super) probes: Option<[u32; 4]>,
    /// How many slots this node holds, how many nodes want some, and how many wait.
    #[serde(default)]
    pub(super) slots: Option<[u32; 3]>,
    #[serde(default)]
    pub(super) grants: Vec<Granted>,
}

/// What it says to one delivery.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum Granted {
    Go {
        circuit: CircuitState,
        /// The number of a probe.
        #[serde(default)]
        probe: Option<u64>,
    },
    Wait {
        why: Why,
        scope: Who,
        #[serde(default)]
        until: Option<i64>,
    },
    Probed {
        until: i64,
    },
    NoProbe,
}

/// What it waits for.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    Circuit,
    Slots,
    Tokens,
}

/// Who else does.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Who {
    Webhook,
    Tenant,
    Node,
}

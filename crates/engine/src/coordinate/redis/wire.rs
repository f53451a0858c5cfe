//! Data types sent to the script and received from it: see `gate.lua`.

use redrive_core::{
    EventId, FailureCategory, Time, WebhookId,
    protection::{
        breaker::{BreakerPolicy, CircuitState, Counts, Forced, SavedCircuit},
        limiter::RateLimit,
    },
};
use serde::{Deserialize, Serialize};

/// Contents of one round trip.
#[derive(Debug, Default, Serialize)]
pub(super) struct Batch {
    /// Whether tokens taken before now are unknown.
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

/// Reports and requests of one webhook.
#[derive(Debug, Serialize)]
pub(super) struct Section {
    pub(super) id: WebhookId,
    /// Generation of its circuit as known to this node.
    pub(super) knows: u64,
    /// Breaker policy; `None` if the section is only about its slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<Policy>,
    /// Its circuit as known to this node; `None` if that is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) saved: Option<WireCircuit>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) succeeded: u32,
    /// Categories of failed calls, from 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) failed: Vec<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) probes: Vec<Probe>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) reset: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) force: Option<WireForced>,
    /// Maximum number of requests in flight, if slots are requested or released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cap: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold: Option<u32>,
    /// Number of held slots that are in use.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) used: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) need: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) asks: Vec<WireAsk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) own: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant: Option<Limit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) global: Option<Limit>,
    /// Whether the reply should include its counts.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) want_counts: bool,
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
            want_counts: false,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An event, the maximum time until its response in milliseconds, and whether it has a slot.
#[derive(Debug, Serialize)]
pub(super) struct WireAsk(pub(super) EventId, pub(super) u64, pub(super) bool);

/// Generation and number of a probe; 1, 0 or -1 for success, failure or no information; its category from 1.
#[derive(Debug, Serialize)]
pub(super) struct Probe(pub(super) u64, pub(super) u64, pub(super) i8, pub(super) usize);

/// Requests per minute, burst, and the name of the bucket.
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
    min: u32,
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
            min: policy.minimum_throughput,
            errors: policy.error_threshold_percentage,
            sleep: policy.sleep_window.as_millis() as u64,
            probes: policy.half_open_max_calls,
            need: policy.successes_needed(),
            recovered: policy.half_open_success_threshold,
        }
    }
}

/// Forced state of a circuit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WireForced {
    open: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<i64>,
    by: String,
}

impl From<&Forced> for WireForced {
    fn from(forced: &Forced) -> Self {
        Self { open: forced.open, until: forced.until.map(Time::millis), by: forced.by.clone() }
    }
}

/// A circuit in the form that survives the loss of Redis.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WireCircuit {
    state: CircuitState,
    generation: u64,
    since: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<i64>,
    sleep: u64,
    failures: u32,
    /// Total, failed, and by category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    counts: Option<Vec<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forced: Option<WireForced>,
}

impl From<&SavedCircuit> for WireCircuit {
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
            forced: saved.forced.as_ref().map(WireForced::from),
        }
    }
}

impl From<WireCircuit> for SavedCircuit {
    fn from(saved: WireCircuit) -> Self {
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

/// Converts the counts of the script: total, failed and by category.
pub(super) fn counts(counted: &[u32]) -> Counts {
    let count = |index: usize| counted.get(index).copied().unwrap_or(0);
    let mut counts = Counts { total: count(0), failed: count(1), ..Counts::default() };
    for (index, category) in counts.by_category.iter_mut().enumerate() {
        *category = count(2 + index);
    }
    counts
}

/// Returns the index of a category, from 1.
pub(super) fn category_index(category: FailureCategory) -> usize {
    category as usize + 1
}

/// Reply of the script.
#[derive(Debug, Deserialize)]
pub(super) struct BatchReply {
    pub(super) now: i64,
    /// Start time of the state in Redis.
    pub(super) started_at: i64,
    #[serde(default)]
    pub(super) webhooks: Vec<WebhookReply>,
    /// For each token: when it is due, 0 if it was taken; and how many are left.
    #[serde(default)]
    pub(super) tokens: Vec<(i64, u32)>,
}

/// Reply about one webhook.
#[derive(Debug, Deserialize)]
pub(super) struct WebhookReply {
    /// Generation of its circuit; `None` if the section was only about its slots.
    #[serde(default)]
    pub(super) generation: Option<u64>,
    /// The state before, if the circuit made a transition.
    #[serde(default)]
    pub(super) from: Option<CircuitState>,
    #[serde(default)]
    pub(super) saved: Option<WireCircuit>,
    #[serde(default)]
    pub(super) counts: Option<Vec<u32>>,
    /// Half-open probes: in flight, left, completed, successful.
    #[serde(default)]
    pub(super) probes: Option<[u32; 4]>,
    /// Number of slots that this node holds, of nodes that want some, and of nodes that wait.
    #[serde(default)]
    pub(super) slots: Option<[u32; 3]>,
    #[serde(default)]
    pub(super) grants: Vec<WireGrant>,
}

/// Reply about one delivery.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(super) enum WireGrant {
    Go {
        circuit: CircuitState,
        /// Number of the probe.
        #[serde(default)]
        probe: Option<u64>,
    },
    Wait {
        why: WaitCause,
        scope: WaitScope,
        #[serde(default)]
        until: Option<i64>,
    },
    Probed {
        until: i64,
    },
    NoProbe,
}

/// What the delivery waits for.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WaitCause {
    Circuit,
    Slots,
    Tokens,
}

/// Scope of the wait.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WaitScope {
    Webhook,
    Tenant,
    Node,
}

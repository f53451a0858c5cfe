//! Figures about the data path. Handles are made once, and every series begins at 0, so that a first failure counts
//! as one; the hot path only counts. What a tenant can name never becomes a label here, see `by` for what may.

mod breakdown;
mod notifications;
mod store;

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use redrive_core::{
    DeliveryStatus, FailureCategory, TenantId, WebhookId, dispatch::gate::WaitingOn,
    protection::breaker::CircuitState, security::egress_rules::Unreachable,
};
use redrive_egress::Timings;
use redrive_store::Left;

pub use self::breakdown::Series;
use self::{breakdown::By, notifications::Notices, store::StoreHealth};
use crate::{Engine, dispatch::Ready};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    status: &'static str,
    failure_category: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransitionLabels {
    from_state: &'static str,
    to_state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

const PHASES: [&str; 4] = ["dns", "connect", "tls", "ttfb"];
/// From an answer on the same machine to the longest that an endpoint may ever take.
const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 90.0];
/// From what is sent at once to what had to wait for minutes.
const LATENCY: [f64; 17] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const NUMBERS: [f64; 10] = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 25.0, 50.0];

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

fn attempt_numbers() -> Histogram {
    Histogram::new(NUMBERS)
}

/// What became of a delivery by an attempt, or without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Delivered,
    /// The attempt failed, and another one is to come.
    Failed,
    Dead,
    Cancelled,
}

impl Fate {
    const ALL: [Self; 4] = [Self::Delivered, Self::Failed, Self::Dead, Self::Cancelled];

    /// What a status means right after an attempt or an end.
    fn of(now: DeliveryStatus) -> Self {
        match now {
            DeliveryStatus::Delivered => Self::Delivered,
            DeliveryStatus::Dead => Self::Dead,
            DeliveryStatus::Cancelled => Self::Cancelled,
            DeliveryStatus::Pending | DeliveryStatus::InFlight => Self::Failed,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Delivered => DeliveryStatus::Delivered.name(),
            Self::Failed => "failed",
            Self::Dead => DeliveryStatus::Dead.name(),
            Self::Cancelled => DeliveryStatus::Cancelled.name(),
        }
    }
}

/// Something went wrong that never should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A task ended by a fault in the code.
    Panic,
    /// A request was answered with 500.
    Response,
    /// An outcome cannot be stored as it is.
    Outcome,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Panic, Self::Response, Self::Outcome];

    fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Response => "response",
            Self::Outcome => "outcome",
        }
    }
}

/// Deliveries by what became of them. `[fate][category]`, the last one of each for no category at all.
struct Deliveries([[Counter; CATEGORIES + 1]; 4]);

const CATEGORIES: usize = FailureCategory::ALL.len();

impl Deliveries {
    fn new(registry: &mut Registry) -> Self {
        let family = Family::<DeliveryLabels, Counter>::default();
        let made = Fate::ALL.map(|fate| {
            std::array::from_fn(|index| {
                let category = FailureCategory::ALL.get(index).map_or("", |category| category.name());
                let labels = DeliveryLabels { status: fate.name(), failure_category: category };
                // What cannot be is not listed: a success has no category, and a failure has one.
                match (fate, category) {
                    (Fate::Delivered, "") | (Fate::Dead | Fate::Cancelled, _) => {
                        family.get_or_create(&labels).clone()
                    }
                    (Fate::Failed, category) if !category.is_empty() => family.get_or_create(&labels).clone(),
                    _ => Counter::default(),
                }
            })
        });
        registry.register(
            "webhook_deliveries",
            "Attempts and ends of deliveries, by what became of them; failed: another attempt is to come",
            family,
        );
        Self(made)
    }

    fn of(&self, fate: Fate, category: Option<FailureCategory>) -> &Counter {
        &self.0[fate as usize][category.map_or(CATEGORIES, |category| category as usize)]
    }
}

/// The figures of one engine.
pub struct Metrics {
    deliveries: Deliveries,
    /// Seconds from sending to the end of the answer.
    duration: Histogram,
    /// Seconds of each phase: looking up, connecting, TLS, first byte.
    phases: [Histogram; 4],
    /// Seconds from being due to being sent.
    pub(crate) dispatch_latency: Histogram,
    /// By fate.
    attempt_number: [Histogram; 4],
    /// Events taken in.
    pub(crate) published: Counter,
    /// Repeats of an idempotency key.
    pub(crate) duplicates: Counter,
    dead: Counter,
    /// Outcomes refused because the lease was lost.
    pub(crate) fenced: Counter,
    transitions: Family<TransitionLabels, Counter>,
    rate_limit_hits: Counter,
    egress_refused: Family<ReasonLabel, Counter>,
    pub(crate) host_busy: Counter,
    /// The most work of one check that was done on a runtime thread.
    pub(crate) largest_inline_work: Gauge,
    recovered: Family<KindLabel, Counter>,
    faults: [Counter; 3],
    /// Tries to tell owners.
    pub(crate) notices: Notices,
    pruned: Family<KindLabel, Counter>,
    /// Whole months that were dropped.
    pub(crate) months_pruned: Counter,
    /// When the oldest event was published, in seconds; 0 if there is none or it was not looked for.
    pub(crate) oldest_event: Gauge,
    /// By how many seconds the clock differs from the prediction without being confirmed.
    pub(crate) clock_jump: Gauge<f64, AtomicU64>,
    pub(crate) clock_jumps: Counter,
    /// How the store does.
    pub(crate) store: StoreHealth,
    /// Whether Redis answers.
    pub(crate) redis_up: Gauge,
    /// Whether there is a Redis and it does not answer.
    pub(crate) redis_fallback: Gauge,
    /// Batches sent to Redis.
    pub(crate) redis_round_trips: Counter,
    /// By tenant, webhook and event type, where somebody asked for that.
    by: Option<By>,
}

impl Metrics {
    /// Makes the figures and lists them in `registry`: those of Redis only if there is one.
    pub fn new(registry: &mut Registry, series: Series, has_redis: bool) -> Self {
        let numbers =
            Family::<OutcomeLabel, Histogram, fn() -> Histogram>::new_with_constructor(attempt_numbers);
        let attempt_number = Fate::ALL.map(|fate| {
            let outcome = if fate == Fate::Delivered { "success" } else { fate.name() };
            numbers.get_or_create(&OutcomeLabel { outcome }).clone()
        });
        registry.register("webhook_retry_attempt_number", "Number of the attempt, by its outcome", numbers);
        let by_phase = Family::<PhaseLabel, Histogram, fn() -> Histogram>::new_with_constructor(seconds);
        let phases = PHASES.map(|phase| by_phase.get_or_create(&PhaseLabel { phase }).clone());
        registry.register(
            "webhook_delivery_phase_duration_seconds",
            "Phases of a request: looking the name up, connecting, TLS, first byte of the answer",
            by_phase,
        );
        let faults = Family::<KindLabel, Counter>::default();
        let metrics = Self {
            deliveries: Deliveries::new(registry),
            duration: seconds(),
            phases,
            dispatch_latency: Histogram::new(LATENCY),
            attempt_number,
            published: Counter::default(),
            duplicates: Counter::default(),
            dead: Counter::default(),
            fenced: Counter::default(),
            transitions: Family::default(),
            recovered: Family::default(),
            rate_limit_hits: Counter::default(),
            egress_refused: Family::default(),
            host_busy: Counter::default(),
            largest_inline_work: Gauge::default(),
            faults: Fault::ALL.map(|fault| faults.get_or_create(&KindLabel { kind: fault.name() }).clone()),
            notices: Notices::new(registry),
            pruned: Family::default(),
            months_pruned: Counter::default(),
            oldest_event: Gauge::default(),
            clock_jump: Gauge::default(),
            clock_jumps: Counter::default(),
            store: StoreHealth::new(registry),
            redis_up: Gauge::default(),
            redis_fallback: Gauge::default(),
            redis_round_trips: Counter::default(),
            by: By::new(series, registry),
        };
        registry.register(
            "redrive_internal_errors",
            "What never should happen: tasks that panicked, answers of 500, outcomes that could not be stored as they were",
            faults,
        );
        metrics.begin_at_nothing();
        metrics.list(registry);
        metrics.list_redis(registry, has_redis);
        metrics
    }

    /// Makes the series that are looked up when they are counted.
    fn begin_at_nothing(&self) {
        let states = CircuitState::ALL.into_iter();
        for (from, to) in states.clone().flat_map(|from| states.clone().map(move |to| (from, to))) {
            if from != to {
                let label = TransitionLabels { from_state: from.name(), to_state: to.name() };
                drop(self.transitions.get_or_create(&label));
            }
        }
        self.set_egress_refused(Unreachable::LABELS.map(|reason| (reason, 0)));
        self.pruned(&Left::default());
        for kind in ["lease", "lane", "assignment"] {
            self.recovered(kind, 0);
        }
    }

    /// Counts what the lease auditor recovered.
    pub(crate) fn recovered(&self, kind: &'static str, count: usize) {
        self.recovered.get_or_create(&KindLabel { kind }).inc_by(count as u64);
    }

    /// Takes over how many connections the guard has refused since the start, by reason.
    pub(crate) fn set_egress_refused(&self, refused: impl IntoIterator<Item = (&'static str, u64)>) {
        for (reason, count) in refused {
            let counter = self.egress_refused.get_or_create(&ReasonLabel { reason });
            counter.inner().fetch_max(count, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn list(&self, registry: &mut Registry) {
        registry.register(
            "webhook_egress_refused",
            "Connections that the guard refused, by reason",
            self.egress_refused.clone(),
        );
        registry.register(
            "webhook_egress_host_busy",
            "Deliveries that were put back because their address had as many connections as it may have",
            self.host_busy.clone(),
        );
        registry.register(
            "redrive_inline_work_max",
            "The most work of one check that was done on a runtime thread since the start",
            self.largest_inline_work.clone(),
        );
        registry.register(
            "webhook_delivery_duration_seconds",
            "From sending a request to the end of its answer",
            self.duration.clone(),
        );
        registry.register(
            "webhook_dispatch_latency_seconds",
            "From a delivery being due to its request being sent",
            self.dispatch_latency.clone(),
        );
        registry.register("webhook_events_published", "Events taken in", self.published.clone());
        registry.register(
            "webhook_idempotency_duplicates",
            "Publishes that repeated an idempotency key",
            self.duplicates.clone(),
        );
        registry.register("webhook_dlq_entries", "Deliveries given up on", self.dead.clone());
        registry.register(
            "webhook_outcomes_fenced",
            "Outcomes refused because the lease was lost",
            self.fenced.clone(),
        );
        registry.register(
            "redrive_leases_recovered",
            "Leases, lanes and assignments that this node owned in the store and did not know",
            self.recovered.clone(),
        );
        registry.register(
            "webhook_circuit_breaker_transitions",
            "Moves of circuits from one state to another, counted by the node that made them",
            self.transitions.clone(),
        );
        registry.register(
            "webhook_rate_limit_hits",
            "Deliveries that had to wait for a token or for the endpoint's Retry-After",
            self.rate_limit_hits.clone(),
        );
        registry.register("redrive_pruned_rows", "Rows forgotten because they were old", self.pruned.clone());
        registry.register(
            "redrive_pruned_months",
            "Whole months dropped because they were old; their rows are not counted",
            self.months_pruned.clone(),
        );
        registry.register(
            "redrive_oldest_event_timestamp_seconds",
            "When the oldest event was published; told by the node that forgets, 0 by others",
            self.oldest_event.clone(),
        );
        registry.register(
            "redrive_clock_jump_seconds",
            "The followed clock minus its prediction while a jump is not confirmed; otherwise 0",
            self.clock_jump.clone(),
        );
        registry.register("redrive_clock_jumps", "Jumps of the followed clock", self.clock_jumps.clone());
    }

    fn list_redis(&self, registry: &mut Registry, has_redis: bool) {
        registry.register(
            "webhook_redis_fallback_active",
            "1 while there is a Redis that does not answer, and this node goes by what it knows",
            self.redis_fallback.clone(),
        );
        if has_redis {
            registry.register(
                "webhook_redis_up",
                "1 while Redis answers this node; not told where there is none",
                self.redis_up.clone(),
            );
            registry.register(
                "redrive_redis_round_trips",
                "Batches of decisions sent to Redis",
                self.redis_round_trips.clone(),
            );
        }
    }

    /// Notes how long a request and its phases took.
    pub(crate) fn exchanged(&self, timings: &Timings) {
        self.duration.observe(timings.total.as_secs_f64());
        let phases = [timings.dns, timings.connect, timings.tls, timings.ttfb];
        for (histogram, took) in self.phases.iter().zip(phases) {
            if let Some(took) = took {
                histogram.observe(took.as_secs_f64());
            }
        }
    }

    /// Counts what became of a delivery: by an attempt with this number, which failed for this reason if it did; or
    /// without a request.
    pub(crate) fn ended(
        &self,
        ready: &Ready,
        now: DeliveryStatus,
        attempt: Option<(u32, Option<FailureCategory>)>,
    ) {
        let fate = Fate::of(now);
        self.deliveries.of(fate, attempt.and_then(|(_, failure)| failure)).inc();
        if let Some((number, _)) = attempt {
            self.attempt_number[fate as usize].observe(f64::from(number));
        }
        if fate == Fate::Dead {
            self.dead.inc();
        }
        if let Some(by) = &self.by {
            by.count(fate, &ready.event.tenant, ready.webhook, Some(&ready.event.event_type), 1);
        }
    }

    /// Counts deliveries of a webhook that were given up on while something held them back in the store.
    pub(crate) fn expired(&self, tenant: &TenantId, webhook: WebhookId, count: u64) {
        self.dead.inc_by(count);
        self.deliveries.of(Fate::Dead, None).inc_by(count);
        if let Some(by) = &self.by {
            by.count(Fate::Dead, tenant, webhook, None, count);
        }
    }

    /// Counts what was forgotten.
    pub(crate) fn pruned(&self, left: &Left) {
        let kinds = [("event", left.events), ("delivery", left.deliveries), ("attempt", left.attempts)];
        for (kind, count) in kinds {
            self.pruned.get_or_create(&KindLabel { kind }).inc_by(count as u64);
        }
    }

    /// Counts a delivery that the gate held back.
    pub(crate) fn held_back(&self, why: WaitingOn) {
        if why == WaitingOn::RateLimit {
            self.rate_limit_hits.inc();
        }
    }

    /// Counts a move of a circuit.
    pub(crate) fn circuit_moved(&self, from: CircuitState, to: CircuitState) {
        let label = TransitionLabels { from_state: from.name(), to_state: to.name() };
        self.transitions.get_or_create(&label).inc();
    }

    /// What counts this kind of fault.
    pub(crate) fn fault(&self, fault: Fault) -> &Counter {
        &self.faults[fault as usize]
    }
}

impl Engine {
    /// What counts this kind of fault, for whoever notices one.
    pub fn faults(&self, fault: Fault) -> Counter {
        self.0.metrics.fault(fault).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_begins_at_nothing() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry, Series::default(), true);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "webhook_deliveries_total{status=\"delivered\",failure_category=\"\"} 0",
            "webhook_deliveries_total{status=\"failed\",failure_category=\"timeout\"} 0",
            "webhook_deliveries_total{status=\"dead\",failure_category=\"blocked_address\"} 0",
            "webhook_deliveries_total{status=\"dead\",failure_category=\"\"} 0",
            "webhook_circuit_breaker_transitions_total{from_state=\"closed\",to_state=\"open\"} 0",
            "webhook_retry_attempt_number_count{outcome=\"dead\"} 0",
            "redrive_internal_errors_total{kind=\"panic\"} 0",
            "redrive_pruned_rows_total{kind=\"event\"} 0",
            "redrive_store_failures_in_a_row 0",
            "webhook_store_up 1",
            "webhook_redis_up 0",
            "webhook_egress_refused_total{reason=\"address\"} 0",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("status=\"failed\",failure_category=\"\""), "a failure has a category");
        for category in FailureCategory::ALL {
            metrics.deliveries.of(Fate::Failed, Some(category)).inc();
        }
        text.clear();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for category in FailureCategory::ALL {
            let line = format!(
                "webhook_deliveries_total{{status=\"failed\",failure_category=\"{}\"}} 1\n",
                category.name()
            );
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn without_redis_nothing_is_told_of_it_but_that_nobody_goes_without() {
        let mut registry = Registry::default();
        Metrics::new(&mut registry, Series::default(), false);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(!text.contains("webhook_redis_up") && text.contains("webhook_redis_fallback_active 0"));
    }
}

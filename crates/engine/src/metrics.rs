//! Figures about the data path. Handles are made once; the hot path only counts.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use redrive_core::{DeliveryStatus, FailureCategory, breaker::CircuitState, gate::WaitingOn};
use redrive_egress::Timings;
use redrive_store::Left;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    status: &'static str,
    failure_category: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

const PHASES: [&str; 4] = ["dns", "connect", "tls", "ttfb"];

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
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

/// The figures of one engine.
pub struct Metrics {
    deliveries: Family<DeliveryLabels, Counter>,
    delivered: Counter,
    /// Seconds from sending to the end of the answer.
    duration: Histogram,
    /// Seconds of each phase: looking up, connecting, TLS, first byte.
    phases: [Histogram; 4],
    /// Seconds from being due to being sent.
    pub(crate) dispatch_latency: Histogram,
    attempt_number: Family<OutcomeLabel, Histogram, fn() -> Histogram>,
    attempt_number_success: Histogram,
    /// Events taken in.
    pub(crate) published: Counter,
    /// Repeats of an idempotency key.
    pub(crate) duplicates: Counter,
    /// Deliveries given up on.
    pub(crate) dead: Counter,
    /// Outcomes refused because the lease was lost.
    pub(crate) fenced: Counter,
    transitions: Family<TransitionLabels, Counter>,
    rate_limit_hits: Counter,
    pruned: Family<KindLabel, Counter>,
    /// Whole months that were dropped.
    pub(crate) months_pruned: Counter,
    /// When the oldest event was published, in seconds; 0 if there is none or it was not looked for.
    pub(crate) oldest_event: Gauge<i64, std::sync::atomic::AtomicI64>,
    /// Whether the store took the last write.
    pub(crate) store_up: Gauge<i64, std::sync::atomic::AtomicI64>,
    /// Whether Redis answers; 0 where there is none.
    pub(crate) redis_up: Gauge<i64, std::sync::atomic::AtomicI64>,
    /// Whether there is a Redis and it does not answer.
    pub(crate) redis_fallback: Gauge<i64, std::sync::atomic::AtomicI64>,
    /// Batches sent to Redis.
    pub(crate) redis_round_trips: Counter,
}

fn attempt_numbers() -> Histogram {
    Histogram::new([1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 25.0, 50.0])
}

impl Metrics {
    /// Makes the figures and lists them in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        let deliveries = Family::<DeliveryLabels, Counter<u64, AtomicU64>>::default();
        let attempt_number =
            Family::<OutcomeLabel, Histogram, fn() -> Histogram>::new_with_constructor(attempt_numbers);
        let label = DeliveryLabels { status: DeliveryStatus::Delivered.name(), failure_category: "" };
        let delivered = deliveries.get_or_create(&label).clone();
        let attempt_number_success =
            attempt_number.get_or_create(&OutcomeLabel { outcome: "success" }).clone();
        let by_phase = Family::<PhaseLabel, Histogram, fn() -> Histogram>::new_with_constructor(seconds);
        let phases = PHASES.map(|phase| by_phase.get_or_create(&PhaseLabel { phase }).clone());
        registry.register(
            "webhook_delivery_phase_duration_seconds",
            "Phases of a request: looking the name up, connecting, TLS, first byte of the answer",
            by_phase,
        );
        let metrics = Self {
            delivered,
            deliveries,
            duration: seconds(),
            phases,
            dispatch_latency: Histogram::new(exponential_buckets(0.0005, 2.0, 18)),
            attempt_number_success,
            attempt_number,
            published: Counter::default(),
            duplicates: Counter::default(),
            dead: Counter::default(),
            fenced: Counter::default(),
            transitions: Family::default(),
            rate_limit_hits: Counter::default(),
            pruned: Family::default(),
            months_pruned: Counter::default(),
            oldest_event: Gauge::default(),
            store_up: Gauge::default(),
            redis_up: Gauge::default(),
            redis_fallback: Gauge::default(),
            redis_round_trips: Counter::default(),
        };
        metrics.store_up.set(1);
        metrics.list(registry);
        metrics
    }

    fn list(&self, registry: &mut Registry) {
        registry.register(
            "webhook_deliveries",
            "Attempts and ends of deliveries, by what became of them",
            self.deliveries.clone(),
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
        registry.register(
            "webhook_retry_attempt_number",
            "Number of the attempt, by its outcome",
            self.attempt_number.clone(),
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
            "webhook_circuit_breaker_transitions",
            "Moves of circuits from one state to another",
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
        registry.register("webhook_store_up", "1 while the store takes writes", self.store_up.clone());
        registry.register("webhook_redis_up", "1 while Redis answers", self.redis_up.clone());
        registry.register(
            "webhook_redis_fallback_active",
            "1 while there is a Redis that does not answer, and this node goes by what it knows",
            self.redis_fallback.clone(),
        );
        registry.register(
            "redrive_redis_round_trips",
            "Batches of decisions sent to Redis",
            self.redis_round_trips.clone(),
        );
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

    /// Counts an attempt: what its delivery is now, and why it failed if it did.
    pub(crate) fn attempted(&self, number: u32, now: DeliveryStatus, failure: Option<FailureCategory>) {
        match failure {
            None => {
                self.delivered.inc();
                self.attempt_number_success.observe(f64::from(number));
            }
            Some(category) => {
                // Pending after an attempt means that it failed and another one is to come.
                let status = if now == DeliveryStatus::Pending { "failed" } else { now.name() };
                let label = DeliveryLabels { status, failure_category: category.name() };
                self.deliveries.get_or_create(&label).inc();
                self.attempt_number
                    .get_or_create(&OutcomeLabel { outcome: status })
                    .observe(f64::from(number));
            }
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

    /// Counts a delivery that was given up on while something held it back.
    pub(crate) fn expired(&self) {
        self.dead.inc();
        self.ended_unsent(DeliveryStatus::Dead);
    }

    /// Counts a delivery that ended without a request.
    pub(crate) fn ended_unsent(&self, status: DeliveryStatus) {
        self.deliveries.get_or_create(&DeliveryLabels { status: status.name(), failure_category: "" }).inc();
    }
}

//! Metrics of the data path. Handles are created once and every series starts at 0, so that a first failure is
//! visible as an increase; the hot path only counts. Values that tenants choose never become labels here;
//! `breakdown` has those.

mod breakdown;
mod network;
mod notifications;
mod store;

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use redrive_core::{
    DeadReason, FailureCategory, TenantId, WebhookId, delivery::outcome::Outcome, dispatch::gate::WaitingOn,
    event::Event, protection::breaker::CircuitState, security::egress_rules::EgressDenied,
};
use redrive_egress::Timings;
use redrive_store::PruneCounts;

pub use self::breakdown::BreakdownSettings;
use self::{
    breakdown::Breakdowns, network::NetworkHealth, notifications::NotificationMetrics, store::StoreHealth,
};

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
/// Buckets from a response on the same machine to the longest time that an endpoint may take.
const DURATION_BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 90.0];
/// Buckets from immediate sending to a wait of minutes.
const LATENCY_BUCKETS: [f64; 17] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const ATTEMPT_BUCKETS: [f64; 10] = [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 25.0, 50.0];

fn seconds() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}

fn attempt_numbers() -> Histogram {
    Histogram::new(ATTEMPT_BUCKETS)
}

/// Internal errors that should never occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InternalError {
    /// A task panicked.
    Panic,
    /// A request got the response 500.
    Response,
    /// The store rejected an outcome as invalid.
    Outcome,
}

impl InternalError {
    const ALL: [Self; 3] = [Self::Panic, Self::Response, Self::Outcome];

    fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Response => "response",
            Self::Outcome => "outcome",
        }
    }
}

/// Deliveries by result and failure category, `[result][category]`; the last entry of each is for no category.
struct Deliveries([[Counter; CATEGORIES + 1]; 4]);

const CATEGORIES: usize = FailureCategory::ALL.len();

impl Deliveries {
    fn new(registry: &mut Registry) -> Self {
        let family = Family::<DeliveryLabels, Counter>::default();
        let counters = Outcome::LABELS.map(|status| {
            std::array::from_fn(|index| {
                let category = FailureCategory::ALL.get(index).map_or("", |category| category.name());
                let labels = DeliveryLabels { status, failure_category: category };
                // Impossible combinations are not exported: a success has no category, and a failure always has one.
                match (status, category) {
                    ("delivered", "") | ("dead" | "cancelled", _) => family.get_or_create(&labels).clone(),
                    ("failed", category) if !category.is_empty() => family.get_or_create(&labels).clone(),
                    _ => Counter::default(),
                }
            })
        });
        registry.register(
            "webhook_deliveries",
            "Attempts and ended deliveries, by status; failed: another attempt follows",
            family,
        );
        Self(counters)
    }

    fn counter(&self, outcome: &Outcome, category: Option<FailureCategory>) -> &Counter {
        &self.0[outcome.index()][category.map_or(CATEGORIES, |category| category as usize)]
    }
}

/// Metrics of one engine.
pub struct Metrics {
    deliveries: Deliveries,
    /// Seconds from sending the request to the end of the response.
    duration: Histogram,
    /// Seconds of each phase: DNS, connect, TLS, first byte.
    phases: [Histogram; 4],
    /// Seconds from the due time to sending.
    pub(crate) dispatch_latency: Histogram,
    /// Attempt numbers by result.
    attempt_number: [Histogram; 4],
    /// Events published.
    pub(crate) published: Counter,
    /// Publishes with a repeated idempotency key.
    pub(crate) duplicates: Counter,
    dead: Counter,
    /// Outcomes rejected because the lease was lost.
    pub(crate) leases_lost: Counter,
    transitions: Family<TransitionLabels, Counter>,
    rate_limit_hits: Counter,
    egress_refused: Family<ReasonLabel, Counter>,
    pub(crate) connection_limit: Counter,
    /// Largest cost of one check that ran on a Tokio worker thread.
    pub(crate) largest_inline_work: Gauge,
    recovered: Family<KindLabel, Counter>,
    faults: [Counter; 3],
    /// Notifications to owners by result.
    pub(crate) notifications: NotificationMetrics,
    pruned: Family<KindLabel, Counter>,
    /// Monthly partitions dropped.
    pub(crate) months_pruned: Counter,
    /// Unix time in seconds of the oldest event; 0 if there is none or it was not determined.
    pub(crate) oldest_event: Gauge,
    /// Unconfirmed difference in seconds between the clock and its prediction.
    pub(crate) clock_jump: Gauge<f64, AtomicU64>,
    pub(crate) clock_jumps: Counter,
    /// Availability of the store.
    pub(crate) store: StoreHealth,
    /// Whether endpoints respond.
    pub(crate) network: NetworkHealth,
    /// Whether Redis responds.
    pub(crate) redis_up: Gauge,
    /// Whether Redis is configured and does not respond.
    pub(crate) redis_fallback: Gauge,
    /// Batches sent to Redis.
    pub(crate) redis_round_trips: Counter,
    /// Configured breakdowns by tenant, webhook and event type.
    by: Option<Breakdowns>,
}

impl Metrics {
    /// Creates the metrics and registers them; those of Redis only if it is configured.
    pub fn new(registry: &mut Registry, series: BreakdownSettings, has_redis: bool) -> Self {
        let numbers =
            Family::<OutcomeLabel, Histogram, fn() -> Histogram>::new_with_constructor(attempt_numbers);
        let attempt_number = Outcome::LABELS.map(|label| {
            let outcome = if label == "delivered" { "success" } else { label };
            numbers.get_or_create(&OutcomeLabel { outcome }).clone()
        });
        registry.register(
            "webhook_retry_attempt_number",
            "Attempt numbers, by outcome of the attempt",
            numbers,
        );
        let by_phase = Family::<PhaseLabel, Histogram, fn() -> Histogram>::new_with_constructor(seconds);
        let phases = PHASES.map(|phase| by_phase.get_or_create(&PhaseLabel { phase }).clone());
        registry.register(
            "webhook_delivery_phase_duration_seconds",
            "Phases of a request: DNS lookup, connect, TLS handshake, first byte of the response",
            by_phase,
        );
        let faults = Family::<KindLabel, Counter>::default();
        let metrics = Self {
            deliveries: Deliveries::new(registry),
            duration: seconds(),
            phases,
            dispatch_latency: Histogram::new(LATENCY_BUCKETS),
            attempt_number,
            published: Counter::default(),
            duplicates: Counter::default(),
            dead: Counter::default(),
            leases_lost: Counter::default(),
            transitions: Family::default(),
            recovered: Family::default(),
            rate_limit_hits: Counter::default(),
            egress_refused: Family::default(),
            connection_limit: Counter::default(),
            largest_inline_work: Gauge::default(),
            faults: InternalError::ALL
                .map(|fault| faults.get_or_create(&KindLabel { kind: fault.name() }).clone()),
            notifications: NotificationMetrics::new(registry),
            pruned: Family::default(),
            months_pruned: Counter::default(),
            oldest_event: Gauge::default(),
            clock_jump: Gauge::default(),
            clock_jumps: Counter::default(),
            store: StoreHealth::new(registry),
            network: NetworkHealth::default(),
            redis_up: Gauge::default(),
            redis_fallback: Gauge::default(),
            redis_round_trips: Counter::default(),
            by: Breakdowns::new(series, registry),
        };
        registry.register(
            "redrive_internal_errors",
            "Internal errors: tasks that panicked, responses with 500, outcomes that could not be stored unchanged",
            faults,
        );
        metrics.init_series();
        metrics.register(registry);
        metrics.register_redis(registry, has_redis);
        metrics
    }

    /// Creates the series that are otherwise created when first counted, so that they start at 0.
    fn init_series(&self) {
        let states = CircuitState::ALL.into_iter();
        for (from, to) in states.clone().flat_map(|from| states.clone().map(move |to| (from, to))) {
            if from != to {
                let label = TransitionLabels { from_state: from.name(), to_state: to.name() };
                drop(self.transitions.get_or_create(&label));
            }
        }
        self.set_egress_refused(EgressDenied::LABELS.map(|reason| (reason, 0)));
        self.pruned(&PruneCounts::default());
        for kind in ["lease", "lane", "assignment"] {
            self.recovered(kind, 0);
        }
    }

    /// Counts entries that the lease auditor recovered.
    pub(crate) fn recovered(&self, kind: &'static str, count: usize) {
        self.recovered.get_or_create(&KindLabel { kind }).inc_by(count as u64);
    }

    /// Sets the number of connections that the egress guard has refused since the start, by reason.
    pub(crate) fn set_egress_refused(&self, refused: impl IntoIterator<Item = (&'static str, u64)>) {
        for (reason, count) in refused {
            let counter = self.egress_refused.get_or_create(&ReasonLabel { reason });
            counter.inner().fetch_max(count, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "webhook_egress_refused",
            "Connections refused by the egress guard, by reason",
            self.egress_refused.clone(),
        );
        registry.register(
            "webhook_egress_host_busy",
            "Deliveries returned to the queue because their address had reached its connection limit",
            self.connection_limit.clone(),
        );
        registry.register(
            "redrive_inline_work_max",
            "Maximum work of one check on a Tokio worker thread since the start",
            self.largest_inline_work.clone(),
        );
        registry.register(
            "webhook_delivery_duration_seconds",
            "Time from sending a request to the end of its response",
            self.duration.clone(),
        );
        registry.register(
            "webhook_dispatch_latency_seconds",
            "Time from the due time of a delivery to sending its request",
            self.dispatch_latency.clone(),
        );
        registry.register("webhook_events_published", "Events accepted", self.published.clone());
        registry.register(
            "webhook_idempotency_duplicates",
            "Publishes that repeated an idempotency key",
            self.duplicates.clone(),
        );
        registry.register("webhook_dlq_entries", "Deliveries marked dead", self.dead.clone());
        registry.register(
            "webhook_outcomes_fenced",
            "Outcomes discarded because the lease was lost",
            self.leases_lost.clone(),
        );
        registry.register(
            "redrive_leases_recovered",
            "Leases, claimed lanes and assignments that this node owned in the store but did not know in memory",
            self.recovered.clone(),
        );
        registry.register(
            "webhook_circuit_breaker_transitions",
            "Circuit transitions, counted by the node that performed them",
            self.transitions.clone(),
        );
        registry.register(
            "webhook_rate_limit_hits",
            "Deliveries held by a rate limit or by the endpoint's Retry-After",
            self.rate_limit_hits.clone(),
        );
        registry.register("redrive_pruned_rows", "Rows pruned after their retention", self.pruned.clone());
        registry.register(
            "redrive_pruned_partitions",
            "Monthly partitions dropped after their retention; their rows are not counted as pruned rows",
            self.months_pruned.clone(),
        );
        registry.register(
            "redrive_oldest_event_timestamp_seconds",
            "Time at which the oldest event was published, reported by the node that prunes; 0 on other nodes",
            self.oldest_event.clone(),
        );
        registry.register(
            "redrive_clock_jump_seconds",
            "Reference clock minus its prediction while a jump is unconfirmed; otherwise 0",
            self.clock_jump.clone(),
        );
        registry.register("redrive_clock_jumps", "Jumps of the reference clock", self.clock_jumps.clone());
    }

    fn register_redis(&self, registry: &mut Registry, has_redis: bool) {
        registry.register(
            "webhook_redis_fallback_active",
            "1 while Redis is unavailable and this node uses its local fallback",
            self.redis_fallback.clone(),
        );
        if has_redis {
            registry.register(
                "webhook_redis_up",
                "1 while Redis responds to this node; absent without Redis",
                self.redis_up.clone(),
            );
            registry.register(
                "redrive_redis_round_trips",
                "Batches of operations sent to Redis",
                self.redis_round_trips.clone(),
            );
        }
    }

    /// Records the duration of a request and of its phases.
    pub(crate) fn record_exchange(&self, timings: &Timings) {
        self.duration.observe(timings.total.as_secs_f64());
        let phases = [timings.dns, timings.connect, timings.tls, timings.ttfb];
        for (histogram, took) in self.phases.iter().zip(phases) {
            if let Some(took) = took {
                histogram.observe(took.as_secs_f64());
            }
        }
    }

    /// Counts the result for a delivery: of an attempt with this number and failure category, or of an end without a
    /// request.
    pub(crate) fn record_outcome(
        &self,
        event: &Event,
        webhook_id: WebhookId,
        outcome: &Outcome,
        attempt: Option<(u32, Option<FailureCategory>)>,
    ) {
        self.deliveries.counter(outcome, attempt.and_then(|(_, failure)| failure)).inc();
        if let Some((number, failure)) = attempt {
            self.network.record(webhook_id, failure);
            self.attempt_number[outcome.index()].observe(f64::from(number));
        }
        if let Outcome::Dead(_) = outcome {
            self.dead.inc();
        }
        if let Some(by) = &self.by {
            by.count(outcome, &event.tenant_id, webhook_id, Some(&event.event_type), 1);
        }
    }

    /// Counts deliveries of a webhook that expired while they were blocked in the store.
    pub(crate) fn expired(&self, tenant_id: &TenantId, webhook_id: WebhookId, count: u64) {
        let expired = Outcome::Dead(DeadReason::Expired);
        self.dead.inc_by(count);
        self.deliveries.counter(&expired, None).inc_by(count);
        if let Some(by) = &self.by {
            by.count(&expired, tenant_id, webhook_id, None, count);
        }
    }

    /// Counts pruned rows.
    pub(crate) fn pruned(&self, counts: &PruneCounts) {
        let kinds = [("event", counts.events), ("delivery", counts.deliveries), ("attempt", counts.attempts)];
        for (kind, count) in kinds {
            self.pruned.get_or_create(&KindLabel { kind }).inc_by(count as u64);
        }
    }

    /// Counts a delivery that the gate did not admit, if it waits for a rate limit or the end of a pause after a 429.
    pub(crate) fn count_rate_limited(&self, reason: WaitingOn) {
        if reason == WaitingOn::RateLimit {
            self.rate_limit_hits.inc();
        }
    }

    /// Counts a circuit transition.
    pub(crate) fn record_transition(&self, from: CircuitState, to: CircuitState) {
        let label = TransitionLabels { from_state: from.name(), to_state: to.name() };
        self.transitions.get_or_create(&label).inc();
    }

    /// Returns the counter of this kind of internal error.
    pub(crate) fn internal_error_counter(&self, fault: InternalError) -> &Counter {
        &self.faults[fault as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_starts_at_zero() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry, BreakdownSettings::default(), true);
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
            "redrive_store_consecutive_failures 0",
            "webhook_store_up 1",
            "webhook_redis_up 0",
            "webhook_egress_refused_total{reason=\"address\"} 0",
        ] {
            assert!(text.lines().any(|reported| reported == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("status=\"failed\",failure_category=\"\""), "a failure has a category");
        for category in FailureCategory::ALL {
            metrics.deliveries.counter(&Outcome::Retry { at: Default::default() }, Some(category)).inc();
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
    fn only_fallback_metric_exists_without_redis() {
        let mut registry = Registry::default();
        Metrics::new(&mut registry, BreakdownSettings::default(), false);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(!text.contains("webhook_redis_up") && text.contains("webhook_redis_fallback_active 0"));
    }
}

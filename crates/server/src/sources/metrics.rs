//! Metrics of sources: outcomes of their messages, and whether they are consuming.

use std::sync::atomic::AtomicI64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MessageLabels {
    source: String,
    outcome: &'static str,
}

/// Metrics of all sources.
pub(super) struct SourceMetricsRegistry {
    messages: Family<MessageLabels, Counter>,
    up: Family<SourceLabel, Gauge<i64, AtomicI64>>,
    waiting: Family<SourceLabel, Gauge<i64, AtomicI64>>,
    consecutive_failures: Family<SourceLabel, Gauge<i64, AtomicI64>>,
}

/// Metrics of one source.
pub(super) struct SourceMetrics {
    pub(super) published: Counter,
    pub(super) duplicate: Counter,
    pub(super) rejected: Counter,
    /// 1 while the source is consuming.
    pub(super) up: Gauge<i64, AtomicI64>,
    /// Number of messages deferred because of the store or a quota.
    pub(super) waiting: Gauge<i64, AtomicI64>,
    /// Number of consecutive failures to start consuming.
    pub(super) consecutive_failures: Gauge<i64, AtomicI64>,
}

impl SourceMetricsRegistry {
    /// Creates the metrics and registers them in `registry`.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            messages: Family::default(),
            up: Family::default(),
            waiting: Family::default(),
            consecutive_failures: Family::default(),
        };
        registry.register(
            "redrive_source_messages",
            "Messages of a source by outcome",
            metrics.messages.clone(),
        );
        registry.register("redrive_source_up", "Whether a source is consuming", metrics.up.clone());
        registry.register(
            "redrive_source_messages_waiting",
            "Messages of a source that wait for the store or a quota",
            metrics.waiting.clone(),
        );
        registry.register(
            "redrive_source_consecutive_failures",
            "Consecutive failures of a source to start consuming",
            metrics.consecutive_failures.clone(),
        );
        metrics
    }

    pub(super) fn for_source(&self, source: &str) -> SourceMetrics {
        let label = SourceLabel { source: source.to_owned() };
        let of = |outcome| {
            self.messages.get_or_create(&MessageLabels { source: source.to_owned(), outcome }).clone()
        };
        SourceMetrics {
            published: of("published"),
            duplicate: of("duplicate"),
            rejected: of("rejected"),
            up: self.up.get_or_create(&label).clone(),
            waiting: self.waiting.get_or_create(&label).clone(),
            consecutive_failures: self.consecutive_failures.get_or_create(&label).clone(),
        }
    }
}

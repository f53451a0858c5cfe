//! Figures about sources: what became of their messages, and whether they take any in.

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

/// The figures of all sources.
pub(super) struct Figures {
    messages: Family<MessageLabels, Counter>,
    up: Family<SourceLabel, Gauge<i64, AtomicI64>>,
    waiting: Family<SourceLabel, Gauge<i64, AtomicI64>>,
    failed_tries: Family<SourceLabel, Gauge<i64, AtomicI64>>,
}

/// The figures of one source.
pub(super) struct SourceFigures {
    pub(super) published: Counter,
    pub(super) duplicate: Counter,
    pub(super) rejected: Counter,
    /// Whether it takes messages in.
    pub(super) up: Gauge<i64, AtomicI64>,
    /// How many messages wait here for the store, or for a quota.
    pub(super) waiting: Gauge<i64, AtomicI64>,
    /// How often in a row it could not begin to take messages in.
    pub(super) failed_tries: Gauge<i64, AtomicI64>,
}

impl Figures {
    /// Makes the figures and lists them in `registry`.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let figures = Self {
            messages: Family::default(),
            up: Family::default(),
            waiting: Family::default(),
            failed_tries: Family::default(),
        };
        registry.register(
            "redrive_source_messages",
            "Messages of a source that were let go of, by what became of them",
            figures.messages.clone(),
        );
        registry.register("redrive_source_up", "Whether a source takes messages in", figures.up.clone());
        registry.register(
            "redrive_source_waiting",
            "Messages of a source that wait for the store, or for a quota",
            figures.waiting.clone(),
        );
        registry.register(
            "redrive_source_failed_tries",
            "How often in a row a source could not begin to take messages in",
            figures.failed_tries.clone(),
        );
        figures
    }

    pub(super) fn of(&self, source: &str) -> SourceFigures {
        let label = SourceLabel { source: source.to_owned() };
        let of = |outcome| {
            self.messages.get_or_create(&MessageLabels { source: source.to_owned(), outcome }).clone()
        };
        SourceFigures {
            published: of("published"),
            duplicate: of("duplicate"),
            rejected: of("rejected"),
            up: self.up.get_or_create(&label).clone(),
            waiting: self.waiting.get_or_create(&label).clone(),
            failed_tries: self.failed_tries.get_or_create(&label).clone(),
        }
    }
}

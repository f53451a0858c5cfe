//! Tickets for ready deliveries over RabbitMQ, from nodes that accept events to nodes that send them.
//!
//! A publisher of deliveries for other nodes makes them due after [`TICKET_CLAIM_TIMEOUT`] and publishes tickets for them
//! once they are committed (`publisher`). A sending node claims what tickets name (`consumer`). The store stays
//! the source of truth: a delivery whose ticket is not used is claimed from it after the grace period; without a
//! broker deliveries are due immediately.

mod consumer;
mod link;
mod publisher;
mod topology;

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
#[cfg(doc)]
use redrive_core::cluster::ticket::TICKET_CLAIM_TIMEOUT;

pub(crate) use self::{
    consumer::TicketConsumer,
    publisher::{TicketItem, TicketPublisherService},
};
use self::{publisher::TicketPublisher, topology::Topology};
use crate::settings::TicketSettings;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TicketOutcomeLabel {
    outcome: &'static str,
}

/// Metrics of tickets, counted in deliveries, and of the broker connections.
pub(crate) struct TicketMetrics {
    /// Sent and confirmed by the broker.
    issued: Counter,
    /// Not confirmed or not accepted by the broker: left to the store.
    unconfirmed: Counter,
    /// Claimed by their tickets.
    taken: Counter,
    /// Named by a ticket but no longer waiting.
    stale: Counter,
    /// Left to the store, because the webhook had no capacity or needs an assigned node.
    skipped: Counter,
    /// Messages that are not valid tickets.
    rejected: Counter,
    up: Gauge,
    /// Consecutive failures to connect, for publishing and for consuming.
    consecutive_failures: [Gauge; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LinkLabel {
    link: &'static str,
}

impl TicketMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let outcomes = Family::<TicketOutcomeLabel, Counter>::default();
        let outcome = |outcome| outcomes.get_or_create(&TicketOutcomeLabel { outcome }).clone();
        let failure_gauges = Family::<LinkLabel, Gauge>::default();
        let metrics = Self {
            consecutive_failures: ["publish", "consume"]
                .map(|link| failure_gauges.get_or_create(&LinkLabel { link }).clone()),
            issued: outcome("published"),
            unconfirmed: outcome("unconfirmed"),
            taken: outcome("claimed"),
            stale: outcome("stale"),
            skipped: outcome("skipped"),
            rejected: outcome("rejected"),
            up: Gauge::default(),
        };
        registry.register(
            "webhook_amqp_tickets",
            "Deliveries named by tickets over RabbitMQ, by outcome of the ticket; rejected: messages that are not tickets",
            outcomes,
        );
        registry.register(
            "webhook_amqp_up",
            "1 while this node has every connection to RabbitMQ that it needs for tickets",
            metrics.up.clone(),
        );
        registry.register(
            "redrive_amqp_consecutive_failures",
            "Consecutive failures to connect to RabbitMQ, for publishing and for consuming tickets",
            failure_gauges,
        );
        metrics
    }
}

/// Ticket publisher and consumer of a node.
pub(crate) struct TicketBroker {
    settings: TicketSettings,
    topology: Topology,
    metrics: TicketMetrics,
    /// Connections that this node needs, and those that are up.
    links: link::LinkStatus,
    issuing: TicketPublisher,
    /// Monotonic time in seconds from which an invalid ticket is logged again.
    next_log_at: AtomicU64,
}

impl TicketBroker {
    pub(crate) fn new(settings: &TicketSettings, registry: &mut Registry) -> Self {
        Self {
            topology: Topology::new(&settings.namespace),
            settings: settings.clone(),
            metrics: TicketMetrics::new(registry),
            links: link::LinkStatus::default(),
            issuing: TicketPublisher::default(),
            next_log_at: AtomicU64::new(0),
        }
    }
}

impl TicketBroker {
    /// Returns whether this node has every broker connection that it needs for tickets.
    pub(crate) fn is_up(&self) -> bool {
        self.links.is_complete()
    }

    /// Returns whether deliveries published now for other nodes should get tickets.
    pub(crate) fn issues_tickets(&self) -> bool {
        self.issuing.is_open()
    }

    /// Records that this node publishes tickets, and needs a connection for that.
    pub(crate) fn require_publish_link(&self) {
        self.links.require(link::PUBLISH_LINK);
    }

    /// Records that this node consumes tickets, and needs a connection for that.
    pub(crate) fn require_consume_link(&self) {
        self.links.require(link::CONSUME_LINK);
    }
}

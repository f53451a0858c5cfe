//! Tickets for ready deliveries over RabbitMQ, from nodes that accept events to nodes that send them.
//!
//! A publisher of deliveries for other nodes makes them due after [`CLAIM_GRACE`] and publishes tickets for them
//! once they are committed (`publisher`). A sending node claims what tickets name (`consumer`). The store stays
//! the source of truth: a delivery whose ticket is not used is claimed from it after the grace period; without a
//! broker deliveries are due immediately.

mod consumer;
mod link;
mod publisher;
mod topology;

use std::sync::{Arc, atomic::AtomicU64};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
#[cfg(doc)]
use redrive_core::cluster::ticket::CLAIM_GRACE;
use redrive_core::{delivery::lane::Lane, webhook::WebhookState};

pub(crate) use self::publisher::TicketItem;
use self::{publisher::TicketPublisher, topology::Topology};
use crate::{Engine, Inner, amqp::Broker, registry::ResolvedWebhook, services::ServiceKind};

/// Settings of tickets.
#[derive(Clone, Debug)]
pub struct TicketSettings {
    /// RabbitMQ server.
    pub broker: Broker,
    /// Prefix of the names of all exchanges and queues.
    pub namespace: String,
    /// Maximum number of unacknowledged tickets per queue and node.
    pub prefetch: u16,
}

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

impl Engine {
    /// Returns whether this node has every broker connection that it needs for tickets; `None` without a broker.
    pub fn broker_up(&self) -> Option<bool> {
        self.0.tickets.as_ref().map(|broker| broker.links.is_complete())
    }

    /// Returns whether the broker accepts tickets from this node now: false if it is unavailable, late, full or
    /// blocked.
    pub fn issues_tickets(&self) -> bool {
        self.0.issues_tickets()
    }
}

impl Inner {
    /// Starts the ticket publisher if this node serves the API, and the consumer if it sends.
    pub(crate) fn start_tickets(self: &Arc<Self>) {
        let Some(broker) = &self.tickets else { return };
        if self.settings.role.serves_api() {
            broker.links.require(link::PUBLISH_LINK);
            self.run_service("ticket_publisher", ServiceKind::Auxiliary, Inner::run_ticket_publisher);
        }
        if self.settings.role.sends() {
            broker.links.require(link::CONSUME_LINK);
            self.run_service("ticket_consumer", ServiceKind::Auxiliary, Inner::run_ticket_consumer);
        }
    }

    /// Returns whether deliveries published now for other nodes should get tickets.
    pub(crate) fn issues_tickets(&self) -> bool {
        self.tickets.as_ref().is_some_and(|broker| broker.issuing.is_open())
    }

    /// Returns whether a delivery that is due immediately should get a ticket: other nodes serve its pool, any of them
    /// may send it, and nothing blocks it.
    pub(crate) fn wants_ticket(&self, webhook: &ResolvedWebhook, lane: &Lane) -> bool {
        if webhook.state != WebhookState::Active {
            return false;
        }
        if webhook.tenant.is_pool_served_here() || lane.is_ordered() || self.needs_assignment(webhook) {
            return false;
        }
        let senders = self.membership.senders(&webhook.tenant.pool());
        // With fewer slots than sending nodes the webhook needs an assigned node, unless Redis distributes the slots.
        senders > 0 && (senders <= webhook.max_in_flight as usize || self.redis_coordinator().is_some())
    }
}

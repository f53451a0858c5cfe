//! Tickets for ready work over RabbitMQ, for nodes that take events and nodes that send them.
//!
//! Whoever publishes what other nodes send has its deliveries wait for a moment ([`GRACE`]) and issues tickets for
//! them once they are committed (`issue`). Whoever sends turns tickets into leases (`take`). The store is the truth: a
//! delivery whose ticket nobody takes is claimed from there when the moment is over, and while there is no broker
//! nothing has to wait for that moment.

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
use redrive_core::cluster::ticket::GRACE;
use redrive_core::{delivery::lane::Lane, webhook::WebhookState};

pub(crate) use self::publisher::Issue;
use self::{publisher::Issuing, topology::Topology};
use crate::{Engine, Inner, amqp::Broker, registry::Hook};

/// What the operator decides about tickets.
#[derive(Clone, Debug)]
pub struct Tickets {
    /// The server that carries them.
    pub broker: Broker,
    /// What the names of all that is declared there begin with.
    pub namespace: String,
    /// Tickets of one queue that a node has in hand at the most.
    pub prefetch: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Fate {
    fate: &'static str,
}

/// What became of tickets, counted by the deliveries that they name; and whether the broker is there.
pub(crate) struct Figures {
    /// Sent to the broker, and confirmed by it.
    issued: Counter,
    /// Not confirmed by the broker, or not taken by it: left to the store.
    unconfirmed: Counter,
    /// Leased by their tickets.
    taken: Counter,
    /// Named by a ticket, but no longer there to be taken.
    stale: Counter,
    /// Left to the store, since there was no room for their webhook, or it must be sent from elsewhere.
    left: Counter,
    /// Messages that are no tickets.
    rejected: Counter,
    up: Gauge,
    /// How often in a row a connection could not be made: for tickets that leave, and for those that come in.
    failed_tries: [Gauge; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LinkLabel {
    link: &'static str,
}

impl Figures {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let fates = Family::<Fate, Counter>::default();
        let fate = |fate| fates.get_or_create(&Fate { fate }).clone();
        let tries = Family::<LinkLabel, Gauge>::default();
        let figures = Self {
            failed_tries: ["issue", "take"].map(|link| tries.get_or_create(&LinkLabel { link }).clone()),
            issued: fate("issued"),
            unconfirmed: fate("unconfirmed"),
            taken: fate("taken"),
            stale: fate("stale"),
            left: fate("left"),
            rejected: fate("rejected"),
            up: Gauge::default(),
        };
        registry.register(
            "webhook_amqp_tickets",
            "Deliveries named by tickets over RabbitMQ, by what became of the ticket; rejected: messages that are no tickets",
            fates,
        );
        registry.register(
            "webhook_amqp_up",
            "Whether this node has every connection to RabbitMQ that it needs for tickets",
            figures.up.clone(),
        );
        registry.register(
            "redrive_amqp_failed_tries",
            "How often in a row a connection to RabbitMQ could not be made, for issuing tickets and for taking them",
            tries,
        );
        figures
    }
}

/// A node's part in carrying tickets.
pub(crate) struct Office {
    settings: Tickets,
    topology: Topology,
    figures: Figures,
    /// Which connections it needs, and which of them it has.
    links: link::Links,
    issuing: Issuing,
    /// From when on, in seconds of ticks, a message that is no ticket is worth another line in the log.
    next_line: AtomicU64,
}

impl Office {
    pub(crate) fn new(settings: &Tickets, registry: &mut Registry) -> Self {
        Self {
            topology: Topology::new(&settings.namespace),
            settings: settings.clone(),
            figures: Figures::new(registry),
            links: link::Links::default(),
            issuing: Issuing::default(),
            next_line: AtomicU64::new(0),
        }
    }
}

impl Engine {
    /// Whether this node has every connection to the broker that it needs for tickets; none without a broker.
    pub fn broker_up(&self) -> Option<bool> {
        self.0.tickets.as_ref().map(|office| office.links.are_all_there())
    }

    /// Whether the broker takes tickets from this node now: not if it is away, late, full or out of memory.
    pub fn issues_tickets(&self) -> bool {
        self.0.issues_tickets()
    }
}

impl Inner {
    /// Begins to issue tickets and to take them, as far as this node does either.
    pub(crate) fn begin_tickets(self: &Arc<Self>) {
        let Some(office) = &self.tickets else { return };
        if self.settings.role.serves_api() {
            office.links.need(link::OUT);
            let waiting = office.issuing.begin();
            tokio::spawn(self.clone().keep_issuing(waiting));
        }
        if self.settings.role.sends() {
            office.links.need(link::IN);
            tokio::spawn(self.clone().keep_taking());
        }
    }

    /// Whether what is published now for webhooks of other nodes should get tickets.
    pub(crate) fn issues_tickets(&self) -> bool {
        self.tickets.as_ref().is_some_and(|office| office.issuing.is_open())
    }

    /// Whether a delivery that is due at once should be taken by its ticket: others send it, any of them may, and
    /// nothing holds it back.
    pub(crate) fn is_for_a_ticket(&self, hook: &Hook, lane: &Lane) -> bool {
        if hook.state != WebhookState::Active {
            return false;
        }
        if hook.tenant.is_of_our_pools() || lane.is_ordered() || self.needs_home(hook) {
            return false;
        }
        let senders = self.fleet.senders(&hook.tenant.pool());
        // With fewer requests than senders one of these alone must send, unless Redis has them go round.
        senders > 0 && (senders <= hook.max_in_flight as usize || self.shared().is_some())
    }
}

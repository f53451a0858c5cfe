//! Helpers for nodes that accept events and nodes that send them, with or without a broker between them.

use redrive_core::{DeliveryId, Role, cluster::ticket::Ticket, delivery::lane::Priority};
use redrive_engine::{
    EventDraft, Settings, TicketSettings,
    amqp::{Broker, BrokerUrl},
};

use crate::{
    cluster_harness::{LEASE, named},
    harness::{Harness, draft},
};

/// Prefix of all names that the tests declare.
pub(crate) const NAMESPACE: &str = "redrive";

/// Returns the queue of the default pool.
pub(crate) fn queue(priority: Priority) -> String {
    format!("{NAMESPACE}.v1.tickets.default.{}", priority.name())
}

/// Queue of rejected messages.
pub(crate) const REJECTED: &str = "redrive.v1.rejected";

pub(crate) fn tickets(url: &str) -> TicketSettings {
    let broker = Broker::new(BrokerUrl::read(url).unwrap(), "test");
    TicketSettings { broker, namespace: NAMESPACE.into(), prefetch: 50 }
}

pub(crate) fn node(name: &str, role: Role, broker: Option<&str>) -> Settings {
    Settings { role, tickets: broker.map(tickets), ..named(name) }
}

pub(crate) fn urgent(n: usize, priority: Priority) -> EventDraft {
    EventDraft { priority, ..draft(n) }
}

impl Harness {
    /// Waits until the node's broker connections are up, or down.
    pub(crate) async fn broker_is(&self, up: bool) {
        let what = if up { "the broker is used" } else { "the broker is declared unavailable" };
        self.eventually(what, async || self.engine.broker_up() == Some(up)).await;
    }

    /// Waits until the node is connected to the broker and the cluster has `nodes` nodes.
    pub(crate) async fn is_set_up(&self, nodes: usize) {
        if self.engine.broker_up().is_some() {
            self.broker_is(true).await;
        }
        self.cluster_has(nodes).await;
    }

    /// Waits until the cluster has `nodes` nodes, and for the time in which all of them read it.
    pub(crate) async fn cluster_has(&self, nodes: usize) {
        self.eventually("all nodes have joined", async || {
            self.engine.nodes().await.is_ok_and(|found| found.len() == nodes)
        })
        .await;
        tokio::time::sleep(LEASE / 2).await;
    }

    /// Returns a ticket for these deliveries.
    pub(crate) async fn ticket_for(&self, deliveries: &[DeliveryId]) -> Vec<u8> {
        let mut ticket = Ticket::default();
        for delivery in self.deliveries().await.iter().filter(|one| deliveries.contains(&one.id)) {
            ticket.add(delivery.webhook_id, delivery.id);
        }
        assert_eq!(ticket.len(), deliveries.len());
        ticket.encode()
    }
}

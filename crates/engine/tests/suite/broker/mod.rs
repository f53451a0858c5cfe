//! Nodes that take events and nodes that send them, with a broker between them or without.

use redrive_core::{DeliveryId, Role, cluster::ticket::Ticket, delivery::lane::Priority};
use redrive_engine::{
    Draft, Settings, Tickets,
    amqp::{Address, Broker},
};

use crate::{
    cluster_harness::{LEASE, named},
    harness::{World, draft},
};

/// The names of all that the tests declare begin with this.
pub(crate) const NAMESPACE: &str = "redrive";

/// The queue of the default pool.
pub(crate) fn queue(priority: Priority) -> String {
    format!("{NAMESPACE}.v1.tickets.default.{}", priority.name())
}

/// Where messages end that are no tickets.
pub(crate) const REJECTED: &str = "redrive.v1.rejected";

pub(crate) fn tickets(url: &str) -> Tickets {
    let broker = Broker::new(Address::read(url).unwrap(), "test");
    Tickets { broker, namespace: NAMESPACE.into(), prefetch: 50 }
}

pub(crate) fn node(name: &str, role: Role, broker: Option<&str>) -> Settings {
    Settings { role, tickets: broker.map(tickets), ..named(name) }
}

pub(crate) fn urgent(n: usize, priority: Priority) -> Draft {
    Draft { priority, ..draft(n) }
}

impl World {
    /// Waits until the node has its connections to the broker, or has lost them.
    pub(crate) async fn broker_is(&self, up: bool) {
        let what = if up { "the broker is used" } else { "the broker is missed" };
        self.eventually(what, async || self.engine.broker_up() == Some(up)).await;
    }

    /// Waits until the node is linked, and has seen so many others.
    pub(crate) async fn is_set_up(&self, nodes: usize) {
        if self.engine.broker_up().is_some() {
            self.broker_is(true).await;
        }
        self.eventually("all nodes are there", async || {
            self.engine.nodes().await.is_ok_and(|found| found.len() == nodes)
        })
        .await;
        tokio::time::sleep(LEASE / 2).await;
    }

    /// A ticket for these deliveries.
    pub(crate) async fn ticket_for(&self, deliveries: &[DeliveryId]) -> Vec<u8> {
        let mut ticket = Ticket::default();
        for delivery in self.deliveries().await.iter().filter(|one| deliveries.contains(&one.id)) {
            ticket.add(delivery.webhook, delivery.id);
        }
        assert_eq!(ticket.len(), deliveries.len());
        ticket.write()
    }
}

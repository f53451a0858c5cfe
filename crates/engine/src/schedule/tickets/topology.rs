//! Broker topology: an exchange, a durable queue per pool and priority, and an exchange with a queue for rejected
//! messages. Every node declares the same objects. Their names have a version for incompatible changes.

use lapin::{
    Channel, ErrorKind, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use redrive_core::delivery::lane::Priority;

/// Maximum length of a ticket queue; the broker refuses more, and these deliveries are left to the store.
const MAX_QUEUE_LENGTH: i32 = 100_000;
/// Maximum length of the queue of rejected messages; the oldest are dropped first.
const MAX_REJECTED_LENGTH: i32 = 10_000;

/// Names of all exchanges and queues.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// Exchange that tickets are published to.
    pub(super) exchange: String,
    /// Name of the exchange and of the queue for rejected messages.
    rejected: String,
}

/// Pool and priority that a ticket is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TicketRoute {
    pub(super) pool: String,
    pub(super) priority: Priority,
}

impl TicketRoute {
    /// Returns the routing key.
    pub(super) fn routing_key(&self) -> String {
        format!("{}.{}", self.pool, self.priority.name())
    }
}

fn durable() -> ExchangeDeclareOptions {
    ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() }
}

fn arguments(pairs: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in pairs {
        table.insert(ShortString::from(*name), value.clone());
    }
    table
}

impl Topology {
    pub(crate) fn new(namespace: &str) -> Self {
        Self { exchange: format!("{namespace}.v1.tickets"), rejected: format!("{namespace}.v1.rejected") }
    }

    /// Returns the queue name for a pool and a priority.
    pub(super) fn queue(&self, counter: &TicketRoute) -> String {
        format!("{}.{}", self.exchange, counter.routing_key())
    }

    /// Declares the exchanges, and the queue of rejected messages.
    pub(super) async fn declare(&self, channel: &Channel) -> lapin::Result<()> {
        let none = FieldTable::default;
        for (name, kind) in [(&self.exchange, ExchangeKind::Direct), (&self.rejected, ExchangeKind::Fanout)] {
            channel.exchange_declare(name.as_str().into(), kind, durable(), none()).await?;
        }
        let kept = arguments(&[("x-max-length", MAX_REJECTED_LENGTH.into())]);
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let rejected: ShortString = self.rejected.as_str().into();
        channel.queue_declare(rejected.clone(), durable, kept).await?;
        channel.queue_bind(rejected.clone(), rejected, "".into(), QueueBindOptions::default(), none()).await
    }

    /// Declares and binds the queue of a pool and a priority.
    pub(super) async fn declare_queue(&self, channel: &Channel, counter: &TicketRoute) -> lapin::Result<()> {
        let queue: ShortString = self.queue(counter).into();
        let bounded = arguments(&[
            ("x-max-length", MAX_QUEUE_LENGTH.into()),
            ("x-overflow", AMQPValue::LongString("reject-publish".into())),
            ("x-dead-letter-exchange", AMQPValue::LongString(self.rejected.as_str().into())),
        ]);
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.clone(), durable, bounded).await?;
        let (exchange, key) = (self.exchange.as_str().into(), counter.routing_key().into());
        channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default()).await
    }
}

/// Returns advice for the operator on a broker error, where its text is not enough.
pub(super) fn advice(error: &lapin::Error) -> Option<&'static str> {
    let ErrorKind::ProtocolError(message) = error.kind() else { return None };
    let text = message.get_message().to_string();
    if text.contains("PRECONDITION_FAILED") {
        return Some(
            "a queue or exchange of that name was declared with other arguments, manually or by another program; delete \
             it (its deliveries are claimed from the store), or set another amqp.namespace",
        );
    }
    if text.contains("Login was refused") {
        return Some("check the user in amqp.url and its amqp.password or amqp.password_file");
    }
    if text.contains("NOT_ALLOWED") || text.contains("vhost") {
        return Some("check the virtual host, which is the path of amqp.url, and that the user may use it");
    }
    if text.contains("ACCESS_REFUSED") {
        return Some(
            "grant the user permission to configure, write and read all names that start with amqp.namespace; for the \
             default: rabbitmqctl set_permissions -p VHOST USER '^redrive\\.' '^redrive\\.' '^redrive\\.'",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contain_namespace_version_pool_and_priority() {
        let topology = Topology::new("shop");
        let counter = TicketRoute { pool: "default".into(), priority: Priority::High };
        assert_eq!(topology.exchange, "shop.v1.tickets");
        assert_eq!(topology.queue(&counter), "shop.v1.tickets.default.high");
        assert_eq!(counter.routing_key(), "default.high");
        assert_eq!(topology.rejected, "shop.v1.rejected");
    }
}

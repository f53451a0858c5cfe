//! What is declared at the broker: an exchange, a durable queue for each pool and priority, and where messages go that
//! are no tickets. Whoever comes first declares it, and all declare the same. The version in the names is for the day
//! when it has to be another.

use lapin::{
    Channel, ErrorKind, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use redrive_core::delivery::lane::Priority;

/// Messages in one queue at the most; the broker refuses more, which are then left to the store.
const MAX_LENGTH: i32 = 100_000;
/// Messages kept that are no tickets; the oldest go first.
const MAX_REJECTED: i32 = 10_000;

/// The names of everything.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    /// Where tickets are sent to.
    pub(super) exchange: String,
    /// Where messages are found that were no tickets: an exchange and a queue of that name.
    rejected: String,
}

/// Whom a ticket is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Counter {
    pub(super) pool: String,
    pub(super) priority: Priority,
}

impl Counter {
    /// What a ticket is sent with.
    pub(super) fn key(&self) -> String {
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

    /// The queue of a pool and a priority.
    pub(super) fn queue(&self, counter: &Counter) -> String {
        format!("{}.{}", self.exchange, counter.key())
    }

    /// Declares where tickets are sent to, and where messages go that are none.
    pub(super) async fn declare(&self, channel: &Channel) -> lapin::Result<()> {
        let none = FieldTable::default;
        for (name, kind) in [(&self.exchange, ExchangeKind::Direct), (&self.rejected, ExchangeKind::Fanout)] {
            channel.exchange_declare(name.as_str().into(), kind, durable(), none()).await?;
        }
        let kept = arguments(&[("x-max-length", MAX_REJECTED.into())]);
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let rejected: ShortString = self.rejected.as_str().into();
        channel.queue_declare(rejected.clone(), durable, kept).await?;
        channel.queue_bind(rejected.clone(), rejected, "".into(), QueueBindOptions::default(), none()).await
    }

    /// Declares the queue of a pool and a priority, and has tickets for it get there.
    pub(super) async fn declare_queue(&self, channel: &Channel, counter: &Counter) -> lapin::Result<()> {
        let queue: ShortString = self.queue(counter).into();
        let bounded = arguments(&[
            ("x-max-length", MAX_LENGTH.into()),
            ("x-overflow", AMQPValue::LongString("reject-publish".into())),
            ("x-dead-letter-exchange", AMQPValue::LongString(self.rejected.as_str().into())),
        ]);
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.clone(), durable, bounded).await?;
        let (exchange, key) = (self.exchange.as_str().into(), counter.key().into());
        channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default()).await
    }
}

/// What an error of the broker means for the operator, where that is not plain.
pub(super) fn advice(error: &lapin::Error) -> Option<&'static str> {
    let ErrorKind::ProtocolError(said) = error.kind() else { return None };
    let text = said.get_message().to_string();
    if text.contains("PRECONDITION_FAILED") {
        return Some(
            "something of that name was declared otherwise, by hand or by another program; delete it (tickets are \
             made again from the store), or give Redrive another amqp.namespace",
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
            "the user needs the permissions to configure, write and read all that begins with the amqp.namespace, with \
             the default one: rabbitmqctl set_permissions -p VHOST USER '^redrive\\.' '^redrive\\.' '^redrive\\.'",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_installation_the_version_the_pool_and_the_priority() {
        let topology = Topology::new("shop");
        let counter = Counter { pool: "default".into(), priority: Priority::High };
        assert_eq!(topology.exchange, "shop.v1.tickets");
        assert_eq!(topology.queue(&counter), "shop.v1.tickets.default.high");
        assert_eq!(counter.key(), "default.high");
        assert_eq!(topology.rejected, "shop.v1.rejected");
    }
}

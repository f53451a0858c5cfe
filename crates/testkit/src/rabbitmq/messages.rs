//! Short broker sessions, one per call, in which a test publishes messages and reads queues.

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::FieldTable,
};

/// A message that was removed from a queue.
#[derive(Clone, Debug)]
pub struct Message {
    /// The body.
    pub body: Vec<u8>,
    /// The properties, including headers.
    pub properties: BasicProperties,
    /// Whether a consumer received it before and it was returned to the queue.
    pub redelivered: bool,
}

impl Message {
    /// Returns the value of a header as text, if it exists.
    pub fn header(&self, name: &str) -> Option<String> {
        let headers = self.properties.headers().as_ref()?;
        let (_, value) = headers.inner().iter().find(|(header, _)| header.as_str() == name)?;
        let text = value.as_long_string().map(ToString::to_string);
        Some(text.unwrap_or_else(|| format!("{value:?}")))
    }
}

pub(super) struct Session {
    pub(super) url: String,
}

impl Session {
    async fn open(&self) -> (Connection, Channel) {
        let opened = async {
            let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            Ok((connection, channel))
        };
        opened.await.unwrap_or_else(|error: lapin::Error| panic!("{}: {error}", self.url))
    }

    pub(super) async fn declare(&self, queue: &str) {
        let (connection, channel) = self.open().await;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.into(), durable, FieldTable::default()).await;
        declared.unwrap_or_else(|error| panic!("{queue}: {error}"));
        close(connection).await;
    }

    pub(super) async fn publish_all(&self, queue: &str, messages: Vec<(BasicProperties, Vec<u8>)>) {
        let (connection, channel) = self.open().await;
        let sent = async {
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let mut confirms = Vec::with_capacity(messages.len());
            for (properties, body) in messages {
                let properties = properties.with_delivery_mode(2);
                let sent = channel.basic_publish("".into(), queue.into(), mandatory, &body, properties);
                confirms.push(sent.await?);
            }
            for confirm in confirms {
                let confirmation = confirm.await?;
                assert!(confirmation.is_ack(), "{queue}: the server refused a message");
                assert!(confirmation.take_message().is_none(), "{queue}: the queue does not exist");
            }
            Ok(())
        };
        sent.await.unwrap_or_else(|error: lapin::Error| panic!("{queue}: {error}"));
        close(connection).await;
    }

    pub(super) async fn get(&self, queue: &str) -> Option<Message> {
        let (connection, channel) = self.open().await;
        let got = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await;
        let got = got.unwrap_or_else(|error| panic!("{queue}: {error}"));
        close(connection).await;
        got.map(|got| Message {
            body: got.delivery.data,
            properties: got.delivery.properties,
            redelivered: got.delivery.redelivered,
        })
    }

    pub(super) async fn depth(&self, queue: &str) -> u32 {
        let (connection, channel) = self.open().await;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.into(), passive, FieldTable::default()).await;
        let depth = declared.unwrap_or_else(|error| panic!("{queue}: {error}")).message_count();
        close(connection).await;
        depth
    }
}

/// Closes the connection; ignores the error of a server that has already closed it.
async fn close(connection: Connection) {
    connection.close(200, "done".into()).await.ok();
}

//! Where messages go that cannot be published: another queue of the same server, with the reason in their headers.
//!
//! A connection of its own: a server that is short of memory stops those who publish, and must not stop what is
//! acknowledged meanwhile.

use std::time::Duration;

use lapin::{
    BasicProperties, Channel, Connection,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use redrive_core::{Time, maintenance::backoff::Backoff};
use redrive_engine::{
    amqp::{Broker, BrokerError, said},
    clock,
};
use tokio::{sync::Mutex, time::sleep};

use crate::config::Source;

/// The longest text in a header.
const MAX_REASON: usize = 1024;
/// The longest wait between two tries to put a message away.
const LONGEST: Duration = Duration::from_secs(60);

/// The queue for messages that cannot be published.
pub(super) struct Rejects {
    broker: Broker,
    source: String,
    queue: String,
    came_from: String,
    channel: Mutex<Option<(Connection, Channel)>>,
}

/// Why a message cannot be published.
#[derive(Clone)]
pub(super) struct Reason {
    /// A stable name for programs, the one that the API has.
    pub(super) code: &'static str,
    /// What is wrong and what to do about it.
    pub(super) detail: String,
}

impl Rejects {
    pub(super) fn new(broker: Broker, source: &Source) -> Self {
        Self {
            broker,
            source: source.name.clone(),
            queue: source.reject_queue(),
            came_from: source.queue.clone(),
            channel: Mutex::default(),
        }
    }

    /// The queue's name.
    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// Puts a message away, however long it takes.
    pub(super) async fn put(&self, properties: &BasicProperties, body: &[u8], reason: &Reason, now: Time) {
        let properties = self.labelled(properties, reason, now);
        let mut backoff = Backoff::default();
        while let Err(why) = self.try_to_put(properties.clone(), body).await {
            if backoff.is_fresh() {
                tracing::warn!(
                    source = self.source, queue = self.queue, error = %why,
                    "a message that cannot be published cannot be put away either; it stays where it is"
                );
            }
            sleep(backoff.next(clock::roll()).min(LONGEST)).await;
        }
    }

    /// The message is safe there once this returns without an error.
    async fn try_to_put(&self, properties: BasicProperties, body: &[u8]) -> Result<(), String> {
        let channel = self.channel().await.map_err(|error| error.to_string())?;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = async {
            channel
                .basic_publish("".into(), self.queue.as_str().into(), options, body, properties)
                .await?
                .await
        };
        match sent.await {
            Ok(confirmation) if !confirmation.is_ack() => Err("the queue takes no more messages".into()),
            Ok(confirmation) => match confirmation.take_message() {
                Some(_) => Err("there is no such queue".into()),
                None => Ok(()),
            },
            // One that is broken is not used again: see `channel`.
            Err(error) => Err(said(&error)),
        }
    }

    async fn channel(&self) -> Result<Channel, BrokerError> {
        let mut kept = self.channel.lock().await;
        if let Some((connection, channel)) = &*kept
            && connection.status().connected()
            && channel.status().connected()
        {
            return Ok(channel.clone());
        }
        let connection = self.broker.connect(&format!("source {}, rejects", self.source)).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        *kept = Some((connection, channel.clone()));
        Ok(channel)
    }

    /// What was said about the message, and what is to be said now.
    fn labelled(&self, properties: &BasicProperties, reason: &Reason, now: Time) -> BasicProperties {
        let mut headers = FieldTable::default();
        let given = properties.headers().as_ref().map(|table| table.inner());
        for (name, value) in given.into_iter().flatten() {
            // These two would have the server put it into more queues.
            if !["CC", "BCC"].contains(&name.as_str()) {
                headers.insert(name.clone(), value.clone());
            }
        }
        for (name, text) in [
            ("x-redrive-reason", shortened(&reason.detail)),
            ("x-redrive-code", reason.code.to_owned()),
            ("x-redrive-source", self.source.clone()),
            ("x-redrive-queue", self.came_from.clone()),
            ("x-redrive-rejected-at", now.to_string()),
        ] {
            headers.insert(name.into(), AMQPValue::LongString(text.into()));
        }
        // Not what would be checked or acted on again: who sent it, when it expires, where an answer is awaited.
        let kept = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
        let take = |property: &Option<ShortString>,
                    kept: BasicProperties,
                    put: fn(BasicProperties, ShortString) -> BasicProperties| {
            match property {
                Some(value) => put(kept, value.clone()),
                None => kept,
            }
        };
        let kept = take(properties.content_type(), kept, BasicProperties::with_content_type);
        let kept = take(properties.content_encoding(), kept, BasicProperties::with_content_encoding);
        let kept = take(properties.correlation_id(), kept, BasicProperties::with_correlation_id);
        let kept = take(properties.message_id(), kept, BasicProperties::with_message_id);
        let kept = take(properties.kind(), kept, BasicProperties::with_type);
        let kept = take(properties.app_id(), kept, BasicProperties::with_app_id);
        let kept = properties.timestamp().map_or(kept.clone(), |time| kept.with_timestamp(time));
        properties.priority().map_or(kept.clone(), |priority| kept.with_priority(priority))
    }
}

/// A text that fits into a header.
fn shortened(text: &str) -> String {
    let end = (0..=MAX_REASON.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}

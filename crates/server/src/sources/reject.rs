//! Reject queue: messages that cannot be published move to another queue of the same server, with the reason in
//! their headers.
//!
//! It uses a separate connection: a server that is short of memory blocks connections that publish, and this must
//! not block acknowledgements.

use std::time::Duration;

use lapin::{
    BasicProperties, Channel, Connection,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use redrive_core::{Time, maintenance::backoff::OutageBackoff};
use redrive_engine::{
    amqp::{Broker, BrokerError, describe_error},
    clock,
};
use tokio::{sync::Mutex, time::sleep};

use crate::config::Source;

/// Maximum length of the reason header, in bytes.
const MAX_REASON: usize = 1024;
/// Maximum delay between attempts to move a message to the reject queue.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// The queue for messages that cannot be published.
pub(super) struct RejectQueue {
    broker: Broker,
    source: String,
    queue: String,
    came_from: String,
    channel: Mutex<Option<(Connection, Channel)>>,
}

/// Reason why a message cannot be published.
#[derive(Clone)]
pub(super) struct RejectReason {
    /// Stable error code, the same as in the API.
    pub(super) code: &'static str,
    /// The problem, and what to do about it.
    pub(super) detail: String,
}

impl RejectQueue {
    pub(super) fn new(broker: Broker, source: &Source) -> Self {
        Self {
            broker,
            source: source.name.clone(),
            queue: source.reject_queue(),
            came_from: source.queue.clone(),
            channel: Mutex::default(),
        }
    }

    /// Returns the name of the queue.
    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// Moves a message to the reject queue, retrying until it succeeds.
    pub(super) async fn reject(
        &self,
        properties: &BasicProperties,
        body: &[u8],
        reason: &RejectReason,
        now: Time,
    ) {
        let properties = self.reject_headers(properties, reason, now);
        let mut backoff = OutageBackoff::default();
        while let Err(why) = self.try_reject(properties.clone(), body).await {
            if backoff.is_fresh() {
                tracing::warn!(
                    source = self.source, queue = self.queue, error = %why,
                    "moving a message to the reject queue failed; will retry"
                );
            }
            sleep(backoff.next_delay(clock::random_unit()).min(MAX_RETRY_DELAY)).await;
        }
    }

    /// Publishes a message to the reject queue. Success means that the broker has confirmed it.
    async fn try_reject(&self, properties: BasicProperties, body: &[u8]) -> Result<(), String> {
        let channel = self.channel().await.map_err(|error| error.to_string())?;
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = async {
            channel
                .basic_publish("".into(), self.queue.as_str().into(), options, body, properties)
                .await?
                .await
        };
        match sent.await {
            Ok(confirmation) if !confirmation.is_ack() => Err("the queue rejected the message".into()),
            Ok(confirmation) => match confirmation.take_message() {
                Some(_) => Err("no such queue".into()),
                None => Ok(()),
            },
            // A broken channel is not reused: see `channel`.
            Err(error) => Err(describe_error(&error)),
        }
    }

    async fn channel(&self) -> Result<Channel, BrokerError> {
        let mut open_channel = self.channel.lock().await;
        if let Some((connection, channel)) = &*open_channel
            && connection.status().connected()
            && channel.status().connected()
        {
            return Ok(channel.clone());
        }
        let connection = self.broker.connect(&format!("source {}, rejects", self.source)).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        *open_channel = Some((connection, channel.clone()));
        Ok(channel)
    }

    /// Returns the properties of a rejected message: the original headers plus those with the reason.
    fn reject_headers(
        &self,
        properties: &BasicProperties,
        reason: &RejectReason,
        now: Time,
    ) -> BasicProperties {
        let mut headers = FieldTable::default();
        let given = properties.headers().as_ref().map(|table| table.inner());
        for (name, value) in given.into_iter().flatten() {
            // These headers would make the server route the message to more queues.
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
        // Properties that the server checks or acts on are not copied: user id, expiration, reply-to.
        let copied = BasicProperties::default().with_headers(headers).with_delivery_mode(2);
        let copy = |property: &Option<ShortString>,
                    copied: BasicProperties,
                    set: fn(BasicProperties, ShortString) -> BasicProperties| {
            match property {
                Some(value) => set(copied, value.clone()),
                None => copied,
            }
        };
        let copied = copy(properties.content_type(), copied, BasicProperties::with_content_type);
        let copied = copy(properties.content_encoding(), copied, BasicProperties::with_content_encoding);
        let copied = copy(properties.correlation_id(), copied, BasicProperties::with_correlation_id);
        let copied = copy(properties.message_id(), copied, BasicProperties::with_message_id);
        let copied = copy(properties.kind(), copied, BasicProperties::with_type);
        let copied = copy(properties.app_id(), copied, BasicProperties::with_app_id);
        let copied = properties.timestamp().map_or(copied.clone(), |time| copied.with_timestamp(time));
        properties.priority().map_or(copied.clone(), |priority| copied.with_priority(priority))
    }
}

/// Truncates a text to the maximum length of a header.
fn shortened(text: &str) -> String {
    let end = (0..=MAX_REASON.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}

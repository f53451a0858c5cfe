//! A RabbitMQ queue as a source: connects, consumes messages, publishes them as events, and acknowledges a message
//! only after its event is committed.
//!
//! Messages are published in the order of arrival and wait for their commits concurrently, up to the prefetch
//! count. If one cannot be stored now, all behind it fail too (see `PublishOrder`). They are deferred here,
//! unacknowledged, and the first of them is retried after a delay. Once it is stored, the others follow in order.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use lapin::{
    Acker, BasicProperties, Channel, Connection, Consumer, ErrorKind,
    message::Delivery,
    options::{
        BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions,
    },
    protocol::{AMQPErrorKind, AMQPSoftError},
    types::FieldTable,
};
use redrive_core::maintenance::backoff::OutageBackoff;
use redrive_engine::{
    EventDraft, MAX_INLINE_WORK, PublishReceipt,
    amqp::{Broker, BrokerError, describe_error},
    clock,
};
use redrive_store::{OrderedPosition, PublishOrder, StoreError};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    message::{MessageParser, parse_work},
    metrics::SourceMetrics,
    reject::{RejectQueue, RejectReason},
};
use crate::{
    app::{App, AppError},
    config::Source,
};

/// Maximum delay between retries while the store is unavailable; short, so that recovery is noticed soon.
const MAX_STORE_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum delay between retries while a quota is reached; the quota may be raised at any time.
const MAX_QUOTA_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Duration after which a connection counts as stable and the reconnect backoff is reset.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// Timeout of closing a connection or cancelling a consumer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a stopping source waits for acknowledgements and rejections after all publishes have finished.
const REJECT_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Time to wait for running publishes after the connection is lost, since the broker redelivers their messages.
const PUBLISH_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// A queue whose messages are published as events.
pub(super) struct AmqpSource {
    name: String,
    queue: String,
    prefetch: u16,
    declare: bool,
    broker: Broker,
    parser: Arc<MessageParser>,
    rejects: RejectQueue,
    metrics: SourceMetrics,
    app: Arc<App>,
}

/// Reason why a session could not start or has ended.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("{0}")]
    Broker(#[from] BrokerError),
    #[error("{}", describe_error(.0))]
    Lost(#[from] lapin::Error),
    #[error("no queue {0:?}; create it, or set declare = true for this source")]
    NoQueue(String),
    #[error("the server has cancelled the consumer; perhaps the queue was deleted")]
    Cancelled,
}

impl AmqpSource {
    pub(super) fn new(
        source: &Source,
        broker: Broker,
        parser: MessageParser,
        rejects: RejectQueue,
        metrics: SourceMetrics,
        app: Arc<App>,
    ) -> Self {
        let (name, queue) = (source.name.clone(), source.queue.clone());
        let (prefetch, declare) = (source.prefetch, source.declare);
        Self { name, queue, prefetch, declare, broker, parser: Arc::new(parser), rejects, metrics, app }
    }

    /// Consumes messages until `stop`, reconnecting after every failure.
    pub(super) async fn run(&self, stop: &CancellationToken, timeout: Duration) {
        let mut backoff = OutageBackoff::default();
        let mut last_said = String::new();
        while !stop.is_cancelled() {
            let started = clock::monotonic_now();
            let ended = self.session(stop, timeout).await;
            if self.metrics.up.set(0) == 0 && ended.is_err() {
                self.metrics.consecutive_failures.inc();
            }
            self.metrics.waiting.set(0);
            let Err(error) = ended else { return };
            if clock::monotonic_now().saturating_sub(started) >= STABLE_AFTER {
                backoff.reset();
                last_said.clear();
            }
            let reason = error.to_string();
            if reason != last_said {
                let (source, queue, server) = (&self.name, &self.queue, self.broker.address());
                tracing::warn!(source, queue, %server, error = reason, "source disconnected; will reconnect");
                last_said = reason;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(backoff.next_delay(clock::random_unit())) => {}
            }
        }
    }

    /// Runs one connection from start to end.
    async fn session(&self, stop: &CancellationToken, timeout: Duration) -> Result<(), SessionError> {
        let purpose = format!("source {}", self.name);
        let connection = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            connected = self.broker.connect(&purpose) => connected?,
        };
        let ended = self.consume(&connection, stop, timeout).await;
        // RabbitMQ requeues all unacknowledged messages.
        tokio::time::timeout(CLOSE_TIMEOUT, connection.close(200, "source closed".into())).await.ok();
        ended
    }

    async fn consume(
        &self,
        connection: &Connection,
        stop: &CancellationToken,
        timeout: Duration,
    ) -> Result<(), SessionError> {
        let (channel, mut consumer) = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            started = self.start_consuming(connection) => started?,
        };
        self.metrics.up.set(1);
        self.metrics.consecutive_failures.set(0);
        let (source, queue, server) = (&self.name, &self.queue, self.broker.address());
        tracing::info!(source, queue, %server, "source is consuming");
        let mut intake = SourceSession::new(self);
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            ended = intake.run(&mut consumer) => ended,
        };
        match ended {
            Ok(()) => intake.finish(channel, &consumer, timeout).await,
            Err(_) => intake.await_pending_publishes().await,
        }
        ended
    }

    async fn start_consuming(&self, connection: &Connection) -> Result<(Channel, Consumer), SessionError> {
        for queue in [self.queue.as_str(), self.rejects.queue()] {
            self.find_queue(connection, queue).await?;
        }
        // Preloading the tenant's webhooks keeps events in order. If it fails, the first publish reports the error.
        self.app.preload_tenant(&self.parser.tenant_id).await.ok();
        let channel = connection.create_channel().await?;
        channel.basic_qos(self.prefetch, BasicQosOptions::default()).await?;
        let (queue, tag) = (self.queue.as_str().into(), format!("redrive-{}", self.name).into());
        let consumer =
            channel.basic_consume(queue, tag, BasicConsumeOptions::default(), FieldTable::default()).await?;
        Ok((channel, consumer))
    }

    /// Parses a message: a large one on a checking thread, so that it does not delay other tasks of the runtime. While
    /// no thread is free, this message and all behind it stay unacknowledged.
    async fn parse(&self, message: &Message) -> Result<EventDraft, AppError> {
        let engine = self.app.engine();
        let work = parse_work(&message.body);
        if work <= MAX_INLINE_WORK {
            engine.record_inline_work(work);
            return self.parser.parse(&message.properties, &message.body);
        }
        let mut backoff = OutageBackoff::default();
        loop {
            let parser = self.parser.clone();
            let (properties, body) = (message.properties.clone(), message.body.clone());
            let job = move || parser.parse(&properties, &body);
            match engine.run_check(&self.parser.tenant_id, job).await {
                Ok(parsed) => return parsed,
                Err(error) => {
                    tracing::warn!(source = self.name, %error, "large message waits for a checking thread");
                    sleep(backoff.next_delay(clock::random_unit()).min(MAX_STORE_RETRY_DELAY)).await;
                }
            }
        }
    }

    /// Checks that a queue exists, and declares it if that is configured.
    async fn find_queue(&self, connection: &Connection, queue: &str) -> Result<(), SessionError> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        match declare(connection, queue, passive).await {
            Err(error) if is_missing(&error) && self.declare => {
                let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
                Ok(declare(connection, queue, durable).await?)
            }
            Err(error) if is_missing(&error) => Err(SessionError::NoQueue(queue.to_owned())),
            found => Ok(found?),
        }
    }
}

/// Declares a queue on a separate channel, because a failed declaration closes the channel.
async fn declare(
    connection: &Connection,
    queue: &str,
    options: QueueDeclareOptions,
) -> Result<(), lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    channel.close(200, "queue exists".into()).await
}

fn is_missing(error: &lapin::Error) -> bool {
    let not_found = AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND);
    matches!(error.kind(), ErrorKind::ProtocolError(error) if *error.kind() == not_found)
}

/// An unacknowledged message.
struct Message {
    acker: Acker,
    properties: BasicProperties,
    body: Bytes,
}

/// A message whose event is not stored yet.
struct PendingMessage {
    /// Position among all messages of this connection.
    position: u64,
    message: Message,
    draft: EventDraft,
}

/// What to do with a message whose event was not published.
enum PublishFailureAction {
    /// Move it to the reject queue, because publishing it can never succeed.
    Reject(RejectReason),
    /// Retry it, after this delay at the earliest if one is known.
    Retry(Option<Duration>),
}

/// The messages of one connection.
struct SourceSession<'a> {
    source: &'a AmqpSource,
    next_place: u64,
    publishing: FuturesUnordered<BoxFuture<'a, (PendingMessage, Result<PublishReceipt, AppError>)>>,
    /// Running acknowledgements, and rejections that end with one.
    closing: FuturesUnordered<BoxFuture<'a, Result<(), lapin::Error>>>,
    /// Deferred messages, by position.
    held: BTreeMap<u64, PendingMessage>,
    /// Order of the running publishes, and the number of positions used in it.
    order: Arc<PublishOrder>,
    in_order: u64,
    /// Timer of the next retry of the first deferred message, and whether that retry is running.
    wake: Pin<Box<Sleep>>,
    is_trying: bool,
    /// Whether `wake` was set because of a failure.
    is_backing_off: bool,
    backoff: OutageBackoff,
}

impl<'a> SourceSession<'a> {
    fn new(source: &'a AmqpSource) -> Self {
        Self {
            source,
            next_place: 0,
            publishing: FuturesUnordered::new(),
            closing: FuturesUnordered::new(),
            held: BTreeMap::new(),
            order: Arc::default(),
            in_order: 0,
            wake: Box::pin(sleep(Duration::ZERO)),
            is_trying: false,
            is_backing_off: false,
            backoff: OutageBackoff::default(),
        }
    }

    /// Runs until the connection is lost. The number of messages is bounded by the prefetch count.
    async fn run(&mut self, consumer: &mut Consumer) -> Result<(), SessionError> {
        loop {
            let is_stuck = !self.held.is_empty() && self.publishing.is_empty();
            tokio::select! {
                biased;
                Some((pending, result)) = self.publishing.next() => self.settle(pending, result),
                Some(closed) = self.closing.next() => closed?,
                () = self.wake.as_mut(), if is_stuck => self.retry_first(),
                next = consumer.next() => match next {
                    Some(delivery) => self.handle_message(delivery?).await,
                    None => return Err(SessionError::Cancelled),
                },
            }
        }
    }

    async fn handle_message(&mut self, delivery: Delivery) {
        let Delivery { acker, properties, data, .. } = delivery;
        let message = Message { acker, properties, body: data.into() };
        match self.source.parse(&message).await {
            Err(error) => self.reject(message, reason(&error)),
            Ok(draft) => {
                let index = self.next_place;
                self.next_place += 1;
                let pending = PendingMessage { position: index, message, draft };
                // A new message must not overtake deferred ones.
                if self.held.is_empty() && !self.is_trying {
                    self.publish(pending)
                } else {
                    self.defer(pending)
                }
            }
        }
    }

    fn publish(&mut self, pending: PendingMessage) {
        let app = self.source.app.clone();
        let (order, position) = (self.order.clone(), self.in_order);
        self.in_order += 1;
        let publishing = async move {
            let ordered = OrderedPosition { order: order.clone(), position };
            let result = app.publish_in_order(pending.draft.clone(), ordered).await;
            match result.as_ref().err().map(failure_action) {
                // The publish may have failed before it reached the store, which then would not reject later positions, so
                // the order is broken here. Earlier positions are still stored: a message over the quota must not delay
                // messages that are within it.
                Some(PublishFailureAction::Retry(_)) => order.break_off(position),
                Some(PublishFailureAction::Reject(_)) | None => order.leave_out(position).await,
            }
            (pending, result)
        };
        self.publishing.push(publishing.boxed());
    }

    fn defer(&mut self, pending: PendingMessage) {
        self.held.insert(pending.position, pending);
        self.source.metrics.waiting.set(self.held.len() as i64);
    }

    fn settle(&mut self, pending: PendingMessage, result: Result<PublishReceipt, AppError>) {
        let metrics = &self.source.metrics;
        match result {
            Ok(receipt) => {
                if receipt.duplicate {
                    metrics.duplicate.inc()
                } else {
                    metrics.published.inc()
                };
                let acker = pending.message.acker;
                self.closing.push(ack(acker).boxed());
                self.is_trying = false;
                self.resume_deferred();
            }
            Err(error) => match failure_action(&error) {
                PublishFailureAction::Reject(reason) => {
                    self.reject(pending.message, reason);
                    self.is_trying = false;
                    self.resume_deferred();
                }
                PublishFailureAction::Retry(at_least) => self.wait(pending, at_least, &error),
            },
        }
    }

    fn wait(&mut self, pending: PendingMessage, at_least: Option<Duration>, error: &AppError) {
        // A message that failed only because of one before it starts no backoff of its own. Publishes that are in
        // flight together fail together and count as one failure.
        let is_own_failure = !matches!(error, AppError::Store(StoreError::OutOfOrder));
        if is_own_failure && !self.is_backing_off {
            self.is_backing_off = true;
            if self.backoff.is_fresh() {
                let source = &self.source.name;
                tracing::warn!(source, %error, "source paused: events cannot be stored; will retry");
            }
            let wait = self.backoff.next_delay(clock::random_unit()).min(MAX_STORE_RETRY_DELAY);
            let wait = at_least.map_or(wait, |at_least| at_least.min(MAX_QUOTA_RETRY_DELAY).max(wait));
            self.wake = Box::pin(sleep(wait));
        }
        self.is_trying = false;
        self.defer(pending);
    }

    /// Retries the first deferred message alone, at the start of a new order.
    fn retry_first(&mut self) {
        if let Some((_, first)) = self.held.pop_first() {
            (self.order, self.in_order, self.is_backing_off) = (Arc::default(), 0, false);
            self.wake = Box::pin(sleep(Duration::ZERO));
            self.is_trying = true;
            self.publish(first);
        }
    }

    /// Publishes all deferred messages in order after one has succeeded, unless running publishes may still fail.
    fn resume_deferred(&mut self) {
        if !self.publishing.is_empty() || self.order.is_broken() {
            return;
        }
        if self.held.is_empty() {
            self.backoff.reset();
            return;
        }
        if !self.backoff.is_fresh() {
            tracing::info!(source = self.source.name, waiting = self.held.len(), "source resumed");
        }
        self.backoff.reset();
        for pending in std::mem::take(&mut self.held).into_values() {
            self.publish(pending);
        }
        self.source.metrics.waiting.set(0);
    }

    /// Acknowledges a message once it is stored in the reject queue.
    fn reject(&mut self, message: Message, reason: RejectReason) {
        let source = self.source;
        let now = source.app.engine().clock().now();
        let rejecting = async move {
            source.rejects.reject(&message.properties, &message.body, &reason, now).await;
            source.metrics.rejected.inc();
            ack(message.acker).await
        };
        self.closing.push(rejecting.boxed());
    }

    /// Stops consuming and finishes running publishes, up to the timeout.
    async fn finish(&mut self, channel: Channel, consumer: &Consumer, timeout: Duration) {
        self.held.clear();
        // RabbitMQ requeues messages that it still delivers when the connection closes, so a server that does not respond
        // to the cancellation need not be waited for.
        let tag = consumer.tag();
        let cancelling = async move {
            let cancelled = channel.basic_cancel(tag, BasicCancelOptions::default());
            tokio::time::timeout(CLOSE_TIMEOUT, cancelled).await.unwrap_or(Ok(()))
        };
        self.closing.push(cancelling.boxed());
        let finishing = async {
            loop {
                tokio::select! {
                    Some((pending, result)) = self.publishing.next() => match result {
                        Err(error) if matches!(failure_action(&error), PublishFailureAction::Retry(_)) => {}
                        result => self.settle(pending, result),
                    },
                    Some(_) = self.closing.next() => {}
                    // A message that cannot be moved to the reject queue stays in its queue, so shutdown need not wait for it.
                    () = sleep(REJECT_FLUSH_TIMEOUT), if self.publishing.is_empty() => break,
                    else => break,
                }
            }
        };
        tokio::time::timeout(timeout, finishing).await.ok();
    }

    /// Waits for running publishes after the connection is lost. Their messages cannot be acknowledged any more;
    /// without the wait, a redelivered message could be published concurrently.
    async fn await_pending_publishes(&mut self) {
        let publishing = async { while self.publishing.next().await.is_some() {} };
        tokio::time::timeout(PUBLISH_FLUSH_TIMEOUT, publishing).await.ok();
    }
}

async fn ack(acker: Acker) -> Result<(), lapin::Error> {
    acker.ack(BasicAckOptions::default()).await.map(|_| ())
}

fn failure_action(error: &AppError) -> PublishFailureAction {
    match error {
        AppError::OverQuota { retry_after, .. } => {
            PublishFailureAction::Retry(Some(Duration::from_secs(*retry_after)))
        }
        // The store works but will never accept this event.
        AppError::Store(StoreError::InvalidItem(_)) => {
            PublishFailureAction::Reject(RejectReason { code: "refused", detail: error.to_string() })
        }
        // `NotFound`: the tenant does not exist; either the settings are wrong or it is still to be created.
        AppError::Store(_)
        | AppError::NotFound(_)
        | AppError::BatchTooCostly(_)
        | AppError::TooManyExports { .. } => PublishFailureAction::Retry(None),
        AppError::Invalid(_)
        | AppError::Malformed { .. }
        | AppError::SchemaViolation { .. }
        | AppError::Unprocessable { .. }
        | AppError::Conflict { .. }
        | AppError::TooLarge(_)
        | AppError::Unauthorized
        | AppError::Forbidden(_) => PublishFailureAction::Reject(reason(error)),
    }
}

fn reason(error: &AppError) -> RejectReason {
    RejectReason { code: error.code(), detail: error.to_string() }
}

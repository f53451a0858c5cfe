//! A RabbitMQ queue as a source: connects, consumes messages, publishes them as events, and acknowledges a message
//! only after its event is committed.
//!
//! Messages are published in the order of arrival: what has arrived while a batch is committed is the next batch. If one
//! cannot be stored now, all behind it fail too. They wait here, unacknowledged, and the first of them is retried
//! after a delay. Once it is stored, the others follow in order.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

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
    EventDraft, MAX_INLINE_COST_UNITS, PublishReceipt,
    amqp::{Broker, BrokerError, describe_error},
    clock,
};
use redrive_store::StoreError;
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

/// Messages published as one batch.
const MAX_BATCH_MESSAGES: usize = 1_000;
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
        if work <= MAX_INLINE_COST_UNITS {
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

/// The result of a batch: each message with that of its event.
type BatchResult = Vec<(PendingMessage, Result<PublishReceipt, AppError>)>;

/// The messages of one connection.
struct SourceSession<'a> {
    source: &'a AmqpSource,
    /// Messages whose events are to be published, in the order of arrival.
    waiting: VecDeque<PendingMessage>,
    /// The running batch. There is at most one, so that no message overtakes another.
    publishing: Option<BoxFuture<'a, BatchResult>>,
    /// The message that is being parsed. A large one may wait for a checking thread, while the running batch goes on.
    parsing: Option<BoxFuture<'a, (Message, Result<EventDraft, AppError>)>>,
    /// Running acknowledgements, and rejections that end with one.
    closing: FuturesUnordered<BoxFuture<'a, Result<(), lapin::Error>>>,
    /// Timer of the next batch after a failure.
    wake: Pin<Box<Sleep>>,
    /// Whether the last batch failed. The next one then has one message, and begins when `wake` ends.
    is_backing_off: bool,
    is_finishing: bool,
    backoff: OutageBackoff,
}

impl<'a> SourceSession<'a> {
    fn new(source: &'a AmqpSource) -> Self {
        Self {
            source,
            waiting: VecDeque::new(),
            publishing: None,
            parsing: None,
            closing: FuturesUnordered::new(),
            wake: Box::pin(sleep(Duration::ZERO)),
            is_backing_off: false,
            is_finishing: false,
            backoff: OutageBackoff::default(),
        }
    }

    /// Runs until the connection is lost. The number of messages is bounded by the prefetch count.
    async fn run(&mut self, consumer: &mut Consumer) -> Result<(), SessionError> {
        loop {
            let is_idle = self.publishing.is_none();
            let may_retry = self.is_backing_off && is_idle && !self.waiting.is_empty();
            if is_idle && !self.is_backing_off {
                self.publish(MAX_BATCH_MESSAGES);
            }
            tokio::select! {
                biased;
                published = finish(&mut self.publishing) => {
                    self.publishing = None;
                    self.settle(published);
                }
                (message, parsed) = finish(&mut self.parsing) => {
                    self.parsing = None;
                    self.add_parsed(message, parsed);
                }
                Some(closed) = self.closing.next() => closed?,
                () = self.wake.as_mut(), if may_retry => self.publish(1),
                next = consumer.next(), if self.parsing.is_none() => match next {
                    Some(delivery) => self.parse(delivery?),
                    None => return Err(SessionError::Cancelled),
                },
            }
        }
    }

    /// Begins to parse a message.
    fn parse(&mut self, delivery: Delivery) {
        let Delivery { acker, properties, data, .. } = delivery;
        let (source, message) = (self.source, Message { acker, properties, body: data.into() });
        let parsing = async move {
            let parsed = source.parse(&message).await;
            (message, parsed)
        };
        self.parsing = Some(parsing.boxed());
    }

    fn add_parsed(&mut self, message: Message, parsed: Result<EventDraft, AppError>) {
        match parsed {
            Err(problem) => self.reject(message, reason(&problem)),
            Ok(draft) => self.waiting.push_back(PendingMessage { message, draft }),
        }
        self.show_waiting();
    }

    /// Publishes up to `max` waiting messages as one batch.
    fn publish(&mut self, max: usize) {
        let pending: Vec<_> = self.waiting.drain(..max.min(self.waiting.len())).collect();
        if pending.is_empty() {
            return;
        }
        let app = self.source.app.clone();
        let publishing = async move {
            let drafts = pending.iter().map(|pending| pending.draft.clone()).collect();
            // A message that is refused only because of its batch could not be retried in its order.
            let results = app.publish_batch(drafts, u64::MAX).await;
            pending.into_iter().zip(results).collect()
        };
        self.publishing = Some(publishing.boxed());
    }

    /// Shows how many messages wait because events cannot be stored.
    fn show_waiting(&self) {
        let waiting = if self.is_backing_off { self.waiting.len() } else { 0 };
        self.source.metrics.waiting.set(waiting as i64);
    }

    /// Acknowledges, rejects or keeps each message of a batch by its result.
    fn settle(&mut self, published: BatchResult) {
        let (mut failed, mut retry) = (None, Vec::new());
        for (pending, result) in published {
            match result.map_err(|error| (failure_action(&error), error)) {
                Ok(receipt) => {
                    let metrics = &self.source.metrics;
                    let counter = if receipt.duplicate { &metrics.duplicate } else { &metrics.published };
                    counter.inc();
                    self.closing.push(ack(pending.message.acker).boxed());
                }
                Err((PublishFailureAction::Reject(reason), _)) => self.reject(pending.message, reason),
                Err((PublishFailureAction::Retry(at_least), error)) => {
                    failed.get_or_insert((at_least, error));
                    retry.push(pending);
                }
            }
        }
        for pending in retry.into_iter().rev() {
            self.waiting.push_front(pending);
        }
        match failed {
            // Messages that a stopping source has not published stay in their queue.
            _ if self.is_finishing => self.waiting.clear(),
            Some((at_least, error)) => self.back_off(at_least, &error),
            None => self.resume(),
        }
        self.show_waiting();
    }

    fn back_off(&mut self, at_least: Option<Duration>, error: &AppError) {
        if self.backoff.is_fresh() {
            let source = &self.source.name;
            tracing::warn!(source, %error, "source paused: events cannot be stored; will retry");
        }
        self.is_backing_off = true;
        let wait = self.backoff.next_delay(clock::random_unit()).min(MAX_STORE_RETRY_DELAY);
        let wait = at_least.map_or(wait, |at_least| at_least.min(MAX_QUOTA_RETRY_DELAY).max(wait));
        self.wake = Box::pin(sleep(wait));
    }

    fn resume(&mut self) {
        if !self.backoff.is_fresh() {
            tracing::info!(source = self.source.name, waiting = self.waiting.len(), "source resumed");
        }
        self.is_backing_off = false;
        self.backoff.reset();
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
        (self.is_finishing, self.parsing) = (true, None);
        self.waiting.clear();
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
                let is_idle = self.publishing.is_none();
                tokio::select! {
                    published = finish(&mut self.publishing) => {
                        self.publishing = None;
                        self.settle(published);
                    }
                    Some(_) = self.closing.next() => {}
                    // A message that cannot be moved to the reject queue stays in its queue, so shutdown need not wait for it.
                    () = sleep(REJECT_FLUSH_TIMEOUT), if is_idle => break,
                    else => break,
                }
            }
        };
        tokio::time::timeout(timeout, finishing).await.ok();
    }

    /// Waits for running publishes after the connection is lost. Their messages cannot be acknowledged any more;
    /// without the wait, a redelivered message could be published concurrently.
    async fn await_pending_publishes(&mut self) {
        if self.publishing.is_some() {
            let publishing = finish(&mut self.publishing);
            tokio::time::timeout(PUBLISH_FLUSH_TIMEOUT, publishing).await.ok();
        }
    }
}

/// Waits for a future; for ever if there is none.
async fn finish<T>(future: &mut Option<BoxFuture<'_, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
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
        | AppError::TooManyExports { .. }
        | AppError::TooManySearches { .. } => PublishFailureAction::Retry(None),
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
    RejectReason { code: error.code().name(), detail: error.to_string() }
}

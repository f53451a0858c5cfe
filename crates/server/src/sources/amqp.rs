//! A queue of RabbitMQ as a source: connect, take messages, publish them, acknowledge what is stored for good.
//!
//! Messages are published in the order in which they came, and wait for their commits concurrently, as many as the
//! broker hands out. When one cannot be stored now, all behind it fail with it (see `PublishOrder`): they are kept here
//! unacknowledged, and the first of them is tried again after a while. Once it is stored, the others follow in their
//! order.

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
use redrive_core::maintenance::backoff::Backoff;
use redrive_engine::{
    Draft, Receipt,
    amqp::{Broker, BrokerError, said},
    clock,
};
use redrive_store::{OrderedPosition, PublishOrder, StoreError};
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    message::Reading,
    metrics::SourceFigures,
    reject::{Reason, Rejects},
};
use crate::{
    api::Problem,
    app::{App, AppError},
    config::Source,
};

/// The longest wait between two tries at a store that is away: it is to be found soon.
const LONGEST_FOR_STORE: Duration = Duration::from_secs(5);
/// The longest wait for a quota, which may have been raised meanwhile.
const LONGEST_FOR_QUOTA: Duration = Duration::from_secs(10);
/// A connection that worked for so long was a good one: the next try comes soon.
const WORKED: Duration = Duration::from_secs(10);
/// How long an end may take that nobody waits for.
const GOODBYE: Duration = Duration::from_secs(2);
/// How long the end of a source waits for messages to be acknowledged or put away, once all are published.
const LAST_REJECTS: Duration = Duration::from_secs(2);
/// How long publishes may take whose messages are lost: they may come again meanwhile.
const LOOSE_ENDS: Duration = Duration::from_secs(10);

/// A queue whose messages are published.
pub(super) struct Amqp {
    name: String,
    queue: String,
    prefetch: u16,
    declare: bool,
    broker: Broker,
    reading: Reading,
    rejects: Rejects,
    figures: SourceFigures,
    app: Arc<App>,
}

/// Why no messages are taken in.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error("{0}")]
    Broker(#[from] BrokerError),
    #[error("{}", said(.0))]
    Lost(#[from] lapin::Error),
    #[error("there is no queue {0:?}; make it, or set declare = true for this source")]
    NoQueue(String),
    #[error("the server has ended the consumer; perhaps the queue was deleted")]
    Cancelled,
}

impl Amqp {
    pub(super) fn new(
        source: &Source,
        broker: Broker,
        reading: Reading,
        rejects: Rejects,
        figures: SourceFigures,
        app: Arc<App>,
    ) -> Self {
        let (name, queue) = (source.name.clone(), source.queue.clone());
        let (prefetch, declare) = (source.prefetch, source.declare);
        Self { name, queue, prefetch, declare, broker, reading, rejects, figures, app }
    }

    /// Takes messages in until it is told to stop, whatever happens to the server.
    pub(super) async fn run(&self, stop: &CancellationToken, patience: Duration) {
        let mut backoff = Backoff::default();
        let mut last_said = String::new();
        while !stop.is_cancelled() {
            let began = clock::ticks();
            let ended = self.session(stop, patience).await;
            if self.figures.up.set(0) == 0 && ended.is_err() {
                self.figures.failed_tries.inc();
            }
            self.figures.waiting.set(0);
            let Err(error) = ended else { return };
            if clock::ticks().saturating_sub(began) >= WORKED {
                backoff.reset();
                last_said.clear();
            }
            let reason = error.to_string();
            if reason != last_said {
                let (source, queue, server) = (&self.name, &self.queue, self.broker.address());
                tracing::warn!(source, queue, %server, error = reason, "a source takes no messages in; it is tried again");
                last_said = reason;
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(backoff.next(clock::roll())) => {}
            }
        }
    }

    /// One connection, from beginning to end.
    async fn session(&self, stop: &CancellationToken, patience: Duration) -> Result<(), SessionError> {
        let purpose = format!("source {}", self.name);
        let connection = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            connected = self.broker.connect(&purpose) => connected?,
        };
        let ended = self.consume(&connection, stop, patience).await;
        // What was not acknowledged goes back to the queue.
        timeout(GOODBYE, connection.close(200, "the source is done".into())).await.ok();
        ended
    }

    async fn consume(
        &self,
        connection: &Connection,
        stop: &CancellationToken,
        patience: Duration,
    ) -> Result<(), SessionError> {
        let (channel, mut consumer) = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            begun = self.begin(connection) => begun?,
        };
        self.figures.up.set(1);
        self.figures.failed_tries.set(0);
        let (source, queue, server) = (&self.name, &self.queue, self.broker.address());
        tracing::info!(source, queue, %server, "a source takes messages in");
        let mut intake = Intake::new(self);
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            ended = intake.run(&mut consumer) => ended,
        };
        match ended {
            Ok(()) => intake.finish(channel, &consumer, patience).await,
            Err(_) => intake.tie_up().await,
        }
        ended
    }

    async fn begin(&self, connection: &Connection) -> Result<(Channel, Consumer), SessionError> {
        for queue in [self.queue.as_str(), self.rejects.queue()] {
            self.find_queue(connection, queue).await?;
        }
        // With its webhooks known, events keep their order; where that fails, so will the first of them.
        self.app.learn(&self.reading.tenant).await.ok();
        let channel = connection.create_channel().await?;
        channel.basic_qos(self.prefetch, BasicQosOptions::default()).await?;
        let (queue, tag) = (self.queue.as_str().into(), format!("redrive-{}", self.name).into());
        let consumer =
            channel.basic_consume(queue, tag, BasicConsumeOptions::default(), FieldTable::default()).await?;
        Ok((channel, consumer))
    }

    /// Sees to it that a queue is there.
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

/// On a channel of its own, since a refusal closes it.
async fn declare(
    connection: &Connection,
    queue: &str,
    options: QueueDeclareOptions,
) -> Result<(), lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.queue_declare(queue.into(), options, FieldTable::default()).await?;
    channel.close(200, "it is there".into()).await
}

fn is_missing(error: &lapin::Error) -> bool {
    let not_found = AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND);
    matches!(error.kind(), ErrorKind::ProtocolError(error) if *error.kind() == not_found)
}

/// A message that nobody has let go of.
struct Message {
    acker: Acker,
    properties: BasicProperties,
    body: Bytes,
}

/// A message whose event is not stored yet.
struct Pending {
    /// Its place among all that came on this connection.
    place: u64,
    message: Message,
    draft: Draft,
}

/// What follows when an event was not published.
enum Verdict {
    /// The message will never do.
    Reject(Reason),
    /// It will do later: in so long at the earliest, where that is known.
    Wait(Option<Duration>),
}

/// The messages of one connection.
struct Intake<'a> {
    source: &'a Amqp,
    next_place: u64,
    publishing: FuturesUnordered<BoxFuture<'a, (Pending, Result<Receipt, AppError>)>>,
    /// Acknowledgements on their way, and messages that are being put away first.
    closing: FuturesUnordered<BoxFuture<'a, Result<(), lapin::Error>>>,
    /// What the store did not take, by its place.
    held: BTreeMap<u64, Pending>,
    /// The order of what is being published, and how many are in it.
    order: Arc<PublishOrder>,
    in_order: u64,
    /// When the first of those is tried again, and whether it is being tried.
    wake: Pin<Box<Sleep>>,
    is_trying: bool,
    /// Whether `wake` was set for a failure of what is held.
    is_backing_off: bool,
    backoff: Backoff,
}

impl<'a> Intake<'a> {
    fn new(source: &'a Amqp) -> Self {
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
            backoff: Backoff::default(),
        }
    }

    /// Works until the connection is lost. How many messages it has is bounded by what the server hands out.
    async fn run(&mut self, consumer: &mut Consumer) -> Result<(), SessionError> {
        loop {
            let is_stuck = !self.held.is_empty() && self.publishing.is_empty();
            tokio::select! {
                biased;
                Some((pending, result)) = self.publishing.next() => self.settle(pending, result),
                Some(closed) = self.closing.next() => closed?,
                () = self.wake.as_mut(), if is_stuck => self.try_again(),
                next = consumer.next() => match next {
                    Some(delivery) => self.take(delivery?),
                    None => return Err(SessionError::Cancelled),
                },
            }
        }
    }

    fn take(&mut self, delivery: Delivery) {
        let Delivery { acker, properties, data, .. } = delivery;
        let message = Message { acker, properties, body: data.into() };
        match self.source.reading.read(&message.properties, &message.body) {
            Err(problem) => self.reject(message, reason(problem)),
            Ok(draft) => {
                let place = self.next_place;
                self.next_place += 1;
                let pending = Pending { place, message, draft };
                // Nothing overtakes what waits.
                if self.held.is_empty() && !self.is_trying {
                    self.publish(pending)
                } else {
                    self.hold(pending)
                }
            }
        }
    }

    fn publish(&mut self, pending: Pending) {
        let app = self.source.app.clone();
        let (order, position) = (self.order.clone(), self.in_order);
        self.in_order += 1;
        let publishing = async move {
            let ordered = OrderedPosition { order: order.clone(), position };
            let result = app.publish_in_order(pending.draft.clone(), ordered).await;
            match result.as_ref().err().map(|error| verdict(error.clone())) {
                // It may have failed before the store saw it, which then cannot refuse what is behind it. What comes
                // before it is stored: a message over the quota must not delay those that are within it.
                Some(Verdict::Wait(_)) => order.break_off(position),
                Some(Verdict::Reject(_)) | None => order.leave_out(position).await,
            }
            (pending, result)
        };
        self.publishing.push(publishing.boxed());
    }

    fn hold(&mut self, pending: Pending) {
        self.held.insert(pending.place, pending);
        self.source.figures.waiting.set(self.held.len() as i64);
    }

    fn settle(&mut self, pending: Pending, result: Result<Receipt, AppError>) {
        let figures = &self.source.figures;
        match result {
            Ok(receipt) => {
                if receipt.duplicate {
                    figures.duplicate.inc()
                } else {
                    figures.published.inc()
                };
                let acker = pending.message.acker;
                self.closing.push(ack(acker).boxed());
                self.is_trying = false;
                self.go_on();
            }
            Err(error) => match verdict(error.clone()) {
                Verdict::Reject(reason) => {
                    self.reject(pending.message, reason);
                    self.is_trying = false;
                    self.go_on();
                }
                Verdict::Wait(at_least) => self.wait(pending, at_least, &error),
            },
        }
    }

    fn wait(&mut self, pending: Pending, at_least: Option<Duration>, error: &AppError) {
        // What failed only because of something before it has no reason of its own to wait. Whatever else is in flight
        // fails together, which is one failure.
        let is_own_failure = !matches!(error, AppError::Store(StoreError::OutOfOrder));
        if is_own_failure && !self.is_backing_off {
            self.is_backing_off = true;
            if self.backoff.is_fresh() {
                let source = &self.source.name;
                tracing::warn!(source, %error, "messages of a source wait, since their events cannot be stored now");
            }
            let wait = self.backoff.next(clock::roll()).min(LONGEST_FOR_STORE);
            let wait = at_least.map_or(wait, |at_least| at_least.min(LONGEST_FOR_QUOTA).max(wait));
            self.wake = Box::pin(sleep(wait));
        }
        self.is_trying = false;
        self.hold(pending);
    }

    /// Tries the first of those that wait, alone, as the first of a new order.
    fn try_again(&mut self) {
        if let Some((_, first)) = self.held.pop_first() {
            (self.order, self.in_order, self.is_backing_off) = (Arc::default(), 0, false);
            self.wake = Box::pin(sleep(Duration::ZERO));
            self.is_trying = true;
            self.publish(first);
        }
    }

    /// One has got through: those that wait follow, in their order, unless some are under way that may yet fail.
    fn go_on(&mut self) {
        if !self.publishing.is_empty() || self.order.is_broken() {
            return;
        }
        if self.held.is_empty() {
            self.backoff.reset();
            return;
        }
        if !self.backoff.is_fresh() {
            tracing::info!(
                source = self.source.name,
                waiting = self.held.len(),
                "messages of a source go on"
            );
        }
        self.backoff.reset();
        for pending in std::mem::take(&mut self.held).into_values() {
            self.publish(pending);
        }
        self.source.figures.waiting.set(0);
    }

    /// Lets go of a message once it is safe in the other queue.
    fn reject(&mut self, message: Message, reason: Reason) {
        let source = self.source;
        let now = source.app.engine().clock().now();
        let rejecting = async move {
            source.rejects.put(&message.properties, &message.body, &reason, now).await;
            source.figures.rejected.inc();
            ack(message.acker).await
        };
        self.closing.push(rejecting.boxed());
    }

    /// Takes no more in, and finishes what is under way, for so long at the most.
    async fn finish(&mut self, channel: Channel, consumer: &Consumer, patience: Duration) {
        self.held.clear();
        // What the server still hands out goes back to the queue with the connection; so one that does not answer
        // need not be waited for.
        let tag = consumer.tag();
        let cancelling = async move {
            let cancelled = channel.basic_cancel(tag, BasicCancelOptions::default());
            timeout(GOODBYE, cancelled).await.unwrap_or(Ok(()))
        };
        self.closing.push(cancelling.boxed());
        let finishing = async {
            loop {
                tokio::select! {
                    Some((pending, result)) = self.publishing.next() => match result {
                        Err(error) if matches!(verdict(error.clone()), Verdict::Wait(_)) => {}
                        result => self.settle(pending, result),
                    },
                    Some(_) = self.closing.next() => {}
                    // A message that cannot be put away stays in its queue: nobody has to wait for that.
                    () = sleep(LAST_REJECTS), if self.publishing.is_empty() => break,
                    else => break,
                }
            }
        };
        timeout(patience, finishing).await.ok();
    }

    /// Nobody can acknowledge anything any more. What is being published is waited for, so that the same message
    /// is not published by its next delivery at the same time.
    async fn tie_up(&mut self) {
        let publishing = async { while self.publishing.next().await.is_some() {} };
        timeout(LOOSE_ENDS, publishing).await.ok();
    }
}

async fn ack(acker: Acker) -> Result<(), lapin::Error> {
    acker.ack(BasicAckOptions::default()).await.map(|_| ())
}

fn verdict(error: AppError) -> Verdict {
    match error {
        AppError::OverQuota { retry_after, .. } => Verdict::Wait(Some(Duration::from_secs(retry_after))),
        // The store is fine, and will never take this one.
        AppError::Store(StoreError::Refused(_)) => {
            Verdict::Reject(Reason { code: "refused", detail: error.to_string() })
        }
        // No tenant of that name: it is the settings that are wrong, or the tenant is yet to be made.
        AppError::Store(_)
        | AppError::NotFound(_)
        | AppError::BatchTooCostly(_)
        | AppError::TooManyExports { .. } => Verdict::Wait(None),
        AppError::Invalid(_)
        | AppError::Unfit { .. }
        | AppError::Unprocessable { .. }
        | AppError::Conflict { .. }
        | AppError::TooLarge(_)
        | AppError::Unauthorized
        | AppError::Forbidden(_) => Verdict::Reject(reason(error.into())),
    }
}

fn reason(problem: Problem) -> Reason {
    Reason { code: problem.code, detail: problem.detail }
}

//! Ticket consumer: claims the deliveries named by tickets, one batch for all that wait, and hands them to the
//! dispatcher. Acknowledges the tickets after the commit.
//!
//! Deliveries of a webhook that has no capacity within a short time are left to the store. A node without capacity
//! leaves its tickets in the broker, where the queue length shows the backlog.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::{StreamExt, future::try_join_all};
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery as Message,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions},
    types::FieldTable,
};
use parking_lot::Mutex;
use redrive_core::{
    DeliveryId, WebhookId,
    cluster::ticket::{Ticket, due_limit},
    delivery::lane::{CLASS_COUNT, Lane, Priority},
    dispatch::fairness::ClassScheduler,
    maintenance::backoff::OutageBackoff,
    webhook::WebhookState,
};
use redrive_store::{ClaimedDelivery, LaneCapacity, LaneKey, StoreError, TicketEntry};
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    TicketBroker,
    link::{self, BrokerLink, CONSUME_LINK},
    topology::TicketRoute,
};
use crate::{
    amqp::BrokerError,
    clock::{monotonic_now, random_unit},
    schedule::{
        Claimer,
        claim::to_leased_delivery,
        reservation::{ClaimReservation, LaneDeliveries},
    },
    supervision::FaultPoint,
};

/// Approximate maximum of deliveries per batch, and of their payload bytes.
const MAX_BATCH_DELIVERIES: usize = 500;
const MAX_BATCH_BYTES: usize = 8 << 20;
/// Poll delay for capacity of the node, and the time to wait for capacity of a webhook.
const CAPACITY_POLL_DELAY: Duration = Duration::from_millis(10);
const WEBHOOK_CAPACITY_TIMEOUT: Duration = Duration::from_millis(250);
/// Period for which a webhook without capacity is not waited for again.
const WEBHOOK_SKIP_PERIOD: Duration = Duration::from_secs(5);
const STORE_RETRY_DELAY: Duration = Duration::from_millis(500);
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum interval between log records about invalid tickets.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Received tickets, by priority.
#[derive(Default)]
struct TicketBuffer {
    waiting: Mutex<[VecDeque<Message>; Priority::ALL.len()]>,
    filled: Notify,
}

impl TicketBuffer {
    fn put(&self, priority: Priority, message: Message) {
        self.waiting.lock()[priority as usize].push_back(message);
        self.filled.notify_one();
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().iter().all(VecDeque::is_empty)
    }

    /// Returns the next ticket by weighted priority, so that no priority starves.
    fn next(&self, scheduler: &mut ClassScheduler) -> Option<(Priority, Message)> {
        let mut waiting = self.waiting.lock();
        let mut ready_classes = [false; CLASS_COUNT];
        for (class, tickets) in waiting.iter().enumerate() {
            ready_classes[class] = !tickets.is_empty();
        }
        let class = scheduler.next(ready_classes)?;
        scheduler.charge(class);
        let message = waiting[class].pop_front()?;
        Some((Priority::ALL[class], message))
    }
}

/// Tickets that are claimed together.
#[derive(Default)]
struct Batch {
    messages: Vec<Message>,
    deliveries: DeliveriesByLane,
}

/// Deliveries named by tickets, by lane.
type DeliveriesByLane = BTreeMap<LaneKey, Vec<DeliveryId>>;

/// Webhooks without capacity, each with the time until which its deliveries are left to the store.
type SkippedWebhooks = HashMap<WebhookId, Duration>;

/// Claims what the tickets of other nodes name.
pub(crate) struct TicketConsumer {
    pub(crate) broker: Arc<TicketBroker>,
    pub(crate) claimer: Arc<Claimer>,
    pub(crate) stop: CancellationToken,
}

impl TicketConsumer {
    /// Claims what tickets name until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let broker = &*self.broker;
        let mut link = BrokerLink::new(CONSUME_LINK);
        // A former run that failed has not reset what it knew about its connection.
        link.reset(broker);
        loop {
            let ended = self.consume_until_disconnected(broker, &mut link).await;
            if !link.wait_to_reconnect(broker, ended, &self.stop).await {
                // A node that drains consumes no more tickets, but the engine still runs.
                return self.stop.cancelled().await;
            }
        }
    }

    /// Consumes tickets over one connection. Returns `Ok` if the node drains or stops.
    async fn consume_until_disconnected(
        self: &Arc<Self>,
        broker: &TicketBroker,
        link: &mut BrokerLink,
    ) -> Result<(), BrokerError> {
        let connection = broker.settings.broker.connect("tickets in").await?;
        let opening = async {
            let channel = connection.create_channel().await?;
            broker.topology.declare(&channel).await
        };
        link::with_timeout(opening).await?;
        let buffer = TicketBuffer::default();
        let counters = self.claimer.settings.pools.iter().flat_map(|pool| {
            Priority::ALL.into_iter().map(|priority| TicketRoute { pool: pool.clone(), priority })
        });
        let opening = counters.map(|counter| open(broker, &connection, counter));
        let opened = try_join_all(opening).await?;
        link.mark_up(broker);
        let consuming =
            try_join_all(opened.into_iter().map(|queue| consume(broker, &connection, queue, &buffer)));
        let ended = tokio::select! {
            ended = consuming => ended.map(drop),
            ended = self.claim_incoming(broker, &connection, &buffer) => ended,
        };
        let _ = timeout(CONNECTION_CHECK_INTERVAL, connection.close(200, "done".into())).await;
        ended
    }

    /// Claims received tickets until the node drains. Tickets left in the buffer return to the broker.
    async fn claim_incoming(
        self: &Arc<Self>,
        broker: &TicketBroker,
        connection: &Connection,
        buffer: &TicketBuffer,
    ) -> Result<(), BrokerError> {
        let (mut scheduler, mut skipped) = (ClassScheduler::default(), SkippedWebhooks::new());
        loop {
            if self.stop.is_cancelled() || self.claimer.dispatcher.queues.is_draining() {
                return Ok(());
            }
            if !connection.status().connected() {
                return Err(BrokerError::Closed);
            }
            if buffer.is_empty() {
                let _ = timeout(CONNECTION_CHECK_INTERVAL, buffer.filled.notified()).await;
                continue;
            }
            if self.claimer.dispatcher.queues.is_nearly_full() {
                tokio::time::sleep(CAPACITY_POLL_DELAY).await;
                continue;
            }
            let Batch { messages, deliveries: ready } = broker.gather(buffer, &mut scheduler).await;
            if !self.claim_batch(broker, ready, &mut skipped).await {
                return Ok(());
            }
            for message in messages {
                // If the acknowledgement fails the ticket is redelivered, and names nothing that still waits.
                let _ = message.acker.ack(BasicAckOptions::default()).await;
            }
        }
    }

    /// Claims the deliveries of tickets. Waits up to `WEBHOOK_CAPACITY_TIMEOUT` for webhooks without capacity, while
    /// the broker keeps further tickets; afterwards leaves their deliveries to the store and does not wait for these
    /// webhooks for `WEBHOOK_SKIP_PERIOD`. Returns false if the node drains or stops.
    async fn claim_batch(
        self: &Arc<Self>,
        broker: &TicketBroker,
        mut ready: DeliveriesByLane,
        skipped: &mut SkippedWebhooks,
    ) -> bool {
        let (started, mut message) = (monotonic_now(), false);
        skipped.retain(|_, until| *until > started);
        while !ready.is_empty() {
            let ready_now = Arc::new(std::mem::take(&mut ready));
            let pause = match self.claim_and_accept(ready_now.clone()).await {
                Ok(rest) => {
                    ready = rest;
                    let late = monotonic_now().saturating_sub(started) >= WEBHOOK_CAPACITY_TIMEOUT;
                    ready.retain(|key, named| {
                        let leave = late || skipped.contains_key(&key.webhook_id);
                        if leave {
                            broker.metrics.skipped.inc_by(named.len() as u64);
                            skipped.entry(key.webhook_id).or_insert(started + WEBHOOK_SKIP_PERIOD);
                        }
                        !leave
                    });
                    CAPACITY_POLL_DELAY
                }
                Err(error) => {
                    if !std::mem::replace(&mut message, true) {
                        tracing::warn!(%error, "claiming deliveries of tickets failed; will retry");
                    }
                    if error == StoreError::Fenced {
                        self.claimer.membership.check_epoch_now();
                    }
                    ready = Arc::unwrap_or_clone(ready_now);
                    STORE_RETRY_DELAY
                }
            };
            if !ready.is_empty() {
                tokio::time::sleep(pause).await;
                if self.stop.is_cancelled() || self.claimer.dispatcher.queues.is_draining() {
                    return false;
                }
            }
        }
        true
    }

    /// Claims the deliveries of tickets as far as there is capacity, and hands them to the dispatcher. Runs in its own
    /// task: leased deliveries must reach the dispatcher even if the caller is gone. Returns those without capacity.
    async fn claim_and_accept(
        self: &Arc<Self>,
        ready: Arc<DeliveriesByLane>,
    ) -> Result<DeliveriesByLane, StoreError> {
        let consumer = self.clone();
        let taking = tokio::spawn(async move { consumer.claim_from_store(&ready).await });
        taking.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the claim was aborted".into())))
    }

    async fn claim_from_store(&self, named: &DeliveriesByLane) -> Result<DeliveriesByLane, StoreError> {
        let (broker, claimer) = (&*self.broker, &*self.claimer);
        let epoch = claimer.membership.current_epoch();
        let mut reserved = ClaimReservation::new(claimer, &epoch, Vec::new());
        let (mut wanted, mut left, mut rest) = (Vec::new(), 0, DeliveriesByLane::new());
        for (key, deliveries) in named {
            let capacity = self.reserve_capacity(key, deliveries.len()).await?;
            let (fit, over) = deliveries.split_at(capacity.max_deliveries);
            if !over.is_empty() && claimer.dispatcher.queues.is_full_for(key, 1) {
                rest.insert(key.clone(), over.to_vec());
            } else {
                left += over.len();
            }
            wanted.extend(fit.iter().map(|id| TicketEntry { key: key.clone(), delivery_id: *id }));
            if capacity.max_deliveries > 0 {
                reserved.capacities.push(capacity);
            }
        }
        if reserved.capacities.is_empty() {
            broker.metrics.skipped.inc_by(left as u64);
            return Ok(rest);
        }
        let (now, requests) = (claimer.clock.now(), wanted.len());
        let keys: HashMap<DeliveryId, LaneKey> =
            wanted.iter().map(|wanted| (wanted.delivery_id, wanted.key.clone())).collect();
        let bytes = reserved.reserve_bytes(MAX_BATCH_BYTES);
        let _transfer = claimer.dispatcher.lease_transfers.begin();
        let taken = claimer.store.claim_tickets(epoch.epoch, now, due_limit(now), wanted, bytes).await?;
        broker.metrics.taken.inc_by(taken.len() as u64);
        broker.metrics.stale.inc_by((requests - taken.len()) as u64);
        broker.metrics.skipped.inc_by(left as u64);
        let mut by_lane: BTreeMap<&LaneKey, Vec<ClaimedDelivery>> = BTreeMap::new();
        for one in taken {
            if let Some(key) = keys.get(&one.id) {
                by_lane.entry(key).or_default().push(one);
            }
        }
        reserved.set_claimed(|capacity| (by_lane.remove(&capacity.key).unwrap_or_default(), false));
        claimer.faults.inject(FaultPoint::TicketsClaimed);
        while let Some(LaneDeliveries { capacity, deliveries: claimed, .. }) = reserved.next_lane() {
            let delay = claimer.first_delay(capacity.key.webhook_id);
            let ready = |one| to_leased_delivery(one, &epoch, &capacity.key.lane, delay);
            let deliveries = claimed.into_iter().map(ready).collect();
            claimer.dispatcher.enqueue_ticketed(&capacity, deliveries);
        }
        Ok(rest)
    }

    /// Reserves capacity for up to `count` deliveries of a webhook; none if it needs an assigned node or is not
    /// active.
    async fn reserve_capacity(&self, key: &LaneKey, count: usize) -> Result<LaneCapacity, StoreError> {
        let claimer = &*self.claimer;
        let none = LaneCapacity::new(key.clone(), 0);
        let webhook = match claimer.router.get_or_load(key.webhook_id).await {
            Ok(Some(webhook)) => webhook,
            // Left to the claim loop, which ends deliveries of a deleted webhook and logs an unreadable one.
            Ok(None) | Err(StoreError::InvalidItem(_)) => return Ok(none),
            Err(error) => return Err(error),
        };
        if !webhook.tenant.may_send_here()
            || webhook.state != WebhookState::Active
            || claimer.dispatcher.assignments.needs_assigned_node(&webhook)
        {
            return Ok(none);
        }
        claimer.runtime_updater.unpark_before_transition(&webhook);
        let limits = claimer.dispatcher.assignments.webhook_limits(&webhook);
        let capacity = claimer.dispatcher.queues.reserve_for_tickets(limits, &key.lane, count);
        Ok(LaneCapacity::new(key.clone(), capacity))
    }
}

impl TicketBroker {
    /// Takes one batch of tickets from the buffer, by weighted priority.
    async fn gather(&self, buffer: &TicketBuffer, scheduler: &mut ClassScheduler) -> Batch {
        let (mut batch, mut count) = (Batch::default(), 0);
        while count < MAX_BATCH_DELIVERIES
            && let Some((priority, message)) = buffer.next(scheduler)
        {
            match Ticket::decode(&message.data) {
                Ok(ticket) => {
                    count += ticket.len();
                    for (webhook_id, deliveries) in ticket.ready {
                        let lane = Lane::Unordered { priority, retry: false };
                        batch.deliveries.entry(LaneKey { webhook_id, lane }).or_default().extend(deliveries);
                    }
                    batch.messages.push(message);
                }
                Err(error) => {
                    self.metrics.rejected.inc();
                    if self.should_log() {
                        let queue = message.routing_key.as_str();
                        tracing::warn!(%error, queue, "message is not a ticket; rejected");
                    }
                    let _ = message.acker.reject(BasicRejectOptions { requeue: false }).await;
                }
            }
        }
        batch
    }

    fn should_log(&self) -> bool {
        let (now, next) = (monotonic_now().as_secs(), self.next_log_at.load(Relaxed));
        next <= now
            && self.next_log_at.compare_exchange(next, now + LOG_INTERVAL.as_secs(), Relaxed, Relaxed).is_ok()
    }
}

/// Queue that this node consumes.
struct OpenQueue {
    counter: TicketRoute,
    /// Kept open: dropping the channel ends the consumer.
    _channel: Channel,
    tickets: Consumer,
}

/// Declares a queue and starts consuming it.
async fn open(
    broker: &TicketBroker,
    connection: &Connection,
    counter: TicketRoute,
) -> Result<OpenQueue, BrokerError> {
    let opening = async {
        let channel = connection.create_channel().await?;
        broker.topology.declare_queue(&channel, &counter).await?;
        channel.basic_qos(broker.settings.prefetch, BasicQosOptions::default()).await?;
        let (queue, tag) = (broker.topology.queue(&counter).into(), "".into());
        let options = BasicConsumeOptions::default();
        let tickets = channel.basic_consume(queue, tag, options, FieldTable::default()).await?;
        Ok::<_, lapin::Error>((channel, tickets))
    };
    let (_channel, tickets) = link::with_timeout(opening).await?;
    Ok(OpenQueue { counter, _channel, tickets })
}

/// Moves tickets of one queue into the buffer while the connection is up. Declares the queue again if it was
/// deleted.
async fn consume(
    broker: &TicketBroker,
    connection: &Connection,
    mut queue: OpenQueue,
    buffer: &TicketBuffer,
) -> Result<(), BrokerError> {
    let mut backoff = OutageBackoff::default();
    loop {
        while let Some(Ok(message)) = queue.tickets.next().await {
            backoff.reset();
            buffer.put(queue.counter.priority, message);
        }
        tokio::time::sleep(backoff.next_delay(random_unit())).await;
        if !connection.status().connected() {
            return Err(BrokerError::Closed);
        }
        let name = broker.topology.queue(&queue.counter);
        tracing::info!(queue = name, "ticket queue is missing; declaring it again");
        queue = open(broker, connection, queue.counter).await?;
    }
}

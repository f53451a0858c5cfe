//! Ticket publisher: sends tickets for committed deliveries that other nodes send, many deliveries per message.
//!
//! A publish never waits for the broker. If tickets cannot be sent at the moment, its deliveries are due
//! immediately and claimed from the store; so are deliveries whose ticket the broker refuses, returns or does not
//! confirm.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionStatus,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};
use parking_lot::RwLock;
use redrive_core::{
    DeliveryId, WebhookId,
    cluster::ticket::{MAX_DELIVERIES, Ticket},
    delivery::lane::Priority,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    TicketBroker,
    link::{self, BrokerLink, PUBLISH_LINK},
    topology::TicketRoute,
};
use crate::{
    amqp::{BrokerError, describe_error},
    clock::monotonic_now,
    cluster::membership::Membership,
};

/// Maximum number of deliveries with an unconfirmed ticket; beyond it, new deliveries go through the store.
const MAX_OUTSTANDING_DELIVERIES: usize = 20_000;
/// Maximum number of unconfirmed messages.
const MAX_UNCONFIRMED_MESSAGES: usize = 256;
/// Deliveries gathered into tickets at a time.
const MAX_GATHERED: usize = 2_000;
/// Time after which a missing confirmation diverts new deliveries to the store.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for which a refusal by the broker diverts new deliveries to the store.
const REFUSAL_BACKOFF: Duration = Duration::from_secs(1);
/// Interval between connection checks while idle.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout for outstanding confirmations at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A delivery that is ready, and the queue for its ticket.
#[derive(Clone, Debug)]
pub(crate) struct TicketItem {
    pub(crate) pool: String,
    pub(crate) priority: Priority,
    pub(crate) webhook_id: WebhookId,
    pub(crate) delivery_id: DeliveryId,
}

/// State of the ticket publisher that publishes read.
#[derive(Default)]
pub(crate) struct TicketPublisher {
    waiting: RwLock<Option<mpsc::UnboundedSender<Vec<TicketItem>>>>,
    /// Other end of `waiting`. Locked by the ticket publisher; kept when that is restarted.
    queue: tokio::sync::Mutex<Option<mpsc::UnboundedReceiver<Vec<TicketItem>>>>,
    /// Connection status; `None` while disconnected.
    status: RwLock<Option<ConnectionStatus>>,
    outstanding: AtomicUsize,
    /// Number of messages unconfirmed for longer than `CONFIRM_TIMEOUT`.
    late: AtomicUsize,
    /// Monotonic time in milliseconds until which no tickets are sent after a refusal.
    not_before: AtomicU64,
    stopping: AtomicBool,
}

impl TicketPublisher {
    fn open_queue(&self) -> mpsc::UnboundedReceiver<Vec<TicketItem>> {
        let (sender, waiting) = mpsc::unbounded_channel();
        *self.waiting.write() = Some(sender);
        waiting
    }

    /// Resets what is known about the connection, and drops the tickets that were not sent: their deliveries are
    /// claimed from the store.
    fn disconnect(&self, broker: &TicketBroker, waiting: &mut mpsc::UnboundedReceiver<Vec<TicketItem>>) {
        *self.status.write() = None;
        self.late.store(0, Relaxed);
        while let Ok(lost) = waiting.try_recv() {
            drop(OutstandingTickets::new(broker, lost.len()));
        }
    }

    /// Returns whether the broker is believed to accept tickets now.
    pub(super) fn is_open(&self) -> bool {
        self.outstanding.load(Relaxed) < MAX_OUTSTANDING_DELIVERIES
            && self.late.load(Relaxed) == 0
            && self.not_before.load(Relaxed) <= millis(monotonic_now())
            && !self.stopping.load(Relaxed)
            && self.status.read().as_ref().is_some_and(|status| status.connected() && !status.blocked())
    }

    fn back_off(&self) {
        self.not_before.store(millis(monotonic_now() + REFUSAL_BACKOFF), Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl TicketBroker {
    /// Queues tickets for deliveries that were just committed. Never waits.
    pub(crate) fn publish_tickets(&self, issues: Vec<TicketItem>) {
        if issues.is_empty() {
            return;
        }
        let (issuing, count) = (&self.issuing, issues.len());
        // Publishes that were in progress when the limit was reached may exceed it, up to twice the limit.
        let sent = issuing.outstanding.load(Relaxed) < 2 * MAX_OUTSTANDING_DELIVERIES
            && issuing.waiting.read().as_ref().is_some_and(|waiting| {
                issuing.outstanding.fetch_add(count, Relaxed);
                waiting.send(issues).is_ok() || {
                    issuing.outstanding.fetch_sub(count, Relaxed);
                    false
                }
            });
        if !sent {
            self.metrics.unconfirmed.inc_by(count as u64);
        }
    }
}

/// Sends the tickets of this node's publishes.
pub(crate) struct TicketPublisherService {
    pub(crate) broker: Arc<TicketBroker>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) stop: CancellationToken,
}

impl TicketPublisherService {
    /// Publishes tickets until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let broker = &*self.broker;
        let mut queue = broker.issuing.queue.lock().await;
        let waiting = queue.get_or_insert_with(|| broker.issuing.open_queue());
        let mut link = BrokerLink::new(PUBLISH_LINK);
        // A former run that failed has not reset what it knew about its connection.
        link.reset(broker);
        broker.issuing.disconnect(broker, waiting);
        loop {
            let ended = self.publish_until_disconnected(broker, waiting, &mut link).await;
            broker.issuing.disconnect(broker, waiting);
            if !link.wait_to_reconnect(broker, ended, &self.stop).await {
                broker.issuing.waiting.write().take();
                return self.stop.cancelled().await;
            }
        }
    }

    /// Publishes tickets over one connection. Returns `Ok` if the engine stops.
    async fn publish_until_disconnected(
        &self,
        broker: &TicketBroker,
        waiting: &mut mpsc::UnboundedReceiver<Vec<TicketItem>>,
        link: &mut BrokerLink,
    ) -> Result<(), BrokerError> {
        let connection = broker.settings.broker.connect("tickets out").await?;
        let mut channel = PublishChannel::open(broker, connection).await?;
        // Declared before the first ticket, so that a declaration error is known before publishes rely on tickets.
        for pool in self.membership.served_pools() {
            for priority in Priority::ALL {
                channel.ensure_queue(&TicketRoute { pool: pool.clone(), priority }).await?;
            }
        }
        *broker.issuing.status.write() = Some(channel.connection.status().clone());
        link.mark_up(broker);
        let mut sent = FuturesUnordered::new();
        let mut check_interval = tokio::time::interval(CONNECTION_CHECK_INTERVAL);
        loop {
            tokio::select! {
                biased;
                Some(outcome) = sent.next() => broker.on_confirmation(&mut channel, outcome),
                Some(first) = waiting.recv(), if sent.len() < MAX_UNCONFIRMED_MESSAGES => {
                    for (counter, ticket, held) in gather(broker, first, waiting) {
                        channel.ensure_queue(&counter).await?;
                        sent.push(channel.send(counter, ticket, held));
                    }
                }
                _ = check_interval.tick() => {
                    if !channel.channel.status().connected() {
                        return Err(BrokerError::Closed);
                    }
                }
                () = self.stop.cancelled() => {
                    broker.issuing.stopping.store(true, Relaxed);
                    let last = async { while sent.next().await.is_some() {} };
                    let _ = timeout(FLUSH_TIMEOUT, last).await;
                    let _ = timeout(FLUSH_TIMEOUT, channel.connection.close(200, "stopping".into())).await;
                    return Ok(());
                }
            }
        }
    }
}

/// Packs all waiting deliveries into as few tickets as possible.
fn gather<'a>(
    broker: &'a TicketBroker,
    first: Vec<TicketItem>,
    waiting: &mut mpsc::UnboundedReceiver<Vec<TicketItem>>,
) -> Vec<(TicketRoute, Ticket, OutstandingTickets<'a>)> {
    let mut issues = first;
    while issues.len() < MAX_GATHERED
        && let Ok(more) = waiting.try_recv()
    {
        issues.extend(more);
    }
    let mut by_counter: BTreeMap<TicketRoute, Vec<(WebhookId, DeliveryId)>> = BTreeMap::new();
    for TicketItem { pool, priority, webhook_id, delivery_id } in issues {
        by_counter.entry(TicketRoute { pool, priority }).or_default().push((webhook_id, delivery_id));
    }
    let mut tickets = Vec::new();
    for (counter, ready) in by_counter {
        for part in ready.chunks(MAX_DELIVERIES) {
            let mut ticket = Ticket::default();
            part.iter().for_each(|(webhook_id, delivery_id)| ticket.add(*webhook_id, *delivery_id));
            tickets.push((counter.clone(), ticket, OutstandingTickets::new(broker, part.len())));
        }
    }
    tickets
}

/// Counts deliveries as outstanding until dropped, then as `issued` or, if not confirmed, as left to the store.
struct OutstandingTickets<'a> {
    broker: &'a TicketBroker,
    deliveries: usize,
    issued: bool,
}

impl<'a> OutstandingTickets<'a> {
    fn new(broker: &'a TicketBroker, deliveries: usize) -> Self {
        Self { broker, deliveries, issued: false }
    }
}

impl Drop for OutstandingTickets<'_> {
    fn drop(&mut self) {
        self.broker.issuing.outstanding.fetch_sub(self.deliveries, Relaxed);
        let metrics = &self.broker.metrics;
        let counter = if self.issued { &metrics.issued } else { &metrics.unconfirmed };
        counter.inc_by(self.deliveries as u64);
    }
}

/// Result of a message.
struct Sent<'a> {
    counter: TicketRoute,
    held: OutstandingTickets<'a>,
    confirmed: lapin::Result<Confirmation>,
}

impl TicketBroker {
    fn on_confirmation(&self, channel: &mut PublishChannel<'_>, sent: Sent<'_>) {
        let Sent { counter, mut held, confirmed } = sent;
        match confirmed {
            Ok(Confirmation::Ack(None)) => held.issued = true,
            // Returned as unroutable: the queue was deleted. Declare it again before the next ticket.
            Ok(Confirmation::Ack(Some(_))) => {
                channel.declared.remove(&counter);
            }
            // The queue is full.
            Ok(Confirmation::Nack(_) | Confirmation::NotRequested) => self.issuing.back_off(),
            Err(error) => {
                tracing::debug!(error = describe_error(&error), "publishing a ticket failed");
                self.issuing.back_off();
            }
        }
    }
}

/// Channel on which tickets are published.
struct PublishChannel<'a> {
    broker: &'a TicketBroker,
    connection: Connection,
    channel: Channel,
    /// Queues that are declared.
    declared: BTreeSet<TicketRoute>,
}

impl<'a> PublishChannel<'a> {
    async fn open(broker: &'a TicketBroker, connection: Connection) -> Result<Self, BrokerError> {
        let opening = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            broker.topology.declare(&channel).await?;
            Ok::<_, lapin::Error>(channel)
        };
        let channel = link::with_timeout(opening).await?;
        Ok(Self { broker, connection, channel, declared: BTreeSet::new() })
    }

    async fn ensure_queue(&mut self, counter: &TicketRoute) -> Result<(), BrokerError> {
        if !self.declared.contains(counter) {
            link::with_timeout(self.broker.topology.declare_queue(&self.channel, counter)).await?;
            self.declared.insert(counter.clone());
        }
        Ok(())
    }

    /// Sends a ticket. The future returns its confirmation.
    fn send(
        &self,
        counter: TicketRoute,
        ticket: Ticket,
        held: OutstandingTickets<'a>,
    ) -> impl Future<Output = Sent<'a>> + use<'a> {
        let (channel, broker) = (self.channel.clone(), self.broker);
        async move {
            let mut sending = std::pin::pin!(send(&channel, &broker.topology.exchange, &counter, &ticket));
            let confirmed = match timeout(CONFIRM_TIMEOUT, sending.as_mut()).await {
                Ok(confirmed) => confirmed,
                Err(_) => {
                    broker.issuing.late.fetch_add(1, Relaxed);
                    let confirmed = sending.as_mut().await;
                    broker.issuing.late.fetch_sub(1, Relaxed);
                    confirmed
                }
            };
            Sent { counter: counter.clone(), held, confirmed }
        }
    }
}

async fn send(
    channel: &Channel,
    exchange: &str,
    counter: &TicketRoute,
    ticket: &Ticket,
) -> lapin::Result<Confirmation> {
    // Not persistent: after a broker restart the deliveries are claimed from the store.
    let properties = BasicProperties::default()
        .with_delivery_mode(1)
        .with_content_type("application/json".into())
        .with_type("redrive.ticket".into());
    let returned = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel
        .basic_publish(exchange.into(), counter.routing_key().into(), returned, &ticket.encode(), properties)
        .await?;
    sent.await
}

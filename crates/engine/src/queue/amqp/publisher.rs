//! Issuing tickets: what was committed and is for others to send is told to the broker, many deliveries by one message.
//!
//! A publish never waits for any of this. It asks whether tickets go out at the moment; if not, its deliveries are due
//! at once and found in the store. What the broker refuses, returns or does not confirm is left to the store as well.

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
    cluster::ticket::{MOST, Ticket},
    delivery::lane::Priority,
};
use tokio::{sync::mpsc, time::timeout};

use super::{
    Office,
    link::{self, Link, OUT},
    topology::Counter,
};
use crate::{
    Inner,
    amqp::{BrokerError, said},
    clock::ticks,
};

/// Deliveries whose tickets are on their way at the most; with more, new ones go through the store.
const MOST_IN_HAND: usize = 20_000;
/// Messages that the broker has not confirmed yet, at the most.
const MOST_UNCONFIRMED: usize = 256;
/// Tickets gathered at one go.
const GATHERED: usize = 2_000;
/// How long the broker may take to confirm before new work goes through the store.
const PATIENCE: Duration = Duration::from_millis(500);
/// For how long it does once the broker has refused something.
const REFUSED: Duration = Duration::from_secs(1);
/// How often the connection is looked at while nothing happens.
const LOOK: Duration = Duration::from_millis(500);
/// How long the last tickets may take when the node stops.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A delivery that is ready, and whom to tell.
#[derive(Clone, Debug)]
pub(crate) struct Issue {
    pub(crate) pool: String,
    pub(crate) priority: Priority,
    pub(crate) webhook: WebhookId,
    pub(crate) delivery: DeliveryId,
}

/// What publishes see of the one that issues tickets.
#[derive(Default)]
pub(crate) struct Issuing {
    waiting: RwLock<Option<mpsc::UnboundedSender<Vec<Issue>>>>,
    /// The connection, while there is one.
    status: RwLock<Option<ConnectionStatus>>,
    in_hand: AtomicUsize,
    /// Something has not been confirmed for longer than it should take.
    late: AtomicUsize,
    /// Until when, in milliseconds of ticks, the broker is left alone that has refused something.
    not_before: AtomicU64,
    stopping: AtomicBool,
}

impl Issuing {
    pub(super) fn begin(&self) -> mpsc::UnboundedReceiver<Vec<Issue>> {
        let (sender, waiting) = mpsc::unbounded_channel();
        *self.waiting.write() = Some(sender);
        waiting
    }

    /// Whether the broker takes tickets now, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        self.in_hand.load(Relaxed) < MOST_IN_HAND
            && self.late.load(Relaxed) == 0
            && self.not_before.load(Relaxed) <= millis(ticks())
            && !self.stopping.load(Relaxed)
            && self.status.read().as_ref().is_some_and(|status| status.connected() && !status.blocked())
    }

    fn refused(&self) {
        self.not_before.store(millis(ticks() + REFUSED), Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Inner {
    /// Has tickets issued for deliveries that were just committed. Never waits.
    pub(crate) fn issue(&self, issues: Vec<Issue>) {
        let Some(office) = self.tickets.as_ref().filter(|_| !issues.is_empty()) else { return };
        let (issuing, count) = (&office.issuing, issues.len());
        // Publishes that were under way when there were too many are still bounded.
        let sent = issuing.in_hand.load(Relaxed) < 2 * MOST_IN_HAND
            && issuing.waiting.read().as_ref().is_some_and(|waiting| {
                issuing.in_hand.fetch_add(count, Relaxed);
                waiting.send(issues).is_ok() || {
                    issuing.in_hand.fetch_sub(count, Relaxed);
                    false
                }
            });
        if !sent {
            office.figures.unconfirmed.inc_by(count as u64);
        }
    }

    pub(super) async fn keep_issuing(self: Arc<Self>, mut waiting: mpsc::UnboundedReceiver<Vec<Issue>>) {
        let Some(office) = &self.tickets else { return };
        let mut link = Link::new(OUT);
        loop {
            let ended = self.issue_until_lost(office, &mut waiting, &mut link).await;
            *office.issuing.status.write() = None;
            office.issuing.late.store(0, Relaxed);
            // Whatever was not sent is found in the store.
            while let Ok(lost) = waiting.try_recv() {
                drop(Held::new(office, lost.len()));
            }
            if !link.goes_on(office, ended, &self.stop).await {
                office.issuing.waiting.write().take();
                return;
            }
        }
    }

    /// Issues tickets over one connection. Ok: the engine stops.
    async fn issue_until_lost(
        &self,
        office: &Office,
        waiting: &mut mpsc::UnboundedReceiver<Vec<Issue>>,
        link: &mut Link,
    ) -> Result<(), BrokerError> {
        let connection = office.settings.broker.connect("tickets out").await?;
        let mut desk = Desk::open(office, connection).await?;
        // At once, so that what cannot be declared is known before anything relies on it.
        for pool in self.fleet.served_pools() {
            for priority in Priority::ALL {
                desk.make_sure_of(&Counter { pool: pool.clone(), priority }).await?;
            }
        }
        *office.issuing.status.write() = Some(desk.connection.status().clone());
        link.is_up(office);
        let mut sent = FuturesUnordered::new();
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                biased;
                Some(fate) = sent.next() => office.heard(&mut desk, fate),
                Some(first) = waiting.recv(), if sent.len() < MOST_UNCONFIRMED => {
                    for (counter, ticket, held) in gather(office, first, waiting) {
                        desk.make_sure_of(&counter).await?;
                        sent.push(desk.send(counter, ticket, held));
                    }
                }
                _ = look.tick() => {
                    if !desk.channel.status().connected() {
                        return Err(BrokerError::Closed);
                    }
                }
                () = self.stop.cancelled() => {
                    office.issuing.stopping.store(true, Relaxed);
                    let last = async { while sent.next().await.is_some() {} };
                    let _ = timeout(LAST_WORDS, last).await;
                    let _ = timeout(LAST_WORDS, desk.connection.close(200, "stopping".into())).await;
                    return Ok(());
                }
            }
        }
    }
}

/// Everything that waits, in as few tickets as it takes.
fn gather<'a>(
    office: &'a Office,
    first: Vec<Issue>,
    waiting: &mut mpsc::UnboundedReceiver<Vec<Issue>>,
) -> Vec<(Counter, Ticket, Held<'a>)> {
    let mut issues = first;
    while issues.len() < GATHERED
        && let Ok(more) = waiting.try_recv()
    {
        issues.extend(more);
    }
    let mut by_counter: BTreeMap<Counter, Vec<(WebhookId, DeliveryId)>> = BTreeMap::new();
    for Issue { pool, priority, webhook, delivery } in issues {
        by_counter.entry(Counter { pool, priority }).or_default().push((webhook, delivery));
    }
    let mut tickets = Vec::new();
    for (counter, ready) in by_counter {
        for part in ready.chunks(MOST) {
            let mut ticket = Ticket::default();
            part.iter().for_each(|(webhook, delivery)| ticket.add(*webhook, *delivery));
            tickets.push((counter.clone(), ticket, Held::new(office, part.len())));
        }
    }
    tickets
}

/// Tickets for so many deliveries, on their way until it is dropped. Unless they were issued, the store is left to it.
struct Held<'a> {
    office: &'a Office,
    deliveries: usize,
    issued: bool,
}

impl<'a> Held<'a> {
    fn new(office: &'a Office, deliveries: usize) -> Self {
        Self { office, deliveries, issued: false }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.office.issuing.in_hand.fetch_sub(self.deliveries, Relaxed);
        let figures = &self.office.figures;
        let counter = if self.issued { &figures.issued } else { &figures.unconfirmed };
        counter.inc_by(self.deliveries as u64);
    }
}

/// What became of a message.
struct Sent<'a> {
    counter: Counter,
    held: Held<'a>,
    confirmed: lapin::Result<Confirmation>,
}

impl Office {
    fn heard(&self, desk: &mut Desk<'_>, sent: Sent<'_>) {
        let Sent { counter, mut held, confirmed } = sent;
        match confirmed {
            Ok(Confirmation::Ack(None)) => held.issued = true,
            // The queue is gone: it is declared again for the next one.
            Ok(Confirmation::Ack(Some(_))) => {
                desk.declared.remove(&counter);
            }
            // The queue is full.
            Ok(Confirmation::Nack(_) | Confirmation::NotRequested) => self.issuing.refused(),
            Err(error) => {
                tracing::debug!(error = said(&error), "a ticket was not sent");
                self.issuing.refused();
            }
        }
    }
}

/// One connection by which tickets leave.
struct Desk<'a> {
    office: &'a Office,
    connection: Connection,
    channel: Channel,
    /// The queues that are known to be there.
    declared: BTreeSet<Counter>,
}

impl<'a> Desk<'a> {
    async fn open(office: &'a Office, connection: Connection) -> Result<Self, BrokerError> {
        let opening = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            office.topology.declare(&channel).await?;
            Ok::<_, lapin::Error>(channel)
        };
        let channel = link::in_time(opening).await?;
        Ok(Self { office, connection, channel, declared: BTreeSet::new() })
    }

    async fn make_sure_of(&mut self, counter: &Counter) -> Result<(), BrokerError> {
        if !self.declared.contains(counter) {
            link::in_time(self.office.topology.declare_queue(&self.channel, counter)).await?;
            self.declared.insert(counter.clone());
        }
        Ok(())
    }

    /// Sends a ticket and hears what becomes of it.
    fn send(
        &self,
        counter: Counter,
        ticket: Ticket,
        held: Held<'a>,
    ) -> impl Future<Output = Sent<'a>> + use<'a> {
        let (channel, office) = (self.channel.clone(), self.office);
        async move {
            let mut sending = std::pin::pin!(send(&channel, &office.topology.exchange, &counter, &ticket));
            let confirmed = match timeout(PATIENCE, sending.as_mut()).await {
                Ok(confirmed) => confirmed,
                Err(_) => {
                    office.issuing.late.fetch_add(1, Relaxed);
                    let confirmed = sending.as_mut().await;
                    office.issuing.late.fetch_sub(1, Relaxed);
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
    counter: &Counter,
    ticket: &Ticket,
) -> lapin::Result<Confirmation> {
    // Not to be kept through a restart: the store has it all.
    let properties = BasicProperties::default()
        .with_delivery_mode(1)
        .with_content_type("application/json".into())
        .with_type("redrive.ticket".into());
    let returned = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel
        .basic_publish(exchange.into(), counter.key().into(), returned, &ticket.write(), properties)
        .await?;
    sent.await
}

//! Taking tickets: whatever they name and is still there is leased, in one go for all that wait, and handed to
//! dispatch. Tickets are acknowledged once that is committed.
//!
//! A webhook that has no room, and gets none in a moment, leaves its deliveries to the store. A node that has none leaves
//! its tickets with the broker, where their number says how much there is to do.

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
    cluster::ticket::{Ticket, takes_until},
    delivery::lane::{CLASSES, Lane, Priority},
    dispatch::fairness::Turns,
    maintenance::backoff::Backoff,
    webhook::WebhookState,
};
use redrive_store::{Claimed, LaneKey, LaneRoom, StoreError, Wanted};
use tokio::{sync::Notify, time::timeout};

use super::{
    Office,
    link::{self, IN, Link},
    topology::Counter,
};
use crate::{
    Inner,
    amqp::BrokerError,
    clock::{roll, ticks},
    queue::store::ready,
};

/// Deliveries taken in one go, roughly, and their payload bytes.
const MOST_TAKEN: usize = 500;
const MOST_BYTES: usize = 8 << 20;
/// How long to wait for room, for the store to work again, and between looks at the connection.
const FOR_ROOM: Duration = Duration::from_millis(10);
const FOR_WEBHOOK: Duration = Duration::from_millis(250);
/// For how long a webhook that had no room in that time is not waited for again.
const SHUNNED: Duration = Duration::from_secs(5);
const FOR_STORE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(500);
/// How often a message that is no ticket is worth a line in the log.
const LINE: Duration = Duration::from_secs(60);

/// Tickets that have come in, by priority.
#[derive(Default)]
struct Tray {
    waiting: Mutex<[VecDeque<Message>; Priority::ALL.len()]>,
    filled: Notify,
}

impl Tray {
    fn put(&self, priority: Priority, message: Message) {
        self.waiting.lock()[priority as usize].push_back(message);
        self.filled.notify_one();
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().iter().all(VecDeque::is_empty)
    }

    /// The next ticket: the urgent ones first, but none is passed over for ever.
    fn next(&self, turns: &mut Turns) -> Option<(Priority, Message)> {
        let mut waiting = self.waiting.lock();
        let mut in_line = [false; CLASSES];
        for (class, tickets) in waiting.iter().enumerate() {
            in_line[class] = !tickets.is_empty();
        }
        let class = turns.next(in_line)?;
        turns.took(class);
        let message = waiting[class].pop_front()?;
        Some((Priority::ALL[class], message))
    }
}

/// Tickets that are taken together.
#[derive(Default)]
struct Batch {
    messages: Vec<Message>,
    ready: Ready,
}

/// What tickets name, by where it waits.
type Ready = BTreeMap<LaneKey, Vec<DeliveryId>>;

/// Webhooks that had no room for long, and until when nobody waits for them.
type Shunned = HashMap<WebhookId, Duration>;

impl Inner {
    pub(super) async fn keep_taking(self: Arc<Self>) {
        let Some(office) = &self.tickets else { return };
        let mut link = Link::new(IN);
        loop {
            let ended = self.take_until_lost(office, &mut link).await;
            if !link.goes_on(office, ended, &self.stop).await {
                return;
            }
        }
    }

    /// Takes tickets that come over one connection. Ok: the node sends nothing new any more.
    async fn take_until_lost(self: &Arc<Self>, office: &Office, link: &mut Link) -> Result<(), BrokerError> {
        let connection = office.settings.broker.connect("tickets in").await?;
        let opening = async {
            let channel = connection.create_channel().await?;
            office.topology.declare(&channel).await
        };
        link::in_time(opening).await?;
        let tray = Tray::default();
        let counters = self.settings.pools.iter().flat_map(|pool| {
            Priority::ALL.into_iter().map(|priority| Counter { pool: pool.clone(), priority })
        });
        let opening = counters.map(|counter| open(office, &connection, counter));
        let opened = try_join_all(opening).await?;
        link.is_up(office);
        let consuming =
            try_join_all(opened.into_iter().map(|queue| consume(office, &connection, queue, &tray)));
        let ended = tokio::select! {
            ended = consuming => ended.map(drop),
            ended = self.take_from(office, &connection, &tray) => ended,
        };
        let _ = timeout(LOOK, connection.close(200, "done".into())).await;
        ended
    }

    /// Takes what comes in, for as long as the node sends. What is left in the tray goes back to the broker.
    async fn take_from(
        self: &Arc<Self>,
        office: &Office,
        connection: &Connection,
        tray: &Tray,
    ) -> Result<(), BrokerError> {
        let (mut turns, mut shunned) = (Turns::default(), Shunned::new());
        loop {
            if self.stop.is_cancelled() || self.dispatch.is_draining() {
                return Ok(());
            }
            if !connection.status().connected() {
                return Err(BrokerError::Closed);
            }
            if tray.is_empty() {
                let _ = timeout(LOOK, tray.filled.notified()).await;
                continue;
            }
            if self.dispatch.is_crowded() {
                tokio::time::sleep(FOR_ROOM).await;
                continue;
            }
            let Batch { messages, ready } = office.gather(tray, &mut turns).await;
            if !self.take_all(office, ready, &mut shunned).await {
                return Ok(());
            }
            for message in messages {
                // If that fails it comes again, and finds nothing.
                let _ = message.acker.ack(BasicAckOptions::default()).await;
            }
        }
    }

    /// Takes what tickets name. A webhook that has no room and gets on has some in a moment, and the broker keeps the
    /// rest meanwhile. One that does not is left to the store, and not waited for again for a while. False: the node
    /// sends nothing new any more.
    async fn take_all(self: &Arc<Self>, office: &Office, mut ready: Ready, shunned: &mut Shunned) -> bool {
        let (began, mut said) = (ticks(), false);
        shunned.retain(|_, until| *until > began);
        while !ready.is_empty() {
            let ready_now = Arc::new(std::mem::take(&mut ready));
            let pause = match self.take(ready_now.clone()).await {
                Ok(rest) => {
                    ready = rest;
                    let late = ticks().saturating_sub(began) >= FOR_WEBHOOK;
                    ready.retain(|key, named| {
                        let leave = late || shunned.contains_key(&key.webhook);
                        if leave {
                            office.figures.left.inc_by(named.len() as u64);
                            shunned.entry(key.webhook).or_insert(began + SHUNNED);
                        }
                        !leave
                    });
                    FOR_ROOM
                }
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!(%error, "what tickets name cannot be taken now");
                    }
                    if error == StoreError::Fenced {
                        self.fleet.alarm();
                    }
                    ready = Arc::unwrap_or_clone(ready_now);
                    FOR_STORE
                }
            };
            if !ready.is_empty() {
                tokio::time::sleep(pause).await;
                if self.stop.is_cancelled() || self.dispatch.is_draining() {
                    return false;
                }
            }
        }
        true
    }

    /// Leases what tickets name, as far as there is room, and hands it to dispatch. A task of its own: what was leased
    /// must get there, whoever still waits for it. Gives what has no room just now.
    async fn take(self: &Arc<Self>, ready: Arc<Ready>) -> Result<Ready, StoreError> {
        let inner = self.clone();
        let taking = tokio::spawn(async move {
            let Some(office) = &inner.tickets else { return Ok(Ready::new()) };
            inner.take_named(office, &ready).await
        });
        taking.await.unwrap_or_else(|_| Err(StoreError::Unavailable("it was given up".into())))
    }

    async fn take_named(self: &Arc<Self>, office: &Office, named: &Ready) -> Result<Ready, StoreError> {
        let term = self.fleet.term();
        let (mut rooms, mut wanted, mut left, mut rest) = (Vec::new(), Vec::new(), 0, Ready::new());
        for (key, deliveries) in named {
            let room = match self.room_for_tickets(key, deliveries.len()).await {
                Ok(room) => room,
                Err(error) => {
                    self.dispatch.claim_failed(&rooms);
                    return Err(error);
                }
            };
            let (fit, over) = deliveries.split_at(room.room);
            if !over.is_empty() && self.dispatch.is_full_for(key, 1) {
                rest.insert(key.clone(), over.to_vec());
            } else {
                left += over.len();
            }
            wanted.extend(fit.iter().map(|id| Wanted { key: key.clone(), delivery: *id }));
            if room.room > 0 {
                rooms.push(room);
            }
        }
        if rooms.is_empty() {
            office.figures.left.inc_by(left as u64);
            return Ok(rest);
        }
        let (now, asked) = (self.clock.now(), wanted.len());
        let keys: HashMap<DeliveryId, LaneKey> =
            wanted.iter().map(|wanted| (wanted.delivery, wanted.key.clone())).collect();
        let bytes = self.dispatch.reserve_bytes(MOST_BYTES);
        let _transfer = self.transfers.open();
        let taken = self.store.take(term.epoch, now, takes_until(now), wanted, bytes).await;
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                self.dispatch.claim_failed(&rooms);
                self.dispatch.release_bytes(bytes);
                return Err(error);
            }
        };
        office.figures.taken.inc_by(taken.len() as u64);
        office.figures.stale.inc_by((asked - taken.len()) as u64);
        office.figures.left.inc_by(left as u64);
        let mut by_lane: BTreeMap<&LaneKey, Vec<Claimed>> = BTreeMap::new();
        for one in taken {
            if let Some(key) = keys.get(&one.id) {
                by_lane.entry(key).or_default().push(one);
            }
        }
        for room in &rooms {
            let claimed = by_lane.remove(&room.key).unwrap_or_default();
            let delay = self.first_delay(room.key.webhook);
            let ready = |one| ready(one, &term, &room.key.lane, delay);
            let deliveries = claimed.into_iter().map(ready).collect();
            let moves = self.dispatch.taken(room, deliveries);
            self.carry_out(moves);
        }
        self.dispatch.release_bytes(bytes);
        Ok(rest)
    }

    /// Reserves room for so many deliveries of a webhook, if this node may send to it just like that.
    async fn room_for_tickets(self: &Arc<Self>, key: &LaneKey, count: usize) -> Result<LaneRoom, StoreError> {
        let none = LaneRoom::new(key.clone(), 0);
        let hook = match self.registry.find(&*self.store, key.webhook).await {
            Ok(Some(hook)) => hook,
            // Claims end what is for a webhook that is gone, and say what is wrong with one that cannot be read.
            Ok(None) | Err(StoreError::Refused(_)) => return Ok(none),
            Err(error) => return Err(error),
        };
        if !hook.tenant.is_served() || hook.state != WebhookState::Active || self.needs_home(&hook) {
            return Ok(none);
        }
        self.foresee(&hook);
        let room = self.dispatch.reserve_for_tickets(self.whom(&hook), &key.lane, count);
        Ok(LaneRoom::new(key.clone(), room))
    }
}

impl Office {
    /// What waits in the tray, in the order of its turns, as much as is taken in one go.
    async fn gather(&self, tray: &Tray, turns: &mut Turns) -> Batch {
        let (mut batch, mut count) = (Batch::default(), 0);
        while count < MOST_TAKEN
            && let Some((priority, message)) = tray.next(turns)
        {
            match Ticket::read(&message.data) {
                Ok(ticket) => {
                    count += ticket.len();
                    for (webhook, deliveries) in ticket.ready {
                        let lane = Lane::Free { priority, retry: false };
                        batch.ready.entry(LaneKey { webhook, lane }).or_default().extend(deliveries);
                    }
                    batch.messages.push(message);
                }
                Err(error) => {
                    self.figures.rejected.inc();
                    if self.is_worth_a_line() {
                        let queue = message.routing_key.as_str();
                        tracing::warn!(%error, queue, "a message is no ticket, and goes to the rejected ones");
                    }
                    let _ = message.acker.reject(BasicRejectOptions { requeue: false }).await;
                }
            }
        }
        batch
    }

    fn is_worth_a_line(&self) -> bool {
        let (now, next) = (ticks().as_secs(), self.next_line.load(Relaxed));
        next <= now && self.next_line.compare_exchange(next, now + LINE.as_secs(), Relaxed, Relaxed).is_ok()
    }
}

/// A queue whose tickets come in.
struct Opened {
    counter: Counter,
    /// The consumer is over when it is dropped.
    _channel: Channel,
    tickets: Consumer,
}

/// Declares a queue and has its tickets sent here.
async fn open(office: &Office, connection: &Connection, counter: Counter) -> Result<Opened, BrokerError> {
    let opening = async {
        let channel = connection.create_channel().await?;
        office.topology.declare_queue(&channel, &counter).await?;
        channel.basic_qos(office.settings.prefetch, BasicQosOptions::default()).await?;
        let (queue, tag) = (office.topology.queue(&counter).into(), "".into());
        let options = BasicConsumeOptions::default();
        let tickets = channel.basic_consume(queue, tag, options, FieldTable::default()).await?;
        Ok::<_, lapin::Error>((channel, tickets))
    };
    let (_channel, tickets) = link::in_time(opening).await?;
    Ok(Opened { counter, _channel, tickets })
}

/// Puts tickets of one queue into the tray, for as long as there is a connection. A queue that is deleted is declared
/// again.
async fn consume(
    office: &Office,
    connection: &Connection,
    mut queue: Opened,
    tray: &Tray,
) -> Result<(), BrokerError> {
    let mut backoff = Backoff::default();
    loop {
        while let Some(Ok(message)) = queue.tickets.next().await {
            backoff.reset();
            tray.put(queue.counter.priority, message);
        }
        tokio::time::sleep(backoff.next(roll())).await;
        if !connection.status().connected() {
            return Err(BrokerError::Closed);
        }
        let name = office.topology.queue(&queue.counter);
        tracing::info!(queue = name, "a queue for tickets is gone; it is declared again");
        queue = open(office, connection, queue.counter).await?;
    }
}

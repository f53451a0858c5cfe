//! The life of a node among others that share its store: it shows that it is alive, sees who else is, takes over
//! what the dead had, and begins anew if the others took it for dead. All of this goes by real time, whatever
//! the engine's clock says.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use redrive_core::{
    Time,
    cluster::liveness::{self, Heartbeat, Observer, Pulse},
};
use redrive_store::{Epoch, NewNode, Node, Roll, Store, StoreError};
use tokio::{sync::Notify, task::JoinHandle, time::timeout};

use crate::{
    Engine, Inner, Settings,
    assignments::Homes,
    change_feed::News,
    clock::{self, Clock, ticks},
};

/// How long a publish waits for a new epoch.
const RENEWAL: Duration = Duration::from_secs(2);

/// One epoch of this node: the right to all that is leased under it.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) epoch: Epoch,
    /// The node's name and epoch, shown with every attempt.
    pub(crate) worker: Arc<str>,
    /// The random value that the node's row has.
    incarnation: i64,
    over: AtomicBool,
}

impl Term {
    pub(crate) fn new(node: &str, epoch: Epoch, incarnation: i64) -> Arc<Self> {
        let worker = format!("{node}#{}", epoch.0).into();
        Arc::new(Self { epoch, worker, incarnation, over: AtomicBool::new(false) })
    }

    /// Whether the row of this epoch is another node's. That can be after a fail-over that lost the own row.
    fn is_taken(&self, nodes: &[Node]) -> bool {
        nodes.iter().any(|node| node.epoch == self.epoch && node.incarnation != self.incarnation)
    }

    /// Whether the others took the node for dead: what it had is theirs.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }
}

/// What a node knows of itself among the others.
pub(crate) struct Fleet {
    shared: bool,
    lease: Duration,
    term: RwLock<Arc<Term>>,
    /// Whether this one is the first of those that are alive: it does what one node does for all.
    first: AtomicBool,
    /// Somebody waits for another term.
    renewed: Notify,
    pulse: Mutex<Pulse>,
    /// Something looks as if the term were over.
    alarmed: Notify,
    /// The pools that any node serves, and how many do.
    pools: RwLock<BTreeMap<String, usize>>,
    /// Epochs that this node is taking over from.
    rescuing: Mutex<BTreeSet<Epoch>>,
    beating: Mutex<Option<JoinHandle<()>>>,
    pub(crate) homes: Homes,
    pub(crate) news: News,
    /// How many due lanes this node left to others when it last looked.
    pub(crate) declined: AtomicUsize,
}

/// What whoever beats remembers from one beat to the next.
pub(crate) struct Watch {
    observer: Observer,
    /// Who had something in the store when it was last asked.
    suspects: Vec<Epoch>,
    asked: Duration,
    /// The database server that executed the last heartbeat, where it says which one it is.
    server: Option<String>,
}

impl Fleet {
    pub(crate) fn new(shared: bool, lease: Duration, joined: (Arc<Term>, Duration)) -> Self {
        let (term, at) = joined;
        Self {
            shared,
            lease,
            term: RwLock::new(term),
            first: AtomicBool::new(!shared),
            renewed: Notify::new(),
            pulse: Mutex::new(beginning(lease, at)),
            alarmed: Notify::new(),
            pools: RwLock::default(),
            rescuing: Mutex::default(),
            beating: Mutex::default(),
            homes: Homes::default(),
            news: News::default(),
            declined: AtomicUsize::new(0),
        }
    }

    /// Whether there may be other nodes.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether this node does what one does for all. Two may think so for a moment.
    pub(crate) fn is_first(&self) -> bool {
        self.first.load(Relaxed)
    }

    /// What new work is taken on under.
    pub(crate) fn term(&self) -> Arc<Term> {
        self.term.read().clone()
    }

    /// Whether a request may begin now. A node that cannot show that it is alive may be taken for dead.
    pub(crate) fn may_send(&self) -> bool {
        !self.shared || self.pulse.lock().may_send(ticks())
    }

    /// Has this node find out at once whether its term is over.
    pub(crate) fn alarm(&self) {
        self.alarmed.notify_one();
    }

    /// Whether any node serves a pool.
    pub(crate) fn serves(&self, pool: &str) -> bool {
        self.senders(pool) > 0
    }

    /// The pools that any node serves.
    pub(crate) fn served_pools(&self) -> Vec<String> {
        self.pools.read().keys().cloned().collect()
    }

    /// How many nodes serve a pool.
    pub(crate) fn senders(&self, pool: &str) -> usize {
        self.pools.read().get(pool).copied().unwrap_or_default()
    }
}

impl Engine {
    /// Whether any node sends for a pool.
    pub fn serves(&self, pool: &str) -> bool {
        self.0.fleet.serves(pool)
    }

    /// All nodes that share the store, this one too, in the order of their epochs; none if the store is its own.
    pub async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        match self.0.fleet.is_shared() {
            true => Ok(self.0.store.beat(Epoch::NONE).await?.nodes),
            false => Ok(Vec::new()),
        }
    }
}

/// Whether another server executed this heartbeat than the one before. Not known where either does not say.
fn has_changed(before: &Option<String>, now: &Option<String>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if before != now)
}

/// Joining counts as a beat.
fn beginning(lease: Duration, joined: Duration) -> Pulse {
    let mut pulse = Pulse::new(lease);
    pulse.confirmed(joined);
    pulse
}

/// What time it is by the store's clock, if it has one. A heartbeat of no epoch returns it without changing anything.
pub(crate) async fn store_time(store: &dyn Store) -> Result<Option<Time>, StoreError> {
    Ok(store.beat(Epoch::NONE).await?.time)
}

/// Takes a new epoch. Gives it with the time at which it was asked for.
pub(crate) async fn join(
    store: &dyn Store,
    clock: &Clock,
    settings: &Settings,
) -> Result<(Arc<Term>, Duration), StoreError> {
    let (name, pools) = (settings.node.clone(), settings.served_pools().to_vec());
    let incarnation = clock::random_i64();
    let node = NewNode { name, role: settings.role, pools, incarnation };
    let at = ticks();
    let epoch = store.join(node, clock.now()).await?;
    Ok((Term::new(&settings.node, epoch, incarnation), at))
}

impl Inner {
    /// Makes the first beat and sees to it that others follow, for as long as the engine runs.
    pub(crate) async fn begin_beating(self: &Arc<Self>) {
        let observer = Observer::new(self.fleet.lease);
        let mut watch = Watch { observer, suspects: Vec::new(), asked: Duration::ZERO, server: None };
        self.beat(&mut watch).await;
        let beating = tokio::spawn(self.clone().keep_beating(watch));
        *self.fleet.beating.lock() = Some(beating);
    }

    async fn keep_beating(self: Arc<Self>, mut watch: Watch) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(liveness::interval(self.fleet.lease)) => {}
                () = self.fleet.alarmed.notified() => {}
                () = self.stop.cancelled() => return,
            }
            self.beat(&mut watch).await;
        }
    }

    /// Returns when this node beats no more. It has to be stopped before.
    pub(crate) async fn beats_no_more(&self) {
        let beating = self.fleet.beating.lock().take();
        if let Some(beating) = beating {
            let _ = beating.await;
        }
    }

    /// Shows that this node is alive, and acts on what is to be seen of the others. A beat that fails changes
    /// nothing: nobody dies of an outage of the store.
    async fn beat(self: &Arc<Self>, watch: &mut Watch) {
        let fleet = &self.fleet;
        let term = fleet.term();
        let sent = ticks();
        let roll = match timeout(fleet.lease / 2, self.store.beat(term.epoch)).await {
            Ok(Ok(roll)) => roll,
            Ok(Err(error)) => {
                return tracing::warn!(%error, "the store cannot be told that this node is alive");
            }
            Err(_) => return tracing::warn!("the store does not answer that this node is alive"),
        };
        let answered = ticks();
        if let Some(time) = roll.time {
            self.read_store_clock(sent, answered, time);
        }
        if has_changed(&watch.server, &roll.server) {
            if self.leave_former_server(&term, &roll).await {
                watch.server = roll.server;
            }
            return;
        }
        watch.server = roll.server.clone().or(watch.server.take());
        if !roll.alive || term.is_taken(&roll.nodes) {
            tracing::warn!(epoch = term.epoch.0, "this node was declared dead; rejoining with a new epoch");
            self.begin_anew(&term).await;
            return;
        }
        let beat = Heartbeat { sent, received: answered, store_time: roll.time };
        if !fleet.pulse.lock().beat(beat) {
            tracing::warn!(
                "the store's clock advanced further than this node's; this node was paused, or the store's clock \
                 jumped; nothing is sent before the next heartbeat"
            );
        }
        let others = roll.nodes.iter().filter(|node| node.epoch != term.epoch);
        let dead = watch.observer.read(answered, others.map(|node| (node.epoch.0, node.beats)));
        let (dead, alive): (Vec<&Node>, Vec<&Node>) =
            roll.nodes.iter().partition(|node| dead.contains(&node.epoch.0));
        for node in &dead {
            self.take_over(node.epoch, Some(node.beats));
        }
        let mut pools: BTreeMap<String, usize> = BTreeMap::new();
        for pool in alive.iter().flat_map(|node| &node.pools) {
            *pools.entry(pool.clone()).or_default() += 1;
        }
        *fleet.pools.write() = pools;
        if self.shares.learn(term.epoch, &alive) {
            self.shares_changed();
        }
        let moves = self.dispatch.speak();
        self.carry_out(moves);
        let is_first = alive.first().is_some_and(|node| node.epoch == term.epoch);
        fleet.first.store(is_first, Relaxed);
        self.find_remains(&term, &roll, is_first, answered, watch).await;
    }

    /// Takes over what is left of epochs that ended before all they had was given back. One node looks for all.
    async fn find_remains(
        self: &Arc<Self>,
        term: &Term,
        roll: &Roll,
        is_first: bool,
        now: Duration,
        watch: &mut Watch,
    ) {
        // They had something before this roll was called. Who is not on it has no row any more, and never will.
        for suspect in std::mem::take(&mut watch.suspects) {
            if suspect != term.epoch && roll.nodes.iter().all(|node| node.epoch != suspect) {
                self.take_over(suspect, None);
            }
        }
        let lease = self.fleet.lease;
        if is_first && now.saturating_sub(watch.asked) >= lease {
            watch.asked = now;
            let others = timeout(liveness::interval(lease), self.store.others(term.epoch)).await;
            watch.suspects = others.ok().and_then(Result::ok).unwrap_or_default();
        }
    }

    /// Makes what a dead epoch had due again, unless it has beaten since it was seen to have so many `beats`.
    /// Beside everything else: the beats must go on.
    fn take_over(self: &Arc<Self>, dead: Epoch, beats: Option<i64>) {
        if self.fleet.rescuing.lock().insert(dead) {
            let inner = self.clone();
            self.runtime.spawn(async move {
                let is_over = match beats {
                    Some(beats) => inner.store.end(dead, beats).await,
                    None => Ok(true),
                };
                if is_over == Ok(true) {
                    tracing::warn!(epoch = dead.0, "a node is dead; what it had is taken over");
                    inner.rescue(dead).await;
                }
                inner.fleet.rescuing.lock().remove(&dead);
            });
        }
    }

    /// Another database server has taken over. It may lack the latest commits of the one before it: outcomes, leases and
    /// changes that this node knows may be gone, and versions, epochs and positions in the change feed may be used again.
    /// So the node gives up its epoch and reads everything again. Returns false if there is no new epoch yet.
    async fn leave_former_server(self: &Arc<Self>, term: &Arc<Term>, roll: &Roll) -> bool {
        tracing::warn!(
            epoch = term.epoch.0,
            "database server changed (fail-over); rejoining with a new epoch and reloading"
        );
        self.fleet.news.server_changed();
        if !self.begin_anew(term).await {
            return false;
        }
        if !term.is_taken(&roll.nodes) {
            // Not left to the failure detector: nothing of it will be sent or recorded any more.
            self.take_over(term.epoch, None);
        }
        true
    }

    /// The epoch is over: deliveries that are only queued here belong to other nodes, outcomes of requests in flight will
    /// not be recorded, and this node continues under a new epoch. Returns false if there is none yet.
    async fn begin_anew(self: &Arc<Self>, term: &Arc<Term>) -> bool {
        term.end();
        self.fleet.homes.forget_all();
        let moves = self.dispatch.throw_away();
        self.carry_out(moves);
        if self.stop.is_cancelled() {
            return false;
        }
        match join(&*self.store, &self.clock, &self.settings).await {
            Ok((term, at)) => {
                *self.fleet.pulse.lock() = beginning(self.fleet.lease, at);
                tracing::info!(epoch = term.epoch.0, "this node is back");
                *self.fleet.term.write() = term;
                self.fleet.renewed.notify_waiters();
                self.fleet.news.missed_some();
                self.alarm.ring();
                // Its place among the others is another one.
                self.fleet.alarm();
                true
            }
            // The next beat finds the same, and tries again.
            Err(error) => {
                tracing::warn!(%error, "there is no new epoch yet");
                false
            }
        }
    }

    /// An epoch is over: waits for the next one. False if there is none before long.
    pub(crate) async fn renewed(&self, over: &Term) -> bool {
        let fleet = &self.fleet;
        if !fleet.shared || self.stop.is_cancelled() {
            return false;
        }
        fleet.alarm();
        let renewal = async {
            loop {
                let mut renewed = std::pin::pin!(fleet.renewed.notified());
                renewed.as_mut().enable();
                if fleet.term().epoch != over.epoch {
                    return;
                }
                renewed.await;
            }
        };
        timeout(RENEWAL, renewal).await.is_ok()
    }
}

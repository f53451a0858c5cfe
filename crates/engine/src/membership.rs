//! Cluster membership of a node: sends heartbeats, detects dead nodes, rescues their leases, and rejoins with a
//! new epoch if other nodes have declared this one dead. Uses the monotonic clock, never the engine's adjustable
//! clock.

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
    cluster::liveness::{self, FailureDetector, Heartbeat, SendLease},
};
use redrive_store::{ClusterView, Epoch, NewNode, Node, Store, StoreError};
use tokio::{sync::Notify, time::timeout};

use crate::{
    Engine, Inner, Settings,
    assignments::Assignments,
    change_feed::ChangeSignal,
    clock::{self, Clock, monotonic_now},
};

/// Time that a publish waits for a new epoch.
const NEW_EPOCH_TIMEOUT: Duration = Duration::from_secs(2);

/// One epoch of this node, the owner of everything leased under it.
#[derive(Debug)]
pub(crate) struct NodeEpoch {
    pub(crate) epoch: Epoch,
    /// Node name and epoch, recorded with every attempt.
    pub(crate) worker: Arc<str>,
    /// Random value in this node's row; distinguishes it from a row of another node with the same epoch.
    incarnation: i64,
    over: AtomicBool,
}

impl NodeEpoch {
    pub(crate) fn new(node: &str, epoch: Epoch, incarnation: i64) -> Arc<Self> {
        let worker = format!("{node}#{}", epoch.0).into();
        Arc::new(Self { epoch, worker, incarnation, over: AtomicBool::new(false) })
    }

    /// Returns whether the row of this epoch belongs to another node, possible after a failover that lost this node's
    /// row.
    fn is_taken(&self, nodes: &[Node]) -> bool {
        nodes.iter().any(|node| node.epoch == self.epoch && node.incarnation != self.incarnation)
    }

    /// Returns whether this epoch has ended. Its leases then belong to other nodes.
    pub(crate) fn is_ended(&self) -> bool {
        self.over.load(Relaxed)
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Relaxed);
    }
}

/// Membership state of this node in its cluster.
pub(crate) struct Membership {
    shared: bool,
    lease: Duration,
    epoch: RwLock<Arc<NodeEpoch>>,
    /// Whether this node is the leader: the live node with the lowest epoch, which prunes, checks webhooks and
    /// corrects times for all.
    leader: AtomicBool,
    /// Signals that a new epoch has been taken.
    epoch_renewed: Notify,
    send_lease: Mutex<SendLease>,
    /// Triggers a heartbeat immediately because the epoch may have ended.
    check_requested: Notify,
    /// Pools served by live nodes, with the number of nodes.
    pools: RwLock<BTreeMap<String, usize>>,
    /// Dead epochs whose leases this node is rescuing.
    rescuing: Mutex<BTreeSet<Epoch>>,
    /// Locked by the heartbeat service; kept when that is restarted.
    heartbeat_state: tokio::sync::Mutex<HeartbeatState>,
    pub(crate) assignments: Assignments,
    pub(crate) change_signal: ChangeSignal,
    /// Number of due lanes that the last claim left to other nodes.
    pub(crate) declined_lanes: AtomicUsize,
}

/// State of the heartbeat loop between two heartbeats.
pub(crate) struct HeartbeatState {
    observer: FailureDetector,
    /// Other epochs that held something in the store at the last check.
    suspects: Vec<Epoch>,
    requested_at: Duration,
    /// Database server that executed the last heartbeat; `None` if the store does not identify it.
    server: Option<String>,
}

/// Entry in `rescuing`. Dropped when the rescue ends, also by a panic; then the next heartbeat may start another.
struct Rescuing<'a> {
    membership: &'a Membership,
    epoch: Epoch,
}

impl Drop for Rescuing<'_> {
    fn drop(&mut self) {
        self.membership.rescuing.lock().remove(&self.epoch);
    }
}

impl HeartbeatState {
    fn new(lease: Duration) -> Self {
        let observer = FailureDetector::new(lease);
        Self { observer, suspects: Vec::new(), requested_at: Duration::ZERO, server: None }
    }
}

impl Membership {
    pub(crate) fn new(shared: bool, lease: Duration, joined: (Arc<NodeEpoch>, Duration)) -> Self {
        let (epoch, at) = joined;
        Self {
            shared,
            lease,
            epoch: RwLock::new(epoch),
            leader: AtomicBool::new(!shared),
            epoch_renewed: Notify::new(),
            send_lease: Mutex::new(initial_lease(lease, at)),
            check_requested: Notify::new(),
            pools: RwLock::default(),
            rescuing: Mutex::default(),
            heartbeat_state: tokio::sync::Mutex::new(HeartbeatState::new(lease)),
            assignments: Assignments::default(),
            change_signal: ChangeSignal::default(),
            declined_lanes: AtomicUsize::new(0),
        }
    }

    /// Returns whether the store may be shared with other nodes.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Returns whether this node is the leader. Two nodes may be for a moment.
    pub(crate) fn is_leader(&self) -> bool {
        self.leader.load(Relaxed)
    }

    /// Returns the epoch under which new work is leased.
    pub(crate) fn current_epoch(&self) -> Arc<NodeEpoch> {
        self.epoch.read().clone()
    }

    /// Returns whether a request may start now. A node that cannot renew its send lease may have been declared dead.
    pub(crate) fn node_may_send(&self) -> bool {
        !self.shared || self.send_lease.lock().may_send(monotonic_now())
    }

    /// Triggers a heartbeat now, which detects whether the epoch has ended.
    pub(crate) fn check_epoch_now(&self) {
        self.check_requested.notify_one();
    }

    /// Returns whether any node serves this pool.
    pub(crate) fn serves(&self, pool: &str) -> bool {
        self.senders(pool) > 0
    }

    /// Returns the pools served by at least one node.
    pub(crate) fn served_pools(&self) -> Vec<String> {
        self.pools.read().keys().cloned().collect()
    }

    /// Returns the number of nodes that serve a pool.
    pub(crate) fn senders(&self, pool: &str) -> usize {
        self.pools.read().get(pool).copied().unwrap_or_default()
    }
}

impl Engine {
    /// Returns whether any node serves this pool.
    pub fn serves(&self, pool: &str) -> bool {
        self.0.membership.serves(pool)
    }

    /// Returns all nodes of the cluster including this one, ordered by epoch; empty if the store is not shared.
    pub async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        match self.0.membership.is_shared() {
            true => Ok(self.0.store.heartbeat(Epoch::NONE).await?.nodes),
            false => Ok(Vec::new()),
        }
    }
}

/// Returns whether this heartbeat was executed by a different database server than the last one; false if either is
/// not identified.
fn is_other_server(before: &Option<String>, now: &Option<String>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if before != now)
}

/// Creates the send lease of a new epoch. Joining counts as a heartbeat.
fn initial_lease(lease: Duration, joined: Duration) -> SendLease {
    let mut send_lease = SendLease::new(lease);
    send_lease.renew(joined);
    send_lease
}

/// Returns the time of the store's clock, if it has one. A heartbeat without an epoch reads it and changes
/// nothing.
pub(crate) async fn store_time(store: &dyn Store) -> Result<Option<Time>, StoreError> {
    Ok(store.heartbeat(Epoch::NONE).await?.time)
}

/// Takes a new epoch. Returns it with the monotonic time at which it was requested.
pub(crate) async fn join(
    store: &dyn Store,
    clock: &Clock,
    settings: &Settings,
) -> Result<(Arc<NodeEpoch>, Duration), StoreError> {
    let (name, pools) = (settings.node.clone(), settings.served_pools().to_vec());
    let incarnation = clock::random_i64();
    let node = NewNode { name, role: settings.role, pools, incarnation };
    let at = monotonic_now();
    let epoch = store.join(node, clock.now()).await?;
    Ok((NodeEpoch::new(&settings.node, epoch, incarnation), at))
}

impl Inner {
    /// Sends the first heartbeat.
    pub(crate) async fn send_first_heartbeat(self: &Arc<Self>) {
        let mut state = self.membership.heartbeat_state.lock().await;
        self.heartbeat(&mut state).await;
    }

    /// Sends heartbeats until the engine stops.
    pub(crate) async fn run_heartbeat(self: Arc<Self>) {
        let mut state = self.membership.heartbeat_state.lock().await;
        loop {
            tokio::select! {
                () = tokio::time::sleep(liveness::heartbeat_interval(self.membership.lease)) => {}
                () = self.membership.check_requested.notified() => {}
                () = self.stop.cancelled() => return,
            }
            self.heartbeat(&mut state).await;
        }
    }

    /// Sends a heartbeat and evaluates the membership read with it. A failed heartbeat changes no state, so a store
    /// outage never declares a node dead.
    async fn heartbeat(self: &Arc<Self>, watch: &mut HeartbeatState) {
        let membership = &self.membership;
        let epoch = membership.current_epoch();
        let sent = monotonic_now();
        let cluster = match timeout(membership.lease / 2, self.store.heartbeat(epoch.epoch)).await {
            Ok(Ok(cluster)) => cluster,
            Ok(Err(error)) => {
                return tracing::warn!(%error, "heartbeat failed; will retry");
            }
            Err(_) => return tracing::warn!("heartbeat timed out; will retry"),
        };
        let responded_at = monotonic_now();
        if let Some(time) = cluster.time {
            self.read_store_clock(sent, responded_at, time);
        }
        if is_other_server(&watch.server, &cluster.server) {
            if self.leave_former_server(&epoch, &cluster).await {
                watch.server = cluster.server;
            }
            return;
        }
        watch.server = cluster.server.clone().or(watch.server.take());
        if !cluster.alive || epoch.is_taken(&cluster.nodes) {
            tracing::warn!(epoch = epoch.epoch.0, "this node was declared dead; rejoining with a new epoch");
            self.rejoin(&epoch).await;
            return;
        }
        let confirmed = Heartbeat { sent, received: responded_at, store_time: cluster.time };
        if !membership.send_lease.lock().heartbeat(confirmed) {
            tracing::warn!(
                "the store's clock advanced further than this node's; this node was paused, or the store's clock \
                 jumped; nothing is sent before the next heartbeat"
            );
        }
        let others = cluster.nodes.iter().filter(|node| node.epoch != epoch.epoch);
        let dead = watch.observer.observe(responded_at, others.map(|node| (node.epoch.0, node.heartbeats)));
        let (dead, alive): (Vec<&Node>, Vec<&Node>) =
            cluster.nodes.iter().partition(|node| dead.contains(&node.epoch.0));
        for node in &dead {
            self.rescue_epoch(node.epoch, Some(node.heartbeats));
        }
        let mut pools: BTreeMap<String, usize> = BTreeMap::new();
        for pool in alive.iter().flat_map(|node| &node.pools) {
            *pools.entry(pool.clone()).or_default() += 1;
        }
        *membership.pools.write() = pools;
        if self.shares.update(epoch.epoch, &alive) {
            self.shares_changed();
        }
        let actions = self.dispatcher.resume_node();
        self.apply_actions(actions);
        let is_leader = alive.first().is_some_and(|node| node.epoch == epoch.epoch);
        membership.leader.store(is_leader, Relaxed);
        self.rescue_orphaned_epochs(&epoch, &cluster, is_leader, responded_at, watch).await;
    }

    /// Rescues the leases of epochs that ended without releasing them. Only the leader searches for such epochs.
    async fn rescue_orphaned_epochs(
        self: &Arc<Self>,
        epoch: &NodeEpoch,
        cluster: &ClusterView,
        is_leader: bool,
        now: Duration,
        watch: &mut HeartbeatState,
    ) {
        // These epochs held leases before this membership read. An epoch without a `nodes` row never gets one again, so
        // it is safe to rescue.
        for suspect in std::mem::take(&mut watch.suspects) {
            if suspect != epoch.epoch && cluster.nodes.iter().all(|node| node.epoch != suspect) {
                self.rescue_epoch(suspect, None);
            }
        }
        let lease = self.membership.lease;
        if is_leader && now.saturating_sub(watch.requested_at) >= lease {
            watch.requested_at = now;
            let others =
                timeout(liveness::heartbeat_interval(lease), self.store.other_epochs(epoch.epoch)).await;
            watch.suspects = others.ok().and_then(Result::ok).unwrap_or_default();
        }
    }

    /// Rescues the leases of a dead epoch, unless its heartbeat counter has advanced beyond `counter`. Runs in its own
    /// task, because this node's heartbeats must continue.
    fn rescue_epoch(self: &Arc<Self>, dead: Epoch, counter: Option<i64>) {
        if self.membership.rescuing.lock().insert(dead) {
            let inner = self.clone();
            self.runtime.spawn(async move {
                let _rescuing = Rescuing { membership: &inner.membership, epoch: dead };
                let is_over = match counter {
                    Some(counter) => inner.store.end_epoch(dead, counter).await,
                    None => Ok(true),
                };
                if is_over == Ok(true) {
                    match counter {
                        Some(_) => {
                            tracing::warn!(epoch = dead.0, "node declared dead; taking over its leases")
                        }
                        None => tracing::warn!(epoch = dead.0, "rescuing the leases of an ended epoch"),
                    }
                    inner.rescue(dead).await;
                }
            });
        }
    }

    /// Leaves the epoch after a database failover. The new server may lack the latest commits: outcomes, leases and
    /// changes that this node knows may be gone, and versions, epochs and positions in the change feed may be reused.
    /// The node therefore takes a new epoch and reloads everything. Returns false if joining with a new epoch failed;
    /// the next heartbeat tries again.
    async fn leave_former_server(self: &Arc<Self>, epoch: &Arc<NodeEpoch>, cluster: &ClusterView) -> bool {
        tracing::warn!(
            epoch = epoch.epoch.0,
            "database server changed (failover); rejoining with a new epoch and reloading"
        );
        self.membership.change_signal.server_changed();
        if !self.rejoin(epoch).await {
            return false;
        }
        if !epoch.is_taken(&cluster.nodes) {
            // Rescued without waiting for failure detection: nothing under this epoch will be sent or recorded any
            // more.
            self.rescue_epoch(epoch.epoch, None);
        }
        true
    }

    /// Ends the epoch and takes a new one. Deliveries that are only queued here now belong to other nodes; outcomes of
    /// requests in flight will not be recorded. Returns false if joining with a new epoch failed; the next heartbeat
    /// tries again.
    async fn rejoin(self: &Arc<Self>, epoch: &Arc<NodeEpoch>) -> bool {
        epoch.end();
        self.membership.assignments.clear();
        let actions = self.dispatcher.discard_ended_epoch();
        self.apply_actions(actions);
        if self.stop.is_cancelled() {
            return false;
        }
        match join(&*self.store, &self.clock, &self.settings).await {
            Ok((epoch, at)) => {
                *self.membership.send_lease.lock() = initial_lease(self.membership.lease, at);
                tracing::info!(epoch = epoch.epoch.0, "this node rejoined");
                *self.membership.epoch.write() = epoch;
                self.membership.epoch_renewed.notify_waiters();
                self.membership.change_signal.request_resync();
                self.scheduler_wakeup.wake();
                // The new epoch changes this node's position among the nodes: recompute it with a heartbeat now.
                self.membership.check_epoch_now();
                true
            }
            // The next heartbeat detects the ended epoch again and retries.
            Err(error) => {
                tracing::warn!(%error, "joining with a new epoch failed; will retry");
                false
            }
        }
    }

    /// Waits until an ended epoch is replaced. Returns false if that takes longer than `NEW_EPOCH_TIMEOUT`.
    pub(crate) async fn wait_for_new_epoch(&self, over: &NodeEpoch) -> bool {
        let membership = &self.membership;
        if !membership.shared || self.stop.is_cancelled() {
            return false;
        }
        membership.check_epoch_now();
        let renewal = async {
            loop {
                let mut renewed = std::pin::pin!(membership.epoch_renewed.notified());
                renewed.as_mut().enable();
                if membership.current_epoch().epoch != over.epoch {
                    return;
                }
                renewed.await;
            }
        };
        timeout(NEW_EPOCH_TIMEOUT, renewal).await.is_ok()
    }
}

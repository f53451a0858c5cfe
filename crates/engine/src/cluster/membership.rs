//! Membership of this node in its cluster as the data path reads it: its epoch, whether it may send, whether it leads.
//! The heartbeat service keeps it current.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use redrive_core::cluster::liveness::{Heartbeat, SendLease};
use redrive_store::{Epoch, NewNode, Node, Nodes, StoreError};
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    Settings,
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
    ended: AtomicBool,
}

impl NodeEpoch {
    pub(crate) fn new(node: &str, epoch: Epoch, incarnation: i64) -> Arc<Self> {
        let worker = format!("{node}#{}", epoch.0).into();
        Arc::new(Self { epoch, worker, incarnation, ended: AtomicBool::new(false) })
    }

    /// Returns whether the row of this epoch belongs to another node, possible after a failover that lost this node's
    /// row.
    pub(super) fn belongs_to_other_node(&self, nodes: &[Node]) -> bool {
        nodes.iter().any(|node| node.epoch == self.epoch && node.incarnation != self.incarnation)
    }

    /// Returns whether this epoch has ended. Its leases then belong to other nodes.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    pub(crate) fn end(&self) {
        self.ended.store(true, Relaxed);
    }
}

/// An epoch that was just taken.
pub(crate) struct JoinedEpoch {
    pub(crate) epoch: Arc<NodeEpoch>,
    /// Monotonic time at which it was requested; counts as a heartbeat.
    at: Duration,
}

impl JoinedEpoch {
    fn send_lease(&self, lease: Duration) -> SendLease {
        let mut send_lease = SendLease::new(lease);
        send_lease.renew(self.at);
        send_lease
    }
}

/// Takes a new epoch.
pub(crate) async fn join(
    store: &dyn Nodes,
    clock: &Clock,
    settings: &Settings,
) -> Result<JoinedEpoch, StoreError> {
    let (name, pools) = (settings.node.clone(), settings.served_pools().to_vec());
    let incarnation = clock::random_i64();
    let node = NewNode { name, role: settings.role, pools, incarnation };
    let at = monotonic_now();
    let epoch = store.join(node, clock.now()).await?;
    Ok(JoinedEpoch { epoch: NodeEpoch::new(&settings.node, epoch, incarnation), at })
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
    stop: CancellationToken,
}

impl Membership {
    pub(crate) fn new(shared: bool, lease: Duration, joined: &JoinedEpoch, stop: CancellationToken) -> Self {
        Self {
            shared,
            lease,
            epoch: RwLock::new(joined.epoch.clone()),
            leader: AtomicBool::new(!shared),
            epoch_renewed: Notify::new(),
            send_lease: Mutex::new(joined.send_lease(lease)),
            check_requested: Notify::new(),
            pools: RwLock::default(),
            stop,
        }
    }

    /// Returns whether the store may be shared with other nodes.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Returns the time without a heartbeat after which other nodes declare this one dead.
    pub(crate) fn lease_duration(&self) -> Duration {
        self.lease
    }

    /// Returns whether this node is the leader. Two nodes may be for a moment.
    pub(crate) fn is_leader(&self) -> bool {
        self.leader.load(Relaxed)
    }

    pub(super) fn set_leader(&self, is_leader: bool) {
        self.leader.store(is_leader, Relaxed);
    }

    /// Returns the epoch under which new work is leased.
    pub(crate) fn current_epoch(&self) -> Arc<NodeEpoch> {
        self.epoch.read().clone()
    }

    /// Replaces an epoch that has ended.
    pub(super) fn set_epoch(&self, joined: JoinedEpoch) {
        *self.send_lease.lock() = joined.send_lease(self.lease);
        *self.epoch.write() = joined.epoch;
        self.epoch_renewed.notify_waiters();
    }

    /// Returns whether a request may start now. A node that cannot renew its send lease may have been declared dead.
    pub(crate) fn node_may_send(&self) -> bool {
        !self.shared || self.send_lease.lock().may_send(monotonic_now())
    }

    /// Renews the send lease after a heartbeat. Returns false if this node or the store's clock has stood still since
    /// the one before; then nothing is sent before the next heartbeat.
    pub(super) fn renew_send_lease(&self, confirmed: Heartbeat) -> bool {
        self.send_lease.lock().heartbeat(confirmed)
    }

    /// Triggers a heartbeat now, which detects whether the epoch has ended.
    pub(crate) fn check_epoch_now(&self) {
        self.check_requested.notify_one();
    }

    /// Waits until a heartbeat is requested.
    pub(super) async fn heartbeat_requested(&self) {
        self.check_requested.notified().await;
    }

    /// Returns whether any node serves this pool.
    pub(crate) fn is_pool_served(&self, pool: &str) -> bool {
        self.sending_nodes(pool) > 0
    }

    /// Returns the pools served by at least one node.
    pub(crate) fn served_pools(&self) -> Vec<String> {
        self.pools.read().keys().cloned().collect()
    }

    /// Returns the number of nodes that serve a pool.
    pub(crate) fn sending_nodes(&self, pool: &str) -> usize {
        self.pools.read().get(pool).copied().unwrap_or_default()
    }

    /// Sets the pools that live nodes serve.
    pub(super) fn set_pools(&self, pools: BTreeMap<String, usize>) {
        *self.pools.write() = pools;
    }

    /// Waits until an ended epoch is replaced. Returns false if that takes longer than `NEW_EPOCH_TIMEOUT`.
    pub(crate) async fn wait_for_new_epoch(&self, ended: &NodeEpoch) -> bool {
        if !self.shared || self.stop.is_cancelled() {
            return false;
        }
        self.check_epoch_now();
        let renewal = async {
            loop {
                let mut renewed = std::pin::pin!(self.epoch_renewed.notified());
                renewed.as_mut().enable();
                if self.current_epoch().epoch != ended.epoch {
                    return;
                }
                renewed.await;
            }
        };
        timeout(NEW_EPOCH_TIMEOUT, renewal).await.is_ok()
    }
}

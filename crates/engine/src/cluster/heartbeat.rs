//! Heartbeats: prove that this node lives, detect dead nodes, and rejoin with a new epoch if other nodes have declared
//! this one dead. Uses the monotonic clock, never the engine's adjustable clock.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redrive_core::cluster::liveness::{self, FailureDetector, Heartbeat};
use redrive_store::{ClusterView, Epoch, Node, Nodes};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    Settings,
    clock::{Clock, monotonic_now},
    cluster::{
        limit_shares::LimitShares,
        membership::{self, Membership, NodeEpoch},
        rescue::Rescuer,
        timekeeping::Timekeeper,
    },
    dispatch::Dispatcher,
    wakeups::Wakeups,
};

/// State of the service between two heartbeats.
struct HeartbeatState {
    detector: FailureDetector,
    /// Other epochs that held something in the store at the last check.
    suspects: Vec<Epoch>,
    suspects_read_at: Duration,
    /// Database server that executed the last heartbeat; `None` if the store does not identify it.
    server: Option<String>,
}

/// Sends the heartbeats of this node.
pub(crate) struct HeartbeatSender {
    store: Arc<dyn Nodes>,
    clock: Clock,
    settings: Arc<Settings>,
    membership: Arc<Membership>,
    shares: Arc<LimitShares>,
    dispatcher: Arc<Dispatcher>,
    timekeeper: Arc<Timekeeper>,
    rescuer: Arc<Rescuer>,
    wakeups: Arc<Wakeups>,
    stop: CancellationToken,
    /// Locked by the service; kept when that is restarted.
    state: tokio::sync::Mutex<HeartbeatState>,
}

/// Returns whether this heartbeat was executed by a different database server than the last one; false if either is
/// not identified.
fn is_other_server(before: &Option<String>, now: &Option<String>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if before != now)
}

impl HeartbeatSender {
    pub(crate) fn new(
        settings: Arc<Settings>,
        dispatcher: Arc<Dispatcher>,
        timekeeper: Arc<Timekeeper>,
        rescuer: Arc<Rescuer>,
    ) -> Self {
        let detector = FailureDetector::new(rescuer.membership.lease_duration());
        Self {
            store: rescuer.store.clone(),
            clock: rescuer.clock.clone(),
            membership: rescuer.membership.clone(),
            shares: dispatcher.assignments.shares.clone(),
            wakeups: rescuer.wakeups.clone(),
            stop: rescuer.stop.clone(),
            state: tokio::sync::Mutex::new(HeartbeatState {
                detector,
                suspects: Vec::new(),
                suspects_read_at: Duration::ZERO,
                server: None,
            }),
            settings,
            dispatcher,
            timekeeper,
            rescuer,
        }
    }

    /// Sends the first heartbeat.
    pub(crate) async fn send_first_heartbeat(&self) {
        let mut state = self.state.lock().await;
        self.heartbeat(&mut state).await;
    }

    /// Sends heartbeats until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut state = self.state.lock().await;
        loop {
            tokio::select! {
                () = tokio::time::sleep(liveness::heartbeat_interval(self.membership.lease_duration())) => {}
                () = self.membership.heartbeat_requested() => {}
                () = self.stop.cancelled() => return,
            }
            self.heartbeat(&mut state).await;
        }
    }

    /// Sends a heartbeat and evaluates the membership read with it. A failed heartbeat changes no state, so a store
    /// outage never declares a node dead.
    async fn heartbeat(&self, state: &mut HeartbeatState) {
        let membership = &self.membership;
        let epoch = membership.current_epoch();
        let sent = monotonic_now();
        let cluster = match timeout(membership.lease_duration() / 2, self.store.heartbeat(epoch.epoch)).await
        {
            Ok(Ok(cluster)) => cluster,
            Ok(Err(error)) => {
                return tracing::warn!(%error, "heartbeat failed; will retry");
            }
            Err(_) => return tracing::warn!("heartbeat timed out; will retry"),
        };
        let responded_at = monotonic_now();
        if let Some(time) = cluster.time {
            self.timekeeper.read_store_clock(sent, responded_at, time);
        }
        if is_other_server(&state.server, &cluster.server) {
            if self.leave_former_server(&epoch, &cluster).await {
                state.server = cluster.server;
            }
            return;
        }
        state.server = cluster.server.clone().or(state.server.take());
        if !cluster.alive || epoch.belongs_to_other_node(&cluster.nodes) {
            tracing::warn!(epoch = epoch.epoch.0, "this node was declared dead; rejoining with a new epoch");
            self.rejoin(&epoch).await;
            return;
        }
        let confirmed = Heartbeat { sent, received: responded_at, store_time: cluster.time };
        if !membership.renew_send_lease(confirmed) {
            tracing::warn!(
                "the store's clock advanced further than this node's; this node was paused, or the store's clock \
                 jumped; nothing is sent before the next heartbeat"
            );
        }
        let others = cluster.nodes.iter().filter(|node| node.epoch != epoch.epoch);
        let dead = state.detector.observe(responded_at, others.map(|node| (node.epoch.0, node.heartbeats)));
        let (dead, alive): (Vec<&Node>, Vec<&Node>) =
            cluster.nodes.iter().partition(|node| dead.contains(&node.epoch.0));
        for node in &dead {
            self.rescuer.rescue_in_background(node.epoch, Some(node.heartbeats));
        }
        let mut pools: BTreeMap<String, usize> = BTreeMap::new();
        for pool in alive.iter().flat_map(|node| &node.pools) {
            *pools.entry(pool.clone()).or_default() += 1;
        }
        membership.set_pools(pools);
        if self.shares.update(epoch.epoch, &alive) {
            self.dispatcher.apply_limit_shares();
        }
        self.dispatcher.resume_node();
        let is_leader = alive.first().is_some_and(|node| node.epoch == epoch.epoch);
        membership.set_leader(is_leader);
        self.rescue_orphaned_epochs(&epoch, &cluster, is_leader, responded_at, state).await;
    }

    /// Rescues the leases of epochs that ended without releasing them. Only the leader searches for such epochs.
    async fn rescue_orphaned_epochs(
        &self,
        epoch: &NodeEpoch,
        cluster: &ClusterView,
        is_leader: bool,
        now: Duration,
        state: &mut HeartbeatState,
    ) {
        // These epochs held leases before this membership read. An epoch without a `nodes` row never gets one again, so
        // it is safe to rescue.
        for suspect in std::mem::take(&mut state.suspects) {
            if suspect != epoch.epoch && cluster.nodes.iter().all(|node| node.epoch != suspect) {
                self.rescuer.rescue_in_background(suspect, None);
            }
        }
        let lease = self.membership.lease_duration();
        if is_leader && now.saturating_sub(state.suspects_read_at) >= lease {
            state.suspects_read_at = now;
            let others =
                timeout(liveness::heartbeat_interval(lease), self.store.other_epochs(epoch.epoch)).await;
            state.suspects = others.ok().and_then(Result::ok).unwrap_or_default();
        }
    }

    /// Leaves the epoch after a database failover. The new server may lack the latest commits: outcomes, leases and
    /// changes that this node knows may be gone, and versions, epochs and positions in the change feed may be reused.
    /// The node therefore takes a new epoch and reloads everything. Returns false if joining with a new epoch failed;
    /// the next heartbeat tries again.
    async fn leave_former_server(&self, epoch: &Arc<NodeEpoch>, cluster: &ClusterView) -> bool {
        tracing::warn!(
            epoch = epoch.epoch.0,
            "database server changed (failover); rejoining with a new epoch and reloading"
        );
        self.wakeups.changes.server_changed();
        if !self.rejoin(epoch).await {
            return false;
        }
        if !epoch.belongs_to_other_node(&cluster.nodes) {
            // Rescued without waiting for failure detection: nothing under this epoch will be sent or recorded any
            // more.
            self.rescuer.rescue_in_background(epoch.epoch, None);
        }
        true
    }

    /// Ends the epoch and takes a new one. Deliveries that are only queued here now belong to other nodes; outcomes of
    /// requests in flight will not be recorded. Returns false if joining with a new epoch failed; the next heartbeat
    /// tries again.
    async fn rejoin(&self, epoch: &Arc<NodeEpoch>) -> bool {
        epoch.end();
        self.dispatcher.discard_ended_epoch();
        if self.stop.is_cancelled() {
            return false;
        }
        match membership::join(&*self.store, &self.clock, &self.settings).await {
            Ok(joined) => {
                tracing::info!(epoch = joined.epoch.epoch.0, "this node rejoined");
                self.membership.set_epoch(joined);
                self.wakeups.changes.request_resync();
                self.wakeups.claims.wake();
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
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use redrive_core::{Role, Time};
    use redrive_store::{BatchProgress, NewNode, StoreError, StoreFuture};

    use super::*;
    use crate::testing::{TestPath, draft};

    /// A cluster as the test describes it.
    #[derive(Default)]
    struct FakeNodes {
        view: Mutex<Option<ClusterView>>,
        ended: Mutex<Vec<Epoch>>,
        rescued: Mutex<Vec<Epoch>>,
    }

    impl Nodes for FakeNodes {
        fn join(&self, _: NewNode, _: Time) -> StoreFuture<'_, Epoch> {
            Box::pin(async { Ok(Epoch(99)) })
        }

        fn heartbeat(&self, _: Epoch) -> StoreFuture<'_, ClusterView> {
            let view = self.view.lock().clone();
            Box::pin(async { view.ok_or(StoreError::Unavailable("no connection".into())) })
        }

        fn is_shared(&self) -> bool {
            true
        }

        fn other_epochs(&self, _: Epoch) -> StoreFuture<'_, Vec<Epoch>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn end_epoch(&self, epoch: Epoch, _: i64) -> StoreFuture<'_, bool> {
            self.ended.lock().push(epoch);
            Box::pin(async { Ok(true) })
        }

        fn rescue(&self, dead: Epoch, _: Time, _: usize) -> StoreFuture<'_, BatchProgress> {
            self.rescued.lock().push(dead);
            Box::pin(async { Ok(BatchProgress { changed: 0, finished: true }) })
        }
    }

    fn view(epoch: Epoch, alive: bool) -> ClusterView {
        let node = Node {
            epoch,
            incarnation: 0,
            name: "other".into(),
            role: Role::All,
            pools: Vec::new(),
            heartbeats: 1,
        };
        ClusterView { alive, nodes: vec![node], time: None, server: None }
    }

    fn sender(test: &TestPath, nodes: &Arc<FakeNodes>) -> HeartbeatSender {
        let rescuer = Rescuer {
            store: nodes.clone(),
            clock: test.base.clock.clone(),
            membership: test.base.membership.clone(),
            wakeups: test.base.wakeups.clone(),
            tokio: test.base.tokio.clone(),
            stop: test.base.stop.clone(),
            rescuing: Mutex::default(),
        };
        let timekeeper = Timekeeper {
            store: test.base.store.clone(),
            clock: test.base.clock.clone(),
            membership: test.base.membership.clone(),
            coordinator: test.path.coordinator.clone(),
            dispatcher: test.path.dispatcher.clone(),
            metrics: test.base.metrics.clone(),
            wakeups: test.base.wakeups.clone(),
            tokio: test.base.tokio.clone(),
            stop: test.base.stop.clone(),
        };
        let (settings, dispatcher) = (test.base.settings.clone(), test.path.dispatcher.clone());
        HeartbeatSender::new(settings, dispatcher, Arc::new(timekeeper), Arc::new(rescuer))
    }

    #[tokio::test]
    async fn node_that_was_declared_dead_drops_its_queue_and_takes_a_new_epoch() {
        let (test, nodes) = (TestPath::new().await, Arc::new(FakeNodes::default()));
        // More than the webhook may have in flight, so that some are queued.
        for n in 0..8 {
            test.path.publisher.publish_for_tenant(draft(n)).await.unwrap();
        }
        assert!(test.path.dispatcher.queues.load().deliveries > 5);
        let before = test.base.membership.current_epoch();
        *nodes.view.lock() = Some(view(Epoch(7), false));
        sender(&test, &nodes).send_first_heartbeat().await;
        assert!(before.is_ended());
        assert_eq!(test.base.membership.current_epoch().epoch, Epoch(99));
        assert_eq!(test.path.dispatcher.queues.load().deliveries, 5, "what is in flight ends by itself");
    }

    #[tokio::test]
    async fn failed_heartbeat_changes_nothing() {
        let (test, nodes) = (TestPath::new().await, Arc::new(FakeNodes::default()));
        let before = test.base.membership.current_epoch();
        sender(&test, &nodes).send_first_heartbeat().await;
        assert!(!before.is_ended());
        assert_eq!(test.base.membership.current_epoch().epoch, before.epoch);
        assert!(nodes.ended.lock().is_empty() && nodes.rescued.lock().is_empty());
    }
}

//! Nodes of a cluster: membership, the change feed and the clock.

use redrive_core::{Time, cluster::clock_discipline::ClockStep};

use crate::{
    BatchProgress, ChangeCursor, Changes, ClockState, ClusterView, Epoch, Hint, LaneCursor, NewNode,
    StoreFuture,
};

/// Cluster membership, and the rescue of dead nodes' leases.
pub trait Nodes: Send + Sync {
    /// Takes a new epoch.
    fn join(&self, node: NewNode, now: Time) -> StoreFuture<'_, Epoch>;
    /// Records a heartbeat of an epoch and returns the nodes of the cluster.
    fn heartbeat(&self, epoch: Epoch) -> StoreFuture<'_, ClusterView>;
    /// Returns whether several processes may use this store concurrently. If not, every other epoch has ended.
    fn is_shared(&self) -> bool;
    /// Returns every other epoch that still has a row, a lease or a lane.
    fn other_epochs(&self, own_epoch: Epoch) -> StoreFuture<'_, Vec<Epoch>>;
    /// Ends an epoch whose heartbeat count is still the given one. Returns `false` if it has changed, or the epoch has
    /// already ended.
    fn end_epoch(&self, epoch: Epoch, heartbeats: i64) -> StoreFuture<'_, bool>;
    /// Ends an epoch and returns up to `limit` of its deliveries to `waiting`, due now.
    fn rescue(&self, dead: Epoch, now: Time, limit: usize) -> StoreFuture<'_, BatchProgress>;
}

/// The ordered log of configuration and runtime changes, and the hints that announce them.
pub trait ChangeLog: Send + Sync {
    /// Returns the changes since a cursor, each once, including the caller's own; without a cursor, only a cursor to
    /// start from. The cost does not grow with the age of transactions that other programs keep open. A store that is
    /// not shared reports no changes.
    fn changes(&self, since: Option<ChangeCursor>) -> StoreFuture<'_, Changes>;
    /// Prunes changes before this cursor. A node that has not read them must resync.
    fn prune_changes(&self, before: ChangeCursor) -> StoreFuture<'_, ()>;
    /// Sets a callback that is called soon, at most a few hundred times a second, when another node (or this one) has
    /// announced work or changes. A hint may be lost. The callback must not block.
    fn on_hint(&self, call: Box<dyn Fn(Hint) + Send + Sync>);
    /// Sets a transport that carries every hint to the other nodes instead of the store. It returns `false` while it
    /// cannot.
    fn set_hint_transport(&self, carry: Box<dyn Fn(Hint) -> bool + Send + Sync>);
}

/// Persisted clock state, and corrections of stored times after the clock was set back.
pub trait Clocks: Send + Sync {
    /// Returns the stored clock state.
    fn clock_state(&self) -> StoreFuture<'_, ClockState>;
    /// Stores a confirmed time, for the next start to compare with.
    fn store_confirmed_time(&self, confirmed_at: Time) -> StoreFuture<'_, ()>;
    /// Counts a confirmation by an operator, which every node acts on. Returns their number.
    fn confirm_clock(&self) -> StoreFuture<'_, i64>;
    /// Moves the due times of up to `limit` lanes after this one, if they may have been computed from the time before
    /// the clock was set back, and wakes those lanes now. Returns the last lane, or `None` if there were fewer.
    fn adjust_due_for_clock_step(
        &self,
        clock_step: ClockStep,
        now: Time,
        after: Option<LaneCursor>,
        limit: usize,
    ) -> StoreFuture<'_, Option<LaneCursor>>;
    /// Moves the ends of pauses after a 429 and the times of circuits that were computed from the time before the clock
    /// was set back. A forced circuit keeps its end.
    fn adjust_pauses_for_clock_step(&self, clock_step: ClockStep) -> StoreFuture<'_, usize>;
}

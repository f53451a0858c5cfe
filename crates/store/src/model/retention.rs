//! Requests and results of pruning and erasure.

use redrive_core::{TenantId, Time};

/// A pruning step for one tenant.
#[derive(Clone, Debug)]
pub struct PruneRequest<C> {
    /// The tenant.
    pub tenant_id: TenantId,
    /// Prune items before this time.
    pub before: Time,
    /// Only items after this one.
    pub after: Option<C>,
    /// Approximate number of rows in one step; at least one item is pruned.
    pub rows: usize,
    /// Whether the pruned rows are added to the archive outbox in the same transaction.
    pub archive: bool,
}

/// Numbers of pruned or archived rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneCounts {
    /// Events.
    pub events: usize,
    /// Deliveries.
    pub deliveries: usize,
    /// Attempts.
    pub attempts: usize,
}

impl PruneCounts {
    /// Returns the total number of rows.
    pub fn rows(&self) -> usize {
        self.events + self.deliveries + self.attempts
    }
}

/// Result of a pruning step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneProgress<C> {
    /// Pruned rows.
    pub left: PruneCounts,
    /// Position to continue from.
    pub last: Option<C>,
    /// Whether nothing is left to prune.
    pub finished: bool,
}

/// Result of dropping partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionDrop {
    /// A partition or some of its dependent rows were dropped; there may be more.
    Dropped {
        /// Number of dropped months.
        months: usize,
    },
    /// The lock was not available within the time that other transactions may be kept waiting: try again later.
    Busy,
    /// No partition can be dropped.
    None,
}

/// Result of erasing a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseResult {
    /// It was erased now.
    Erased,
    /// It was already erased at this time.
    AlreadyErased(Time),
    /// There is no such event.
    NotFound,
}

/// An object to be stored in the archive. Its rows were already deleted from their tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveObject {
    /// Unique name, beginning with the day of its events.
    pub name: String,
    /// Numbers of rows in it.
    pub holds: PruneCounts,
    /// Compressed lines of JSON.
    pub bytes: Vec<u8>,
}

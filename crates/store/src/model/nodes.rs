//! Nodes, the change feed and hints.

use redrive_core::{DeliveryId, Role, TenantId, Time, WebhookId};

/// Owner of leases: a number that one start of one node takes and that is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

impl Epoch {
    /// The epoch of no node: for reading the list of nodes and the store's time.
    pub const NONE: Self = Self(0);
}

/// A node that joins the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// Its configured name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The pools that it sends for; empty if it sends nothing.
    pub pools: Vec<String>,
    /// A random value, by which the node recognises its row.
    pub incarnation: i64,
}

/// Nodes of the cluster, as returned by a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// Whether the caller's epoch is still valid. If not, its leases belong to other nodes.
    pub alive: bool,
    /// Time of the store's own clock, if it has one that all nodes share.
    pub time: Option<Time>,
    /// The database server that executed this, if the store may have several: its identity and its timeline. A
    /// different value means that another server took over, which may lack the latest commits of the previous one.
    pub server: Option<String>,
    /// Every node by epoch, including the caller.
    pub nodes: Vec<Node>,
}

/// A node as seen by the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its epoch.
    pub epoch: Epoch,
    /// The random value that it joined with.
    pub incarnation: i64,
    /// Its configured name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// The pools that it sends for.
    pub pools: Vec<String>,
    /// Number of its heartbeats.
    pub heartbeats: i64,
}

/// A position in the change feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeCursor {
    /// Every change before this position has been read.
    pub position: i64,
    /// The transactions that the read saw, if the store orders changes by transaction. Changes after `position` that
    /// the read saw are not returned again.
    pub snapshot: Option<Box<str>>,
}

impl ChangeCursor {
    /// Creates a cursor in a feed whose changes are numbered in commit order.
    pub fn at(position: i64) -> Self {
        Self { position, snapshot: None }
    }
}

/// Changes since a cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Position to continue from.
    pub cursor: ChangeCursor,
    /// The changes, each once.
    pub changes: Vec<Change>,
}

/// A change that every node must apply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A webhook was created, changed or deleted.
    Webhook(TenantId, WebhookId),
    /// A tenant's rules changed.
    Tenant(TenantId),
    /// The set of valid API keys changed.
    Keys,
    /// The runtime state of a webhook changed.
    Runtime(WebhookId),
    /// Cancellation of a leased delivery was requested.
    Cancel(WebhookId, DeliveryId),
}

/// A wake-up between nodes, which may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A waiting delivery is due.
    Work,
    /// The change feed has new entries.
    Change,
}

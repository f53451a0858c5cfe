//! Nodes, and what they tell each other.

use redrive_core::{DeliveryId, Role, TenantId, Time, WebhookId};

/// Who owns a lease: a number that one start of one node takes and nobody takes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

impl Epoch {
    /// The epoch of no node: for reading the list of nodes and the store's time.
    pub const NONE: Self = Self(0);
}

/// A node that comes to work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// What its operator calls it.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// The pools of tenants that it sends for; none if it sends nothing.
    pub pools: Vec<String>,
    /// A random value, by which the node recognises its row.
    pub incarnation: i64,
}

/// Who claims to be alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// Whether the caller's epoch still stands. If not, what it had is somebody else's.
    pub alive: bool,
    /// What time it is by the store's own clock, if it has one that all nodes share.
    pub time: Option<Time>,
    /// Which server executed this, where a store has several: its identity and its timeline. A different value means that
    /// another server took over, which may lack the latest commits of the one before it.
    pub server: Option<String>,
    /// Every node in the order of their epochs, the caller too.
    pub nodes: Vec<Node>,
}

/// A node as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its epoch.
    pub epoch: Epoch,
    /// The random value that it joined with.
    pub incarnation: i64,
    /// What its operator calls it.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// The pools that it sends for.
    pub pools: Vec<String>,
    /// How often it has shown that it is alive.
    pub beats: i64,
}

/// A position in the change feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Every change before this position has been read.
    pub position: i64,
    /// Which transactions the read saw, where the store orders changes by transaction. Changes after `position` that
    /// the read saw are not returned again.
    pub snapshot: Option<Box<str>>,
}

impl Mark {
    /// A mark in a feed whose changes are numbered in the order of their commits.
    pub fn at(position: i64) -> Self {
        Self { position, snapshot: None }
    }
}

/// What has changed since a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Where to go on from.
    pub mark: Mark,
    /// What has changed, each named once.
    pub changes: Vec<Change>,
}

/// Something that every node should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A webhook was made, changed or deleted.
    Webhook(TenantId, WebhookId),
    /// A tenant's rules.
    Tenant(TenantId),
    /// Which API keys are valid.
    Keys,
    /// What holds a webhook back.
    Gate(WebhookId),
    /// A leased delivery is to be called off.
    Cancel(WebhookId, DeliveryId),
}

/// A reason to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Something waits and is due.
    Work,
    /// Something has changed.
    Change,
}

//! Nodes, and what they tell each other.

use redrive_core::{DeliveryId, Role, TenantId, Time, WebhookId};

/// Who owns a lease: a number that one start of one node takes and nobody takes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// A node that comes to work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// What its operator calls it.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// The pools of tenants that it sends for; none if it sends nothing.
    pub pools: Vec<String>,
}

/// Who claims to be alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// Whether the caller's epoch still stands. If not, what it had is somebody else's.
    pub alive: bool,
    /// What time it is by the store's own clock, if it has one that all nodes share.
    pub time: Option<Time>,
    /// Every node in the order of their epochs, the caller too.
    pub nodes: Vec<Node>,
}

/// A node as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its epoch.
    pub epoch: Epoch,
    /// What its operator calls it.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// The pools that it sends for.
    pub pools: Vec<String>,
    /// How often it has shown that it is alive.
    pub beats: i64,
}

/// A place in the row of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub i64);

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

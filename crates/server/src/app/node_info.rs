//! Identity, settings and state of this node, for operators.

use std::time::Duration;

use redrive_core::{Role, Time};
use redrive_engine::Load;
use redrive_store::{Epoch, Node, StoreStats};
use tokio::time::timeout;

use super::{App, AppError};
use crate::config::EffectiveSetting;

/// Timeout for counting in the store; the page is shown without the counts after that.
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);

/// Properties of a node that do not change while it runs.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the node.
    pub node: String,
    /// Kind of store, as text.
    pub store: String,
    /// Start time.
    pub started_at: Time,
    /// Effective settings, without secrets.
    pub settings: Vec<EffectiveSetting>,
}

/// Information about a node for operators.
#[derive(Clone, Debug)]
pub struct NodeInfo<'a> {
    /// Identity of the node.
    pub identity: &'a Identity,
    /// Role of the node.
    pub role: Role,
    /// Worker pools that the node serves.
    pub pools: &'a [String],
    /// Current load.
    pub load: Load,
    /// Epoch of the node: a unique number for each start of a node.
    pub epoch: Epoch,
    /// All nodes of a shared store, including this one; empty if the store is not shared.
    pub nodes: Vec<Node>,
    /// Whether Redis is reachable; `None` if it is not configured.
    pub redis: Option<bool>,
    /// Whether the ticket broker is reachable; `None` if it is not configured.
    pub broker: Option<bool>,
    /// Counts from the store; `None` if counting failed or timed out.
    pub vitals: Option<StoreStats>,
}

impl App {
    /// Returns identity, load and dependencies of this node.
    pub async fn node_info(&self) -> Result<NodeInfo<'_>, AppError> {
        let vitals = timeout(COUNT_TIMEOUT, self.store().stats()).await;
        Ok(NodeInfo {
            identity: &self.rules.identity,
            role: self.rules.role,
            pools: &self.rules.pools,
            load: self.engine.load(),
            epoch: self.engine.epoch(),
            nodes: self.engine.nodes().await?,
            redis: self.engine.redis_up(),
            broker: self.engine.broker_up(),
            vitals: vitals.ok().and_then(Result::ok),
        })
    }
}

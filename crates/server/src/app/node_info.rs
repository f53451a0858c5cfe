//! What this node is, what it runs with, and how it is doing: for whoever runs it.

use std::time::Duration;

use redrive_core::{Role, Time};
use redrive_engine::Load;
use redrive_store::{Epoch, Node, Vitals};
use tokio::time::timeout;

use super::{App, AppError};
use crate::config::InForce;

/// How long the store may take to count: the page can do without.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a node is, for as long as it runs.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its name.
    pub node: String,
    /// What kind of store it has, in words.
    pub store: String,
    /// When it was started.
    pub started_at: Time,
    /// Its settings, without secrets.
    pub settings: Vec<InForce>,
}

/// A node as whoever runs it sees it.
#[derive(Clone, Debug)]
pub struct About<'a> {
    /// What it is.
    pub identity: &'a Identity,
    /// What it is there for.
    pub role: Role,
    /// The pools that it sends for.
    pub pools: &'a [String],
    /// How full it is.
    pub load: Load,
    /// Its epoch: this start of it, among all starts of all nodes.
    pub epoch: Epoch,
    /// All nodes of a shared store, this one too; none if the store is its own.
    pub nodes: Vec<Node>,
    /// Whether Redis answers; none where there is none.
    pub redis: Option<bool>,
    /// Whether the broker of tickets is there; none where there is none.
    pub broker: Option<bool>,
    /// How much is in the store; none if that cannot be told quickly.
    pub vitals: Option<Vitals>,
}

impl App {
    /// What this node is, and how it is doing.
    pub async fn about(&self) -> Result<About<'_>, AppError> {
        let vitals = timeout(PATIENCE, self.store().vitals()).await;
        Ok(About {
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

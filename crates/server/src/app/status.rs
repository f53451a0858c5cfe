//! Status of the installation: nodes, dependencies, backlog and findings.
//!
//! It must work while the store is unavailable, then without the values that only the store knows.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redrive_core::{
    Role, Time,
    maintenance::durability::Durability,
    statistics::status::{Finding, Level, StatusSnapshot, max_level},
};
use redrive_engine::{CircuitCounts, Load};
use redrive_store::{Epoch, Node, StoreStats};
use tokio::time::timeout;

use super::{App, node_info::Identity};

/// Timeout of each query to the store.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Status of the installation, as seen by one node.
#[derive(Clone, Debug)]
pub struct Status<'a> {
    /// Identity of this node.
    pub identity: &'a Identity,
    /// Role of this node.
    pub role: Role,
    /// Worker pools that this node serves.
    pub pools: &'a [String],
    /// Epoch of this node.
    pub epoch: Epoch,
    /// Current load of this node.
    pub load: Load,
    /// Current time.
    pub now: Time,
    /// Error of the store, if it does not accept writes.
    pub store_down: Option<String>,
    /// Settings of the database server that determine whether acknowledged data survives a crash; `None` if there is
    /// no server or it does not respond.
    pub durability: Option<Durability>,
    /// All nodes of a shared store, including this one; empty if the store is not shared or does not respond.
    pub nodes: Vec<Node>,
    /// Whether Redis is reachable; `None` if it is not configured.
    pub redis: Option<bool>,
    /// Whether the ticket broker is reachable; `None` if it is not configured.
    pub broker: Option<bool>,
    /// Whether sending notification emails works; `None` if email is not configured.
    pub email: Option<bool>,
    /// Counts from the store; `None` if it does not respond.
    pub vitals: Option<StoreStats>,
    /// Due time of the most overdue delivery of each pool; `None` if the store does not respond.
    pub overdue: Option<BTreeMap<String, Time>>,
    /// Number of circuits by state.
    pub circuits: CircuitCounts,
    /// Conditions that need attention, most severe first.
    pub findings: Vec<Finding>,
}

impl Status<'_> {
    /// Returns the level of the most severe finding.
    pub fn level(&self) -> Level {
        max_level(&self.findings)
    }

    /// Returns the time since the most overdue delivery became due.
    pub fn lag(&self) -> Option<Duration> {
        let since = self.overdue.as_ref()?.values().min();
        Some(since.map_or(Duration::ZERO, |since| self.now.duration_since(*since)))
    }
}

impl App {
    /// Returns the status of the installation.
    pub async fn status(self: &Arc<Self>) -> Status<'_> {
        let now = self.engine.clock().now();
        let (works, nodes, counted, overdue, durability) = tokio::join!(
            self.check_store(),
            timeout(QUERY_TIMEOUT, self.engine.nodes()),
            self.store_counts(),
            timeout(QUERY_TIMEOUT, self.store().overdue(now)),
            timeout(QUERY_TIMEOUT, self.store().durability()),
        );
        let mut status = Status {
            identity: &self.rules.identity,
            role: self.rules.role,
            pools: &self.rules.pools,
            epoch: self.engine.epoch(),
            load: self.engine.load(),
            now,
            store_down: works.as_ref().err().map(ToString::to_string),
            durability: durability.ok().and_then(Result::ok).flatten(),
            nodes: nodes.ok().and_then(Result::ok).unwrap_or_default(),
            redis: self.engine.redis_up(),
            broker: self.engine.broker_up(),
            email: self.engine.mail_up(),
            // Counts from before the store became unavailable are outdated.
            vitals: counted.filter(|_| works.is_ok()).map(|counted| counted.vitals),
            overdue: overdue.ok().and_then(Result::ok),
            circuits: self.engine.circuits(),
            findings: Vec::new(),
        };
        status.findings = self.snapshot(&status).findings();
        status
    }

    fn snapshot(&self, status: &Status<'_>) -> StatusSnapshot {
        let overdue = status.overdue.clone().unwrap_or_default();
        let (served, unserved): (Vec<_>, Vec<_>) =
            overdue.into_iter().partition(|(pool, _)| self.engine.serves(pool));
        let late = served.iter().map(|(_, since)| status.now.duration_since(*since)).max();
        StatusSnapshot {
            store_down: status.store_down.clone(),
            durability_risk: status.durability.as_ref().and_then(Durability::risk),
            redis: status.redis,
            broker: status.broker,
            email: status.email,
            clock_jump_ms: self.engine.clock().unconfirmed_jump_ms(),
            services_down: self.services_down(),
            draining: self.is_draining(),
            waiting: status.vitals.as_ref().map(|vitals| vitals.waiting.iter().sum()),
            unserved: unserved.into_iter().map(|(pool, _)| pool).collect(),
            uncounted: status.vitals.is_none() || status.overdue.is_none(),
            lag: late,
            slots: (status.load.unsettled, status.load.slots),
            open: (status.circuits.open, status.circuits.open_over_an_hour),
            dead: status.vitals.as_ref().map(|vitals| vitals.dead),
        }
    }
}

//! How the installation is doing: every node, what they share, what waits, and what needs somebody.
//!
//! It answers while the store does not: then without what only the store knows.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redrive_core::{
    Role, Time,
    maintenance::durability::Durability,
    statistics::status::{Finding, Level, Observed, worst},
};
use redrive_engine::{Circuits, Load};
use redrive_store::{Epoch, Node, Vitals};
use tokio::time::timeout;

use super::{App, node_info::Identity};

/// How long the store may take for each question.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the installation is doing, as one node sees it.
#[derive(Clone, Debug)]
pub struct Status<'a> {
    /// The node that was asked.
    pub identity: &'a Identity,
    /// What it is there for.
    pub role: Role,
    /// The pools that it sends for.
    pub pools: &'a [String],
    /// Its epoch.
    pub epoch: Epoch,
    /// How full it is.
    pub load: Load,
    /// What time it is.
    pub now: Time,
    /// Why the store takes no writes, if it takes none.
    pub store_down: Option<String>,
    /// The settings of the store's server on which it depends that nothing acknowledged is lost; none where there is
    /// no server, or if it does not respond.
    pub durability: Option<Durability>,
    /// All nodes of a shared store, the one asked too; none if the store is its own, or does not tell.
    pub nodes: Vec<Node>,
    /// Whether Redis answers; none where there is none.
    pub redis: Option<bool>,
    /// Whether the broker is there; none where there is none.
    pub broker: Option<bool>,
    /// Whether mails to owners go out; none where none are sent.
    pub mail: Option<bool>,
    /// What is in the store; none if it does not tell.
    pub vitals: Option<Vitals>,
    /// Since when the longest overdue delivery of each pool is due; none if the store does not tell.
    pub overdue: Option<BTreeMap<String, Time>>,
    /// Circuits by state.
    pub circuits: Circuits,
    /// What needs somebody, the most urgent first.
    pub findings: Vec<Finding>,
}

impl Status<'_> {
    /// How urgent the most urgent is.
    pub fn level(&self) -> Level {
        worst(&self.findings)
    }

    /// For how long the longest overdue delivery has been due.
    pub fn lag(&self) -> Option<Duration> {
        let since = self.overdue.as_ref()?.values().min();
        Some(since.map_or(Duration::ZERO, |since| self.now.since(*since)))
    }
}

impl App {
    /// How the installation is doing.
    pub async fn status(self: &Arc<Self>) -> Status<'_> {
        let now = self.engine.clock().now();
        let (works, nodes, counted, overdue, durability) = tokio::join!(
            self.store_works(),
            timeout(PATIENCE, self.engine.nodes()),
            self.counted(),
            timeout(PATIENCE, self.store().overdue(now)),
            timeout(PATIENCE, self.store().durability()),
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
            mail: self.engine.mail_up(),
            // What was counted before the store went away is no news.
            vitals: counted.filter(|_| works.is_ok()).map(|counted| counted.vitals),
            overdue: overdue.ok().and_then(Result::ok),
            circuits: self.engine.circuits(),
            findings: Vec::new(),
        };
        status.findings = self.observed(&status).findings();
        status
    }

    fn observed(&self, status: &Status<'_>) -> Observed {
        let overdue = status.overdue.clone().unwrap_or_default();
        let (served, unserved): (Vec<_>, Vec<_>) =
            overdue.into_iter().partition(|(pool, _)| self.engine.serves(pool));
        let late = served.iter().map(|(_, since)| status.now.since(*since)).max();
        Observed {
            store_down: status.store_down.clone(),
            durability_risk: status.durability.as_ref().and_then(Durability::risk),
            redis: status.redis,
            broker: status.broker,
            mail: status.mail,
            clock_jump_ms: self.engine.clock().unconfirmed_jump_ms(),
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

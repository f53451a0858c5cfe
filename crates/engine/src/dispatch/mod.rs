//! The dispatcher: deliveries leased to this node and not yet sent, and the fair order in which they are started.
//!
//! Everything is bounded: capacity for a delivery is reserved before it is committed as leased to this node, and
//! freed when its outcome is committed. A delivery without capacity waits in the store; its lane then has more due
//! there and is refilled from it, in order, before anything newer is enqueued directly.
//!
//! Capacity and sending slots are shared: no tenant, no webhook and no storm of retries can take all of either,
//! see [`redrive_core::dispatch::fairness`]. The order of sending is in `fair_queue`, capacity in `capacity`, and what
//! other nodes or API calls change in `external_changes`.
//!
//! A method of [`DispatchQueues`] changes the queues under their lock and returns actions; the command of the same name on
//! [`Dispatcher`] performs them once the lock is free. No other caller sees an action. What leaves the queues is a guard
//! (`unsettled`), which frees what it occupies when it is dropped.

mod admission;
mod assignments;
mod capacity;
mod commands;
mod ending;
mod external_changes;
mod fair_queue;
mod hosts;
mod lanes;
mod lease_transfers;
mod perform;
mod poison_mutex;
mod queues;
mod release_queue;
mod state;
mod types;
mod unsettled;

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use redrive_core::dispatch::retry_concurrency::RetryConcurrency;
use tokio::runtime::Handle;

use self::types::{Deferral, DeferredDelivery, DispatchActions};
pub use self::types::{Load, TenantInMemory};
pub(crate) use self::{
    admission::Admission,
    assignments::Assignments,
    commands::HostSlot,
    ending::{EndWithoutAttempt, REASON_EXPIRED, REASON_GONE, end_before_send},
    lease_transfers::LeaseTransfers,
    queues::DispatchQueues,
    release_queue::{ReleaseItem, ReleaseQueue},
    types::{DispatchLimits, LeasedDelivery, MemoryState, Usage, WebhookLimits},
    unsettled::UnsettledDelivery,
};
use crate::{
    clock::Clock, cluster::membership::Membership, coordinate::Coordinator, metrics::Metrics,
    routing::Router, wakeups::Wakeups,
};

/// What becomes of deliveries that leave the queues.
pub(crate) trait DeliveryHandler: Send + Sync {
    /// Starts the attempt of a delivery that was admitted. Must not block.
    fn start_attempt(self: Arc<Self>, delivery: UnsettledDelivery, admission: Admission);
    /// Ends a delivery without a request.
    fn end(&self, delivery: UnsettledDelivery, end: EndWithoutAttempt);
}

/// The dispatcher of this node.
pub(crate) struct Dispatcher {
    pub(crate) queues: DispatchQueues,
    pub(crate) assignments: Assignments,
    pub(crate) release_queue: ReleaseQueue,
    pub(crate) lease_transfers: Arc<LeaseTransfers>,
    /// Limit of concurrent retries.
    retry_concurrency: Mutex<RetryConcurrency>,
    /// Weak, since the implementation refers to the dispatcher.
    handler: OnceLock<Weak<dyn DeliveryHandler>>,
    clock: Clock,
    membership: Arc<Membership>,
    router: Arc<Router>,
    coordinator: Arc<Coordinator>,
    metrics: Arc<Metrics>,
    wakeups: Arc<Wakeups>,
    tokio: Handle,
}

impl Dispatcher {
    pub(crate) fn new(
        limits: DispatchLimits,
        assignments: Assignments,
        router: Arc<Router>,
        metrics: Arc<Metrics>,
        wakeups: Arc<Wakeups>,
    ) -> Self {
        Self {
            queues: DispatchQueues::new(limits),
            release_queue: ReleaseQueue::default(),
            lease_transfers: Arc::default(),
            retry_concurrency: Mutex::default(),
            handler: OnceLock::new(),
            clock: assignments.clock.clone(),
            membership: assignments.membership.clone(),
            coordinator: assignments.coordinator.clone(),
            assignments,
            router,
            metrics,
            wakeups,
            tokio: Handle::current(),
        }
    }

    /// Sets what becomes of deliveries. Nothing is started before that.
    pub(crate) fn set_handler(&self, handler: Weak<dyn DeliveryHandler>) {
        let _ = self.handler.set(handler);
    }
}

#[cfg(test)]
mod tests;

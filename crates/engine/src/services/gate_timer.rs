//! Performs timed transitions of circuits, and ends holds and parks when they are due.

use std::sync::Arc;

use redrive_core::{Time, WebhookId};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Clock, cluster::membership::Membership, coordinate::Coordinator, dispatch::Dispatcher,
    record::WebhookRuntimeUpdater, routing::Router, wakeups::Wakeups,
};

/// Ends blocks when they are due.
pub(crate) struct GateTimer {
    pub(crate) clock: Clock,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
}

impl GateTimer {
    /// Returns whether this node performs the timed transitions of a webhook's circuit: it is assigned here, or this
    /// node holds some of its deliveries.
    fn owns_circuit_timer(&self, webhook_id: WebhookId) -> bool {
        !self.membership.is_shared()
            || self.dispatcher.assignments.is_assigned_here(webhook_id)
            || self.dispatcher.queues.has_deliveries(webhook_id)
    }

    /// Performs transitions of circuits and ends holds and parks when they are due.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let find = |webhook_id| self.router.webhook(webhook_id);
            let ours = |webhook_id| self.owns_circuit_timer(webhook_id);
            let ticked = self.coordinator.local.tick(now, &find, &ours);
            if let Some(shared) = self.coordinator.redis() {
                ticked
                    .to_refresh
                    .into_iter()
                    .for_each(|webhook| shared.refresh_circuit_in_background(webhook));
            }
            for webhook in ticked.half_open {
                // A probe may have been lost: admit another one.
                self.dispatcher.unpark(&webhook, self.coordinator.local.refresh_half_open_limit(&webhook));
            }
            for (webhook, change) in ticked.changes {
                self.runtime_updater.apply_and_persist(&webhook, change);
            }
            self.dispatcher.expire_blocks(now);
            let next = [self.dispatcher.queues.next_wake(), self.coordinator.local.next_tick()]
                .into_iter()
                .flatten()
                .min();
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or_default()), if next.is_some_and(|at| at < Time::FAR_FUTURE) => {}
                () = self.wakeups.gate_timer.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }
}

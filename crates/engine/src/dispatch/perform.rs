//! Performs the actions that follow from a command, once the lock of the queues is free. No other module performs actions.

use std::sync::{Arc, Weak};

use super::{
    Deferral, DeferredDelivery, DeliveryHandler, DispatchActions, Dispatcher, EndWithoutAttempt, ReleaseItem,
    UnsettledDelivery,
};

/// A delivery that was taken from its queue and may not be sent now.
pub(super) type UnadmittedDelivery = (UnsettledDelivery, Deferral);

impl Dispatcher {
    /// Starts the attempts of the deliveries that the gate admits, releases those that have to wait in the store, and wakes the
    /// claim loop if there is capacity for more.
    ///
    /// Deliveries that are not admitted return to their queues, which may start others instead. The loop ends, because
    /// each of them leaves its queue, or is held, parked or suspended.
    pub(super) fn perform(self: &Arc<Self>, mut actions: DispatchActions) {
        loop {
            if actions.refill {
                self.wakeups.claims.wake();
            }
            for delivery in std::mem::take(&mut actions.release) {
                self.release_queue.add(ReleaseItem::queued(delivery));
            }
            if actions.start.is_empty() {
                return;
            }
            // Guarded before anything can fail.
            let start =
                actions.start.into_iter().map(|delivery| UnsettledDelivery::from_started(self, delivery));
            let start: Vec<_> = start.collect();
            // The engine is being dropped: guards that are dropped here change memory only.
            let Some(handler) = self.handler() else { return };
            let deferred = self.admit(start, &handler);
            if deferred.is_empty() {
                return;
            }
            actions = self.defer(deferred);
        }
    }

    pub(super) fn handler(&self) -> Option<Arc<dyn DeliveryHandler>> {
        self.handler.get().and_then(Weak::upgrade)
    }

    /// Puts deliveries that were not admitted back into their queues.
    pub(super) fn defer(&self, deferred: Vec<UnadmittedDelivery>) -> DispatchActions {
        let queued = deferred
            .into_iter()
            .map(|(delivery, deferral)| DeferredDelivery { delivery: delivery.into_queued(), deferral });
        let actions = self.queues.defer(queued.collect());
        // A deferred delivery may need an earlier wake-up than the one that is set.
        self.wakeups.gate_timer.notify_one();
        actions
    }

    /// Loads the webhook of a started delivery, which is not cached on this node, or was deleted.
    pub(super) fn load_webhook_of(self: &Arc<Self>, delivery: UnsettledDelivery) {
        let dispatcher = self.clone();
        self.tokio.spawn(async move { dispatcher.start_after_loading_webhook(delivery).await });
    }

    async fn start_after_loading_webhook(self: Arc<Self>, mut delivery: UnsettledDelivery) {
        match self.router.get_or_load(delivery.webhook_id).await {
            Ok(Some(webhook)) if !webhook.state.cancels_deliveries() => {
                // The webhook is cached now: queue the delivery again.
                let actions = self.defer(vec![(delivery, Deferral::Requeue)]);
                self.perform(actions);
            }
            Ok(webhook) => {
                let reason = webhook.and_then(|webhook| webhook.state.cancel_reason().map(str::to_owned));
                let reason = reason.unwrap_or_else(|| "the webhook was deleted".into());
                delivery.free_local_webhook_slot();
                if let Some(handler) = self.handler() {
                    handler.end(delivery, EndWithoutAttempt::for_inactive_webhook(reason));
                }
            }
            Err(error) => {
                tracing::warn!(
                    delivery_id = %delivery.id, webhook_id = %delivery.webhook_id,
                    tenant_id = %delivery.event.tenant_id, %error, "store access failed; delivery released"
                );
                delivery.release();
            }
        }
    }
}

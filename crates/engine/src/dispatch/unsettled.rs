//! Guard of a delivery that has left the queues of the dispatcher.

use std::{ops::Deref, sync::Arc};

use redrive_core::Time;

use super::{Dispatcher, LeasedDelivery, ReleaseItem};

/// A delivery that has left the queues: it is at the gate, its request is in flight, or its outcome is being
/// recorded. It occupies a slot of the node and, until its request has ended, one of its webhook.
///
/// Its owner ends it by `settle`, `release`, `release_as_crashed` or `into_queued`. One that is dropped, because a task
/// panicked or the runtime shuts down, goes to the releaser.
pub(crate) struct UnsettledDelivery {
    dispatcher: Arc<Dispatcher>,
    delivery: LeasedDelivery,
    has_local_webhook_slot: bool,
    /// Whether its own task runs. Only then a panic is attributed to it.
    has_task: bool,
    ended: bool,
}

impl UnsettledDelivery {
    /// Takes over a delivery that the queues started.
    pub(super) fn from_started(dispatcher: &Arc<Dispatcher>, delivery: LeasedDelivery) -> Self {
        Self {
            dispatcher: dispatcher.clone(),
            delivery,
            has_local_webhook_slot: true,
            has_task: false,
            ended: false,
        }
    }

    /// Takes over a delivery that was taken from its queue to be ended without a request.
    pub(super) fn from_queue(dispatcher: &Arc<Dispatcher>, delivery: LeasedDelivery) -> Self {
        Self {
            dispatcher: dispatcher.clone(),
            delivery,
            has_local_webhook_slot: false,
            has_task: false,
            ended: false,
        }
    }

    /// Records that the delivery's own task has begun: a panic from now on counts as a crash.
    pub(crate) fn begin_task(&mut self) {
        self.has_task = true;
    }

    /// Frees the slot of the webhook on this node: the request has ended, or is not sent.
    pub(crate) fn free_local_webhook_slot(&mut self) {
        if std::mem::take(&mut self.has_local_webhook_slot) {
            self.dispatcher.free_local_webhook_slot(&self.delivery);
        }
    }

    /// Frees all slots and the memory: the outcome is stored, or the lease belongs to another node. If the delivery
    /// `returns_to_store`, its successors in an ordered lane wait as well.
    pub(crate) fn settle(mut self, returns_to_store: bool) {
        self.free_local_webhook_slot();
        self.ended = true;
        self.dispatcher.settle(&self.delivery, returns_to_store);
    }

    /// Releases the lease without an outcome.
    pub(crate) fn release(self) {
        self.end_by_release(false);
    }

    /// Releases the lease of a delivery whose task panicked or whose outcome cannot be stored: that counts as a crash, and
    /// delays it.
    pub(crate) fn release_as_crashed(self) {
        self.end_by_release(true);
    }

    fn end_by_release(mut self, is_crash: bool) {
        self.free_local_webhook_slot();
        self.ended = true;
        self.dispatcher.release_queue.add(ReleaseItem::unsettled(self.delivery.clone(), false, is_crash));
    }

    /// Returns the delivery, to be queued again by the dispatcher.
    pub(super) fn into_queued(mut self) -> LeasedDelivery {
        self.ended = true;
        self.delivery.clone()
    }

    /// Makes the delivery due at this time at the earliest, if it is released.
    pub(crate) fn delay_until(&mut self, at: Time) {
        self.delivery.due = self.delivery.due.max(at);
    }
}

impl Deref for UnsettledDelivery {
    type Target = LeasedDelivery;

    fn deref(&self) -> &LeasedDelivery {
        &self.delivery
    }
}

impl Drop for UnsettledDelivery {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Only memory is changed here, and nothing is started: a runtime that shuts down drops the tasks of all
        // deliveries.
        let panicked = self.has_task && std::thread::panicking();
        let item = ReleaseItem::unsettled(self.delivery.clone(), self.has_local_webhook_slot, panicked);
        self.dispatcher.release_queue.add(item);
    }
}

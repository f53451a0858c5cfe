//! Leases on their way back to the store, by tenant. Only memory is changed here; the releaser empties the queue.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use redrive_core::TenantId;
use redrive_store::Epoch;
use tokio::sync::Notify;

use super::{Dispatcher, LeasedDelivery};

/// Leases to be released. What they occupy in memory is freed when they are back in the store.
#[derive(Default)]
pub(crate) struct ReleaseQueue {
    queues: Mutex<BTreeMap<TenantId, VecDeque<Arc<ReleaseItem>>>>,
    wakeup: Notify,
}

/// A lease to be released.
pub(crate) struct ReleaseItem {
    pub(crate) delivery: LeasedDelivery,
    occupancy: Occupancy,
    /// Whether it occupies a slot of its webhook on this node.
    has_local_webhook_slot: AtomicBool,
    /// Whether this counts as a crash: its task panicked, or its outcome cannot be stored.
    is_crash: bool,
    /// Whether its lease is released; then only its memory is to be freed.
    released: AtomicBool,
    settled: AtomicBool,
}

/// What a lease to be released occupies in memory, besides a slot of its webhook.
#[derive(Clone, Copy)]
enum Occupancy {
    Nothing,
    Capacity,
    CapacityAndNodeSlot,
}

impl ReleaseItem {
    /// Creates the item of a delivery that has left the queues.
    pub(super) fn unsettled(delivery: LeasedDelivery, has_local_webhook_slot: bool, is_crash: bool) -> Self {
        Self {
            delivery,
            occupancy: Occupancy::CapacityAndNodeSlot,
            has_local_webhook_slot: AtomicBool::new(has_local_webhook_slot),
            is_crash,
            released: AtomicBool::new(false),
            settled: AtomicBool::new(false),
        }
    }

    /// Creates the item of a delivery that was queued, or for which capacity is reserved.
    pub(crate) fn queued(delivery: LeasedDelivery) -> Self {
        Self { occupancy: Occupancy::Capacity, ..Self::unsettled(delivery, false, false) }
    }

    /// Creates the item of a lease that was not handed to the dispatcher.
    pub(crate) fn unknown_to_dispatcher(delivery: LeasedDelivery) -> Self {
        Self { occupancy: Occupancy::Nothing, ..Self::unsettled(delivery, false, false) }
    }

    /// Returns what items that are released in one transaction have in common.
    pub(crate) fn batch_key(&self) -> (Epoch, bool) {
        (self.delivery.epoch.epoch, self.is_crash)
    }

    /// Returns whether its lease is back in the store.
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Relaxed)
    }

    /// Records that its lease is back in the store.
    pub(crate) fn mark_released(&self) {
        self.released.store(true, Relaxed);
    }
}

impl ReleaseQueue {
    /// Adds a lease to be released. Never waits.
    pub(crate) fn add(&self, item: ReleaseItem) {
        let tenant_id = item.delivery.event.tenant_id.clone();
        self.queues.lock().entry(tenant_id).or_default().push_back(Arc::new(item));
        self.wakeup.notify_one();
    }

    /// Waits until an item was added.
    pub(crate) async fn item_added(&self) {
        self.wakeup.notified().await;
    }

    /// Returns up to `max` leases of one tenant that can be released in one transaction; of none of the `busy` tenants.
    /// Tenants take turns: the first one after `last` is next, so that tenants whose releases keep failing do not starve
    /// others. The items stay in the queue until [`Dispatcher::finish_release`].
    pub(crate) fn next_batch(
        &self,
        busy: &BTreeSet<TenantId>,
        last: Option<&TenantId>,
        max: usize,
    ) -> Option<(TenantId, Vec<Arc<ReleaseItem>>)> {
        let queues = self.queues.lock();
        let after_last = queues.iter().filter(|(tenant_id, _)| last.is_none_or(|last| *tenant_id > last));
        let mut in_turn = after_last.chain(queues.iter());
        let (tenant_id, items) = in_turn.find(|(tenant_id, _)| !busy.contains(*tenant_id))?;
        let transaction = items.front()?.batch_key();
        let together = items.iter().filter(|item| item.batch_key() == transaction);
        Some((tenant_id.clone(), together.take(max).cloned().collect()))
    }

    /// Removes the settled items of a tenant.
    fn remove_settled(&self, tenant_id: &TenantId) {
        let mut queues = self.queues.lock();
        if let Some(items) = queues.get_mut(tenant_id) {
            items.retain(|item| !item.settled.load(Relaxed));
            if items.is_empty() {
                queues.remove(tenant_id);
            }
        }
    }
}

impl Dispatcher {
    /// Frees the slots of webhooks on this node that items still occupy: their requests have ended, or were not sent.
    pub(crate) fn free_local_webhook_slots(self: &Arc<Self>, batch: &[Arc<ReleaseItem>]) {
        for item in batch.iter().filter(|item| item.has_local_webhook_slot.swap(false, Relaxed)) {
            self.free_local_webhook_slot(&item.delivery);
        }
    }

    /// Frees what the items of a tenant occupy, and removes them from the queue: their leases are back in the store.
    pub(crate) fn finish_release(self: &Arc<Self>, tenant_id: &TenantId, batch: &[Arc<ReleaseItem>]) {
        for item in batch.iter().filter(|item| !item.settled.swap(true, Relaxed)) {
            match item.occupancy {
                Occupancy::CapacityAndNodeSlot => self.settle(&item.delivery, true),
                Occupancy::Capacity => self.queues.on_released(&item.delivery),
                Occupancy::Nothing => {}
            }
        }
        self.release_queue.remove_settled(tenant_id);
        self.wakeups.claims.wake();
    }
}

//! Releases leases of deliveries that this node does not send.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use redrive_core::{DeliveryId, TenantId, Time, delivery::decide::delay_after_panic};
use redrive_store::{Epoch, StoreError};
use tokio::sync::Notify;

use crate::{Inner, dispatch::LeasedDelivery, record::RECORD_RETRY_INTERVAL};

/// Deliveries released per transaction.
pub(crate) const RELEASE_BATCH_SIZE: usize = 1_000;
/// Tenants whose leases are released at the same time.
const MAX_CONCURRENT_RELEASES: usize = 4;

/// Leases to be released, by tenant. What they occupy in memory is freed when they are back in the store.
#[derive(Default)]
pub(crate) struct Releaser {
    queues: Mutex<BTreeMap<TenantId, VecDeque<Arc<ReleaseItem>>>>,
    wakeup: Notify,
}

/// A lease to be released.
pub(crate) struct ReleaseItem {
    delivery: LeasedDelivery,
    occupancy: Occupancy,
    /// Whether it occupies a slot of its webhook.
    has_webhook_slot: AtomicBool,
    /// Whether its task panicked.
    panicked: bool,
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
    pub(crate) fn unsettled(delivery: LeasedDelivery, has_webhook_slot: bool, panicked: bool) -> Self {
        Self {
            delivery,
            occupancy: Occupancy::CapacityAndNodeSlot,
            has_webhook_slot: AtomicBool::new(has_webhook_slot),
            panicked,
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
    fn transaction(&self) -> (Epoch, bool) {
        (self.delivery.epoch.epoch, self.panicked)
    }
}

impl Releaser {
    /// Adds a lease to be released. Never waits.
    pub(crate) fn add(&self, item: ReleaseItem) {
        let tenant_id = item.delivery.event.tenant_id.clone();
        self.queues.lock().entry(tenant_id).or_default().push_back(Arc::new(item));
        self.wakeup.notify_one();
    }

    /// Returns leases of one tenant that can be released in one transaction; of none of the `busy` tenants. Tenants take
    /// turns: the first one after `last` is next, so that tenants whose releases keep failing do not starve others.
    fn next_batch(
        &self,
        busy: &BTreeSet<TenantId>,
        last: Option<&TenantId>,
    ) -> Option<(TenantId, Vec<Arc<ReleaseItem>>)> {
        let queues = self.queues.lock();
        let after_last = queues.iter().filter(|(tenant_id, _)| last.is_none_or(|last| *tenant_id > last));
        let mut in_turn = after_last.chain(queues.iter());
        let (tenant_id, items) = in_turn.find(|(tenant_id, _)| !busy.contains(*tenant_id))?;
        let transaction = items.front()?.transaction();
        let together = items.iter().filter(|item| item.transaction() == transaction);
        Some((tenant_id.clone(), together.take(RELEASE_BATCH_SIZE).cloned().collect()))
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

impl Inner {
    /// Releases queued deliveries; they occupy capacity until the store has them.
    pub(crate) fn release_queued(&self, deliveries: Vec<LeasedDelivery>) {
        for delivery in deliveries {
            self.releaser.add(ReleaseItem::queued(delivery));
        }
    }

    /// Releases leases until the engine stops: one transaction of a tenant at a time, and several tenants at the same
    /// time, so that locked rows of one tenant delay no other. An item stays in its queue until it is back in the store,
    /// so a restart loses none.
    pub(crate) async fn run_releaser(self: Arc<Self>) {
        let (mut running, mut busy, mut last) = (FuturesUnordered::new(), BTreeSet::new(), None);
        loop {
            while running.len() < MAX_CONCURRENT_RELEASES
                && let Some((tenant_id, batch)) = self.releaser.next_batch(&busy, last.as_ref())
            {
                last = Some(tenant_id.clone());
                busy.insert(tenant_id.clone());
                running.push(self.release_batch(tenant_id, batch));
            }
            tokio::select! {
                Some(tenant_id) = running.next(), if !running.is_empty() => {
                    busy.remove(&tenant_id);
                }
                () = self.releaser.wakeup.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Releases leases of one tenant and frees what they occupy. Returns the tenant.
    async fn release_batch(self: &Arc<Self>, tenant_id: TenantId, batch: Vec<Arc<ReleaseItem>>) -> TenantId {
        for item in batch.iter().filter(|item| item.has_webhook_slot.swap(false, Relaxed)) {
            self.free_webhook_slot(&item.delivery);
        }
        if !self.release_together(&batch).await {
            tokio::time::sleep(RECORD_RETRY_INTERVAL).await;
            return tenant_id;
        }
        for item in batch.iter().filter(|item| !item.settled.swap(true, Relaxed)) {
            match item.occupancy {
                Occupancy::CapacityAndNodeSlot => self.settle_delivery(&item.delivery, true),
                Occupancy::Capacity => self.dispatcher.released(&item.delivery),
                Occupancy::Nothing => {}
            }
        }
        self.releaser.remove_settled(&tenant_id);
        self.scheduler_wakeup.wake();
        tenant_id
    }

    /// Releases leases in one transaction. Returns false if the store did not accept it.
    async fn release_together(&self, batch: &[Arc<ReleaseItem>]) -> bool {
        let leased: Vec<_> = batch.iter().filter(|item| !item.released.load(Relaxed)).collect();
        let Some((epoch, panicked)) = leased.first().map(|item| item.transaction()) else { return true };
        let now = self.clock.now();
        let released = if panicked {
            let delayed = |delivery: &LeasedDelivery| now + delay_after_panic(delivery.sender_deaths);
            let due = leased.iter().map(|item| (item.delivery.id, delayed(&item.delivery))).collect();
            self.store.release_panicked(epoch, now, due).await
        } else {
            let due = leased.iter().map(|item| (item.delivery.id, item.delivery.due)).collect();
            self.store.release(epoch, now, due).await
        };
        // The leases of an ended epoch are rescued by another node.
        let is_done = matches!(released, Ok(_) | Err(StoreError::Fenced));
        if is_done {
            leased.iter().for_each(|item| item.released.store(true, Relaxed));
        }
        is_done
    }
}

/// Groups deliveries by the epoch that leased them: one group, unless the node has just rejoined.
pub(crate) fn group_by_epoch(
    deliveries: &[LeasedDelivery],
) -> impl Iterator<Item = (Epoch, Vec<(DeliveryId, Time)>)> {
    let same = |one: &LeasedDelivery, other: &LeasedDelivery| one.epoch.epoch == other.epoch.epoch;
    deliveries.chunk_by(same).map(|part| {
        let ids = part.iter().map(|delivery| (delivery.id, delivery.due)).collect();
        (part[0].epoch.epoch, ids)
    })
}

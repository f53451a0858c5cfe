//! Releases leases of deliveries that this node does not send.

use std::sync::Arc;

use redrive_core::{DeliveryId, Time};
use redrive_store::{Epoch, StoreError};

use crate::{Inner, dispatch::LeasedDelivery, record::RECORD_RETRY_INTERVAL};

/// Deliveries released per transaction.
pub(crate) const RELEASE_BATCH_SIZE: usize = 1_000;

impl Inner {
    /// Releases a delivery without an outcome, retrying until the store accepts it.
    pub(crate) fn release_one(self: &Arc<Self>, delivery: LeasedDelivery) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            inner.release(std::slice::from_ref(&delivery)).await;
            inner.settle_delivery(&delivery, true);
            inner.scheduler_wakeup.wake();
        });
    }

    /// Releases queued deliveries; they occupy capacity until the store has them.
    pub(crate) fn release_queued(self: &Arc<Self>, deliveries: Vec<LeasedDelivery>) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            for part in deliveries.chunks(RELEASE_BATCH_SIZE) {
                inner.release(part).await;
                for delivery in part {
                    inner.dispatcher.released(delivery);
                }
            }
            inner.scheduler_wakeup.wake();
        });
    }

    async fn release(&self, deliveries: &[LeasedDelivery]) {
        for (epoch, ids) in group_by_epoch(deliveries) {
            loop {
                match self.store.release(epoch, self.clock.now(), ids.clone()).await {
                    Ok(_) | Err(StoreError::Fenced) => break,
                    Err(_) if self.stop.is_cancelled() => return,
                    Err(_) => tokio::time::sleep(RECORD_RETRY_INTERVAL).await,
                }
            }
        }
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

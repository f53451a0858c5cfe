//! Giving back to the store what this node has and does not send.

use std::sync::Arc;

use redrive_core::{DeliveryId, Time};
use redrive_store::{Epoch, StoreError};

use crate::{Inner, dispatch::Ready, record::OFFER_AGAIN};

/// Deliveries handed back in one transaction.
pub(crate) const HAND_BACK: usize = 1_000;

impl Inner {
    /// Puts a delivery back into the store without an outcome, however long that takes.
    pub(crate) fn give_back(self: &Arc<Self>, ready: Ready) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            inner.release(std::slice::from_ref(&ready)).await;
            inner.settle(&ready, true);
            inner.alarm.ring();
        });
    }

    /// Puts queued deliveries back into the store; their room is taken until they are there.
    pub(crate) fn hand_back(self: &Arc<Self>, deliveries: Vec<Ready>) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            for part in deliveries.chunks(HAND_BACK) {
                inner.release(part).await;
                for ready in part {
                    inner.dispatch.returned(ready);
                }
            }
            inner.alarm.ring();
        });
    }

    async fn release(&self, deliveries: &[Ready]) {
        for (epoch, ids) in by_epoch(deliveries) {
            loop {
                match self.store.release(epoch, self.clock.now(), ids.clone()).await {
                    Ok(_) | Err(StoreError::Fenced) => break,
                    Err(_) if self.stop.is_cancelled() => return,
                    Err(_) => tokio::time::sleep(OFFER_AGAIN).await,
                }
            }
        }
    }
}

/// Deliveries to give back, by the epoch that has leased them: one for all, unless the node has just begun anew.
pub(crate) fn by_epoch(deliveries: &[Ready]) -> impl Iterator<Item = (Epoch, Vec<(DeliveryId, Time)>)> {
    let same = |one: &Ready, other: &Ready| one.term.epoch == other.term.epoch;
    deliveries.chunk_by(same).map(|part| {
        let ids = part.iter().map(|ready| (ready.id, ready.due)).collect();
        (part[0].term.epoch, ids)
    })
}

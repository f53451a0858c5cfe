//! Releases leases of deliveries that this node does not send.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redrive_core::{TenantId, delivery::decide::delay_after_panic};
use redrive_store::{Claim, StoreError};
use tokio_util::sync::CancellationToken;

use super::RECORD_RETRY_INTERVAL;
use crate::{
    clock::Clock,
    dispatch::{Dispatcher, LeasedDelivery, ReleaseItem},
};

/// Deliveries released per transaction.
pub(crate) const RELEASE_BATCH_SIZE: usize = 1_000;
/// Tenants whose leases are released at the same time.
const MAX_CONCURRENT_RELEASES: usize = 4;

/// Empties the dispatcher's queue of leases to be released.
pub(crate) struct Releaser {
    pub(crate) store: Arc<dyn Claim>,
    pub(crate) clock: Clock,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) stop: CancellationToken,
}

impl Releaser {
    /// Releases leases until the engine stops: one transaction of a tenant at a time, and several tenants at the same
    /// time, so that locked rows of one tenant delay no other. An item stays in its queue until it is back in the store,
    /// so a restart loses none.
    pub(crate) async fn run(self: Arc<Self>) {
        let (mut running, mut busy, mut last) = (FuturesUnordered::new(), BTreeSet::new(), None);
        loop {
            while running.len() < MAX_CONCURRENT_RELEASES
                && let Some((tenant_id, batch)) =
                    self.dispatcher.release_queue.next_batch(&busy, last.as_ref(), RELEASE_BATCH_SIZE)
            {
                last = Some(tenant_id.clone());
                busy.insert(tenant_id.clone());
                running.push(self.release_batch(tenant_id, batch));
            }
            tokio::select! {
                Some(tenant_id) = running.next(), if !running.is_empty() => {
                    busy.remove(&tenant_id);
                }
                () = self.dispatcher.release_queue.item_added() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Releases leases of one tenant and frees what they occupy. Returns the tenant.
    async fn release_batch(&self, tenant_id: TenantId, batch: Vec<Arc<ReleaseItem>>) -> TenantId {
        self.dispatcher.begin_release(&batch);
        if !self.release_together(&batch).await {
            tokio::time::sleep(RECORD_RETRY_INTERVAL).await;
            return tenant_id;
        }
        self.dispatcher.finish_release(&tenant_id, &batch);
        tenant_id
    }

    /// Releases leases in one transaction. Returns false if the store did not accept it.
    async fn release_together(&self, batch: &[Arc<ReleaseItem>]) -> bool {
        let leased: Vec<_> = batch.iter().filter(|item| !item.is_released()).collect();
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
            leased.iter().for_each(|item| item.mark_released());
        }
        is_done
    }
}

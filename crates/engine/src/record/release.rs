//! Releases leases of deliveries that this node does not send.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::{StreamExt, stream::FuturesUnordered};
use redrive_core::{TenantId, delivery::decide::delay_after_crash};
use redrive_store::{Leases, StoreError};
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
    pub(crate) store: Arc<dyn Leases>,
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
        self.dispatcher.free_local_webhook_slots(&batch);
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
        let Some((epoch, crashed)) = leased.first().map(|item| item.batch_key()) else { return true };
        let now = self.clock.now();
        let released = if crashed {
            let delayed = |delivery: &LeasedDelivery| now + delay_after_crash(delivery.crash_count);
            let due = leased.iter().map(|item| (item.delivery.id, delayed(&item.delivery))).collect();
            self.store.release_crashed(epoch, now, due).await
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use parking_lot::Mutex;
    use redrive_core::{DeliveryId, Time};
    use redrive_store::{Epoch, Owned, StoreFuture};

    use super::*;
    use crate::testing::TestPath;

    /// Leases of a store that does not accept those of some deliveries.
    #[derive(Default)]
    struct FakeLeases {
        refused: Mutex<BTreeSet<DeliveryId>>,
        released: Mutex<Vec<DeliveryId>>,
        crashed: Mutex<Vec<(DeliveryId, Time)>>,
    }

    impl FakeLeases {
        fn accept(&self, deliveries: &[(DeliveryId, Time)]) -> Result<usize, StoreError> {
            let refused = self.refused.lock();
            if deliveries.iter().any(|(id, _)| refused.contains(id)) {
                return Err(StoreError::Busy("the tenant is locked".into()));
            }
            self.released.lock().extend(deliveries.iter().map(|(id, _)| *id));
            Ok(deliveries.len())
        }
    }

    impl Leases for FakeLeases {
        fn release(&self, _: Epoch, _: Time, due: Vec<(DeliveryId, Time)>) -> StoreFuture<'_, usize> {
            Box::pin(async move { self.accept(&due) })
        }

        fn release_crashed(&self, _: Epoch, _: Time, due: Vec<(DeliveryId, Time)>) -> StoreFuture<'_, usize> {
            Box::pin(async move {
                self.crashed.lock().extend(&due);
                self.accept(&due)
            })
        }

        fn owned_by(&self, _: Epoch, _: Option<DeliveryId>, _: usize) -> StoreFuture<'_, Owned> {
            Box::pin(async { Ok(Owned::default()) })
        }

        fn mark_sending(&self, _: Epoch, _: DeliveryId) -> StoreFuture<'_, bool> {
            Box::pin(async { Ok(true) })
        }
    }

    fn releaser(test: &TestPath, store: &Arc<FakeLeases>) -> Arc<Releaser> {
        Arc::new(Releaser {
            store: store.clone(),
            clock: test.base.clock.clone(),
            dispatcher: test.path.dispatcher.clone(),
            stop: test.base.stop.clone(),
        })
    }

    async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(tokio::time::timeout(redrive_testkit::WAIT_TIMEOUT, waiting).await.is_ok(), "{what}");
    }

    #[tokio::test]
    async fn tenants_whose_releases_fail_do_not_delay_others() {
        let (test, store) = (TestPath::new().await, Arc::new(FakeLeases::default()));
        let tenant = |n: usize| TenantId::parse(&format!("tenant-{n}")).unwrap();
        // More locked tenants than releases that run at the same time, all before the free one in their order.
        for n in 0..=MAX_CONCURRENT_RELEASES + 1 {
            let leased = test.leased(&tenant(n), n as u8);
            if n <= MAX_CONCURRENT_RELEASES {
                store.refused.lock().insert(leased.id);
            }
            test.path.dispatcher.release_queue.add(ReleaseItem::unknown_to_dispatcher(leased));
        }
        let running = tokio::spawn(releaser(&test, &store).run());
        wait_until("the free tenant's lease is released", || store.released.lock().len() == 1).await;
        store.refused.lock().clear();
        let all = MAX_CONCURRENT_RELEASES + 2;
        wait_until("all leases are released", || store.released.lock().len() == all).await;
        test.base.stop.cancel();
        running.await.unwrap();
        assert_eq!(test.to_release(), 0);
    }

    #[tokio::test]
    async fn delivery_whose_task_failed_is_released_with_a_delay() {
        let (test, store) = (TestPath::new().await, Arc::new(FakeLeases::default()));
        test.started_delivery().await.release_as_crashed();
        let running = tokio::spawn(releaser(&test, &store).run());
        wait_until("the lease is released", || test.path.dispatcher.queues.load().unsettled == 0).await;
        test.base.stop.cancel();
        running.await.unwrap();
        let (_, due) = store.crashed.lock()[0];
        assert!(due > test.base.clock.now(), "it is not due immediately");
        assert_eq!(test.path.dispatcher.queues.load().deliveries, 0, "its capacity is free");
    }
}

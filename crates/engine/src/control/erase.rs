//! Erasure of event payloads on request: pending deliveries are cancelled, delivery history stays.

use redrive_core::{EventId, TenantId, event::REASON_ERASED};
use redrive_store::{DeliveryCursor, DeliveryFilter, EraseResult, PageRequest, StatusFilter, StoreError};

use super::Control;

/// Deliveries read per page, and responses erased per store call.
const BATCH_SIZE: usize = 200;

impl Control {
    /// Erases the payload and metadata of an event permanently, and the endpoints' responses to it. Cancels its
    /// pending deliveries; a request in flight is allowed to finish. Calling it again completes an interrupted
    /// erasure.
    pub(crate) async fn erase(
        &self,
        tenant_id: &TenantId,
        event_id: EventId,
    ) -> Result<EraseResult, StoreError> {
        let erased = self.erase.erase(tenant_id.clone(), event_id, self.clock.now()).await?;
        if erased == EraseResult::NotFound {
            return Ok(erased);
        }
        self.cancel_pending(tenant_id, event_id).await?;
        while self.erase.erase_responses(tenant_id.clone(), event_id, BATCH_SIZE).await? == BATCH_SIZE {
            tokio::task::yield_now().await;
        }
        Ok(erased)
    }

    async fn cancel_pending(&self, tenant_id: &TenantId, event_id: EventId) -> Result<(), StoreError> {
        let pending = Some(StatusFilter::Exactly(redrive_core::DeliveryStatus::Pending));
        let mut after = None;
        loop {
            let filter =
                DeliveryFilter { event_id: Some(event_id), status: pending, ..DeliveryFilter::default() };
            let page = PageRequest { after, offset: 0, limit: BATCH_SIZE as u32 };
            let found = self.history.list_deliveries(tenant_id.clone(), filter, page).await?;
            for delivery in &found.found {
                self.cancel(tenant_id.clone(), delivery.id, delivery.webhook_id, REASON_ERASED.into())
                    .await?;
            }
            let last = found.found.last().filter(|_| found.found.len() == BATCH_SIZE);
            let last = last.map(|last| DeliveryCursor { event_id: last.event_id, delivery_id: last.id });
            // A page of a selective filter may end before it is full although more rows match; `stopped` says where.
            after = found.stopped.or(last);
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

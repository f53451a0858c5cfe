//! Taking payloads away because a person said so: what is pending of them is called off, their history stays.

use redrive_core::{EventId, TenantId, event::ERASED};
use redrive_store::{DeliveryCursor, DeliveryFilter, Erased, PageRequest, StatusFilter, StoreError};

use crate::Engine;

/// Deliveries looked at in one step.
const STEP: usize = 200;

impl Engine {
    /// Takes an event's payload and metadata away for good, with what endpoints answered to it. What waits of it is
    /// called off; a request under way is let finish. Doing it again finishes what was interrupted.
    pub async fn erase(&self, tenant: &TenantId, event: EventId) -> Result<Erased, StoreError> {
        let store = &self.0.store;
        let erased = store.erase(tenant.clone(), event, self.0.clock.now()).await?;
        if erased == Erased::Missing {
            return Ok(erased);
        }
        self.call_off(tenant, event).await?;
        while store.erase_answers(tenant.clone(), event, STEP).await? == STEP {
            tokio::task::yield_now().await;
        }
        Ok(erased)
    }

    async fn call_off(&self, tenant: &TenantId, event: EventId) -> Result<(), StoreError> {
        let pending = Some(StatusFilter::Is(redrive_core::DeliveryStatus::Pending));
        let mut after = None;
        loop {
            let filter = DeliveryFilter { event: Some(event), status: pending, ..DeliveryFilter::default() };
            let page = PageRequest { after, offset: 0, limit: STEP as u32 };
            let found = self.0.store.list_deliveries(tenant.clone(), filter, page).await?;
            for delivery in &found.found {
                self.cancel(tenant.clone(), delivery.id, delivery.webhook, ERASED.into()).await?;
            }
            let last = found.found.last().filter(|_| found.found.len() == STEP);
            let last = last.map(|last| DeliveryCursor { event: last.event, delivery: last.id });
            // A page of what is rare may end early, and there may be more.
            after = found.stopped.or(last);
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

//! Publishing, looking events up, replaying them.

use redrive_core::{DeliveryId, EventId, TenantId, lane::Priority};
use redrive_engine::{Draft, Receipt, ReplayTo};
use redrive_store::{EventFilter, PageRequest, StoredEvent};

use super::{App, AppError};

impl App {
    /// Reads a tenant's webhooks if they are not known yet, so that publishing need not wait for them.
    pub async fn learn(&self, tenant: &TenantId) -> Result<(), AppError> {
        Ok(self.engine.learn(tenant).await?)
    }

    /// Publishes an event, unless its payload is too large.
    pub async fn publish(&self, draft: Draft) -> Result<Receipt, AppError> {
        let most = self.rules.max_payload_bytes;
        if draft.data.len() > most {
            let size = draft.data.len();
            return Err(AppError::TooLarge(format!(
                "data is {size} bytes; at most {most} are allowed. Publish a reference to larger content instead"
            )));
        }
        Ok(self.engine.publish(draft).await?)
    }

    /// One event.
    pub async fn event(&self, tenant: TenantId, id: EventId) -> Result<StoredEvent, AppError> {
        self.store().event(tenant, id).await?.ok_or(AppError::NotFound("event"))
    }

    /// Events, newest first.
    pub async fn list_events(
        &self,
        tenant: TenantId,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> Result<Vec<StoredEvent>, AppError> {
        Ok(self.store().list_events(tenant, filter, page).await?)
    }

    /// Delivers an event again.
    pub async fn replay(
        &self,
        tenant: TenantId,
        event: EventId,
        to: ReplayTo,
        priority: Option<Priority>,
    ) -> Result<Vec<DeliveryId>, AppError> {
        self.event(tenant.clone(), event).await?;
        Ok(self.engine.replay(tenant, event, to, priority).await?)
    }
}

//! Publishing, looking events up, replaying them.

use redrive_core::{DeliveryId, EventId, TenantId, delivery::lane::Priority};
use redrive_engine::{BatchProgress, Draft, Receipt, ReplayTo};
use redrive_store::{EventFilter, Listed, OrderedPosition, PageRequest, StoredEvent};

use serde_json::json;

use super::{
    Actor, App, AppError, TenantView,
    audit::{Deed, Traces},
};

/// What an event is part of.
enum Part<'a> {
    Alone,
    OfOrder(OrderedPosition),
    OfBatch(&'a BatchProgress),
}

impl App {
    /// Reads a tenant's webhooks if they are not known yet, so that publishing need not wait for them.
    pub async fn learn(&self, tenant: &TenantId) -> Result<(), AppError> {
        Ok(self.engine.learn(tenant).await?)
    }

    /// Publishes an event, unless its payload is too large.
    pub async fn publish(&self, draft: Draft) -> Result<Receipt, AppError> {
        self.publish_at(draft, Part::Alone).await
    }

    /// Publishes an event of a batch.
    pub async fn publish_in_batch(&self, draft: Draft, batch: &BatchProgress) -> Result<Receipt, AppError> {
        self.publish_at(draft, Part::OfBatch(batch)).await
    }

    /// The same for an event that is stored after everything before it in an order.
    pub async fn publish_in_order(
        &self,
        draft: Draft,
        position: OrderedPosition,
    ) -> Result<Receipt, AppError> {
        self.publish_at(draft, Part::OfOrder(position)).await
    }

    async fn publish_at(&self, draft: Draft, part: Part<'_>) -> Result<Receipt, AppError> {
        self.check_hops(draft.hops)?;
        let most = self.rules.max_payload_bytes;
        if draft.data.len() > most {
            let size = draft.data.len();
            return Err(AppError::TooLarge(format!(
                "data is {size} bytes; at most {most} are allowed. Publish a reference to larger content instead"
            )));
        }
        let mut reserved = self.check_event_quotas(&draft.tenant, draft.data.len()).await?;
        let receipt = match part {
            Part::OfOrder(position) => self.engine.publish_in_order(draft, position).await?,
            Part::OfBatch(batch) => self.engine.publish_in_batch(draft, batch).await?,
            Part::Alone => self.engine.publish(draft).await?,
        };
        if let Some(reserved) = &mut reserved {
            reserved.place = receipt.sequence_number;
        }
        Ok(receipt)
    }

    /// Refuses an event that came through too many deliveries: its endpoints forward it in a circle.
    fn check_hops(&self, hops: u8) -> Result<(), AppError> {
        let max_hops = self.rules.max_hops;
        if hops <= max_hops {
            return Ok(());
        }
        Err(AppError::Unprocessable {
            code: "loop_detected",
            field: None,
            detail: format!(
                "the event came through {hops} deliveries, and events.max_hops is {max_hops}: an endpoint publishes \
                 what it is sent; end the circle at one of the webhooks"
            ),
        })
    }

    /// One event.
    pub async fn event(&self, tenant: impl Into<TenantView>, id: EventId) -> Result<StoredEvent, AppError> {
        self.store().event(tenant.into().id, id).await?.ok_or(AppError::NotFound("event"))
    }

    /// Events, newest first.
    pub async fn list_events(
        &self,
        tenant: impl Into<TenantView>,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> Result<Listed<StoredEvent, EventId>, AppError> {
        Ok(self.store().list_events(tenant.into().id, filter, page).await?)
    }

    /// Delivers an event again.
    pub async fn replay(
        &self,
        by: &Actor,
        tenant: impl Into<TenantView>,
        event: EventId,
        to: ReplayTo,
        priority: Option<Priority>,
    ) -> Result<Vec<DeliveryId>, AppError> {
        let view = tenant.into();
        let tenant = view.id.clone();
        self.event(&view, event).await?;
        let to = match to {
            ReplayTo::All if view.tenant_managed_only => ReplayTo::AllTenantManaged,
            to => to,
        };
        if let ReplayTo::Webhooks(named) = &to {
            self.must_all_get_events(&view, named).await?;
        }
        let owner = tenant.clone();
        let deed = Deed { action: "event.replay", tenant: Some(&owner), object: Some(event.to_string()) };
        self.audited(by, deed, async {
            let made = self.engine.replay(tenant, event, to, priority).await?;
            let after = Some(json!({"delivery_ids": made}));
            Ok((made, Traces { after, ..Traces::default() }))
        })
        .await
    }
}

//! Publishes, reads and replays events.

use redrive_core::{DeliveryId, EventId, TenantId, delivery::lane::Priority};
use redrive_engine::{BatchState, EventDraft, PublishReceipt, ReplayTo};
use redrive_store::{EventFilter, ListingPage, OrderedPosition, PageRequest, StoredEvent};

use serde_json::json;

use super::{
    Actor, App, AppError, TenantView,
    audit::{AuditChange, AuditedAction},
};

/// Context in which an event is published: alone, at a position of an order, or in a batch.
enum Part<'a> {
    Alone,
    OfOrder(OrderedPosition),
    OfBatch(&'a BatchState),
}

impl App {
    /// Loads a tenant's webhooks if they are not cached yet, so that publishing does not wait for them.
    pub async fn preload_tenant(&self, tenant_id: &TenantId) -> Result<(), AppError> {
        Ok(self.engine.preload_tenant(tenant_id).await?)
    }

    /// Publishes an event. Rejects a payload over the size limit.
    pub async fn publish(&self, draft: EventDraft) -> Result<PublishReceipt, AppError> {
        self.publish_at(draft, Part::Alone).await
    }

    /// Publishes an event of a batch.
    pub async fn publish_in_batch(
        &self,
        draft: EventDraft,
        batch: &BatchState,
    ) -> Result<PublishReceipt, AppError> {
        self.publish_at(draft, Part::OfBatch(batch)).await
    }

    /// Publishes an event that must be stored after all earlier events of the same sequence of publishes. This is
    /// unrelated to ordered lanes, which order the deliveries to a webhook.
    pub async fn publish_in_order(
        &self,
        draft: EventDraft,
        position: OrderedPosition,
    ) -> Result<PublishReceipt, AppError> {
        self.publish_at(draft, Part::OfOrder(position)).await
    }

    async fn publish_at(&self, draft: EventDraft, part: Part<'_>) -> Result<PublishReceipt, AppError> {
        self.check_hops(draft.hops)?;
        let max = self.rules.max_payload_bytes;
        if draft.data.len() > max {
            let size = draft.data.len();
            return Err(AppError::TooLarge(format!(
                "data is {size} bytes; at most {max} are allowed. Publish a reference to larger content instead"
            )));
        }
        let mut reserved = self.check_event_quotas(&draft.tenant_id, draft.data.len()).await?;
        let receipt = match part {
            Part::OfOrder(position) => self.engine.publish_in_order(draft, position).await?,
            Part::OfBatch(batch) => self.engine.publish_in_batch(draft, batch).await?,
            Part::Alone => self.engine.publish(draft).await?,
        };
        if let Some(reserved) = &mut reserved {
            reserved.position = receipt.sequence_number;
        }
        Ok(receipt)
    }

    /// Rejects an event that has passed through too many deliveries, because its endpoints forward it in a loop.
    fn check_hops(&self, hops: u8) -> Result<(), AppError> {
        let max_hops = self.rules.max_hops;
        if hops <= max_hops {
            return Ok(());
        }
        Err(AppError::Unprocessable {
            code: "loop_detected",
            field: None,
            detail: format!(
                "the event has passed through {hops} deliveries, and events.max_hops is {max_hops}: an endpoint publishes \
                 the events that it receives; remove one of the webhooks from the loop"
            ),
        })
    }

    /// Returns one event.
    pub async fn event(&self, tenant: impl Into<TenantView>, id: EventId) -> Result<StoredEvent, AppError> {
        self.store().event(tenant.into().id, id).await?.ok_or(AppError::NotFound("event"))
    }

    /// Lists events, newest first.
    pub async fn list_events(
        &self,
        tenant: impl Into<TenantView>,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> Result<ListingPage<StoredEvent, EventId>, AppError> {
        Ok(self.store().list_events(tenant.into().id, filter, page).await?)
    }

    /// Replays an event.
    pub async fn replay(
        &self,
        actor: &Actor,
        tenant: impl Into<TenantView>,
        event_id: EventId,
        to: ReplayTo,
        priority: Option<Priority>,
    ) -> Result<Vec<DeliveryId>, AppError> {
        let view = tenant.into();
        let tenant_id = view.id.clone();
        self.event(&view, event_id).await?;
        let to = match to {
            ReplayTo::All if view.tenant_managed_only => ReplayTo::AllTenantManaged,
            to => to,
        };
        if let ReplayTo::Webhooks(named) = &to {
            self.require_all_receiving(&view, named).await?;
        }
        let owner = tenant_id.clone();
        let audited = AuditedAction {
            action: "event.replay",
            tenant: Some(&owner),
            object: Some(event_id.to_string()),
        };
        self.with_audit(actor, audited, async {
            let delivery_ids = self.engine.replay(tenant_id, event_id, to, priority).await?;
            let after = Some(json!({"delivery_ids": delivery_ids}));
            Ok((delivery_ids, AuditChange { after, ..AuditChange::default() }))
        })
        .await
    }
}

//! Publishes, reads and replays events.

use std::collections::BTreeMap;

use futures_util::{FutureExt, StreamExt, stream};
use redrive_core::{EventId, TenantId, delivery::lane::Priority};
use redrive_engine::{EventDraft, PastWebhooks, PublishReceipt, ReplayCount, ReplayReceipt, ReplayTo};
use redrive_store::{EventFilter, ListingPage, PageRequest, StoreError, StoredEvent};
use serde_json::json;

use super::{
    Actor, App, AppError, ErrorCode, TenantSelection, TenantView,
    audit::{AuditChange, AuditedAction},
    quota::QuotaReservation,
};

/// Tenants whose events of one batch are published at the same time.
const MAX_CONCURRENT_TENANTS: usize = 16;

/// An event of a batch whose quota is reserved until the batch ends.
struct ReservedEvent<'a> {
    index: usize,
    draft: EventDraft,
    reserved: Option<QuotaReservation<'a>>,
}

impl App {
    /// Loads a tenant's webhooks if they are not cached yet, so that publishing does not wait for them.
    pub async fn preload_tenant(&self, tenant_id: &TenantId) -> Result<(), AppError> {
        Ok(self.engine.preload_tenant(tenant_id).await?)
    }

    /// Publishes an event. Rejects a payload over the size limit.
    pub async fn publish(&self, draft: EventDraft) -> Result<PublishReceipt, AppError> {
        let mut reserved = self.check_limits(&draft).await?;
        let receipt = self.engine.publish(draft).await?;
        if let Some(reserved) = &mut reserved {
            reserved.position = receipt.sequence_number;
        }
        Ok(receipt)
    }

    /// Publishes events, those of each tenant in their order. The results have the order of the drafts. An event that is
    /// invalid, or whose checks would exceed its tenant's part of `max_work`, is refused alone; one that cannot be stored
    /// now, or is over a quota, is refused with all events of its tenant that come after it.
    pub async fn publish_batch(
        &self,
        drafts: Vec<EventDraft>,
        max_work: u64,
    ) -> Vec<Result<PublishReceipt, AppError>> {
        let mut results: Vec<_> = drafts.iter().map(|_| None).collect();
        let mut tenants: BTreeMap<TenantId, Vec<ReservedEvent<'_>>> = BTreeMap::new();
        let mut refused: BTreeMap<TenantId, AppError> = BTreeMap::new();
        for (index, draft) in drafts.into_iter().enumerate() {
            let tenant_id = draft.tenant_id.clone();
            let checked = match refused.get(&tenant_id) {
                Some(error) => Err(error.clone()),
                None => self.check_limits(&draft).await,
            };
            match checked {
                Ok(reserved) => {
                    tenants.entry(tenant_id).or_default().push(ReservedEvent { index, draft, reserved })
                }
                Err(error) => {
                    // It may be published later, so nothing behind it may be published before it.
                    if let AppError::OverQuota { .. } | AppError::Store(_) | AppError::NotFound(_) = error {
                        refused.insert(tenant_id, error.clone());
                    }
                    results[index] = Some(Err(error));
                }
            }
        }
        let max_work = max_work / (tenants.len() as u64).max(1);
        let publishing: Vec<_> = tenants
            .into_iter()
            .map(|(tenant_id, events)| self.publish_reserved(tenant_id, events, max_work).boxed())
            .collect();
        let mut publishing = stream::iter(publishing).buffer_unordered(MAX_CONCURRENT_TENANTS);
        while let Some(published) = publishing.next().await {
            for (index, result) in published {
                results[index] = Some(result);
            }
        }
        let missing = || Err(AppError::Store(StoreError::Unavailable("the event was not published".into())));
        results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// Publishes events of one tenant, and returns their results by index.
    async fn publish_reserved(
        &self,
        tenant_id: TenantId,
        events: Vec<ReservedEvent<'_>>,
        max_work: u64,
    ) -> Vec<(usize, Result<PublishReceipt, AppError>)> {
        let (mut drafts, mut reservations) = (Vec::new(), Vec::new());
        for ReservedEvent { index, draft, reserved } in events {
            drafts.push(draft);
            reservations.push((index, reserved));
        }
        let published = self.engine.publish_batch(&tenant_id, drafts, max_work).await;
        let settle = |((index, mut reserved), result): (
            (_, Option<QuotaReservation<'_>>),
            Result<PublishReceipt, _>,
        )| {
            if let (Some(reserved), Ok(receipt)) = (&mut reserved, &result) {
                reserved.position = receipt.sequence_number;
            }
            (index, result.map_err(AppError::from))
        };
        reservations.into_iter().zip(published).map(settle).collect()
    }

    /// Rejects an event that is over a limit. If the number of events per day is limited, reserves one.
    async fn check_limits(&self, draft: &EventDraft) -> Result<Option<QuotaReservation<'_>>, AppError> {
        self.check_hops(draft.hops)?;
        let (max, size) = (self.rules.max_payload_bytes, draft.data.len());
        if size > max {
            return Err(AppError::TooLarge(format!(
                "data is {size} bytes; at most {max} are allowed. Publish a reference to larger content instead"
            )));
        }
        self.check_event_quotas(&draft.tenant_id, size).await
    }

    /// Rejects an event that has passed through too many deliveries, because its endpoints forward it in a loop.
    fn check_hops(&self, hops: u8) -> Result<(), AppError> {
        let max_hops = self.rules.max_hops;
        if hops <= max_hops {
            return Ok(());
        }
        Err(AppError::Unprocessable {
            code: ErrorCode::LoopDetected,
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
        tenants: impl Into<TenantSelection>,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> Result<ListingPage<StoredEvent, EventId>, AppError> {
        self.read_events(&tenants.into(), filter, page).await
    }

    /// Replays an event.
    pub async fn replay(
        &self,
        actor: &Actor,
        tenant: impl Into<TenantView>,
        event_id: EventId,
        to: ReplayTo,
        priority: Option<Priority>,
    ) -> Result<ReplayReceipt, AppError> {
        let view = tenant.into();
        let to = self.check_replay(&view, event_id, to).await?;
        let tenant_id = view.id.clone();
        let object = Some(event_id.to_string());
        let audited = AuditedAction { action: "event.replay", tenant: Some(&view.id), object };
        self.with_audit(actor, audited, async {
            let receipt = self.engine.replay(tenant_id, event_id, to, priority).await?;
            let after = Some(json!({"delivery_ids": receipt.delivery_ids}));
            Ok((receipt, AuditChange { after, ..AuditChange::default() }))
        })
        .await
    }

    /// Counts what a replay would create. Fails as the replay would.
    pub async fn count_replay(
        &self,
        tenant: impl Into<TenantView>,
        event_id: EventId,
        to: ReplayTo,
    ) -> Result<ReplayCount, AppError> {
        let view = tenant.into();
        let to = self.check_replay(&view, event_id, to).await?;
        Ok(self.engine.count_replay(&view.id, event_id, to).await?)
    }

    /// Returns the targets of a replay that the caller may reach. Rejects webhooks that receive no events.
    async fn check_replay(
        &self,
        view: &TenantView,
        event_id: EventId,
        to: ReplayTo,
    ) -> Result<ReplayTo, AppError> {
        self.event(view, event_id).await?;
        match to {
            ReplayTo::Past(past) => {
                let tenant_managed_only = past.tenant_managed_only || view.tenant_managed_only;
                Ok(ReplayTo::Past(PastWebhooks { tenant_managed_only, ..past }))
            }
            ReplayTo::Webhooks(named) => {
                self.require_all_receiving(view, &named).await?;
                Ok(ReplayTo::Webhooks(named))
            }
        }
    }
}

//! Deliveries: what became of them, why they wait, retrying and cancelling.

use redrive_core::{DeliveryId, DeliveryStatus, TenantId, delivery::BY_REQUEST, delivery::lane::Priority};
use redrive_engine::Waiting;
use redrive_store::{
    Cancelled, Delivery, DeliveryCursor, DeliveryFilter, Listed, PageRequest, Redriven, StatusFilter,
};

use serde_json::json;

use super::{
    Actor, App, AppError, TenantView,
    audit::{Deed, Traces},
    error::PAYLOAD_ERASED,
};

/// A delivery as people see it now.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The delivery, with `InFlight` where a request is under way.
    pub delivery: Delivery,
    /// What it waits for, while it is pending.
    pub waiting: Option<Waiting>,
    /// How many attempts its webhook allows.
    pub max_attempts: Option<u32>,
}

impl App {
    /// One delivery.
    pub async fn delivery(&self, tenant: impl Into<TenantView>, id: DeliveryId) -> Result<Seen, AppError> {
        let delivery = self.visible_delivery(&tenant.into(), id).await?;
        self.see(delivery).await
    }

    /// A delivery as it is stored. One to a webhook that the caller does not see is not there.
    async fn visible_delivery(&self, view: &TenantView, id: DeliveryId) -> Result<Delivery, AppError> {
        let missing = || AppError::NotFound("delivery");
        let found = self.store().delivery(view.id.clone(), id).await?.ok_or_else(missing)?;
        if view.tenant_managed_only {
            self.had_webhook(view, found.webhook).await.map_err(|error| match error {
                AppError::NotFound(_) => missing(),
                error => error,
            })?;
        }
        Ok(found)
    }

    /// Deliveries, newest event first.
    pub async fn list_deliveries(
        &self,
        tenant: impl Into<TenantView>,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Result<Listed<Seen, DeliveryCursor>, AppError> {
        let view = tenant.into();
        let (tenant, filter) = (view.id.clone(), view.restrict(filter));
        if filter.status == Some(StatusFilter::Is(DeliveryStatus::InFlight)) {
            return self.list_in_flight(tenant, filter, page).await;
        }
        let Listed { found, stopped } = self.store().list_deliveries(tenant, filter, page).await?;
        Ok(Listed { found: self.see_all(found).await?, stopped })
    }

    /// The store knows what a node has; which of that is on the wire only the node knows. So pages of the one
    /// are read until there is a page of the other.
    async fn list_in_flight(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        mut page: PageRequest<DeliveryCursor>,
    ) -> Result<Listed<Seen, DeliveryCursor>, AppError> {
        let limit = page.limit as usize;
        let mut in_flight = Vec::new();
        loop {
            let listed = self.store().list_deliveries(tenant.clone(), filter.clone(), page).await?;
            let Listed { found, stopped } = listed;
            let is_last = found.len() < limit;
            let last =
                found.last().map(|delivery| DeliveryCursor { event: delivery.event, delivery: delivery.id });
            let seen = self.see_all(found).await?;
            in_flight
                .extend(seen.into_iter().filter(|seen| seen.delivery.status == DeliveryStatus::InFlight));
            if is_last || in_flight.len() >= limit {
                // Where it stopped does not count if there is more than a page before that.
                let stopped = stopped.filter(|_| in_flight.len() < limit);
                in_flight.truncate(limit);
                return Ok(Listed { found: in_flight, stopped });
            }
            page = PageRequest { after: last, offset: 0, ..page };
        }
    }

    /// Dead deliveries that were not redriven.
    pub async fn list_dead(
        &self,
        tenant: impl Into<TenantView>,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Result<Listed<Seen, DeliveryCursor>, AppError> {
        let view = tenant.into();
        let filter = view.restrict(filter);
        let Listed { found, stopped } = self.store().list_dead(view.id, filter, page).await?;
        Ok(Listed { found: self.see_all(found).await?, stopped })
    }

    /// Makes a pending delivery due now, or an ended one a new round. Gives the delivery to watch, as it is now.
    pub async fn retry(
        &self,
        by: &Actor,
        tenant: impl Into<TenantView>,
        id: DeliveryId,
        priority: Option<Priority>,
    ) -> Result<Seen, AppError> {
        let view = tenant.into();
        let seen = self.visible_delivery(&view, id).await?;
        let tenant = view.id;
        if seen.status.is_final() && seen.redriven_as.is_none() {
            self.must_get_events(&tenant, seen.webhook).await?;
        }
        let owner = tenant.clone();
        let deed = Deed { action: "delivery.retry", tenant: Some(&owner), object: Some(id.to_string()) };
        let watched = self.audited(by, deed, async {
            match self.engine.retry(tenant.clone(), id, priority).await? {
                Redriven::DueNow(id) | Redriven::NewRound(id) => {
                    let after = Some(json!({"delivery_id": id}));
                    Ok((id, Traces { after, ..Traces::default() }))
                }
                Redriven::AlreadyAs(round) => Err(AppError::conflict(
                    "already_redriven",
                    format!("this delivery was redriven as {round}; retry that one instead"),
                )),
                Redriven::Erased => Err(AppError::conflict(
                    PAYLOAD_ERASED,
                    "the payload of this delivery's event was erased; there is nothing to send again",
                )),
                Redriven::Missing => Err(AppError::NotFound("delivery")),
            }
        });
        let watched = watched.await?;
        self.delivery(owner, watched).await
    }

    /// Calls a delivery off.
    pub async fn cancel(
        &self,
        by: &Actor,
        tenant: impl Into<TenantView>,
        id: DeliveryId,
    ) -> Result<(), AppError> {
        let view = tenant.into();
        let seen = self.delivery(&view, id).await?;
        let tenant = view.id;
        let owner = tenant.clone();
        let deed = Deed { action: "delivery.cancel", tenant: Some(&owner), object: Some(id.to_string()) };
        self.audited(by, deed, async {
            let reason = BY_REQUEST.to_owned();
            match self.engine.cancel(tenant, id, seen.delivery.webhook, reason).await? {
                Cancelled::Done | Cancelled::Requested => Ok(((), Traces::default())),
                Cancelled::Over(status) => {
                    let status = status.name();
                    Err(AppError::conflict("already_over", format!("the delivery is already {status}")))
                }
                Cancelled::Missing => Err(AppError::NotFound("delivery")),
            }
        })
        .await
    }

    pub(super) async fn see_all(&self, found: Vec<Delivery>) -> Result<Vec<Seen>, AppError> {
        self.load_webhooks_of(&found).await?;
        let mut seen = Vec::with_capacity(found.len());
        for delivery in found {
            seen.push(self.see(delivery).await?);
        }
        Ok(seen)
    }

    /// Reads the webhooks of a tenant's deliveries into memory at one go.
    pub(super) async fn load_webhooks_of(&self, deliveries: &[Delivery]) -> Result<(), AppError> {
        let Some(first) = deliveries.first() else { return Ok(()) };
        let mut ids: Vec<_> = deliveries.iter().map(|delivery| delivery.webhook).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(self.engine.load_webhooks(&first.tenant, &ids).await?)
    }

    /// Adds what only this node knows.
    pub(super) async fn see(&self, mut delivery: Delivery) -> Result<Seen, AppError> {
        let max_attempts = self.engine.max_attempts(delivery.webhook).await;
        let mut waiting = None;
        if delivery.status == DeliveryStatus::Pending {
            waiting = self.engine.waiting(&delivery).await?;
            if waiting.is_none() {
                delivery.status = DeliveryStatus::InFlight;
            }
        }
        Ok(Seen { delivery, waiting, max_attempts })
    }
}

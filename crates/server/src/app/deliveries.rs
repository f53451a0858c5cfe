//! Deliveries: status, wait reason, retry and cancellation.

use redrive_core::{
    DeliveryId, DeliveryStatus,
    delivery::{REASON_BY_REQUEST, lane::Priority},
    dispatch::gate::WaitingOn,
};
use redrive_engine::{DeliveryState, WaitReason};
use redrive_store::{
    CancelResult, Delivery, DeliveryCursor, DeliveryFilter, ListingPage, PageRequest, RedriveResult,
    StatusFilter,
};

use serde_json::json;

use super::{
    Actor, App, AppError, ErrorCode, TenantSelection, TenantView,
    across_tenants::DeliveryListing,
    audit::{AuditChange, AuditedAction},
    endpoint_successes::EndpointSuccesses,
};

/// Delivery with its current state on this node.
#[derive(Clone, Debug)]
pub struct DeliveryDetails {
    /// Delivery; its status is `InFlight` while a request is in flight.
    pub delivery: Delivery,
    /// Wait reason, while the delivery is pending.
    pub waiting: Option<WaitReason>,
    /// Maximum number of attempts of its webhook.
    pub max_attempts: Option<u32>,
    /// Successes of its endpoint since it died. Only set for dead deliveries, and only where they are asked for.
    pub endpoint_successes: Option<EndpointSuccesses>,
}

/// Deliveries to list: a filter of the store, and conditions on the state that only this node knows.
#[derive(Clone, Debug, Default)]
pub struct DeliverySelection {
    /// Filter of the store.
    pub filter: DeliveryFilter,
    /// Whether only pending deliveries that wait for an open circuit are selected. `filter` then selects pending ones.
    pub circuit_blocked: bool,
}

impl From<DeliveryFilter> for DeliverySelection {
    fn from(filter: DeliveryFilter) -> Self {
        Self { filter, circuit_blocked: false }
    }
}

/// Number of pending deliveries that are read at a time in search of those that wait for an open circuit.
const CIRCUIT_BLOCKED_BATCH_SIZE: u32 = 250;
/// Maximum number of such batches for one page.
const MAX_CIRCUIT_BLOCKED_BATCHES: usize = 8;

impl App {
    /// Returns one delivery.
    pub async fn delivery(
        &self,
        tenant: impl Into<TenantView>,
        id: DeliveryId,
    ) -> Result<DeliveryDetails, AppError> {
        let view = tenant.into();
        let delivery = self.visible_delivery(&view, id).await?;
        let mut details = self.details_for_all(vec![delivery]).await?;
        self.add_endpoint_successes(&TenantSelection::from(&view), &mut details).await?;
        details.pop().ok_or(AppError::NotFound("delivery"))
    }

    /// Returns a delivery as stored. A delivery to a webhook that the caller may not see is reported as not found.
    async fn visible_delivery(&self, view: &TenantView, id: DeliveryId) -> Result<Delivery, AppError> {
        let missing = || AppError::NotFound("delivery");
        let found = self.store().delivery(view.id.clone(), id).await?.ok_or_else(missing)?;
        if view.tenant_managed_only {
            self.require_known_webhook(view, found.webhook_id).await.map_err(|error| match error {
                AppError::NotFound(_) => missing(),
                error => error,
            })?;
        }
        Ok(found)
    }

    /// Lists deliveries, newest event first.
    pub async fn list_deliveries(
        &self,
        tenants: impl Into<TenantSelection>,
        selection: impl Into<DeliverySelection>,
        page: PageRequest<DeliveryCursor>,
    ) -> Result<ListingPage<DeliveryDetails, DeliveryCursor>, AppError> {
        let (tenants, DeliverySelection { filter, circuit_blocked }) = (tenants.into(), selection.into());
        if circuit_blocked {
            return self.list_circuit_blocked(&tenants, filter, page).await;
        }
        if filter.status == Some(StatusFilter::Exactly(DeliveryStatus::InFlight)) {
            return self.list_in_flight(&tenants, filter, page).await;
        }
        let ListingPage { found, stopped } =
            self.read_deliveries(&tenants, DeliveryListing::All, filter, page).await?;
        Ok(ListingPage { found: self.details_for_all(found).await?, stopped })
    }

    /// Lists pending deliveries that wait for an open circuit. The store does not know what a delivery waits for, so
    /// a bounded number of pending ones is read. The page may therefore have fewer rows than its limit, although
    /// another one follows.
    async fn list_circuit_blocked(
        &self,
        tenants: &TenantSelection,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Result<ListingPage<DeliveryDetails, DeliveryCursor>, AppError> {
        let limit = page.limit as usize;
        let (mut blocked, mut skipped) = (Vec::new(), 0);
        let mut at = PageRequest { offset: 0, limit: CIRCUIT_BLOCKED_BATCH_SIZE, ..page };
        for _ in 0..MAX_CIRCUIT_BLOCKED_BATCHES {
            let listed = self.read_deliveries(tenants, DeliveryListing::All, filter.clone(), at).await?;
            let is_last = listed.found.len() < CIRCUIT_BLOCKED_BATCH_SIZE as usize;
            let last = listed
                .found
                .last()
                .map(|delivery| DeliveryCursor { event_id: delivery.event_id, delivery_id: delivery.id });
            for details in self.details_for_all(listed.found).await? {
                if details.waiting.as_ref().is_some_and(|wait| wait.on == WaitingOn::CircuitOpen) {
                    match skipped < page.offset {
                        true => skipped += 1,
                        false => blocked.push(details),
                    }
                }
            }
            if blocked.len() >= limit {
                blocked.truncate(limit);
                return Ok(ListingPage { found: blocked, stopped: None });
            }
            if is_last {
                return Ok(ListingPage { found: blocked, stopped: listed.stopped });
            }
            at = PageRequest { after: last, ..at };
        }
        Ok(ListingPage { found: blocked, stopped: at.after })
    }

    /// Lists deliveries in flight. The store knows which deliveries are leased, but only the node knows which of them
    /// are in flight, so pages of leased deliveries are read until a page of deliveries in flight is complete.
    async fn list_in_flight(
        &self,
        tenants: &TenantSelection,
        filter: DeliveryFilter,
        mut page: PageRequest<DeliveryCursor>,
    ) -> Result<ListingPage<DeliveryDetails, DeliveryCursor>, AppError> {
        let limit = page.limit as usize;
        let mut in_flight = Vec::new();
        loop {
            let listed = self.read_deliveries(tenants, DeliveryListing::All, filter.clone(), page).await?;
            let ListingPage { found, stopped } = listed;
            let is_last = found.len() < limit;
            let last = found
                .last()
                .map(|delivery| DeliveryCursor { event_id: delivery.event_id, delivery_id: delivery.id });
            let details = self.details_for_all(found).await?;
            in_flight.extend(
                details.into_iter().filter(|details| details.delivery.status == DeliveryStatus::InFlight),
            );
            if is_last || in_flight.len() >= limit {
                // A full page ends before the point at which the listing stopped: the next page starts after its last row.
                let stopped = stopped.filter(|_| in_flight.len() < limit);
                in_flight.truncate(limit);
                return Ok(ListingPage { found: in_flight, stopped });
            }
            page = PageRequest { after: last, offset: 0, ..page };
        }
    }

    /// Lists dead deliveries that were not redriven.
    pub async fn list_dead(
        &self,
        tenants: impl Into<TenantSelection>,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Result<ListingPage<DeliveryDetails, DeliveryCursor>, AppError> {
        let tenants = tenants.into();
        let ListingPage { found, stopped } =
            self.read_deliveries(&tenants, DeliveryListing::Dead, filter, page).await?;
        let mut found = self.details_for_all(found).await?;
        self.add_endpoint_successes(&tenants, &mut found).await?;
        Ok(ListingPage { found, stopped })
    }

    /// Makes a pending delivery due now, or creates the next round of an ended one. Returns the delivery to watch.
    pub async fn retry(
        &self,
        actor: &Actor,
        tenant: impl Into<TenantView>,
        id: DeliveryId,
        priority: Option<Priority>,
    ) -> Result<DeliveryDetails, AppError> {
        let view = tenant.into();
        let delivery = self.visible_delivery(&view, id).await?;
        let tenant_id = view.id;
        if delivery.status.is_final() && delivery.redriven_as.is_none() {
            self.require_receiving(&tenant_id, delivery.webhook_id).await?;
        }
        let owner = tenant_id.clone();
        let audited =
            AuditedAction { action: "delivery.retry", tenant: Some(&owner), object: Some(id.to_string()) };
        let watched = self.with_audit(actor, audited, async {
            match self.engine.retry(tenant_id.clone(), id, priority).await? {
                RedriveResult::DueNow(id) | RedriveResult::NewRound(id) => {
                    let after = Some(json!({"delivery_id": id}));
                    Ok((id, AuditChange { after, ..AuditChange::default() }))
                }
                RedriveResult::AlreadyRedriven(round) => Err(AppError::conflict(
                    ErrorCode::AlreadyRedriven,
                    format!("this delivery was redriven as {round}; retry that one instead"),
                )),
                RedriveResult::Erased => Err(AppError::conflict(
                    ErrorCode::PayloadErased,
                    "the payload of this delivery's event was erased; it cannot be sent again",
                )),
                RedriveResult::NotFound => Err(AppError::NotFound("delivery")),
            }
        });
        let watched = watched.await?;
        self.delivery(owner, watched).await
    }

    /// Cancels a delivery.
    pub async fn cancel(
        &self,
        actor: &Actor,
        tenant: impl Into<TenantView>,
        id: DeliveryId,
    ) -> Result<(), AppError> {
        let view = tenant.into();
        let details = self.delivery(&view, id).await?;
        let tenant_id = view.id;
        let owner = tenant_id.clone();
        let audited =
            AuditedAction { action: "delivery.cancel", tenant: Some(&owner), object: Some(id.to_string()) };
        self.with_audit(actor, audited, async {
            let reason = REASON_BY_REQUEST.to_owned();
            match self.engine.cancel(tenant_id, id, details.delivery.webhook_id, reason).await? {
                CancelResult::Done | CancelResult::Requested => Ok(((), AuditChange::default())),
                CancelResult::AlreadyEnded(status) => {
                    let status = status.name();
                    Err(AppError::conflict(
                        ErrorCode::DeliveryAlreadyEnded,
                        format!("the delivery is already {status}"),
                    ))
                }
                CancelResult::NotFound => Err(AppError::NotFound("delivery")),
            }
        })
        .await
    }

    /// Adds the state that only this node knows, with few reads for all deliveries.
    pub(super) async fn details_for_all(
        &self,
        found: Vec<Delivery>,
    ) -> Result<Vec<DeliveryDetails>, AppError> {
        let states = self.engine.delivery_states(&found).await?;
        Ok(found.into_iter().zip(states).map(|(delivery, state)| details(delivery, state)).collect())
    }
}

/// Adds the state that only this node knows.
fn details(mut delivery: Delivery, state: DeliveryState) -> DeliveryDetails {
    let DeliveryState { max_attempts, waiting } = state;
    if delivery.status == DeliveryStatus::Pending && waiting.is_none() {
        delivery.status = DeliveryStatus::InFlight;
    }
    DeliveryDetails { delivery, waiting, max_attempts, endpoint_successes: None }
}

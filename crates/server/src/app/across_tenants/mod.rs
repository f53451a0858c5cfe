//! Reads over all tenants, for admins: which tenants a listing covers, lookups by id, and listings. The store is read
//! across tenants only in this module.

mod health;
mod health_cache;
mod overview;

use std::vec;

use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BufferUnordered, TryCollect},
};
use redrive_core::{
    AttemptId, DeliveryId, EventId, FieldError, NotificationId, TenantId, WebhookId, webhook::Webhook,
};
use redrive_store::{
    AttemptCursor, AttemptFilter, CrossTenantEventFilter, CrossTenantFilter, DeadCounts, Delivery,
    DeliveryCursor, DeliveryFilter, EventFilter, ListedAttempt, ListingPage, PageRequest, StoreFuture,
    StoredEvent, StoredNotification,
};

pub(super) use self::health::TenantChange;
pub use self::{
    health::{AllTenantsHealth, TenantOrder, TenantSummary},
    health_cache::HealthCache,
    overview::{OverviewOfAll, WorstTenant, WorstWebhookOfAll},
};
use super::{App, AppError, Caller, TenantView, auth::ALL_TENANTS};

/// Maximum number of tenants whose data is read at the same time for one page, so that a page of many tenants leaves
/// connections of the store to other requests.
const MAX_CONCURRENT_TENANTS: usize = 4;

/// Reads of tenants that run a few at a time.
type TenantReads<F, T> = TryCollect<BufferUnordered<stream::Iter<vec::IntoIter<F>>>, Vec<T>>;

/// Runs one read per tenant, a few at a time, and returns the results in no particular order.
pub fn read_each<T, E, F: Future<Output = Result<T, E>>>(
    reads: impl IntoIterator<Item = F>,
) -> TenantReads<F, T> {
    let reads: Vec<F> = reads.into_iter().collect();
    stream::iter(reads).buffer_unordered(MAX_CONCURRENT_TENANTS).try_collect()
}

/// Permission to read the data of all tenants. It is created only by [`Caller::require_all_tenants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllTenants(());

impl Caller {
    /// Rejects callers that may view only one tenant.
    pub fn require_all_tenants(&self) -> Result<AllTenants, AppError> {
        match self.may_view_all_tenants() {
            true => Ok(AllTenants(())),
            false => Err(AppError::Forbidden("an admin key is required".into())),
        }
    }
}

/// Tenants that a listing covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantSelection {
    /// One tenant, restricted to what the caller may see.
    One(TenantView),
    /// All tenants.
    All(AllTenants),
}

impl TenantSelection {
    /// Returns the tenant; `None` for all tenants.
    pub fn tenant_id(&self) -> Option<&TenantId> {
        match self {
            Self::One(view) => Some(&view.id),
            Self::All(_) => None,
        }
    }
}

impl From<&Self> for TenantSelection {
    fn from(tenants: &Self) -> Self {
        tenants.clone()
    }
}

impl From<TenantView> for TenantSelection {
    fn from(view: TenantView) -> Self {
        Self::One(view)
    }
}

impl From<&TenantView> for TenantSelection {
    fn from(view: &TenantView) -> Self {
        Self::One(view.clone())
    }
}

impl From<TenantId> for TenantSelection {
    fn from(id: TenantId) -> Self {
        Self::One(id.into())
    }
}

impl From<&TenantId> for TenantSelection {
    fn from(id: &TenantId) -> Self {
        Self::One(id.clone().into())
    }
}

impl From<AllTenants> for TenantSelection {
    fn from(all: AllTenants) -> Self {
        Self::All(all)
    }
}

/// What a page of deliveries lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryListing {
    /// All deliveries.
    All,
    /// Dead letters.
    Dead,
}

/// Object of a tenant that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectId {
    /// Event.
    Event(EventId),
    /// Delivery.
    Delivery(DeliveryId),
    /// Webhook.
    Webhook(WebhookId),
    /// Attempt.
    Attempt(AttemptId),
}

impl App {
    /// Returns the tenants that a listing covers: all of them if an admin names `*`.
    pub async fn resolve_tenants(
        &self,
        caller: &Caller,
        named: Option<&str>,
    ) -> Result<TenantSelection, AppError> {
        if named == Some(ALL_TENANTS) && caller.may_view_all_tenants() {
            return Ok(caller.require_all_tenants()?.into());
        }
        Ok(self.resolve_tenant(caller, named).await?.into())
    }

    /// Returns the tenant that a caller acts for in a request about an object. An admin that names no tenant acts for
    /// the object's own.
    pub async fn resolve_tenant_of(
        &self,
        caller: &Caller,
        named: Option<&str>,
        object: Option<ObjectId>,
    ) -> Result<TenantView, AppError> {
        if let (None, Some(object), Ok(all)) = (named, object, caller.require_all_tenants())
            && let Some(tenant_id) = self.tenant_of(all, object).await?
        {
            return Ok(caller.view_of(tenant_id));
        }
        self.resolve_tenant(caller, named).await
    }

    /// Returns the tenant of an object, whatever the tenant.
    pub(super) async fn tenant_of(
        &self,
        _: AllTenants,
        object: ObjectId,
    ) -> Result<Option<TenantId>, AppError> {
        Ok(match object {
            ObjectId::Event(id) => self.store().tenant_of_event(id).await?,
            ObjectId::Delivery(id) => self.store().tenant_of_delivery(id).await?,
            ObjectId::Webhook(id) => self.store().tenant_of_webhook(id).await?,
            ObjectId::Attempt(id) => self.store().tenant_of_attempt(id).await?,
        })
    }

    /// Reads a page of deliveries or dead letters.
    pub(super) async fn read_deliveries(
        &self,
        tenants: &TenantSelection,
        listing: DeliveryListing,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Result<ListingPage<Delivery, DeliveryCursor>, AppError> {
        let (store, event_id) = (self.store(), filter.event_id);
        self.read_page(tenants, event_id, |tenants| {
            Ok(match (tenants, listing) {
                (TenantSelection::One(view), DeliveryListing::All) => {
                    let filter = view.restrict(filter);
                    store.list_deliveries(view.id, filter, page)
                }
                (TenantSelection::One(view), DeliveryListing::Dead) => {
                    let filter = view.restrict(filter);
                    store.list_dead(view.id, filter, page)
                }
                (TenantSelection::All(_), DeliveryListing::All) => {
                    store.list_deliveries_of_all_tenants(across(filter)?, page)
                }
                (TenantSelection::All(_), DeliveryListing::Dead) => {
                    store.list_dead_of_all_tenants(across(filter)?, page)
                }
            })
        })
        .await
    }

    /// Reads a page of events.
    pub(super) async fn read_events(
        &self,
        tenants: &TenantSelection,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> Result<ListingPage<StoredEvent, EventId>, AppError> {
        let (store, event_id) = (self.store(), filter.id);
        self.read_page(tenants, event_id, |tenants| {
            Ok(match tenants {
                TenantSelection::One(view) => store.list_events(view.id, filter, page),
                TenantSelection::All(_) => {
                    let filter = CrossTenantEventFilter::new(filter).map_err(needs_tenant)?;
                    store.list_events_of_all_tenants(filter, page)
                }
            })
        })
        .await
    }

    /// Reads a page. Over all tenants, an event in the filter selects its tenant; the page of an unknown event is empty.
    async fn read_page<'a, T, C>(
        &self,
        tenants: &TenantSelection,
        event_id: Option<EventId>,
        read: impl FnOnce(TenantSelection) -> Result<StoreFuture<'a, ListingPage<T, C>>, AppError>,
    ) -> Result<ListingPage<T, C>, AppError> {
        let (TenantSelection::All(all), Some(id)) = (tenants, event_id) else {
            return Ok(read(tenants.clone())?.await?);
        };
        match self.tenant_of(*all, ObjectId::Event(id)).await? {
            Some(tenant_id) => Ok(read(tenant_id.into())?.await?),
            None => Ok(ListingPage { found: Vec::new(), stopped: None }),
        }
    }

    /// Counts dead letters.
    pub(super) async fn read_dead_counts(
        &self,
        tenants: &TenantSelection,
        filter: DeliveryFilter,
        bounds: [redrive_core::Time; 2],
        max: usize,
    ) -> Result<DeadCounts, AppError> {
        Ok(match tenants {
            TenantSelection::One(view) => {
                let filter = view.restrict(filter);
                self.store().count_dead(view.id.clone(), filter, bounds, max).await?
            }
            TenantSelection::All(_) => {
                self.store().count_dead_of_all_tenants(across(filter)?, bounds, max).await?
            }
        })
    }

    /// Reads a page of the attempts of all tenants.
    pub(super) async fn read_all_attempts(
        &self,
        _: AllTenants,
        filter: AttemptFilter,
        page: PageRequest<AttemptCursor>,
    ) -> Result<ListingPage<ListedAttempt, AttemptCursor>, AppError> {
        Ok(self.store().list_attempts_of_all_tenants(filter, page).await?)
    }

    /// Reads a page of the webhooks of all tenants.
    pub(super) async fn read_all_webhooks(
        &self,
        _: AllTenants,
        page: PageRequest<WebhookId>,
    ) -> Result<Vec<Webhook>, AppError> {
        Ok(self.store().list_webhooks_of_all_tenants(page).await?)
    }

    /// Reads a page of the notifications of all tenants.
    pub(super) async fn read_all_notifications(
        &self,
        _: AllTenants,
        page: PageRequest<NotificationId>,
    ) -> Result<Vec<StoredNotification>, AppError> {
        Ok(self.store().list_notifications_of_all_tenants(page).await?)
    }

    /// Reads webhooks of any tenant by id, including deleted ones.
    pub(super) async fn read_webhooks_by_id(
        &self,
        _: AllTenants,
        ids: Vec<WebhookId>,
    ) -> Result<Vec<Webhook>, AppError> {
        Ok(self.store().webhooks_by_id(ids).await?)
    }
}

fn across(filter: DeliveryFilter) -> Result<CrossTenantFilter, AppError> {
    CrossTenantFilter::new(filter).map_err(needs_tenant)
}

fn needs_tenant(field: &'static str) -> AppError {
    FieldError::new(field, "needs one tenant; replace tenant_id=* with the id of a tenant").into()
}

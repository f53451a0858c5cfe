//! Events, deliveries and attempts as they are listed, of one tenant or of all.

use redrive_core::{
    AttemptId, DeliveryId, EventId, NotificationId, TenantId, Time, WebhookId, webhook::Webhook,
};

use crate::{
    ActivityLimits, AttemptCount, AttemptCursor, AttemptFilter, CrossTenantEventFilter, CrossTenantFilter,
    DeadCounts, Delivery, DeliveryCursor, DeliveryFilter, EventFilter, ListedAttempt, ListingPage,
    PageRequest, PayloadPage, PayloadScan, StoreFuture, StoredAttempt, StoredEvent, StoredNotification,
    TenantActivity, WaitingCount, WebhookRuntime,
};

/// Events, deliveries and attempts, always of one tenant.
pub trait History: Send + Sync {
    /// Returns an event.
    fn event(&self, tenant_id: TenantId, id: EventId) -> StoreFuture<'_, Option<StoredEvent>>;
    /// Returns the ids of the newest edited copies of an event.
    fn edited_copies(&self, tenant_id: TenantId, id: EventId, limit: usize) -> StoreFuture<'_, Vec<EventId>>;
    /// Lists events, newest first. A cursor stays valid, and the order after it stays the same, during concurrent
    /// writes.
    fn list_events(
        &self,
        tenant_id: TenantId,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> StoreFuture<'_, ListingPage<StoredEvent, EventId>>;
    /// Reads payloads, newest event first, in a step of bounded size.
    fn scan_payloads(&self, tenant_id: TenantId, scan: PayloadScan) -> StoreFuture<'_, PayloadPage>;
    /// Returns a delivery.
    fn delivery(&self, tenant_id: TenantId, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>>;
    /// Lists deliveries, newest event first.
    fn list_deliveries(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>>;
    /// Lists dead deliveries that were not redriven, newest event first.
    fn list_dead(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>>;
    /// Counts dead letters, at most `max` of them. Of the filter, only webhooks, event types, failure categories,
    /// reasons, recoverability and times apply. `bounds` are times from the latest to the earliest that separate the
    /// age groups.
    fn count_dead(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        bounds: [Time; 2],
        max: usize,
    ) -> StoreFuture<'_, DeadCounts>;
    /// Counts the dead letters of a tenant up to `max`.
    fn count_dead_up_to(&self, tenant_id: TenantId, max: usize) -> StoreFuture<'_, usize>;
    /// Returns the attempts of a delivery, first to last, or `None` if there is no such delivery.
    fn attempts(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
    ) -> StoreFuture<'_, Option<Vec<StoredAttempt>>>;
    /// Returns the attempts of all deliveries of an event, oldest delivery first, or `None` if there is no such event.
    fn attempts_of_event(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
    ) -> StoreFuture<'_, Option<Vec<StoredAttempt>>>;
}

/// The listing of attempts.
pub trait Attempts: Send + Sync {
    /// Lists attempts, newest first; see [`AttemptCursor`]. A cursor stays valid, and the order after it stays the same,
    /// during concurrent writes.
    fn list_attempts(
        &self,
        tenant_id: TenantId,
        filter: AttemptFilter,
        page: PageRequest<AttemptCursor>,
    ) -> StoreFuture<'_, ListingPage<ListedAttempt, AttemptCursor>>;
    /// Counts attempts to a webhook by status code and failure category: those in the attempt index, which has every
    /// attempt other than prompt successes. Counts the newest `max` that were sent at `from` or later.
    fn count_indexed_attempts(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        from: Time,
        max: usize,
    ) -> StoreFuture<'_, Vec<AttemptCount>>;
    /// Returns an attempt.
    fn attempt(&self, tenant_id: TenantId, id: AttemptId) -> StoreFuture<'_, Option<StoredAttempt>>;
    /// Returns the tenant of an attempt, whatever the tenant: for admins only.
    fn tenant_of_attempt(&self, id: AttemptId) -> StoreFuture<'_, Option<TenantId>>;
}

/// Reads over all tenants, for admins only: every other read of events, deliveries and webhooks names its tenant.
pub trait AcrossTenants: Send + Sync {
    /// Returns the tenant of an event.
    fn tenant_of_event(&self, id: EventId) -> StoreFuture<'_, Option<TenantId>>;
    /// Returns the tenant of a delivery.
    fn tenant_of_delivery(&self, id: DeliveryId) -> StoreFuture<'_, Option<TenantId>>;
    /// Returns the tenant of a webhook, including a deleted one.
    fn tenant_of_webhook(&self, id: WebhookId) -> StoreFuture<'_, Option<TenantId>>;
    /// Lists the events of all tenants, newest first.
    fn list_events_of_all_tenants(
        &self,
        filter: CrossTenantEventFilter,
        page: PageRequest<EventId>,
    ) -> StoreFuture<'_, ListingPage<StoredEvent, EventId>>;
    /// Lists the deliveries of all tenants by id, which begins with the time of their event, newest first.
    fn list_deliveries_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>>;
    /// Lists the dead deliveries of all tenants that were not redriven, in the same order.
    fn list_dead_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>>;
    /// Counts the dead letters of all tenants as [`History::count_dead`] does for one.
    fn count_dead_of_all_tenants(
        &self,
        filter: CrossTenantFilter,
        bounds: [Time; 2],
        max: usize,
    ) -> StoreFuture<'_, DeadCounts>;
    /// Lists the attempts of all tenants as [`Attempts::list_attempts`] does for one. A prompt success is placed by the
    /// id of its delivery, which begins with the time of its event.
    fn list_attempts_of_all_tenants(
        &self,
        filter: AttemptFilter,
        page: PageRequest<AttemptCursor>,
    ) -> StoreFuture<'_, ListingPage<ListedAttempt, AttemptCursor>>;
    /// Lists the webhooks of all tenants, newest first.
    fn list_webhooks_of_all_tenants(&self, page: PageRequest<WebhookId>) -> StoreFuture<'_, Vec<Webhook>>;
    /// Lists the notifications of all tenants, newest first.
    fn list_notifications_of_all_tenants(
        &self,
        page: PageRequest<NotificationId>,
    ) -> StoreFuture<'_, Vec<StoredNotification>>;
    /// Returns up to `limit` webhooks whose circuits are not closed, or were set manually, by tenant.
    fn circuits_of_all_tenants(&self, limit: usize) -> StoreFuture<'_, Vec<WebhookRuntime>>;
    /// Returns the tenants after this one by id, each with its activity since a minute.
    fn tenant_activity(
        &self,
        after: Option<TenantId>,
        since: Time,
        limits: ActivityLimits,
    ) -> StoreFuture<'_, Vec<TenantActivity>>;
    /// Returns up to `limit` webhooks after this one that have lanes, with the number of their waiting deliveries,
    /// counted up to `max_each`.
    fn waiting_by_webhook(
        &self,
        after: Option<WebhookId>,
        limit: usize,
        max_each: usize,
    ) -> StoreFuture<'_, Vec<WaitingCount>>;
}

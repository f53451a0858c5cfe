//! Pruning, erasure and archiving of old data.

use redrive_core::{DeliveryId, EventId, TenantId, Time, WebhookId, tenancy::TenantRules};

use crate::{ArchiveObject, EraseResult, PartitionDrop, PruneProgress, PruneRequest, StoreFuture};

/// Maintenance and health.
pub trait Maintenance: Send + Sync {
    /// Prunes up to `limit` expired idempotency keys of events and up to `limit` of other objects.
    fn prune_idempotency_keys(&self, now: Time, limit: usize) -> StoreFuture<'_, usize>;
    /// Creates the partitions for events up to this time, if the store has partitions.
    fn ensure_partitions(&self, until: Time) -> StoreFuture<'_, ()>;
}

/// Permanent erasure of payloads; the history stays.
pub trait Erase: Send + Sync {
    /// Erases an event's payload and metadata. From then on it gets no new round.
    fn erase(&self, tenant_id: TenantId, event_id: EventId, now: Time) -> StoreFuture<'_, EraseResult>;
    /// Erases the stored responses to an event, which may repeat its payload, of up to `limit` deliveries. Returns of
    /// how many.
    fn erase_responses(&self, tenant_id: TenantId, event_id: EventId, limit: usize)
    -> StoreFuture<'_, usize>;
    /// Returns the events with a subject whose payloads are not erased, oldest first.
    fn events_to_erase(
        &self,
        tenant_id: TenantId,
        subject: String,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventId>>;
}

/// Pruning of old data in small steps. An event with a pending delivery is never pruned.
pub trait Prune: Send + Sync {
    /// Returns the tenants after this one with their rules, including deleted ones.
    fn retention_by_tenant(
        &self,
        after: Option<TenantId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(TenantId, TenantRules)>>;
    /// Returns when the oldest stored event of a tenant was published.
    fn oldest_event(&self, tenant_id: TenantId) -> StoreFuture<'_, Option<Time>>;
    /// Prunes events that were published before a time, oldest first, with their deliveries and attempts. Skips
    /// events with a pending delivery.
    fn prune_events(&self, request: PruneRequest<EventId>) -> StoreFuture<'_, PruneProgress<EventId>>;
    /// Prunes dead letters that died before a time, with their attempts. Their events stay.
    fn prune_dead(&self, request: PruneRequest<DeliveryId>) -> StoreFuture<'_, PruneProgress<DeliveryId>>;
    /// Returns the webhooks after this one that have circuit periods, with their tenants.
    fn webhooks_with_periods(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, TenantId)>>;
    /// Prunes up to `limit` circuit periods that ended before the time given for each webhook.
    fn prune_periods(&self, ended_before: Vec<(WebhookId, Time)>, limit: usize) -> StoreFuture<'_, usize>;
    /// Returns whether events are stored in monthly partitions that can be dropped as a whole.
    fn has_partitions(&self) -> bool;
    /// Drops the oldest partition whose month ended before this time, unless it has a pending delivery; with
    /// `only_empty`, unless it has any row. One step deletes at most about `rows` dependent rows of other tables.
    fn drop_oldest_partition(
        &self,
        before: Time,
        only_empty: bool,
        rows: usize,
    ) -> StoreFuture<'_, PartitionDrop>;
    /// Returns up to `bytes` of unused space to the operating system, if the store does not do so by itself. Returns
    /// how many bytes.
    fn reclaim_space(&self, bytes: usize) -> StoreFuture<'_, usize>;
}

/// The archive outbox: pruned rows that wait to be archived.
pub trait ArchiveOutbox: Send + Sync {
    /// Returns the object to archive next: one that was already started, or else the oldest waiting rows of one day,
    /// about `max` bytes. Returns `None` if less than `min` bytes wait. The object stays the same until it is stored.
    fn next_object(&self, min: usize, max: usize) -> StoreFuture<'_, Option<ArchiveObject>>;
    /// Deletes an object from the outbox after it was archived.
    fn object_stored(&self, name: String) -> StoreFuture<'_, ()>;
}

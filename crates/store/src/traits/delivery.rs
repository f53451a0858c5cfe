//! Deliveries: publishing, claiming, leases, outcomes, and what is done with them later.

use std::sync::Arc;

use redrive_core::{
    DeliveryId, EventId, OperationId, TenantId, Time, WebhookId, delivery::bulk_operation::OperationState,
    delivery::lane::Priority, webhook::Webhook,
};

use crate::{
    BatchProgress, CancelResult, ClaimedDelivery, CollectProgress, Completion, DueLanes, Epoch, EventSummary,
    LaneCapacity, LaneClaim, NewEvent, NewRound, Operation, OperationStep, OutcomeRecord, Owned, PageRequest,
    PublishResult, RecordResult, RedriveOptions, RedriveResult, ReplayResult, Scan, ScanPage, StepResult,
    StoreFuture, TicketEntry,
};

/// Publishing events.
pub trait Publish: Send + Sync {
    /// Stores an event and all its deliveries, or nothing. The commit is shared with all other writes that wait.
    fn publish(&self, event: NewEvent, done: Completion<PublishResult>);
}

/// Recording outcomes.
pub trait Record: Send + Sync {
    /// Records an outcome of a delivery that the caller's epoch has leased.
    fn record(&self, outcome: Arc<OutcomeRecord>, done: Completion<RecordResult>);
}

/// Claiming waiting deliveries.
pub trait Claim: Send + Sync {
    /// Returns the lanes of these pools that have a due delivery, are not claimed or blocked, and whose webhook is not
    /// assigned to another epoch.
    fn due_lanes(
        &self,
        epoch: Epoch,
        pools: Vec<String>,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, DueLanes>;
    /// Leases due deliveries from these lanes, up to the limit of each lane and `max_bytes` of payload in total. A
    /// lane with more due deliveries is claimed by this epoch until a claim from it finds no more. An ordered lane is
    /// claimed from its first delivery on, and not at all while any of it is leased; if the caller has the lease and
    /// more is due, the lane is claimed and `has_more_due` is true.
    ///
    /// An `exclusive` claim that leases a delivery assigns the webhook to the caller: from then on no other node can
    /// claim from it, until the caller releases the assignment or is rescued.
    fn claim(
        &self,
        epoch: Epoch,
        now: Time,
        lanes: Vec<LaneCapacity>,
        max_bytes: usize,
    ) -> StoreFuture<'_, Vec<LaneClaim>>;
    /// Leases these deliveries if they wait in the named lane, are due by `due_before`, and fit into `max_bytes` of payload.
    /// Skips deliveries that are leased, ended or ordered, that belong to a blocked webhook or one assigned to another
    /// node, or that another node is claiming concurrently. Claims no lane.
    fn claim_tickets(
        &self,
        epoch: Epoch,
        now: Time,
        due_before: Time,
        wanted: Vec<TicketEntry>,
        max_bytes: usize,
    ) -> StoreFuture<'_, Vec<ClaimedDelivery>>;
    /// Releases the assignments of these webhooks and all their lanes that the epoch has claimed.
    fn release_assignments(&self, epoch: Epoch, webhooks: Vec<WebhookId>) -> StoreFuture<'_, ()>;
}

/// Leases that a node has.
pub trait Leases: Send + Sync {
    /// Returns leased deliveries to `waiting`, each due at the given time. Their lanes are no longer claimed.
    fn release(&self, epoch: Epoch, now: Time, deliveries: Vec<(DeliveryId, Time)>)
    -> StoreFuture<'_, usize>;
    /// Returns leased deliveries whose tasks panicked, or whose outcomes cannot be stored, to `waiting` as
    /// [`Leases::release`] does, and counts an abnormal release and a crash for each.
    fn release_crashed(
        &self,
        epoch: Epoch,
        now: Time,
        deliveries: Vec<(DeliveryId, Time)>,
    ) -> StoreFuture<'_, usize>;
    /// Returns what an epoch owns: up to `limit` leases after this one by id and, without `after`, up to `limit` lanes
    /// that it has claimed and `limit` webhooks that are assigned to it.
    fn owned_by(&self, epoch: Epoch, after: Option<DeliveryId>, limit: usize) -> StoreFuture<'_, Owned>;
    /// Records that a delivery with an earlier abnormal release is about to be sent. Returns `false` if the lease is lost.
    fn mark_sending(&self, epoch: Epoch, delivery_id: DeliveryId) -> StoreFuture<'_, bool>;
}

/// Retry, replay and cancellation.
pub trait Redrive: Send + Sync {
    /// Makes a pending delivery due now, or creates a new round of an ended one.
    fn retry(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        options: RedriveOptions,
        now: Time,
    ) -> StoreFuture<'_, RedriveResult>;
    /// Creates a new round for each webhook, or none at all.
    fn replay(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
        rounds: Vec<NewRound>,
        priority: Option<Priority>,
        now: Time,
    ) -> StoreFuture<'_, ReplayResult>;
    /// Cancels a delivery.
    fn cancel(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        reason: String,
        now: Time,
    ) -> StoreFuture<'_, CancelResult>;
}

/// Bulk operations. One node at a time runs each; another node can resume it where it stopped.
pub trait Operations: Send + Sync {
    /// Stores a new operation.
    fn create_operation(&self, operation: Operation) -> StoreFuture<'_, ()>;
    /// Returns an operation.
    fn operation(&self, tenant_id: TenantId, id: OperationId) -> StoreFuture<'_, Option<Operation>>;
    /// Lists a tenant's operations, newest first.
    fn list_operations(
        &self,
        tenant_id: TenantId,
        page: PageRequest<OperationId>,
    ) -> StoreFuture<'_, Vec<Operation>>;
    /// Changes the state of an operation; returns `false` if it is not in the expected state.
    fn set_operation_state(
        &self,
        tenant_id: TenantId,
        id: OperationId,
        from: OperationState,
        to: OperationState,
        now: Time,
    ) -> StoreFuture<'_, bool>;
    /// Claims up to `limit` operations that are due and that no other live node runs, without those in `except`.
    fn claim_operations(
        &self,
        epoch: Epoch,
        except: Vec<OperationId>,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<Operation>>;
    /// Stores the counts of an operation: its items, and the matching deliveries that were delivered before.
    fn set_operation_counts(
        &self,
        id: OperationId,
        epoch: Epoch,
        total: u64,
        already_delivered: u64,
    ) -> StoreFuture<'_, ()>;
    /// Applies one step of an operation.
    fn step_operation(&self, step: OperationStep) -> StoreFuture<'_, StepResult>;
    /// Reads up to `limit` deliveries that an operation has queued, and records the results of those that have ended.
    fn collect_operation_results(
        &self,
        id: OperationId,
        epoch: Epoch,
        after: Option<DeliveryId>,
        limit: usize,
    ) -> StoreFuture<'_, CollectProgress>;
    /// Completes an operation whose results are all known, and releases it.
    fn complete_operation(&self, id: OperationId, epoch: Epoch, now: Time) -> StoreFuture<'_, ()>;
    /// Scans deliveries, oldest event first.
    fn scan_deliveries(&self, tenant_id: TenantId, scan: Scan) -> StoreFuture<'_, ScanPage>;
    /// Scans deliveries as [`Operations::scan_deliveries`] does, for a user who waits: on the connections of users, and
    /// with a limited number of concurrent reads per tenant.
    fn scan_deliveries_for_user(&self, tenant_id: TenantId, scan: Scan) -> StoreFuture<'_, ScanPage>;
    /// Scans events, oldest first.
    fn scan_events(
        &self,
        tenant_id: TenantId,
        from: Option<Time>,
        to: Option<Time>,
        after: Option<EventId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventSummary>>;
    /// Prunes up to `limit` operations that ended before this time.
    fn prune_operations(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// The waiting deliveries of inactive webhooks, which are cancelled in steps.
pub trait Cancellations: Send + Sync {
    /// Returns the webhooks whose waiting deliveries are still to be cancelled, without their confidential fields.
    fn webhooks_to_cancel_for(&self) -> StoreFuture<'_, Vec<Webhook>>;
    /// Cancels up to `limit` waiting deliveries of a webhook that is disabled or deleted.
    fn cancel_pending(
        &self,
        webhook_id: WebhookId,
        reason: String,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, BatchProgress>;
}

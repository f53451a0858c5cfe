//! The store, Redrive's source of truth, behind narrow traits whose methods are domain verbs.
//!
//! Every backend passes the same conformance suite. Backends contain no policy: the engine decides, and the
//! backend writes each decision atomically. A backend never reads a clock: `now` is an argument.

mod access_path;
pub mod archive;
mod attempt_listing;
mod batch;
mod codes;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod copy;
mod error;
mod model;
mod overdue;
pub mod postgres;
mod sealed;
mod sequence;
pub mod sqlite;
mod tenant_reads;

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc};

use redrive_core::{
    AttemptId, AuditId, DeliveryId, EventId, KeyId, NotificationId, OperationId, TenantId, Time, WebhookId,
    cluster::clock_discipline::ClockStep,
    delivery::{bulk_operation::OperationState, lane::Priority},
    maintenance::durability::Durability,
    notification::{NotificationKind, Occurrence, confirmation::ConfirmedBy, grouping::GroupIntervals},
    protection::breaker::SavedCircuit,
    security::vault::MasterKeyId,
    statistics::traffic::{Resolution, Traffic},
    tenancy::TenantRules,
    webhook::{Webhook, failures::FailingRule},
};

pub use error::{OpenError, StoreError};
pub use model::*;
pub use sequence::{PublishSequence, SequencePosition};

/// Future result of a store operation.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Callback of a batched operation, called once; it must not block. It runs even if the caller has disconnected,
/// so that a committed lease always reaches the dispatcher.
pub type Completion<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;

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

/// Cluster membership, and the rescue of dead nodes' leases.
pub trait Nodes: Send + Sync {
    /// Takes a new epoch.
    fn join(&self, node: NewNode, now: Time) -> StoreFuture<'_, Epoch>;
    /// Records a heartbeat of an epoch and returns the nodes of the cluster.
    fn heartbeat(&self, epoch: Epoch) -> StoreFuture<'_, ClusterView>;
    /// Returns whether several processes may use this store concurrently. If not, every other epoch has ended.
    fn is_shared(&self) -> bool;
    /// Returns every other epoch that still has a row, a lease or a lane.
    fn other_epochs(&self, own_epoch: Epoch) -> StoreFuture<'_, Vec<Epoch>>;
    /// Ends an epoch whose heartbeat count is still the given one. Returns `false` if it has changed, or the epoch has
    /// already ended.
    fn end_epoch(&self, epoch: Epoch, heartbeats: i64) -> StoreFuture<'_, bool>;
    /// Ends an epoch and returns up to `limit` of its deliveries to `waiting`, due now.
    fn rescue(&self, dead: Epoch, now: Time, limit: usize) -> StoreFuture<'_, BatchProgress>;
}

/// Runtime state that blocks webhooks: stored once per webhook, never on its deliveries.
pub trait RuntimeState: Send + Sync {
    /// Returns every webhook that has an unclosed circuit, a pause after a 429 or a series of failures.
    fn list_runtime(&self) -> StoreFuture<'_, Vec<WebhookRuntime>>;
    /// Returns the state of these webhooks only, including webhooks whose circuit has closed, because the generation of
    /// the closed circuit is needed to compare versions.
    fn get_runtime(&self, webhooks: Vec<WebhookId>) -> StoreFuture<'_, Vec<WebhookRuntime>>;
    /// Stores a circuit after a transition. Returns `false` if a newer generation is stored, which is kept. An
    /// occurrence is recorded with it if the stored circuit makes that transition
    /// (`core::notification::for_transition`).
    fn set_circuit(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        circuit: SavedCircuit,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, bool>;
    /// Reports a webhook as failing if its series of failures is by now (`core::webhook::failures`), with an occurrence.
    /// Returns `false` if it is not, or was reported before.
    fn report_failing(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        rule: FailingRule,
        now: Time,
    ) -> StoreFuture<'_, bool>;
}

/// Statistics of webhooks and tenants, per minute and per hour.
pub trait Statistics: Send + Sync {
    /// Adds minute rollups of webhooks and rollups of tenants, atomically.
    fn add_rollups(&self, minutes: Vec<MinuteRollup>, traffic: Vec<TenantRollup>) -> StoreFuture<'_, ()>;
    /// Returns the minute rollups of these webhooks from this time on, by webhook, oldest first. `for_tenant` is the
    /// tenant that asked; `None` for the engine itself.
    fn rollups(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> StoreFuture<'_, Vec<MinuteRollup>>;
    /// Returns the last success of each of these webhooks, however long ago it was; webhooks without one are left out.
    /// It is exact while the minute rollup of the success is kept, and at most a minute too early from then on.
    fn last_successes(
        &self,
        for_tenant: TenantId,
        webhooks: Vec<WebhookId>,
    ) -> StoreFuture<'_, Vec<(WebhookId, Time)>>;
    /// Returns a tenant's rollups per minute or hour from this time on, oldest first.
    fn traffic(
        &self,
        tenant_id: TenantId,
        resolution: Resolution,
        from: Time,
    ) -> StoreFuture<'_, Vec<(Time, Traffic)>>;
    /// Returns the sums of all tenants' rollups per minute or hour from this time on, oldest first: for admins only.
    fn traffic_of_all_tenants(
        &self,
        resolution: Resolution,
        from: Time,
    ) -> StoreFuture<'_, Vec<(Time, Traffic)>>;
    /// Returns the number of failed attempts from this time on, by webhook. Reads at most the latest `max` minute
    /// rollups with a failure.
    fn failures(&self, tenant_id: TenantId, from: Time, max: usize) -> StoreFuture<'_, WebhookFailures>;
    /// Prunes up to `limit` minute rollups of webhooks before this time.
    fn prune_rollups(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
    /// Prunes up to `limit` tenant rollups whose retention has ended.
    fn prune_traffic(&self, now: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// Rankings of the tenants and webhooks of the whole store, for operators. Each call reads counters of all tenants, so
/// callers run one at a time and not for each request.
pub trait Rankings: Send + Sync {
    /// Returns the `max` tenants and the `max` webhooks with the most dead letters.
    fn rank_dead_letters(&self, max: usize) -> StoreFuture<'_, DeadLetterRanking>;
    /// Returns the tenants and webhooks with the most failed attempts beyond what is tolerated, and the tenants with the
    /// most dead deliveries, from a minute on.
    fn rank_traffic(&self, request: TrafficRankingRequest) -> StoreFuture<'_, TrafficRanking>;
    /// Returns the `max` circuits, of those that are not closed, whose webhooks have had no success for the longest time.
    fn longest_unclosed_circuits(&self, max: usize) -> StoreFuture<'_, Vec<UnclosedCircuit>>;
}

/// Webhooks, and the version that fan-out is checked against.
pub trait Webhooks: Send + Sync {
    /// Stores a new webhook.
    fn create_webhook(&self, webhook: Webhook) -> StoreFuture<'_, UpdateResult>;
    /// Replaces a webhook that has not changed since `revision`. If it is disabled or deleted now, its waiting
    /// deliveries are cancelled from then on. An occurrence is recorded with the change.
    fn change_webhook(
        &self,
        webhook: Webhook,
        revision: i64,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, UpdateResult>;
    /// Stores a new webhook (`revision` is `None`), or replaces one that has not changed since then, together with its
    /// circuit. Nothing is stored if the webhook has changed or a newer circuit is stored.
    fn store_webhook_with_circuit(
        &self,
        webhook: Webhook,
        revision: Option<i64>,
        circuit: SavedCircuit,
    ) -> StoreFuture<'_, UpdateResult>;
    /// Returns a webhook unless it was deleted.
    fn webhook(&self, tenant_id: TenantId, id: WebhookId) -> StoreFuture<'_, Option<Versioned>>;
    /// Returns webhooks of a tenant by id, including deleted ones: for the tenant's own users.
    fn tenant_webhooks_by_id(
        &self,
        tenant_id: TenantId,
        ids: Vec<WebhookId>,
    ) -> StoreFuture<'_, Vec<Webhook>>;
    /// Lists a tenant's webhooks, newest first.
    fn list_webhooks(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        page: PageRequest<WebhookId>,
    ) -> StoreFuture<'_, Vec<Webhook>>;
}

/// The catalogue of event types. Every change is a change of the tenant's configuration.
pub trait EventTypes: Send + Sync {
    /// Registers an event type, unless the tenant already has `max`.
    fn create_event_type(&self, event_type: EventType, max: usize) -> StoreFuture<'_, RegisterResult>;
    /// Replaces an event type that has not changed since `revision`.
    fn change_event_type(&self, event_type: EventType, revision: i64) -> StoreFuture<'_, UpdateResult>;
    /// Deletes an event type; returns `false` if there is none of this name.
    fn delete_event_type(&self, tenant_id: TenantId, name: String) -> StoreFuture<'_, bool>;
    /// Returns an event type.
    fn event_type(&self, tenant_id: TenantId, name: String) -> StoreFuture<'_, Option<VersionedType>>;
    /// Lists a tenant's event types by name.
    fn list_event_types(
        &self,
        tenant_id: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> StoreFuture<'_, Vec<EventType>>;
}

/// Tenants and API keys.
pub trait Tenancy: Send + Sync {
    /// Creates a tenant; returns `false` if it exists.
    fn create_tenant(&self, tenant: Tenant) -> StoreFuture<'_, bool>;
    /// Replaces a tenant's name and rules; returns `false` if there is no such tenant. Earlier fan-outs are refused.
    fn change_tenant(&self, tenant: Tenant) -> StoreFuture<'_, bool>;
    /// Deletes a tenant: its keys are revoked, its publishes are refused, and its name is never used again. Its
    /// webhooks must have been deleted before. Returns `false` if there is no such tenant.
    fn delete_tenant(&self, id: TenantId, now: Time) -> StoreFuture<'_, bool>;
    /// Returns a tenant.
    fn tenant(&self, id: TenantId) -> StoreFuture<'_, Option<Tenant>>;
    /// Lists tenants by name.
    fn list_tenants(&self, page: PageRequest<TenantId>) -> StoreFuture<'_, Vec<Tenant>>;
    /// Stores a key; returns `false` if its tenant does not exist.
    fn create_key(&self, key: ApiKey) -> StoreFuture<'_, bool>;
    /// Returns every key that is not revoked.
    fn live_keys(&self) -> StoreFuture<'_, Vec<ApiKey>>;
    /// Lists the keys of a tenant, or the admin keys if `None`; including revoked ones, newest first.
    fn list_keys(
        &self,
        tenant_id: Option<TenantId>,
        page: PageRequest<KeyId>,
    ) -> StoreFuture<'_, Vec<ApiKey>>;
    /// Revokes a key; returns `false` if the tenant has no such live key.
    fn revoke_key(&self, tenant_id: Option<TenantId>, id: KeyId, now: Time) -> StoreFuture<'_, bool>;
    /// Records when keys were last used.
    fn record_key_use(&self, uses: Vec<(KeyId, Time)>) -> StoreFuture<'_, ()>;
    /// Prunes up to `limit` keys of portal sessions that ended before this time.
    fn prune_sessions(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// Browser sessions. Revoking a key or deleting a tenant deletes the sessions that were started with the keys. A user
/// counts as a key, identified by `key_hash`.
pub trait BrowserSessions: Send + Sync {
    /// Stores a session and deletes the oldest of the same key, so that at most `max_per_key` remain. Returns `false` and
    /// stores nothing if a session of the same login of a user exists.
    fn create_browser_session(&self, session: BrowserSession, max_per_key: usize) -> StoreFuture<'_, bool>;
    /// Returns the session with this id, whether expired or not.
    fn browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, Option<BrowserSession>>;
    /// Deletes a session; returns `false` if there is none with this id.
    fn delete_browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, bool>;
    /// Returns the sessions of a key that expire after `now`, newest first.
    fn browser_sessions_of_key(&self, key_hash: [u8; 32], now: Time) -> StoreFuture<'_, Vec<BrowserSession>>;
    /// Lists the sessions of users, whatever the user, that expire after `now`, newest first: for admins only.
    fn list_user_sessions(
        &self,
        now: Time,
        page: PageRequest<SessionCursor>,
    ) -> StoreFuture<'_, Vec<BrowserSession>>;
    /// Deletes all sessions of a key, and returns their number.
    fn delete_browser_sessions_of_key(&self, key_hash: [u8; 32]) -> StoreFuture<'_, usize>;
    /// Deletes up to `limit` sessions that expired before this time, and returns their number.
    fn prune_browser_sessions(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// Events, deliveries and attempts, always of one tenant.
pub trait History: Send + Sync {
    /// Returns an event.
    fn event(&self, tenant_id: TenantId, id: EventId) -> StoreFuture<'_, Option<StoredEvent>>;
    /// Lists events, newest first. A cursor stays valid, and the order after it stays the same, during concurrent
    /// Returns the ids of the newest edited copies of an event.
    fn edited_copies(&self, tenant_id: TenantId, id: EventId, limit: usize) -> StoreFuture<'_, Vec<EventId>>;
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

/// Encrypted fields of webhooks, and their master keys.
pub trait Secrets: Send + Sync {
    /// Returns the master keys that webhooks are encrypted with.
    fn encryption_keys(&self) -> StoreFuture<'_, Vec<MasterKeyId>>;
    /// Re-encrypts those of the next `limit` webhooks after this one that do not use the current master key.
    fn rewrap(&self, after: Option<WebhookId>, limit: usize) -> StoreFuture<'_, RewrapProgress>;
}

/// The audit log. Entries are only ever added, and pruned when they are old.
pub trait Audit: Send + Sync {
    /// Records that a change is about to be made.
    fn begin_audit(&self, entry: AuditEntry) -> StoreFuture<'_, ()>;
    /// Records the result of a change, once.
    fn finish_audit(&self, id: AuditId, end: AuditEnd) -> StoreFuture<'_, ()>;
    /// Lists the entries of a tenant, or of all if `None`, newest first.
    fn list_audit(&self, filter: AuditFilter, page: PageRequest<AuditId>)
    -> StoreFuture<'_, Vec<AuditEntry>>;
    /// Prunes up to `limit` entries before this time.
    fn prune_audit(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// Email addresses that receive notifications: their confirmation, and the number of emails sent. Addresses are
/// deleted with their tenant; usage of limits is not, so that deleting a tenant resets no limit.
pub trait EmailAddresses: Send + Sync {
    /// Requests a confirmation email for an address, within the limits of the reservation. An address without a
    /// request is stored only if the limits allow one.
    fn request_confirmation(
        &self,
        reservation: EmailReservation,
    ) -> StoreFuture<'_, ConfirmationRequestResult>;
    /// Returns when the next requested confirmation email is to be sent.
    fn next_confirmation(&self) -> StoreFuture<'_, Option<Time>>;
    /// Claims up to `limit` requested confirmation emails that are due. Each is claimed once: if its node dies, it is
    /// not sent, so that a crash never sends more than the limits allow.
    fn take_confirmations(&self, now: Time, limit: usize) -> StoreFuture<'_, Vec<EmailAddress>>;
    /// Schedules a confirmation email again that was claimed and certainly not sent.
    fn retry_confirmation(&self, tenant_id: TenantId, address: String, send_at: Time) -> StoreFuture<'_, ()>;
    /// Marks an address as confirmed. Returns `false` if it already was, or there is no such tenant.
    fn confirm_address(
        &self,
        tenant_id: TenantId,
        address: String,
        by: ConfirmedBy,
        now: Time,
    ) -> StoreFuture<'_, bool>;
    /// Returns the state of these addresses of a tenant, by address: for the tenant's own users.
    fn email_addresses(
        &self,
        tenant_id: TenantId,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<EmailAddress>>;
    /// Returns the state of these addresses of a tenant, by address: for the notification sender, which does not wait
    /// for the reads of the tenant's users.
    fn recipient_addresses(
        &self,
        tenant_id: TenantId,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<EmailAddress>>;
    /// Counts an email against its limits, or returns which limit is reached.
    fn reserve_email(&self, reservation: EmailReservation) -> StoreFuture<'_, ReserveResult>;
    /// Releases the reservation of an email that was not sent.
    fn release_email(&self, reservation: EmailReservation) -> StoreFuture<'_, ()>;
    /// Deletes up to `limit` unconfirmed addresses whose last request was before `unconfirmed_before`, and up to `limit`
    /// records of usage that were last changed before `usage_before`.
    fn prune_email_addresses(
        &self,
        unconfirmed_before: Time,
        usage_before: Time,
        limit: usize,
    ) -> StoreFuture<'_, usize>;
}

/// Unsubscriptions of email addresses. They are deleted with their tenant.
pub trait Unsubscriptions: Send + Sync {
    /// Unsubscribes an address from a kind. Returns `false` if it already was unsubscribed, or there is no such
    /// tenant.
    fn unsubscribe(
        &self,
        tenant_id: TenantId,
        address: String,
        kind: NotificationKind,
        now: Time,
    ) -> StoreFuture<'_, bool>;
    /// Resubscribes an address to a kind, or to all kinds if `None`. Returns the number of kinds changed.
    fn resubscribe(
        &self,
        tenant_id: TenantId,
        address: String,
        kind: Option<NotificationKind>,
    ) -> StoreFuture<'_, usize>;
    /// Returns those of these addresses that are unsubscribed from a kind.
    fn unsubscribed(
        &self,
        tenant_id: TenantId,
        kind: NotificationKind,
        addresses: Vec<String>,
    ) -> StoreFuture<'_, Vec<String>>;
    /// Lists all unsubscriptions of a tenant, by address and kind.
    fn list_unsubscribed(
        &self,
        tenant_id: TenantId,
        page: PageRequest<UnsubscriptionCursor>,
    ) -> StoreFuture<'_, Vec<Unsubscription>>;
}

/// Notification groups with their pending occurrences, and the notifications created from them.
pub trait Notifications: Send + Sync {
    /// Records occurrences that belong to no other change.
    fn record_occurrences(&self, occurrences: Vec<Occurrence>) -> StoreFuture<'_, ()>;
    /// Returns the earliest time at which a notification may have to be created or sent. A group may have to wait
    /// longer.
    fn next_notification_at(&self) -> StoreFuture<'_, Option<Time>>;
    /// Creates notifications of the groups that are due, at most one per id in `new_ids`, and suppresses each group until
    /// its interval has passed. Returns their number. See `core::notification::grouping`.
    fn create_notifications(
        &self,
        now: Time,
        intervals: GroupIntervals,
        new_ids: Vec<NotificationId>,
    ) -> StoreFuture<'_, usize>;
    /// Claims notifications that are due to be sent, oldest first. No other node can claim them until `claimed_until`,
    /// unless the result recorded for them sets another time.
    fn claim_notifications(
        &self,
        now: Time,
        claimed_until: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<StoredNotification>>;
    /// Records the result of sending a notification on a channel. It is not sent again once every channel is done.
    fn record_notification_result(
        &self,
        id: NotificationId,
        channel: Channel,
        result: ChannelResult,
    ) -> StoreFuture<'_, ()>;
    /// Lists a tenant's notifications, newest first.
    fn list_notifications(
        &self,
        tenant_id: TenantId,
        page: PageRequest<NotificationId>,
    ) -> StoreFuture<'_, Vec<StoredNotification>>;
    /// Lists the last `limit` notifications about a webhook of a tenant before this one, newest first.
    fn earlier_notifications(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        before: NotificationId,
        limit: usize,
    ) -> StoreFuture<'_, Vec<StoredNotification>>;
    /// Prunes up to `limit` notifications before this time, and as many groups that have been idle since then.
    fn prune_notifications(&self, before: Time, limit: usize) -> StoreFuture<'_, usize>;
}

/// Persisted clock state, and corrections of stored times after the clock was set back.
pub trait Clocks: Send + Sync {
    /// Returns the stored clock state.
    fn clock_state(&self) -> StoreFuture<'_, ClockState>;
    /// Stores a confirmed time, for the next start to compare with.
    fn store_confirmed_time(&self, confirmed_at: Time) -> StoreFuture<'_, ()>;
    /// Counts a confirmation by an operator, which every node acts on. Returns their number.
    fn confirm_clock(&self) -> StoreFuture<'_, i64>;
    /// Moves the due times of up to `limit` lanes after this one, if they may have been computed from the time before
    /// the clock was set back, and wakes those lanes now. Returns the last lane, or `None` if there were fewer.
    fn adjust_due_for_clock_step(
        &self,
        clock_step: ClockStep,
        now: Time,
        after: Option<LaneCursor>,
        limit: usize,
    ) -> StoreFuture<'_, Option<LaneCursor>>;
    /// Moves the ends of pauses after a 429 and the times of circuits that were computed from the time before the clock
    /// was set back. A forced circuit keeps its end.
    fn adjust_pauses_for_clock_step(&self, clock_step: ClockStep) -> StoreFuture<'_, usize>;
}

/// Maintenance and health.
pub trait Maintenance: Send + Sync {
    /// Prunes up to `limit` expired idempotency keys.
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

/// Statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Transactions committed since the start.
    pub commits: u64,
    /// Statements sent to the server since the start; 0 for a store without a server.
    pub statements: u64,
    /// Deliveries waiting in the store, by priority; ordered ones count as normal.
    pub waiting: [u64; 3],
    /// Leased deliveries.
    pub leased: u64,
    /// Dead deliveries that were not redriven.
    pub dead: u64,
    /// Webhooks that were not deleted.
    pub webhooks: u64,
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

/// The ordered log of configuration and runtime changes, and the hints that announce them.
pub trait ChangeLog: Send + Sync {
    /// Returns the changes since a cursor, each once, including the caller's own; without a cursor, only a cursor to
    /// start from. The cost does not grow with the age of transactions that other programs keep open. A store that is
    /// not shared reports no changes.
    fn changes(&self, since: Option<ChangeCursor>) -> StoreFuture<'_, Changes>;
    /// Prunes changes before this cursor. A node that has not read them must resync.
    fn prune_changes(&self, before: ChangeCursor) -> StoreFuture<'_, ()>;
    /// Sets a callback that is called soon, at most a few hundred times a second, when another node (or this one) has
    /// announced work or changes. A hint may be lost. The callback must not block.
    fn on_hint(&self, call: Box<dyn Fn(Hint) + Send + Sync>);
    /// Sets a transport that carries every hint to the other nodes instead of the store. It returns `false` while it
    /// cannot.
    fn set_hint_transport(&self, carry: Box<dyn Fn(Hint) -> bool + Send + Sync>);
}

/// The webhooks that nodes keep in memory.
pub trait Config: Send + Sync {
    /// Returns webhooks of any tenant by id, including deleted ones: for claimed deliveries.
    fn webhooks_by_id(&self, ids: Vec<WebhookId>) -> StoreFuture<'_, Vec<Webhook>>;
    /// Returns the first `limit` changes after `version`; after version 0, everything that is not deleted. Returns
    /// `None` if there is no such tenant.
    fn config_changes(
        &self,
        tenant_id: TenantId,
        version: i64,
        limit: usize,
    ) -> StoreFuture<'_, Option<ConfigChanges>>;
}

/// The event types that nodes keep in memory.
pub trait EventTypeChanges: Send + Sync {
    /// Returns the first `limit` event types that changed after `revision`, in the order of their changes.
    fn event_types_since(
        &self,
        tenant_id: TenantId,
        revision: i64,
        limit: usize,
    ) -> StoreFuture<'_, Vec<VersionedType>>;
    /// Returns the names of all event types of a tenant.
    fn event_type_names(&self, tenant_id: TenantId) -> StoreFuture<'_, Vec<String>>;
}

/// What is due by time: deliveries that expire, and webhooks that are to be disabled or verified.
pub trait WebhookTimers: Send + Sync {
    /// Returns the webhooks after this one that have waiting deliveries, each with the creation time of the oldest.
    fn oldest_waiting(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Time)>>;
    /// Ends up to `limit` waiting deliveries of a webhook that were created before a time as expired. An occurrence is
    /// recorded with their number and the last of them; deliveries of Redrive's own events do not count.
    fn expire_deliveries(
        &self,
        webhook_id: WebhookId,
        created_before: Time,
        now: Time,
        limit: usize,
        occurrence: Option<Occurrence>,
    ) -> StoreFuture<'_, BatchProgress>;
    /// Returns the webhooks that are due to be disabled or verified, the longest due first. Verifications of the
    /// tenants in `except` are left out.
    fn webhooks_with_due_action(
        &self,
        now: Time,
        limit: usize,
        except: Vec<TenantId>,
    ) -> StoreFuture<'_, WebhooksWithDueAction>;
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

/// What people are shown of circuits and backlogs.
pub trait WebhookHistory: Send + Sync {
    /// Returns the periods in which the circuit of a tenant's webhook was open and that had not ended at `from`,
    /// oldest first.
    fn circuit_periods(
        &self,
        tenant_id: TenantId,
        webhook_id: WebhookId,
        from: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<CircuitPeriod>>;
    /// Returns the periods in which circuits of a tenant were open, last opened first.
    fn incidents(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        limit: usize,
    ) -> StoreFuture<'_, Vec<Incident>>;
    /// Returns up to `limit` of a tenant's webhooks whose circuits are not closed, or were set manually.
    fn circuits(
        &self,
        tenant_id: TenantId,
        visibility: Visibility,
        limit: usize,
    ) -> StoreFuture<'_, Vec<WebhookRuntime>>;
    /// Returns the open periods of the circuits of several webhooks of a tenant in one read; webhooks without any are
    /// left out.
    fn circuit_periods_of(
        &self,
        tenant_id: TenantId,
        webhooks: Vec<WebhookId>,
        from: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Vec<CircuitPeriod>)>>;
    /// Returns the backlog of each of these webhooks; counts at most `max` of each kind. `for_tenant` is the tenant
    /// that asked; `None` for the engine itself.
    fn backlogs(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        now: Time,
        max: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, Backlog)>>;
    /// Returns the webhooks of a tenant that have a backlog. Scans at most `max_scanned` webhooks.
    fn backlogged(&self, tenant_id: TenantId, max_scanned: usize) -> StoreFuture<'_, BackloggedWebhooks>;
}

/// Health of the store, and statistics for metrics.
pub trait Health: Send + Sync {
    /// Checks that the store can be written now.
    fn ping(&self) -> StoreFuture<'_, ()>;
    /// Returns the server settings that decide whether commits survive a crash; `None` for a store without a server.
    fn durability(&self) -> StoreFuture<'_, Option<Durability>>;
    /// Returns, for each pool with due deliveries in the store, since when the longest overdue one is due. Of the
    /// lanes that nodes have claimed, at most a thousand are read.
    fn overdue(&self, now: Time) -> StoreFuture<'_, BTreeMap<String, Time>>;
    /// Returns statistics for the metrics.
    fn stats(&self) -> StoreFuture<'_, StoreStats>;
    /// Returns how many tenants have more than `max` dead letters.
    fn count_tenants_with_dead_letters_over(&self, max: usize) -> StoreFuture<'_, u64>;
    /// Returns how many reads this process has run since the store was opened.
    fn read_count(&self) -> u64;
}

/// Everything that a backend implements.
pub trait Store:
    Publish
    + Record
    + Claim
    + Nodes
    + RuntimeState
    + Statistics
    + Rankings
    + Webhooks
    + EventTypes
    + Tenancy
    + BrowserSessions
    + History
    + Attempts
    + AcrossTenants
    + Redrive
    + Operations
    + Secrets
    + Audit
    + EmailAddresses
    + Unsubscriptions
    + Notifications
    + Clocks
    + Maintenance
    + Prune
    + Erase
    + ArchiveOutbox
    + Leases
    + ChangeLog
    + Config
    + EventTypeChanges
    + WebhookTimers
    + Cancellations
    + WebhookHistory
    + Health
{
}

impl<T> Store for T where
    T: Publish
        + Record
        + Claim
        + Nodes
        + RuntimeState
        + Statistics
        + Rankings
        + Webhooks
        + EventTypes
        + Tenancy
        + BrowserSessions
        + History
        + Attempts
        + AcrossTenants
        + Redrive
        + Operations
        + Secrets
        + Audit
        + EmailAddresses
        + Unsubscriptions
        + Notifications
        + Clocks
        + Maintenance
        + Prune
        + Erase
        + ArchiveOutbox
        + Leases
        + ChangeLog
        + Config
        + EventTypeChanges
        + WebhookTimers
        + Cancellations
        + WebhookHistory
        + Health
{
}

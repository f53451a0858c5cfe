//! The facade of the engine: every verb is a line that calls a component.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use redrive_core::{
    DeliveryId, EventId, OperationId, TenantId, Time, WebhookId,
    cluster::worker_health::WorkerConditions,
    delivery::{
        bulk_operation::{Candidate, OperationAction},
        lane::Priority,
    },
    notification::{Occurrence, confirmation::MailPolicy},
    protection::{
        breaker::{CircuitView, Forced},
        limiter::RateLimit,
    },
    statistics::traffic::{Resolution, Traffic},
    webhook::{Webhook, failures::FailingRule},
};
use redrive_store::{
    CancelResult, ConfirmationRequestResult, CreationKey, CreationResult, Delivery, Epoch, EraseResult,
    MinuteRollup, Node, Operation, OperationRequest, RedriveResult, Store, StoreError, Tenant,
    WebhookFailures,
};
use tokio_util::sync::CancellationToken;

use crate::{
    AvailableTokens, ChangeError, CircuitAction, CircuitCounts, DeliveryState, DryRunCount, EngineFailure,
    EventDraft, GateStatus, InternalError, Load, OperationActionError, OperationStart, PublishError,
    PublishReceipt, ReplayCount, ReplayError, ReplayReceipt, ReplayTo, Router, Service, ServiceKind,
    ServiceStatus, TenantInMemory, TokenReply, WaitReason,
    attempt_runner::AttemptRunner,
    clock::Clock,
    cluster::timekeeping::Timekeeper,
    control::Control,
    dispatch::Dispatcher,
    publish::Publisher,
    services::{
        notify::Notifier, operations::OperationRunner, pruner::Pruner, statistics::StatisticsService,
    },
    supervision::Supervisor,
};
#[cfg(feature = "fault_injection")]
use crate::{FaultInjection, supervision::Faults};

/// The components that the facade calls.
pub(crate) struct Components {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) control: Arc<Control>,
    pub(crate) timekeeper: Arc<Timekeeper>,
    pub(crate) statistics: Arc<StatisticsService>,
    pub(crate) pruner: Arc<Pruner>,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) operations: Arc<OperationRunner>,
    pub(crate) supervisor: Arc<Supervisor>,
    #[cfg(feature = "fault_injection")]
    pub(crate) faults: Faults,
    pub(crate) stop: CancellationToken,
    /// Cuts requests in flight at the drain deadline.
    pub(crate) cut_requests: CancellationToken,
    /// The dispatcher refers to it weakly.
    pub(crate) _deliverer: Arc<AttemptRunner>,
}

impl Drop for Components {
    /// An engine that was dropped without [`Engine::stop`] sends nothing any more, so its services must not claim.
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The running data path. Cheap to clone; see [`Engine::start`], [`Engine::drain`] and [`Engine::stop`].
#[derive(Clone)]
pub struct Engine(pub(crate) Arc<Components>);

/// The parts of the engine.
impl Engine {
    /// Returns the cache of webhooks and tenants.
    pub fn router(&self) -> &Router {
        &self.0.control.router
    }

    /// Changes a webhook, and its circuit in the same transaction. `action` returns the action for the current circuit.
    pub async fn change_webhook_and_circuit<E>(
        &self,
        tenant_id: &TenantId,
        id: WebhookId,
        change: impl FnMut(&mut Webhook) -> Result<(), E>,
        action: impl Fn(&CircuitView) -> Option<CircuitAction>,
    ) -> Result<Webhook, ChangeError<E>> {
        self.0.control.change_webhook_and_circuit(tenant_id, id, change, action).await
    }

    /// Returns when the failures of a webhook are reported to its owner.
    pub fn failing_rule(&self) -> FailingRule {
        self.0.control.coordinator.local.failing_rule
    }

    /// Returns for how long an idempotency key is in use.
    pub fn idempotency_window(&self) -> Duration {
        self.0.control.settings.idempotency_window
    }

    /// Returns the clock that the engine uses.
    pub fn clock(&self) -> &Clock {
        &self.0.control.clock
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// Returns the current epoch of this node.
    pub fn epoch(&self) -> Epoch {
        self.0.control.membership.current_epoch().epoch
    }

    /// Returns a token that is cancelled when the engine stops.
    pub fn stop_token(&self) -> CancellationToken {
        self.0.stop.clone()
    }

    /// Returns the counter of this kind of internal error, for other crates.
    pub fn internal_error_counter(&self, error: InternalError) -> Counter {
        self.0.control.recorder.metrics.internal_error_counter(error).clone()
    }
}

/// Supervision and load.
impl Engine {
    /// Starts a background service under the engine's supervision. It must end when [`Engine::stop_token`] is cancelled,
    /// and not before.
    pub fn run_service(&self, service: Service) {
        self.0.supervisor.run(service);
    }

    /// Returns the background services of this node, ordered by name.
    pub fn services(&self) -> Vec<ServiceStatus> {
        self.0.supervisor.statuses()
    }

    /// Returns why the engine cannot go on; `None` while it can.
    pub fn failure(&self) -> Option<EngineFailure> {
        self.0.supervisor.failure()
    }

    /// Waits until the engine cannot go on: the process should exit, and be restarted.
    pub async fn failed(&self) -> EngineFailure {
        self.0.supervisor.failed().await
    }

    /// Returns the means to cause panics in services.
    #[cfg(feature = "fault_injection")]
    pub fn fault_injection(&self) -> &FaultInjection {
        &self.0.faults.injection
    }

    /// Makes the dispatcher panic while its state is locked.
    #[cfg(feature = "fault_injection")]
    pub fn panic_in_dispatcher(&self) {
        let dispatcher = self.0.dispatcher.clone();
        tokio::spawn(async move { dispatcher.queues.panic_while_locked() });
    }

    /// Returns how many deliveries and requests this node holds, and their limits.
    pub fn load(&self) -> Load {
        self.0.dispatcher.queues.load()
    }

    /// Returns how many slots of this node each pool uses: those of its tenants. Pools that use none are left out.
    pub fn slots_by_pool(&self) -> HashMap<String, usize> {
        let mut pools = HashMap::new();
        for (tenant_id, unsettled) in self.0.dispatcher.queues.unsettled_by_tenant() {
            *pools.entry(self.router().tenant_context(&tenant_id).pool()).or_default() += unsettled;
        }
        pools
    }

    /// Returns the conditions on which the health of this node as a worker depends.
    pub fn worker_conditions(&self) -> WorkerConditions {
        let metrics = &self.0.control.recorder.metrics;
        let services = self.services();
        WorkerConditions {
            store_up: metrics.store.is_up(),
            services_up: services.iter().all(|service| service.up || service.kind != ServiceKind::Essential),
            has_send_lease: self.0.control.membership.node_may_send(),
            is_answered: metrics.network.is_answered(),
        }
    }

    /// Returns the counts of a tenant's deliveries in this node's memory.
    pub fn in_memory(&self, tenant_id: &TenantId) -> TenantInMemory {
        self.0.dispatcher.queues.tenant_in_memory(tenant_id)
    }

    /// Returns the number of deliveries queued in this node's memory by tenant; tenants without any are left out.
    pub fn queued_by_tenant(&self) -> HashMap<TenantId, u64> {
        self.0.dispatcher.queues.queued_by_tenant()
    }
}

/// Publishing.
impl Engine {
    /// Loads a tenant's webhooks if they are not cached. Events published one right after the other from then on keep
    /// their order.
    pub async fn preload_tenant(&self, tenant_id: &TenantId) -> Result<(), StoreError> {
        self.router().load_tenant(tenant_id).await
    }

    /// Returns the webhooks of a tenant that the operator manages, without deleted ones.
    pub async fn operator_webhooks(&self, tenant_id: &TenantId) -> Result<HashSet<WebhookId>, StoreError> {
        self.preload_tenant(tenant_id).await?;
        Ok(self.router().operator_webhooks(tenant_id))
    }

    /// Publishes an event. The event and all its deliveries are durable when this returns.
    pub async fn publish(&self, draft: EventDraft) -> Result<PublishReceipt, PublishError> {
        self.0.publisher.publish_for_tenant(draft).await
    }

    /// Publishes events of one tenant in this order, and returns their results in the same order. An event that is
    /// invalid, or whose checks would exceed `max_work`, is refused alone. An event that cannot be stored now is refused
    /// with all that come after it, so that a caller who repeats the rest keeps the order.
    pub async fn publish_batch(
        &self,
        tenant_id: &TenantId,
        drafts: Vec<EventDraft>,
        max_work: u64,
    ) -> Vec<Result<PublishReceipt, PublishError>> {
        self.0.publisher.publish_batch(tenant_id, drafts, max_work).await
    }

    /// Runs possibly expensive work of a tenant on one of the threads for checks. Fails if too many checks are
    /// waiting.
    pub async fn run_check<T: Send + 'static>(
        &self,
        tenant_id: &TenantId,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.0.publisher.checker.run_on_thread(tenant_id, job).await
    }

    /// Runs work of a known cost for a tenant: inline if it is cheap, otherwise on one of the threads for checks.
    /// Fails if too many checks are waiting.
    pub async fn run_work<T: Send + 'static>(
        &self,
        tenant_id: &TenantId,
        work: u64,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.0.publisher.checker.run_work(tenant_id, work, job).await
    }

    /// Records work that the caller does on a Tokio worker thread itself: at most [`MAX_INLINE_COST_UNITS`](crate::MAX_INLINE_COST_UNITS).
    pub fn record_inline_work(&self, work: u64) {
        self.0.publisher.checker.record_inline_work(work);
    }
}

/// Webhooks and tenants.
impl Engine {
    /// Stores a new webhook, whose circuit may be forced open until a time. Every event acknowledged from now on reaches
    /// it. With a key, it is stored only if the key was not used before.
    pub async fn create_webhook(
        &self,
        webhook: Webhook,
        forced: Option<Forced>,
        key: Option<CreationKey>,
    ) -> Result<CreationResult, StoreError> {
        self.0.control.create_webhook(webhook, forced, key).await
    }

    /// Reads a webhook, changes it and stores it; retries on a concurrent change.
    pub async fn change_webhook<E>(
        &self,
        tenant_id: &TenantId,
        id: WebhookId,
        change: impl FnMut(&mut Webhook) -> Result<(), E>,
    ) -> Result<Webhook, ChangeError<E>> {
        self.0.control.change_webhook(tenant_id, id, change).await
    }

    /// Changes a tenant's name and settings. Returns false if the tenant does not exist.
    pub async fn change_tenant(&self, tenant: Tenant) -> Result<bool, StoreError> {
        self.0.control.change_tenant(tenant).await
    }

    /// Refreshes the cached event types of a tenant after a change.
    pub async fn catalogue_changed(&self, tenant_id: &TenantId) -> Result<(), StoreError> {
        self.router().refresh(tenant_id).await.map(drop)
    }

    /// Deletes a tenant whose webhooks are deleted. Returns false if the tenant does not exist.
    pub async fn delete_tenant(&self, id: &TenantId) -> Result<bool, StoreError> {
        self.0.control.delete_tenant(id).await
    }
}

/// Deliveries.
impl Engine {
    /// Returns what a pending delivery waits for; `None` while its request is in flight.
    pub async fn wait_reason(&self, delivery: &Delivery) -> Result<Option<WaitReason>, StoreError> {
        self.0.control.wait_reason(delivery).await
    }

    /// Returns what this node knows about each of these deliveries, in their order, with few reads for all of them.
    pub async fn delivery_states(&self, deliveries: &[Delivery]) -> Result<Vec<DeliveryState>, StoreError> {
        self.0.control.delivery_states(deliveries).await
    }

    /// Returns what blocks a webhook now. Returns `None` if the webhook does not exist.
    pub async fn gate_status(&self, webhook_id: WebhookId) -> Result<Option<GateStatus>, StoreError> {
        self.0.control.gate_status(webhook_id).await
    }

    /// Returns what blocks these webhooks now; unknown ones are left out, and those of other tenants than `for_tenant`.
    /// `for_tenant` is the tenant that asked; `None` for an admin of all tenants.
    pub async fn gate_statuses(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: &[WebhookId],
    ) -> Result<HashMap<WebhookId, GateStatus>, StoreError> {
        self.0.control.gate_statuses(for_tenant, webhooks).await
    }

    /// Makes a pending delivery due now, or creates a new round of an ended one.
    pub async fn retry(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        priority: Option<Priority>,
    ) -> Result<RedriveResult, StoreError> {
        self.0.control.retry(tenant_id, delivery_id, priority).await
    }

    /// Delivers an event again: creates one new round per webhook.
    pub async fn replay(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
        to: ReplayTo,
        priority: Option<Priority>,
    ) -> Result<ReplayReceipt, ReplayError> {
        self.0.control.replay(tenant_id, event_id, to, priority).await
    }

    /// Counts what a replay would create. Fails as the replay would.
    pub async fn count_replay(
        &self,
        tenant_id: &TenantId,
        event_id: EventId,
        to: ReplayTo,
    ) -> Result<ReplayCount, ReplayError> {
        self.0.control.count_replay(tenant_id, event_id, to).await
    }

    /// Cancels a delivery. A request in flight is allowed to finish: a 2xx response still delivers it.
    pub async fn cancel(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        webhook_id: WebhookId,
        reason: String,
    ) -> Result<CancelResult, StoreError> {
        self.0.control.cancel(tenant_id, delivery_id, webhook_id, reason).await
    }

    /// Erases the payload and metadata of an event permanently, and the endpoints' responses to it. Cancels its
    /// pending deliveries; a request in flight is allowed to finish. Calling it again completes an interrupted
    /// erasure.
    pub async fn erase(&self, tenant_id: &TenantId, event_id: EventId) -> Result<EraseResult, StoreError> {
        self.0.control.erase(tenant_id, event_id).await
    }
}

/// Circuits and the cluster.
impl Engine {
    /// Resets or forces a webhook's circuit. Returns false if there is no such webhook.
    pub async fn control_circuit(
        &self,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        action: CircuitAction,
    ) -> Result<bool, StoreError> {
        self.0.control.control_circuit(tenant_id, webhook_id, action).await
    }

    /// Returns the number of circuits in each state.
    pub fn circuits(&self) -> CircuitCounts {
        self.0.control.circuits()
    }

    /// Returns the number of due deliveries blocked by open circuits. Counts the first hundred circuits, and up to ten
    /// thousand deliveries of each.
    pub async fn blocked_deliveries(&self) -> Result<u64, StoreError> {
        self.0.control.blocked_deliveries().await
    }

    /// Returns the tokens in the emptiest bucket of each kind on this node.
    pub fn available_tokens(&self) -> AvailableTokens {
        let (router, now) = (self.router(), self.clock().now());
        let find_tenant = |tenant_id: &TenantId| router.tenant_context(tenant_id);
        let find = |webhook_id| router.webhook(webhook_id);
        self.0.control.coordinator.local.available_tokens(now, &find, &find_tenant)
    }

    /// Returns whether this node is the leader, which prunes for all. Two nodes may be for a moment.
    pub fn is_leader(&self) -> bool {
        self.0.control.membership.is_leader()
    }

    /// Returns whether any node serves this pool.
    pub fn serves(&self, pool: &str) -> bool {
        self.0.control.membership.is_pool_served(pool)
    }

    /// Returns all nodes of the cluster including this one, ordered by epoch; empty if the store is not shared.
    pub async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        match self.0.control.membership.is_shared() {
            true => Ok(self.store().heartbeat(Epoch::NONE).await?.nodes),
            false => Ok(Vec::new()),
        }
    }

    /// Registers a callback for API keys that may have been created or revoked on another node. It must not block.
    pub fn on_keys_changed(&self, call: Box<dyn Fn() + Send + Sync>) {
        self.0.control.wakeups.changes.on_keys_changed(call);
    }

    /// Confirms the current time of the clock for all nodes; the others follow within seconds.
    pub async fn confirm_clock(&self) -> Result<(), StoreError> {
        self.0.timekeeper.confirm().await
    }

    /// Returns whether Redis responds; `None` if it is not configured.
    pub fn redis_up(&self) -> Option<bool> {
        self.0.control.coordinator.configured_redis().map(|redis| redis.is_up())
    }

    /// Returns whether Redis is configured and does not respond, so that every node works in fallback.
    pub fn is_in_fallback(&self) -> bool {
        self.redis_up() == Some(false)
    }

    /// Takes a token from a named bucket that all nodes share. Returns `None` if Redis is not configured or
    /// unavailable.
    pub async fn take_shared_token(&self, name: String, limit: RateLimit) -> Option<TokenReply> {
        self.0.control.coordinator.redis()?.take_token(name, limit).await.ok()
    }

    /// Returns whether this node has every broker connection that it needs for tickets; `None` without a broker.
    pub fn broker_up(&self) -> Option<bool> {
        self.0.publisher.tickets.as_ref().map(|broker| broker.is_up())
    }

    /// Returns whether the broker accepts tickets from this node now: false if it is unavailable, late, full or
    /// blocked.
    pub fn issues_tickets(&self) -> bool {
        self.0.publisher.tickets.as_ref().is_some_and(|broker| broker.issues_tickets())
    }
}

/// Statistics and retention.
impl Engine {
    /// Returns the traffic of a tenant by minute or by hour from a time on; a start may appear in two parts. Counts of
    /// other nodes from the last seconds are not included yet.
    pub async fn traffic(
        &self,
        tenant_id: TenantId,
        resolution: Resolution,
        from: Time,
    ) -> Result<Vec<(Time, Traffic)>, StoreError> {
        self.0.statistics.traffic(tenant_id, resolution, from).await
    }

    /// Returns the traffic of all tenants together, as [`Engine::traffic`] does for one.
    pub async fn traffic_of_all_tenants(
        &self,
        resolution: Resolution,
        from: Time,
    ) -> Result<Vec<(Time, Traffic)>, StoreError> {
        self.0.statistics.traffic_of_all_tenants(resolution, from).await
    }

    /// Returns the failed attempts of a tenant from a time on, by webhook. Reads at most the latest `max` minutes with
    /// a failure.
    pub async fn failures(
        &self,
        tenant_id: TenantId,
        from: Time,
        max: usize,
    ) -> Result<WebhookFailures, StoreError> {
        self.0.statistics.failures(tenant_id, from, max).await
    }

    /// Returns rollups of webhooks by minute from a time on; a minute may appear in two parts. `for_tenant` is the
    /// tenant that asked; `None` for the engine itself.
    pub async fn rollups(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> Result<Vec<MinuteRollup>, StoreError> {
        self.0.statistics.rollups(for_tenant, webhooks, from).await
    }

    /// Counts the successful attempts of each of these webhooks after a time, in the order of the pairs. Of the minute of
    /// this time only the last success is known to be later. `for_tenant` is the tenant that asked; `None` for an admin of
    /// all tenants.
    pub async fn count_successes(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: &[(WebhookId, Time)],
    ) -> Result<Vec<u64>, StoreError> {
        self.0.statistics.count_successes(for_tenant, webhooks).await
    }

    /// Returns when each of these webhooks last accepted a delivery; webhooks without a success are left out.
    /// `for_tenant` is the tenant that asked; `None` for an admin of all tenants.
    pub async fn last_successes(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: &[WebhookId],
    ) -> Result<HashMap<WebhookId, Time>, StoreError> {
        self.0.statistics.last_successes(for_tenant, webhooks).await
    }

    /// Returns when a webhook last accepted a delivery.
    pub async fn last_success(
        &self,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
    ) -> Result<Option<Time>, StoreError> {
        self.0.statistics.last_success(tenant_id, webhook_id).await
    }

    /// Prunes everything that is past its retention now.
    pub async fn prune(&self) -> Result<(), StoreError> {
        self.0.pruner.prune().await
    }
}

/// Notifications.
impl Engine {
    /// Returns whether this node's last email was sent; `None` if it sends none.
    pub fn mail_up(&self) -> Option<bool> {
        self.0.notifier.mail_up()
    }

    /// Records in the background that a request of a tenant was rejected because its quota is exhausted; at most once
    /// per minute for each quota, since a tenant may be rejected very often.
    pub fn quota_reached(
        &self,
        tenant_id: &TenantId,
        reason: &'static str,
        message: &str,
        until: Option<Time>,
    ) {
        self.0.notifier.quota_reached(tenant_id, reason, message, until);
    }

    /// Records occurrences and wakes the notifier.
    pub async fn record_occurrences(&self, occurrences: Vec<Occurrence>) -> Result<(), StoreError> {
        self.0.notifier.record_occurrences(occurrences).await
    }

    /// Returns the operator's email policy; `None` if this node sends no email.
    pub fn mail_policy(&self) -> Option<&MailPolicy> {
        self.0.notifier.mail_policy()
    }

    /// Requests a confirmation email for an address of a tenant, within the limits.
    pub async fn request_confirmation(
        &self,
        tenant_id: TenantId,
        address: &str,
    ) -> Result<ConfirmationRequestResult, StoreError> {
        self.0.notifier.request_confirmation(tenant_id, address).await
    }
}

/// Bulk operations.
impl Engine {
    /// Creates an operation that starts now or at `start_at`. With a key, it is created only if the key was not used
    /// before.
    pub async fn begin_operation(
        &self,
        tenant_id: TenantId,
        order: OperationRequest,
        start_at: Option<Time>,
        created_by: String,
        key: Option<CreationKey>,
    ) -> Result<OperationStart, StoreError> {
        self.0.operations.begin_operation(tenant_id, order, start_at, created_by, key).await
    }

    /// Pauses, resumes or cancels an operation.
    pub async fn control_operation(
        &self,
        tenant_id: TenantId,
        id: OperationId,
        action: OperationAction,
    ) -> Result<Operation, OperationActionError> {
        self.0.operations.control_operation(tenant_id, id, action).await
    }

    /// Counts what an operation would select now, for a limited time, and returns the first deliveries.
    pub async fn count_candidates(
        &self,
        tenant_id: &TenantId,
        order: &OperationRequest,
        sample: usize,
    ) -> Result<DryRunCount, StoreError> {
        self.0.operations.count_candidates(tenant_id, order, sample).await
    }

    /// Counts what an operation would select now among its first candidates, which bounds the time. Returns whether all
    /// were counted.
    pub async fn count_first_candidates(
        &self,
        tenant_id: &TenantId,
        order: &OperationRequest,
    ) -> Result<(u64, bool), StoreError> {
        self.0.operations.count_first_candidates(tenant_id, order).await
    }

    /// Returns those of the named deliveries that exist, with their state.
    pub async fn named_candidates(
        &self,
        tenant_id: TenantId,
        ids: Vec<DeliveryId>,
    ) -> Result<Vec<(DeliveryId, Candidate)>, StoreError> {
        self.0.operations.named_candidates(tenant_id, ids).await
    }
}

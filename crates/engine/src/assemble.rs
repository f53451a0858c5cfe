//! Builds the components bottom up, starts the services, and drains and stops the engine.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use prometheus_client::registry::Registry;
use redrive_egress::Client;
use redrive_store::{ChangeCursor, Store, StoreError};
use tokio::{
    runtime::Handle,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Engine, Metrics, Settings,
    attempt_runner::AttemptRunner,
    clock::Clock,
    cluster::{
        change_feed::ChangeFeed,
        heartbeat::HeartbeatSender,
        limit_shares::LimitShares,
        membership::{self, Membership},
        rescue::Rescuer,
        timekeeping::{self, Timekeeper, Timekeeping},
    },
    control::Control,
    coordinate::{Coordinator, LocalCoordinator, redis::RedisLink},
    dispatch::{Assignments, DeliveryHandler, DispatchLimits, Dispatcher},
    engine::Components,
    publish::{Publisher, check_executor::CheckExecutor},
    record::{
        Recorder, Releaser, StoreMonitor, WebhookRuntimeUpdater, outcome_retry::OutcomeRetrier,
        release::RELEASE_BATCH_SIZE,
    },
    rollup_buffer::RollupBuffer,
    routing::Router,
    schedule::{
        ClaimLoop, Claimer,
        tickets::{TicketBroker, TicketConsumer, TicketPublisherService},
    },
    send::Sender,
    services::{
        cancellation::Cancellation,
        expiry::Expiry,
        gate_timer::GateTimer,
        lease_auditor::LeaseAuditor,
        maintenance::{MaintenanceService, PARTITION_HORIZON},
        notify::{MAX_CONCURRENT_MAILS, Notifier, checks::WebhookChecks},
        operations::OperationRunner,
        pruner::Pruner,
        redis_sync::RedisSync,
        statistics::StatisticsService,
        verification::{Verifier, verification_slots},
    },
    supervision::{
        Faults, Service,
        ServiceKind::{Auxiliary, Essential, Once},
        ServiceMetrics, Supervisor,
    },
    trace::Tracer,
    wakeups::Wakeups,
};

/// Timeout for recording the outcomes of requests that were cut at the drain deadline.
const FINAL_RECORD_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a stopping node waits for Redis.
const REDIS_SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between checks whether all outcomes are stored.
const SETTLE_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What every component may use, and what depends on no component.
pub(crate) struct Base {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) faults: Faults,
    pub(crate) tokio: Handle,
    pub(crate) stop: CancellationToken,
}

/// The components of the data data_path.
pub(crate) struct DataPath {
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) rollups: Arc<RollupBuffer>,
    pub(crate) attempt_runner: Arc<AttemptRunner>,
    pub(crate) claimer: Arc<Claimer>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) cut_requests: CancellationToken,
}

impl Engine {
    /// Takes an epoch and starts the data data_path. Leases of former processes are rescued in the background.
    pub async fn start(
        store: Arc<dyn Store>,
        egress: Client,
        clock: Clock,
        settings: Settings,
        registry: &mut Registry,
    ) -> Result<Self, StoreError> {
        let shared = store.is_shared();
        let timekeeping = timekeeping::begin(&*store, &clock).await?;
        store.ensure_partitions(clock.now() + PARTITION_HORIZON).await?;
        let joined = membership::join(&*store, &clock, &settings).await?;
        // Taken before anything else is read, so that every later change is in the change feed after this cursor.
        let cursor = store.changes(None).await?.cursor;
        // Without a shared store there are no other nodes, and Redis and tickets are not used.
        let redis = settings.redis.as_ref().filter(|_| shared);
        let link = redis.map(|redis| RedisLink::new(redis, joined.epoch.epoch.0.to_string())).transpose();
        let link =
            link.map_err(|error| StoreError::InvalidItem(format!("redis.url cannot be used: {error}")))?;
        let tickets = settings.tickets.as_ref().filter(|_| shared);
        let tickets = tickets.map(|tickets| Arc::new(TicketBroker::new(tickets, registry)));
        let stop = CancellationToken::new();
        let base = Base {
            membership: Arc::new(Membership::new(shared, settings.lease, &joined, stop.clone())),
            metrics: Arc::new(Metrics::new(registry, settings.breakdowns, link.is_some())),
            settings: Arc::new(settings),
            wakeups: Arc::default(),
            faults: Faults::new(),
            tokio: Handle::current(),
            store,
            clock,
            stop,
        };
        let data_path = base.build_data_path(egress.clone(), tickets, link.is_some());
        let effects: Arc<dyn DeliveryHandler> = data_path.attempt_runner.clone();
        data_path.dispatcher.set_handler(Arc::downgrade(&effects));
        let poisoned = data_path.dispatcher.queues.lock_poisoned().clone();
        let supervisor =
            Supervisor::start(ServiceMetrics::new(registry), base.stop.clone(), poisoned, &base.faults);
        let components = base.start_services(data_path, supervisor, egress, timekeeping, cursor, link).await;
        components.map(|components| Self(Arc::new(components))).inspect_err(|_| base.stop.cancel())
    }

    /// Starts no new requests, releases queued deliveries, lets requests in flight finish for `drain_timeout` and cuts
    /// the rest as failed attempts. Publishing continues; see [`Engine::stop`].
    pub async fn drain(&self, drain_timeout: Duration) {
        let (dispatcher, store, clock) = (&self.0.dispatcher, &self.0.store, &self.0.control.clock);
        let queued = dispatcher.queues.drain();
        for part in queued.chunks(RELEASE_BATCH_SIZE) {
            // One group, unless the node has just rejoined.
            for group in part.chunk_by(|one, other| one.epoch.epoch == other.epoch.epoch) {
                let (epoch, now) = (group[0].epoch.epoch, clock.now());
                let due = group.iter().map(|delivery| (delivery.id, delivery.due)).collect();
                if let Err(error) = store.release(epoch, now, due).await {
                    tracing::warn!(%error, "shutdown with queued deliveries still leased; leases will be rescued");
                }
            }
            part.iter().for_each(|delivery| dispatcher.queues.on_released(delivery));
        }
        if timeout(drain_timeout, self.wait_until_settled()).await.is_err() {
            let requests = self.load().unsettled;
            tracing::warn!(requests, "drain timeout reached; cutting requests");
            self.0.cut_requests.cancel();
            if timeout(FINAL_RECORD_TIMEOUT, self.wait_until_settled()).await.is_err() {
                tracing::warn!("shutdown with unrecorded outcomes; leases will be rescued");
            }
        }
        tracing::info!(released = queued.len(), "drained");
    }

    /// Ends the epoch of a drained engine: releases all remaining leases. Nothing is accepted afterwards.
    pub async fn stop(&self) {
        let control = &self.0.control;
        self.0.statistics.flush().await;
        if let Some(redis) = control.coordinator.redis() {
            // If this fails, the slots expire on their own a little later.
            let _ = timeout(REDIS_SHUTDOWN_TIMEOUT, redis.release_slots()).await;
        }
        self.0.stop.cancel();
        self.0.supervisor.stopped().await;
        let epoch = control.membership.current_epoch().epoch;
        if let Err(error) = self.0.store.rescue(epoch, control.clock.now(), usize::MAX >> 1).await {
            tracing::warn!(%error, "ending the epoch failed; another node will end it");
        }
        // Outcomes that were not recorded hold deliveries, whose guards refer to the dispatcher.
        control.recorder.unrecorded.clear();
    }

    /// Waits until the outcome of every request is stored.
    async fn wait_until_settled(&self) {
        while self.load().unsettled > 0 {
            sleep(SETTLE_POLL_INTERVAL).await;
        }
    }
}

impl Base {
    fn build_dispatcher(&self, has_redis: bool) -> (Arc<Router>, Arc<Coordinator>, Arc<Dispatcher>) {
        let settings = &self.settings;
        let shares = Arc::new(LimitShares::new(settings.served_pools(), settings.global_rate_limit));
        let router =
            Arc::new(Router::new(self.store.clone(), self.store.clone(), settings.clone(), shares.clone()));
        let local = Arc::new(LocalCoordinator::new(shares.clone(), settings.failing_rule));
        let coordinator = Arc::new(Coordinator::new(local, has_redis, self.clock.clone()));
        let limits = DispatchLimits {
            max_unsettled: settings.max_in_flight,
            max_deliveries: settings.max_deliveries,
            max_bytes: settings.max_bytes,
            max_lane_deliveries: settings.max_lane_deliveries,
            host_max_in_flight: settings.host_max_in_flight.unwrap_or(usize::MAX),
        };
        let assignments = Assignments::new(
            shares,
            settings.host_max_in_flight,
            self.clock.clone(),
            self.membership.clone(),
            coordinator.clone(),
        );
        let (metrics, wakeups) = (self.metrics.clone(), self.wakeups.clone());
        let dispatcher = Dispatcher::new(limits, assignments, router.clone(), metrics, wakeups);
        (router, coordinator, Arc::new(dispatcher))
    }

    pub(crate) fn build_data_path(
        &self,
        egress: Client,
        tickets: Option<Arc<TicketBroker>>,
        has_redis: bool,
    ) -> DataPath {
        let (router, coordinator, dispatcher) = self.build_dispatcher(has_redis);
        let tracer = Arc::new(Tracer::new(self.settings.tracing.clone(), self.clock.clone()));
        let rollups = Arc::<RollupBuffer>::default();
        let monitor = Arc::new(StoreMonitor {
            metrics: self.metrics.clone(),
            dispatcher: dispatcher.clone(),
            wakeups: self.wakeups.clone(),
        });
        let runtime_updater = Arc::new(WebhookRuntimeUpdater {
            store: self.store.clone(),
            clock: self.clock.clone(),
            membership: self.membership.clone(),
            router: router.clone(),
            coordinator: coordinator.clone(),
            dispatcher: dispatcher.clone(),
            metrics: self.metrics.clone(),
            wakeups: self.wakeups.clone(),
            tokio: self.tokio.clone(),
            stop: self.stop.clone(),
        });
        let recorder = Arc::new(Recorder {
            store: self.store.clone(),
            clock: self.clock.clone(),
            membership: self.membership.clone(),
            router: router.clone(),
            coordinator: coordinator.clone(),
            dispatcher: dispatcher.clone(),
            runtime_updater: runtime_updater.clone(),
            monitor: monitor.clone(),
            metrics: self.metrics.clone(),
            rollups: rollups.clone(),
            tracer: tracer.clone(),
            wakeups: self.wakeups.clone(),
            faults: self.faults.clone(),
            tokio: self.tokio.clone(),
            stop: self.stop.clone(),
            unrecorded: Default::default(),
        });
        let cut_requests = CancellationToken::new();
        let sender = Arc::new(Sender {
            store: self.store.clone(),
            egress,
            clock: self.clock.clone(),
            user_agent: self.settings.user_agent.clone(),
            membership: self.membership.clone(),
            dispatcher: dispatcher.clone(),
            metrics: self.metrics.clone(),
            tracer: tracer.clone(),
            faults: self.faults.clone(),
            cut_requests: cut_requests.clone(),
        });
        let attempt_runner = Arc::new(AttemptRunner {
            clock: self.clock.clone(),
            router: router.clone(),
            coordinator: coordinator.clone(),
            dispatcher: dispatcher.clone(),
            sender,
            runtime_updater: runtime_updater.clone(),
            recorder: recorder.clone(),
            rollups: rollups.clone(),
            dns_suspects: Arc::default(),
            metrics: self.metrics.clone(),
            disable_after: self.settings.disable_after,
            faults: self.faults.clone(),
            tokio: self.tokio.clone(),
        });
        let claimer = Arc::new(Claimer {
            store: self.store.clone(),
            clock: self.clock.clone(),
            settings: self.settings.clone(),
            membership: self.membership.clone(),
            router: router.clone(),
            dispatcher: dispatcher.clone(),
            runtime_updater: runtime_updater.clone(),
            faults: self.faults.clone(),
            tokio: self.tokio.clone(),
            declined_lanes: AtomicUsize::new(0),
        });
        let publisher = Arc::new(Publisher {
            store: self.store.clone(),
            clock: self.clock.clone(),
            settings: self.settings.clone(),
            membership: self.membership.clone(),
            router: router.clone(),
            coordinator: coordinator.clone(),
            dispatcher: dispatcher.clone(),
            monitor,
            tickets,
            checker: Arc::new(CheckExecutor::new(self.metrics.clone())),
            metrics: self.metrics.clone(),
            tracer,
            wakeups: self.wakeups.clone(),
            faults: self.faults.clone(),
        });
        DataPath {
            router,
            coordinator,
            dispatcher,
            runtime_updater,
            recorder,
            rollups,
            attempt_runner,
            claimer,
            publisher,
            cut_requests,
        }
    }

    /// Builds the services on top of the data path and starts them.
    async fn start_services(
        &self,
        data_path: DataPath,
        supervisor: Arc<Supervisor>,
        egress: Client,
        timekeeping: Timekeeping,
        cursor: ChangeCursor,
        link: Option<RedisLink>,
    ) -> Result<Components, StoreError> {
        let timekeeper = Arc::new(Timekeeper {
            store: self.store.clone(),
            clock: self.clock.clone(),
            membership: self.membership.clone(),
            coordinator: data_path.coordinator.clone(),
            dispatcher: data_path.dispatcher.clone(),
            metrics: self.metrics.clone(),
            wakeups: self.wakeups.clone(),
            tokio: self.tokio.clone(),
            stop: self.stop.clone(),
        });
        self.start_cluster(&data_path, &supervisor, &timekeeper, cursor, link).await?;
        self.start_delivery(&data_path, &supervisor);
        self.start_tickets(&data_path, &supervisor);
        let timekeeper_service = timekeeper.clone();
        let mut timekeeping = timekeeping;
        supervisor.run(Service::new("timekeeping", Auxiliary, move || {
            timekeeper_service.clone().run(timekeeping.for_next_run())
        }));
        let control = Arc::new(Control {
            creations: self.store.clone(),
            erase: self.store.clone(),
            history: self.store.clone(),
            redrive: self.store.clone(),
            runtime_state: self.store.clone(),
            tenancy: self.store.clone(),
            webhook_history: self.store.clone(),
            webhooks: self.store.clone(),
            clock: self.clock.clone(),
            settings: self.settings.clone(),
            membership: self.membership.clone(),
            router: data_path.router.clone(),
            coordinator: data_path.coordinator.clone(),
            dispatcher: data_path.dispatcher.clone(),
            runtime_updater: data_path.runtime_updater.clone(),
            recorder: data_path.recorder.clone(),
            rollups: data_path.rollups.clone(),
            wakeups: self.wakeups.clone(),
        });
        self.start_expiry(&data_path, &supervisor, &control, egress);
        let statistics = self.start_statistics(&data_path, &supervisor);
        let notifier = self.start_notifications(&data_path, &supervisor, &statistics);
        let pruner = Arc::new(Pruner {
            mail_addresses: self.store.clone(),
            notifications: self.store.clone(),
            prune: self.store.clone(),
            clock: self.clock.clone(),
            settings: self.settings.clone(),
            membership: self.membership.clone(),
            metrics: self.metrics.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("pruner", Auxiliary, &pruner, Pruner::run);
        let operations = Arc::new(OperationRunner {
            creations: self.store.clone(),
            history: self.store.clone(),
            operations: self.store.clone(),
            clock: self.clock.clone(),
            membership: self.membership.clone(),
            router: data_path.router.clone(),
            recorder: data_path.recorder.clone(),
            checker: data_path.publisher.checker.clone(),
            rollups: data_path.rollups.clone(),
            wakeups: self.wakeups.clone(),
            stop: self.stop.clone(),
            claimed: Default::default(),
        });
        supervisor.start_service("bulk_operations", Auxiliary, &operations, OperationRunner::run);
        Ok(Components {
            store: self.store.clone(),
            dispatcher: data_path.dispatcher,
            publisher: data_path.publisher,
            control,
            timekeeper,
            statistics,
            pruner,
            notifier,
            operations,
            supervisor,
            #[cfg(feature = "fault_injection")]
            faults: self.faults.clone(),
            stop: self.stop.clone(),
            cut_requests: data_path.cut_requests,
            _deliverer: data_path.attempt_runner,
        })
    }

    /// Starts what connects this node with others, and restores what blocks webhooks; nothing is sent before that.
    async fn start_cluster(
        &self,
        data_path: &DataPath,
        supervisor: &Supervisor,
        timekeeper: &Arc<Timekeeper>,
        cursor: ChangeCursor,
        link: Option<RedisLink>,
    ) -> Result<(), StoreError> {
        let rescuer = Arc::new(Rescuer {
            store: self.store.clone(),
            clock: self.clock.clone(),
            membership: self.membership.clone(),
            wakeups: self.wakeups.clone(),
            tokio: self.tokio.clone(),
            stop: self.stop.clone(),
            rescuing: Default::default(),
        });
        if !self.membership.is_shared() {
            data_path.runtime_updater.restore_runtime_state().await?;
            supervisor.start_service("rescue", Once, &rescuer, Rescuer::rescue_all);
            return Ok(());
        }
        let (settings, dispatcher) = (self.settings.clone(), data_path.dispatcher.clone());
        let heartbeat = Arc::new(HeartbeatSender::new(settings, dispatcher, timekeeper.clone(), rescuer));
        heartbeat.send_first_heartbeat().await;
        data_path.runtime_updater.restore_runtime_state().await?;
        let feed = Arc::new(ChangeFeed {
            log: self.store.clone(),
            runtime_state: self.store.clone(),
            router: data_path.router.clone(),
            coordinator: data_path.coordinator.clone(),
            dispatcher: data_path.dispatcher.clone(),
            runtime_updater: data_path.runtime_updater.clone(),
            recorder: data_path.recorder.clone(),
            wakeups: self.wakeups.clone(),
            stop: self.stop.clone(),
        });
        feed.subscribe_to_hints();
        self.start_redis(data_path, supervisor, link);
        supervisor.start_service("heartbeat", Essential, &heartbeat, HeartbeatSender::run);
        let mut is_restart = false;
        supervisor.start_service("change_feed", Essential, &feed, move |feed| {
            // What the former run has read and not applied is unknown, so everything is read again.
            if std::mem::replace(&mut is_restart, true) {
                feed.wakeups.changes.request_resync();
            }
            feed.run(cursor.clone())
        });
        Ok(())
    }

    fn start_redis(&self, data_path: &DataPath, supervisor: &Supervisor, link: Option<RedisLink>) {
        let (Some(link), Some(settings)) = (link, &self.settings.redis) else { return };
        let Some(redis) = data_path.coordinator.configured_redis() else { return };
        data_path.coordinator.local.enter_fallback(self.clock.now());
        self.metrics.redis_fallback.set(1);
        let sync = Arc::new(RedisSync {
            change_log: self.store.clone(),
            runtime_state: self.store.clone(),
            clock: self.clock.clone(),
            settings: settings.clone(),
            membership: self.membership.clone(),
            router: data_path.router.clone(),
            coordinator: data_path.coordinator.clone(),
            dispatcher: data_path.dispatcher.clone(),
            runtime_updater: data_path.runtime_updater.clone(),
            metrics: self.metrics.clone(),
            wakeups: self.wakeups.clone(),
            stop: self.stop.clone(),
        });
        sync.route_hints_through_redis(redis);
        supervisor.run(sync.into_service(redis.clone(), link));
    }

    /// Starts the services of the delivery data_path.
    fn start_delivery(&self, data_path: &DataPath, supervisor: &Arc<Supervisor>) {
        if self.settings.role.sends() {
            let claim_loop = Arc::new(ClaimLoop {
                claimer: data_path.claimer.clone(),
                wakeups: self.wakeups.clone(),
                stop: self.stop.clone(),
            });
            supervisor.start_service("scheduler", Essential, &claim_loop, ClaimLoop::run);
        }
        let gate_timer = Arc::new(GateTimer {
            clock: self.clock.clone(),
            membership: self.membership.clone(),
            router: data_path.router.clone(),
            coordinator: data_path.coordinator.clone(),
            dispatcher: data_path.dispatcher.clone(),
            runtime_updater: data_path.runtime_updater.clone(),
            wakeups: self.wakeups.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("gate_timer", Essential, &gate_timer, GateTimer::run);
        let releaser = Arc::new(Releaser {
            store: self.store.clone(),
            clock: self.clock.clone(),
            dispatcher: data_path.dispatcher.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("releaser", Essential, &releaser, Releaser::run);
        let retrier = Arc::new(OutcomeRetrier {
            store: self.store.clone(),
            recorder: data_path.recorder.clone(),
            supervisor: supervisor.clone(),
        });
        supervisor.start_service("outcome_retry", Essential, &retrier, OutcomeRetrier::run);
        let auditor = Arc::new(LeaseAuditor {
            claims: self.store.clone(),
            leases: self.store.clone(),
            clock: self.clock.clone(),
            settings: self.settings.clone(),
            membership: self.membership.clone(),
            router: data_path.router.clone(),
            dispatcher: data_path.dispatcher.clone(),
            metrics: self.metrics.clone(),
            wakeups: self.wakeups.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("lease_auditor", Auxiliary, &auditor, LeaseAuditor::run);
    }

    /// Starts the ticket publisher if this node serves the API, and the consumer if it sends.
    fn start_tickets(&self, data_path: &DataPath, supervisor: &Supervisor) {
        let Some(broker) = &data_path.publisher.tickets else { return };
        if self.settings.role.serves_api() {
            broker.require_publish_link();
            let service = Arc::new(TicketPublisherService {
                broker: broker.clone(),
                membership: self.membership.clone(),
                stop: self.stop.clone(),
            });
            supervisor.start_service("ticket_publisher", Auxiliary, &service, TicketPublisherService::run);
        }
        if self.settings.role.sends() {
            broker.require_consume_link();
            let consumer = Arc::new(TicketConsumer {
                broker: broker.clone(),
                claimer: data_path.claimer.clone(),
                stop: self.stop.clone(),
            });
            supervisor.start_service("ticket_consumer", Auxiliary, &consumer, TicketConsumer::run);
        }
    }

    /// Starts what ends deliveries and webhooks, verifies endpoints, and keeps tables small.
    fn start_expiry(
        &self,
        data_path: &DataPath,
        supervisor: &Supervisor,
        control: &Arc<Control>,
        egress: Client,
    ) {
        let verifier = Arc::new(Verifier {
            egress,
            clock: self.clock.clone(),
            settings: self.settings.clone(),
            router: data_path.router.clone(),
            dispatcher: data_path.dispatcher.clone(),
            control: control.clone(),
            metrics: self.metrics.clone(),
            wakeups: self.wakeups.clone(),
            tokio: self.tokio.clone(),
            slots: verification_slots(),
        });
        let expiry = Arc::new(Expiry {
            store: self.store.clone(),
            clock: self.clock.clone(),
            router: data_path.router.clone(),
            dispatcher: data_path.dispatcher.clone(),
            recorder: data_path.recorder.clone(),
            control: control.clone(),
            verifier,
            metrics: self.metrics.clone(),
            rollups: data_path.rollups.clone(),
            wakeups: self.wakeups.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("expiry", Auxiliary, &expiry, Expiry::run);
        let cancellation = Arc::new(Cancellation {
            store: self.store.clone(),
            clock: self.clock.clone(),
            rollups: data_path.rollups.clone(),
            wakeups: self.wakeups.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("cancellation", Auxiliary, &cancellation, Cancellation::run);
        let maintenance = Arc::new(MaintenanceService {
            maintenance: self.store.clone(),
            operations: self.store.clone(),
            clock: self.clock.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("maintenance", Auxiliary, &maintenance, MaintenanceService::run);
    }

    fn start_statistics(&self, data_path: &DataPath, supervisor: &Supervisor) -> Arc<StatisticsService> {
        let statistics = Arc::new(StatisticsService {
            store: self.store.clone(),
            clock: self.clock.clone(),
            router: data_path.router.clone(),
            coordinator: data_path.coordinator.clone(),
            buffer: data_path.rollups.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("rollup_flush", Auxiliary, &statistics, StatisticsService::run);
        statistics
    }

    fn start_notifications(
        &self,
        data_path: &DataPath,
        supervisor: &Supervisor,
        statistics: &Arc<StatisticsService>,
    ) -> Arc<Notifier> {
        let notifier = Arc::new(Notifier {
            config: self.store.clone(),
            mail_addresses: self.store.clone(),
            notifications: self.store.clone(),
            tenancy: self.store.clone(),
            clock: self.clock.clone(),
            settings: self.settings.clone(),
            router: data_path.router.clone(),
            publisher: data_path.publisher.clone(),
            metrics: self.metrics.clone(),
            wakeups: self.wakeups.clone(),
            tokio: self.tokio.clone(),
            stop: self.stop.clone(),
            quotas: Default::default(),
            mailing: Arc::new(Semaphore::new(MAX_CONCURRENT_MAILS)),
            mail_failing: Default::default(),
        });
        supervisor.start_service("notifier", Auxiliary, &notifier, Notifier::run);
        if self.settings.mailer.is_some() {
            supervisor.start_service(
                "confirmation_emails",
                Auxiliary,
                &notifier,
                Notifier::run_confirmations,
            );
        }
        let checks = Arc::new(WebhookChecks {
            notifications: self.store.clone(),
            prune: self.store.clone(),
            webhooks: self.store.clone(),
            clock: self.clock.clone(),
            settings: self.settings.clone(),
            membership: self.membership.clone(),
            runtime_state: self.store.clone(),
            coordinator: data_path.coordinator.clone(),
            runtime_updater: data_path.runtime_updater.clone(),
            statistics: statistics.clone(),
            dns_suspects: data_path.attempt_runner.dns_suspects.clone(),
            wakeups: self.wakeups.clone(),
            stop: self.stop.clone(),
        });
        supervisor.start_service("webhook_checks", Auxiliary, &checks, WebhookChecks::run);
        notifier
    }
}

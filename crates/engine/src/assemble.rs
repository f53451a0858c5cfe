//! Start, drain and stop of the engine.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::registry::Registry as MetricsRegistry;
use redrive_core::dispatch::retry_concurrency::RetryConcurrency;
use redrive_egress::Client;
use redrive_store::{ChangeCursor, Store, StoreError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    Engine, Inner, Metrics, Registry, Settings,
    checking::checking_slots,
    clock::Clock,
    coordination::{
        LocalCoordinator,
        redis::{RedisCoordinator, RedisLink},
    },
    dispatch::{DispatchLimits, Dispatcher},
    limit_shares::LimitShares,
    membership::{self, Membership},
    notify::Notifier,
    operations::OperationRunner,
    queue::amqp::TicketBroker,
    record::UnrecordedOutcomes,
    release::{RELEASE_BATCH_SIZE, Releaser, group_by_epoch},
    rollup_buffer::RollupBuffer,
    schedule::{PARTITION_HORIZON, Wakeup},
    services::{Service, ServiceKind, ServiceMetrics, Supervisor},
    timekeeping::{self, Timekeeping},
    verification,
};

/// Timeout for recording the outcomes of requests that were cut at the drain deadline.
const FINAL_RECORD_TIMEOUT: Duration = Duration::from_secs(5);

impl Engine {
    /// Takes an epoch and starts the data path. Leases of former processes are rescued in the background.
    pub async fn start(
        store: Arc<dyn Store>,
        egress: Client,
        clock: Clock,
        settings: Settings,
        metrics: &mut MetricsRegistry,
    ) -> Result<Self, StoreError> {
        let shared = store.is_shared();
        let timekeeping = timekeeping::begin(&*store, &clock).await?;
        store.ensure_partitions(clock.now() + PARTITION_HORIZON).await?;
        let joined = membership::join(&*store, &clock, &settings).await?;
        // Taken before anything else is read, so that every later change is in the change feed after this cursor.
        let cursor = store.changes(None).await?.cursor;
        let shares = Arc::new(LimitShares::new(settings.served_pools(), settings.global_rate_limit));
        let limits = DispatchLimits {
            max_in_flight: settings.max_in_flight,
            max_deliveries: settings.max_deliveries,
            max_bytes: settings.max_bytes,
            max_lane_deliveries: settings.max_lane_deliveries,
            host_max_in_flight: settings.host_max_in_flight.unwrap_or(usize::MAX),
        };
        let local = Arc::new(LocalCoordinator::new(shares.clone()));
        // Without a shared store there are no other nodes, and Redis is not used.
        let redis = settings.redis.as_ref().filter(|_| shared);
        let link = redis.map(|redis| RedisLink::new(redis, joined.0.epoch.0.to_string())).transpose();
        let link =
            link.map_err(|error| StoreError::InvalidItem(format!("redis.url cannot be used: {error}")))?;
        let tickets = settings.tickets.as_ref().filter(|_| shared);
        let tickets = tickets.map(|tickets| TicketBroker::new(tickets, metrics));
        let stop = CancellationToken::new();
        let dispatcher = Dispatcher::new(limits);
        let supervisor =
            Supervisor::start(ServiceMetrics::new(metrics), stop.clone(), dispatcher.poisoned().clone());
        let inner = Arc::new(Inner {
            redis: link.is_some().then(|| Arc::new(RedisCoordinator::new(local.clone()))),
            tickets,
            registry: Registry::new(settings.clone(), shares.clone()),
            coordination: local,
            membership: Membership::new(shared, settings.lease, joined),
            rollups: RollupBuffer::default(),
            retry_concurrency: Mutex::new(RetryConcurrency::default()),
            gate_wakeup: Notify::new(),
            expiry_wakeup: Notify::new(),
            verifying: verification::verification_slots(),
            cancellation_wakeup: Notify::new(),
            operations: OperationRunner::default(),
            checking: checking_slots(),
            largest_inline_work: AtomicU64::new(0),
            dispatcher,
            metrics: Metrics::new(metrics, settings.breakdowns, link.is_some()),
            notifier: Notifier::default(),
            unrecorded: UnrecordedOutcomes::default(),
            releaser: Releaser::default(),
            scheduler_wakeup: Wakeup::new(),
            lease_transfers: Arc::default(),
            runtime: tokio::runtime::Handle::current(),
            cancel_requests: CancellationToken::new(),
            supervisor,
            stop,
            store,
            egress,
            clock,
            settings,
            shares,
        });
        if shared {
            inner.send_first_heartbeat().await;
        }
        inner.restore_runtime().await.inspect_err(|_| inner.stop.cancel())?;
        if shared {
            inner.subscribe_to_hints();
        }
        if let (Some(link), Some(redis)) = (link, inner.redis.clone()) {
            inner.coordination.enter_fallback(inner.clock.now());
            inner.metrics.redis_fallback.set(1);
            inner.route_hints_through_redis(&redis);
            inner.run_redis_service(redis, link);
        }
        inner.start_services(cursor, timekeeping);
        Ok(Self(inner))
    }

    /// Starts no new requests, releases queued deliveries, lets requests in flight finish until `deadline` and cuts
    /// the rest as failed attempts. Publishing continues; see [`Engine::stop`].
    pub async fn drain(&self, deadline: Duration) {
        let inner = &self.0;
        let queued = inner.dispatcher.drain();
        for part in queued.chunks(RELEASE_BATCH_SIZE) {
            for (epoch, ids) in group_by_epoch(part) {
                if let Err(error) = inner.store.release(epoch, inner.clock.now(), ids).await {
                    tracing::warn!(%error, "shutdown with queued deliveries still leased; leases will be rescued");
                }
            }
            for delivery in part {
                inner.dispatcher.released(delivery);
            }
        }
        if tokio::time::timeout(deadline, self.wait_until_settled()).await.is_err() {
            let requests = self.load().unsettled;
            tracing::warn!(requests, "drain timeout reached; aborting requests");
            inner.cancel_requests.cancel();
            if tokio::time::timeout(FINAL_RECORD_TIMEOUT, self.wait_until_settled()).await.is_err() {
                tracing::warn!("shutdown with unrecorded outcomes; leases will be rescued");
            }
        }
        tracing::info!(released = queued.len(), "drained");
    }

    /// Ends the epoch of a drained engine: releases all remaining leases. Nothing is accepted afterwards.
    pub async fn stop(&self) {
        let inner = &self.0;
        inner.flush_rollups().await;
        self.release_shared_slots().await;
        inner.stop.cancel();
        inner.supervisor.stopped().await;
        let epoch = inner.membership.current_epoch().epoch;
        if let Err(error) = inner.store.rescue(epoch, inner.clock.now(), usize::MAX >> 1).await {
            tracing::warn!(%error, "ending the epoch failed; another node will end it");
        }
        // Outcomes that were not recorded refer to the engine, which would keep the store open.
        inner.unrecorded.clear();
    }

    /// Waits until the outcome of every request is stored.
    async fn wait_until_settled(&self) {
        while self.load().unsettled > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Inner {
    /// Starts the background services of this node.
    fn start_services(self: &Arc<Self>, cursor: ChangeCursor, mut timekeeping: Timekeeping) {
        use ServiceKind::{Auxiliary, Essential, Once};
        if self.membership.is_shared() {
            self.run_service("heartbeat", Essential, Inner::run_heartbeat);
            let mut is_restart = false;
            self.run_service("change_feed", Essential, move |inner| {
                // What the former run has read and not applied is unknown, so everything is read again.
                if std::mem::replace(&mut is_restart, true) {
                    inner.membership.change_signal.request_resync();
                }
                inner.run_change_feed(cursor.clone())
            });
        } else {
            self.run_service("rescue", Once, Inner::rescue_all);
        }
        if self.settings.role.sends() {
            self.run_service("scheduler", Essential, Inner::run_scheduler);
        }
        self.run_service("gate_timer", Essential, Inner::run_gate_timer);
        self.run_service("releaser", Essential, Inner::run_releaser);
        self.run_service("outcome_retry", Essential, Inner::run_outcome_retry);
        self.run_service("timekeeping", Auxiliary, move |inner| {
            inner.run_timekeeping(timekeeping.for_next_run())
        });
        self.run_service("expiry", Auxiliary, Inner::run_expiry);
        self.run_service("rollup_flush", Auxiliary, Inner::run_rollup_flush);
        self.run_service("cancellation", Auxiliary, Inner::run_cancellation);
        self.run_service("bulk_operations", Auxiliary, Inner::run_operations);
        self.run_service("maintenance", Auxiliary, Inner::run_maintenance);
        self.run_service("lease_auditor", Auxiliary, Inner::audit_leases);
        self.run_service("pruner", Auxiliary, Inner::run_pruner);
        self.run_service("notifier", Auxiliary, Inner::run_notifier);
        self.run_service("webhook_checks", Auxiliary, Inner::run_checks);
        if self.settings.mailer.is_some() {
            self.run_service("confirmation_emails", Auxiliary, Inner::run_confirmations);
        }
        self.start_tickets();
    }

    /// Starts a service of the engine.
    pub(crate) fn run_service<F>(
        self: &Arc<Self>,
        name: &'static str,
        kind: ServiceKind,
        mut run: impl FnMut(Arc<Self>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let inner = self.clone();
        self.supervisor.run(Service::new(name, kind, move || run(inner.clone())));
    }
}

//! Start, drain and stop of the engine.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::registry::Registry as MetricsRegistry;
use redrive_core::dispatch::retry_concurrency::RetryConcurrency;
use redrive_egress::Client;
use redrive_store::{Store, StoreError};
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
    release::{RELEASE_BATCH_SIZE, group_by_epoch},
    rollup_buffer::RollupBuffer,
    schedule::{PARTITION_HORIZON, Wakeup},
    timekeeping, verification,
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
            cancelling: tokio::sync::Mutex::new(()),
            operations: OperationRunner::default(),
            checking: checking_slots(),
            largest_inline_work: AtomicU64::new(0),
            dispatcher: Dispatcher::new(limits),
            metrics: Metrics::new(metrics, settings.breakdowns, link.is_some()),
            notifier: Notifier::default(),
            unrecorded: UnrecordedOutcomes::default(),
            scheduler_wakeup: Wakeup::new(),
            lease_transfers: Arc::default(),
            runtime: tokio::runtime::Handle::current(),
            cancel_requests: CancellationToken::new(),
            stop: CancellationToken::new(),
            store,
            egress,
            clock,
            settings,
            shares,
        });
        if shared {
            inner.start_heartbeat().await;
        }
        inner.restore_runtime().await.inspect_err(|_| inner.stop.cancel())?;
        if shared {
            inner.subscribe_to_hints();
            tokio::spawn(inner.clone().run_change_feed(cursor));
        } else {
            tokio::spawn(inner.clone().rescue_all());
        }
        if let (Some(link), Some(common)) = (link, inner.redis.clone()) {
            inner.coordination.enter_fallback(inner.clock.now());
            inner.metrics.redis_fallback.set(1);
            inner.route_hints_through_redis(&common);
            tokio::spawn(inner.clone().run_redis_sync(common, link));
        }
        tokio::spawn(inner.clone().run_timekeeping(timekeeping));
        tokio::spawn(inner.clone().run_gate_timer());
        tokio::spawn(inner.clone().run_expiry());
        tokio::spawn(inner.clone().run_rollup_flush());
        tokio::spawn(inner.clone().cancel_for_inactive_webhooks());
        tokio::spawn(inner.clone().run_operations());
        if inner.settings.role.sends() {
            tokio::spawn(inner.clone().run_scheduler());
        }
        inner.start_tickets();
        tokio::spawn(inner.clone().run_outcome_retry());
        tokio::spawn(inner.clone().run_maintenance());
        tokio::spawn(inner.clone().audit_leases());
        tokio::spawn(inner.clone().run_pruner());
        tokio::spawn(inner.clone().run_notifier());
        tokio::spawn(inner.clone().run_confirmations());
        tokio::spawn(inner.clone().run_checks());
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
        tracing::info!(handed_back = queued.len(), "drained");
    }

    /// Ends the epoch of a drained engine: releases all remaining leases. Nothing is accepted afterwards.
    pub async fn stop(&self) {
        let inner = &self.0;
        inner.flush_rollups().await;
        self.release_shared_slots().await;
        inner.stop.cancel();
        inner.heartbeat_stopped().await;
        let epoch = inner.membership.current_epoch().epoch;
        if let Err(error) = inner.store.rescue(epoch, inner.clock.now(), usize::MAX >> 1).await {
            tracing::warn!(%error, "ending the epoch failed; another node will end it");
        }
    }

    /// Waits until the outcome of every request is stored.
    async fn wait_until_settled(&self) {
        while self.load().unsettled > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

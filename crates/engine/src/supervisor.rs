//! Starting, draining, stopping.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::registry::Registry as MetricsRegistry;
use redrive_core::dispatch::retry_concurrency::Pace;
use redrive_egress::Client;
use redrive_store::{Store, StoreError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    Engine, Inner, Metrics, Registry, Settings,
    checking::checking_slots,
    clock::Clock,
    coordination::{
        Local,
        redis::{Link, Shared},
    },
    dispatch::{Bounds, Dispatch},
    limit_shares::Shares,
    membership::{self, Fleet},
    notify::Notifying,
    operations::Operating,
    queue::amqp::Office,
    record::Kept,
    release::{HAND_BACK, by_epoch},
    rollup_buffer::Health,
    schedule::{AHEAD, Alarm},
    timekeeping, verification,
};

/// How long what was cut off may take to be recorded.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Engine {
    /// Takes an epoch and starts the data path. What former processes left behind is rescued meanwhile.
    pub async fn start(
        store: Arc<dyn Store>,
        egress: Client,
        clock: Clock,
        settings: Settings,
        metrics: &mut MetricsRegistry,
    ) -> Result<Self, StoreError> {
        let shared = store.is_shared();
        let timekeeping = timekeeping::begin(&*store, &clock).await?;
        store.prepare(clock.now() + AHEAD).await?;
        let joined = membership::join(&*store, &clock, &settings).await?;
        // Before anything else is read: whatever changes from here on is told.
        let mark = store.changes(None).await?.mark;
        let shares = Arc::new(Shares::new(settings.served_pools(), settings.global_rate_limit));
        let bounds = Bounds {
            max_in_flight: settings.max_in_flight,
            max_items: settings.max_items,
            max_bytes: settings.max_bytes,
            lane_items: settings.lane_items,
            host_max_in_flight: settings.host_max_in_flight.unwrap_or(usize::MAX),
        };
        let local = Arc::new(Local::new(shares.clone()));
        // A store of its own has nobody to share with.
        let redis = settings.redis.as_ref().filter(|_| shared);
        let link = redis.map(|redis| Link::new(redis, joined.0.epoch.0.to_string())).transpose();
        let link = link.map_err(|error| StoreError::Refused(format!("redis.url cannot be used: {error}")))?;
        let tickets = settings.tickets.as_ref().filter(|_| shared);
        let tickets = tickets.map(|tickets| Office::new(tickets, metrics));
        let inner = Arc::new(Inner {
            shared: link.is_some().then(|| Arc::new(Shared::new(local.clone()))),
            tickets,
            registry: Registry::new(settings.clone(), shares.clone()),
            coordination: local,
            fleet: Fleet::new(shared, settings.lease, joined),
            health: Health::default(),
            pace: Mutex::new(Pace::default()),
            gate_alarm: Notify::new(),
            expiry_alarm: Notify::new(),
            verifying: verification::verification_slots(),
            sweeping: tokio::sync::Mutex::new(()),
            operating: Operating::default(),
            checking: checking_slots(),
            largest_inline_work: AtomicU64::new(0),
            dispatch: Dispatch::new(bounds),
            metrics: Metrics::new(metrics, settings.series, link.is_some()),
            notifying: Notifying::default(),
            kept: Kept::default(),
            alarm: Alarm::new(),
            transfers: Arc::default(),
            runtime: tokio::runtime::Handle::current(),
            cut: CancellationToken::new(),
            stop: CancellationToken::new(),
            store,
            egress,
            clock,
            settings,
            shares,
        });
        if shared {
            inner.begin_beating().await;
        }
        inner.restore_gates().await.inspect_err(|_| inner.stop.cancel())?;
        if shared {
            inner.heed_hints();
            tokio::spawn(inner.clone().keep_following(mark));
        } else {
            tokio::spawn(inner.clone().rescue_all());
        }
        if let (Some(link), Some(common)) = (link, inner.shared.clone()) {
            inner.coordination.go_alone(inner.clock.now());
            inner.metrics.redis_fallback.set(1);
            inner.hint_through(&common);
            tokio::spawn(inner.clone().keep_sharing(common, link));
        }
        tokio::spawn(inner.clone().run_timekeeping(timekeeping));
        tokio::spawn(inner.clone().keep_gates());
        tokio::spawn(inner.clone().keep_expiring());
        tokio::spawn(inner.clone().keep_counting());
        tokio::spawn(inner.clone().sweep_all());
        tokio::spawn(inner.clone().keep_operating());
        if inner.settings.role.sends() {
            tokio::spawn(inner.clone().keep_scheduling());
        }
        inner.begin_tickets();
        tokio::spawn(inner.clone().keep_offering());
        tokio::spawn(inner.clone().keep_house());
        tokio::spawn(inner.clone().audit_leases());
        tokio::spawn(inner.clone().keep_pruning());
        tokio::spawn(inner.clone().keep_telling());
        tokio::spawn(inner.clone().run_confirmations());
        tokio::spawn(inner.clone().keep_watching());
        Ok(Self(inner))
    }

    /// Sends nothing new, hands back what is only queued, lets what is under way finish until `deadline` and
    /// cuts the rest off as failed attempts. Publishing goes on; see [`Engine::stop`].
    pub async fn drain(&self, deadline: Duration) {
        let inner = &self.0;
        let queued = inner.dispatch.drain();
        for part in queued.chunks(HAND_BACK) {
            for (epoch, ids) in by_epoch(part) {
                if let Err(error) = inner.store.release(epoch, inner.clock.now(), ids).await {
                    tracing::warn!(%error, "queued deliveries stay leased; whoever comes next takes them over");
                }
            }
            for ready in part {
                inner.dispatch.returned(ready);
            }
        }
        if tokio::time::timeout(deadline, self.settled()).await.is_err() {
            let requests = self.load().unsettled;
            tracing::warn!(requests, "the drain deadline has passed; cutting requests off");
            inner.cut.cancel();
            if tokio::time::timeout(LAST_WORDS, self.settled()).await.is_err() {
                tracing::warn!(
                    "not every outcome could be recorded; whoever comes next takes those deliveries over"
                );
            }
        }
        tracing::info!(handed_back = queued.len(), "drained");
    }

    /// Ends the epoch of a drained engine: whatever is still leased goes back, and nothing is taken in any more.
    pub async fn stop(&self) {
        let inner = &self.0;
        inner.flush_health().await;
        self.give_up_shared().await;
        inner.stop.cancel();
        inner.beats_no_more().await;
        let epoch = inner.fleet.term().epoch;
        if let Err(error) = inner.store.rescue(epoch, inner.clock.now(), usize::MAX >> 1).await {
            tracing::warn!(%error, "the epoch stays open; whoever comes next ends it");
        }
    }

    /// Returns once every request's outcome is stored.
    async fn settled(&self) {
        while self.load().unsettled > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

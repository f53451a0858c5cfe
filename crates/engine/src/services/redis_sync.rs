//! Synchronization with Redis, if configured: sends batches, receives messages of other nodes, switches to
//! fallback.
//!
//! While Redis responds, any node may send to any webhook without ordering, and Redis decides limits for all of
//! them. Otherwise the cluster works as without Redis: assignments, and each node its share; see `assignments` and
//! `limit_shares`.

use std::{sync::Arc, time::Duration};

use redis::RedisError;
use redrive_core::{Time, maintenance::backoff::OutageBackoff};
use redrive_store::{ChangeLog, Hint, RuntimeState};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Clock, monotonic_now, random_unit},
    cluster::membership::Membership,
    coordinate::{
        Coordinator, RuntimeChange,
        redis::{
            CircuitUpdate, PeerMessage, PeerSubscriber, PreparedBatch, RedisCoordinator, RedisLink, advice,
        },
    },
    dispatch::Dispatcher,
    metrics::Metrics,
    record::WebhookRuntimeUpdater,
    routing::Router,
    settings::RedisSettings,
    supervision::{Service, ServiceKind},
    wakeups::Wakeups,
};

/// Minimum interval between two batches with waiting callers, so that more operations fit into each.
const MIN_BATCH_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum delay of operations that no caller waits for.
const MAX_BATCH_DELAY: Duration = Duration::from_millis(20);
/// Interval between empty batches that check whether Redis responds.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum delay between two attempts to connect; short, so that an available Redis is used soon.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(3);
/// Uptime after which a connection counts as stable: backoff and logging are reset.
const STABLE_AFTER: Duration = Duration::from_secs(2);
/// Time without a message after which the subscription is renewed.
const SUBSCRIBER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of operations per batch.
const MAX_BATCH_OPS: usize = 1_000;
/// Time without Redis, for example right after a start, that needs no catching up.
const STARTUP_GRACE: Duration = Duration::from_secs(1);

/// Keeps the connection to Redis, and this node's state in step with it.
pub(crate) struct RedisSync {
    pub(crate) change_log: Arc<dyn ChangeLog>,
    pub(crate) runtime_state: Arc<dyn RuntimeState>,
    pub(crate) clock: Clock,
    pub(crate) settings: RedisSettings,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
}

impl RedisSync {
    /// Returns the service that keeps the connection to Redis, which begins with this link.
    pub(crate) fn into_service(self: Arc<Self>, redis: Arc<RedisCoordinator>, link: RedisLink) -> Service {
        let (mut first, mut restarts) = (Some(link), 0);
        Service::new("redis", ServiceKind::Auxiliary, move || {
            let sync = self.clone();
            let link = first.take().or_else(|| {
                // Redis knows batches by name and number. The new link numbers its batches from the start, so it takes a
                // new name.
                restarts += 1;
                sync.on_redis_down(&redis, None);
                sync.new_redis_link(restarts)
            });
            let redis = redis.clone();
            async move {
                if let Some(link) = link {
                    sync.run(redis, link).await;
                }
            }
        })
    }

    fn new_redis_link(&self, restarts: u32) -> Option<RedisLink> {
        let name = format!("{}-{restarts}", self.membership.current_epoch().epoch.0);
        RedisLink::new(&self.settings, name).ok()
    }

    /// Keeps the connection to Redis until the engine stops.
    async fn run(self: Arc<Self>, redis: Arc<RedisCoordinator>, mut link: RedisLink) {
        let (mut down_since, mut backoff) = (monotonic_now(), OutageBackoff::default());
        // What was logged last, so that a flapping Redis causes two log records and no more.
        let (mut logged_error, mut logged_up) = (None, false);
        let server = link.server();
        loop {
            match link.connect(self.clock.now()).await {
                Ok(()) => {
                    self.on_redis_up(&redis, monotonic_now().saturating_sub(down_since)).await;
                    if !logged_up {
                        tracing::info!(
                            server,
                            "Redis is available; limits and circuits are shared through it"
                        );
                    }
                    let started = monotonic_now();
                    let Some((error, lost_batch)) = self.exchange_batches(&redis, &mut link).await else {
                        return;
                    };
                    down_since = monotonic_now();
                    self.on_redis_down(&redis, Some(lost_batch));
                    let steady = down_since.saturating_sub(started) >= STABLE_AFTER;
                    logged_up = !steady;
                    if steady {
                        backoff.reset();
                        logged_error = None;
                    }
                    log_redis_down(&server, &error, &mut logged_error);
                }
                Err(error) => log_redis_down(&server, &error, &mut logged_error),
            }
            tokio::select! {
                () = sleep(backoff.next_delay(random_unit()).min(MAX_RECONNECT_DELAY)) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Leaves fallback: Redis decides from now on, and gets the circuits that changed during the outage.
    async fn on_redis_up(self: &Arc<Self>, redis: &Arc<RedisCoordinator>, outage: Duration) {
        let changed_by_peers = match outage > STARTUP_GRACE {
            true => self.runtime_state.list_runtime().await.unwrap_or_default(),
            false => Vec::new(),
        };
        let now = self.clock.now();
        for stored in changed_by_peers {
            // Transitions that other nodes stored and this node has not read yet; those nodes may be dead.
            if let Some(webhook) = self.router.webhook(stored.webhook_id) {
                self.coordinator.local.merge_stored(
                    &webhook,
                    Some(stored),
                    self.coordinator.local.transition_count(),
                    now,
                );
            }
        }
        let to_resend =
            self.coordinator.local.circuits_to_resend(&|webhook_id| self.router.webhook(webhook_id));
        self.coordinator.local.delegate_to_redis();
        redis.mark_up(outage > STARTUP_GRACE);
        for webhook in to_resend {
            redis.refresh_circuit_in_background(webhook);
        }
        self.dispatcher.assignments.shares.set_undivided(true);
        self.dispatcher.apply_limit_shares();
        self.metrics.redis_up.set(1);
        self.metrics.redis_fallback.set(0);
        self.wakeups.changes.request_resync();
    }

    /// Enters fallback, as in a cluster without Redis. Pending requests fail only after the switch, so whatever they
    /// start next uses the fallback limits.
    fn on_redis_down(self: &Arc<Self>, redis: &Arc<RedisCoordinator>, lost_batch: Option<PreparedBatch>) {
        redis.mark_down();
        self.coordinator.local.enter_fallback(self.clock.now());
        self.dispatcher.assignments.shares.set_undivided(false);
        drop(lost_batch);
        redis.fail_pending();
        self.metrics.redis_up.set(0);
        self.metrics.redis_fallback.set(1);
        self.dispatcher.apply_limit_shares();
        // In fallback the runtime state in the store counts, so it is read again.
        self.wakeups.changes.request_resync();
        self.wakeups.gate_timer.notify_one();
    }

    /// Sends batches until Redis fails or the engine stops. Returns the error, and the batch without a reply.
    async fn exchange_batches(
        self: &Arc<Self>,
        redis: &Arc<RedisCoordinator>,
        link: &mut RedisLink,
    ) -> Option<(RedisError, PreparedBatch)> {
        // Aborted when dropped, also by a panic.
        let mut subscriber = JoinSet::new();
        subscriber.spawn(self.clone().run_peer_subscriber(redis.clone(), link.subscriber()));
        let mut started: Option<Time> = None;
        let mut sent = monotonic_now();
        loop {
            tokio::select! {
                () = redis.wait_for_ops() => {}
                () = sleep(MAX_BATCH_DELAY) => {}
                () = self.stop.cancelled() => break None,
            }
            let taken = redis.take(MAX_BATCH_OPS);
            if taken.is_empty() && monotonic_now().saturating_sub(sent) < PING_INTERVAL {
                continue;
            }
            sent = monotonic_now();
            self.metrics.redis_round_trips.inc();
            match link.send(taken, redis, self.clock.now()).await {
                Ok((updates, memory)) => {
                    for update in updates {
                        self.apply_circuit_update(update);
                    }
                    if started.replace(memory).is_some_and(|before| before != memory) {
                        // Redis started a new state (its data was lost, or a node returned from fallback):
                        // send the local state again.
                        redis.resend_slots();
                        for webhook in self
                            .coordinator
                            .local
                            .circuits_to_resend(&|webhook_id| self.router.webhook(webhook_id))
                        {
                            redis.refresh_circuit_in_background(webhook);
                        }
                    }
                }
                Err(failed) => break Some(failed),
            }
            sleep(MIN_BATCH_INTERVAL).await;
        }
    }

    /// Applies an update of a circuit.
    fn apply_circuit_update(self: &Arc<Self>, update: CircuitUpdate) {
        let CircuitUpdate { webhook, runtime_change, change, half_open_max_in_memory } = update;
        if let Some(change) = change {
            self.runtime_updater.apply_and_persist(&webhook, change);
        } else if let (RuntimeChange::Unchanged, Some(half_open_max_in_memory)) =
            (runtime_change, half_open_max_in_memory)
        {
            // A probe may have been lost: allow another one.
            self.dispatcher.unpark(&webhook, Some(half_open_max_in_memory));
        } else {
            self.runtime_updater.apply_runtime_change(&webhook, runtime_change);
        }
        self.wakeups.gate_timer.notify_one();
    }

    /// Handles messages of other nodes until aborted.
    async fn run_peer_subscriber(self: Arc<Self>, redis: Arc<RedisCoordinator>, subscriber: PeerSubscriber) {
        loop {
            if let Ok(mut messages) = subscriber.listen().await {
                // Messages may have been missed before the subscription.
                self.wakeups.claims.wake();
                self.wakeups.changes.notify();
                // A connection without messages for this long may be dead.
                while let Ok(Some(message)) = timeout(SUBSCRIBER_TIMEOUT, messages.next()).await {
                    match message {
                        PeerMessage::Work => self.wakeups.claims.wake(),
                        PeerMessage::Change => self.wakeups.changes.notify(),
                        PeerMessage::Slots(webhook_id, nodes) => redis.on_slot_demand(webhook_id, nodes),
                        PeerMessage::Circuit(webhook_id) => {
                            if let Some(webhook) = self.router.webhook(webhook_id) {
                                redis.refresh_circuit_in_background(webhook);
                            }
                        }
                    }
                }
            }
            sleep(OutageBackoff::INITIAL_DELAY).await;
        }
    }

    /// Routes the store's hints through Redis while it responds.
    pub(crate) fn route_hints_through_redis(self: &Arc<Self>, redis: &Arc<RedisCoordinator>) {
        let redis = redis.clone();
        self.change_log.set_hint_transport(Box::new(move |hint| {
            redis.publish_hint(hint == Hint::Work, hint == Hint::Change)
        }));
    }
}

/// Logs that Redis is unavailable, once per reason.
fn log_redis_down(server: &str, error: &RedisError, message: &mut Option<String>) {
    // Some errors span several lines.
    let reason = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    if message.as_deref() != Some(&reason) {
        let advice = advice(error);
        tracing::warn!(
            server,
            reason,
            "Redis unavailable; using local fallback{}{advice}",
            if advice.is_empty() { "" } else { ". What to do: " }
        );
        *message = Some(reason);
    }
}

//! Clock discipline of this node: reads its reference clock, reports jumps, acts on an operator's confirmation,
//! and shifts times that were scheduled by a wrong clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use redrive_core::{
    Time,
    cluster::clock_discipline::{ClockEvent, ClockEventKind, ClockStep},
};
use redrive_store::{Clocks, Epoch, LaneCursor, Store, StoreError};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Clock, monotonic_now},
    cluster::membership::Membership,
    coordinate::Coordinator,
    dispatch::Dispatcher,
    metrics::Metrics,
    wakeups::Wakeups,
};

/// Interval between readings of the host's clock, if the store has none.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks for an operator's confirmation in the store.
const CONFIRMATION_INTERVAL: Duration = Duration::from_secs(3);
/// Interval at which the confirmed time is stored for the next start.
const STORE_INTERVAL: Duration = Duration::from_secs(20);
/// Time for the other nodes to see that a jump was undone before stored due times are shifted.
const CLOCK_STEP_DELAY: Duration = Duration::from_secs(5);
/// Lanes whose due times are shifted per step, unless that takes too long.
const CLOCK_STEP_LANES: usize = 500;
/// Delay before shifting is retried after a failure of the store.
const CLOCK_STEP_RETRY_DELAY: Duration = Duration::from_secs(1);

/// State of the clock at the start of a node.
#[derive(Clone)]
pub(crate) struct Timekeeping {
    /// Whether the store's clock is the reference; otherwise the host's is.
    by_store: bool,
    /// Number of confirmations by an operator so far; kept when the service is restarted.
    confirmations: Arc<AtomicI64>,
    /// Result of the first reading, to be logged.
    event: Option<ClockEvent>,
}

impl Timekeeping {
    /// Returns the state for one run of the service. Only the first run logs the first reading.
    pub(crate) fn for_next_run(&mut self) -> Self {
        let event = self.event.take();
        Self { event, ..self.clone() }
    }
}

/// Returns the time of the store's clock, if it has one. A heartbeat without an epoch reads it and changes
/// nothing.
async fn store_time(store: &dyn Store) -> Result<Option<Time>, StoreError> {
    Ok(store.heartbeat(Epoch::NONE).await?.time)
}

/// Sets the clock before anything uses it: by the store's clock if it has one, otherwise by the host's.
pub(crate) async fn begin(store: &dyn Store, clock: &Clock) -> Result<Timekeeping, StoreError> {
    let state = store.clock_state().await?;
    let sent = monotonic_now();
    let store_time = if store.is_shared() { store_time(store).await? } else { None };
    let time = store_time.unwrap_or_else(|| clock.host_time());
    let event = clock.begin((sent, monotonic_now()), time, state.confirmed_at);
    Ok(Timekeeping {
        by_store: store_time.is_some(),
        confirmations: Arc::new(state.confirmations.into()),
        event,
    })
}

/// Keeps the clock of this node disciplined.
pub(crate) struct Timekeeper {
    pub(crate) store: Arc<dyn Clocks>,
    pub(crate) clock: Clock,
    pub(crate) membership: Arc<Membership>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) tokio: Handle,
    pub(crate) stop: CancellationToken,
}

impl Timekeeper {
    /// Reads the clock and stores the confirmed time, until the engine stops.
    pub(crate) async fn run(self: Arc<Self>, timekeeping: Timekeeping) {
        let Timekeeping { by_store, confirmations, event } = timekeeping;
        self.handle_clock_event(event);
        let (mut request, mut stored) = (monotonic_now(), None::<Duration>);
        loop {
            if !by_store {
                let at = monotonic_now();
                let event = self.clock.observe(at, at, self.clock.host_time());
                self.handle_clock_event(event);
            }
            self.metrics.clock_jump.set(self.clock.unconfirmed_jump_ms().unwrap_or_default() as f64 / 1000.0);
            let now = monotonic_now();
            if now.saturating_sub(request) >= CONFIRMATION_INTERVAL {
                request = now;
                self.follow_confirmation(&confirmations).await;
            }
            if stored.is_none_or(|at| now.saturating_sub(at) >= STORE_INTERVAL) {
                stored = Some(now);
                self.store_confirmed_time().await;
            }
            tokio::select! {
                () = tokio::time::sleep(READ_INTERVAL) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    async fn follow_confirmation(self: &Arc<Self>, known: &AtomicI64) {
        match self.store.clock_state().await {
            Ok(state) if state.confirmations > known.load(Relaxed) => {
                known.store(state.confirmations, Relaxed);
                self.handle_clock_event(self.clock.confirm());
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "reading the clock confirmation failed; will retry")
            }
        }
    }

    async fn store_confirmed_time(&self) {
        if self.clock.is_disciplined()
            && self.membership.is_leader()
            && let Err(error) = self.store.store_confirmed_time(self.clock.confirmed_now()).await
        {
            tracing::debug!(%error, "storing the confirmed time failed; will retry");
        }
    }

    /// Confirms the current time of the clock for all nodes; the others follow within seconds.
    pub(crate) async fn confirm(self: &Arc<Self>) -> Result<(), StoreError> {
        self.store.confirm_clock().await?;
        self.handle_clock_event(self.clock.confirm());
        Ok(())
    }

    /// Processes a reading of the store's clock that came with a heartbeat.
    pub(crate) fn read_store_clock(self: &Arc<Self>, sent: Duration, received: Duration, time: Time) {
        let event = self.clock.observe(sent, received, time);
        self.handle_clock_event(event);
    }

    /// Logs a clock event, and shifts scheduled times if time went back.
    pub(crate) fn handle_clock_event(self: &Arc<Self>, event: Option<ClockEvent>) {
        let Some(ClockEvent { kind, jump_ms, clock_step }) = event else { return };
        let jump_seconds = jump_ms as f64 / 1000.0;
        match kind {
            ClockEventKind::Detected => {
                self.metrics.clock_jumps.inc();
                tracing::error!(
                    jump_seconds,
                    "the clock jumped; nothing expires or is deleted by the new time until it has held for an hour; \
                     correct the clock, or confirm the new time with `redrive clock confirm`"
                );
            }
            ClockEventKind::Followed => tracing::warn!(
                jump_seconds,
                "scheduling uses the new time; nothing expires or is deleted by it before it is confirmed"
            ),
            ClockEventKind::Confirmed => tracing::warn!(jump_seconds, "the clock's new time is confirmed"),
            ClockEventKind::Undone => {
                tracing::warn!(jump_seconds, "clock shows the expected time again; jump reverted");
            }
        }
        self.metrics.clock_jump.set(self.clock.unconfirmed_jump_ms().unwrap_or_default() as f64 / 1000.0);
        if let Some(clock_step) = clock_step {
            self.adjust_for_clock_step(clock_step);
        }
        // Wakes all tasks that sleep until a time.
        self.wakeups.claims.wake();
        self.wakeups.gate_timer.notify_one();
        self.wakeups.expiry.notify_one();
    }

    /// Shifts times that were scheduled by the abandoned time, in memory and in the store, after time went back.
    fn adjust_for_clock_step(self: &Arc<Self>, clock_step: ClockStep) {
        self.coordinator.local.adjust_for_clock_step(&clock_step);
        self.dispatcher.queues.adjust_for_clock_step(&clock_step);
        let timekeeper = self.clone();
        self.tokio.spawn(async move {
            tokio::time::sleep(CLOCK_STEP_DELAY).await;
            let mut progress = ClockStepProgress::default();
            while timekeeper.membership.is_leader() && !timekeeper.stop.is_cancelled() {
                match timekeeper.adjust_store_for_clock_step(clock_step, &mut progress).await {
                    Ok(()) => {
                        tracing::info!("corrected due times set by a wrong clock");
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "correcting due times set by a wrong clock failed; will retry");
                        tokio::time::sleep(CLOCK_STEP_RETRY_DELAY).await;
                    }
                }
            }
            // Another node may be shifting them instead; it needs as long as this node has waited.
            tokio::time::sleep(CLOCK_STEP_DELAY).await;
            timekeeper.coordinator.local.end_clock_step();
        });
    }

    /// Shifts stored times that are not shifted yet. After a failure the next call continues where this one stopped:
    /// rows that were shifted can still be later than `clock_step.from`, and would be shifted twice.
    async fn adjust_store_for_clock_step(
        &self,
        clock_step: ClockStep,
        progress: &mut ClockStepProgress,
    ) -> Result<(), StoreError> {
        if !progress.pauses_are_moved {
            self.store.adjust_pauses_for_clock_step(clock_step).await?;
            progress.pauses_are_moved = true;
        }
        loop {
            let after = progress.last_lane.clone();
            let step = self
                .store
                .adjust_due_for_clock_step(clock_step, self.clock.now(), after, progress.lanes_per_step)
                .await;
            if matches!(step, Err(StoreError::TooSlow)) {
                progress.lanes_per_step = (progress.lanes_per_step / 4).max(1);
            }
            let last = step?;
            self.wakeups.claims.wake();
            if last.is_none() {
                return Ok(());
            }
            progress.last_lane = last;
        }
    }
}

/// Progress of shifting due times in the store.
struct ClockStepProgress {
    pauses_are_moved: bool,
    last_lane: Option<LaneCursor>,
    /// Lanes shifted per transaction; reduced after a transaction that took too long.
    lanes_per_step: usize,
}

impl Default for ClockStepProgress {
    fn default() -> Self {
        Self { pauses_are_moved: false, last_lane: None, lanes_per_step: CLOCK_STEP_LANES }
    }
}

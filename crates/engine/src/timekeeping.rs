//! Keeps this node's clock right: reads the clock that it follows, reports jumps, acts on an operator's confirmation,
//! and moves what was planned by a wrong time.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    Time,
    cluster::clock_discipline::{ClockEvent, ClockEventKind, SetBack},
};
use redrive_store::{LaneCursor, Store, StoreError};

use crate::{
    Engine, Inner,
    clock::{Clock, ticks},
    membership,
};

/// How often the host's clock is read, where the store has none.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// How often the store is asked for an operator's confirmation.
const CONFIRMATION_INTERVAL: Duration = Duration::from_secs(3);
/// How often the confirmed time is stored, for the next start.
const STORE_INTERVAL: Duration = Duration::from_secs(20);
/// How long the other nodes have to see that a jump was undone, before stored due times are moved.
const SET_BACK_DELAY: Duration = Duration::from_secs(5);
/// Lanes whose due times are moved in one step, unless that takes too long.
const SET_BACK_LANES: usize = 500;
/// How long to wait before due times are moved again after a failure of the store.
const SET_BACK_RETRY_DELAY: Duration = Duration::from_secs(1);

/// What a node knows about its clock when it starts.
pub(crate) struct Timekeeping {
    /// Whether the store's clock is followed; otherwise it is the host's.
    by_store: bool,
    /// How often an operator had confirmed the clock.
    confirmations: i64,
    /// What the first reading showed, to be logged.
    event: Option<ClockEvent>,
}

/// Sets the clock before anything uses it: by the store's clock if it has one, otherwise by the host's.
pub(crate) async fn begin(store: &dyn Store, clock: &Clock) -> Result<Timekeeping, StoreError> {
    let state = store.clock_state().await?;
    let sent = ticks();
    let store_time = if store.is_shared() { membership::store_time(store).await? } else { None };
    let time = store_time.unwrap_or_else(|| clock.host_time());
    let event = clock.begin((sent, ticks()), time, state.confirmed_at);
    Ok(Timekeeping { by_store: store_time.is_some(), confirmations: state.confirmations, event })
}

impl Inner {
    /// Reads the clock and stores the confirmed time, until the engine stops.
    pub(crate) async fn run_timekeeping(self: Arc<Self>, timekeeping: Timekeeping) {
        let Timekeeping { by_store, mut confirmations, event } = timekeeping;
        self.handle_clock_event(event);
        let (mut asked, mut stored) = (ticks(), None::<Duration>);
        loop {
            if !by_store {
                let at = ticks();
                let event = self.clock.observe(at, at, self.clock.host_time());
                self.handle_clock_event(event);
            }
            self.metrics.clock_jump.set(self.clock.unconfirmed_jump_ms().unwrap_or_default() as f64 / 1000.0);
            let now = ticks();
            if now.saturating_sub(asked) >= CONFIRMATION_INTERVAL {
                asked = now;
                self.follow_confirmation(&mut confirmations).await;
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

    async fn follow_confirmation(self: &Arc<Self>, known: &mut i64) {
        match self.store.clock_state().await {
            Ok(state) if state.confirmations > *known => {
                *known = state.confirmations;
                self.handle_clock_event(self.clock.confirm());
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "the store could not be asked whether the clock was confirmed")
            }
        }
    }

    async fn store_confirmed_time(&self) {
        if self.clock.is_disciplined()
            && self.fleet.is_first()
            && let Err(error) = self.store.store_confirmed_time(self.clock.confirmed_now()).await
        {
            tracing::debug!(%error, "the confirmed time could not be stored; it is tried again");
        }
    }

    /// A reading of the store's clock, which came with a heartbeat.
    pub(crate) fn read_store_clock(self: &Arc<Self>, sent: Duration, received: Duration, time: Time) {
        let event = self.clock.observe(sent, received, time);
        self.handle_clock_event(event);
    }

    /// Logs what happened to the clock, and moves what was planned if time went back.
    pub(crate) fn handle_clock_event(self: &Arc<Self>, event: Option<ClockEvent>) {
        let Some(ClockEvent { kind, jump_ms, set_back }) = event else { return };
        let jump_seconds = jump_ms as f64 / 1000.0;
        match kind {
            ClockEventKind::Seen => {
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
                tracing::warn!(jump_seconds, "the clock shows the expected time again; the jump is undone");
            }
        }
        self.metrics.clock_jump.set(self.clock.unconfirmed_jump_ms().unwrap_or_default() as f64 / 1000.0);
        if let Some(set_back) = set_back {
            self.set_back(set_back);
        }
        // Wakes all tasks that sleep until a time.
        self.alarm.ring();
        self.gate_alarm.notify_one();
        self.expiry_alarm.notify_one();
    }

    /// Time went back: moves what was planned by the time that is no longer used, in memory and in the store.
    fn set_back(self: &Arc<Self>, set_back: SetBack) {
        self.coordination.set_back(&set_back);
        self.dispatch.set_back(&set_back);
        let inner = self.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(SET_BACK_DELAY).await;
            let mut progress = SetBackProgress::default();
            while inner.fleet.is_first() && !inner.stop.is_cancelled() {
                match inner.set_store_back(set_back, &mut progress).await {
                    Ok(()) => {
                        tracing::info!("due times that were planned by a wrong clock are moved");
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "due times that were planned by a wrong clock are moved later");
                        tokio::time::sleep(SET_BACK_RETRY_DELAY).await;
                    }
                }
            }
            // Another node may have moved them; it had as long as this node waited for.
            tokio::time::sleep(SET_BACK_DELAY).await;
            inner.coordination.end_set_back();
        });
    }

    /// Moves what is not moved yet. After a failure the next call goes on where this one stopped: rows that were moved
    /// can still be later than `set_back.from`, and would be moved twice.
    async fn set_store_back(
        &self,
        set_back: SetBack,
        progress: &mut SetBackProgress,
    ) -> Result<(), StoreError> {
        if !progress.holds_are_moved {
            self.store.set_holds_back(set_back).await?;
            progress.holds_are_moved = true;
        }
        loop {
            let after = progress.last_lane.clone();
            let step =
                self.store.set_due_back(set_back, self.clock.now(), after, progress.lanes_per_step).await;
            if matches!(step, Err(StoreError::TooSlow)) {
                progress.lanes_per_step = (progress.lanes_per_step / 4).max(1);
            }
            let last = step?;
            self.alarm.ring();
            if last.is_none() {
                return Ok(());
            }
            progress.last_lane = last;
        }
    }
}

/// How far the due times in the store are moved.
struct SetBackProgress {
    holds_are_moved: bool,
    last_lane: Option<LaneCursor>,
    /// Lanes that are moved in one transaction; fewer after a transaction that took too long.
    lanes_per_step: usize,
}

impl Default for SetBackProgress {
    fn default() -> Self {
        Self { holds_are_moved: false, last_lane: None, lanes_per_step: SET_BACK_LANES }
    }
}

impl Engine {
    /// Confirms the time that the clock shows now, for all nodes: the others follow within seconds.
    pub async fn confirm_clock(&self) -> Result<(), StoreError> {
        self.0.store.confirm_clock().await?;
        self.0.handle_clock_event(self.0.clock.confirm());
        Ok(())
    }
}

//! Circuits on the move: what follows when one opens, tries again or closes, by itself or by hand.

use std::sync::Arc;

use redrive_core::{
    TenantId, Time, WebhookId,
    notification::Cause,
    protection::breaker::{CircuitState, SavedCircuit},
};
use redrive_store::StoreError;

use crate::{
    Engine, Inner,
    coordination::{Changed, CircuitAction, Moved, redis::Away},
    notify::occurrences,
    registry::Hook,
};

/// How often an operator's action on a circuit is applied to a newer state that another node has stored meanwhile.
const MAX_CIRCUIT_ACTIONS: usize = 3;

impl Inner {
    /// Acts on what a report changed. What is to be stored of it goes along with the outcome.
    pub(crate) fn circuit_changed(self: &Arc<Self>, hook: &Hook, changed: &Changed) {
        if let Some(moved) = &changed.circuit {
            self.act_on(hook, moved);
        } else if changed.trickle.is_some() {
            let moves = self.dispatch.unpark(self.whom(hook), changed.trickle);
            self.carry_out(moves);
        }
        self.gate_alarm.notify_one();
    }

    fn act_on(self: &Arc<Self>, hook: &Hook, moved: &Moved) {
        let (from, to) = (moved.transition.from, moved.transition.to);
        if from != to {
            tracing::info!(webhook_id = %moved.webhook, tenant = %moved.tenant, from = from.name(), to = to.name(), "a circuit has moved");
            self.metrics.circuit_moved(from, to);
        }
        match moved.saved.blocked_until() {
            Some(until) => self.park(hook, Some(until)),
            None => {
                let moves = self.dispatch.unpark(self.whom(hook), moved.trickle);
                self.carry_out(moves);
            }
        }
        if to != CircuitState::Open {
            self.alarm.ring();
        }
    }

    /// Stores a circuit that moved without an outcome, however long that takes.
    async fn keep(
        self: &Arc<Self>,
        tenant: TenantId,
        webhook: WebhookId,
        saved: SavedCircuit,
        cause: Option<Cause>,
    ) {
        let stored = loop {
            match self.store.set_circuit(tenant.clone(), webhook, saved.clone(), cause.clone()).await {
                Ok(stored) => break stored,
                Err(error) => {
                    tracing::warn!(webhook_id = %webhook, %error, "a circuit's state cannot be stored yet");
                }
            }
            if self.stop.is_cancelled() {
                return;
            }
            tokio::time::sleep(crate::record::OFFER_AGAIN).await;
        };
        self.coordination.circuit_stored(webhook);
        if !stored && let Err(error) = self.learn([webhook].into()).await {
            tracing::warn!(webhook_id = %webhook, %error, "a newer circuit of another node cannot be read yet");
        }
        self.alarm.ring();
        if cause.is_some() {
            self.notifying.ring();
        }
    }

    /// The same, not waited for: whatever else is due now must not wait for the disk.
    pub(crate) fn keep_soon(
        self: &Arc<Self>,
        tenant: TenantId,
        webhook: WebhookId,
        saved: SavedCircuit,
        cause: Option<Cause>,
    ) {
        let inner = self.clone();
        self.runtime.spawn(async move { inner.keep(tenant, webhook, saved, cause).await });
    }

    /// Acts on a circuit that moved without an outcome, and stores it.
    pub(crate) fn moved(self: &Arc<Self>, hook: &Hook, moved: Moved) {
        self.act_on(hook, &moved);
        // A breaker that was turned off lets go, which says nothing about the endpoint.
        let cause = occurrences::of_circuit(&moved).filter(|_| hook.breaker.enabled);
        self.keep_soon(moved.tenant, moved.webhook, moved.saved, cause);
    }

    /// Something of a webhook is about to be claimed. If its circuit is due to move, then as much of it as may go
    /// afterwards; but not every node that asks makes the move.
    pub(crate) fn foresee(self: &Arc<Self>, hook: &Hook) {
        if self.fleet.is_shared()
            && let Some(trickle) = self.coordination.foresee(hook, self.clock.now())
        {
            let moves = self.dispatch.unpark(self.whom(hook), trickle);
            self.carry_out(moves);
        }
    }

    /// Makes the move of a circuit that is due by now: where there are other nodes, whoever got something to send
    /// makes it.
    pub(crate) fn move_on(self: &Arc<Self>, hook: &Hook) {
        if self.fleet.is_shared()
            && let Some(moved) = self.coordination.move_on(hook, self.clock.now())
        {
            self.moved(hook, moved);
        }
    }

    /// Whether the circuit of a webhook is moved by this node: it is at home here, or some of its deliveries are.
    fn moves_circuit_of(&self, webhook: WebhookId) -> bool {
        !self.fleet.is_shared() || self.fleet.homes.has(webhook) || self.dispatch.has_any(webhook)
    }

    /// Remembers circuits, holds and failures from before a restart. Nothing is sent before that.
    pub(crate) async fn restore_gates(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        for runtime in self.store.troubled().await? {
            let over = runtime.hold_until.is_none_or(|until| until <= now);
            if over && runtime.circuit.is_none() && runtime.failing_since.is_none() {
                continue;
            }
            // A circuit moves by its webhook's policy, which has to be known for that.
            let hook = self.registry.find(&*self.store, runtime.webhook).await?;
            self.coordination.restore(runtime, now);
            if let Some(hook) = hook
                && let Some(trickle) = self.coordination.reconsider(&hook)
            {
                self.dispatch.unpark(self.whom(&hook), Some(trickle));
            }
        }
        Ok(())
    }

    /// Moves circuits, and lets go what was held back, when the time has come.
    pub(crate) async fn keep_gates(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let find = |webhook| self.registry.hook(webhook);
            let ours = |webhook| self.moves_circuit_of(webhook);
            let ticked = self.coordination.tick(now, &find, &ours);
            if let Some(shared) = self.shared() {
                ticked.look.into_iter().for_each(|hook| shared.look_soon(hook));
            }
            for hook in ticked.half_open {
                // A probe may have been lost: another one takes its place.
                let moves = self.dispatch.unpark(self.whom(&hook), self.coordination.reconsider(&hook));
                self.carry_out(moves);
            }
            for (hook, moved) in ticked.moved {
                self.moved(&hook, moved);
            }
            let moves = self.dispatch.wake_up(now);
            self.carry_out(moves);
            let next = [self.dispatch.next_wake(), self.coordination.next_tick()].into_iter().flatten().min();
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or_default()), if next.is_some_and(|at| at < Time::FOREVER) => {}
                () = self.gate_alarm.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }
}

impl Engine {
    /// Resets or forces a webhook's circuit. False: there is no such webhook.
    pub async fn act_on_circuit(
        &self,
        tenant: &TenantId,
        webhook: WebhookId,
        action: CircuitAction,
    ) -> Result<bool, StoreError> {
        let inner = &self.0;
        let Some(hook) = inner.registry.find(&*inner.store, webhook).await? else { return Ok(false) };
        if hook.tenant.id != *tenant {
            return Ok(false);
        }
        for _ in 0..MAX_CIRCUIT_ACTIONS {
            if inner.fleet.is_shared() {
                // Another node may have moved it just now.
                inner.learn([webhook].into()).await?;
            }
            let shared = match inner.shared() {
                Some(shared) => shared.act(&hook, action.clone()).await,
                None => Err(Away),
            };
            let moved =
                shared.unwrap_or_else(|_| inner.coordination.act(&hook, action.clone(), inner.clock.now()));
            let Some(moved) = moved else { return Ok(true) };
            inner.act_on(&hook, &moved);
            // What a person does by hand is not told.
            let stored =
                inner.store.set_circuit(moved.tenant.clone(), webhook, moved.saved.clone(), None).await;
            inner.alarm.ring();
            inner.gate_alarm.notify_one();
            match stored {
                Ok(stored) => {
                    inner.coordination.circuit_stored(webhook);
                    if stored {
                        return Ok(true);
                    }
                }
                Err(error) => {
                    // It holds here already: it is stored as soon as that is possible, whatever the caller hears.
                    inner.keep_soon(moved.tenant, webhook, moved.saved, None);
                    return Err(error);
                }
            }
        }
        Err(StoreError::Busy("other nodes are changing this circuit; send the request again".into()))
    }

    /// How many circuits are in which state.
    pub fn circuits(&self) -> Circuits {
        let census = self.0.coordination.census(self.0.clock.now());
        Circuits {
            closed: self.0.registry.len().saturating_sub(census.open + census.half_open),
            half_open: census.half_open,
            open: census.open,
            open_over_an_hour: census.open_over_an_hour,
        }
    }

    /// How many deliveries wait behind open circuits; those of the first hundred circuits are counted, and up
    /// to ten thousand of each.
    pub async fn blocked_deliveries(&self) -> Result<u64, StoreError> {
        const CIRCUITS: usize = 100;
        const EACH: usize = 10_000;
        let now = self.0.clock.now();
        let open = self.0.coordination.open(CIRCUITS);
        let backlogs = self.0.store.backlogs(None, open, now, EACH).await?;
        Ok(backlogs.iter().map(|(_, backlog)| backlog.due).sum())
    }
}

/// Circuits by state, among the webhooks that this node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circuits {
    /// Closed.
    pub closed: usize,
    /// Half open.
    pub half_open: usize,
    /// Open.
    pub open: usize,
    /// Open for more than an hour.
    pub open_over_an_hour: usize,
}

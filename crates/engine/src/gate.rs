//! The last look before sending: may this delivery go out now, must it wait, or is it over?

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeadReason, Time, delivery::decide, dispatch::gate::WaitingOn, event::ERASED,
    protection::breaker::CircuitState,
};
use redrive_store::{Next, StoreError};

use crate::{
    Inner,
    coordination::{
        Ask, Grant, Says,
        redis::{Asked, Given, Shared, Slot},
    },
    dispatch::{Moves, Ready, Refusal, Refused},
    record::Ending,
    registry::Hook,
};

/// A delivery that the gate lets pass, and how.
pub(crate) struct Pass {
    pub(crate) hook: Arc<Hook>,
    /// The ticket of a probe of a half-open circuit.
    pub(crate) probe: Option<u64>,
    pub(crate) circuit: CircuitState,
    /// Its place among the requests that all nodes together may have under way to the webhook.
    pub(crate) slot: Option<Slot>,
}

/// What the gate says of one that nothing holds back.
pub(crate) enum Gate {
    /// Send it.
    Go,
    /// It is over without a request.
    End(Ending),
    /// Nodes keep dying while they send it: counted as a failed attempt.
    Poison,
    /// It is not ours any more.
    Lost,
    /// It may not be ours any more.
    Late,
}

/// The longest that a webhook is turned away without asking again. Whatever blocks it for longer is in the
/// store; should it have ended meanwhile, this is how long that can go unnoticed.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Until when to turn a webhook away that is blocked until then, or nobody knows how long.
fn parked_until(until: Option<Time>, now: Time) -> Time {
    until.unwrap_or(Time::FOREVER).min(now + ASK_AGAIN)
}

/// How long a probe that was sent may stay away beyond its timeout before it counts as lost.
const GRACE: Duration = Duration::from_secs(10);

const CLOSED: CircuitState = CircuitState::Closed;

fn patience(ready: &Ready, hook: &Hook) -> Duration {
    hook.policy.timeout(ready.attempt) + GRACE
}

impl Inner {
    /// Starts what dispatch lets go and the gate lets pass, gives back what has to wait in the store, and has
    /// the store asked for more if there is room.
    pub(crate) fn carry_out(self: &Arc<Self>, mut moves: Moves) {
        loop {
            if moves.refill {
                self.alarm.ring();
            }
            if !moves.hand_back.is_empty() {
                self.hand_back(std::mem::take(&mut moves.hand_back));
            }
            if moves.start.is_empty() {
                return;
            }
            let refused = self.start(moves.start);
            if refused.is_empty() {
                return;
            }
            moves = self.dispatch.refuse(refused);
            // Something may have to be woken sooner than was planned.
            self.gate_alarm.notify_one();
        }
    }

    /// Sends nothing to a webhook that is blocked until then, or nobody knows how long.
    pub(crate) fn park(self: &Arc<Self>, hook: &Hook, until: Option<Time>) {
        let moves = self.dispatch.park(self.whom(hook), parked_until(until, self.clock.now()));
        self.carry_out(moves);
        self.gate_alarm.notify_one();
    }

    /// Asks for all of them at once and starts those that may go. Gives those that may not.
    fn start(self: &Arc<Self>, start: Vec<Ready>) -> Vec<Refused> {
        if !self.fleet.may_send() {
            return start.into_iter().map(|ready| Refused { ready, how: Refusal::Silence }).collect();
        }
        let (now, confirmed_now) = (self.clock.now(), self.clock.confirmed_now());
        let mut known = Vec::with_capacity(start.len());
        for ready in start {
            match self.registry.hook(ready.webhook) {
                // What is over needs nobody's leave to end, and no token.
                Some(hook)
                    if ready.term.is_over()
                        || end_without_request(&ready, &hook, confirmed_now).is_some() =>
                {
                    self.spawn(ready, Pass { hook, probe: None, circuit: CircuitState::Closed, slot: None });
                }
                Some(hook) => known.push((ready, hook)),
                None => self.start_unknown(ready),
            }
        }
        match self.shared() {
            Some(shared) => self.start_shared(shared.clone(), known, now),
            None => self.start_here(known, now),
        }
    }

    /// Starts those that may go as far as this node knows.
    fn start_here(self: &Arc<Self>, known: Vec<(Ready, Arc<Hook>)>, now: Time) -> Vec<Refused> {
        let asks: Vec<_> = known
            .iter()
            .map(|(ready, hook)| Ask { hook, event: ready.event.id, patience: patience(ready, hook) })
            .collect();
        let grants = self.coordination.admit(&asks, now);
        drop(asks);
        // Without Redis each node has its part; what is under way by then Redis hears of when it is back.
        let count =
            |hook: &Hook| self.shared.as_ref().map(|shared| shared.slots.count(hook.id, hook.max_in_flight));
        let granted = known.into_iter().zip(grants).map(|((ready, hook), grant)| {
            let slot = matches!(grant, Grant::Go { .. }).then(|| count(&hook)).flatten();
            ((ready, hook), (grant, slot))
        });
        self.start_granted(granted, now)
    }

    /// Starts those that nothing limits and nothing is known against, if this node holds a slot for them, and asks
    /// for the others, all at once.
    fn start_shared(
        self: &Arc<Self>,
        shared: Arc<Shared>,
        known: Vec<(Ready, Arc<Hook>)>,
        now: Time,
    ) -> Vec<Refused> {
        let (mut waits, mut asked) = (Vec::new(), Vec::new());
        for (ready, hook) in known {
            match self.coordination.says(&hook, now) {
                Says::Wait(grant) => waits.push(((ready, hook), (grant, None))),
                Says::Go => match shared.slots.take(hook.id, hook.max_in_flight) {
                    slot @ Some(_) => self.spawn(ready, Pass { hook, probe: None, circuit: CLOSED, slot }),
                    None => asked.push((ready, hook, None)),
                },
                Says::Ask => {
                    let slot = shared.slots.take(hook.id, hook.max_in_flight);
                    asked.push((ready, hook, slot));
                }
            }
        }
        if !asked.is_empty() {
            let inner = self.clone();
            self.runtime.spawn(async move { inner.ask(shared, asked).await });
        }
        self.start_granted(waits, now)
    }

    /// Asks all nodes, as it were, for leave to send these.
    async fn ask(self: Arc<Self>, shared: Arc<Shared>, asked: Vec<(Ready, Arc<Hook>, Option<Slot>)>) {
        let asks = asked.iter().map(|(ready, hook, slot)| Asked {
            hook: hook.clone(),
            event: ready.event.id,
            patience: patience(ready, hook).as_millis() as u64,
            has_slot: slot.is_some(),
        });
        let given = shared.admit(asks.collect()).await;
        let now = self.clock.now();
        let refused = match given {
            Ok(given) => {
                let granted = asked.into_iter().zip(given).map(|((ready, hook, had), (grant, slot))| {
                    ((ready, hook), (grant, slot.or(had.filter(|_| matches!(grant, Grant::Go { .. })))))
                });
                self.start_granted(granted, now)
            }
            Err(_) => self.start_here(asked.into_iter().map(|(ready, hook, _)| (ready, hook)).collect(), now),
        };
        if !refused.is_empty() {
            let moves = self.dispatch.refuse(refused);
            self.carry_out(moves);
            self.gate_alarm.notify_one();
        }
    }

    /// Starts those that may go. Gives the others.
    fn start_granted(
        self: &Arc<Self>,
        granted: impl IntoIterator<Item = ((Ready, Arc<Hook>), Given)>,
        now: Time,
    ) -> Vec<Refused> {
        let mut refused = Vec::new();
        for ((ready, hook), (grant, slot)) in granted {
            match grant {
                Grant::Go { probe, circuit } => self.spawn(ready, Pass { hook, probe, circuit, slot }),
                Grant::Wait { until, why, scope } => {
                    self.metrics.held_back(why);
                    let how = match (why, until) {
                        (WaitingOn::RateLimit, Some(until)) if !self.is_held(&hook, now) => {
                            Refusal::Soon(scope, until)
                        }
                        // The others have all slots: soon one is free.
                        (WaitingOn::InFlightLimit, Some(until)) => Refusal::Soon(scope, until),
                        (WaitingOn::CircuitOpen | WaitingOn::RateLimit, until) => {
                            Refusal::Park(parked_until(until, now))
                        }
                        // Whatever it is, the store knows it and keeps the delivery until it is over.
                        _ => Refusal::Alone(ready.due),
                    };
                    refused.push(Refused { ready, how });
                }
                Grant::Probed { until } => refused.push(Refused { ready, how: Refusal::Alone(until) }),
                Grant::NoProbe => refused.push(Refused { ready, how: Refusal::NoProbe }),
            }
        }
        refused
    }

    fn spawn(self: &Arc<Self>, ready: Ready, pass: Pass) {
        let inner = self.clone();
        self.runtime.spawn(async move { inner.deliver(ready, pass).await });
    }

    /// Whether it is the endpoint that wants a rest, not a bucket that is empty.
    fn is_held(&self, hook: &Hook, now: Time) -> bool {
        self.coordination.held_until(hook.id, now).is_some()
    }

    /// A delivery whose webhook this node has not read yet, or which is gone.
    fn start_unknown(self: &Arc<Self>, ready: Ready) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            match inner.registry.find(&*inner.store, ready.webhook).await {
                Ok(Some(hook)) if hook.state.cancels_because().is_none() => {
                    // Known now: it takes its turn again.
                    let how = Refusal::Soon(redrive_core::dispatch::gate::Scope::Webhook, inner.clock.now());
                    let moves = inner.dispatch.refuse(vec![Refused { ready, how }]);
                    inner.carry_out(moves);
                    inner.gate_alarm.notify_one();
                }
                Ok(hook) => {
                    let reason = hook.and_then(|hook| hook.state.cancels_because().map(str::to_owned));
                    inner.free_slot(&ready);
                    let reason = reason.unwrap_or_else(|| "the webhook is gone".into());
                    inner.record_end(ready, Ending::of_webhook(reason));
                }
                Err(error) => {
                    tracing::warn!(
                    delivery_id = %ready.id, webhook_id = %ready.webhook, tenant = %ready.event.tenant, %error,
                    "the store cannot be asked; the delivery goes back");
                    inner.free_slot(&ready);
                    inner.give_back(ready);
                }
            }
        });
    }

    /// Whether a delivery that nothing holds back is to be sent at all.
    pub(crate) async fn gate(&self, ready: &Ready, hook: &Hook) -> Result<Gate, StoreError> {
        if ready.term.is_over() {
            return Ok(Gate::Lost);
        }
        if let Some(ending) = end_without_request(ready, hook, self.clock.confirmed_now()) {
            return Ok(Gate::End(ending));
        }
        if ready.deaths >= decide::POISON_DEATHS {
            return Ok(Gate::Poison);
        }
        // Only a delivery that has already outlived a node is worth a note of its own before it is sent.
        if ready.rescues > 0 && !self.store.mark_sending(ready.term.epoch, ready.id).await? {
            return Ok(Gate::Lost);
        }
        // It may have been cancelled between its start and now.
        if let Some(reason) = self.dispatch.cancel_reason(ready.id) {
            return Ok(Gate::End(Next::Cancelled { reason }.into()));
        }
        // Getting here may have taken its time.
        Ok(if self.fleet.may_send() { Gate::Go } else { Gate::Late })
    }
}

/// How a delivery ends before it is sent, if it does: its webhook is over, its payload is gone, or it has waited for
/// too long by the confirmed time.
fn end_without_request(ready: &Ready, hook: &Hook, confirmed_now: Time) -> Option<Ending> {
    if let Some(reason) = hook.state.cancels_because() {
        return Some(Ending::of_webhook(reason));
    }
    if ready.event.is_erased() {
        return Some(Next::Cancelled { reason: ERASED.into() }.into());
    }
    if hook.has_expired(confirmed_now) {
        return Some(Ending::of_webhook(crate::expiry::EXPIRED));
    }
    let too_old = confirmed_now >= decide::gives_up_at(ready.created_at, &hook.policy);
    too_old.then(|| Next::Dead { reason: DeadReason::Expired }.into())
}

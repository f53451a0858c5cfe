//! The last look before sending: may this delivery go out now, must it wait, or is it over?

use std::{sync::Arc, time::Duration};

use redrive_core::{DeadReason, Time, breaker::CircuitState, decide, event::ERASED, gate::WaitingOn};
use redrive_store::{Next, StoreError};

use crate::{
    Inner,
    coordination::{Ask, Grant},
    dispatch::{Moves, Ready, Refusal, Refused},
    registry::Hook,
};

/// A delivery that the gate lets pass, and how.
pub(crate) struct Pass {
    pub(crate) hook: Arc<Hook>,
    /// The ticket of a probe of a half-open circuit.
    pub(crate) probe: Option<u64>,
    pub(crate) circuit: CircuitState,
}

/// What the gate says of one that nothing holds back.
pub(crate) enum Gate {
    /// Send it.
    Go,
    /// It is over without a request.
    End(Next),
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
        let now = self.clock.now();
        let mut known = Vec::with_capacity(start.len());
        for ready in start {
            match self.registry.hook(ready.webhook) {
                // What is over needs nobody's leave to end, and no token.
                Some(hook) if ready.term.is_over() || end_without_request(&ready, &hook, now).is_some() => {
                    self.spawn(ready, Pass { hook, probe: None, circuit: CircuitState::Closed });
                }
                Some(hook) => known.push((ready, hook)),
                None => self.start_unknown(ready),
            }
        }
        let asks: Vec<_> = known
            .iter()
            .map(|(ready, hook)| Ask {
                hook,
                event: ready.event.id,
                patience: hook.policy.timeout(ready.attempt) + GRACE,
            })
            .collect();
        let grants = self.coordination.admit(&asks, now);
        drop(asks);
        let mut refused = Vec::new();
        for ((ready, hook), grant) in known.into_iter().zip(grants) {
            match grant {
                Grant::Go { probe, circuit } => self.spawn(ready, Pass { hook, probe, circuit }),
                Grant::Wait { until, why, scope } => {
                    self.metrics.held_back(why);
                    let how = match (why, until) {
                        (WaitingOn::RateLimit, Some(until)) if !self.is_held(&hook, now) => {
                            Refusal::Soon(scope, until)
                        }
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
        self.coordination.standing(hook, now).held_until.is_some()
    }

    /// A delivery whose webhook this node has not read yet, or which is gone.
    fn start_unknown(self: &Arc<Self>, ready: Ready) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            match inner.registry.find(&*inner.store, ready.webhook).await {
                Ok(Some(hook)) if hook.state.cancels_because().is_none() => {
                    // Known now: it takes its turn again.
                    let how = Refusal::Soon(redrive_core::gate::Scope::Webhook, inner.clock.now());
                    let moves = inner.dispatch.refuse(vec![Refused { ready, how }]);
                    inner.carry_out(moves);
                    inner.gate_alarm.notify_one();
                }
                Ok(hook) => {
                    let reason = hook.and_then(|hook| hook.state.cancels_because().map(str::to_owned));
                    inner.free_slot(&ready);
                    let reason = reason.unwrap_or_else(|| "the webhook is gone".into());
                    inner.record_end(ready, Next::Cancelled { reason });
                }
                Err(error) => {
                    tracing::warn!(delivery = %ready.id, %error, "the store cannot be asked; the delivery goes back");
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
        if let Some(next) = end_without_request(ready, hook, self.clock.now()) {
            return Ok(Gate::End(next));
        }
        if ready.deaths >= decide::POISON_DEATHS {
            return Ok(Gate::Poison);
        }
        // Only a delivery that has already outlived a node is worth a note of its own before it is sent.
        if ready.rescues > 0 && !self.store.mark_sending(ready.term.epoch, ready.id).await? {
            return Ok(Gate::Lost);
        }
        // Getting here may have taken its time.
        Ok(if self.fleet.may_send() { Gate::Go } else { Gate::Late })
    }
}

/// How a delivery ends before it is sent, if it does: its webhook is over, its payload is gone, or it has waited for
/// too long.
fn end_without_request(ready: &Ready, hook: &Hook, now: Time) -> Option<Next> {
    if let Some(reason) = hook.state.cancels_because() {
        return Some(Next::Cancelled { reason: reason.to_owned() });
    }
    if ready.event.is_erased() {
        return Some(Next::Cancelled { reason: ERASED.into() });
    }
    if hook.has_expired(now) {
        return Some(Next::Cancelled { reason: crate::expiry::EXPIRED.into() });
    }
    let too_old = now >= decide::gives_up_at(ready.created_at, &hook.policy);
    too_old.then_some(Next::Dead { reason: DeadReason::Expired })
}

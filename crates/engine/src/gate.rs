//! The gate: decides right before sending what happens to a delivery, in two steps.
//!
//! Admission starts a delivery or lets it wait, in memory or in the store. The pre-send check of a started delivery
//! then decides whether it is sent, ends without a request, gets a failed attempt (poison delivery), is dropped because
//! another node has its lease, or is released because another node may have it.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeadReason, Time, delivery::decide, dispatch::gate::WaitingOn, event::REASON_ERASED,
    protection::breaker::CircuitState,
};
use redrive_store::{NextState, StoreError};

use crate::{
    Inner,
    coordination::{
        AdmissionDecision, AdmissionRequest, LocalDecision,
        redis::{DecisionWithSlot, RedisAdmissionRequest, RedisCoordinator, Slot},
    },
    dispatch::{Deferral, DeferredDelivery, DispatchActions, LeasedDelivery},
    probe::Probe,
    record::EndWithoutAttempt,
    registry::ResolvedWebhook,
    unsettled::UnsettledDelivery,
};

/// Permit to send one delivery now.
pub(crate) struct Admission {
    pub(crate) webhook: Arc<ResolvedWebhook>,
    /// Set if the request is a probe of a half-open circuit.
    pub(crate) probe: Option<Probe>,
    pub(crate) circuit: CircuitState,
    /// Slot of the webhook's cluster-wide concurrency limit.
    pub(crate) slot: Option<Slot>,
}

/// A started delivery that may not be sent now.
type Deferred = (UnsettledDelivery, Deferral);

/// Result of the last check of an admitted delivery.
pub(crate) enum PreSendCheck {
    /// Send the request.
    Send,
    /// End the delivery without a request.
    Finish(EndWithoutAttempt),
    /// Too many nodes died, or tasks panicked, while sending it: record a failed attempt.
    Poison,
    /// Another node has the lease: drop the delivery.
    LeaseLost,
    /// The time by which this node may start requests under its send lease has ended, so another node may have the
    /// delivery: release it.
    LeaseUncertain,
}

/// Longest time that a webhook is parked without checking again. A longer block is kept in the store; if it ends
/// early and this node does not notice, sending resumes after this time.
const MAX_PARK_INTERVAL: Duration = Duration::from_secs(60);

/// Returns until when to park a webhook that is blocked until `until`, or for an unknown time if `None`.
fn parked_until(until: Option<Time>, now: Time) -> Time {
    until.unwrap_or(Time::FAR_FUTURE).min(now + MAX_PARK_INTERVAL)
}

/// Time beyond the request timeout after which a probe without a result counts as lost.
const PROBE_GRACE: Duration = Duration::from_secs(10);

const CLOSED: CircuitState = CircuitState::Closed;

fn probe_timeout(delivery: &LeasedDelivery, webhook: &ResolvedWebhook) -> Duration {
    webhook.retry_policy.timeout(delivery.attempt) + PROBE_GRACE
}

impl Inner {
    /// Starts the deliveries that the gate admits, releases those that have to wait in the store, and wakes the
    /// scheduler if there is capacity for more.
    pub(crate) fn apply_actions(self: &Arc<Self>, mut actions: DispatchActions) {
        loop {
            if actions.refill {
                self.scheduler_wakeup.wake();
            }
            if !actions.release.is_empty() {
                self.release_queued(std::mem::take(&mut actions.release));
            }
            if actions.start.is_empty() {
                return;
            }
            let deferred = self.start(actions.start);
            if deferred.is_empty() {
                return;
            }
            actions = self.defer(deferred);
            // A deferred delivery may need an earlier wake-up than the one that is set.
            self.gate_wakeup.notify_one();
        }
    }

    /// Returns deliveries that were not admitted to their queues.
    fn defer(&self, deferred: Vec<Deferred>) -> DispatchActions {
        let queued = deferred
            .into_iter()
            .map(|(delivery, deferral)| DeferredDelivery { delivery: delivery.into_queued(), deferral });
        self.dispatcher.defer(queued.collect())
    }

    /// Parks a webhook that is blocked until `until`, or for an unknown time if `None`.
    pub(crate) fn park(self: &Arc<Self>, webhook: &ResolvedWebhook, until: Option<Time>) {
        let actions =
            self.dispatcher.park(self.webhook_limits(webhook), parked_until(until, self.clock.now()));
        self.apply_actions(actions);
        self.gate_wakeup.notify_one();
    }

    /// Requests admission for all deliveries in one call and starts those that are admitted. Returns the others.
    fn start(self: &Arc<Self>, start: Vec<LeasedDelivery>) -> Vec<Deferred> {
        // Guarded before anything can fail.
        let start: Vec<_> =
            start.into_iter().map(|delivery| UnsettledDelivery::started(self, delivery)).collect();
        if !self.membership.node_may_send() {
            return start.into_iter().map(|delivery| (delivery, Deferral::SuspendNode)).collect();
        }
        let (now, confirmed_now) = (self.clock.now(), self.clock.confirmed_now());
        let mut known = Vec::with_capacity(start.len());
        for delivery in start {
            match self.registry.webhook(delivery.webhook_id) {
                // A delivery that must not be sent skips admission and takes no token. Either it ends without a request
                // (webhook gone, payload erased, expired), or this node drops it (its epoch has ended, so another node
                // has the delivery).
                Some(webhook)
                    if delivery.epoch.is_ended()
                        || end_before_send(&delivery, &webhook, confirmed_now).is_some() =>
                {
                    // The admission is a placeholder: the pre-send check ends or drops the delivery; nothing is sent.
                    self.spawn(
                        delivery,
                        Admission { webhook, probe: None, circuit: CircuitState::Closed, slot: None },
                    );
                }
                Some(webhook) => known.push((delivery, webhook)),
                None => self.start_unknown(delivery),
            }
        }
        match self.redis_coordinator() {
            Some(redis) => self.admit_through_redis(redis.clone(), known, now),
            None => self.admit_locally(known, now),
        }
    }

    /// Starts the deliveries that this node's local coordinator admits. Returns the others.
    fn admit_locally(
        self: &Arc<Self>,
        known: Vec<(UnsettledDelivery, Arc<ResolvedWebhook>)>,
        now: Time,
    ) -> Vec<Deferred> {
        let requests: Vec<_> = known
            .iter()
            .map(|(delivery, webhook)| AdmissionRequest {
                webhook,
                event_id: delivery.event.id,
                probe_timeout: probe_timeout(delivery, webhook),
            })
            .collect();
        let decisions = self.coordination.admit(&requests, now);
        drop(requests);
        // In fallback each node uses its share of the slots. Slots in use are reported to Redis when it is available
        // again.
        let acquire_fallback_slot = |webhook: &ResolvedWebhook| {
            self.redis
                .as_ref()
                .map(|redis| redis.slots.acquire_in_fallback(webhook.id, webhook.max_in_flight))
        };
        let decided = known.into_iter().zip(decisions).map(|((delivery, webhook), decision)| {
            let slot = matches!(decision, AdmissionDecision::Go { .. })
                .then(|| acquire_fallback_slot(&webhook))
                .flatten();
            ((delivery, webhook), (decision, slot))
        });
        self.start_admitted(decided, now)
    }

    /// Starts deliveries of webhooks without limits or blocks if this node has a slot for them, and requests
    /// admission from Redis for the others in one call.
    fn admit_through_redis(
        self: &Arc<Self>,
        redis: Arc<RedisCoordinator>,
        known: Vec<(UnsettledDelivery, Arc<ResolvedWebhook>)>,
        now: Time,
    ) -> Vec<Deferred> {
        let (mut waits, mut undecided) = (Vec::new(), Vec::new());
        for (delivery, webhook) in known {
            match self.coordination.decide_locally(&webhook, now) {
                LocalDecision::Wait(decision) => waits.push(((delivery, webhook), (decision, None))),
                LocalDecision::Go => match redis.slots.try_acquire(webhook.id, webhook.max_in_flight) {
                    slot @ Some(_) => {
                        self.spawn(delivery, Admission { webhook, probe: None, circuit: CLOSED, slot })
                    }
                    None => undecided.push((delivery, webhook, None)),
                },
                LocalDecision::AskRedis => {
                    let slot = redis.slots.try_acquire(webhook.id, webhook.max_in_flight);
                    undecided.push((delivery, webhook, slot));
                }
            }
        }
        if !undecided.is_empty() {
            let inner = self.clone();
            self.runtime.spawn(async move { inner.request_admission(redis, undecided).await });
        }
        self.start_admitted(waits, now)
    }

    /// Requests admission from Redis, which decides for all nodes.
    async fn request_admission(
        self: Arc<Self>,
        redis: Arc<RedisCoordinator>,
        undecided: Vec<(UnsettledDelivery, Arc<ResolvedWebhook>, Option<Slot>)>,
    ) {
        let requests = undecided.iter().map(|(delivery, webhook, slot)| RedisAdmissionRequest {
            webhook: webhook.clone(),
            event_id: delivery.event.id,
            probe_timeout: probe_timeout(delivery, webhook).as_millis() as u64,
            has_slot: slot.is_some(),
        });
        let decisions = redis.admit(requests.collect()).await;
        let now = self.clock.now();
        let deferred = match decisions {
            Ok(decisions) => {
                let decided = undecided.into_iter().zip(decisions).map(
                    |((delivery, webhook, had), (decision, slot))| {
                        let is_admitted = matches!(decision, AdmissionDecision::Go { .. });
                        ((delivery, webhook), (decision, slot.or(had.filter(|_| is_admitted))))
                    },
                );
                self.start_admitted(decided, now)
            }
            Err(_) => self.admit_locally(
                undecided.into_iter().map(|(delivery, webhook, _)| (delivery, webhook)).collect(),
                now,
            ),
        };
        if !deferred.is_empty() {
            let actions = self.defer(deferred);
            self.apply_actions(actions);
            self.gate_wakeup.notify_one();
        }
    }

    /// Starts the admitted deliveries. Returns the others.
    fn start_admitted(
        self: &Arc<Self>,
        decided: impl IntoIterator<Item = ((UnsettledDelivery, Arc<ResolvedWebhook>), DecisionWithSlot)>,
        now: Time,
    ) -> Vec<Deferred> {
        let mut deferred = Vec::new();
        for ((delivery, webhook), (decision, slot)) in decided {
            match decision {
                AdmissionDecision::Go { probe, circuit } => {
                    let probe = probe.map(|id| Probe::new(self, &webhook, id));
                    self.spawn(delivery, Admission { webhook, probe, circuit, slot })
                }
                AdmissionDecision::Wait { until, reason, scope } => {
                    self.metrics.count_rate_limited(reason);
                    let deferral = match (reason, until) {
                        (WaitingOn::RateLimit, Some(until)) if !self.is_429_pause(&webhook, now) => {
                            Deferral::Hold(scope, until)
                        }
                        // Other nodes use all slots; one will be free shortly.
                        (WaitingOn::InFlightLimit, Some(until)) => Deferral::Hold(scope, until),
                        (WaitingOn::CircuitOpen | WaitingOn::RateLimit, until) => {
                            Deferral::ParkWebhook(parked_until(until, now))
                        }
                        // Other blocks are recorded in the store, which keeps the delivery until they end.
                        _ => Deferral::ReleaseOne(delivery.due),
                    };
                    deferred.push((delivery, deferral));
                }
                AdmissionDecision::AlreadyProbed { until } => {
                    deferred.push((delivery, Deferral::ReleaseOne(until)))
                }
                AdmissionDecision::NoProbe => deferred.push((delivery, Deferral::NoProbe)),
            }
        }
        deferred
    }

    fn spawn(self: &Arc<Self>, delivery: UnsettledDelivery, admission: Admission) {
        let inner = self.clone();
        self.runtime.spawn(async move { inner.deliver(delivery, admission).await });
    }

    /// Returns whether the wait is the pause after a 429 and not due to an empty token bucket.
    fn is_429_pause(&self, webhook: &ResolvedWebhook, now: Time) -> bool {
        self.coordination.paused_by_429_until(webhook.id, now).is_some()
    }

    /// Starts a delivery whose webhook is not cached on this node, or was deleted.
    fn start_unknown(self: &Arc<Self>, mut delivery: UnsettledDelivery) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            match inner.registry.get_or_load(&*inner.store, delivery.webhook_id).await {
                Ok(Some(webhook)) if webhook.state.cancel_reason().is_none() => {
                    // The webhook is cached now: queue the delivery again.
                    let deferral = Deferral::Hold(redrive_core::dispatch::gate::Scope::Webhook, inner.clock.now());
                    let actions = inner.defer(vec![(delivery, deferral)]);
                    inner.apply_actions(actions);
                    inner.gate_wakeup.notify_one();
                }
                Ok(webhook) => {
                    let reason = webhook.and_then(|webhook| webhook.state.cancel_reason().map(str::to_owned));
                    delivery.free_webhook_slot();
                    let reason = reason.unwrap_or_else(|| "the webhook is gone".into());
                    inner.record_without_attempt(delivery, EndWithoutAttempt::for_inactive_webhook(reason));
                }
                Err(error) => {
                    tracing::warn!(
                    delivery_id = %delivery.id, webhook_id = %delivery.webhook_id, tenant_id = %delivery.event.tenant_id, %error,
                    "store access failed; delivery released");
                    delivery.release();
                }
            }
        });
    }

    /// Checks whether an admitted delivery is to be sent.
    pub(crate) async fn pre_send_check(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
    ) -> Result<PreSendCheck, StoreError> {
        if delivery.epoch.is_ended() {
            return Ok(PreSendCheck::LeaseLost);
        }
        if let Some(end) = end_before_send(delivery, webhook, self.clock.confirmed_now()) {
            return Ok(PreSendCheck::Finish(end));
        }
        if delivery.sender_deaths >= decide::MAX_SENDER_DEATHS {
            return Ok(PreSendCheck::Poison);
        }
        // Only a delivery that was rescued from a dead node is worth an extra write before it is sent.
        if delivery.rescues > 0 && !self.store.mark_sending(delivery.epoch.epoch, delivery.id).await? {
            return Ok(PreSendCheck::LeaseLost);
        }
        // The delivery may have been cancelled since it was started.
        if let Some(reason) = self.dispatcher.cancel_reason(delivery.id) {
            return Ok(PreSendCheck::Finish(NextState::Cancelled { reason }.into()));
        }
        // The checks above may have outlasted the send lease.
        Ok(if self.membership.node_may_send() { PreSendCheck::Send } else { PreSendCheck::LeaseUncertain })
    }
}

/// Returns how a delivery ends before it is sent, if it does: its webhook cancels deliveries or has expired, its
/// payload was erased, or it has exceeded `give_up_after` by the confirmed time.
fn end_before_send(
    delivery: &LeasedDelivery,
    webhook: &ResolvedWebhook,
    confirmed_now: Time,
) -> Option<EndWithoutAttempt> {
    if let Some(reason) = webhook.state.cancel_reason() {
        return Some(EndWithoutAttempt::for_inactive_webhook(reason));
    }
    if delivery.event.is_erased() {
        return Some(NextState::Cancelled { reason: REASON_ERASED.into() }.into());
    }
    if webhook.has_expired(confirmed_now) {
        return Some(EndWithoutAttempt::for_inactive_webhook(crate::expiry::REASON_EXPIRED));
    }
    let too_old = confirmed_now >= decide::give_up_at(delivery.created_at, &webhook.retry_policy);
    too_old.then(|| NextState::Dead { reason: DeadReason::Expired }.into())
}

//! Admission: decides whether a delivery that was taken from its queue is sent, waits in memory, or returns to the store.

use std::{sync::Arc, time::Duration};

use redrive_core::{Time, dispatch::gate::WaitingOn, protection::breaker::CircuitState};

use super::{
    Deferral, DeliveryHandler, Dispatcher, LeasedDelivery, UnsettledDelivery, end_before_send,
    perform::UnadmittedDelivery,
};
use crate::{
    coordinate::{
        AdmissionDecision, AdmissionRequest, LocalDecision,
        redis::{DecisionWithSlot, RedisAdmissionRequest, RedisCoordinator, Slot},
    },
    routing::ResolvedWebhook,
};

/// Permit to send one delivery now.
pub(crate) struct Admission {
    pub(crate) webhook: Arc<ResolvedWebhook>,
    /// Id of the probe, if the request is a probe of a half-open circuit.
    pub(crate) probe_id: Option<u64>,
    pub(crate) circuit: CircuitState,
    /// Slot of the webhook's cluster-wide concurrency limit.
    pub(crate) cluster_slot: Option<Slot>,
}

/// A delivery that was taken from its queue to be sent, and its webhook.
type DeliveryWithWebhook = (UnsettledDelivery, Arc<ResolvedWebhook>);

/// Longest time that a webhook is parked without checking again. A longer block is kept in the store; if it ends
/// early and this node does not notice, sending resumes after this time.
const MAX_PARK_DURATION: Duration = Duration::from_secs(60);

/// Returns until when to park a webhook that is blocked until `until`, or for an unknown time if `None`.
pub(super) fn parked_until(until: Option<Time>, now: Time) -> Time {
    until.unwrap_or(Time::FAR_FUTURE).min(now + MAX_PARK_DURATION)
}

/// Time beyond the request timeout after which a probe without a result counts as lost.
const PROBE_RESULT_GRACE: Duration = Duration::from_secs(10);

const CLOSED: CircuitState = CircuitState::Closed;

fn probe_timeout(delivery: &LeasedDelivery, webhook: &ResolvedWebhook) -> Duration {
    webhook.retry_policy.timeout(delivery.attempt) + PROBE_RESULT_GRACE
}

impl Dispatcher {
    /// Requests admission for all deliveries in one call and starts attempts for those that are admitted. Returns the others.
    pub(super) fn admit(
        self: &Arc<Self>,
        started: Vec<UnsettledDelivery>,
        handler: &Arc<dyn DeliveryHandler>,
    ) -> Vec<UnadmittedDelivery> {
        if !self.membership.node_may_send() {
            return started.into_iter().map(|delivery| (delivery, Deferral::SuspendNode)).collect();
        }
        let (now, confirmed_now) = (self.clock.now(), self.clock.confirmed_now());
        let mut known = Vec::with_capacity(started.len());
        for delivery in started {
            match self.router.webhook(delivery.webhook_id) {
                // A delivery that must not be sent skips admission and takes no token. Either it ends without a request
                // (webhook gone, payload erased, expired), or this node drops it (its epoch has ended, so another node
                // has the delivery).
                Some(webhook)
                    if delivery.epoch.is_ended()
                        || end_before_send(&delivery, &webhook, confirmed_now).is_some() =>
                {
                    // The admission is a placeholder: the pre-send check ends or drops the delivery; nothing is sent.
                    handler.clone().start_attempt(
                        delivery,
                        Admission { webhook, probe_id: None, circuit: CLOSED, cluster_slot: None },
                    );
                }
                Some(webhook) => known.push((delivery, webhook)),
                None => self.load_webhook_of(delivery),
            }
        }
        match self.coordinator.redis() {
            Some(redis) => self.admit_through_redis(redis.clone(), known, now, handler),
            None => self.admit_locally(known, now, handler),
        }
    }

    /// Starts attempts for those that this node's local coordinator admits. Returns the others.
    fn admit_locally(
        &self,
        known: Vec<DeliveryWithWebhook>,
        now: Time,
        handler: &Arc<dyn DeliveryHandler>,
    ) -> Vec<UnadmittedDelivery> {
        let requests: Vec<_> = known
            .iter()
            .map(|(delivery, webhook)| AdmissionRequest {
                webhook,
                event_id: delivery.event.id,
                probe_timeout: probe_timeout(delivery, webhook),
            })
            .collect();
        let decisions = self.coordinator.local.admit(&requests, now);
        drop(requests);
        // In fallback each node uses its share of the slots. Slots in use are reported to Redis when it is available
        // again.
        let acquire_fallback_slot = |webhook: &ResolvedWebhook| {
            self.coordinator
                .configured_redis()
                .map(|redis| redis.slots.acquire_in_fallback(webhook.id, webhook.max_in_flight))
        };
        let decided = known.into_iter().zip(decisions).map(|((delivery, webhook), decision)| {
            let slot = matches!(decision, AdmissionDecision::Go { .. })
                .then(|| acquire_fallback_slot(&webhook))
                .flatten();
            ((delivery, webhook), (decision, slot))
        });
        self.start_admitted(decided, now, handler)
    }

    /// Starts deliveries of webhooks without limits or blocks if this node has a slot for them, and requests
    /// admission from Redis for the others in one call.
    fn admit_through_redis(
        self: &Arc<Self>,
        redis: Arc<RedisCoordinator>,
        known: Vec<DeliveryWithWebhook>,
        now: Time,
        handler: &Arc<dyn DeliveryHandler>,
    ) -> Vec<UnadmittedDelivery> {
        let (mut waits, mut undecided) = (Vec::new(), Vec::new());
        for (delivery, webhook) in known {
            match self.coordinator.local.decide_locally(&webhook, now) {
                LocalDecision::Wait(decision) => waits.push(((delivery, webhook), (decision, None))),
                LocalDecision::Go => match redis.slots.try_acquire(webhook.id, webhook.max_in_flight) {
                    slot @ Some(_) => handler.clone().start_attempt(
                        delivery,
                        Admission { webhook, probe_id: None, circuit: CLOSED, cluster_slot: slot },
                    ),
                    None => undecided.push((delivery, webhook, None)),
                },
                LocalDecision::AskRedis => {
                    let slot = redis.slots.try_acquire(webhook.id, webhook.max_in_flight);
                    undecided.push((delivery, webhook, slot));
                }
            }
        }
        if !undecided.is_empty() {
            let dispatcher = self.clone();
            self.tokio.spawn(async move { dispatcher.request_admission(redis, undecided).await });
        }
        self.start_admitted(waits, now, handler)
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
        let Some(handler) = self.handler() else { return };
        let deferred = match decisions {
            Ok(decisions) => {
                let decided = undecided.into_iter().zip(decisions).map(
                    |((delivery, webhook, local_slot), (decision, slot))| {
                        let is_admitted = matches!(decision, AdmissionDecision::Go { .. });
                        ((delivery, webhook), (decision, slot.or(local_slot.filter(|_| is_admitted))))
                    },
                );
                self.start_admitted(decided, now, &handler)
            }
            Err(_) => self.admit_locally(
                undecided.into_iter().map(|(delivery, webhook, _)| (delivery, webhook)).collect(),
                now,
                &handler,
            ),
        };
        if !deferred.is_empty() {
            let actions = self.defer(deferred);
            self.perform(actions);
        }
    }

    /// Starts attempts for those that are admitted. Returns the others.
    fn start_admitted(
        &self,
        decided: impl IntoIterator<Item = (DeliveryWithWebhook, DecisionWithSlot)>,
        now: Time,
        handler: &Arc<dyn DeliveryHandler>,
    ) -> Vec<UnadmittedDelivery> {
        let mut deferred = Vec::new();
        for ((delivery, webhook), (decision, slot)) in decided {
            match decision {
                AdmissionDecision::Go { probe: probe_id, circuit } => handler
                    .clone()
                    .start_attempt(delivery, Admission { webhook, probe_id, circuit, cluster_slot: slot }),
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
                        // The webhook is paused or pending verification, or its pool is not served here. The store keeps the
                        // delivery until that ends.
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

    /// Returns whether the wait is the pause after a 429 and not due to an empty token bucket.
    fn is_429_pause(&self, webhook: &ResolvedWebhook, now: Time) -> bool {
        self.coordinator.local.paused_by_429_until(webhook.id, now).is_some()
    }
}

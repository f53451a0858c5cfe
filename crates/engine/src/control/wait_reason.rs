//! Explains what a delivery waits for: evaluates the same decision as the gate, without side effects.

use std::collections::HashMap;

use redrive_core::{
    DeliveryStatus, TenantId, Time, WebhookId,
    cluster::ticket,
    dispatch::gate::{GateDecision, GateInput, LimitScope, Slots, WaitingOn, decide_admission},
    protection::breaker::{CircuitDecision, CircuitState, CircuitView},
    webhook::{WebhookState, failures::FailureSeries},
};
use redrive_store::{Delivery, StoreError};

use super::Control;
use crate::{coordinate::BlockSnapshot, dispatch::MemoryState, routing::ResolvedWebhook};

/// Explanation for a delivery leased by another node.
const ON_OTHER_NODE: &str = "queued on another node";
/// Explanation for a delivery of a webhook that is assigned to another node.
const ON_ASSIGNED_NODE: &str = "ready, waiting for the node that is assigned to this webhook";

/// What a pending delivery waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    /// Reason.
    pub on: WaitingOn,
    /// End of the wait, if known.
    pub until: Option<Time>,
    /// Explanation as text.
    pub explanation: String,
}

/// Current state of a webhook at the gate.
#[derive(Clone, Debug)]
pub struct GateStatus {
    /// Webhook state in this node's cache.
    pub state: WebhookState,
    /// Circuit.
    pub circuit: CircuitView,
    /// End of the pause after a 429.
    pub paused_by_429_until: Option<Time>,
    /// Failures since the last success.
    pub failures: Option<FailureSeries>,
    /// What its due deliveries wait for; `None` if only for their turn.
    pub wait_reason: Option<WaitReason>,
    /// Requests in flight.
    pub in_flight: usize,
    /// Deliveries queued in this node's memory.
    pub queued: usize,
}

/// What this node knows about a delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryState {
    /// Maximum number of attempts of its webhook; `None` if the webhook is not known.
    pub max_attempts: Option<u32>,
    /// What it waits for, if it is pending; `None` while its request is in flight.
    pub waiting: Option<WaitReason>,
}

impl Control {
    /// Returns what this node knows about each of these deliveries, in their order, with few reads for all of them.
    pub(crate) async fn delivery_states(
        &self,
        deliveries: &[Delivery],
    ) -> Result<Vec<DeliveryState>, StoreError> {
        let ids: Vec<_> = deliveries.iter().map(|delivery| delivery.webhook_id).collect();
        let webhooks = self.router.webhooks_by_id(&ids).await?;
        let state = |delivery: &Delivery| {
            let webhook = webhooks.get(&delivery.webhook_id).map(|webhook| &**webhook);
            DeliveryState {
                max_attempts: webhook.map(|webhook| webhook.retry_policy.max_attempts()),
                waiting: match delivery.status {
                    DeliveryStatus::Pending => self.pending_wait_reason(webhook, delivery),
                    _ => None,
                },
            }
        };
        Ok(deliveries.iter().map(state).collect())
    }

    /// Returns what a pending delivery waits for; `None` while its request is in flight.
    pub(crate) async fn wait_reason(&self, delivery: &Delivery) -> Result<Option<WaitReason>, StoreError> {
        let mut states = self.delivery_states(std::slice::from_ref(delivery)).await?;
        Ok(states.pop().and_then(|state| state.waiting))
    }

    fn pending_wait_reason(
        &self,
        webhook: Option<&ResolvedWebhook>,
        delivery: &Delivery,
    ) -> Option<WaitReason> {
        if delivery.due.is_none() {
            match self.dispatcher.queues.memory_state(delivery.webhook_id, delivery.id) {
                Some(MemoryState::Started) => return None,
                None if self.membership.is_shared() => return Some(capacity(ON_OTHER_NODE)),
                Some(MemoryState::Queued) | None => {}
            }
        }
        let now = self.clock.now();
        let Some(webhook) = webhook else {
            return Some(capacity("the webhook was deleted; the delivery will be cancelled"));
        };
        let blocked = self.delivery_wait_reason(webhook, delivery, now);
        // A delivery in the grace period of its ticket is ready, not scheduled.
        let delay = webhook.retry_policy.first_delay();
        let due = delivery
            .due
            .map(|due| ticket::displayed_due(delivery.created_at, due, delivery.attempt_count, delay));
        Some(match (due, blocked) {
            (Some(due), Some(waiting)) if due > now && waiting.until.is_some_and(|until| until <= due) => {
                scheduled(due)
            }
            // A transient limit does not predict the due time: report the schedule instead.
            (Some(due), Some(waiting)) if due > now && is_transient(waiting.on) => scheduled(due),
            (_, Some(waiting)) => waiting,
            (Some(due), None) if due > now => scheduled(due),
            (_, None)
                if self.dispatcher.assignments.needs_assigned_node(webhook)
                    && !self.dispatcher.assignments.is_assigned_here(webhook.id) =>
            {
                capacity(ON_ASSIGNED_NODE)
            }
            (_, None) => capacity("ready, waiting to be sent"),
        })
    }

    /// Returns what blocks a webhook now. Returns `None` if the webhook does not exist.
    pub(crate) async fn gate_status(&self, webhook_id: WebhookId) -> Result<Option<GateStatus>, StoreError> {
        let webhook = self.router.get_or_load(webhook_id).await?;
        let Some(webhook) = webhook else { return Ok(None) };
        self.coordinator.refresh_circuit(&webhook).await;
        Ok(Some(self.current_gate_status(&webhook)))
    }

    /// Returns what blocks these webhooks now; unknown ones are left out, and those of other tenants than `for_tenant`.
    /// `for_tenant` is the tenant that asked; `None` for an admin of all tenants.
    pub(crate) async fn gate_statuses(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: &[WebhookId],
    ) -> Result<HashMap<WebhookId, GateStatus>, StoreError> {
        let found = self.router.webhooks_by_id(webhooks).await?;
        let own = found.iter().filter(|(_, webhook)| for_tenant.is_none_or(|id| webhook.tenant.id == *id));
        Ok(own.map(|(id, webhook)| (*id, self.current_gate_status(webhook))).collect())
    }
}

impl Control {
    fn current_gate_status(&self, webhook: &ResolvedWebhook) -> GateStatus {
        let now = self.clock.now();
        let snapshot = self.coordinator.local.snapshot(webhook, now);
        let waiting = self.webhook_wait_reason(webhook, &snapshot, true, now);
        let usage = self.dispatcher.queues.usage(self.dispatcher.assignments.webhook_limits(webhook));
        GateStatus {
            state: webhook.state.clone(),
            wait_reason: waiting.map(|(_, waiting)| waiting),
            circuit: snapshot.circuit,
            paused_by_429_until: snapshot.paused_by_429_until,
            failures: snapshot.failures,
            in_flight: usage.webhook,
            queued: usage.queued,
        }
    }

    fn delivery_wait_reason(
        &self,
        webhook: &ResolvedWebhook,
        delivery: &Delivery,
        now: Time,
    ) -> Option<WaitReason> {
        let snapshot = self.coordinator.local.snapshot(webhook, now);
        let (on, mut waiting) =
            self.webhook_wait_reason(webhook, &snapshot, delivery.predecessor.is_none(), now)?;
        if let (WaitingOn::Order, Some(first)) = (on, delivery.predecessor) {
            waiting.explanation = format!("waiting for {first}, the previous delivery of its ordering key");
        }
        Some(waiting)
    }

    fn webhook_wait_reason(
        &self,
        webhook: &ResolvedWebhook,
        snapshot: &BlockSnapshot,
        first: bool,
        now: Time,
    ) -> Option<(WaitingOn, WaitReason)> {
        let limits = self.dispatcher.assignments.webhook_limits(webhook);
        let usage = self.dispatcher.queues.usage(limits);
        let max = limits.max_in_flight;
        let slots = |used: usize, max: usize| Slots {
            used: u32::try_from(used).unwrap_or(u32::MAX),
            max: u32::try_from(max).unwrap_or(u32::MAX),
        };
        let input = GateInput {
            state: &webhook.state,
            // Served by any node, whether or not this node has a share of the limits.
            pool_served: webhook.tenant.is_pool_served_here()
                || self.membership.is_pool_served(&webhook.tenant.pool()),
            paused_by_429_until: snapshot.paused_by_429_until,
            circuit: circuit_decision(&snapshot.circuit, now),
            is_first_in_order: first,
            webhook_slots: slots(usage.webhook, max),
            tenant_slots: slots(usage.tenant, webhook.tenant.max_in_flight()),
            host_has_slot: usage.host_has_slot,
            node_slots: slots(usage.node, self.settings.max_in_flight),
            webhook_token: snapshot.tokens[0],
            tenant_token: snapshot.tokens[1],
            global_token: snapshot.tokens[2],
            now,
        };
        let GateDecision::Wait { until, reason, scope } = decide_admission(&input) else { return None };
        let explanation = match reason {
            WaitingOn::CircuitOpen => describe_circuit(&snapshot.circuit),
            WaitingOn::RateLimit => match (snapshot.paused_by_429_until, scope) {
                (Some(until), _) => format!("endpoint returned 429; nothing is sent until {until}"),
                (None, LimitScope::Webhook) => "the webhook's rate limit is exhausted".into(),
                (None, LimitScope::Tenant) => "the tenant's rate limit is exhausted".into(),
                (None, LimitScope::Host | LimitScope::Node) => {
                    "the rate limit of the whole cluster is exhausted".into()
                }
            },
            WaitingOn::InFlightLimit => {
                format!("{} of {max} requests to this webhook are in flight", usage.webhook)
            }
            WaitingOn::Order => "waiting for the previous delivery of its ordering key".into(),
            WaitingOn::Paused if matches!(webhook.state, WebhookState::PendingVerification(_)) => {
                "the endpoint has not echoed the verification challenge yet; sending starts once it has"
                    .into()
            }
            WaitingOn::Paused => "the webhook is paused; resume it to continue".into(),
            WaitingOn::Capacity if scope == LimitScope::Tenant => {
                "the tenant has reached its limit of unfinished deliveries on this node".into()
            }
            WaitingOn::Capacity if scope == LimitScope::Host => {
                "this node has reached its limit of requests in flight to the webhook's host".into()
            }
            WaitingOn::Capacity => "this node has reached its limit of unfinished deliveries".into(),
            WaitingOn::Pool => {
                format!("no worker serves the pool \"{}\"", webhook.tenant.pool())
            }
            WaitingOn::Schedule => "its next attempt is not due yet".into(),
        };
        Some((reason, WaitReason { on: reason, until, explanation }))
    }
}

/// Returns what the circuit would decide for a delivery now, without asking it, which could use up a probe.
fn circuit_decision(circuit: &CircuitView, now: Time) -> CircuitDecision {
    if let Some(forced) = &circuit.forced {
        let over = forced.until.is_some_and(|until| until <= now);
        return match forced.open && !over {
            true => CircuitDecision::Wait { until: forced.until, forced: true },
            false => CircuitDecision::Go,
        };
    }
    match circuit.state {
        CircuitState::Closed => CircuitDecision::Go,
        CircuitState::Open => CircuitDecision::Wait { until: circuit.next_half_open_at, forced: false },
        // Either all probes are in flight, or this delivery is about to become one.
        CircuitState::HalfOpen => CircuitDecision::Wait { until: None, forced: false },
    }
}

fn describe_circuit(circuit: &CircuitView) -> String {
    let since = circuit.state_transition_at;
    if let Some(forced) = &circuit.forced {
        let end = forced.until.map_or("until it is reset".into(), |until| format!("until {until}"));
        return format!("circuit forced open by {} since {since}, {end}", forced.by);
    }
    let counts = &circuit.counts;
    let mostly =
        counts.most_frequent().map_or(String::new(), |category| format!(", mostly with {}", category.name()));
    let failed = format!("{} of {} attempts failed{mostly}", counts.failed, counts.total);
    match circuit.next_half_open_at {
        Some(next) => format!("circuit open since {since}, {failed}; next probe at {next}"),
        None => {
            let (sent, ok) = (circuit.half_open_attempts, circuit.half_open_successes);
            format!(
                "circuit half-open since {since}: {sent} probes sent, {ok} succeeded; waiting for the probe results"
            )
        }
    }
}

/// Returns whether a reason is transient and does not predict later times.
fn is_transient(on: WaitingOn) -> bool {
    matches!(on, WaitingOn::InFlightLimit | WaitingOn::Capacity | WaitingOn::RateLimit)
}

fn scheduled(due: Time) -> WaitReason {
    WaitReason {
        on: WaitingOn::Schedule,
        until: Some(due),
        explanation: format!("its next attempt is due at {due}"),
    }
}

fn capacity(explanation: &str) -> WaitReason {
    WaitReason { on: WaitingOn::Capacity, until: None, explanation: explanation.into() }
}

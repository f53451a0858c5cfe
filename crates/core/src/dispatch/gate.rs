//! The admission check of the gate: whether a request may be sent now, and if not, what it waits for.
//!
//! It is a pure function of its input, so that the reason shown to users is the reason that blocked the delivery.
//!
//! [`CircuitDecision`] is its input; the [`GateDecision`] of [`decide_admission`] is its result. In the engine,
//! `LocalDecision` says whether a node can decide without Redis, and `AdmissionDecision` is the result for one delivery,
//! from the node itself or from Redis.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{protection::breaker::CircuitDecision, time::Time, webhook::WebhookState};

/// What a pending delivery waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WaitingOn {
    /// The time of its next attempt.
    Schedule,
    /// The webhook's circuit, which is open or has all its probes in flight.
    CircuitOpen,
    /// A token of a rate limit, or the end of the pause after a 429.
    RateLimit,
    /// The end of another request of the webhook: its maximum is in flight.
    InFlightLimit,
    /// The previous delivery in its order.
    Order,
    /// The webhook to be resumed, or its URL to be verified.
    Paused,
    /// Its turn: it is ready to be sent. Or a free slot of the tenant, the destination host or the node, or free memory.
    Capacity,
    /// A worker of the pool that its tenant is routed to.
    Pool,
}

impl WaitingOn {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::Schedule,
        Self::CircuitOpen,
        Self::RateLimit,
        Self::InFlightLimit,
        Self::Order,
        Self::Paused,
        Self::Capacity,
        Self::Pool,
    ];

    /// Returns the canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::CircuitOpen => "circuit_open",
            Self::RateLimit => "rate_limit",
            Self::InFlightLimit => "in_flight_limit",
            Self::Order => "order",
            Self::Paused => "paused",
            Self::Capacity => "capacity",
            Self::Pool => "pool",
        }
    }
}

/// Which other deliveries are blocked for the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitScope {
    /// The webhook's other deliveries.
    Webhook,
    /// Every delivery of the tenant.
    Tenant,
    /// The tenant's deliveries to the same host. All tenants share the slots of a host, of which each may take a fair part.
    Host,
    /// All deliveries on this node.
    Node,
}

/// Used slots and the maximum of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Slots in use.
    pub used: u32,
    /// Number of slots.
    pub max: u32,
}

impl Slots {
    fn is_full(self) -> bool {
        self.used >= self.max
    }
}

/// Everything that the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct GateInput<'a> {
    /// State of the webhook.
    pub state: &'a WebhookState,
    /// Whether this node serves the pool that the tenant is routed to.
    pub pool_served: bool,
    /// End of the pause after a 429.
    pub paused_by_429_until: Option<Time>,
    /// The circuit's decision. A probe id that is not returned in [`GateDecision::Go`] was not used and must be returned
    /// to the circuit.
    pub circuit: CircuitDecision,
    /// Whether the delivery is first in its order, or is not ordered.
    pub is_first_in_order: bool,
    /// Slots of the webhook.
    pub webhook_slots: Slots,
    /// Slots of the tenant.
    pub tenant_slots: Slots,
    /// Whether the webhook's host has a free slot on this node that this tenant may take.
    pub host_has_slot: bool,
    /// Slots of this node.
    pub node_slots: Slots,
    /// When the webhook's next token is available; `None` if one is available now.
    pub webhook_token: Option<Time>,
    /// When the tenant's next token is available; `None` if one is available now.
    pub tenant_token: Option<Time>,
    /// When the next token of the rate limit of the whole cluster is available; `None` if one is available now.
    pub global_token: Option<Time>,
    /// The current time.
    pub now: Time,
}

/// Result of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateDecision {
    /// The request may be sent. The caller still has to take the tokens and slots.
    Go {
        /// The probe id, if the request is a probe.
        probe: Option<u64>,
    },
    /// The delivery must wait.
    Wait {
        /// Until when, always later than now; `None` if it waits for something other than time.
        until: Option<Time>,
        /// What it waits for.
        reason: WaitingOn,
        /// Which other deliveries wait too.
        scope: LimitScope,
    },
}

/// Decides whether a request may be sent. Of several reasons to wait it returns the one that users can influence
/// most.
///
/// ```
/// use redrive_core::{
///     Time,
///     dispatch::gate::{GateDecision, GateInput, LimitScope, Slots, WaitingOn, decide_admission},
///     protection::breaker::CircuitDecision,
///     webhook::WebhookState,
/// };
///
/// let (now, free) = (Time::from_secs(1_000), Slots { used: 0, max: 5 });
/// let mut input = GateInput {
///     state: &WebhookState::Active,
///     pool_served: true,
///     paused_by_429_until: None,
///     circuit: CircuitDecision::Probe(7),
///     is_first_in_order: true,
///     webhook_slots: free,
///     tenant_slots: free,
///     host_has_slot: true,
///     node_slots: free,
///     webhook_token: None,
///     tenant_token: None,
///     global_token: None,
///     now,
/// };
/// assert_eq!(decide_admission(&input), GateDecision::Go { probe: Some(7) });
/// // Of several reasons one is returned: here the full webhook, not the missing token. The probe was not used, so
/// // the caller must return it to the circuit.
/// input.webhook_slots.used = 5;
/// input.webhook_token = Some(Time::from_secs(1_001));
/// let wait = GateDecision::Wait { until: None, reason: WaitingOn::InFlightLimit, scope: LimitScope::Webhook };
/// assert_eq!(decide_admission(&input), wait);
/// ```
pub fn decide_admission(input: &GateInput<'_>) -> GateDecision {
    let wait = |reason, scope| GateDecision::Wait { until: None, reason, scope };
    // Deliveries of a paused webhook, and of one pending verification, wait. Those of an inactive webhook are cancelled
    // elsewhere, and none is sent before that.
    if *input.state != WebhookState::Active {
        return wait(WaitingOn::Paused, LimitScope::Webhook);
    }
    if !input.pool_served {
        return wait(WaitingOn::Pool, LimitScope::Tenant);
    }
    let probe = match input.circuit {
        CircuitDecision::Go => None,
        CircuitDecision::Probe(probe_id) => Some(probe_id),
        CircuitDecision::Wait { until, .. } => {
            // An outdated decision does not allow sending: wait briefly and ask the circuit again.
            let until = until.map(|until| until.max(input.now + Duration::from_millis(1)));
            return GateDecision::Wait { until, reason: WaitingOn::CircuitOpen, scope: LimitScope::Webhook };
        }
    };
    if let Some(until) = input.paused_by_429_until.filter(|until| *until > input.now) {
        return GateDecision::Wait {
            until: Some(until),
            reason: WaitingOn::RateLimit,
            scope: LimitScope::Webhook,
        };
    }
    if !input.is_first_in_order {
        return wait(WaitingOn::Order, LimitScope::Webhook);
    }
    if input.webhook_slots.is_full() {
        return wait(WaitingOn::InFlightLimit, LimitScope::Webhook);
    }
    if input.tenant_slots.is_full() {
        return wait(WaitingOn::Capacity, LimitScope::Tenant);
    }
    if !input.host_has_slot {
        return wait(WaitingOn::Capacity, LimitScope::Host);
    }
    if input.node_slots.is_full() {
        return wait(WaitingOn::Capacity, LimitScope::Node);
    }
    match longest_token_wait(input) {
        Some((until, scope)) => {
            GateDecision::Wait { until: Some(until), reason: WaitingOn::RateLimit, scope }
        }
        None => GateDecision::Go { probe },
    }
}

/// Returns the token with the longest wait; of equal ones the one that blocks the fewest other deliveries.
fn longest_token_wait(input: &GateInput<'_>) -> Option<(Time, LimitScope)> {
    let tokens = [
        (input.global_token, LimitScope::Node),
        (input.tenant_token, LimitScope::Tenant),
        (input.webhook_token, LimitScope::Webhook),
    ];
    let missing = tokens.into_iter().filter_map(|(due, scope)| Some((due?, scope)));
    missing.filter(|(due, _)| *due > input.now).max_by_key(|(due, _)| *due)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{WaitingOn::*, *};

    const NOW: Time = Time::from_secs(1_700_000_000);
    const FREE: Slots = Slots { used: 4, max: 5 };
    const OCCUPIED: Slots = Slots { used: 5, max: 5 };
    const CLEAR: GateInput<'static> = GateInput {
        state: &WebhookState::Active,
        pool_served: true,
        paused_by_429_until: None,
        circuit: CircuitDecision::Go,
        is_first_in_order: true,
        webhook_slots: FREE,
        tenant_slots: FREE,
        host_has_slot: true,
        node_slots: FREE,
        webhook_token: None,
        tenant_token: None,
        global_token: None,
        now: NOW,
    };

    fn at(seconds: u64) -> Option<Time> {
        Some(NOW + Duration::from_secs(seconds))
    }

    fn wait(until: Option<Time>, reason: WaitingOn, scope: LimitScope) -> GateDecision {
        GateDecision::Wait { until, reason, scope }
    }

    #[test]
    fn gate_decides_go_when_nothing_blocks() {
        assert_eq!(decide_admission(&CLEAR), GateDecision::Go { probe: None });
        assert_eq!(
            decide_admission(&GateInput { circuit: CircuitDecision::Probe(7), ..CLEAR }),
            GateDecision::Go { probe: Some(7) }
        );
        let over = GateInput { paused_by_429_until: Some(NOW), webhook_token: Some(NOW), ..CLEAR };
        assert_eq!(
            decide_admission(&over),
            GateDecision::Go { probe: None },
            "a pause that ends now does not block"
        );
    }

    /// Applies each reason alone, from the lowest to the highest precedence, and together with all lower ones: the
    /// added reason must be the one returned.
    #[test]
    fn each_wait_reason_blocks_and_precedes_lower_ones() {
        const OPEN: CircuitDecision = CircuitDecision::Wait { until: None, forced: true };
        type Block = fn(&mut GateInput<'_>);
        let reasons: [(Block, GateDecision); 12] = [
            (|f| f.global_token = at(1), wait(at(1), RateLimit, LimitScope::Node)),
            (|f| f.tenant_token = at(2), wait(at(2), RateLimit, LimitScope::Tenant)),
            (|f| f.webhook_token = at(3), wait(at(3), RateLimit, LimitScope::Webhook)),
            (|f| f.node_slots = OCCUPIED, wait(None, Capacity, LimitScope::Node)),
            (|f| f.host_has_slot = false, wait(None, Capacity, LimitScope::Host)),
            (|f| f.tenant_slots = OCCUPIED, wait(None, Capacity, LimitScope::Tenant)),
            (|f| f.webhook_slots = OCCUPIED, wait(None, InFlightLimit, LimitScope::Webhook)),
            (|f| f.is_first_in_order = false, wait(None, Order, LimitScope::Webhook)),
            (|f| f.paused_by_429_until = at(4), wait(at(4), RateLimit, LimitScope::Webhook)),
            (|f| f.circuit = OPEN, wait(None, CircuitOpen, LimitScope::Webhook)),
            (|f| f.pool_served = false, wait(None, Pool, LimitScope::Tenant)),
            (|f| f.state = &WebhookState::Paused, wait(None, Paused, LimitScope::Webhook)),
        ];
        let mut all = CLEAR;
        for (index, (block, expected)) in reasons.into_iter().enumerate() {
            let mut alone = CLEAR;
            block(&mut alone);
            assert_eq!(decide_admission(&alone), expected, "reason {index} alone");
            block(&mut all);
            assert_eq!(decide_admission(&all), expected, "reason {index} with all lower ones");
        }
    }

    #[test]
    fn longest_token_wait_is_returned() {
        let input = GateInput { webhook_token: at(1), tenant_token: at(9), global_token: at(5), ..CLEAR };
        assert_eq!(decide_admission(&input), wait(at(9), RateLimit, LimitScope::Tenant));
        let input = GateInput { webhook_token: at(5), tenant_token: None, ..input };
        assert_eq!(decide_admission(&input), wait(at(5), RateLimit, LimitScope::Webhook));
    }

    #[test]
    fn open_circuit_returns_wait_time() {
        let gate_at = |until| {
            decide_admission(&GateInput { circuit: CircuitDecision::Wait { until, forced: false }, ..CLEAR })
        };
        assert_eq!(gate_at(at(30)), wait(at(30), CircuitOpen, LimitScope::Webhook));
        let soon = Some(NOW + Duration::from_millis(1));
        assert_eq!(gate_at(Some(NOW)), wait(soon, CircuitOpen, LimitScope::Webhook));
    }

    #[test]
    fn inactive_webhook_is_blocked() {
        for state in [WebhookState::Disabled("why".into()), WebhookState::Deleted] {
            assert_eq!(
                decide_admission(&GateInput { state: &state, ..CLEAR }),
                wait(None, Paused, LimitScope::Webhook)
            );
        }
    }

    #[test]
    fn waiting_on_names_match_serialization() {
        for reason in WaitingOn::ALL {
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{}\"", reason.name()));
        }
    }

    fn any_time() -> impl Strategy<Value = Option<Time>> {
        proptest::option::of((-3..3i64).prop_map(|step| Time::from_millis(NOW.millis() + step)))
    }

    fn any_slots() -> impl Strategy<Value = Slots> {
        (0..4u32, 0..4u32).prop_map(|(used, max)| Slots { used, max })
    }

    fn any_circuit_decision() -> impl Strategy<Value = CircuitDecision> {
        prop_oneof![
            Just(CircuitDecision::Go),
            any::<u64>().prop_map(CircuitDecision::Probe),
            (any_time(), any::<bool>()).prop_map(|(until, forced)| CircuitDecision::Wait { until, forced }),
        ]
    }

    proptest! {
        #[test]
        fn go_requires_no_block_and_wait_time_is_in_the_future(
            (active, pool_served, is_first_in_order, host_has_slot) in
                (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
            circuit in any_circuit_decision(),
            (webhook_slots, tenant_slots, node_slots) in (any_slots(), any_slots(), any_slots()),
            (paused_by_429_until, webhook_token, tenant_token, global_token) in
                (any_time(), any_time(), any_time(), any_time()),
        ) {
            let state = if active { WebhookState::Active } else { WebhookState::Paused };
            let input = GateInput {
                state: &state, pool_served, paused_by_429_until, circuit, is_first_in_order, webhook_slots, tenant_slots,
                host_has_slot, node_slots, webhook_token, tenant_token, global_token, now: NOW,
            };
            let slots = [webhook_slots, tenant_slots, node_slots];
            let times = [paused_by_429_until, webhook_token, tenant_token, global_token];
            let free = active && pool_served && is_first_in_order && host_has_slot
                && !matches!(circuit, CircuitDecision::Wait { .. })
                && slots.into_iter().all(|slots| slots.used < slots.max)
                && times.into_iter().flatten().all(|time| time <= NOW);
            match decide_admission(&input) {
                GateDecision::Go { probe } => {
                    prop_assert!(free);
                    let expected = if let CircuitDecision::Probe(probe_id) = circuit { Some(probe_id) } else { None };
                    prop_assert_eq!(probe, expected);
                }
                GateDecision::Wait { until, .. } => {
                    prop_assert!(!free);
                    prop_assert!(until.is_none_or(|until| until > NOW));
                }
            }
        }
    }
}

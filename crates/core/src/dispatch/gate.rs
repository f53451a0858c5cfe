//! The one decision right before a request: does it go, and if not, what does it wait for?
//!
//! It is told everything and asks nobody, so that people are shown the same reason that held it back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{protection::breaker::Permit, time::Time, webhook::WebhookState};

/// What a pending delivery waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WaitingOn {
    /// The time of its next attempt.
    Schedule,
    /// The webhook's circuit, which is open or has all its probes out.
    CircuitOpen,
    /// A token of a rate limit, or the end of a pause that the endpoint asked for.
    RateLimit,
    /// One of the webhook's requests to end: as many as it may have are under way.
    InFlightLimit,
    /// The delivery before it in its order.
    Order,
    /// Somebody to resume the webhook.
    Paused,
    /// A free slot among those of the tenant, the destination host or the node.
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

    /// The name used everywhere.
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

/// Who else is held back by the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The webhook's other deliveries.
    Webhook,
    /// Every delivery of the tenant.
    Tenant,
    /// The tenant's deliveries to the same host.
    Host,
    /// Everything on this node.
    Node,
}

/// How many places are taken, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Taken.
    pub used: u32,
    /// There are.
    pub most: u32,
}

impl Slots {
    fn are_taken(self) -> bool {
        self.used >= self.most
    }
}

/// All that the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Whether the webhook gets events.
    pub state: &'a WebhookState,
    /// Whether this node serves the pool that the tenant is routed to.
    pub pool_served: bool,
    /// Until when the endpoint asked to be left alone (429).
    pub held_until: Option<Time>,
    /// What the circuit says. A probe's ticket that does not come back in [`Verdict::Go`] was not used, and
    /// has to be given back to the circuit.
    pub circuit: Permit,
    /// Whether it is the head of its order, or in none.
    pub order: bool,
    /// The requests of the webhook.
    pub webhook_slots: Slots,
    /// The requests of the tenant.
    pub tenant_slots: Slots,
    /// Whether the tenant may have one more request in flight to the webhook's host.
    pub host_has_slot: bool,
    /// The requests of this node.
    pub node_slots: Slots,
    /// When the webhook's next token is due; none if there is one.
    pub webhook_token: Option<Time>,
    /// When the tenant's next token is due; none if there is one.
    pub tenant_token: Option<Time>,
    /// When the next token for everybody is due; none if there is one.
    pub global_token: Option<Time>,
    /// The time.
    pub now: Time,
}

/// Whether it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does. The tokens and places are still to be taken.
    Go {
        /// The circuit's ticket, if it goes as a probe.
        probe: Option<u64>,
    },
    /// It does not.
    Wait {
        /// Until when, always later than now; none if that depends on something other than time.
        until: Option<Time>,
        /// What it waits for.
        why: WaitingOn,
        /// Who else does.
        scope: Scope,
    },
}

/// Decides. Of several reasons to wait it names the one that people can do the most about.
pub fn gate(facts: &Facts<'_>) -> Verdict {
    let wait = |why, scope| Verdict::Wait { until: None, why, scope };
    // Those of a webhook that is neither active nor paused are called off elsewhere; none is sent meanwhile.
    if *facts.state != WebhookState::Active {
        return wait(WaitingOn::Paused, Scope::Webhook);
    }
    if !facts.pool_served {
        return wait(WaitingOn::Pool, Scope::Tenant);
    }
    let probe = match facts.circuit {
        Permit::Go => None,
        Permit::Probe(ticket) => Some(ticket),
        Permit::Wait { until, .. } => {
            // An answer of the circuit that has grown old is no reason to go without asking it again.
            let until = until.map(|until| until.max(facts.now + Duration::from_millis(1)));
            return Verdict::Wait { until, why: WaitingOn::CircuitOpen, scope: Scope::Webhook };
        }
    };
    if let Some(until) = facts.held_until.filter(|until| *until > facts.now) {
        return Verdict::Wait { until: Some(until), why: WaitingOn::RateLimit, scope: Scope::Webhook };
    }
    if !facts.order {
        return wait(WaitingOn::Order, Scope::Webhook);
    }
    if facts.webhook_slots.are_taken() {
        return wait(WaitingOn::InFlightLimit, Scope::Webhook);
    }
    if facts.tenant_slots.are_taken() {
        return wait(WaitingOn::Capacity, Scope::Tenant);
    }
    if !facts.host_has_slot {
        return wait(WaitingOn::Capacity, Scope::Host);
    }
    if facts.node_slots.are_taken() {
        return wait(WaitingOn::Capacity, Scope::Node);
    }
    match missing_token(facts) {
        Some((until, scope)) => Verdict::Wait { until: Some(until), why: WaitingOn::RateLimit, scope },
        None => Verdict::Go { probe },
    }
}

/// The token that takes the longest; of equal ones that which holds back the fewest others.
fn missing_token(facts: &Facts<'_>) -> Option<(Time, Scope)> {
    let tokens = [
        (facts.global_token, Scope::Node),
        (facts.tenant_token, Scope::Tenant),
        (facts.webhook_token, Scope::Webhook),
    ];
    let missing = tokens.into_iter().filter_map(|(due, scope)| Some((due?, scope)));
    missing.filter(|(due, _)| *due > facts.now).max_by_key(|(due, _)| *due)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{WaitingOn::*, *};

    const NOW: Time = Time::from_secs(1_700_000_000);
    const FREE: Slots = Slots { used: 4, most: 5 };
    const TAKEN: Slots = Slots { used: 5, most: 5 };
    const CLEAR: Facts<'static> = Facts {
        state: &WebhookState::Active,
        pool_served: true,
        held_until: None,
        circuit: Permit::Go,
        order: true,
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

    fn wait(until: Option<Time>, why: WaitingOn, scope: Scope) -> Verdict {
        Verdict::Wait { until, why, scope }
    }

    #[test]
    fn it_goes_when_nothing_holds_it() {
        assert_eq!(gate(&CLEAR), Verdict::Go { probe: None });
        assert_eq!(gate(&Facts { circuit: Permit::Probe(7), ..CLEAR }), Verdict::Go { probe: Some(7) });
        let over = Facts { held_until: Some(NOW), webhook_token: Some(NOW), ..CLEAR };
        assert_eq!(gate(&over), Verdict::Go { probe: None }, "what is due now holds no longer");
    }

    /// Each reason alone, in the order in which they are named: from the last to the first, each added to
    /// those before it takes over.
    #[test]
    fn every_reason_holds_alone_and_before_those_that_follow() {
        const OPEN: Permit = Permit::Wait { until: None, forced: true };
        type Hold = fn(&mut Facts<'_>);
        let reasons: [(Hold, Verdict); 12] = [
            (|f| f.global_token = at(1), wait(at(1), RateLimit, Scope::Node)),
            (|f| f.tenant_token = at(2), wait(at(2), RateLimit, Scope::Tenant)),
            (|f| f.webhook_token = at(3), wait(at(3), RateLimit, Scope::Webhook)),
            (|f| f.node_slots = TAKEN, wait(None, Capacity, Scope::Node)),
            (|f| f.host_has_slot = false, wait(None, Capacity, Scope::Host)),
            (|f| f.tenant_slots = TAKEN, wait(None, Capacity, Scope::Tenant)),
            (|f| f.webhook_slots = TAKEN, wait(None, InFlightLimit, Scope::Webhook)),
            (|f| f.order = false, wait(None, Order, Scope::Webhook)),
            (|f| f.held_until = at(4), wait(at(4), RateLimit, Scope::Webhook)),
            (|f| f.circuit = OPEN, wait(None, CircuitOpen, Scope::Webhook)),
            (|f| f.pool_served = false, wait(None, Pool, Scope::Tenant)),
            (|f| f.state = &WebhookState::Paused, wait(None, Paused, Scope::Webhook)),
        ];
        let mut all = CLEAR;
        for (index, (hold, expected)) in reasons.into_iter().enumerate() {
            let mut alone = CLEAR;
            hold(&mut alone);
            assert_eq!(gate(&alone), expected, "reason {index} alone");
            hold(&mut all);
            assert_eq!(gate(&all), expected, "reason {index} with those after it");
        }
    }

    #[test]
    fn of_several_missing_tokens_the_last_one_counts() {
        let facts = Facts { webhook_token: at(1), tenant_token: at(9), global_token: at(5), ..CLEAR };
        assert_eq!(gate(&facts), wait(at(9), RateLimit, Scope::Tenant));
        let facts = Facts { webhook_token: at(5), tenant_token: None, ..facts };
        assert_eq!(gate(&facts), wait(at(5), RateLimit, Scope::Webhook));
    }

    #[test]
    fn an_open_circuit_says_until_when() {
        let gate_at = |until| gate(&Facts { circuit: Permit::Wait { until, forced: false }, ..CLEAR });
        assert_eq!(gate_at(at(30)), wait(at(30), CircuitOpen, Scope::Webhook));
        let soon = Some(NOW + Duration::from_millis(1));
        assert_eq!(gate_at(Some(NOW)), wait(soon, CircuitOpen, Scope::Webhook));
    }

    #[test]
    fn nothing_goes_to_a_webhook_that_gets_no_events() {
        for state in [WebhookState::Disabled("why".into()), WebhookState::Deleted] {
            assert_eq!(gate(&Facts { state: &state, ..CLEAR }), wait(None, Paused, Scope::Webhook));
        }
    }

    #[test]
    fn names_are_those_on_the_wire() {
        for why in WaitingOn::ALL {
            assert_eq!(serde_json::to_string(&why).unwrap(), format!("\"{}\"", why.name()));
        }
    }

    fn any_time() -> impl Strategy<Value = Option<Time>> {
        proptest::option::of((-3..3i64).prop_map(|step| Time::from_millis(NOW.millis() + step)))
    }

    fn any_slots() -> impl Strategy<Value = Slots> {
        (0..4u32, 0..4u32).prop_map(|(used, most)| Slots { used, most })
    }

    fn any_permit() -> impl Strategy<Value = Permit> {
        prop_oneof![
            Just(Permit::Go),
            any::<u64>().prop_map(Permit::Probe),
            (any_time(), any::<bool>()).prop_map(|(until, forced)| Permit::Wait { until, forced }),
        ]
    }

    proptest! {
        #[test]
        fn it_goes_only_if_nothing_holds_and_waits_only_for_what_is_to_come(
            (active, pool_served, order, host_has_slot) in
                (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
            circuit in any_permit(),
            (webhook_slots, tenant_slots, node_slots) in (any_slots(), any_slots(), any_slots()),
            (held_until, webhook_token, tenant_token, global_token) in
                (any_time(), any_time(), any_time(), any_time()),
        ) {
            let state = if active { WebhookState::Active } else { WebhookState::Paused };
            let facts = Facts {
                state: &state, pool_served, held_until, circuit, order, webhook_slots, tenant_slots, host_has_slot,
                node_slots, webhook_token, tenant_token, global_token, now: NOW,
            };
            let slots = [webhook_slots, tenant_slots, node_slots];
            let times = [held_until, webhook_token, tenant_token, global_token];
            let free = active && pool_served && order && host_has_slot
                && !matches!(circuit, Permit::Wait { .. })
                && slots.into_iter().all(|slots| slots.used < slots.most)
                && times.into_iter().flatten().all(|time| time <= NOW);
            match gate(&facts) {
                Verdict::Go { probe } => {
                    prop_assert!(free);
                    let ticket = if let Permit::Probe(ticket) = circuit { Some(ticket) } else { None };
                    prop_assert_eq!(probe, ticket);
                }
                Verdict::Wait { until, .. } => {
                    prop_assert!(!free);
                    prop_assert!(until.is_none_or(|until| until > NOW));
                }
            }
        }
    }
}

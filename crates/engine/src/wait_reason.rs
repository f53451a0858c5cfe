//! What a delivery waits for, in words. The same decision as at the gate, made for somebody who asks.

use std::collections::HashMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    cluster::ticket,
    dispatch::gate::{Facts, Scope, Slots, Verdict, WaitingOn, gate},
    protection::breaker::{CircuitState, CircuitView, Permit},
    webhook::WebhookState,
};
use redrive_store::{Delivery, StoreError};

use crate::{
    Engine, Inner,
    coordination::Standing,
    dispatch::{Held, Whereabouts},
    registry::Hook,
};

/// Said of what is leased, but not to this node.
const ELSEWHERE: &str = "it is on its way on another node";
/// Said of what only one node may send, which is not this one.
const AT_HOME: &str = "it is its turn as soon as the node that sends to this webhook has room";

/// What a pending delivery waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The reason.
    pub on: WaitingOn,
    /// Until when, where that is known.
    pub until: Option<Time>,
    /// The same in words.
    pub explanation: String,
}

/// What holds a webhook back now.
#[derive(Clone, Debug)]
pub struct GateView {
    /// Whether it gets events, as far as this node knows.
    pub state: WebhookState,
    /// Its circuit.
    pub circuit: CircuitView,
    /// Until when the endpoint asked not to be called.
    pub held_until: Option<Time>,
    /// When the first of an unbroken row of failures was.
    pub failing_since: Option<Time>,
    /// What its due deliveries wait for; none if they only wait for their turn.
    pub waiting: Option<Waiting>,
    /// Requests under way.
    pub in_flight: usize,
    /// Deliveries that wait in this node's memory.
    pub queued: usize,
}

impl Engine {
    /// What a pending delivery waits for; none while a request is under way.
    pub async fn waiting(&self, delivery: &Delivery) -> Result<Option<Waiting>, StoreError> {
        let inner = &self.0;
        if delivery.due.is_none() {
            match inner.dispatch.whereabouts(delivery.webhook, delivery.id) {
                Some(Whereabouts::Sending) => return Ok(None),
                None if inner.fleet.is_shared() => return Ok(Some(capacity(ELSEWHERE))),
                Some(Whereabouts::Queued) | None => {}
            }
        }
        let now = inner.clock.now();
        let Some(hook) = inner.registry.find(&*inner.store, delivery.webhook).await? else {
            return Ok(Some(capacity("its webhook is gone; it is about to be cancelled")));
        };
        let held_back = inner.held_back(&hook, delivery, now);
        // What waits for whoever takes its ticket is ready, and not scheduled.
        let delay = hook.policy.first_delay();
        let due = delivery
            .due
            .map(|due| ticket::shown_due(delivery.created_at, due, delivery.attempt_count, delay));
        Ok(Some(match (due, held_back) {
            (Some(due), Some(waiting)) if due > now && waiting.until.is_some_and(|until| until <= due) => {
                scheduled(due)
            }
            // Busy now says nothing about then.
            (Some(due), Some(waiting)) if due > now && is_passing(waiting.on) => scheduled(due),
            (_, Some(waiting)) => waiting,
            (Some(due), None) if due > now => scheduled(due),
            (_, None) if inner.needs_home(&hook) && !inner.fleet.homes.has(hook.id) => capacity(AT_HOME),
            (_, None) => capacity("it is its turn as soon as there is room"),
        }))
    }

    /// What holds a webhook back now. None: there is no such webhook.
    pub async fn gate_view(&self, webhook: WebhookId) -> Result<Option<GateView>, StoreError> {
        let inner = &self.0;
        let hook = inner.registry.find(&*inner.store, webhook).await?;
        let Some(hook) = hook else { return Ok(None) };
        self.look_at(&hook).await;
        Ok(Some(inner.gate_view(&hook)))
    }

    /// The same for several webhooks of a tenant; those that it has not are left out.
    pub async fn gate_views(
        &self,
        tenant: &TenantId,
        webhooks: &[WebhookId],
    ) -> Result<HashMap<WebhookId, GateView>, StoreError> {
        let inner = &self.0;
        inner.registry.load(&*inner.store, tenant, webhooks).await?;
        let mut views = HashMap::new();
        for webhook in webhooks.iter().copied() {
            let hook = inner.registry.find(&*inner.store, webhook).await?;
            if let Some(hook) = hook.filter(|hook| hook.tenant.id == *tenant) {
                views.insert(webhook, inner.gate_view(&hook));
            }
        }
        Ok(views)
    }

    /// What of a tenant's deliveries is in this node's memory.
    pub fn held(&self, tenant: &TenantId) -> Held {
        self.0.dispatch.held(tenant)
    }
}

impl Inner {
    fn gate_view(&self, hook: &Hook) -> GateView {
        let now = self.clock.now();
        let standing = self.coordination.standing(hook, now);
        let waiting = self.waits_for(hook, &standing, true, now);
        let usage = self.dispatch.usage(self.whom(hook));
        GateView {
            state: hook.state.clone(),
            waiting: waiting.map(|(_, waiting)| waiting),
            circuit: standing.circuit,
            held_until: standing.held_until,
            failing_since: standing.failing_since,
            in_flight: usage.webhook,
            queued: usage.queued,
        }
    }

    fn held_back(&self, hook: &Hook, delivery: &Delivery, now: Time) -> Option<Waiting> {
        let standing = self.coordination.standing(hook, now);
        let (on, mut waiting) = self.waits_for(hook, &standing, delivery.behind.is_none(), now)?;
        if let (WaitingOn::Order, Some(first)) = (on, delivery.behind) {
            waiting.explanation = format!("{first} comes before it in its order and is not over yet");
        }
        Some(waiting)
    }

    fn waits_for(
        &self,
        hook: &Hook,
        standing: &Standing,
        first: bool,
        now: Time,
    ) -> Option<(WaitingOn, Waiting)> {
        let whom = self.whom(hook);
        let usage = self.dispatch.usage(whom);
        let most = whom.max_in_flight;
        let slots = |used: usize, most: usize| Slots {
            used: u32::try_from(used).unwrap_or(u32::MAX),
            most: u32::try_from(most).unwrap_or(u32::MAX),
        };
        let facts = Facts {
            state: &hook.state,
            // By whomever, and whether or not it is a part of this node's.
            pool_served: hook.tenant.is_of_our_pools() || self.fleet.serves(&hook.tenant.pool()),
            held_until: standing.held_until,
            circuit: permit(&standing.circuit, now),
            order: first,
            webhook_slots: slots(usage.webhook, most),
            tenant_slots: slots(usage.tenant, hook.tenant.max_in_flight()),
            host_has_slot: usage.host_has_slot,
            node_slots: slots(usage.node, self.settings.max_in_flight),
            webhook_token: standing.tokens[0],
            tenant_token: standing.tokens[1],
            global_token: standing.tokens[2],
            now,
        };
        let Verdict::Wait { until, why, scope } = gate(&facts) else { return None };
        let explanation = match why {
            WaitingOn::CircuitOpen => circuit_words(&standing.circuit),
            WaitingOn::RateLimit => match (standing.held_until, scope) {
                (Some(until), _) => format!("the endpoint answered 429 and is left alone until {until}"),
                (None, Scope::Webhook) => "the webhook's rate limit is used up for now".into(),
                (None, Scope::Tenant) => "the tenant's rate limit is used up for now".into(),
                (None, Scope::Host | Scope::Node) => "the rate limit of this server is used up for now".into(),
            },
            WaitingOn::InFlightLimit => {
                format!("{} of {most} requests to this webhook are under way", usage.webhook)
            }
            WaitingOn::Order => "another one comes before it in its order and is not over yet".into(),
            WaitingOn::Paused if matches!(hook.state, WebhookState::PendingVerification(_)) => {
                "the webhook's endpoint has not echoed its challenge yet; it goes on when it has".into()
            }
            WaitingOn::Paused => "the webhook is paused; it goes on when the webhook is resumed".into(),
            WaitingOn::Capacity if scope == Scope::Tenant => {
                "the tenant has as many requests under way as it may have".into()
            }
            WaitingOn::Capacity if scope == Scope::Host => {
                "as many requests are in flight to the webhook's host as are allowed from here; it goes on when one \
                 of them ends"
                    .into()
            }
            WaitingOn::Capacity => "this server has as many requests under way as it may have".into(),
            WaitingOn::Pool => {
                format!("no node serves the pool \"{}\"", hook.tenant.pool())
            }
            WaitingOn::Schedule => "its next attempt is not due yet".into(),
        };
        Some((why, Waiting { on: why, until, explanation }))
    }
}

/// What the circuit would say to a delivery that asks now, without asking it: asking may use a probe up.
fn permit(circuit: &CircuitView, now: Time) -> Permit {
    if let Some(forced) = &circuit.forced {
        let over = forced.until.is_some_and(|until| until <= now);
        return match forced.open && !over {
            true => Permit::Wait { until: forced.until, forced: true },
            false => Permit::Go,
        };
    }
    match circuit.state {
        CircuitState::Closed => Permit::Go,
        CircuitState::Open => Permit::Wait { until: circuit.next_half_open_at, forced: false },
        // Either all probes are out, or this one is about to become one.
        CircuitState::HalfOpen => Permit::Wait { until: None, forced: false },
    }
}

fn circuit_words(circuit: &CircuitView) -> String {
    let since = circuit.state_transition_at;
    if let Some(forced) = &circuit.forced {
        let end = forced.until.map_or("until somebody closes it".into(), |until| format!("until {until}"));
        return format!("circuit forced open by {} since {since}, {end}", forced.by);
    }
    let counts = &circuit.counts;
    let mostly =
        counts.worst().map_or(String::new(), |category| format!(", mostly with {}", category.name()));
    let failed = format!("{} of {} calls failed{mostly}", counts.failed, counts.total);
    match circuit.next_half_open_at {
        Some(next) => format!("circuit open since {since}, {failed}; next probe at {next}"),
        None => {
            let (sent, ok) = (circuit.half_open_attempts, circuit.half_open_successes);
            format!(
                "circuit half open since {since}: {sent} probes sent, {ok} succeeded; waiting for the verdict"
            )
        }
    }
}

/// Whether a reason is of the moment, and says nothing about later.
fn is_passing(on: WaitingOn) -> bool {
    matches!(on, WaitingOn::InFlightLimit | WaitingOn::Capacity | WaitingOn::RateLimit)
}

fn scheduled(due: Time) -> Waiting {
    Waiting {
        on: WaitingOn::Schedule,
        until: Some(due),
        explanation: format!("its next attempt is due at {due}"),
    }
}

fn capacity(explanation: &str) -> Waiting {
    Waiting { on: WaitingOn::Capacity, until: None, explanation: explanation.into() }
}

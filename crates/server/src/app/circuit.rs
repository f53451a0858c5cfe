//! A webhook's circuit: looking at it, and deciding about it by hand.

use std::{collections::HashMap, time::Duration};

use redrive_core::{
    Invalid, TenantId, Time, WebhookId,
    protection::breaker::{CircuitState, CircuitView},
};
use redrive_engine::CircuitAction;
use redrive_store::Period;

use serde_json::json;

use super::{
    Actor, App, AppError, TenantView,
    audit::{Deed, Traces},
};

/// How far back open periods are shown.
const PERIODS_OF: Duration = Duration::from_secs(24 * 3600);
/// How many of them.
const PERIODS: usize = 20;

/// A circuit with the times it was open.
#[derive(Clone, Debug)]
pub struct CircuitSeen {
    /// The circuit.
    pub circuit: CircuitView,
    /// The last times it was open, newest first.
    pub periods: Vec<Period>,
    /// Whether this node goes by what it knows, since the Redis that nodes share does not answer.
    pub fallback: bool,
}

impl App {
    /// Resets or forces a webhook's circuit. What is to be done is asked for once the webhook is known, so
    /// that nobody learns anything about another tenant's.
    pub async fn act_on_circuit(
        &self,
        by: &Actor,
        tenant: impl Into<TenantView>,
        id: WebhookId,
        action: impl FnOnce(Time) -> Result<CircuitAction, Invalid>,
    ) -> Result<CircuitSeen, AppError> {
        let view = tenant.into();
        self.webhook(&view, id).await?;
        let tenant = view.id;
        let action = action(self.engine.clock().now())?;
        let deed = Deed { action: "webhook.circuit", tenant: Some(&tenant), object: Some(id.to_string()) };
        let after = Some(json!({"action": format!("{action:?}")}));
        self.audited(by, deed, async {
            match self.engine.act_on_circuit(&tenant, id, action).await? {
                true => Ok(((), Traces { after, ..Traces::default() })),
                false => Err(AppError::NotFound("webhook")),
            }
        })
        .await?;
        let gate = self.engine.gate_view(id).await?.ok_or(AppError::NotFound("webhook"))?;
        self.with_periods(&tenant, id, gate.circuit).await
    }

    /// The states of these webhooks' circuits; webhooks that the tenant has not are left out.
    pub async fn circuit_states(
        &self,
        tenant: &TenantId,
        ids: &[WebhookId],
    ) -> Result<HashMap<WebhookId, CircuitState>, AppError> {
        let views = self.engine.gate_views(tenant, ids).await?;
        Ok(views.into_iter().map(|(id, gate)| (id, gate.circuit.state)).collect())
    }

    pub(super) async fn with_periods(
        &self,
        tenant: &TenantId,
        id: WebhookId,
        circuit: CircuitView,
    ) -> Result<CircuitSeen, AppError> {
        let from = self.engine.clock().now().back(PERIODS_OF);
        let mut periods = self.store().circuit_periods(tenant.clone(), id, from, PERIODS).await?;
        periods.reverse();
        Ok(CircuitSeen { circuit, periods, fallback: self.engine.is_in_fallback() })
    }
}

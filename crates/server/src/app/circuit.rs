//! A webhook's circuit: reading it, and controlling it manually.

use std::{collections::HashMap, time::Duration};

use redrive_core::{
    FieldError, TenantId, Time, WebhookId,
    protection::breaker::{CircuitState, CircuitView},
};
use redrive_engine::CircuitAction;
use redrive_store::CircuitPeriod;

use serde_json::json;

use super::{
    Actor, App, AppError, TenantSelection, TenantView,
    audit::{AuditChange, AuditedAction},
};

/// Time range for which open periods are returned.
const PERIODS_RANGE: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of open periods returned.
const MAX_PERIODS: usize = 20;

/// Circuit with its recent open periods.
#[derive(Clone, Debug)]
pub struct CircuitDetails {
    /// State of the circuit.
    pub circuit: CircuitView,
    /// Recent open periods, newest first.
    pub periods: Vec<CircuitPeriod>,
    /// Whether this node uses its local state because the shared Redis is unavailable.
    pub fallback: bool,
}

impl App {
    /// Resets or forces a webhook's circuit. The action is validated only after the webhook was found, so that
    /// validation errors reveal nothing about webhooks of other tenants.
    pub async fn act_on_circuit(
        &self,
        actor: &Actor,
        tenant: impl Into<TenantView>,
        id: WebhookId,
        action: impl FnOnce(Time) -> Result<CircuitAction, FieldError>,
    ) -> Result<CircuitDetails, AppError> {
        let view = tenant.into();
        self.webhook(&view, id).await?;
        let tenant_id = view.id;
        let action = action(self.engine.clock().now())?;
        let audited = AuditedAction {
            action: "webhook.circuit",
            tenant: Some(&tenant_id),
            object: Some(id.to_string()),
        };
        let after = Some(json!({"action": format!("{action:?}")}));
        self.with_audit(actor, audited, async {
            match self.engine.control_circuit(&tenant_id, id, action).await? {
                true => Ok(((), AuditChange { after, ..AuditChange::default() })),
                false => Err(AppError::NotFound("webhook")),
            }
        })
        .await?;
        let gate = self.engine.gate_status(id).await?.ok_or(AppError::NotFound("webhook"))?;
        self.with_periods(&tenant_id, id, gate.circuit).await
    }

    /// Returns the circuit states of these webhooks, without those that the tenants do not have.
    pub async fn circuit_states(
        &self,
        tenants: &TenantSelection,
        ids: &[WebhookId],
    ) -> Result<HashMap<WebhookId, CircuitState>, AppError> {
        let views = self.engine.gate_statuses(tenants.tenant_id(), ids).await?;
        Ok(views.into_iter().map(|(id, gate)| (id, gate.circuit.state)).collect())
    }

    pub(super) async fn with_periods(
        &self,
        tenant_id: &TenantId,
        id: WebhookId,
        circuit: CircuitView,
    ) -> Result<CircuitDetails, AppError> {
        let from = self.engine.clock().now().saturating_sub(PERIODS_RANGE);
        let mut periods = self.store().circuit_periods(tenant_id.clone(), id, from, MAX_PERIODS).await?;
        periods.reverse();
        Ok(CircuitDetails { circuit, periods, fallback: self.engine.is_in_fallback() })
    }
}

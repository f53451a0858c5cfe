//! API view of a webhook's circuit, and manual control of it.

use std::time::Duration;

use axum::extract::State;
use redrive_core::{
    FieldError, Time,
    protection::breaker::{CircuitView as Circuit, Counts, Forced},
    webhook::uid::WebhookRef,
};
use redrive_engine::CircuitAction;
use redrive_store::CircuitPeriod;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    api::{
        AppState,
        extract::{Id, Json, Query},
        scope::{Authorized, Identifies, ManagesEndpoints, TenantQuery},
    },
    app::circuit::CircuitDetails,
    problem::{ChangeProblems, Problem},
};

/// Maximum duration, in seconds, for which one request can force a circuit (30 days); unlimited if none is given.
const MAX_FORCE_SECONDS: i64 = 30 * 24 * 3600;

/// Circuit of a webhook.
#[derive(Serialize, ToSchema)]
#[schema(as = CircuitDetails)]
pub(super) struct CircuitView {
    #[serde(flatten)]
    circuit: Circuit,
    /// Whether this node uses its local state because the shared Redis is unavailable.
    fallback: bool,
    /// Last 20 open periods within the last 24 hours, newest first.
    periods: Vec<PeriodView>,
}

/// Period during which a circuit was open.
#[derive(Serialize, ToSchema)]
pub(super) struct PeriodView {
    /// Time at which the circuit opened.
    #[schema(value_type = String, format = DateTime)]
    opened_at: Time,
    /// Time at which the period ended; null while the circuit is open.
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Time>,
    /// Whether the circuit was forced open manually.
    forced: bool,
    /// Counts of the window that opened the circuit.
    counts: Counts,
}

impl From<CircuitPeriod> for PeriodView {
    fn from(period: CircuitPeriod) -> Self {
        Self {
            opened_at: period.opened_at,
            ended_at: period.ended_at,
            forced: period.forced,
            counts: period.counts,
        }
    }
}

impl From<CircuitDetails> for CircuitView {
    fn from(details: CircuitDetails) -> Self {
        let periods = details.periods.into_iter().map(PeriodView::from).collect();
        Self { circuit: details.circuit, fallback: details.fallback, periods }
    }
}

/// Action on a circuit.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    /// Close the circuit, clear its counts and remove a forced state.
    Reset,
    /// Block all requests, regardless of results.
    ForceOpen,
    /// Allow all requests, regardless of results.
    ForceClose,
}

/// Action on a circuit, with its duration.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CircuitInput {
    /// Action to apply.
    #[serde(default)]
    #[schema(value_type = Action, required = true)]
    action: Option<Action>,
    /// Duration of the forced state, 1 to 2592000 seconds; until reset by default.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 2592000)]
    duration_seconds: Option<i64>,
    /// Tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

impl CircuitInput {
    /// Validates the input and builds the action, as requested by `by` at `now`.
    fn action(&self, by: &str, now: Time) -> Result<CircuitAction, FieldError> {
        let refuse = |message: String| Err(FieldError::new("duration_seconds", message));
        let Some(action) = self.action else {
            return Err(FieldError::new("action", "is missing; it is reset, force_open or force_close"));
        };
        let open = match action {
            Action::Reset if self.duration_seconds.is_some() => {
                return refuse("is not allowed with reset, which takes effect immediately; omit it".into());
            }
            Action::Reset => return Ok(CircuitAction::Reset),
            Action::ForceOpen => true,
            Action::ForceClose => false,
        };
        let until = match self.duration_seconds {
            None => None,
            Some(seconds) if (1..=MAX_FORCE_SECONDS).contains(&seconds) => {
                Some(now + Duration::from_secs(seconds.unsigned_abs()))
            }
            Some(seconds) => {
                return refuse(format!(
                    "is {seconds}; it must be from 1 to {MAX_FORCE_SECONDS}; omit it to force the circuit until it is reset"
                ));
            }
        };
        Ok(CircuitAction::Force(Forced { open, until, by: by.to_owned() }))
    }
}

/// Reset or force a webhook's circuit
///
/// A forced state lasts for `duration_seconds`, or until it is reset. It survives restarts.
#[utoipa::path(
    patch, path = "/v1/webhooks/{id}/circuit-breaker", operation_id = "changeCircuit", tag = "webhooks",
    params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery), request_body = CircuitInput,
    responses((status = 200, description = "The circuit after the change", body = CircuitView), ChangeProblems),
)]
pub(super) async fn act(
    State(app): State<AppState>,
    Authorized(caller, _): Authorized<ManagesEndpoints>,
    Id(webhook): Id<WebhookRef>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<CircuitInput>,
) -> Result<axum::Json<CircuitView>, Problem> {
    if matches!(input.action, Some(Action::ForceClose)) {
        // A circuit that is forced closed bypasses limits set by the operator, so portal sessions must not do it.
        caller.reject_portal_session()?;
    }
    let named = input.tenant_id.as_deref().or(query.tenant_id.as_deref());
    let tenant = app.resolve_tenant_of(&caller, named, webhook.object()).await?;
    let id = app.webhook_id(&tenant, &webhook).await?;
    let action = |now| input.action(&caller.name, now);
    Ok(axum::Json(app.act_on_circuit(&caller, tenant, id, action).await?.into()))
}

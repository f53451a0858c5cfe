//! A webhook's circuit: how it is shown, and what can be decided about it by hand.

use std::time::Duration;

use axum::extract::State;
use redrive_core::{
    Invalid, Time, WebhookId,
    protection::breaker::{CircuitView as Circuit, Counts, Forced},
};
use redrive_engine::CircuitAction;
use redrive_store::Period;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    api::{
        AppState,
        events::TenantQuery,
        extract::{Id, Json, ManagesEndpoints, May, Query},
        problem::{ChangeProblems, Problem},
    },
    app::circuit::CircuitSeen,
};

/// The longest that a circuit can be forced for with one call, unless it is until further notice: 30 days.
const LONGEST: i64 = 30 * 24 * 3600;

/// A circuit.
#[derive(Serialize, ToSchema)]
#[schema(as = CircuitDetails)]
pub(super) struct CircuitView {
    #[serde(flatten)]
    circuit: Circuit,
    /// Whether this node goes by what it knows, since the Redis that nodes share does not answer.
    fallback: bool,
    /// The last 20 times it was open in the last 24 hours, newest first.
    periods: Vec<PeriodView>,
}

/// A time for which a circuit was open.
#[derive(Serialize, ToSchema)]
pub(super) struct PeriodView {
    /// When it opened.
    #[schema(value_type = String, format = DateTime)]
    opened_at: Time,
    /// When it stopped being open; null while it is.
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Time>,
    /// Whether a person had forced it open.
    forced: bool,
    /// What was in the window that opened it.
    counts: Counts,
}

impl From<Period> for PeriodView {
    fn from(period: Period) -> Self {
        Self {
            opened_at: period.opened_at,
            ended_at: period.ended_at,
            forced: period.forced,
            counts: period.counts,
        }
    }
}

impl From<CircuitSeen> for CircuitView {
    fn from(seen: CircuitSeen) -> Self {
        let periods = seen.periods.into_iter().map(PeriodView::from).collect();
        Self { circuit: seen.circuit, fallback: seen.fallback, periods }
    }
}

/// What to do with a circuit.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Action {
    /// Close it and forget what it counted; nothing is forced any more.
    Reset,
    /// Let nothing through, whatever happens.
    ForceOpen,
    /// Let everything through, whatever happens.
    ForceClose,
}

/// What to do with a circuit, and for how long.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CircuitInput {
    /// What to do.
    #[serde(default)]
    #[schema(value_type = Action, required = true)]
    action: Option<Action>,
    /// How long it is forced, 1 to 2592000 seconds; until further notice if left out.
    #[serde(default)]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 2592000)]
    duration_seconds: Option<i64>,
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

impl CircuitInput {
    /// What is wanted, if `by` wants it `now`.
    fn action(&self, by: &str, now: Time) -> Result<CircuitAction, Invalid> {
        let refuse = |message: String| Err(Invalid::new("duration_seconds", message));
        let Some(action) = self.action else {
            return Err(Invalid::new("action", "is missing; it is reset, force_open or force_close"));
        };
        let open = match action {
            Action::Reset if self.duration_seconds.is_some() => {
                return refuse("does not go with reset, which is done at once; leave it out".into());
            }
            Action::Reset => return Ok(CircuitAction::Reset),
            Action::ForceOpen => true,
            Action::ForceClose => false,
        };
        let until = match self.duration_seconds {
            None => None,
            Some(seconds) if (1..=LONGEST).contains(&seconds) => {
                Some(now + Duration::from_secs(seconds.unsigned_abs()))
            }
            Some(seconds) => {
                return refuse(format!(
                    "is {seconds}; it must be from 1 to {LONGEST}; leave it out to force it until further notice"
                ));
            }
        };
        Ok(CircuitAction::Force(Forced { open, until, by: by.to_owned() }))
    }
}

/// Reset or force a webhook's circuit
///
/// What is forced stays so for `duration_seconds`, or until somebody resets it, restarts included.
#[utoipa::path(
    patch, path = "/v1/webhooks/{id}/circuit-breaker", tag = "webhooks",
    params(("id" = String, Path), TenantQuery), request_body = CircuitInput,
    responses((status = 200, body = CircuitView), ChangeProblems),
)]
pub(super) async fn act(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<CircuitInput>,
) -> Result<axum::Json<CircuitView>, Problem> {
    if matches!(input.action, Some(Action::ForceClose)) {
        // A circuit that is forced closed lets requests through that the operator's limits would stop.
        caller.must_not_be_session()?;
    }
    let named = input.tenant_id.as_deref().or(query.tenant_id.as_deref());
    let tenant = app.acts_for(&caller, named).await?;
    let action = |now| input.action(&caller.name, now);
    Ok(axum::Json(app.act_on_circuit(&caller, tenant, id, action).await?.into()))
}

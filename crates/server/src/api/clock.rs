//! `/v1/clock`: the time that this installation uses, and its confirmation by an operator after a jump; for
//! admins.

use axum::extract::State;
use redrive_core::Time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::OptionalJson,
    scope::{Authorized, CanAdminister},
};
use crate::{
    app::clock::ClockStatus,
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(show_clock)).routes(routes!(confirm_clock))
}

/// Request without fields.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfirmClockInput {}

/// Clock of the node that handled the request.
#[derive(Serialize, ToSchema)]
pub(super) struct ClockView {
    /// Time by which deliveries are scheduled.
    #[schema(value_type = String, format = DateTime)]
    now: Time,
    /// Time by which deliveries expire and old data is deleted. It is behind `now` while a jump is unconfirmed.
    #[schema(value_type = String, format = DateTime)]
    confirmed_now: Time,
    /// Difference in seconds between the clock and its prediction; null if there is none.
    unconfirmed_jump_seconds: Option<f64>,
}

impl From<ClockStatus> for ClockView {
    fn from(status: ClockStatus) -> Self {
        let ClockStatus { now, confirmed_now, unconfirmed_jump_ms } = status;
        let unconfirmed_jump_seconds = unconfirmed_jump_ms.map(|jump| jump as f64 / 1000.0);
        Self { now, confirmed_now, unconfirmed_jump_seconds }
    }
}

/// Get the current time
///
/// Also `redrive clock show`.
#[utoipa::path(
    get, path = "/v1/clock", operation_id = "getClock", tag = "health",
    responses((status = 200, description = "The clock that the installation uses", body = ClockView), ReadProblems),
)]
async fn show_clock(
    State(app): State<AppState>,
    _: Authorized<CanAdminister>,
) -> Result<axum::Json<ClockView>, Problem> {
    Ok(axum::Json(app.clock_status().into()))
}

/// Confirm the current time of the clock
///
/// After a jump of the clock, deliveries expire and old data is deleted by the new time only after it has held for
/// one hour. This call makes the new time effective immediately, on all nodes within seconds. Also `redrive clock
/// confirm`.
#[utoipa::path(
    post, path = "/v1/clock/confirm", operation_id = "confirmClock", tag = "health", request_body = Option<ConfirmClockInput>,
    responses((status = 200, description = "The clock after the confirmation", body = ClockView), ChangeProblems),
)]
async fn confirm_clock(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    OptionalJson(ConfirmClockInput {}): OptionalJson<ConfirmClockInput>,
) -> Result<axum::Json<ClockView>, Problem> {
    Ok(axum::Json(app.confirm_clock(&actor).await?.into()))
}

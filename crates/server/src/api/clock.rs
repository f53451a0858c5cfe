//! `/v1/clock`: the time that this installation uses, and an operator's confirmation after a jump, for admins.

use axum::extract::State;
use redrive_core::Time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::{Administers, May, OptionalJson},
    problem::{ChangeProblems, Problem, ReadProblems},
};
use crate::app::clock::ClockStatus;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(show_clock)).routes(routes!(confirm_clock))
}

/// No field is needed.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfirmClockInput {}

/// The clock, as the node that was asked sees it.
#[derive(Serialize, ToSchema)]
pub(super) struct ClockView {
    /// The time by which deliveries are scheduled.
    #[schema(value_type = String, format = DateTime)]
    now: Time,
    /// The time by which deliveries expire and old data is deleted. It is behind `now` while a jump is not confirmed.
    #[schema(value_type = String, format = DateTime)]
    confirmed_now: Time,
    /// By how many seconds the clock differs from its prediction; null if it does not.
    unconfirmed_jump_seconds: Option<f64>,
}

impl From<ClockStatus> for ClockView {
    fn from(status: ClockStatus) -> Self {
        let ClockStatus { now, confirmed_now, unconfirmed_jump_ms } = status;
        let unconfirmed_jump_seconds = unconfirmed_jump_ms.map(|jump| jump as f64 / 1000.0);
        Self { now, confirmed_now, unconfirmed_jump_seconds }
    }
}

/// What time is it?
///
/// Also `redrive clock show`.
#[utoipa::path(
    get, path = "/v1/clock", tag = "health",
    responses((status = 200, body = ClockView), ReadProblems),
)]
async fn show_clock(
    State(app): State<AppState>,
    _: May<Administers>,
) -> Result<axum::Json<ClockView>, Problem> {
    Ok(axum::Json(app.clock_status().into()))
}

/// Confirm the time that the clock shows
///
/// After a jump of the clock, deliveries expire and old data is deleted by the new time only after it has held for one
/// hour. This makes the new time count immediately, on all nodes within seconds. Also `redrive clock confirm`.
#[utoipa::path(
    post, path = "/v1/clock/confirm", tag = "health", request_body = Option<ConfirmClockInput>,
    responses((status = 200, body = ClockView), ChangeProblems),
)]
async fn confirm_clock(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    OptionalJson(ConfirmClockInput {}): OptionalJson<ConfirmClockInput>,
) -> Result<axum::Json<ClockView>, Problem> {
    Ok(axum::Json(app.confirm_clock(&by).await?.into()))
}

//! `/v1/secrets`: sealing everything with a new master key, for admins.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::{Administers, May, OptionalJson},
    problem::{ChangeProblems, Problem},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(rotate_master_key))
}

/// Nothing has to be said.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateMasterKeyInput {}

/// What was done.
#[derive(Serialize, ToSchema)]
pub(super) struct RotateMasterKeyView {
    /// How many webhooks were sealed with another master key, and are sealed with the current one now.
    sealed_anew: usize,
}

/// Seal all secrets with the current master key
///
/// Afterwards older master keys are of no use. Also `redrive secrets rotate-master-key`.
#[utoipa::path(
    post, path = "/v1/secrets/rotate-master-key", tag = "tenants", request_body = Option<RotateMasterKeyInput>,
    responses((status = 200, body = RotateMasterKeyView), ChangeProblems),
)]
async fn rotate_master_key(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    OptionalJson(RotateMasterKeyInput {}): OptionalJson<RotateMasterKeyInput>,
) -> Result<axum::Json<RotateMasterKeyView>, Problem> {
    let sealed_anew = app.rotate_master_key(&by).await?;
    Ok(axum::Json(RotateMasterKeyView { sealed_anew }))
}

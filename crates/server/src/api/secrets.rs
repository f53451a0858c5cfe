//! `/v1/secrets`: re-encrypts all secrets with a new master key, for admins.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::OptionalJson,
    scope::{Authorized, CanAdminister},
};
use crate::problem::{ChangeProblems, Problem};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(rotate_master_key))
}

/// Empty object; the request has no parameters.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateMasterKeyInput {}

/// Result of a master key rotation.
#[derive(Serialize, ToSchema)]
pub(super) struct RotateMasterKeyView {
    /// Number of webhooks whose secrets were encrypted with another master key and now use the current one.
    rewrapped: usize,
}

/// Rotate the master key
///
/// Re-encrypts all secrets with the current master key; older master keys are not needed afterwards. Also
/// available as `redrive secrets rotate-master-key`.
#[utoipa::path(
    post, path = "/v1/secrets/rotate-master-key", operation_id = "rotateMasterKey", tag = "tenants", request_body = Option<RotateMasterKeyInput>,
    responses((status = 200, description = "Number of webhooks whose secrets were encrypted again", body = RotateMasterKeyView), ChangeProblems),
)]
async fn rotate_master_key(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    OptionalJson(RotateMasterKeyInput {}): OptionalJson<RotateMasterKeyInput>,
) -> Result<axum::Json<RotateMasterKeyView>, Problem> {
    let rewrapped = app.rotate_master_key(&actor).await?;
    Ok(axum::Json(RotateMasterKeyView { rewrapped }))
}

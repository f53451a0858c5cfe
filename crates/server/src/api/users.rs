//! `/v1/users`: users of the identity provider, for admins.

use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    scope::{Authorized, CanAdminister},
};
use crate::problem::{ChangeProblems, Problem};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(end_sessions))
}

/// Sessions that were ended.
#[derive(Serialize, ToSchema)]
pub(super) struct EndedSessionsView {
    /// Number of sessions that were ended.
    ended: usize,
}

/// End the sessions of a user
///
/// Ends the sessions of a user in all browsers, within a second on all nodes. Also remove the user from the groups at the
/// identity provider, or the user can log in again.
#[utoipa::path(
    delete, path = "/v1/users/{subject}/sessions", operation_id = "endUserSessions", tag = "tenants",
    params(("subject" = String, Path, description = "Subject of the user at the identity provider, as in the audit log after `oidc:`")),
    responses((status = 200, description = "The number of ended sessions", body = EndedSessionsView), ChangeProblems),
)]
async fn end_sessions(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    Path(subject): Path<String>,
) -> Result<axum::Json<EndedSessionsView>, Problem> {
    let ended = app.end_sessions_of_user(&actor, &subject).await?;
    Ok(axum::Json(EndedSessionsView { ended }))
}

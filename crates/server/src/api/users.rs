//! `/v1/users` and `/v1/user-sessions`: users of the identity provider and their sessions, for admins.

use axum::{
    extract::{Path, State},
    http::StatusCode,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use redrive_core::{Time, tenancy::user_role::UserRole};
use redrive_store::SessionCursor;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::Query,
    page::{Cursor, Page, Paging},
    scope::{Authorized, CanAdminister},
};
use crate::{
    app::{AppError, user_sessions::UserSession},
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(end_one)).routes(routes!(end_sessions))
}

/// Values of a user's role.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case", as = UserRole)]
#[allow(dead_code, reason = "it is there to be documented")]
enum UserRoleParameter {
    Viewer,
    Operator,
    Admin,
}

/// A session of a user of the identity provider.
#[derive(Serialize, ToSchema)]
pub(super) struct UserSessionView {
    /// Id of the session.
    id: String,
    /// Subject of the user at the identity provider.
    subject: String,
    /// Name of the user, as it was at the login.
    name: String,
    /// Role of the user in this session.
    #[schema(value_type = UserRoleParameter)]
    role: &'static str,
    /// Time of the login.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Time at which the session ends.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Time,
    /// Last use on the node that responds, since that node started; null if there was none. Accurate to a second.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Time>,
}

impl From<UserSession> for UserSessionView {
    fn from(session: UserSession) -> Self {
        Self {
            id: session_id(&session.stored.id),
            subject: session.user.subject,
            name: session.user.name,
            role: UserRole::name(session.user.role),
            created_at: session.stored.created_at,
            expires_at: session.stored.expires_at,
            last_used_at: session.last_used_at,
        }
    }
}

/// Formats the id of a session.
pub(crate) fn session_id(id: &[u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(id)
}

/// Parses the id of a session. Returns `None` if the text is not valid.
fn parse_session_id(text: &str) -> Option<[u8; 32]> {
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

impl Cursor for SessionCursor {
    fn write(&self) -> String {
        format!("{}.{}", self.created_at.millis(), session_id(&self.id))
    }

    fn read(text: &str) -> Option<Self> {
        let (millis, id) = text.split_once('.')?;
        Some(Self { created_at: Time::from_millis(millis.parse().ok()?), id: parse_session_id(id)? })
    }
}

/// Sessions that were ended.
#[derive(Serialize, ToSchema)]
pub(super) struct EndedSessionsView {
    /// Number of sessions that were ended.
    ended: usize,
}

/// List the sessions of users
///
/// Live sessions of users of the identity provider. Sessions of API keys are not listed: they end when the key is revoked.
#[utoipa::path(
    get, path = "/v1/user-sessions", operation_id = "listUserSessions", tag = "tenants", params(Paging),
    responses((status = 200, description = "Newest first", body = Page<UserSessionView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    _: Authorized<CanAdminister>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<UserSessionView>>, Problem> {
    let sessions = app.list_user_sessions(paging.request()?).await?;
    Ok(axum::Json(paging.page(sessions, |one| one.stored.cursor(), UserSessionView::from)))
}

/// End a session of a user
///
/// Ends it within a second on all nodes. The user can log in again.
#[utoipa::path(
    delete, path = "/v1/user-sessions/{session_id}", operation_id = "endUserSession", tag = "tenants",
    params(("session_id" = String, Path, description = "Id of the session")),
    responses((status = 204, description = "The session has ended"), ChangeProblems),
)]
async fn end_one(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let id = parse_session_id(&id).ok_or(AppError::NotFound("session; check the id"))?;
    app.end_user_session(&actor, id).await?;
    Ok(StatusCode::NO_CONTENT)
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

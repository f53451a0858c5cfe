//! `/v1/portal-sessions`: short-lived keys for a tenant's own people, for admins to hand out.

use std::time::Duration;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{Invalid, KeyId, TenantId, Time};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    events::TenantQuery,
    extract::{Administers, Json, May, Query},
    problem::{ChangeProblems, Problem, ReadProblems},
    tenants::{key_id, named},
};
use crate::{
    app::{
        Capability,
        portal::{self, USUAL},
    },
    http::BaseUrl,
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(end))
}

/// A session to open.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionCreate {
    /// Whose things it is for.
    #[schema(example = "acme")]
    tenant_id: String,
    /// Who it is for, for the audit log.
    #[serde(default)]
    #[schema(example = "jane@acme.example")]
    name: String,
    /// How many seconds it lasts, 1 to 86400; an hour if left out.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400)]
    expires_in: Option<u32>,
    /// What the session may do beside looking; all but `limits` if left out.
    #[serde(default)]
    #[schema(max_items = 5)]
    capabilities: Option<Vec<Capability>>,
}

/// A session.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionView {
    /// Its id, for ending it.
    #[schema(value_type = String)]
    id: KeyId,
    /// Whose things it is for.
    #[schema(value_type = Option<String>)]
    tenant_id: Option<TenantId>,
    /// What to send as `Authorization: Bearer …`, shown this once.
    token: String,
    /// A link that opens the portal with it in a browser, shown this once. The token stands behind the `#`, so that
    /// it reaches no log.
    #[schema(example = "https://hooks.example.com/portal#rdp_9279643b…")]
    url: String,
    /// What it may do.
    capabilities: Vec<Capability>,
    /// When it ends.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
}

/// Open a session for a tenant
///
/// With its token the tenant's webhooks and deliveries can be seen, and changed as its capabilities say. Webhooks that
/// are managed by the operator do not exist for it. It lasts a day at the most. `url` opens the portal with it: a link to hand to a user.
#[utoipa::path(
    post, path = "/v1/portal-sessions", tag = "tenants", request_body = SessionCreate,
    responses((status = 201, description = "`token` and `url` are shown this once", body = SessionView), ChangeProblems),
)]
async fn create(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    BaseUrl(reached): BaseUrl,
    Json(input): Json<SessionCreate>,
) -> Result<Response, Problem> {
    let tenant = named(&app, &input.tenant_id).await?;
    let lasts = input.expires_in.map_or(USUAL, |seconds| Duration::from_secs(seconds.into()));
    let base = app.base_url(reached)?;
    let capabilities = input.capabilities.unwrap_or_else(|| Capability::DEFAULT.to_vec());
    if capabilities.len() > Capability::ALL.len() {
        let message = format!("must name each at most once; there are {}", Capability::ALL.len());
        return Err(Invalid::new("capabilities", message).into());
    }
    let (key, token) = app.open_portal(&by, tenant, input.name, lasts, &capabilities).await?;
    let url = portal::link(&base, &token);
    let capabilities = Capability::from_bits(key.scopes);
    let view = SessionView {
        id: key.id,
        tenant_id: key.tenant,
        token,
        url,
        capabilities,
        expires_at: key.expires_at,
    };
    Ok((StatusCode::CREATED, axum::Json(view)).into_response())
}

/// End a session
///
/// It stops working at once.
#[utoipa::path(
    delete, path = "/v1/portal-sessions/{id}", tag = "tenants", params(("id" = String, Path), TenantQuery),
    responses((status = 204, description = "Ended"), ReadProblems),
)]
async fn end(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    axum::extract::Path(id): axum::extract::Path<String>,
    Query(query): Query<TenantQuery>,
) -> Result<StatusCode, Problem> {
    let tenant = app.acts_for(&by, query.tenant_id.as_deref()).await?;
    app.close_portal(&by, tenant.id, key_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

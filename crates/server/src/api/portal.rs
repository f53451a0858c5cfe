//! `/v1/portal-sessions`: short-lived keys for a tenant's own users, created by admins.

use std::time::Duration;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{FieldError, KeyId, TenantId, Time};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    creation::{Creation, replayed},
    extract::Json,
    scope::{Authorized, CanAdminister, Scoped, TenantQuery},
    tenants::key_id,
};
use crate::{
    app::{
        Capability, Created,
        portal::{self, DEFAULT_TTL, NewSession},
    },
    problem::{ChangeProblems, Problem, ReadProblems},
    request::BaseUrl,
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(end))
}

/// Portal session to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SessionCreate {
    /// Tenant that the session gives access to.
    #[schema(example = "acme")]
    tenant_id: String,
    /// User of the session, for the audit log.
    #[serde(default)]
    #[schema(example = "jane@acme.example")]
    name: String,
    /// Lifetime in seconds, 1 to 86400; one hour by default.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400)]
    expires_in: Option<u32>,
    /// Capabilities of the session in addition to reading; all except `limits` by default.
    #[serde(default)]
    #[schema(max_items = 5)]
    capabilities: Option<Vec<Capability>>,
    /// Whether the tenant is created if it does not exist; `false` by default, or as `server.create_tenants` says.
    #[serde(default)]
    create_tenant: bool,
}

/// Portal session.
#[derive(Serialize, ToSchema)]
pub(super) struct SessionView {
    /// Unique id of the session, used to end it.
    #[schema(value_type = String)]
    id: KeyId,
    /// Tenant that the session gives access to.
    #[schema(value_type = Option<String>)]
    tenant_id: Option<TenantId>,
    /// Token for the header `Authorization: Bearer …`. Returned only once.
    token: String,
    /// Link that opens the portal with this session in a browser. Returned only once. The token is in the URL fragment
    /// (after `#`), which browsers do not send, so it does not appear in access logs.
    #[schema(example = "https://hooks.example.com/portal#rdp_9279643b…")]
    url: String,
    /// Capabilities of the session in addition to reading.
    capabilities: Vec<Capability>,
    /// Expiration time.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
}

/// Portal session that was created before.
#[derive(Serialize, ToSchema)]
pub(super) struct KnownSessionView {
    /// Unique id of the session, used to end it.
    #[schema(value_type = String)]
    id: KeyId,
    /// Tenant that the session gives access to.
    #[schema(value_type = Option<String>)]
    tenant_id: Option<TenantId>,
    /// Capabilities of the session in addition to reading.
    capabilities: Vec<Capability>,
    /// Expiration time.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
}

/// Create a portal session
///
/// The token gives read access to the tenant's webhooks and deliveries, and write access according to the
/// capabilities. Webhooks managed by the operator are not visible. A session lasts at most one day. Give `url` to
/// a user to open the portal.
#[utoipa::path(
    post, path = "/v1/portal-sessions", operation_id = "createPortalSession", tag = "tenants", request_body = SessionCreate,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first object, without its secret")),
    responses(
        (status = 201, description = "`token` and `url` are returned only once", body = SessionView),
        (status = 200, description = "The session that an earlier request with this idempotency key created, without `token` and `url`", body = KnownSessionView),
        ChangeProblems,
    ),
)]
async fn create(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    BaseUrl(reached): BaseUrl,
    Creation { body: Json(input), request }: Creation<Json<SessionCreate>>,
) -> Result<Response, Problem> {
    let tenant = app.resolve_or_create_tenant(&actor, Some(&input.tenant_id), input.create_tenant).await?;
    let tenant_id = tenant.id;
    let key = request.as_ref().map(|request| app.creation_key(Some(&tenant_id), request)).transpose()?;
    let lasts = input.expires_in.map_or(DEFAULT_TTL, |seconds| Duration::from_secs(seconds.into()));
    let base = app.base_url(reached)?;
    let capabilities = input.capabilities.unwrap_or_else(|| Capability::DEFAULT.to_vec());
    if capabilities.len() > Capability::ALL.len() {
        let message = format!("must name each capability at most once; there are {}", Capability::ALL.len());
        return Err(FieldError::new("capabilities", message).into());
    }
    let new = NewSession { name: input.name, lasts, capabilities };
    let create = app.open_portal(&actor, tenant_id.clone(), new, key.clone());
    let (key, token) = match app.create_once(key.as_ref(), create).await? {
        Created::Now(created) => created,
        Created::Before(id) => {
            let known = app.key(Some(tenant_id), key_id(&id)?).await?;
            let capabilities = Capability::from_bits(known.scopes);
            let (id, tenant_id, expires_at) = (known.id, known.tenant_id, known.expires_at);
            return Ok(replayed(KnownSessionView { id, tenant_id, capabilities, expires_at }));
        }
    };
    let url = portal::link(&base, &token);
    let capabilities = Capability::from_bits(key.scopes);
    let view = SessionView {
        id: key.id,
        tenant_id: key.tenant_id,
        token,
        url,
        capabilities,
        expires_at: key.expires_at,
    };
    Ok((StatusCode::CREATED, axum::Json(view)).into_response())
}

/// End a portal session
///
/// Takes effect immediately.
#[utoipa::path(
    delete, path = "/v1/portal-sessions/{id}", operation_id = "endPortalSession", tag = "tenants", params(("id" = String, Path), TenantQuery),
    responses((status = 204, description = "Ended"), ReadProblems),
)]
async fn end(
    State(app): State<AppState>,
    Scoped { actor, tenant, path: axum::extract::Path(id), .. }: Scoped<
        CanAdminister,
        axum::extract::Path<String>,
    >,
) -> Result<StatusCode, Problem> {
    app.close_portal(&actor, tenant.id, key_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

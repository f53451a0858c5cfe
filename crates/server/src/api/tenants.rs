//! `/v1/tenants` and their API keys, for admins.

use std::net::IpAddr;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use ipnet::IpNet;
use redrive_core::{
    Invalid, KeyId, TenantId, Time,
    notification::preferences::Notifications,
    protection::limiter::RateLimit,
    tenancy::{TenantQuotas, TenantRules},
};
use redrive_store::{ApiKey, Tenant};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::{Administers, Json, May, OptionalJson, Query, nullable, nullable_object, object},
    page::{Page, Paging},
    preferences::{NotificationsChange, NotificationsView},
    problem::{ChangeProblems, Problem, ReadProblems},
};
use crate::app::{Actor, AppError, NewKey, Scope};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, patch, delete))
        .routes(routes!(create_key, list_keys))
        .routes(routes!(revoke_key))
        .routes(routes!(create_admin_key, list_admin_keys))
        .routes(routes!(revoke_admin_key))
}

/// A tenant to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantCreate {
    /// Its name in every call: 1 to 64 of a-z, 0-9, _ and -.
    #[schema(example = "acme", pattern = "^[a-z0-9][a-z0-9_-]{0,63}$")]
    id: String,
    /// A name for people.
    #[serde(default)]
    name: Option<String>,
    /// The pool of nodes that sends for it: 1 to 64 of a-z, 0-9, _ and -; `default` if left out.
    #[serde(default)]
    #[schema(example = "gold", pattern = "^[a-z0-9_-]{1,64}$")]
    pool: Option<String>,
    /// How fast is sent for it; the server's default if left out.
    #[serde(default, deserialize_with = "object")]
    rate_limit: Option<RateLimit>,
    /// Requests at once for it, on each node; the server's default if left out.
    #[serde(default)]
    #[schema(minimum = 1)]
    max_in_flight: Option<u32>,
    /// How much it may have and do; no limits if left out.
    #[serde(default, deserialize_with = "object")]
    #[schema(value_type = Option<TenantQuotas>)]
    quotas: Option<TenantQuotas>,
    /// Whether only event types that it has registered may be published; any may if left out.
    #[serde(default)]
    strict_event_types: bool,
    /// What its owners want to hear of, and where; no mails if left out.
    #[serde(default, deserialize_with = "object")]
    #[schema(value_type = Option<Notifications>)]
    notifications: Option<Notifications>,
}

/// What to change about a tenant. Whatever is left out keeps its value.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TenantChange {
    /// A name for people; null for none.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    name: Option<Option<String>>,
    /// The pool of nodes that sends for it; null for `default`.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, example = "gold", pattern = "^[a-z0-9_-]{1,64}$")]
    pool: Option<Option<String>>,
    /// How fast is sent for it; null for the server's default.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<RateLimit>)]
    rate_limit: Option<Option<RateLimit>>,
    /// Requests at once for it, on each node; null for the server's default.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    max_in_flight: Option<Option<u32>>,
    /// How much it may have and do. Whatever is left out keeps its value, null takes a limit away; null for no limits
    /// at all.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<TenantQuotas>)]
    quotas: Option<Option<QuotasChange>>,
    /// Whether only event types that it has registered may be published.
    strict_event_types: Option<bool>,
    /// What its owners want to hear of, and where. Whatever is left out keeps its value; null for no mails at all.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<NotificationsChange>)]
    notifications: Option<Option<NotificationsChange>>,
}

/// What to change about a tenant's quotas.
#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct QuotasChange {
    #[serde(deserialize_with = "nullable")]
    max_webhooks: Option<Option<u32>>,
    #[serde(deserialize_with = "nullable")]
    max_events_per_day: Option<Option<u32>>,
    #[serde(deserialize_with = "nullable")]
    max_payload_bytes: Option<Option<u32>>,
    #[serde(deserialize_with = "nullable")]
    retention_days: Option<Option<u32>>,
    #[serde(deserialize_with = "nullable")]
    dead_retention_days: Option<Option<u32>>,
}

impl QuotasChange {
    fn apply_to(self, quotas: &mut TenantQuotas) {
        put(&mut quotas.max_webhooks, self.max_webhooks);
        put(&mut quotas.max_events_per_day, self.max_events_per_day);
        put(&mut quotas.max_payload_bytes, self.max_payload_bytes);
        put(&mut quotas.retention_days, self.retention_days);
        put(&mut quotas.dead_retention_days, self.dead_retention_days);
    }
}

fn put<T>(to: &mut T, from: Option<T>) {
    if let Some(value) = from {
        *to = value;
    }
}

impl TenantChange {
    fn apply_to(self, tenant: &mut Tenant) {
        put(&mut tenant.name, self.name);
        put(&mut tenant.rules.pool, self.pool);
        put(&mut tenant.rules.rate_limit, self.rate_limit);
        put(&mut tenant.rules.max_in_flight, self.max_in_flight);
        match self.quotas {
            Some(Some(change)) => change.apply_to(&mut tenant.rules.quotas),
            Some(None) => tenant.rules.quotas = TenantQuotas::default(),
            None => {}
        }
        put(&mut tenant.rules.strict_event_types, self.strict_event_types);
        match self.notifications {
            Some(Some(change)) => change.apply_to(&mut tenant.rules.notifications),
            Some(None) => tenant.rules.notifications = Notifications::default(),
            None => {}
        }
    }
}

/// A tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct TenantView {
    /// Its id.
    #[schema(value_type = String)]
    id: TenantId,
    /// A name for people.
    name: Option<String>,
    /// The pool of nodes that sends for it.
    pool: String,
    /// How fast is sent for it; null for the server's default.
    rate_limit: Option<RateLimit>,
    /// Requests at once for it, on each node; null for the server's default.
    max_in_flight: Option<u32>,
    /// How much it may have and do.
    quotas: TenantQuotas,
    /// Whether only event types that it has registered may be published.
    strict_event_types: bool,
    /// What its owners want to hear of, and where.
    notifications: NotificationsView,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
}

impl From<Tenant> for TenantView {
    fn from(tenant: Tenant) -> Self {
        Self {
            pool: tenant.rules.pool().to_owned(),
            rate_limit: tenant.rules.rate_limit,
            max_in_flight: tenant.rules.max_in_flight,
            quotas: tenant.rules.quotas,
            strict_event_types: tenant.rules.strict_event_types,
            notifications: tenant.rules.notifications.into(),
            id: tenant.id,
            name: tenant.name,
            created_at: tenant.created_at,
        }
    }
}

/// Make a tenant
#[utoipa::path(
    post, path = "/v1/tenants", tag = "tenants", request_body = TenantCreate,
    responses((status = 201, body = TenantView), ChangeProblems),
)]
async fn create(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    Json(input): Json<TenantCreate>,
) -> Result<Response, Problem> {
    let rules = TenantRules {
        pool: input.pool,
        rate_limit: input.rate_limit,
        max_in_flight: input.max_in_flight,
        quotas: input.quotas.unwrap_or_default(),
        strict_event_types: input.strict_event_types,
        notifications: input.notifications.unwrap_or_default(),
    };
    let tenant = app.create_tenant(&by, &input.id, input.name, rules).await?;
    Ok((StatusCode::CREATED, axum::Json(TenantView::from(tenant))).into_response())
}

/// Which tenants to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantsQuery {
    /// Only those whose id begins like this.
    pub(crate) prefix: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// How many: 1 to 500, 50 if left out.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// How many to leave out first, up to 10,000; a cursor is better.
    #[param(maximum = 10000)]
    offset: Option<u32>,
    /// Of no use here: all of them are listed.
    tenant_id: Option<String>,
}

impl TenantsQuery {
    /// Which part of the listing.
    pub(crate) fn paging(&self) -> Paging {
        let Self { cursor, limit, offset, tenant_id, .. } = self;
        Paging { cursor: cursor.clone(), limit: *limit, offset: *offset, tenant_id: tenant_id.clone() }
    }
}

/// List tenants
#[utoipa::path(
    get, path = "/v1/tenants", tag = "tenants", params(TenantsQuery),
    responses((status = 200, description = "By id", body = Page<TenantView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    _: May<Administers>,
    Query(query): Query<TenantsQuery>,
) -> Result<axum::Json<Page<TenantView>>, Problem> {
    let paging = query.paging();
    let tenants = app.list_tenants(query.prefix.as_deref(), paging.request()?).await?;
    Ok(axum::Json(paging.page(tenants, |tenant| tenant.id.clone(), TenantView::from)))
}

/// The tenant that a path names, for an admin.
pub(crate) async fn named(app: &AppState, id: &str) -> Result<TenantId, Problem> {
    let id = TenantId::parse(id).map_err(|_| AppError::NotFound("tenant"))?;
    Ok(app.tenant(id).await?.id)
}

/// Get a tenant
#[utoipa::path(
    get, path = "/v1/tenants/{id}", tag = "tenants", params(("id" = String, Path)),
    responses((status = 200, body = TenantView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    _: May<Administers>,
    axum::extract::Path(id): axum::extract::Path<String>,
) -> Result<axum::Json<TenantView>, Problem> {
    let id = named(&app, &id).await?;
    Ok(axum::Json(app.tenant(id).await?.into()))
}

/// Change a tenant
///
/// Whatever is left out keeps its value. What waits goes by the new rules.
#[utoipa::path(
    patch, path = "/v1/tenants/{id}", tag = "tenants", params(("id" = String, Path)),
    request_body = TenantChange,
    responses((status = 200, body = TenantView), ChangeProblems),
)]
async fn patch(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    axum::extract::Path(id): axum::extract::Path<String>,
    Json(input): Json<TenantChange>,
) -> Result<axum::Json<TenantView>, Problem> {
    let id = named(&app, &id).await?;
    Ok(axum::Json(app.change_tenant(&by, id, |tenant| input.apply_to(tenant)).await?.into()))
}

/// Delete a tenant
///
/// Its webhooks are deleted, what is pending for them is cancelled, and its keys stop working. Its name is never used
/// again, so that nobody comes by its history.
#[utoipa::path(
    delete, path = "/v1/tenants/{id}", tag = "tenants", params(("id" = String, Path)),
    responses((status = 204, description = "Deleted"), ChangeProblems),
)]
async fn delete(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    axum::extract::Path(id): axum::extract::Path<String>,
) -> Result<StatusCode, Problem> {
    let id = named(&app, &id).await?;
    app.delete_tenant(&by, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An API key to make.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyCreate {
    /// What it is for.
    #[serde(default)]
    #[schema(example = "checkout service")]
    name: String,
    /// What it may be used for; everything if left out.
    #[serde(default)]
    scopes: Option<Vec<Scope>>,
    /// From when on it is of no use; never if left out.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
    /// Networks that it may be used from, such as 10.0.0.0/8; anywhere if left out or empty.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, example = json!(["203.0.113.0/24"]))]
    allowed_networks: Option<Vec<String>>,
}

/// An API key.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyView {
    /// Its id, for revoking it.
    #[schema(value_type = String)]
    id: KeyId,
    /// Whose it is; null for an admin key.
    #[schema(value_type = Option<String>)]
    tenant_id: Option<TenantId>,
    /// What it is for.
    name: String,
    /// What it may be used for.
    scopes: Vec<Scope>,
    /// The key itself, shown this once.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Networks that it may be used from; anywhere if empty.
    #[schema(value_type = Vec<String>)]
    allowed_networks: Vec<IpNet>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// From when on it is of no use; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
    /// When it was revoked.
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Time>,
    /// When it was last used, to about a minute.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Time>,
}

impl From<ApiKey> for KeyView {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id,
            tenant_id: key.tenant,
            name: key.name,
            scopes: Scope::from_bits(key.scopes),
            key: None,
            allowed_networks: key.networks,
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
        }
    }
}

/// Networks as people write them: an address alone is a network of one.
fn networks(given: Option<Vec<String>>) -> Result<Vec<IpNet>, Invalid> {
    let read = |text: String| {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(|network: IpNet| network.trunc()).map_err(|_| {
            let text: String = text.escape_debug().take(64).collect();
            Invalid::new(
                "allowed_networks",
                format!("{text:?} is no network; write it as 10.0.0.0/8 or 2001:db8::/32"),
            )
        })
    };
    given.unwrap_or_default().into_iter().map(read).collect()
}

async fn made_key(
    app: &AppState,
    by: &Actor,
    tenant: Option<TenantId>,
    input: KeyCreate,
) -> Result<Response, Problem> {
    let new = NewKey {
        tenant,
        name: input.name,
        scopes: input.scopes.unwrap_or(Scope::ALL.to_vec()),
        capabilities: Vec::new(),
        session: false,
        networks: networks(input.allowed_networks)?,
        expires_at: input.expires_at,
    };
    let (key, secret) = app.create_key(by, new).await?;
    let view = KeyView { key: Some(secret), ..key.into() };
    Ok((StatusCode::CREATED, axum::Json(view)).into_response())
}

/// Make an API key for a tenant
#[utoipa::path(
    post, path = "/v1/tenants/{id}/api-keys", tag = "tenants", params(("id" = String, Path)),
    request_body = Option<KeyCreate>,
    responses((status = 201, description = "`key` is shown this once", body = KeyView), ChangeProblems),
)]
async fn create_key(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    axum::extract::Path(id): axum::extract::Path<String>,
    OptionalJson(input): OptionalJson<KeyCreate>,
) -> Result<Response, Problem> {
    let tenant = named(&app, &id).await?;
    made_key(&app, &by, Some(tenant), input).await
}

/// List a tenant's API keys
#[utoipa::path(
    get, path = "/v1/tenants/{id}/api-keys", tag = "tenants", params(("id" = String, Path), Paging),
    responses((status = 200, description = "Newest first", body = Page<KeyView>), ReadProblems),
)]
async fn list_keys(
    State(app): State<AppState>,
    _: May<Administers>,
    axum::extract::Path(id): axum::extract::Path<String>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<KeyView>>, Problem> {
    let tenant = named(&app, &id).await?;
    let keys = app.list_keys(Some(tenant), paging.request()?).await?;
    Ok(axum::Json(paging.page(keys, |key| key.id, KeyView::from)))
}

/// Revoke a tenant's API key
///
/// It stops working at once.
#[utoipa::path(
    delete, path = "/v1/tenants/{id}/api-keys/{key_id}", tag = "tenants",
    params(("id" = String, Path), ("key_id" = String, Path)),
    responses((status = 204, description = "Revoked"), ReadProblems),
)]
async fn revoke_key(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    axum::extract::Path((id, key)): axum::extract::Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    let tenant = named(&app, &id).await?;
    app.revoke_key(&by, Some(tenant), key_id(&key)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) fn key_id(text: &str) -> Result<KeyId, Problem> {
    text.parse().map_err(|_| AppError::NotFound("live API key").into())
}

/// Make an admin key
#[utoipa::path(
    post, path = "/v1/admin-keys", tag = "tenants", request_body = Option<KeyCreate>,
    responses((status = 201, description = "`key` is shown this once", body = KeyView), ChangeProblems),
)]
async fn create_admin_key(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    OptionalJson(input): OptionalJson<KeyCreate>,
) -> Result<Response, Problem> {
    if input.scopes.is_some() {
        return Err(Invalid::new("scopes", "are a tenant key's; an admin key may do everything").into());
    }
    made_key(&app, &by, None, input).await
}

/// List admin keys
///
/// The one that was configured is not among them.
#[utoipa::path(
    get, path = "/v1/admin-keys", tag = "tenants", params(Paging),
    responses((status = 200, description = "Newest first", body = Page<KeyView>), ReadProblems),
)]
async fn list_admin_keys(
    State(app): State<AppState>,
    _: May<Administers>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<KeyView>>, Problem> {
    let keys = app.list_keys(None, paging.request()?).await?;
    Ok(axum::Json(paging.page(keys, |key| key.id, KeyView::from)))
}

/// Revoke an admin key
#[utoipa::path(
    delete, path = "/v1/admin-keys/{key_id}", tag = "tenants", params(("key_id" = String, Path)),
    responses((status = 204, description = "Revoked"), ReadProblems),
)]
async fn revoke_admin_key(
    State(app): State<AppState>,
    May(by, _): May<Administers>,
    axum::extract::Path(key): axum::extract::Path<String>,
) -> Result<StatusCode, Problem> {
    app.revoke_key(&by, None, key_id(&key)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! `/v1/tenants` and API keys, for admins.

use std::net::IpAddr;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use ipnet::IpNet;
use redrive_core::{
    FieldError, KeyId, TenantId, Time,
    metadata::Metadata,
    notification::preferences::TenantPreferences,
    protection::limiter::RateLimit,
    statistics::tenant_health::{TenantHealth, TenantSort},
    tenancy::{TenantQuotas, TenantRules},
};
use redrive_store::{ApiKey, CreationKey, Tenant};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    creation::{Creation, replayed},
    extract::{Json, OptionalJson, Query},
    page::{Page, Paging},
    preferences::{PreferencesChange, TenantPreferencesView},
    scope::{Authorized, CanAdminister, ViewsAllTenants},
};
use crate::{
    app::{
        Actor, AppError, Created, NewKey, Scope,
        across_tenants::TenantOrder,
        parse::json::{nullable, nullable_object, object},
        tenants::TenantWithHealth,
    },
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, put_tenant, patch, delete))
        .routes(routes!(create_key, list_keys))
        .routes(routes!(revoke_key))
        .routes(routes!(create_admin_key, list_admin_keys))
        .routes(routes!(revoke_admin_key))
}

/// Tenant to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantCreate {
    /// Unique id of the tenant: 1 to 128 of A-Z, a-z, 0-9, '.', '_', '-' and ':', beginning with a letter or digit. Upper
    /// and lower case differ.
    #[schema(example = "org_01EHZNVPK3SFK441A1RGBFSHRT", pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
    id: String,
    /// Display name.
    #[serde(default)]
    name: Option<String>,
    /// Your own metadata: any JSON values by name, up to 8,192 bytes in total and nested up to 20 levels deep. Kept as
    /// sent.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, serde_json::Value>>)]
    metadata: Option<Metadata>,
    /// Worker pool that sends for the tenant: 1 to 64 of a-z, 0-9, _ and -; `default` by default.
    #[serde(default)]
    #[schema(example = "gold", pattern = "^[a-z0-9_-]{1,64}$")]
    pool: Option<String>,
    /// Send rate limit of the tenant; the server default if omitted.
    #[serde(default, deserialize_with = "object")]
    rate_limit: Option<RateLimit>,
    /// Maximum concurrent requests for the tenant, per node; the server default if omitted.
    #[serde(default)]
    #[schema(minimum = 1)]
    max_in_flight: Option<u32>,
    /// Quotas of the tenant; unlimited if omitted.
    #[serde(default, deserialize_with = "object")]
    #[schema(value_type = Option<TenantQuotas>)]
    quotas: Option<TenantQuotas>,
    /// Whether only registered event types may be published; `false` by default.
    #[serde(default)]
    strict_event_types: bool,
    /// Notification preferences; no emails are sent if omitted.
    #[serde(default, deserialize_with = "object")]
    #[schema(value_type = Option<TenantPreferences>)]
    notifications: Option<TenantPreferences>,
}

/// Changes to a tenant. Missing fields keep their value.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TenantChange {
    /// Display name; null to remove it.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    name: Option<Option<String>>,
    /// Your own metadata, which replaces the current one; null or `{}` to remove it.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<BTreeMap<String, serde_json::Value>>)]
    metadata: Option<Option<Metadata>>,
    /// Worker pool that sends for the tenant; null for `default`.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, example = "gold", pattern = "^[a-z0-9_-]{1,64}$")]
    pool: Option<Option<String>>,
    /// Send rate limit of the tenant; null for the server default.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<RateLimit>)]
    rate_limit: Option<Option<RateLimit>>,
    /// Maximum concurrent requests for the tenant, per node; null for the server default.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    max_in_flight: Option<Option<u32>>,
    /// Quotas of the tenant. Missing fields keep their value, and null removes a single limit; null instead of the
    /// object removes all limits.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<TenantQuotas>)]
    quotas: Option<Option<QuotasChange>>,
    /// Whether only registered event types may be published.
    strict_event_types: Option<bool>,
    /// Notification preferences. Missing fields keep their value; null instead of the object stops all emails.
    #[serde(deserialize_with = "nullable_object")]
    #[schema(value_type = Option<PreferencesChange>)]
    notifications: Option<Option<PreferencesChange>>,
}

/// Changes to a tenant's quotas.
#[derive(Clone, Default, Deserialize, Serialize)]
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
        put(&mut tenant.metadata, self.metadata.map(Option::unwrap_or_default));
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
            Some(None) => tenant.rules.notifications = TenantPreferences::default(),
            None => {}
        }
    }
}

/// Tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct TenantView {
    /// Unique id of the tenant.
    #[schema(value_type = String)]
    id: TenantId,
    /// Display name.
    name: Option<String>,
    /// Your own metadata, as sent.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    metadata: Metadata,
    /// Worker pool that sends for the tenant.
    pool: String,
    /// Send rate limit of the tenant; null for the server default.
    rate_limit: Option<RateLimit>,
    /// Maximum concurrent requests for the tenant, per node; null for the server default.
    max_in_flight: Option<u32>,
    /// Quotas of the tenant.
    quotas: TenantQuotas,
    /// Whether only registered event types may be published.
    strict_event_types: bool,
    /// Notification preferences.
    notifications: TenantPreferencesView,
    /// Time at which the tenant was created.
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
            metadata: tenant.metadata,
            created_at: tenant.created_at,
        }
    }
}

/// Health of a tenant.
#[derive(Clone, Serialize, ToSchema)]
pub(super) struct TenantHealthView {
    /// `failing`: fewer than 90 % of the attempts of the last hour succeeded; `degraded`: fewer than 99 %, or a circuit
    /// is not closed; `idle`: no attempts, and nothing waits; otherwise `healthy`.
    status: &'static str,
    /// Deliveries that ended in the last hour.
    deliveries: u64,
    /// Attempts in the last hour.
    attempts: u64,
    /// Ratio of successful attempts in the last hour, from 0 to 1; null without attempts.
    success_rate: Option<f64>,
    /// Number of waiting deliveries, at most 1,000 of each webhook.
    backlog: u64,
    /// Circuits that are not closed.
    open_circuits: u64,
    /// Number of dead letters, at most 1,000.
    dead_letters: u64,
    /// Time of the counts, which are some seconds old.
    #[schema(value_type = String, format = DateTime)]
    counted_at: Time,
}

impl TenantHealthView {
    pub(super) fn new(health: TenantHealth, counted_at: Time) -> Self {
        Self {
            status: health.status().name(),
            deliveries: health.deliveries,
            attempts: health.attempts,
            success_rate: health.success_rate(),
            backlog: health.backlog,
            open_circuits: health.open_circuits,
            dead_letters: health.dead_letters,
            counted_at,
        }
    }
}

/// Tenant of a listing.
#[derive(Serialize, ToSchema)]
struct ListedTenantView {
    #[serde(flatten)]
    tenant: TenantView,
    /// Health of the tenant; null if it was created after the last count.
    health: Option<TenantHealthView>,
}

/// Create a tenant
#[utoipa::path(
    post, path = "/v1/tenants", operation_id = "createTenant", tag = "tenants", request_body = TenantCreate,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first object, without its secret")),
    responses(
        (status = 201, description = "The created tenant", body = TenantView),
        (status = 200, description = "The tenant that an earlier request with this idempotency key created", body = TenantView),
        ChangeProblems,
    ),
)]
async fn create(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    creation: Creation<Json<TenantCreate>>,
) -> Result<Response, Problem> {
    let (Json(input), key) = creation.into_parts(&app, None)?;
    let rules = TenantRules {
        pool: input.pool,
        rate_limit: input.rate_limit,
        max_in_flight: input.max_in_flight,
        quotas: input.quotas.unwrap_or_default(),
        strict_event_types: input.strict_event_types,
        notifications: input.notifications.unwrap_or_default(),
    };
    let metadata = input.metadata.unwrap_or_default();
    let tenant = Tenant { name: input.name, metadata, rules, ..app.new_tenant(&input.id)? };
    match app.create_once(key.as_ref(), app.create_tenant(&actor, tenant, key.clone())).await? {
        Created::Now(tenant) => {
            Ok((StatusCode::CREATED, axum::Json(TenantView::from(tenant))).into_response())
        }
        Created::Before(id) => Ok(replayed(TenantView::from(app.tenant(named(&app, &id).await?).await?))),
    }
}

/// Values of `sort`, for the OpenAPI document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "it is there to be documented")]
enum SortParameter {
    Id,
    Name,
    Status,
    Deliveries,
    SuccessRate,
    Backlog,
    OpenCircuits,
    DeadLetters,
}

/// Values of `order`, for the OpenAPI document.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "it is there to be documented")]
enum OrderParameter {
    Asc,
    Desc,
}

/// Filter and paging of a tenant listing.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantsQuery {
    /// Return only tenants whose id starts with this prefix.
    pub(crate) prefix: Option<String>,
    /// Return only tenants whose id or name contains this text, in any case.
    pub(crate) search: Option<String>,
    /// Sort by `id` (default), `name`, `status`, `deliveries`, `success_rate`, `backlog`, `open_circuits` or
    /// `dead_letters`. Counts change while you page, so pages sorted by them can skip or repeat tenants.
    #[param(value_type = Option<SortParameter>, inline)]
    pub(crate) sort: Option<String>,
    /// `asc` or `desc`. By default counts begin with the largest, all other fields with the smallest.
    #[param(value_type = Option<OrderParameter>, inline)]
    pub(crate) order: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size: 1 to 500, 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Number of tenants to skip, up to 10,000. Prefer a cursor.
    #[param(maximum = 10000)]
    offset: Option<u32>,
    /// Has no effect: all tenants are listed.
    tenant_id: Option<String>,
}

impl TenantsQuery {
    /// Returns the paging parameters.
    pub(crate) fn paging(&self) -> Paging {
        let Self { cursor, limit, offset, tenant_id, .. } = self;
        Paging { cursor: cursor.clone(), limit: *limit, offset: *offset, tenant_id: tenant_id.clone() }
    }

    /// Returns the order and the search.
    pub(crate) fn order(&self) -> Result<TenantOrder, FieldError> {
        let sort = |name: &String| {
            let known = TenantSort::ALL.map(TenantSort::name).join(", ");
            TenantSort::parse(name).ok_or_else(|| FieldError::new("sort", format!("must be one of {known}")))
        };
        let descending = match self.order.as_deref() {
            None => None,
            Some("asc") => Some(false),
            Some("desc") => Some(true),
            Some(_) => return Err(FieldError::new("order", "must be asc or desc")),
        };
        Ok(TenantOrder {
            search: self.search.clone(),
            prefix: self.prefix.clone(),
            sort: self.sort.as_ref().map(sort).transpose()?,
            descending,
        })
    }
}

/// List tenants
#[utoipa::path(
    get, path = "/v1/tenants", operation_id = "listTenants", tag = "tenants", params(TenantsQuery),
    responses((status = 200, description = "By id, unless `sort` is given", body = Page<ListedTenantView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<ViewsAllTenants>,
    Query(query): Query<TenantsQuery>,
) -> Result<axum::Json<Page<ListedTenantView>>, Problem> {
    let (paging, order) = (query.paging(), query.order()?);
    let all = actor.require_all_tenants()?;
    let (tenants, counted_at) = app.list_tenants_with_health(all, &order, paging.request()?).await?;
    let view = |listed: TenantWithHealth| ListedTenantView {
        tenant: listed.tenant.into(),
        health: listed.health.map(|health| TenantHealthView::new(health, counted_at)),
    };
    Ok(axum::Json(paging.page(tenants, |listed| listed.tenant.id.clone(), view)))
}

/// Returns the tenant named in the path of an admin route.
pub(crate) async fn named(app: &AppState, id: &str) -> Result<TenantId, Problem> {
    let id = TenantId::parse(id).map_err(|_| AppError::NotFound("tenant"))?;
    Ok(app.tenant(id).await?.id)
}

/// Get a tenant
#[utoipa::path(
    get, path = "/v1/tenants/{id}", operation_id = "getTenant", tag = "tenants", params(("id" = String, Path)),
    responses((status = 200, description = "The tenant", body = TenantView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    _: Authorized<ViewsAllTenants>,
    axum::extract::Path(id): axum::extract::Path<String>,
) -> Result<axum::Json<TenantView>, Problem> {
    let id = named(&app, &id).await?;
    Ok(axum::Json(app.tenant(id).await?.into()))
}

/// Update a tenant
///
/// Missing fields keep their value. The new settings also apply to deliveries that are already waiting.
#[utoipa::path(
    patch, path = "/v1/tenants/{id}", operation_id = "updateTenant", tag = "tenants", params(("id" = String, Path)),
    request_body = TenantChange,
    responses((status = 200, description = "The changed tenant", body = TenantView), ChangeProblems),
)]
async fn patch(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    axum::extract::Path(id): axum::extract::Path<String>,
    Json(input): Json<TenantChange>,
) -> Result<axum::Json<TenantView>, Problem> {
    let id = named(&app, &id).await?;
    Ok(axum::Json(app.change_tenant(&actor, id, |tenant| input.apply_to(tenant)).await?.into()))
}

/// Create or update a tenant
///
/// Creates the tenant if it does not exist. Otherwise same as PATCH: missing fields keep their value. Concurrent requests
/// create one tenant.
#[utoipa::path(
    put, path = "/v1/tenants/{id}", operation_id = "replaceTenant", tag = "tenants", params(("id" = String, Path)),
    request_body = Option<TenantChange>,
    responses(
        (status = 200, description = "The changed tenant", body = TenantView),
        (status = 201, description = "The created tenant", body = TenantView),
        ChangeProblems,
    ),
)]
async fn put_tenant(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    axum::extract::Path(id): axum::extract::Path<String>,
    OptionalJson(input): OptionalJson<TenantChange>,
) -> Result<Response, Problem> {
    let (tenant, is_new) = app.put_tenant(&actor, &id, |tenant| input.clone().apply_to(tenant)).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, axum::Json(TenantView::from(tenant))).into_response())
}

/// Delete a tenant
///
/// Deletes its webhooks, cancels its pending deliveries and revokes its keys. The id cannot be used again, so that
/// no new tenant can access the old history.
#[utoipa::path(
    delete, path = "/v1/tenants/{id}", operation_id = "deleteTenant", tag = "tenants", params(("id" = String, Path)),
    responses((status = 204, description = "Deleted"), ChangeProblems),
)]
async fn delete(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    axum::extract::Path(id): axum::extract::Path<String>,
) -> Result<StatusCode, Problem> {
    let id = named(&app, &id).await?;
    app.delete_tenant(&actor, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// API key to create.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyCreate {
    /// Purpose of the key.
    #[serde(default)]
    #[schema(example = "checkout service")]
    name: String,
    /// Scopes of the key; all by default.
    #[serde(default)]
    scopes: Option<Vec<Scope>>,
    /// Expiration time; never by default.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
    /// Networks from which the key may be used, such as 10.0.0.0/8; any if omitted or empty.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>, example = json!(["203.0.113.0/24"]))]
    allowed_networks: Option<Vec<String>>,
}

/// API key.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyView {
    /// Unique id of the key, used to revoke it.
    #[schema(value_type = String)]
    id: KeyId,
    /// Tenant that the key belongs to; null for an admin key.
    #[schema(value_type = Option<String>)]
    tenant_id: Option<TenantId>,
    /// Purpose of the key.
    name: String,
    /// Scopes of the key.
    scopes: Vec<Scope>,
    /// Networks from which the key may be used; any if empty.
    #[schema(value_type = Vec<String>)]
    allowed_networks: Vec<IpNet>,
    /// Time at which the key was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Expiration time; null for never.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
    /// Time at which the key was revoked.
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Time>,
    /// Time of the last use, accurate to about one minute.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Time>,
}

/// API key that was created.
#[derive(Serialize, ToSchema)]
pub(super) struct CreatedKeyView {
    #[serde(flatten)]
    view: KeyView,
    /// The key itself. It is returned only once.
    key: String,
}

impl From<ApiKey> for KeyView {
    fn from(key: ApiKey) -> Self {
        Self {
            id: key.id,
            tenant_id: key.tenant_id,
            name: key.name,
            scopes: Scope::from_bits(key.scopes),
            allowed_networks: key.networks,
            created_at: key.created_at,
            expires_at: key.expires_at,
            revoked_at: key.revoked_at,
            last_used_at: key.last_used_at,
        }
    }
}

/// Parses networks. A plain address is a network of one address.
fn networks(given: Option<Vec<String>>) -> Result<Vec<IpNet>, FieldError> {
    let read = |text: String| {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        network.map(|network: IpNet| network.trunc()).map_err(|_| {
            let text: String = text.escape_debug().take(64).collect();
            FieldError::new(
                "allowed_networks",
                format!("{text:?} is not a network; write it as 10.0.0.0/8 or 2001:db8::/32"),
            )
        })
    };
    given.unwrap_or_default().into_iter().map(read).collect()
}

async fn create_key_response(
    app: &AppState,
    actor: &Actor,
    tenant_id: Option<TenantId>,
    input: KeyCreate,
    idempotency_key: Option<CreationKey>,
) -> Result<Response, Problem> {
    let new = NewKey {
        tenant_id: tenant_id.clone(),
        name: input.name,
        scopes: input.scopes.unwrap_or(Scope::ALL.to_vec()),
        capabilities: Vec::new(),
        session: false,
        networks: networks(input.allowed_networks)?,
        expires_at: input.expires_at,
    };
    let create = app.create_key(actor, new, idempotency_key.clone());
    match app.create_once(idempotency_key.as_ref(), create).await? {
        Created::Now((key, secret)) => {
            let view = CreatedKeyView { view: key.into(), key: secret };
            Ok((StatusCode::CREATED, axum::Json(view)).into_response())
        }
        Created::Before(id) => Ok(replayed(KeyView::from(app.key(tenant_id, key_id(&id)?).await?))),
    }
}

/// Create an API key for a tenant
#[utoipa::path(
    post, path = "/v1/tenants/{id}/api-keys", operation_id = "createApiKey", tag = "tenants",
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first object, without its secret")),
    request_body = Option<KeyCreate>,
    responses(
        (status = 201, description = "The key; `key` is returned only once", body = CreatedKeyView),
        (status = 200, description = "The key that an earlier request with this idempotency key created, without `key`", body = KeyView),
        ChangeProblems,
    ),
)]
async fn create_key(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    axum::extract::Path(id): axum::extract::Path<String>,
    creation: Creation<OptionalJson<KeyCreate>>,
) -> Result<Response, Problem> {
    let tenant_id = named(&app, &id).await?;
    let (OptionalJson(input), key) = creation.into_parts(&app, Some(&tenant_id))?;
    create_key_response(&app, &actor, Some(tenant_id), input, key).await
}

/// List a tenant's API keys
#[utoipa::path(
    get, path = "/v1/tenants/{id}/api-keys", operation_id = "listApiKeys", tag = "tenants", params(("id" = String, Path), Paging),
    responses((status = 200, description = "Newest first", body = Page<KeyView>), ReadProblems),
)]
async fn list_keys(
    State(app): State<AppState>,
    _: Authorized<CanAdminister>,
    axum::extract::Path(id): axum::extract::Path<String>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<KeyView>>, Problem> {
    let tenant_id = named(&app, &id).await?;
    let keys = app.list_keys(Some(tenant_id), paging.request()?).await?;
    Ok(axum::Json(paging.page(keys, |key| key.id, KeyView::from)))
}

/// Revoke a tenant's API key
///
/// Takes effect immediately.
#[utoipa::path(
    delete, path = "/v1/tenants/{id}/api-keys/{key_id}", operation_id = "revokeApiKey", tag = "tenants",
    params(("id" = String, Path), ("key_id" = String, Path)),
    responses((status = 204, description = "Revoked"), ReadProblems),
)]
async fn revoke_key(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    axum::extract::Path((id, key)): axum::extract::Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    let tenant_id = named(&app, &id).await?;
    app.revoke_key(&actor, Some(tenant_id), key_id(&key)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) fn key_id(text: &str) -> Result<KeyId, Problem> {
    text.parse().map_err(|_| AppError::NotFound("active API key").into())
}

/// Create an admin key
#[utoipa::path(
    post, path = "/v1/admin-keys", operation_id = "createAdminKey", tag = "tenants", request_body = Option<KeyCreate>,
    params(("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first object, without its secret")),
    responses(
        (status = 201, description = "The key; `key` is returned only once", body = CreatedKeyView),
        (status = 200, description = "The key that an earlier request with this idempotency key created, without `key`", body = KeyView),
        ChangeProblems,
    ),
)]
async fn create_admin_key(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    creation: Creation<OptionalJson<KeyCreate>>,
) -> Result<Response, Problem> {
    let (OptionalJson(input), key) = creation.into_parts(&app, None)?;
    if input.scopes.is_some() {
        return Err(FieldError::new(
            "scopes",
            "apply to tenant keys only, because an admin key allows everything; omit them",
        )
        .into());
    }
    create_key_response(&app, &actor, None, input, key).await
}

/// List admin keys
///
/// The key from the configuration is not included.
#[utoipa::path(
    get, path = "/v1/admin-keys", operation_id = "listAdminKeys", tag = "tenants", params(Paging),
    responses((status = 200, description = "Newest first", body = Page<KeyView>), ReadProblems),
)]
async fn list_admin_keys(
    State(app): State<AppState>,
    _: Authorized<CanAdminister>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<KeyView>>, Problem> {
    let keys = app.list_keys(None, paging.request()?).await?;
    Ok(axum::Json(paging.page(keys, |key| key.id, KeyView::from)))
}

/// Revoke an admin key
#[utoipa::path(
    delete, path = "/v1/admin-keys/{key_id}", operation_id = "revokeAdminKey", tag = "tenants", params(("key_id" = String, Path)),
    responses((status = 204, description = "Revoked"), ReadProblems),
)]
async fn revoke_admin_key(
    State(app): State<AppState>,
    Authorized(actor, _): Authorized<CanAdminister>,
    axum::extract::Path(key): axum::extract::Path<String>,
) -> Result<StatusCode, Problem> {
    app.revoke_key(&actor, None, key_id(&key)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! `/v1/webhooks`: subscriptions of URLs to event types.

mod circuit;
mod field_rules;
mod filter;
mod health;
mod input;
mod state;
mod view;

use std::collections::{BTreeMap, HashMap};

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use redrive_core::{
    FieldError, TenantId, WebhookId,
    notification::preferences::normalize_address,
    security::signature::Secret,
    time::HumanDuration,
    webhook::{SuppliedCredentials, Webhook, WebhookState, status::WebhookStatus, uid::WebhookRef},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(in crate::api) use self::field_rules::broken_rules;
use self::{input::InputState, view::WebhookView};
pub(crate) use self::{input::WebhookInput, view::REDACTED};
use super::{
    AppState,
    creation::{Creation, replayed},
    events::PublishedView,
    extract::{Id, Json, MAX_WEBHOOK_BODY_BYTES, OptionalJson, OptionalPayloadJson, Query},
    page::{Page, Paging},
    preferences::AddressView,
    scope::{
        CanRead, ManagesEndpoints, RotatesSecrets, Scoped, ScopedBody, ScopedListing, TenantQuery,
        tenant_parameter,
    },
};
use crate::{
    app::{
        Actor, AppError, Capability, Created, TenantSelection, TenantView,
        across_tenants::read_each,
        webhooks::{DEFAULT_OVERLAP, NewWebhook},
    },
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, patch, put, delete))
        .routes(routes!(rotate_secret))
        .routes(routes!(test))
        .routes(routes!(filter::try_filter))
        .routes(routes!(state::pause))
        .routes(routes!(state::resume))
        .routes(routes!(state::enable))
        .routes(routes!(state::disable))
        .routes(routes!(state::verify))
        .routes(routes!(circuit::act))
        .routes(routes!(health::get))
}

/// Builds the current view of a webhook.
async fn view_now(app: &AppState, webhook: Webhook) -> Result<WebhookView, AppError> {
    let last_success_at = app.last_success(&webhook.tenant_id, webhook.id).await?;
    let tenant_id = webhook.tenant_id.clone();
    let capped = app.capped_limits(&webhook.spec);
    let facts = app.webhook_facts(&webhook).await?;
    let view = WebhookView::new(webhook, facts, last_success_at, app.engine().clock().now()).capped(capped);
    with_confirmation(app, tenant_id, view).await
}

/// Adds the confirmation status of the owner's address.
async fn with_confirmation(
    app: &AppState,
    tenant_id: TenantId,
    view: WebhookView,
) -> Result<WebhookView, AppError> {
    let states = app.address_states(tenant_id, view.owner_email()).await?;
    Ok(view.with_confirmation(states.into_iter().next().map(AddressView::from)))
}

fn parse_secret(text: Option<&str>) -> Result<Option<Secret>, Problem> {
    Ok(text.map(Secret::parse).transpose()?)
}

/// Validates an incomplete webhook input, as far as it is filled in. Nothing is stored.
pub(crate) async fn validate_draft(
    app: &AppState,
    actor: &Actor,
    tenant: TenantView,
    id: Option<WebhookId>,
    input: &WebhookInput,
) -> Result<(), Problem> {
    parse_secret(input.secret.as_deref())?;
    input.requested_state()?;
    Ok(app.check_webhook(actor, tenant, id, |spec| input.apply_to(spec)).await?)
}

/// Create a webhook
///
/// It receives every matching event that is acknowledged from then on.
#[utoipa::path(
    post, path = "/v1/webhooks", operation_id = "createWebhook", tag = "webhooks", request_body = WebhookInput,
    params(TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first object, without its secret")),
    responses(
        (status = 201, description = "`secret` is returned only once, except to a portal session without the capability `secrets`", body = WebhookView),
        (status = 200, description = "The webhook that an earlier request with this idempotency key created, without `secret`", body = WebhookView),
        ChangeProblems,
    ),
)]
async fn create(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, body: creation, .. }: ScopedBody<
        ManagesEndpoints,
        (),
        Creation<Json<WebhookInput, MAX_WEBHOOK_BODY_BYTES>>,
    >,
) -> Result<Response, Problem> {
    let (Json(input), key) = creation.into_parts(&app, Some(&tenant))?;
    let create = app.create_webhook(&actor, tenant.clone(), new_webhook(&input)?, key.clone());
    match app.create_once(key.as_ref(), create).await? {
        Created::Now(webhook) => created(&app, &actor, webhook).await,
        Created::Before(id) => {
            let id = id.parse().map_err(|_| AppError::NotFound("webhook"))?;
            Ok(replayed(view_now(&app, app.webhook(tenant, id).await?).await?))
        }
    }
}

/// Returns the webhook that an input describes.
fn new_webhook(input: &WebhookInput) -> Result<NewWebhook, AppError> {
    let secret = input.secret.as_deref().map(Secret::parse).transpose()?;
    let mut state = WebhookState::Active;
    input.requested_state()?.unwrap_or(InputState::Active).apply_to(&mut state);
    let forced_until = input.force_open_until().flatten();
    Ok(NewWebhook { spec: input.new_spec()?, secret, state, forced_until })
}

/// Returns the response with a webhook that was created now.
async fn created(app: &AppState, actor: &Actor, webhook: Webhook) -> Result<Response, Problem> {
    let (facts, now) = (app.webhook_facts(&webhook).await?, app.engine().clock().now());
    let tenant_id = webhook.tenant_id.clone();
    let view = match actor.is_capable(Capability::Secrets) {
        true => WebhookView::with_secret(webhook, facts, None, now),
        false => WebhookView::new(webhook, facts, None, now),
    };
    let view = with_confirmation(app, tenant_id, view).await?;
    Ok((StatusCode::CREATED, axum::Json(view)).into_response())
}

/// Filter and paging of a webhook listing.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookQuery {
    /// Return only webhooks in the state `active` (`true`), or only those in any other state (`false`).
    active: Option<bool>,
    /// Return only webhooks with this status.
    status: Option<WebhookStatus>,
    /// Return only webhooks that subscribe to this event type.
    event_type: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Number of webhooks to examine: 1 to 500, 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Number of webhooks to skip, up to 10,000. Prefer a cursor.
    #[param(maximum = 10000)]
    offset: Option<u32>,
    /// Tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(WebhookQuery);

/// List webhooks
///
/// With `active`, `status` or `event_type`, a page can have fewer items than `limit`; continue while there is a
/// `next_cursor`. With an admin key, `tenant_id=*` lists the webhooks of all tenants.
#[utoipa::path(
    get, path = "/v1/webhooks", operation_id = "listWebhooks", tag = "webhooks", params(WebhookQuery),
    responses((status = 200, description = "Newest first", body = Page<WebhookView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    ScopedListing { tenants, query: Query(query), .. }: ScopedListing<CanRead, Query<WebhookQuery>>,
) -> Result<axum::Json<Page<WebhookView>>, Problem> {
    let paging = Paging { cursor: query.cursor, limit: query.limit, offset: query.offset, tenant_id: None };
    let webhooks = app.list_webhooks(&tenants, paging.request()?).await?;
    let wanted = |webhook: &Webhook| {
        query.active.is_none_or(|active| active == (webhook.state == WebhookState::Active))
            && query
                .event_type
                .as_deref()
                .is_none_or(|name| webhook.spec.events.iter().any(|p| p.matches(name)))
    };
    let page = paging.page(webhooks, |webhook| webhook.id, |webhook| webhook);
    let webhooks = page.data.into_iter().filter(wanted).collect();
    let data = views(&app, &tenants, webhooks, query.status).await?;
    Ok(axum::Json(Page { data, next_cursor: page.next_cursor }))
}

/// Returns the views of those of these webhooks that have the wanted status, with few reads for all of them.
async fn views(
    app: &AppState,
    tenants: &TenantSelection,
    mut webhooks: Vec<Webhook>,
    wanted: Option<WebhookStatus>,
) -> Result<Vec<WebhookView>, AppError> {
    let facts = app.webhook_facts_of(tenants, &webhooks, wanted).await?;
    webhooks.retain(|webhook| facts.contains_key(&webhook.id));
    let ids: Vec<_> = webhooks.iter().map(|webhook| webhook.id).collect();
    let last = app.last_successes(tenants, &ids).await?;
    let now = app.engine().clock().now();
    let view = |webhook: Webhook| {
        let last_success_at = last.get(&webhook.id).copied();
        let facts = facts.get(&webhook.id).copied().unwrap_or_default();
        (webhook.tenant_id.clone(), WebhookView::new(webhook, facts, last_success_at, now))
    };
    add_confirmations(app, webhooks.into_iter().map(view).collect()).await
}

/// Adds the states of owner addresses, with one read per tenant that has any.
async fn add_confirmations(
    app: &AppState,
    views: Vec<(TenantId, WebhookView)>,
) -> Result<Vec<WebhookView>, AppError> {
    let mut owners: BTreeMap<&TenantId, Vec<&str>> = BTreeMap::new();
    for (tenant_id, view) in &views {
        if let Some(address) = view.owner_email() {
            owners.entry(tenant_id).or_default().push(address);
        }
    }
    let states = owners.into_iter().map(|(tenant_id, addresses)| async move {
        Ok::<_, AppError>((tenant_id.clone(), app.address_states(tenant_id.clone(), addresses).await?))
    });
    let states: HashMap<_, _> = read_each(states).await?.into_iter().collect();
    let with_state = |(tenant_id, view): (TenantId, WebhookView)| {
        let address = view.owner_email().map(normalize_address);
        let mut of_tenant = states.get(&tenant_id).into_iter().flatten();
        let state = of_tenant.find(|state| Some(&state.address) == address.as_ref()).cloned();
        view.with_confirmation(state.map(AddressView::from))
    };
    Ok(views.into_iter().map(with_state).collect())
}

/// Get a webhook
#[utoipa::path(
    get, path = "/v1/webhooks/{id}", operation_id = "getWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    responses((status = 200, description = "The webhook", body = WebhookView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(webhook), .. }: Scoped<CanRead, Id<WebhookRef>>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    Ok(axum::Json(view_now(&app, app.webhook(tenant, id).await?).await?))
}

/// Returns the change that an input describes. A secret in it must be one that signs for the webhook now.
fn change_by(
    actor: &Actor,
    input: &WebhookInput,
) -> Result<impl FnMut(&mut Webhook) -> Result<SuppliedCredentials, AppError>, AppError> {
    let secret = input.secret.as_deref().map(Secret::parse).transpose()?;
    let state = input.requested_state()?;
    Ok(move |webhook: &mut Webhook| {
        if let Some(secret) = &secret {
            require_current_secret(actor, webhook, secret)?;
        }
        if let Some(state) = state {
            state.apply_to(&mut webhook.state);
        }
        input.apply_to(&mut webhook.spec)
    })
}

/// Rejects a secret that does not sign for the webhook now.
fn require_current_secret(actor: &Actor, webhook: &Webhook, secret: &Secret) -> Result<(), AppError> {
    actor.require_capability(Capability::Secrets)?;
    match webhook.secrets.iter().any(|live| live.secret == *secret) {
        true => Ok(()),
        false => Err(changed_secret().into()),
    }
}

fn changed_secret() -> FieldError {
    FieldError::new("secret", "is changed by POST /v1/webhooks/{id}/rotate-secret")
}

/// Request that changes a webhook.
type ChangeRequest = ScopedBody<ManagesEndpoints, Id<WebhookRef>, Json<WebhookInput, MAX_WEBHOOK_BODY_BYTES>>;

/// Update a webhook
///
/// Missing fields keep their value. Pending deliveries keep their body.
#[utoipa::path(
    patch, path = "/v1/webhooks/{id}", operation_id = "updateWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    request_body = WebhookInput,
    responses((status = 200, description = "The changed webhook", body = WebhookView), ChangeProblems),
)]
async fn patch(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(webhook), body: Json(input), .. }: ChangeRequest,
) -> Result<axum::Json<WebhookView>, Problem> {
    if input.secret.is_some() {
        return Err(changed_secret().into());
    }
    let id = app.webhook_id(&tenant, &webhook).await?;
    let change = change_by(&actor, &input)?;
    let webhook = app.update_webhook(&actor, &tenant, id, change, input.force_open_until()).await?;
    Ok(axum::Json(view_now(&app, webhook).await?))
}

/// Create or update a webhook
///
/// If the path names a uid that no webhook of the tenant has, a webhook with that uid is created. Otherwise same as PATCH:
/// missing fields keep their value; `secret` must be one that signs now. Concurrent requests create one webhook.
#[utoipa::path(
    put, path = "/v1/webhooks/{id}", operation_id = "replaceWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    request_body = WebhookInput,
    responses(
        (status = 200, description = "The changed webhook", body = WebhookView),
        (status = 201, description = "The created webhook; `secret` is returned only once, except to a portal session without the capability `secrets`", body = WebhookView),
        ChangeProblems,
    ),
)]
async fn put(state: State<AppState>, request: ChangeRequest) -> Result<Response, Problem> {
    let WebhookRef::Uid(uid) = &request.path.0 else {
        return patch(state, request).await.map(IntoResponse::into_response);
    };
    let (State(app), Json(input)) = (state, &request.body);
    let (actor, tenant) = (&request.actor, &request.tenant);
    if input.names_other_uid(uid) {
        let message = "differs from the uid in the path; omit it, or change it with PATCH";
        return Err(FieldError::new("uid", message).into());
    }
    let (new, change) = (|| new_webhook(input), change_by(actor, input)?);
    let put = app.put_webhook(actor, tenant, uid, new, change, input.force_open_until());
    let (webhook, is_new) = put.await?;
    match is_new {
        true => created(&app, actor, webhook).await,
        false => Ok(axum::Json(view_now(&app, webhook).await?).into_response()),
    }
}

/// Delete a webhook
///
/// Pending deliveries are cancelled; the history is kept.
#[utoipa::path(
    delete, path = "/v1/webhooks/{id}", operation_id = "deleteWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    responses((status = 204, description = "Deleted"), ReadProblems),
)]
async fn delete(
    State(app): State<AppState>,
    Scoped { actor, tenant, path: Id(webhook), .. }: Scoped<ManagesEndpoints, Id<WebhookRef>>,
) -> Result<StatusCode, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    app.delete_webhook(&actor, &tenant, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Options of a secret rotation.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RotateInput {
    /// New secret of 16 to 256 bytes: plain text, or `whsec_` and base64; generated if omitted.
    #[schema(min_length = 16, max_length = 350)]
    secret: Option<String>,
    /// Time for which the old secret still signs, in seconds or as a string such as "24h"; 24 hours by default.
    overlap: Option<HumanDuration>,
    /// Tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(RotateInput);

/// Rotate a webhook's secret
///
/// During the overlap every request carries one signature per live secret.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/rotate-secret", operation_id = "rotateWebhookSecret", tag = "webhooks",
    params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery), request_body = Option<RotateInput>,
    responses((status = 200, description = "`secret` is returned only once", body = WebhookView), ChangeProblems),
)]
async fn rotate_secret(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(webhook), body: OptionalJson(input), .. }: ScopedBody<
        RotatesSecrets,
        Id<WebhookRef>,
        OptionalJson<RotateInput>,
    >,
) -> Result<axum::Json<WebhookView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    let secret = parse_secret(input.secret.as_deref())?;
    let overlap = input.overlap.unwrap_or(DEFAULT_OVERLAP).as_duration();
    let webhook = app.rotate_secret(&actor, &tenant, id, secret, overlap).await?;
    let last_success_at = app.last_success(&tenant, id).await?;
    let tenant_id = webhook.tenant_id.clone();
    let facts = app.webhook_facts(&webhook).await?;
    let view = WebhookView::with_secret(webhook, facts, last_success_at, app.engine().clock().now());
    Ok(axum::Json(with_confirmation(&app, tenant_id, view).await?))
}

/// Test event to send.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TestInput {
    /// Payload; a sample by default.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
    /// Tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(TestInput);

/// Send a test event
///
/// Publishes a `redrive.test` event to this webhook only, through the normal pipeline. Returns a conflict if the
/// webhook is not active.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/test", operation_id = "testWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key returns the first event")),
    request_body = Option<TestInput>,
    responses(
        (status = 202, description = "The published test event", body = PublishedView),
        (status = 200, description = "Duplicate: the test event was already published with this idempotency key", body = PublishedView),
        ChangeProblems,
    ),
)]
async fn test(
    State(app): State<AppState>,
    ScopedBody { tenant, path: Id(webhook), body: creation, .. }: ScopedBody<
        ManagesEndpoints,
        Id<WebhookRef>,
        Creation<OptionalPayloadJson<TestInput>>,
    >,
) -> Result<Response, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    let Creation { body: OptionalPayloadJson(input), request } = creation;
    let data = match input.data {
        Some(data) => Bytes::from(data.get().to_owned()),
        None => Bytes::from_static(br#"{"message":"Hello from Redrive"}"#),
    };
    let key = request.map(|request| request.key.into_boxed_str());
    let receipt = app.test_webhook(tenant, id, data, key).await?;
    let status = if receipt.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(PublishedView::from(receipt))).into_response())
}

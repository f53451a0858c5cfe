//! `/v1/webhooks`: subscriptions of URLs to event types.

mod circuit;
mod filter;
mod health;
mod input;
mod state;
mod view;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use redrive_core::{
    Invalid, TenantId, WebhookId,
    notification::preferences::same_address,
    security::signature::Secret,
    time::Span,
    webhook::{Webhook, WebhookState},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{input::InputState, view::WebhookView};
pub(crate) use self::{input::WebhookInput, view::REDACTED};
use super::{
    AppState,
    events::{PublishedView, TenantQuery},
    extract::{
        Id, Json, MAX_WEBHOOK_BODY_BYTES, ManagesEndpoints, May, OptionalJson, OptionalPayloadJson, Query,
        Reads, RotatesSecrets,
    },
    page::{Page, Paging},
    preferences::AddressView,
    problem::{ChangeProblems, Problem, ReadProblems},
};
use crate::app::{Actor, AppError, Capability, TenantView, webhooks::DEFAULT_OVERLAP};

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

/// A webhook as people see it now.
async fn seen(app: &AppState, webhook: Webhook) -> Result<WebhookView, AppError> {
    let last_success_at = app.last_success(&webhook.tenant, webhook.id).await?;
    let tenant = webhook.tenant.clone();
    let capped = app.capped_limits(&webhook.spec);
    let view = WebhookView::new(webhook, last_success_at, app.engine().clock().now()).capped(capped);
    with_confirmation(app, tenant, view).await
}

/// Adds what is known of the owner's address.
async fn with_confirmation(
    app: &AppState,
    tenant: TenantId,
    view: WebhookView,
) -> Result<WebhookView, AppError> {
    let states = app.address_states(tenant, view.owner_email()).await?;
    Ok(view.with_confirmation(states.into_iter().next().map(AddressView::from)))
}

fn parse_secret(text: Option<&str>) -> Result<Option<Secret>, Problem> {
    Ok(text.map(Secret::parse).transpose()?)
}

/// Says what is wrong with what somebody writes about a webhook, as far as it is written. Nothing is stored.
pub(crate) async fn check_written(
    app: &AppState,
    by: &Actor,
    tenant: TenantView,
    id: Option<WebhookId>,
    input: &WebhookInput,
) -> Result<(), Problem> {
    parse_secret(input.secret.as_deref())?;
    input.wants_state()?;
    Ok(app.check_webhook(by, tenant, id, |spec| input.apply_to(spec)).await?)
}

/// Register a webhook
///
/// Every event that is acknowledged from then on reaches it.
#[utoipa::path(
    post, path = "/v1/webhooks", tag = "webhooks", params(TenantQuery), request_body = WebhookInput,
    responses((status = 201, description = "`secret` is shown this once, except to a portal session without the capability `secrets`", body = WebhookView), ChangeProblems),
)]
async fn create(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<WebhookInput, MAX_WEBHOOK_BODY_BYTES>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.as_deref().or(query.tenant_id.as_deref())).await?;
    let secret = parse_secret(input.secret.as_deref())?;
    let mut state = WebhookState::Active;
    input.wants_state()?.unwrap_or(InputState::Active).apply_to(&mut state);
    let webhook = app.create_webhook(&caller, tenant.clone(), input.new_spec()?, secret, state).await?;
    let now = app.engine().clock().now();
    let view = match caller.is_capable(Capability::Secrets) {
        true => WebhookView::with_secret(webhook, None, now),
        false => WebhookView::new(webhook, None, now),
    };
    let view = with_confirmation(&app, tenant.id, view).await?;
    Ok((StatusCode::CREATED, axum::Json(view)).into_response())
}

/// Which webhooks to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookQuery {
    /// Only active ones, or only others.
    active: Option<bool>,
    /// Only those that want events of this type.
    event_type: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// How many to look at: 1 to 500, 50 if left out.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// How many to leave out first, up to 10,000; a cursor is better.
    #[param(maximum = 10000)]
    offset: Option<u32>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// List webhooks
///
/// With `active` or `event_type`, a page may hold fewer than `limit`; go on while there is a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/webhooks", tag = "webhooks", params(WebhookQuery),
    responses((status = 200, description = "Newest first", body = Page<WebhookView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<WebhookQuery>,
) -> Result<axum::Json<Page<WebhookView>>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    let paging = Paging { cursor: query.cursor, limit: query.limit, offset: query.offset, tenant_id: None };
    let webhooks = app.list_webhooks(tenant.clone(), paging.request()?).await?;
    let wanted = |webhook: &Webhook| {
        query.active.is_none_or(|active| active == (webhook.state == WebhookState::Active))
            && query
                .event_type
                .as_deref()
                .is_none_or(|name| webhook.spec.events.iter().any(|p| p.matches(name)))
    };
    let page = paging.page(webhooks, |webhook| webhook.id, |webhook| webhook);
    let webhooks: Vec<_> = page.data.into_iter().filter(wanted).collect();
    let ids: Vec<_> = webhooks.iter().map(|webhook| webhook.id).collect();
    let last = app.last_successes(&tenant, &ids).await?;
    let now = app.engine().clock().now();
    let view = |webhook: Webhook| {
        let last_success_at = last.get(&webhook.id).copied();
        WebhookView::new(webhook, last_success_at, now)
    };
    let data: Vec<_> = webhooks.into_iter().map(view).collect();
    // One read for all owners.
    let states = app.address_states(tenant.id, data.iter().filter_map(WebhookView::owner_email)).await?;
    let with_state = |view: WebhookView| {
        let address = view.owner_email().map(same_address);
        let state = states.iter().find(|state| Some(&state.address) == address.as_ref()).cloned();
        view.with_confirmation(state.map(AddressView::from))
    };
    let data = data.into_iter().map(with_state).collect();
    Ok(axum::Json(Page { data, next_cursor: page.next_cursor }))
}

/// Get a webhook
#[utoipa::path(
    get, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    responses((status = 200, body = WebhookView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    Ok(axum::Json(seen(&app, app.webhook(tenant, id).await?).await?))
}

async fn change(
    app: &AppState,
    by: &Actor,
    tenant: &TenantId,
    id: WebhookId,
    input: &WebhookInput,
) -> Result<WebhookView, Problem> {
    if input.secret.is_some() {
        return Err(Invalid::new("secret", "is changed by POST /v1/webhooks/{id}/rotate-secret").into());
    }
    let state = input.wants_state()?;
    let apply = |webhook: &mut Webhook| {
        if let Some(state) = state {
            state.apply_to(&mut webhook.state);
        }
        input.apply_to(&mut webhook.spec)
    };
    Ok(seen(app, app.update_webhook(by, tenant, id, apply).await?).await?)
}

/// Change a webhook
///
/// Whatever is left out keeps its value. Pending deliveries keep their body.
#[utoipa::path(
    patch, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = WebhookInput,
    responses((status = 200, body = WebhookView), ChangeProblems),
)]
async fn patch(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<WebhookInput, MAX_WEBHOOK_BODY_BYTES>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let named = input.tenant_id.as_deref().or(query.tenant_id.as_deref());
    let tenant = app.acts_for(&caller, named).await?;
    change(&app, &caller, &tenant, id, &input).await.map(axum::Json)
}

/// Change a webhook
///
/// The same as PATCH: whatever is left out keeps its value.
#[utoipa::path(
    put, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = WebhookInput,
    responses((status = 200, body = WebhookView), ChangeProblems),
)]
async fn put(
    state: State<AppState>,
    who: May<ManagesEndpoints>,
    id: Id<WebhookId>,
    query: Query<TenantQuery>,
    input: Json<WebhookInput, MAX_WEBHOOK_BODY_BYTES>,
) -> Result<axum::Json<WebhookView>, Problem> {
    patch(state, who, id, query, input).await
}

/// Delete a webhook
///
/// What is pending is cancelled; its history stays.
#[utoipa::path(
    delete, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    responses((status = 204, description = "Deleted"), ReadProblems),
)]
async fn delete(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
) -> Result<StatusCode, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    app.delete_webhook(&caller, &tenant, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How to rotate a secret.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RotateInput {
    /// The new secret, `whsec_…`; one is made if left out.
    #[schema(pattern = "^whsec_[A-Za-z0-9+/]{32,86}={0,2}$")]
    secret: Option<String>,
    /// How long the old secret still signs, in seconds or as a text such as "24h"; a day if left out.
    overlap: Option<Span>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// Rotate a webhook's secret
///
/// During the overlap every request carries a signature of each live secret.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/rotate-secret", tag = "webhooks",
    params(("id" = String, Path), TenantQuery), request_body = Option<RotateInput>,
    responses((status = 200, description = "`secret` is shown this once", body = WebhookView), ChangeProblems),
)]
async fn rotate_secret(
    State(app): State<AppState>,
    May(caller, _): May<RotatesSecrets>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<RotateInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let secret = parse_secret(input.secret.as_deref())?;
    let overlap = input.overlap.unwrap_or(DEFAULT_OVERLAP).get();
    let webhook = app.rotate_secret(&caller, &tenant, id, secret, overlap).await?;
    let last_success_at = app.last_success(&tenant, id).await?;
    let tenant = webhook.tenant.clone();
    let view = WebhookView::with_secret(webhook, last_success_at, app.engine().clock().now());
    Ok(axum::Json(with_confirmation(&app, tenant, view).await?))
}

/// What to send as a test.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TestInput {
    /// The payload; a greeting if left out.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// Send a test event
///
/// A `redrive.test` event goes through the real pipeline to this webhook alone. One that is not active is a
/// conflict.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/test", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = Option<TestInput>,
    responses((status = 202, body = PublishedView), ChangeProblems),
)]
async fn test(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalPayloadJson(input): OptionalPayloadJson<TestInput>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let data = match input.data {
        Some(data) => Bytes::from(data.get().to_owned()),
        None => Bytes::from_static(br#"{"message":"Hello from Redrive"}"#),
    };
    let receipt = app.test_webhook(tenant, id, data).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(PublishedView::from(receipt))).into_response())
}

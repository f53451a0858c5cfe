//! Switching a webhook: paused and resumed, disabled and enabled.

use axum::extract::State;
use redrive_core::{WebhookId, webhook::Webhook};

use super::{InputState, WebhookView, seen};
use crate::{
    api::{
        AppState,
        deliveries::TenantInput,
        events::TenantQuery,
        extract::{Id, ManagesEndpoints, May, OptionalJson, Query},
        problem::{ChangeProblems, Problem},
    },
    app::App,
};

/// Pause a webhook
///
/// New events still become deliveries; all of them wait until it is resumed. A disabled one is a conflict.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/pause", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, body = WebhookView), ChangeProblems),
)]
pub(super) async fn pause(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let webhook = App::pause_webhook(&app, &caller, &tenant, id).await?;
    Ok(axum::Json(seen(&app, webhook).await?))
}

/// Resume a paused webhook
///
/// What has waited is sent. A disabled one is a conflict: enable it.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/resume", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, body = WebhookView), ChangeProblems),
)]
pub(super) async fn resume(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let webhook = App::resume_webhook(&app, &caller, &tenant, id).await?;
    Ok(axum::Json(seen(&app, webhook).await?))
}

/// Enable a webhook
///
/// A paused one goes on as well. One that has expired is a conflict: give it a later `expires_at`.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/enable", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, body = WebhookView), ChangeProblems),
)]
pub(super) async fn enable(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let webhook = app
        .change_webhook(&caller, "webhook.enable", &tenant, id, |webhook| put(InputState::Active, webhook))
        .await?;
    Ok(axum::Json(seen(&app, webhook).await?))
}

/// Disable a webhook
///
/// No new deliveries are made; those pending are cancelled.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/disable", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, body = WebhookView), ChangeProblems),
)]
pub(super) async fn disable(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let webhook = app
        .change_webhook(&caller, "webhook.disable", &tenant, id, |webhook| put(InputState::Disabled, webhook))
        .await?;
    Ok(axum::Json(seen(&app, webhook).await?))
}

/// Verify a webhook's URL again
///
/// Its endpoint is asked to echo a challenge; until it does, nothing else is sent. A disabled one is a conflict.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/verify", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, body = WebhookView), ChangeProblems),
)]
pub(super) async fn verify(
    State(app): State<AppState>,
    May(caller, _): May<ManagesEndpoints>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let webhook = app.verify_webhook(&caller, &tenant, id).await?;
    Ok(axum::Json(seen(&app, webhook).await?))
}

fn put(state: InputState, webhook: &mut Webhook) -> Result<(), crate::app::AppError> {
    state.apply_to(&mut webhook.state);
    Ok(())
}

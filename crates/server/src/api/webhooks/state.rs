//! Routes that change the state of a webhook: pause, resume, enable, disable, verify.

use axum::extract::State;
use redrive_core::webhook::{Webhook, uid::WebhookRef};

use super::{InputState, WebhookView, view_now};
use crate::{
    api::{
        AppState,
        deliveries::TenantInput,
        extract::{Id, OptionalJson},
        scope::{ManagesEndpoints, ScopedBody, TenantQuery},
    },
    app::App,
    problem::{ChangeProblems, Problem},
};

/// Pause a webhook
///
/// New events still become deliveries, which wait until the webhook is resumed. Returns a conflict if it is
/// disabled.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/pause", operation_id = "pauseWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, description = "The paused webhook", body = WebhookView), ChangeProblems),
)]
pub(super) async fn pause(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(webhook), .. }: ScopedBody<
        ManagesEndpoints,
        Id<WebhookRef>,
        OptionalJson<TenantInput>,
    >,
) -> Result<axum::Json<WebhookView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    let webhook = App::pause_webhook(&app, &actor, &tenant, id).await?;
    Ok(axum::Json(view_now(&app, webhook).await?))
}

/// Resume a paused webhook
///
/// Waiting deliveries are sent. Returns a conflict if the webhook is disabled; enable it instead.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/resume", operation_id = "resumeWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, description = "The resumed webhook", body = WebhookView), ChangeProblems),
)]
pub(super) async fn resume(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(webhook), .. }: ScopedBody<
        ManagesEndpoints,
        Id<WebhookRef>,
        OptionalJson<TenantInput>,
    >,
) -> Result<axum::Json<WebhookView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    let webhook = App::resume_webhook(&app, &actor, &tenant, id).await?;
    Ok(axum::Json(view_now(&app, webhook).await?))
}

/// Enable a webhook
///
/// Also resumes a paused webhook. Returns a conflict if it has expired; set a later `expires_at` first.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/enable", operation_id = "enableWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, description = "The enabled webhook", body = WebhookView), ChangeProblems),
)]
pub(super) async fn enable(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(webhook), .. }: ScopedBody<
        ManagesEndpoints,
        Id<WebhookRef>,
        OptionalJson<TenantInput>,
    >,
) -> Result<axum::Json<WebhookView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    let webhook = app
        .change_webhook(&actor, "webhook.enable", &tenant, id, |webhook| {
            set_state(InputState::Active, webhook)
        })
        .await?;
    Ok(axum::Json(view_now(&app, webhook).await?))
}

/// Disable a webhook
///
/// No new deliveries are created, and pending ones are cancelled.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/disable", operation_id = "disableWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, description = "The disabled webhook", body = WebhookView), ChangeProblems),
)]
pub(super) async fn disable(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(webhook), .. }: ScopedBody<
        ManagesEndpoints,
        Id<WebhookRef>,
        OptionalJson<TenantInput>,
    >,
) -> Result<axum::Json<WebhookView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    let webhook = app
        .change_webhook(&actor, "webhook.disable", &tenant, id, |webhook| {
            set_state(InputState::Disabled, webhook)
        })
        .await?;
    Ok(axum::Json(view_now(&app, webhook).await?))
}

/// Verify a webhook's URL again
///
/// Sends a challenge that the endpoint must echo; until it does, nothing else is sent. Returns a conflict if the
/// webhook is disabled.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/verify", operation_id = "verifyWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 200, description = "The webhook, which waits for the echo of its endpoint", body = WebhookView), ChangeProblems),
)]
pub(super) async fn verify(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(webhook), .. }: ScopedBody<
        ManagesEndpoints,
        Id<WebhookRef>,
        OptionalJson<TenantInput>,
    >,
) -> Result<axum::Json<WebhookView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    let webhook = app.verify_webhook(&actor, &tenant, id).await?;
    Ok(axum::Json(view_now(&app, webhook).await?))
}

fn set_state(state: InputState, webhook: &mut Webhook) -> Result<(), crate::app::AppError> {
    state.apply_to(&mut webhook.state);
    Ok(())
}

//! Routes that erase event payloads.

use axum::extract::State;
use redrive_core::EventId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::EventView;
use crate::{
    api::{
        AppState,
        extract::{Id, Json},
        scope::{CanErase, Scoped, ScopedBody, TenantQuery, tenant_parameter},
    },
    app::App,
    problem::{ChangeProblems, Problem},
};

/// Erase an event's payload
///
/// Permanently deletes the payload, the metadata and the recorded responses of endpoints. The event, its
/// deliveries and its attempts are kept. Pending deliveries of the event are cancelled; a request in flight is
/// allowed to finish. Replaying the event or retrying one of its deliveries afterwards returns a conflict
/// (`payload_erased`). Erasing it again has no effect.
#[utoipa::path(
    post, path = "/v1/events/{id}/erase", operation_id = "eraseEvent", tag = "events", params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The event without its payload", body = EventView), ChangeProblems),
)]
pub(super) async fn erase(
    State(app): State<AppState>,
    Scoped { actor, tenant, path: Id(id), .. }: Scoped<CanErase, Id<EventId>>,
) -> Result<axum::Json<EventView>, Problem> {
    Ok(axum::Json(App::erase_event(&app, &actor, tenant.id, id).await?.into()))
}

/// Selection of the payloads to erase.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EraseInput {
    /// Subject that the events were published with.
    #[schema(example = "customer-42", min_length = 1, max_length = 512)]
    subject: String,
    /// Tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

tenant_parameter!(EraseInput);

/// Result of an erase request.
#[derive(Serialize, ToSchema)]
pub(super) struct ErasedView {
    /// Number of payloads erased by this request.
    erased: usize,
    /// Whether all matching payloads are erased. If `false`, repeat the request.
    finished: bool,
}

/// Erase all payloads of a subject
///
/// Erases the oldest events first, up to 500 per request. Repeat the request until `finished` is `true`.
#[utoipa::path(
    post, path = "/v1/events/erase", operation_id = "eraseEventsOfSubject", tag = "events", params(TenantQuery), request_body = EraseInput,
    responses((status = 200, description = "Number of events whose payload was erased", body = ErasedView), ChangeProblems),
)]
pub(super) async fn erase_subject(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, body: Json(input), .. }: ScopedBody<CanErase, (), Json<EraseInput>>,
) -> Result<axum::Json<ErasedView>, Problem> {
    let done = App::erase_subject(&app, &actor, tenant.id, input.subject).await?;
    Ok(axum::Json(ErasedView { erased: done.erased, finished: done.finished }))
}

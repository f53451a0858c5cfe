//! Erasing payloads.

use axum::extract::State;
use redrive_core::EventId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{EventView, TenantQuery};
use crate::{
    api::{
        AppState,
        extract::{Id, Json, May, Operates, Query},
        problem::{ChangeProblems, Problem},
    },
    app::App,
};

/// Erase an event's payload
///
/// Payload and metadata are gone for good, and so is what endpoints answered. The event, its deliveries and attempts
/// stay. What is pending of it is cancelled; a request under way is let finish. Replaying or retrying it is a conflict
/// from then on (`payload_erased`). Erasing it again changes nothing.
#[utoipa::path(
    post, path = "/v1/events/{id}/erase", tag = "events", params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The event without its payload", body = EventView), ChangeProblems),
)]
pub(super) async fn erase(
    State(app): State<AppState>,
    May(caller, _): May<Operates>,
    Id(id): Id<EventId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<EventView>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    Ok(axum::Json(App::erase_event(&app, &caller, tenant.id, id).await?.into()))
}

/// Whose payloads to erase.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EraseInput {
    /// The subject that the events were published with.
    #[schema(example = "customer-42", min_length = 1, max_length = 512)]
    subject: String,
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

/// What was erased.
#[derive(Serialize, ToSchema)]
pub(super) struct ErasedView {
    /// How many payloads were erased by this call.
    erased: usize,
    /// Whether there are none left. If not, call again.
    finished: bool,
}

/// Erase all payloads of a subject
///
/// The oldest first, up to 500 in one call: call again until it is `finished`.
#[utoipa::path(
    post, path = "/v1/events/erase", tag = "events", params(TenantQuery), request_body = EraseInput,
    responses((status = 200, body = ErasedView), ChangeProblems),
)]
pub(super) async fn erase_subject(
    State(app): State<AppState>,
    May(caller, _): May<Operates>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<EraseInput>,
) -> Result<axum::Json<ErasedView>, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let done = App::erase_subject(&app, &caller, tenant.id, input.subject).await?;
    Ok(axum::Json(ErasedView { erased: done.erased, finished: done.finished }))
}

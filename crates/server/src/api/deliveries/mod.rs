//! `/v1/deliveries` and the deliveries of one webhook: history, attempts, retry, cancel.

mod attempt;
mod query;
mod view;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{DeliveryId, EventId, WebhookId, delivery::lane::Priority};
use redrive_store::{DeliveryCursor, DeliveryFilter};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use self::{attempt::AttemptView, query::DeadQuery, view::DeliveryView};
pub(crate) use self::{
    attempt::{HeaderView, header_views, request_headers},
    query::{DeliveryQuery, ExportQuery},
};
use super::{
    AppState,
    events::TenantQuery,
    export::stream,
    extract::{Id, Ids, May, OptionalJson, Query, Reads, Resends},
    page::{Page, Paging},
    problem::{ChangeProblems, Problem, ReadProblems},
};
use crate::app::{App, AppError, TenantView, deliveries::Seen};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(export))
        .routes(routes!(get))
        .routes(routes!(attempts))
        .routes(routes!(retry))
        .routes(routes!(cancel))
        .routes(routes!(list_of_webhook))
        .routes(routes!(retry_of_webhook))
}

/// Where a listing goes on after a delivery.
pub(crate) fn cursor_of(seen: &Seen) -> DeliveryCursor {
    DeliveryCursor { event: seen.delivery.event, delivery: seen.delivery.id }
}

async fn page_of(
    app: &App,
    tenant: TenantView,
    filter: DeliveryFilter,
    paging: &Paging,
) -> Result<Page<DeliveryView>, Problem> {
    let seen = app.list_deliveries(tenant, filter, paging.request()?).await?;
    Ok(paging.page_of(seen, cursor_of, DeliveryView::from))
}

pub(super) async fn list_of_event(
    app: &App,
    tenant: TenantView,
    event: EventId,
    paging: &Paging,
) -> Result<Page<DeliveryView>, Problem> {
    let filter = DeliveryFilter { event: Some(event), ..DeliveryFilter::default() };
    page_of(app, tenant, filter, paging).await
}

/// List deliveries
#[utoipa::path(
    get, path = "/v1/deliveries", tag = "deliveries", params(DeliveryQuery),
    responses((status = 200, description = "Newest event first", body = Page<DeliveryView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<DeliveryQuery>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    page_of(&app, tenant, query.filter()?, &query.paging()).await.map(axum::Json)
}

/// What a table of deliveries has.
const COLUMNS: &[&str] = &[
    "id",
    "event_id",
    "event_type",
    "webhook_id",
    "round",
    "status",
    "priority",
    "attempt_count",
    "max_attempts",
    "last_status_code",
    "failure_category",
    "last_error",
    "dead_reason",
    "likely_recoverable",
    "recovery_hint",
    "cancel_reason",
    "waiting_on",
    "next_attempt_at",
    "replay_of",
    "redriven_as",
    "created_at",
    "delivered_at",
    "dead_at",
    "cancelled_at",
    "tenant_id",
];

/// Export deliveries
///
/// Everything that the filter wants, newest event first, as one long answer. One that is broken off was not whole.
#[utoipa::path(
    get, path = "/v1/deliveries/export", tag = "deliveries", params(ExportQuery),
    responses(
        (status = 200, content((DeliveryView = "application/x-ndjson"), (String = "text/csv"))), ReadProblems,
    ),
)]
async fn export(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    exported(&app, tenant, &query, false)
}

/// What a tenant's deliveries are exported as; dead letters alone if so.
pub(crate) fn exported(
    app: &AppState,
    tenant: TenantView,
    query: &ExportQuery,
    dead: bool,
) -> Result<Response, Problem> {
    let name = if dead { "dead-letters" } else { "deliveries" };
    let pages = app.export_deliveries(tenant, query.filter()?, dead)?;
    Ok(stream::<_, DeliveryView>(name, query.format, COLUMNS, pages))
}

/// List a webhook's deliveries
#[utoipa::path(
    get, path = "/v1/webhooks/{id}/deliveries", tag = "deliveries", params(("id" = String, Path), DeliveryQuery),
    responses((status = 200, description = "Newest event first", body = Page<DeliveryView>), ReadProblems),
)]
async fn list_of_webhook(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<WebhookId>,
    Query(query): Query<DeliveryQuery>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    app.had_webhook(&tenant, id).await?;
    let filter = DeliveryFilter { webhooks: vec![id], ..query.filter()? };
    page_of(&app, tenant, filter, &query.paging()).await.map(axum::Json)
}

/// Get a delivery
#[utoipa::path(
    get, path = "/v1/deliveries/{id}", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    responses((status = 200, body = DeliveryView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<DeliveryId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<DeliveryView>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    Ok(axum::Json(app.delivery(tenant, id).await?.into()))
}

/// List a delivery's attempts
///
/// `circuit_blocked` entries tell when an open circuit held it back; they have no number and are no attempts.
#[utoipa::path(
    get, path = "/v1/deliveries/{id}/attempts", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "First to last", body = Page<AttemptView>), ReadProblems),
)]
async fn attempts(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<DeliveryId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<Page<AttemptView>>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    let history = app.history(tenant.clone(), id).await?;
    let event = app.event(tenant, history.delivery.event).await?.event;
    let data = AttemptView::all(history, &event);
    Ok(axum::Json(Page { data, next_cursor: None }))
}

/// The body of a change that needs nothing but its path.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantInput {
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    pub(super) tenant_id: Option<String>,
}

/// How to retry.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RetryInput {
    /// How urgent it is from now on; as urgent as it was if left out.
    priority: Option<Priority>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// What a retry came to.
#[derive(Serialize, ToSchema)]
pub(super) struct RetryView {
    /// The delivery to watch: the same one if it was pending, the new round if it was over.
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
    /// How urgent it is now.
    priority: Priority,
}

impl From<Seen> for RetryView {
    fn from(seen: Seen) -> Self {
        Self { delivery_id: seen.delivery.id, priority: seen.delivery.priority }
    }
}

/// Retry a delivery
///
/// A pending one is due now. One that is over is delivered in a new round.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/retry", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    request_body = Option<RetryInput>,
    responses((status = 202, body = RetryView), ChangeProblems),
)]
async fn retry(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Id(id): Id<DeliveryId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<RetryInput>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let view = RetryView::from(app.retry(&caller, tenant, id, input.priority).await?);
    Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
}

/// Retry a webhook's delivery
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/deliveries/{delivery_id}/retry", tag = "deliveries",
    params(("id" = String, Path), ("delivery_id" = String, Path), TenantQuery), request_body = Option<RetryInput>,
    responses((status = 202, body = RetryView), ChangeProblems),
)]
async fn retry_of_webhook(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Ids(webhook, id): Ids<WebhookId, DeliveryId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<RetryInput>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    if app.delivery(tenant.clone(), id).await?.delivery.webhook != webhook {
        return Err(AppError::NotFound("delivery of this webhook").into());
    }
    let view = RetryView::from(app.retry(&caller, tenant, id, input.priority).await?);
    Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
}

/// Cancel a pending delivery
///
/// A request that is under way is let finish: if it succeeds, the delivery is delivered.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/cancel", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 202, body = DeliveryView), ChangeProblems),
)]
async fn cancel(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Id(id): Id<DeliveryId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    app.cancel(&caller, tenant.clone(), id).await?;
    let view = DeliveryView::from(app.delivery(tenant, id).await?);
    Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
}
